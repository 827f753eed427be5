//! When a bucket is penalized, and until when.
use algorithms::check::{LimitVerdict, Mode, Options, Part, PenaltyRequest, Stored, check};
use algorithms::{Algorithm, Denials, Kind, Parameters, Penalty};

use crate::support::{Subject, count, histories, part};

const START_MS: u64 = 1_763_000_000_000;

/// A bucket of one unit a second, penalized for ten minutes after three denials in a minute.
struct Bucket {
    algorithm: Algorithm,
    penalty: Penalty,
    stored: Option<Stored>,
    denials: Option<Denials>,
    mode: Mode,
    patience_ms: u64,
    last: Option<LimitVerdict>,
}

fn bucket() -> Bucket {
    Bucket {
        algorithm: Algorithm::new(&Parameters::new(Kind::TokenBucket, 1, 1000)).unwrap(),
        penalty: Penalty::new(3, 60_000, 600_000),
        stored: None,
        denials: None,
        mode: Mode::Enforce,
        patience_ms: 0,
        last: None,
    }
}

impl Bucket {
    fn ask(&mut self, at_ms: u64, cost: u64, reported: u64) -> bool {
        let penalty = PenaltyRequest {
            penalty: self.penalty,
            stored: self.denials.as_ref(),
            reported,
        };
        let part = Part {
            penalty: Some(penalty),
            mode: self.mode,
            ..part(&self.algorithm, self.stored.as_ref(), cost)
        };
        let options = Options {
            patience_ms: self.patience_ms,
            ..Options::default()
        };
        let (verdict, mut writes) = check(&[part], START_MS + at_ms, options).unwrap();
        self.stored = writes.remove(0).or(self.stored.take());
        let limit = verdict.limits[0];
        let allowed = limit.decision.allowed;
        assert_eq!(verdict.allowed, allowed || self.mode != Mode::Enforce);
        (self.last, self.denials) = (Some(limit), limit.denials.or(self.denials));
        allowed
    }

    fn found(&self) -> LimitVerdict {
        self.last.unwrap()
    }
}

impl Subject for Bucket {
    /// `ask AT COST [REPORTED]`, `deny AT N` (after a request that passes), `set FIELD VALUE`, or what the last one found.
    fn step(&mut self, verb: &str, arguments: &[&str]) -> String {
        let number = |nth: usize| arguments.get(nth).map_or(0, |word| count(word));
        match verb {
            "ask" => _ = self.ask(number(0), number(1), number(2)),
            "deny" => {
                assert!(self.ask(number(0), 1, 0));
                for _ in 0..number(1) {
                    assert!(!self.ask(number(0), 1, 0));
                }
            }
            "set" => match arguments[0] {
                "for" => self.penalty.for_ms = number(1),
                "grow" => self.penalty.grow = number(1),
                "max" => self.penalty.max_ms = number(1),
                "patience" => self.patience_ms = number(1),
                other => panic!("{other}"),
            },
            "observe" => self.mode = Mode::Observe,
            "allowed" => return self.found().decision.allowed.to_string(),
            "charged" => return self.found().charged.to_string(),
            "retry" => {
                return self
                    .found()
                    .decision
                    .retry_after
                    .millis()
                    .unwrap()
                    .to_string();
            }
            "reset" => return self.found().decision.reset_after_ms.to_string(),
            "counted" => return self.found().penalty.denials.to_string(),
            "left" => return self.found().penalty.left_ms.to_string(),
            "next" => return self.found().penalty.next_ms.to_string(),
            "anew" => return self.found().penalty.anew_ms.to_string(),
            "begun" => return self.found().penalty.begun.to_string(),
            "forgotten" => {
                let at_ms = self.penalty.forgotten_at_ms(&self.denials.unwrap());
                return (at_ms - START_MS).to_string();
            }
            other => panic!("{other}"),
        }
        String::new()
    }
}

histories! {
    /// At 60 s the first is a minute ago: this is the first of a new count.
    denials_count_within_their_period_from_the_first_one: bucket(),
        "deny 0 1; counted = 1; deny 59_000 1; counted = 2; deny 60_000 1; counted = 1;
         deny 119_999 1; counted = 2; ask 119_999 1; begun = true";
    a_penalty_ends_and_the_next_needs_as_many_denials: bucket(),
        "deny 0 3; left = 600_000; ask 599_999 1; allowed = false; begun = false; left = 1; counted = 0;
         deny 600_000 2; left = 0; deny 601_500 1; left = 600_000";
    /// Each begins the moment before twice the last one's length has passed since its end, and names the next; the
    /// last begins later. The record lives as long as it matters.
    a_penalty_grows_if_it_begins_soon_after_the_last_and_starts_anew_later: bucket(),
        "set grow 2; set max 3_000_000; deny 0 2; anew = 0; ask 0 1; left = 600_000; next = 1_200_000;
         anew = 1_800_000; ask 600_000 0; left = 0; anew = 1_200_000;
         deny 1_799_999 3; left = 1_200_000; next = 2_400_000;
         deny 5_399_998 3; left = 2_400_000; next = 3_000_000;
         deny 12_599_997 3; left = 3_000_000; next = 3_000_000;
         ask 21_599_997 0; next = 600_000; deny 21_599_997 3; left = 600_000; forgotten = 23_399_997;
         set grow 1; ask 21_600_000 0; anew = 0";
    /// One that no longer grows lasts as long as the first.
    an_edit_with_a_shorter_max_shortens_a_penalty_that_has_grown: bucket(),
        "set grow 3; set max 3_000_000; deny 0 3; deny 600_000 3; left = 1_800_000;
         set max 700_000; ask 600_000 1; left = 700_000;
         set grow 1; ask 600_000 1; left = 600_000; next = 600_000";
    denials_before_a_penalty_do_not_count_after_it: bucket(),
        "set for 1000; deny 0 3; deny 1000 2; counted = 2";
    a_penalized_bucket_that_is_only_observed_charges_nothing: bucket(),
        "observe; deny 0 3; ask 2000 1; allowed = false; charged = 0";
    a_denial_during_a_penalty_does_not_make_it_longer: bucket(),
        "deny 0 3; ask 1 1 5; ask 1000 1 5; ask 300_000 1 5; ask 300_000 0; left = 300_000";
    /// The clock stepped back by an hour, then an edit makes it shorter.
    a_penalty_is_never_longer_than_one_that_begins_now: bucket(),
        "deny 3_600_000 3; ask 0 0; left = 600_000; set for 1000; ask 0 0; left = 1000";
    denials_from_the_future_count_from_now_on: bucket(),
        "deny 3_600_000 2; ask 0 0; counted = 2; ask 1000 0 1; begun = true";
    reported_denials_are_counted_before_the_check_is_decided: bucket(),
        "ask 0 1 3; allowed = false; begun = true; charged = 0; ask 600_000 1 2; counted = 2";
    a_penalty_does_not_shorten_the_buckets_longer_wait: bucket(),
        "set for 10; deny 0 3; ask 1 1; left = 9; retry = 999; reset = 999";
    /// Each check reports the same end, so there is one penalty; a longer one does not revive it once it has ended.
    a_shortened_penalty_ends_relative_to_its_start: bucket(),
        "deny 0 3; set for 100_000; ask 40_000 1; left = 60_000; ask 99_999 1; left = 1;
         ask 100_000 1; allowed = true; set for 600_000; ask 601_000 0; left = 0";
    a_penalty_does_not_outlive_a_step_back_of_the_clock: bucket(),
        "set for 3000; deny 20_000 3; ask 0 0; left = 3000; ask 1000 1; left = 2000;
         ask 2999 1; allowed = false; ask 3000 0; left = 0 |
         set for 3000; deny 20_000 3; ask 0 1; left = 3000; ask 1000 0; left = 2000;
         ask 2999 1; allowed = false; ask 3000 0; left = 0";
    denials_from_the_future_do_not_count_for_longer_than_their_time: bucket(),
        "deny 3_600_000 2; ask 0 0; counted = 2; ask 59_999 0; counted = 2; ask 60_000 0; counted = 0";
    /// A unit is back after a second. Who waits less has a final answer; what proxies report counts in any case.
    a_denial_after_which_the_caller_waits_does_not_count: bucket(),
        "set patience 1000; deny 0 2; counted = 0; set patience 999; ask 0 1; counted = 1;
         set patience 1000; ask 0 1 1; counted = 2";
}
