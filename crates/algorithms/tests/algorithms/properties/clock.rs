//! Time that runs on, and time that does not.

use algorithms::{Kind, RetryAfter};

use super::choices::Choices;
use super::world::{ALL, ClockKind, World};

pub fn availability_never_falls_without_traffic(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    let mut remaining = world.peek(world.now_ms, 0).remaining;
    for _ in 0..10 {
        world.tick(choices, ClockKind::Monotone);
        let later = world.peek(world.now_ms, 0).remaining;
        assert!(later >= remaining, "{remaining} then {later} {world:?}");
        remaining = later;
    }
}

/// Moving all times by whole windows changes no decision.
pub fn decisions_do_not_depend_on_the_epoch(choices: &mut Choices) {
    let mut here = World::fresh(choices, ALL);
    let length_ms = here.algorithm.parameters().rate.period_ms;
    let by = length_ms * (1 + choices.below((1 << 49) / length_ms + 1));
    let mut there = World {
        now_ms: here.now_ms + by,
        ..here.clone()
    };
    for _ in 0..20 {
        here.tick(choices, ClockKind::Chaotic);
        there.now_ms = here.now_ms + by;
        let cost = here.cost(choices);
        assert_eq!(here.check(cost), there.check(cost), "{here:?} {there:?}");
    }
}

/// However the clock jumped: at most one horizon more than the limit itself can take.
pub fn no_clock_locks_a_bucket_for_long(choices: &mut Choices) {
    let world = World::with_history(choices, ALL, ClockKind::Chaotic);
    let limit = world.algorithm.limit();
    let retry_ms = match world.peek(world.now_ms, limit).retry_after {
        RetryAfter::Millis(ms) => ms,
        _ => 0,
    };
    let window_ms = world.algorithm.window_ms();
    let own_ms = match world.algorithm.kind() {
        Kind::SlidingWindow | Kind::SlidingWindowBuckets => 2 * window_ms,
        _ => window_ms,
    };
    let bound_ms = own_ms + world.algorithm.horizon_ms();
    assert!(retry_ms <= bound_ms, "{retry_ms} > {bound_ms} {world:?}");
}

/// Usage survives, and the step is stored once even by a denial or a peek.
pub fn a_far_step_back_keeps_usage_and_is_remembered(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    if world.algorithm.limit() == 0 || !world.check(world.algorithm.limit()).allowed {
        return;
    }
    let far_ms = world.algorithm.horizon_ms() + world.algorithm.window_ms() + 2;
    let Some(back_ms) = world.now_ms.checked_sub(far_ms) else {
        return;
    };
    world.now_ms = back_ms;
    let peeked = world.evaluate(back_ms, 0).leave();
    assert!(peeked.write.is_some(), "not stored {world:?}");
    let first = world.store(peeked);
    assert_eq!(first.remaining, 0, "usage lost {world:?}");
    let again = world.evaluate(back_ms, 0).leave();
    assert_eq!((again.decision, again.write), (first, None), "{world:?}");
}
