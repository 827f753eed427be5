//! What every algorithm guarantees, for every limit, history and clock.
//!
//! A property is a plain function of a stream of choices, which proptest makes
//! and shrinks; the same natively and on wasm32.

mod world;

use algorithms::{
    Algorithm, Align, Kind, Parameters, RetryAfter, STATE_BYTES_MAX, SlotAct, SlotOp, State,
};

use world::{ALL, BUCKETS, Choices, ClockKind, WINDOWS, World, algorithm, with_proptest};

/// Makes each function a test.
macro_rules! hold {
    ($($property:ident),+ $(,)?) => {
        mod hold {
            $(#[test]
            fn $property() {
                super::with_proptest(super::$property);
            })+
        }
    };
}

hold!(
    retry_after_is_exact_and_minimal,
    remaining_fits_and_one_more_does_not,
    reset_after_is_exact,
    a_cost_above_the_limit_never_fits,
    a_denial_or_a_peek_changes_nothing,
    two_costs_at_once_are_their_sum,
    a_debit_fills_up_to_the_limit_and_no_further,
    a_fixed_size_state_survives_its_slot,
    any_slot_can_be_evaluated,
    availability_never_falls_without_traffic,
    decisions_do_not_depend_on_the_epoch,
    no_clock_locks_a_bucket_for_long,
    a_far_step_back_keeps_usage_and_is_remembered,
    raising_a_limit_adds_the_difference,
    lowering_a_limit_keeps_what_is_used,
    a_rate_edit_keeps_the_debt_to_within_one_part,
    a_window_edit_keeps_only_a_count_of_its_window,
    a_bucket_admits_at_most_its_capacity_and_refill,
    a_window_admits_at_most_its_limit,
    two_counts_stay_within_the_estimate,
    a_queue_spaces_what_it_admits,
    a_queue_never_gives_the_same_time_to_two_requests,
    bucket_algorithms_agree_under_a_monotone_clock,
    a_meter_is_a_token_bucket,
);

// -----------------------------------------------------------------------------
// The numbers of an answer are exact.

/// The same cost passes at `now + retry_after`, and at no whole millisecond before.
fn retry_after_is_exact_and_minimal(choices: &mut Choices) {
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
fn remaining_fits_and_one_more_does_not(choices: &mut Choices) {
    let mut world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let cost = world.cost(choices);
    let ahead = |world: &World| matches!(&world.state, Some(State::SlidingWindow(w)) if w.start_ms > world.now_ms);
    // Before as well: an edit of the length may align the start to before `now`.
    let was_ahead = ahead(&world);
    let remaining = world.check(cost).remaining;
    if remaining > 0 && !was_ahead && !ahead(&world) {
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
fn reset_after_is_exact(choices: &mut Choices) {
    let mut world = World::with_leavers(choices, ALL, ClockKind::Chaotic);
    let cost = world.cost(choices);
    let reset_ms = world.check(cost).reset_after_ms;
    let limit = world.algorithm.limit();
    let unused = world.peek(world.now_ms + reset_ms, limit);
    assert!(unused.allowed, "{reset_ms} {world:?}");
    assert_eq!((unused.remaining, unused.reset_after_ms), (limit, 0));
    if reset_ms > 0 {
        let before = world.peek(world.now_ms + reset_ms - 1, limit);
        assert!(
            !before.allowed || before.delay_ms > 0,
            "{reset_ms} {world:?}"
        );
        assert_eq!(before.reset_after_ms, 1);
    }
}

/// "Never" means never, and does not hide what is left.
fn a_cost_above_the_limit_never_fits(choices: &mut Choices) {
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

// -----------------------------------------------------------------------------
// What is taken, and what is not.

/// Neither has anything to store, so neither can change a later answer.
fn a_denial_or_a_peek_changes_nothing(choices: &mut Choices) {
    let world = World::with_history(choices, ALL, ClockKind::Monotone);
    let cost = world.cost(choices);
    assert_eq!(world.evaluate(world.now_ms, cost).leave().write, None);
    assert_eq!(world.evaluate(world.now_ms, 0).charge().write, None);
    let beyond = world.peek(world.now_ms, 0).remaining + 1;
    let denied = world.evaluate(world.now_ms, beyond).charge();
    assert!(!denied.verdict.decision.allowed);
    assert_eq!((denied.verdict.charged, denied.write), (0, None));
}

/// Taking a and then b leaves what taking a + b leaves.
fn two_costs_at_once_are_their_sum(choices: &mut Choices) {
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
fn a_debit_fills_up_to_the_limit_and_no_further(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    let before = world.peek(world.now_ms, 0);
    let units = choices.magnitude(52);
    let outcome = world
        .algorithm
        .evaluate_with_debit(world.state.as_ref(), world.now_ms, 0, units)
        .charge();
    assert_eq!(outcome.verdict.charged, 0);
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
fn a_fixed_size_state_survives_its_slot(choices: &mut Choices) {
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
fn any_slot_can_be_evaluated(choices: &mut Choices) {
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

// -----------------------------------------------------------------------------
// Time that runs on, and time that does not.

fn availability_never_falls_without_traffic(choices: &mut Choices) {
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
fn decisions_do_not_depend_on_the_epoch(choices: &mut Choices) {
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
fn no_clock_locks_a_bucket_for_long(choices: &mut Choices) {
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
fn a_far_step_back_keeps_usage_and_is_remembered(choices: &mut Choices) {
    let mut world = World::with_history(choices, ALL, ClockKind::Monotone);
    if world.algorithm.limit() == 0 || !world.check(world.algorithm.limit()).allowed {
        return;
    }
    let left = world.peek(world.now_ms, 0).remaining;
    let far_ms = world.algorithm.horizon_ms() + world.algorithm.window_ms() + 2;
    let Some(back_ms) = world.now_ms.checked_sub(far_ms) else {
        return;
    };
    world.now_ms = back_ms;
    let peeked = world.evaluate(back_ms, 0).leave();
    assert!(peeked.write.is_some(), "not stored {world:?}");
    let first = world.store(peeked);
    assert_eq!(first.remaining, left, "usage lost {world:?}");
    let again = world.evaluate(back_ms, 0).leave();
    assert_eq!(
        (again.verdict.decision, again.write),
        (first, None),
        "{world:?}"
    );
}

// -----------------------------------------------------------------------------
// Limits that change under a bucket in use.

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

fn raising_a_limit_adds_the_difference(choices: &mut Choices) {
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

fn lowering_a_limit_keeps_what_is_used(choices: &mut Choices) {
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
fn a_rate_edit_keeps_the_debt_to_within_one_part(choices: &mut Choices) {
    let mut world = World::with_history(choices, &[Kind::TokenBucket], ClockKind::Monotone);
    let cost = world.cost(choices);
    let queue = world.algorithm.parameters().max_delay_ms.is_some();
    if !world.check(cost).allowed || cost == 0 || queue {
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
    let Some(State::TokenBucket(stored)) = &world.state else {
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
fn a_window_edit_keeps_only_a_count_of_its_window(choices: &mut Choices) {
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

// -----------------------------------------------------------------------------
// What the table of algorithms guarantees, counted from the admissions alone.

/// An admission: when, how much, and how long it was held.
struct Admission {
    at_ms: u64,
    cost: u64,
    delay_ms: u64,
}

/// A busy history on a fresh bucket: what was admitted.
fn traffic(choices: &mut Choices, world: &mut World) -> Vec<Admission> {
    let mut admissions = Vec::new();
    for _ in 0..60 {
        world.tick(choices, ClockKind::Monotone);
        let cost = world.cost(choices).max(1);
        let decision = world.check(cost);
        if decision.allowed {
            let delay_ms = decision.delay_ms;
            admissions.push(Admission {
                at_ms: world.now_ms,
                cost,
                delay_ms,
            });
        }
    }
    admissions
}

/// The most admitted in any interval that `within` accepts, by its first and last admission.
fn for_every_interval(admissions: &[Admission], mut look: impl FnMut(u64, u64, u64)) {
    for (index, first) in admissions.iter().enumerate() {
        let mut sum = 0;
        for last in &admissions[index..] {
            sum += last.cost;
            look(first.at_ms, last.at_ms, sum);
        }
    }
}

/// At most C + r·Δ start in any interval Δ, and a queue's in the order of the checks.
fn a_bucket_admits_at_most_its_capacity_and_refill(choices: &mut Choices) {
    let mut world = World::fresh(choices, BUCKETS);
    let mut admissions = traffic(choices, &mut world);
    let numbers = world.algorithm.numbers();
    for admission in &mut admissions {
        admission.at_ms += admission.delay_ms;
    }
    assert!(admissions.is_sorted_by_key(|of| of.at_ms), "{world:?}");
    // A delay is rounded up to a whole millisecond.
    let rounded_ms = u64::from(world.algorithm.parameters().max_delay_ms.is_some());
    for_every_interval(&admissions, |first_ms, last_ms, sum| {
        let refill = u128::from(last_ms - first_ms + rounded_ms) * u128::from(numbers.y);
        let most = u128::from(numbers.limit) * u128::from(numbers.x) + refill;
        assert!(u128::from(sum) * u128::from(numbers.x) <= most, "{world:?}");
    });
}

/// At most N per window: in every W, or per aligned window for a fixed one.
fn a_window_admits_at_most_its_limit(choices: &mut Choices) {
    let kinds = [
        Kind::FixedWindow,
        Kind::SlidingWindowLog,
        Kind::SlidingWindowBuckets,
    ];
    let mut world = World::fresh(choices, &kinds);
    let admissions = traffic(choices, &mut world);
    let parameters = *world.algorithm.parameters();
    let (limit, window_ms) = (parameters.rate.units, parameters.rate.period_ms);
    let loose_ms = match parameters {
        Parameters {
            strict: Some(false),
            sub_windows: Some(n),
            ..
        } => window_ms / n,
        _ => 0,
    };
    for_every_interval(&admissions, |first_ms, last_ms, sum| {
        match parameters.align {
            Some(Align::Epoch) => {
                assert!(
                    first_ms / window_ms != last_ms / window_ms || sum <= limit,
                    "{world:?}"
                );
            }
            Some(Align::FirstRequest) => {
                assert!(
                    last_ms - first_ms >= window_ms || sum <= 2 * limit,
                    "{world:?}"
                );
            }
            None => {
                let inside = last_ms - first_ms < window_ms - loose_ms;
                assert!(
                    !inside || sum <= limit,
                    "{sum} in {first_ms}..={last_ms} {world:?}"
                );
            }
        }
    });
}

/// Every admission keeps prev·(W − e) + cur·W <= N·W, counted afresh.
fn two_counts_stay_within_the_estimate(choices: &mut Choices) {
    let mut world = World::fresh(choices, &[Kind::SlidingWindow]);
    let admissions = traffic(choices, &mut world);
    let rate = world.algorithm.parameters().rate;
    let window_ms = rate.period_ms;
    for (index, last) in admissions.iter().enumerate() {
        let window = last.at_ms / window_ms;
        let count = |wanted: Option<u64>| -> u64 {
            let so_far = &admissions[..=index];
            so_far
                .iter()
                .filter(|a| Some(a.at_ms / window_ms) == wanted)
                .map(|a| a.cost)
                .sum()
        };
        let overlap_ms = window_ms - last.at_ms % window_ms;
        let previous = u128::from(count(window.checked_sub(1))) * u128::from(overlap_ms);
        let current = u128::from(count(Some(window))) * u128::from(window_ms);
        assert!(
            previous + current <= u128::from(rate.units) * u128::from(window_ms),
            "{world:?}"
        );
    }
}

/// Starts come in the order of the checks, cost/r apart (to the rounding of one delay), and
/// nothing is held longer than the longest delay.
fn a_queue_spaces_what_it_admits(choices: &mut Choices) {
    let mut world = World::fresh(choices, &[Kind::LeakyBucket]);
    let Some(max_delay_ms) = world.algorithm.parameters().max_delay_ms else {
        return;
    };
    let admissions = traffic(choices, &mut world);
    let numbers = world.algorithm.numbers();
    for pair in admissions.windows(2) {
        let start = |a: &Admission| u128::from(a.at_ms + a.delay_ms);
        let apart_ms = start(&pair[1]) - start(&pair[0]);
        let spacing = u128::from(pair[0].cost) * u128::from(numbers.x);
        assert!(
            (apart_ms + 1) * u128::from(numbers.y) > spacing,
            "{world:?}"
        );
    }
    assert!(
        admissions
            .iter()
            .all(|admission| admission.delay_ms <= max_delay_ms)
    );
}

/// Whichever requests leave a queue, however often they free their slots, and whatever other names
/// are freed: no two requests that stay have the same part of its time.
fn a_queue_never_gives_the_same_time_to_two_requests(choices: &mut Choices) {
    let mut world = World::fresh(choices, BUCKETS);
    let Some(max_delay_ms) = world.algorithm.parameters().max_delay_ms else {
        return;
    };
    let numbers = world.algorithm.numbers();
    let (x, y) = (u128::from(numbers.x), u128::from(numbers.y));
    let start_of = |of: &SlotOp| u128::from(of.slot.start_ms) * y + u128::from(of.slot.parts);
    // The time of each request that goes on or may, by the name of its slot.
    let mut taken: Vec<(SlotOp, u128, u128)> = Vec::new();
    for _ in 0..80 {
        if choices.one_in(3) {
            world.tick(choices, ClockKind::Monotone);
        }
        let now = u128::from(world.now_ms) * y;
        if !world.given.is_empty() && choices.one_in(2) {
            let freed = choices.pick(&world.given.clone());
            world.free(freed);
            for (name, start, end) in &mut taken {
                let SlotAct::Free(units) = name.act else {
                    unreachable!()
                };
                if *name == freed && *start > now + u128::from(world.lead(units)) {
                    *end = *start;
                }
            }
        }
        let cost = world.cost(choices).max(1);
        let decision = world.check(cost);
        if !decision.allowed {
            continue;
        }
        assert!(decision.delay_ms <= max_delay_ms, "{world:?}");
        let name = *world.given.last().unwrap();
        let (start, length) = (start_of(&name), u128::from(cost) * x);
        let held = (start - now).saturating_sub(u128::from(world.lead(cost)));
        assert_eq!(held.div_ceil(y), u128::from(decision.delay_ms));
        for (other, from, to) in &taken {
            let apart = start + length <= *from || *to <= start;
            assert!(apart || from == to, "{name:?} and {other:?} {world:?}");
        }
        taken.push((name, start, start + length));
    }
}

/// Token bucket, GCRA and the leaky meter are one algorithm as long as time runs on.
fn bucket_algorithms_agree_under_a_monotone_clock(choices: &mut Choices) {
    let fresh = World::fresh(choices, &[Kind::TokenBucket]);
    let mut token = meter(&fresh, Kind::TokenBucket);
    let mut others = [Kind::Gcra, Kind::LeakyBucket].map(|kind| meter(&fresh, kind));
    for _ in 0..30 {
        token.tick(choices, ClockKind::Monotone);
        let cost = token.cost(choices);
        let decision = token.check(cost);
        for other in &mut others {
            other.now_ms = token.now_ms;
            assert_eq!(other.check(cost), decision, "{token:?} {other:?}");
        }
    }
}

/// The leaky meter equals the token bucket, whatever the clock does.
fn a_meter_is_a_token_bucket(choices: &mut Choices) {
    let fresh = World::fresh(choices, &[Kind::TokenBucket]);
    let [mut token, mut meter] =
        [Kind::TokenBucket, Kind::LeakyBucket].map(|kind| meter(&fresh, kind));
    for _ in 0..30 {
        token.tick(choices, ClockKind::Chaotic);
        meter.now_ms = token.now_ms;
        let cost = token.cost(choices);
        assert_eq!(meter.check(cost), token.check(cost), "{token:?}");
    }
}

/// The limit as one of this kind that is no queue.
fn meter(world: &World, kind: Kind) -> World {
    let parameters = Parameters {
        kind,
        max_delay_ms: None,
        ..*world.algorithm.parameters()
    };
    let algorithm = Algorithm::new(&parameters).unwrap();
    World {
        algorithm,
        ..world.clone()
    }
}
