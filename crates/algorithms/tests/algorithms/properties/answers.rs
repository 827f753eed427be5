//! The numbers of an answer are exact.

use algorithms::{RetryAfter, State};

use super::choices::Choices;
use super::world::{ALL, ClockKind, World};

/// The same cost passes at `now + retry_after`, and at no whole millisecond before.
pub fn retry_after_is_exact_and_minimal(choices: &mut Choices) {
    let mut world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let cost = world.cost(choices);
    let now_ms = world.now_ms;
    match world.ask(cost).retry_after {
        RetryAfter::Now => assert!(world.peek(now_ms, cost).allowed),
        RetryAfter::Never => assert!(cost > world.algorithm.limit()),
        RetryAfter::Millis(after_ms) => {
            assert!(after_ms >= 1);
            assert!(
                world.peek(now_ms + after_ms, cost).allowed,
                "{after_ms} {world:?}"
            );
            let earlier = (1..after_ms.min(50)).chain([
                after_ms - 1,
                after_ms / 2,
                after_ms / 3,
                choices.below(after_ms),
                choices.below(after_ms),
            ]);
            for early_ms in earlier.filter(|ms| *ms < after_ms) {
                let early = world.peek(now_ms + early_ms, cost);
                assert!(
                    !early.allowed,
                    "already after {early_ms} of {after_ms} {world:?}"
                );
            }
        }
    }
}

/// After any decision, `remaining` fits at the same instant and `remaining + 1` does not.
///
/// Exception: a sliding window counter whose window starts after `now`, because the clock went back, is read
/// as of that start: the window before weighs more then, and less than `remaining` may fit.
pub fn remaining_fits_and_one_more_does_not(choices: &mut Choices) {
    let mut world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let cost = world.cost(choices);
    let remaining = world.check(cost).remaining;
    let ahead = matches!(&world.state, Some(State::SlidingWindow(w)) if w.start_ms > world.now_ms);
    if remaining > 0 && !ahead {
        assert!(
            world.peek(world.now_ms, remaining).allowed,
            "{remaining} {world:?}"
        );
    }
    assert!(
        !world.peek(world.now_ms, remaining + 1).allowed,
        "{remaining} {world:?}"
    );
}

/// The bucket is unused at `now + reset_after`, and not a millisecond before.
pub fn reset_after_is_exact(choices: &mut Choices) {
    let mut world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let cost = world.cost(choices);
    let reset_ms = world.check(cost).reset_after_ms;
    let limit = world.algorithm.limit();
    let unused = world.peek(world.now_ms + reset_ms, limit);
    assert!(unused.allowed, "{reset_ms} {world:?}");
    assert_eq!((unused.remaining, unused.reset_after_ms), (limit, 0));
    if reset_ms > 0 {
        let before = world.peek(world.now_ms + reset_ms - 1, limit);
        assert!(!before.allowed, "{reset_ms} {world:?}");
        assert_eq!(before.reset_after_ms, 1);
    }
}

/// "Never" means never, and does not hide what is left.
pub fn a_cost_above_the_limit_never_fits(choices: &mut Choices) {
    let world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let limit = world.algorithm.limit();
    let cost = limit
        .saturating_add(1)
        .saturating_add(choices.magnitude(63));
    let decision = world.peek(world.now_ms, cost);
    assert_eq!(decision.retry_after, RetryAfter::Never);
    let question = world.peek(world.now_ms, 0);
    assert_eq!(decision.remaining, question.remaining);
    assert_eq!(decision.reset_after_ms, question.reset_after_ms);
}
