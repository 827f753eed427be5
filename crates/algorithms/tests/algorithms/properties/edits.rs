//! Limits that change under a bucket in use.

use algorithms::{Algorithm, Align, Kind, Parameters};

use super::choices::Choices;
use super::world::{ALL, BUCKETS, ClockKind, WINDOWS, World};

/// A world's limit with its capacity or N changed.
fn with_limit(parameters: &Parameters, limit: u64) -> Option<Algorithm> {
    let mut edited = *parameters;
    if BUCKETS.contains(&parameters.kind) {
        edited.burst = Some(limit);
    } else {
        edited.rate.units = limit;
    }
    Algorithm::new(&edited).ok()
}

pub fn raising_a_limit_adds_the_difference(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    let before = world.peek(world.now_ms, 0);
    let more = choices.below(1000);
    let limit = world.algorithm.limit() + more;
    let Some(raised) = with_limit(world.algorithm.parameters(), limit) else {
        return;
    };
    world.algorithm = raised;
    let after = world.peek(world.now_ms, 0);
    if after.allowed {
        assert_eq!(after.remaining, before.remaining + more, "{world:?}");
    }
}

pub fn lowering_a_limit_keeps_what_is_used(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    let before = world.peek(world.now_ms, 0);
    let limit = world.algorithm.limit();
    let less = choices.below(limit + 1);
    let Some(lowered) = with_limit(world.algorithm.parameters(), limit - less) else {
        return;
    };
    world.algorithm = lowered;
    let after = world.peek(world.now_ms, 0);
    let left = before.remaining.saturating_sub(less);
    // A token bucket's debt is cut to the new capacity before it drains; a queue's may be held.
    assert!(
        after.remaining >= left || !after.allowed,
        "{before:?} {after:?} {world:?}"
    );
    if WINDOWS.contains(&world.algorithm.kind()) {
        assert_eq!(after.remaining, left, "{world:?}");
    }
}

/// Converting the stored debt to the new rate's unit rounds up, by less than one part.
pub fn a_rate_edit_keeps_the_debt_to_within_one_part(choices: &mut Choices) {
    let mut world = World::with_history(choices, &[Kind::TokenBucket], ClockKind::Monotone);
    let cost = world.cost(choices);
    if !world.check(cost).allowed || cost == 0 {
        return;
    }
    let old = world.algorithm.numbers();
    let mut edited = *world.algorithm.parameters();
    edited.burst = Some(old.limit);
    edited.rate.units = 1 + choices.below(2000);
    edited.rate.period_ms = 1 + choices.below(100_000);
    let Ok(edited) = Algorithm::new(&edited) else {
        return;
    };
    let Some(algorithms::State::TokenBucket(stored)) = &world.state else {
        unreachable!()
    };
    let debt = stored.debt;
    world.algorithm = edited;
    let new = edited.numbers();
    // The debt at this instant, recovered from the parts by which a cost of `limit` misses.
    let reset_ms = world.peek(world.now_ms, 0).reset_after_ms;
    let exact = u128::from(debt) * u128::from(new.x);
    let rounded = exact.div_ceil(u128::from(old.x));
    assert_eq!(
        u128::from(reset_ms),
        rounded.div_ceil(u128::from(new.y)),
        "{world:?}"
    );
}

/// After an edit of W an aligned count is kept iff its start falls into the current window.
pub fn a_window_edit_keeps_only_a_count_of_its_window(choices: &mut Choices) {
    let kinds = [Kind::FixedWindow, Kind::SlidingWindow];
    let mut world = World::with_history(choices, &kinds, ClockKind::Monotone);
    let cost = world.cost(choices);
    let parameters = *world.algorithm.parameters();
    let unused = world.peek(world.now_ms, 0).reset_after_ms == 0;
    if parameters.align == Some(Align::FirstRequest) || !unused || cost == 0 {
        return;
    }
    assert!(world.check(cost).allowed);
    let start_ms = world.now_ms - world.now_ms % parameters.rate.period_ms;
    let mut edited = parameters;
    edited.rate.period_ms = 1 + choices.below(200_000);
    let Ok(edited) = Algorithm::new(&edited) else {
        return;
    };
    if edited.window_ms() == parameters.rate.period_ms {
        return;
    }
    world.algorithm = edited;
    world.now_ms += choices.below(3 * edited.window_ms());
    let current_ms = world.now_ms - world.now_ms % edited.window_ms();
    let kept = if start_ms >= current_ms { cost } else { 0 };
    let remaining = world.peek(world.now_ms, 0).remaining;
    assert_eq!(remaining, edited.limit() - kept, "{world:?}");
}
