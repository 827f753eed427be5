//! Bounds the numbers in an answer: a faulty limiter must not lock a bucket for ever.

use policy::{Limit, OverLimit};
use protocol::{Answer, LimitAnswer, Mode};

use crate::request::PendingCheck;

/// The longest wait or window that is accepted, in milliseconds: ten years.
const MAX_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;
/// The largest number of units that is accepted; no limit has more.
const MAX_UNITS: u64 = 1 << 53;
/// The longest delay by a limit that is not in this proxy's policy, in milliseconds.
const MAX_DELAY_MS: u64 = 30_000;
/// The longest penalty that a limit may have, in milliseconds: seven days.
const MAX_PENALTY_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Limits in the answer to one check, at most.
const MAX_LIMITS: usize = 1024;
/// Proxies that share a limit, at most.
pub(crate) const MAX_PROXIES: u64 = 100_000;

/// Bounds the numbers in an answer, and removes limits that cannot apply.
pub(crate) fn clamp(check: &PendingCheck, answer: &mut Answer) {
    let policy = check.policy.as_ref().map(|policy| &policy.compiled);
    // Names unknown here may belong to a later revision, or to a limit that only the limiter can
    // evaluate.
    let all_known = policy
        .is_some_and(|policy| *policy.revision() == answer.revision && policy.opaque().is_empty());
    answer.limits.truncate(MAX_LIMITS);
    answer.limits.retain_mut(|limit_answer| {
        let at = policy.and_then(|policy| policy.position(limit_answer.name.as_str()));
        let limit = policy.zip(at).and_then(|(policy, at)| policy.limit(at));
        clamp_numbers(limit_answer);
        clamp_penalty(limit_answer, limit);
        limit_answer.delay_ms = limit_answer.delay_ms.min(match limit {
            Some(limit) if limit.over_limit == OverLimit::Queue => {
                limit.quota.parameters().max_delay_ms.unwrap_or(0)
            }
            Some(_) => 0,
            None => MAX_DELAY_MS,
        });
        limit.is_some() || !all_known
    });
}

/// Bounds a penalty by the limit's own; a bucket that is not enforced has none.
fn clamp_penalty(limit_answer: &mut LimitAnswer, limit: Option<&Limit>) {
    let most_ms = match limit {
        _ if limit_answer.allowed || limit_answer.mode != Mode::Enforce => 0,
        Some(limit) if limit.generation == limit_answer.generation => {
            limit.penalty.map_or(0, |penalty| penalty.for_ms)
        }
        _ => MAX_PENALTY_MS,
    };
    let left_ms = &mut limit_answer.penalty.left_ms;
    *left_ms = (*left_ms).min(most_ms);
}

fn clamp_numbers(limit_answer: &mut LimitAnswer) {
    let units = |units: &mut u64| *units = (*units).min(MAX_UNITS);
    let span = |ms: &mut u64| *ms = (*ms).min(MAX_MS);
    limit_answer.limit.iter_mut().for_each(units);
    units(&mut limit_answer.remaining);
    limit_answer.remaining = limit_answer
        .remaining
        .min(limit_answer.limit.unwrap_or(MAX_UNITS));
    span(&mut limit_answer.window_ms);
    span(&mut limit_answer.reset_after_ms);
    limit_answer.retry_after_ms.iter_mut().for_each(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn liar() -> LimitAnswer {
        LimitAnswer {
            name: "liar".parse().unwrap(),
            generation: u64::MAX,
            bucket: Vec::new(),
            mode: Mode::Enforce,
            allowed: false,
            charged: u64::MAX,
            limit: Some(u64::MAX),
            window_ms: u64::MAX,
            remaining: u64::MAX,
            retry_after_ms: Some(u64::MAX),
            reset_after_ms: u64::MAX,
            delay_ms: u64::MAX,
            hidden: false,
            lease: None,
            slot: None,
            reservation: None,
            reserved: protocol::Reserved::default(),
            penalty: protocol::PenaltyStatus {
                left_ms: u64::MAX,
                ..protocol::PenaltyStatus::default()
            },
        }
    }

    #[test]
    fn a_penalty_in_an_answer_is_clamped_to_its_limits_penalty() {
        let text = b"domain: shop\nlimits:\n  - {name: liar, rate: 1/s}\n";
        let mut policy = policy::Policy::from_yaml("limits.yaml", text).unwrap();
        let mut limit = policy.limits.remove(0);
        let clamped = |limit: Option<&Limit>, change: fn(&mut LimitAnswer)| {
            let mut limit_answer = liar();
            change(&mut limit_answer);
            clamp_penalty(&mut limit_answer, limit);
            limit_answer.penalty.left_ms
        };
        limit.generation = u64::MAX;
        assert_eq!(clamped(Some(&limit), |_| ()), 0, "it has none");
        limit.penalty = Some(policy::Penalty {
            after: 10,
            within_ms: 60_000,
            for_ms: 900_000,
        });
        assert_eq!(clamped(Some(&limit), |_| ()), 900_000);
        assert_eq!(clamped(Some(&limit), |of| of.penalty.left_ms = 7), 7);
        assert_eq!(
            clamped(Some(&limit), |of| of.generation = 1),
            MAX_PENALTY_MS
        );
        assert_eq!(clamped(None, |_| ()), MAX_PENALTY_MS);
        assert_eq!(clamped(Some(&limit), |of| of.allowed = true), 0);
        assert_eq!(clamped(Some(&limit), |of| of.mode = Mode::Shadow), 0);
    }

    #[test]
    fn numbers_in_an_answer_are_clamped_to_the_largest_valid_ones() {
        let mut limit_answer = liar();
        clamp_numbers(&mut limit_answer);
        assert_eq!(
            (limit_answer.limit, limit_answer.remaining),
            (Some(MAX_UNITS), MAX_UNITS)
        );
        assert_eq!(
            (limit_answer.window_ms, limit_answer.reset_after_ms),
            (MAX_MS, MAX_MS)
        );
        assert_eq!(limit_answer.retry_after_ms, Some(MAX_MS));
        limit_answer.limit = Some(5);
        clamp_numbers(&mut limit_answer);
        assert_eq!(limit_answer.remaining, 5);
    }
}
