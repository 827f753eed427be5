//! What every algorithm guarantees, for every limit, history and clock.
//!
//! A property is a plain function of a stream of choices, which proptest makes
//! and shrinks; the same natively and on wasm32.

mod answers;
mod charging;
mod choices;
mod clock;
mod edits;
mod guarantees;
mod world;

/// Makes each function of a module a test.
macro_rules! hold {
    ($($module:ident :: {$($property:ident),+ $(,)?}),+ $(,)?) => {
        $($(
            #[test]
            fn $property() {
                choices::with_proptest($module::$property);
            }
        )+)+
    };
}

hold!(
    answers::{
        retry_after_is_exact_and_minimal,
        remaining_fits_and_one_more_does_not,
        reset_after_is_exact,
        a_cost_above_the_limit_never_fits,
    },
    charging::{
        a_denial_or_a_peek_changes_nothing,
        two_costs_at_once_are_their_sum,
        a_debit_fills_up_to_the_limit_and_no_further,
        a_fixed_size_state_survives_its_slot,
        any_slot_can_be_evaluated,
    },
    clock::{
        availability_never_falls_without_traffic,
        decisions_do_not_depend_on_the_epoch,
        no_clock_locks_a_bucket_for_long,
        a_far_step_back_keeps_usage_and_is_remembered,
    },
    edits::{
        raising_a_limit_adds_the_difference,
        lowering_a_limit_keeps_what_is_used,
        a_rate_edit_keeps_the_debt_to_within_one_part,
        a_window_edit_keeps_only_a_count_of_its_window,
    },
    guarantees::{
        a_bucket_admits_at_most_its_capacity_and_refill,
        a_window_admits_at_most_its_limit,
        two_counts_stay_within_the_estimate,
        a_queue_spaces_what_it_admits,
        a_queue_never_gives_the_same_time_to_two_requests,
        bucket_algorithms_agree_under_a_monotone_clock,
        a_meter_is_a_token_bucket,
    },
);
