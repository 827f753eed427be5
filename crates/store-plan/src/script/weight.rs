//! What a check costs the server, so that one script call takes a bounded time.

use algorithms::{Algorithm, Kind};

use super::ScriptCheck;

/// Bound: what one script call may cost, in checks of a token bucket. Beyond it, further checks go
/// in further calls; a check that costs more is called alone.
///
/// About half a millisecond of the server's time.
pub const CALL_MAX: usize = 64;

/// The work of a bucket as a multiple of a token bucket's, as measured on Redis 7.0: twice what a
/// check of cost 1 takes. A check that has to read its whole window takes up to five times as long
/// as this; a call of such checks, up to two milliseconds.
pub fn weight(algorithm: &Algorithm, leased: bool) -> usize {
    let sub_windows = algorithm.parameters().sub_windows;
    let sub_windows = usize::try_from(sub_windows.unwrap_or(1)).unwrap_or(usize::MAX);
    match (algorithm.kind(), leased) {
        (Kind::SlidingWindowLog, _) => 8,
        (Kind::Concurrency, _) => 2,
        (Kind::SlidingWindowBuckets, false) => 2 + sub_windows / 64,
        (Kind::SlidingWindowBuckets, true) => 4 + sub_windows / 8,
        (_, false) if algorithm.edges().is_some() => 2,
        (_, false) => 1,
        (_, true) => 3,
    }
}

impl ScriptCheck<'_> {
    /// The weight of all its limits, freed slots, settlements and penalties.
    pub fn weight(&self) -> usize {
        let limits = self.limits.iter();
        limits
            .map(|limit| {
                let settled = limit.costs.map_or(0, |c| 2 + c.costs.settle.len() / 4);
                weight(limit.algorithm, limit.lease.is_some())
                    + limit.free.len() / 4
                    + settled
                    + 2 * usize::from(limit.penalty.is_some())
            })
            .sum()
    }
}

/// Cuts a list of checks so that no part weighs more than [`CALL_MAX`], unless it is one check. Calls are
/// pipelined, so larger ones gain little, and a call blocks the server.
pub fn in_batches<'a, 'k>(checks: &'a [ScriptCheck<'k>]) -> Vec<&'a [ScriptCheck<'k>]> {
    let mut batches = Vec::new();
    let mut rest = checks;
    while !rest.is_empty() {
        let mut sum = 0;
        let full = rest.iter().position(|check| {
            sum += check.weight();
            sum > CALL_MAX
        });
        let (batch, more) = rest.split_at(full.map_or(rest.len(), |over| over.max(1)));
        batches.push(batch);
        rest = more;
    }
    batches
}

#[cfg(test)]
mod tests {
    use algorithms::Parameters;

    use super::{super::ScriptLimit, *};

    fn algorithm(kind: Kind, sub_windows: Option<u64>) -> Algorithm {
        let parameters = Parameters {
            sub_windows,
            ..Parameters::new(kind, 10, 60_000)
        };
        Algorithm::new(&parameters).unwrap()
    }

    #[test]
    fn batches_keep_every_check_once_and_in_order_and_weigh_little() {
        let plain = algorithm(Kind::TokenBucket, None);
        let log = algorithm(Kind::SlidingWindowLog, None);
        let heavy = algorithm(Kind::SlidingWindowBuckets, Some(1000));
        let check = |limits: &[&'static str]| {
            let of = |name: &&str| match *name {
                "plain" => ScriptLimit::new(b"k", &plain, 1),
                "log" => ScriptLimit::new(b"k", &log, 1),
                _ => ScriptLimit::new(b"k", &heavy, 1),
            };
            ScriptCheck {
                limits: limits.iter().map(of).collect(),
                options: algorithms::check::Options::default(),
            }
        };
        assert!(in_batches(&[]).is_empty());
        let sizes = |checks: &[ScriptCheck<'_>]| -> Vec<usize> {
            let batches = in_batches(checks);
            assert_eq!(batches.concat().len(), checks.len());
            batches.iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&vec![check(&["plain"]); 130]), [64, 64, 2]);
        assert_eq!(sizes(&vec![check(&["log", "plain"]); 10]), [7, 3]);
        assert_eq!(sizes(&vec![check(&["heavy", "heavy"]); 3]), [1, 1, 1]);
        assert_eq!(sizes(&vec![check(&["heavy"]); 7]), [3, 3, 1]);
        let mixed = [check(&["plain"; 60]), check(&["heavy"]), check(&["plain"])];
        assert_eq!(sizes(&mixed), [1, 2]);
    }
}
