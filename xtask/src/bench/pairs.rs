//! Two sides that are loaded in turn.

use anyhow::Result;

/// Loads both sides in each round, each of them first in every other one. The first round does not count:
/// code is compiled, connections are made, pools fill.
pub async fn alternate<T>(
    rounds: u64,
    own: impl AsyncFn() -> Result<T>,
    reference: impl AsyncFn() -> Result<T>,
) -> Result<Vec<(T, T)>> {
    let mut pairs = Vec::new();
    for round in 0..=rounds {
        let pair = if round % 2 == 0 {
            let own = own().await?;
            (own, reference().await?)
        } else {
            let reference = reference().await?;
            (own().await?, reference)
        };
        if round > 0 {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}
