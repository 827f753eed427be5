//! Slots of requests in flight: what one bucket answers.
use algorithms::check::{Options, Part, Stored, check};
use algorithms::{
    Algorithm, InFlightSlot, Kind, Missing, Parameters, Slot, SlotAct, SlotId, SlotOp, State,
};

use crate::support::part;

const TTL_MS: u64 = 10_000;

/// A bucket and its clock.
struct Bucket {
    limit: u64,
    ttl_ms: u64,
    stored: Option<Stored>,
    now_ms: u64,
}

impl Bucket {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            ttl_ms: TTL_MS,
            stored: None,
            now_ms: 1_763_000_000_000,
        }
    }

    /// Whether a check passes, the slot it gets, and which of the slots it names are missing.
    fn ask(&mut self, id: SlotId, cost: u64, free: &[SlotOp]) -> (bool, Option<Slot>, Option<u64>) {
        let parameters = Parameters::new(Kind::Concurrency, self.limit, self.ttl_ms);
        let algorithm = Algorithm::new(&parameters).unwrap().for_request(id);
        let part = Part {
            free,
            ..part(&algorithm, self.stored.as_ref(), cost)
        };
        let (verdict, writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        let limit = &verdict.limits[0];
        self.stored = writes.into_iter().next().unwrap().or(self.stored.take());
        let decision = limit.decision;
        (decision.allowed, limit.slot, decision.retry_after.millis())
    }

    fn take(&mut self, n: u64) -> bool {
        self.ask(id(n), 1, &[]).0
    }

    /// Frees, renews or enters a slot; returns whether it was missing.
    fn act(&mut self, act: SlotAct, n: u64) -> bool {
        self.act_by(act, n, TTL_MS)
    }

    /// As [`Self::act`], by a name that claims another ttl.
    fn act_by(&mut self, act: SlotAct, n: u64, ttl_ms: u64) -> bool {
        let slot = InFlightSlot { id: id(n), ttl_ms };
        let named = SlotOp {
            slot: slot.into(),
            act,
        };
        let (_, missing, _) = self.ask(SlotId::default(), 0, &[named]);
        missing.is_some_and(|bits| Missing::new(bits.start_ms, bits.parts).contains(0))
    }

    /// Ids of the slots that have not expired.
    fn held(&self) -> Vec<u64> {
        let Some(State::Concurrency(state)) = self.stored.as_ref().map(|stored| &stored.state)
        else {
            return Vec::new();
        };
        let live = state.slots().filter(|(_, at_ms)| *at_ms > self.now_ms);
        live.map(|(slot, _)| slot.id.secret).collect()
    }
}

fn id(n: u64) -> SlotId {
    SlotId::new(1_763_000_000, 9, n)
}

#[test]
fn a_take_that_is_repeated_is_allowed_and_counts_once() {
    let mut bucket = Bucket::new(2);
    assert!(bucket.take(1) && bucket.take(2));
    assert!(!bucket.take(3));
    assert!(bucket.take(1), "it is in already");
    assert_eq!(bucket.held(), [1, 2]);
    bucket.act(SlotAct::Free(1), 2);
    assert!(bucket.take(1) && bucket.take(3));
    assert!(!bucket.take(4));
    // Also above a limit that was lowered.
    bucket.limit = 1;
    assert!(bucket.take(3) && !bucket.take(4));
}

#[test]
fn an_expired_slot_is_not_counted_and_a_renewed_one_lives_on() {
    let mut bucket = Bucket::new(2);
    assert!(bucket.take(1) && bucket.take(2));
    bucket.now_ms += TTL_MS / 2;
    assert!(!bucket.act(SlotAct::Renew, 2));
    bucket.now_ms += TTL_MS / 2 - 1;
    assert!(!bucket.take(3));
    bucket.now_ms += 1;
    assert!(bucket.take(3) && !bucket.take(4));
    assert_eq!(bucket.held(), [2, 3]);
}

#[test]
fn a_lapsed_slot_is_entered_above_the_limit_and_none_is_admitted_until_fewer_are_held() {
    let mut bucket = Bucket::new(1);
    assert!(bucket.take(1));
    bucket.now_ms += TTL_MS;
    assert!(bucket.take(2));
    assert!(bucket.act(SlotAct::Renew, 1), "it is missing");
    assert_eq!(bucket.held(), [2], "a renewal enters nothing");
    bucket.act(SlotAct::Enter, 1);
    bucket.act(SlotAct::Enter, 1);
    assert_eq!(bucket.held(), [1, 2]);
    bucket.act(SlotAct::Free(1), 2);
    assert!(!bucket.take(3));
    bucket.act(SlotAct::Free(1), 1);
    assert!(bucket.take(3));
}

#[test]
fn freeing_a_slot_repeatedly_frees_no_other_slot() {
    let mut bucket = Bucket::new(2);
    assert!(bucket.take(1) && bucket.take(2));
    for _ in 0..3 {
        bucket.act(SlotAct::Free(1), 1);
        bucket.act(SlotAct::Free(1), 7);
        assert_eq!(bucket.held(), [2]);
    }
}

#[test]
fn after_a_step_back_of_the_clock_no_slot_lives_longer_than_its_ttl() {
    let mut bucket = Bucket::new(1);
    assert!(bucket.take(1));
    bucket.now_ms -= 100 * TTL_MS;
    let (allowed, _, wait_ms) = bucket.ask(id(2), 1, &[]);
    assert_eq!((allowed, wait_ms), (false, Some(TTL_MS)));
    bucket.now_ms += TTL_MS;
    assert!(bucket.take(2));
}

#[test]
fn a_slot_keeps_the_ttl_that_it_was_given() {
    let mut bucket = Bucket::new(1);
    assert!(bucket.take(1));
    bucket.ttl_ms = TTL_MS / 10;
    bucket.now_ms += TTL_MS - 1;
    assert!(!bucket.take(2));
    assert!(!bucket.act(SlotAct::Renew, 1));
    bucket.now_ms += TTL_MS - 1;
    assert!(!bucket.take(2));
    bucket.now_ms += 1;
    assert!(bucket.take(2));
}

#[test]
fn an_entered_slot_lives_for_the_limits_own_ttl_whatever_its_name_claims() {
    const DAY_MS: u64 = 86_400_000;
    let mut bucket = Bucket::new(1);
    bucket.act_by(SlotAct::Enter, 1, DAY_MS);
    assert!(!bucket.take(2));
    // Its holder renews and frees it by the name that it has.
    bucket.now_ms += TTL_MS - 1;
    assert!(!bucket.act_by(SlotAct::Renew, 1, DAY_MS));
    bucket.now_ms += TTL_MS - 1;
    assert!(!bucket.act_by(SlotAct::Enter, 1, DAY_MS));
    assert_eq!(bucket.held(), [1]);
    bucket.now_ms += TTL_MS - 1;
    assert!(!bucket.take(2));
    bucket.act_by(SlotAct::Free(1), 1, DAY_MS);
    assert!(bucket.take(2));
    bucket.act(SlotAct::Free(1), 2);

    bucket.act_by(SlotAct::Enter, 3, DAY_MS);
    bucket.now_ms += TTL_MS;
    assert!(bucket.act_by(SlotAct::Renew, 3, DAY_MS), "it is gone");
    assert!(bucket.take(4));
}
