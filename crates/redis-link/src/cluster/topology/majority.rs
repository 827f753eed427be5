//! Which of the maps that nodes answer counts, where they differ.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use super::closed;
use crate::{Error, cluster::map::Range};

/// What the others are waited for once one has answered: one that hangs costs no more.
const OTHERS: Duration = Duration::from_millis(50);

/// The map that most of the nodes agree on, and of those as many the first to come. A master that was
/// deposed behind a partition is one of them, and may be the nearest.
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
    // Of equals the last is the greatest.
    let most = maps.into_iter().rev().max_by_key(|(_, votes)| *votes);
    most.map(|(map, _)| map).ok_or(last)
}

#[cfg(test)]
mod tests;
