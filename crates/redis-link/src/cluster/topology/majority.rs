//! Chooses between different maps returned by nodes.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use super::closed;
use crate::{Error, cluster::map::Range};

/// How long to wait for the other nodes after the first answer, so that a hanging one costs no
/// more.
const OTHERS: Duration = Duration::from_millis(50);

/// The map that most nodes agree on; on a tie, the first to arrive. A deposed master behind a
/// partition may be among the nodes, and may be the nearest.
pub(super) async fn majority(
    mut asked: FuturesUnordered<impl Future<Output = Result<Vec<Range>, Error>>>,
) -> Result<Vec<Range>, Error> {
    let mut maps: Vec<(Vec<Range>, usize)> = Vec::new();
    let (mut until, mut last) = (None, closed());
    loop {
        let answer = match until {
            None => asked.next().await,
            Some(until) => timeout_at(until, asked.next()).await.unwrap_or_default(),
        };
        match answer {
            Some(Ok(mut map)) => {
                map.sort_unstable();
                until.get_or_insert_with(|| Instant::now() + OTHERS);
                match maps.iter_mut().find(|(known, _)| *known == map) {
                    Some((_, votes)) => *votes += 1,
                    None => maps.push((map, 1)),
                }
            }
            Some(Err(error)) => last = error,
            None => break,
        }
    }
    // `max_by_key` returns the last of equals, hence the reversed order.
    let most = maps.into_iter().rev().max_by_key(|(_, votes)| *votes);
    most.map(|(map, _)| map).ok_or(last)
}

#[cfg(test)]
mod tests;
