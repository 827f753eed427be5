//! Slots of a queue that are released: which time that frees, and for whom.

mod model;

use algorithms::check::{Options, Part, Stored, check};
use algorithms::{
    Algorithm, Charged, Decision, Kind, Parameters, Rate, RetryAfter, SlotAct, SlotOp, State,
    TokenBucketState,
};

use crate::support::{Subject, count, histories, moved, part};

const START_MS: u64 = 1_763_000_040_000;

/// So many a second, of which so many wait at most, each for so long.
fn queue_of(units: u64, burst: u64, max_delay_ms: u64) -> Parameters {
    Parameters {
        burst: Some(burst),
        max_delay_ms: Some(max_delay_ms),
        ..Parameters::new(Kind::LeakyBucket, units, 1000)
    }
}

/// Slots are 50 ms apart.
fn twentieths() -> Bucket {
    Bucket::new(&queue_of(20, 100, 3000))
}

/// Slots do not start at whole milliseconds.
fn sevenths() -> Bucket {
    Bucket::new(&queue_of(7, 20, 2000))
}

/// A request a millisecond, so that many slots can be freed one by one.
fn thousandths() -> Bucket {
    Bucket::new(&queue_of(1000, 2000, 2000))
}

/// As [`twentieths`], of which five pass at once.
fn after_five(kind: Kind) -> Bucket {
    Bucket::new(&Parameters {
        kind,
        ..queue_of(20, 5, 3000)
    })
}

/// One bucket with a queue, and its clock.
struct Bucket {
    algorithm: Algorithm,
    generation: u64,
    stored: Option<Stored>,
    now_ms: u64,
    /// Those of all requests that were admitted, in their order.
    slots: Vec<SlotOp>,
}

impl Bucket {
    fn new(parameters: &Parameters) -> Self {
        let algorithm = Algorithm::new(parameters).unwrap();
        Self {
            algorithm,
            generation: 1,
            stored: None,
            now_ms: START_MS,
            slots: Vec::new(),
        }
    }

    fn edit(&mut self, parameters: &Parameters) {
        self.algorithm = Algorithm::new(parameters).unwrap();
        self.generation += 1;
    }

    fn ask(&mut self, cost: u64, free: &[SlotOp]) -> (Decision, Option<SlotOp>) {
        let part = Part {
            generation: self.generation,
            free: free.to_vec(),
            ..part(&self.algorithm, cost)
        };
        let asked = [(&part, self.stored.as_ref(), None)];
        let (verdict, mut writes) = check(&asked, self.now_ms, Options::default()).unwrap();
        let limit = &verdict.limits[0];
        self.stored = writes.remove(0).0.or(self.stored.take());
        let slot = limit.slot.map(|slot| SlotOp::free(slot, limit.charged));
        (limit.decision, slot)
    }

    /// The delay of a request that is admitted.
    fn take(&mut self, cost: u64) -> u64 {
        let (decision, slot) = self.ask(cost, &[]);
        assert!(decision.allowed, "{decision:?}");
        self.slots.extend(slot);
        decision.delay_ms
    }

    /// The delay that the next request would have after slots were freed.
    fn free(&mut self, slots: &[SlotOp]) -> u64 {
        self.ask(0, slots);
        let state = self.stored.as_ref().map(|stored| &stored.state);
        let asked = self.algorithm.evaluate(state, self.now_ms, 1);
        asked.leave().verdict.decision.delay_ms
    }

    /// The slots of `5`, of `5..9`, of every third of them (`5..99/3`), or one with other units (`5:2`).
    fn named(&self, word: &str) -> Vec<SlotOp> {
        let index = |word: &str| usize::try_from(count(word)).unwrap();
        if let Some((slot, units)) = word.split_once(':') {
            return vec![SlotOp {
                act: SlotAct::Free(count(units)),
                ..self.slots[index(slot)]
            }];
        }
        let (range, step) = word.split_once('/').unwrap_or((word, "1"));
        let (from, to) = range.split_once("..").map_or_else(
            || (index(range), index(range) + 1),
            |(from, to)| (index(from), index(to)),
        );
        self.slots[from..to]
            .iter()
            .copied()
            .step_by(index(step))
            .collect()
    }
}

impl Subject for Bucket {
    fn step(&mut self, verb: &str, arguments: &[&str]) -> String {
        let first = arguments
            .first()
            .map_or(0, |word| count(word.split(['.', ':']).next().unwrap()));
        match verb {
            "fill" => (0..first).for_each(|_| _ = self.take(1)),
            "take" => return self.take(first).to_string(),
            "takes" => {
                let delays: Vec<_> = (0..first).map(|_| self.take(1).to_string()).collect();
                return delays.join(" ");
            }
            "denied" => {
                let (decision, _) = self.ask(first, &[]);
                assert!(!decision.allowed, "{decision:?}");
                return decision.retry_after.millis().unwrap().to_string();
            }
            "left" => return self.ask(0, &[]).0.remaining.to_string(),
            "free" => {
                let named: Vec<_> = arguments.iter().flat_map(|word| self.named(word)).collect();
                return self.free(&named).to_string();
            }
            "turn" => return self.named(arguments[0])[0].slot.turn.to_string(),
            "start" => {
                let slot = self.named(arguments[0])[0].slot;
                return format!("{} {}", slot.start_ms - START_MS, slot.parts);
            }
            "within" => self.algorithm = self.algorithm.within_delay(first),
            // An edit that leaves the numbers as they are, and other numbers without one: an override has run out.
            "edit" => self.generation += 1,
            "burst" => self.edit(&Parameters {
                burst: Some(first),
                ..*self.algorithm.parameters()
            }),
            "rate" => {
                let rate = Rate::new(first, 1000);
                let other = Parameters {
                    rate,
                    ..*self.algorithm.parameters()
                };
                self.algorithm = Algorithm::new(&other).unwrap();
            }
            "reset" => assert_eq!(self.stored.take().unwrap().state.reset(), None),
            // As of a check that another node of a Cluster denies: it has not started, whatever the time.
            "refund" => {
                let slot = Some(self.named(arguments[0])[0].slot);
                let charge = Charged {
                    at_ms: START_MS,
                    units: 1,
                    lease_ttl_ms: 0,
                    slot,
                };
                let stored = self.stored.as_mut().unwrap();
                stored.state = self.algorithm.refund(&stored.state, self.now_ms, &charge);
            }
            by => self.now_ms = moved(self.now_ms, by),
        }
        String::new()
    }
}

// ---------------------------------------------------------------------------
// Freed time, rule by rule

histories! {
    a_slot_that_is_given_up_goes_to_the_next_request: twentieths(),
        "fill 10; free 5 = 250; take 1 = 250; take 1 = 500";
    a_cost_takes_the_earliest_time_that_holds_it_whole: twentieths(),
        "fill 10; free 2 5 6 7; take 2 = 250; take 2 = 500; take 1 = 100; take 1 = 350";
    /// The first has started.
    freeing_the_last_slots_lowers_the_level: twentieths(),
        "fill 10; free 7..9; free 9; take 5 = 350; free 0..7; take 5 = 50";
    /// 80 ms are left of two slots: enough for one.
    freed_time_that_has_passed_is_lost: twentieths(),
        "fill 10; free 2..4; +120; take 2 = 380; take 1 = 0; take 1 = 480; +200; free 4 = 330";
    remaining_counts_the_level_or_a_freed_interval: twentieths(),
        "fill 61; denied 1; free 10..14; left = 4; take 1 = 500; left = 3";
    a_queue_keeps_only_the_earliest_freed_intervals: twentieths(),
        "fill 40; free 3..28/3; takes 9 = 150 300 450 600 750 900 1050 1200 2000";
    /// With eight there is no room for the ninth, behind all others.
    a_freed_interval_that_is_reused_or_has_passed_makes_room_for_another: twentieths(),
        "fill 40; free 3..25/3; take 1 = 150; free 30..32; take 2 = 1500 |
         fill 40; free 3..25/3; +200; free 30..32; take 2 = 1300 |
         fill 40; free 3..25/3; free 30..32; take 2 = 2000";
    a_request_of_all_that_is_left_frees_its_slot: twentieths(),
        "take 1; take 99; denied 1; free 1; take 1 = 50";
}

// ---------------------------------------------------------------------------
// A burst that passes at once

histories! {
    a_burst_passes_and_what_comes_beyond_it_is_spaced: after_five(Kind::TokenBucket),
        "takes 7 = 0 0 0 0 0 50 100; +100; takes 2 = 50 100; +10_000; takes 6 = 0 0 0 0 0 50";
    a_gcra_passes_the_same_burst: after_five(Kind::Gcra),
        "takes 7 = 0 0 0 0 0 50 100; +100; takes 2 = 50 100";
    /// Each waits until the bucket would admit it.
    a_cost_waits_for_all_of_its_units: after_five(Kind::TokenBucket),
        "take 5 = 0; take 5 = 250; take 1 = 300; take 3 = 450; +10_000; take 3 = 0; take 3 = 50";
    /// 65 units: five at once, and sixty in three seconds.
    only_the_longest_delay_bounds_what_is_held: after_five(Kind::TokenBucket),
        "fill 61; left = 4; denied 5 = 50; fill 4; left = 0; denied 1 = 50; +50; left = 1; take 1 = 3000";
    a_slot_behind_a_burst_goes_to_the_next_request: after_five(Kind::Gcra),
        "fill 10; free 7 = 150; take 1 = 150; take 1 = 300 | fill 10; free 9 = 250; free 8 = 200";
    /// The first five have started at once, and the sixth after 50 ms.
    a_request_of_a_burst_has_started_and_frees_nothing: after_five(Kind::TokenBucket),
        "fill 10; free 0..5 = 300 | fill 10; +50; free 5 = 250 | fill 10; +49; free 5 = 1";
    freed_time_within_the_burst_is_used_at_once: after_five(Kind::TokenBucket),
        "fill 10; free 7..9; +150; takes 3 = 0 50 150";
    a_shorter_delay_of_one_check_keeps_freed_time: after_five(Kind::TokenBucket),
        "fill 20; within 0; free 10; denied 1 = 300; +300; take 1 = 0";
    a_check_that_may_not_wait_gets_what_is_left_of_a_burst: after_five(Kind::TokenBucket),
        "within 0; fill 5; denied 1 = 50; +50; take 1 = 0; denied 2 = 100";
    /// 13 slots of 50 ms are left of a burst that is no longer passed, and 12 of one that is smaller.
    an_edit_of_the_burst_keeps_what_is_held: after_five(Kind::TokenBucket),
        "fill 13; burst 1; take 1 = 650; free 9 = 700 | fill 13; burst 10; take 1 = 200; free 9 = 250";
}

// ---------------------------------------------------------------------------
// Delays and waits with freed time

histories! {
    no_slot_starts_later_than_the_longest_delay: twentieths(),
        "fill 40; free 20; within 900; denied 1; +100; take 1 = 900";
    /// Freed time is not given while the caller's clock is behind, and is given again once it is not.
    a_clock_behind_the_bucket_delays_freed_time_only_until_it_catches_up: twentieths(),
        "fill 61; free 30; -100; denied 1 = 100; +99; denied 1; +1; take 1";
    /// Three units start at 1000 ms, one at 250 ms. The queue itself ends 1100 ms beyond the longest delay.
    a_longest_delay_that_was_lowered_leaves_freed_time_for_later: twentieths(),
        "fill 40; free 5; free 20..23; within 900; left = 1; denied 2 = 100; take 1 = 250; left = 0;
         denied 4 = 1100; denied 3 = 100; +99; denied 3 = 1; +1; left = 3; take 3 = 900";
    /// A slot from 142 6/7 ms: by the next whole millisecond less than a unit of it is left.
    retry_after_ignores_freed_time_that_passes_during_the_wait: sevenths(),
        "fill 7; free 1; within 0; denied 1 = 1000; free 2; denied 1 = 143; denied 2 = 1000; +142;
         denied 1 = 1; +1; take 1 = 0";
    /// One is given again as it was; with 4 of its 1000 parts gone it holds no unit.
    slots_of_a_fractional_rate_stay_exact: sevenths(),
        "takes 7 = 0 143 286 429 572 715 858; start 0 = 0 0; start 1 = 142 6; start 2 = 285 5;
         start 3 = 428 4; start 4 = 571 3; start 5 = 714 2; start 6 = 857 1;
         free 3; take 1 = 429; turn 7 = 1; start 7 = 428 4; free 7; +428; take 1 = 1 |
         fill 7; free 3; +429; take 1 = 571";
    /// The request of slot 3, from 428 4/7 ms, has started; with the rest of it slot 4 would begin at once.
    a_slot_whose_start_has_passed_frees_nothing: sevenths(),
        "fill 7; +429; free 3 = 571; free 4; take 1 = 143 |
         fill 7; +500; free 3 = 500; free 4; take 1 = 72 |
         fill 7; +571; free 3 = 429; free 4; take 1 = 1 |
         fill 7; +572; free 3..5 = 428";
    a_slot_that_starts_at_once_frees_nothing: twentieths(),
        "fill 1; free 0 = 50";
    /// 500 of its 1000 parts are left: less than a unit, until the slot behind it is freed.
    a_denied_request_frees_the_rest_of_a_slot_whose_start_has_passed: sevenths(),
        "fill 7; +500; refund 3; left = 16; free 4; take 1 = 0; take 1 = 500";
    remaining_is_the_widest_freed_interval_and_a_wait_is_for_the_earliest: twentieths(),
        "fill 61; free 10..14; free 20..22; free 40..43; left = 4; within 400; left = 0;
         denied 2 = 100; +100; take 4 = 400; denied 2 = 500; denied 3 = 1500";
    a_slot_that_starts_within_this_millisecond_is_freed_whole: sevenths(),
        "fill 7; +428; free 3; take 1 = 1";
}

#[test]
fn debits_count_behind_held_requests_as_far_as_any_may_be_held() {
    let algorithm = after_five(Kind::TokenBucket).algorithm;
    let mut state = None;
    for _ in 0..8 {
        let (_, _, write) = algorithm
            .decide_local(state.as_ref(), START_MS, (1, 0), true)
            .unwrap();
        state = write.or(state);
    }
    let after = |debit| {
        let asked = algorithm.decide_local(state.as_ref(), START_MS, (1, debit), false);
        asked.unwrap().0
    };
    assert_eq!([after(0), after(10)].map(|of| of.delay_ms), [200, 700]);
    let denied = after(1000);
    assert_eq!(
        (denied.allowed, denied.retry_after.millis()),
        (false, Some(50))
    );
}

#[test]
fn a_cost_above_a_burst_that_passes_is_denied_for_good() {
    let mut bucket = after_five(Kind::TokenBucket);
    let (denied, _) = bucket.ask(6, &[]);
    assert_eq!(denied.retry_after, RetryAfter::Never);
}

#[test]
fn a_client_that_frees_what_it_has_used_gets_no_more_than_the_rate() {
    let (mut bucket, mut starts) = (Bucket::new(&queue_of(1, 10, 5000)), Vec::new());
    for _ in 0..2000 {
        let (decision, slot) = bucket.ask(1, &[]);
        if decision.allowed && decision.delay_ms == 0 {
            starts.push(bucket.now_ms - START_MS);
        }
        bucket.ask(0, slot.as_slice());
        bucket.now_ms += 1;
    }
    assert!(starts == [0, 1000], "{} starts", starts.len());
}

// ---------------------------------------------------------------------------
// Time that was freed and given again, and which names free it

histories! {
    freeing_a_slot_again_does_not_free_the_slot_of_its_new_owner: twentieths(),
        "fill 10; free 5; take 1 = 250; free 5 = 500; free 10 = 250 |
         fill 10; free 9; take 1 = 450; free 9 = 500";
    /// Slot 5 is freed: its time has one turn more than the time on both sides. Then neither the first name of
    /// all, 1, nor the freed one frees anything; names of the current turn do.
    a_slot_within_time_that_was_given_again_divides_its_turns: twentieths(),
        "take 1; take 5; take 1; free 1; takes 3 = 50 100 150; turn 3 = 1; turn 4 = 1; turn 5 = 1;
         free 5; take 2 = 150; turn 6 = 2; take 1 = 250; turn 7 = 1; free 1 5 = 350;
         free 3 = 50; take 1 = 50; turn 8 = 2; free 6 = 150; free 7 = 150; take 3; turn 9 = 3";
    /// Slot 2 lies between two that were freed, and so does slot 4.
    beyond_256_turns_the_earliest_are_joined: thousandths(),
        "fill 1000; free 1..512/2; free 2; take 3 = 1 | fill 1000; free 1..512/2; free 4; take 3 = 3 |
         fill 1000; free 1..514/2; free 2; take 3 = 1000 | fill 1000; free 1..514/2; free 4; take 3 = 3 |
         fill 1000; free 1..516/2; free 2; take 3 = 1000 | fill 1000; free 1..516/2; free 4; take 3 = 1000";
    /// The first has had two turns, the third one.
    joined_turns_are_the_later_of_both: thousandths(),
        "fill 1000; free 1; take 1; free 1000; free 3..514/2; take 1; turn 1001 = 2;
         take 1; turn 1002 = 2; take 1; turn 1003 = 1";
    slots_freed_one_after_the_other_are_one_turn: thousandths(),
        "fill 1000; free 1..301; take 300 = 1; free 1 = 1000; free 2 = 1000; free 150 = 1000;
         free 299 = 1000; free 300 = 1000";
    a_slot_freed_twice_is_one_turn: thousandths(),
        "fill 1000; free 1; take 1; free 1000; free 3..512/2; free 2; take 3 = 1";
}

// ---------------------------------------------------------------------------
// Names that free nothing

histories! {
    an_edit_a_reset_and_a_clock_that_stepped_back_refuse_older_names: twentieths(),
        "fill 10; edit; free 5 = 500; take 1; free 5 = 550 |
         fill 10; rate 40; free 5 = 250 |
         fill 10; reset; +1; fill 3; free 1 = 150; free 11 = 50 |
         fill 10; -10; take 1; +10; free 5 = 550";
    a_name_that_frees_nothing_takes_no_interval: twentieths(),
        "fill 40; +60; free 1:0 0; free 3..25/3; takes 9 = 90 240 390 540 690 840 990 1140 1940";
}

#[test]
fn forged_slot_names_free_nothing() {
    type Forgery = (&'static str, fn(&mut SlotOp));
    let forgeries: [Forgery; 11] = [
        ("no units", |of| of.act = SlotAct::Free(0)),
        ("more units", |of| of.act = SlotAct::Free(101)),
        ("any units", |of| of.act = SlotAct::Free(u64::MAX)),
        ("beyond the level", |of| of.act = SlotAct::Free(6)),
        ("more parts than one ms", |of| of.slot.parts = 1),
        ("any parts", |of| of.slot.parts = u64::MAX),
        ("beyond the horizon", |of| of.slot.start_ms += 5001),
        ("any start", |of| of.slot.start_ms = u64::MAX),
        ("long ago", |of| of.slot.start_ms = 0),
        ("the last turn of all", |of| of.slot.turn = 1 << 50),
        ("another epoch", |of| of.slot.since_ms += 1),
    ];
    let mut bucket = twentieths();
    bucket.step("fill", &["10"]);
    let name = bucket.slots[5];
    for (why, forge) in forgeries {
        let mut forged = name;
        forge(&mut forged);
        assert_eq!(bucket.free(&[forged]), 500, "{why}");
    }
    // The latest turn that a name can have does, and so does one to the end of the queue.
    let mut last = name;
    last.slot.turn = (1 << 50) - 1;
    assert_eq!(bucket.free(&[last]), 250);
    crate::support::play(&mut twentieths(), "fill 10; free 5:5 = 250");
}

#[test]
fn the_state_of_a_meter_is_continued() {
    let mut bucket = twentieths();
    let state = TokenBucketState {
        over: 0,
        debt: 500,
        at_ms: START_MS,
        parts_per_unit: 50,
        leases: None,
    };
    let state = State::TokenBucket(state);
    bucket.stored = Some(Stored {
        reservations: None,
        generation: 1,
        state,
    });
    crate::support::play(&mut bucket, "take 1 = 500; take 1; free 0 = 500");
}

// ---------------------------------------------------------------------------
// Edits while requests are held: when those start, and the new ones

/// Ten a second, of which so many wait at most.
fn ten(burst: u64) -> Parameters {
    queue_of(10, burst, 60_000)
}

/// When requests start, in milliseconds since [`START_MS`]: twenty before the edit, then one asked for
/// in each ten milliseconds.
fn starts(edited: Parameters, until_ms: u64) -> Vec<u64> {
    let mut bucket = Bucket::new(&ten(20));
    let mut starts: Vec<u64> = (0..20).map(|_| bucket.take(1)).collect();
    bucket.edit(&edited);
    while bucket.now_ms < START_MS + until_ms {
        bucket.now_ms += 10;
        let (decision, _) = bucket.ask(1, &[]);
        if decision.allowed {
            starts.push(bucket.now_ms - START_MS + decision.delay_ms);
        }
    }
    starts.sort_unstable();
    starts
}

/// The most starts in a second.
fn most(starts: &[u64]) -> usize {
    let within = |at: u64| {
        starts
            .iter()
            .filter(|of| (at..at + 1000).contains(of))
            .count()
    };
    starts.iter().map(|at| within(*at)).max().unwrap_or(0)
}

#[test]
fn a_burst_that_is_lowered_lets_nothing_start_between_held_requests() {
    for burst in [1, 5, 19, 20] {
        let starts = starts(ten(burst), 5000);
        assert_eq!(most(&starts), 10, "{burst}");
        // Nor is any time lost.
        let even = starts.windows(2).all(|two| two[1] - two[0] == 100);
        assert!(even, "{burst}");
    }
}

#[test]
fn a_rate_that_is_lowered_with_the_burst_lets_nothing_start_between_held_requests() {
    // The parts of a unit change with both rates.
    for rate in [Rate::new(3, 1000), Rate::new(1, 7000)] {
        let starts = starts(Parameters { rate, ..ten(2) }, 200_000);
        assert_eq!(most(&starts), 10, "{rate:?}");
        assert!(starts.len() > 25, "{rate:?}");
    }
}

#[test]
fn a_rate_that_is_raised_adds_the_new_one_until_the_last_held_request_starts() {
    let rate = Rate::new(30, 1000);
    let starts = starts(Parameters { rate, ..ten(5) }, 5000);
    // Starts are whole milliseconds: 34, 67 and 100 ms of three slots.
    assert!(most(&starts) <= 10 + 30 + 1, "{}", most(&starts));
    let after: Vec<u64> = starts.into_iter().filter(|at| *at >= 2000).collect();
    assert!(most(&after) <= 31, "{}", most(&after));
}

#[test]
fn the_wait_for_a_place_counts_the_requests_that_a_lowered_burst_no_longer_holds() {
    let mut bucket = Bucket::new(&ten(20));
    bucket.step("fill", &["20"]);
    bucket.edit(&ten(5));
    let (denied, _) = bucket.ask(1, &[]);
    assert_eq!(denied.retry_after.millis(), Some(1600));
    assert_eq!((denied.remaining, denied.reset_after_ms), (0, 2000));
    crate::support::play(&mut bucket, "+1599; denied 1 = 1; +1; take 1 = 400");
}
