//! The algorithms against models of them that follow `docs/algorithms.md`, `limits.md` and `leases.md`: each answers a
//! hundred thousand random checks as the algorithm does, while the clock steps back and forth. What the documents leave
//! open (when nothing is stored, how an edit rounds) has a comment in the model. `RL_MODEL_STEPS` sets how many steps.
//! Queues, reservations and fleets of proxies have models in the folders beside this one.

mod gcra;
mod leases;
mod penalties;
mod slots;
mod windows;

use algorithms::check::{Options, Stored, StoredPart, check};
use algorithms::{Decision, Lease, LeaseRequest, LimitVerdict, RetryAfter, Settlement};

use crate::support::{Random, number, part};

const START_MS: u64 = 1_763_000_000_000;
const STEPS_PER_WALK: u64 = 1000;

impl Random {
    /// The next time at which a bucket of this period is asked: mostly a little later or the same, at times much
    /// later, and at times earlier, by a little or by more than any clock is off.
    fn tick(&mut self, now_ms: u64, period_ms: u64) -> u64 {
        match self.below(40) {
            0 => now_ms - self.below(period_ms + 2),
            1 if self.one_in(4) => now_ms - self.below(20 * period_ms),
            2 if self.one_in(4) => now_ms + self.below(20 * period_ms),
            3 => now_ms + period_ms + self.below(3) - 1,
            4..20 => now_ms + self.below(period_ms / 5 + 2),
            _ => now_ms,
        }
    }
}

/// Runs walks of a thousand steps each; what a walk counts of the rare cases has to be a thousandth of the steps or more.
fn walks<const N: usize>(walk: impl Fn(Random) -> [u64; N]) {
    let steps = number("RL_MODEL_STEPS", 100_000);
    let mut sum = [0; N];
    for seed in 0..steps.div_ceil(STEPS_PER_WALK) {
        let seen = walk(Random(seed));
        for (sum, seen) in sum.iter_mut().zip(seen) {
            *sum += seen;
        }
    }
    assert!(
        sum.iter().all(|seen| *seen >= steps / 1000),
        "too rare to show anything: {sum:?}"
    );
}

/// Settlements of some of the latest grants, right or wrong.
fn settlements(random: &mut Random, leases: &[Lease]) -> Vec<Settlement> {
    let mut settle = Vec::new();
    for _ in 0..random.below(3) {
        let newest = usize::try_from(random.below(4)).unwrap();
        let (spent, returned) = (random.below(4), random.below(4));
        settle.extend(leases.iter().rev().nth(newest).map(|of| Settlement {
            epoch: of.epoch,
            spent,
            returned,
        }));
    }
    settle
}

/// What a proxy asks beside its cost. Of more than ten proxies a bucket estimates how many there are.
fn lease_request<'a>(
    random: &mut Random,
    ttl_ms: u64,
    settle: &'a [Settlement],
) -> LeaseRequest<'a> {
    LeaseRequest {
        ttl_ms,
        want: random.pick(&[0, 1, 5, 50]),
        proxy: u8::try_from(random.below(8)).unwrap(),
        settle,
    }
}

/// Decides a check of one limit; returns what is to be stored, too.
fn ask(asked: StoredPart<'_>, now_ms: u64, options: Options) -> (LimitVerdict, Option<Stored>) {
    let (mut verdict, mut writes) = check(&[asked], now_ms, options).unwrap();
    (verdict.limits.remove(0), writes.remove(0).0)
}

/// Counts the cases that a step showed.
fn count<const N: usize>(seen: &mut [u64; N], cases: [bool; N]) {
    for (seen, case) in seen.iter_mut().zip(cases) {
        *seen += u64::from(case);
    }
}

/// A decision allows and has left what the model says, and denies for ever a cost above all that fits. Otherwise the
/// wait is over after `retry_after` and not a millisecond before, if nothing else comes: `fits` is what the model says
/// of a later time. So it is with `reset_after_ms` and `unused`.
fn assert_decides(
    decision: Decision,
    now_ms: u64,
    (allowed, left, never): (bool, u64, bool),
    fits: impl Fn(u64) -> bool,
    unused: impl Fn(u64) -> bool,
) {
    assert_eq!(
        (decision.allowed, decision.remaining),
        (allowed, left),
        "{decision:?}"
    );
    let reset_ms = decision.reset_after_ms;
    let over = unused(now_ms + reset_ms) && (reset_ms == 0 || !unused(now_ms + reset_ms - 1));
    assert!(over, "{decision:?}");
    match decision.retry_after {
        RetryAfter::Now => assert!(allowed),
        RetryAfter::Never => assert!(never && !allowed),
        RetryAfter::Millis(ms) => {
            let over = fits(now_ms + ms) && (ms == 1 || !fits(now_ms + ms - 1));
            assert!(over && !never && !allowed, "{decision:?}");
        }
    }
}
