//! What is taken, and what is not.

use algorithms::{Kind, STATE_BYTES_MAX, State};

use super::choices::Choices;
use super::world::{ALL, ClockKind, World, algorithm};

/// Neither has anything to store, so neither can change a later answer.
pub fn a_denial_or_a_peek_changes_nothing(choices: &mut Choices) {
    let world = World::with_history(choices, ALL, ClockKind::Monotone);
    let cost = world.cost(choices);
    assert_eq!(world.evaluate(world.now_ms, cost).leave().write, None);
    assert_eq!(world.evaluate(world.now_ms, 0).charge().write, None);
    let beyond = world.peek(world.now_ms, 0).remaining + 1;
    let denied = world.evaluate(world.now_ms, beyond).charge();
    assert!(!denied.decision.allowed);
    assert_eq!((denied.charged, denied.write), (0, None));
}

/// Taking a and then b leaves what taking a + b leaves.
pub fn two_costs_at_once_are_their_sum(choices: &mut Choices) {
    let mut parts = World::with_history(choices, ALL, ClockKind::Chaotic);
    if parts.algorithm.parameters().max_delay_ms.is_some() {
        return; // The second would queue behind the first.
    }
    let mut whole = parts.clone();
    let (a, b) = (parts.cost(choices), parts.cost(choices));
    let fits = whole.check(a + b);
    let both = parts.check(a).allowed && parts.check(b).allowed;
    if fits.allowed {
        assert!(both, "{a} {b} {whole:?}");
        assert_eq!(parts.peek(parts.now_ms, 0), whole.peek(whole.now_ms, 0));
        assert_eq!(parts.state, whole.state);
    } else {
        assert!(!both, "{a} {b} {whole:?}");
    }
}

/// A debit cannot be denied, and locks the bucket for no longer than a used-up bucket is.
pub fn a_debit_fills_up_to_the_limit_and_no_further(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    let before = world.peek(world.now_ms, 0);
    let units = choices.magnitude(52);
    let outcome = world
        .algorithm
        .evaluate_with_debit(world.state.as_ref(), world.now_ms, 0, units)
        .charge();
    assert_eq!(outcome.charged, 0);
    world.store(outcome);
    let after = world.peek(world.now_ms, 0);
    if world.algorithm.parameters().max_delay_ms.is_none() {
        assert_eq!(after.remaining, before.remaining.saturating_sub(units));
    }
    let one = world.peek(world.now_ms, 1);
    if let Some(retry_ms) = one.retry_after.millis() {
        let window_ms = world.algorithm.window_ms();
        assert!(retry_ms <= 2 * window_ms, "{retry_ms} {world:?}");
    }
}

/// A proxy reads from its shared data the state that it stored.
pub fn a_fixed_size_state_survives_its_slot(choices: &mut Choices) {
    let world = World::with_history(choices, ALL, ClockKind::Chaotic);
    let Some(state) = world.state else { return };
    let sized = !matches!(
        world.algorithm.kind(),
        Kind::SlidingWindowLog | Kind::SlidingWindowBuckets
    );
    match state.to_bytes() {
        Some(bytes) => assert_eq!(State::from_bytes(&bytes), Some(state)),
        None => assert!(!sized),
    }
}

/// Any other bytes are refused or evaluated: no overflow, no division by zero.
pub fn any_slot_can_be_evaluated(choices: &mut Choices) {
    let mut bytes = [0; STATE_BYTES_MAX];
    let numbers: Vec<_> = (0..17).map(|_| choices.magnitude(53)).collect();
    for (slot, number) in bytes[1..].chunks_exact_mut(7).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes()[..7]);
    }
    bytes[0] = u8::try_from(choices.below(6)).unwrap();
    // Longer ones are queues with freed time.
    let length = 32
        + if bytes[0] == 5 {
            7 + 14 * choices.below(7)
        } else {
            0
        };
    let bytes = &bytes[..usize::try_from(length).unwrap()];
    let Some(state) = State::from_bytes(bytes) else {
        return;
    };
    let kind = choices.pick(ALL);
    let algorithm = algorithm(choices, kind);
    let now_ms = choices.magnitude(63);
    let cost = choices.magnitude(63);
    let debit = choices.magnitude(63);
    let charged = algorithm
        .evaluate_with_debit(Some(&state), now_ms, cost, debit)
        .charge();
    algorithm
        .evaluate(charged.write.as_ref(), now_ms, cost)
        .leave();
}
