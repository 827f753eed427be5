//! The bounds hold with every rule in force.

use algorithms::{Algorithm, Kind};

use super::bucket::{Bucket, Question, Real, Reply};
use super::edits::Edits;
use super::model::Model;
use super::world::Lapses;
use super::{algorithm, fleet, real_fleet, seeds};

const ALL_EDITS: Edits = Edits {
    ttl: true,
    switched_off: true,
    resets: true,
    numbers: false,
    kind: false,
    clock: false,
};

fn never_more_than_it_may(kind: Kind, edits: Edits) {
    let (mut granted, mut spent) = (0, 0);
    for seed in seeds() {
        let outcome = real_fleet(seed, kind, Lapses::default(), edits);
        assert!(outcome.worst <= 0, "seed {seed}: {} parts", outcome.worst);
        granted += outcome.granted;
        spent += outcome.spent;
    }
    // With fewer, the test would show nothing.
    assert!(spent > 100 * seeds().end / 10, "{spent} of {granted}");
}

#[test]
fn a_token_bucket_never_admits_more() {
    never_more_than_it_may(Kind::TokenBucket, Edits::default());
}

#[test]
fn a_token_bucket_never_admits_more_while_it_is_edited_and_reset() {
    never_more_than_it_may(Kind::TokenBucket, ALL_EDITS);
}

#[test]
fn a_gcra_never_admits_more_while_it_is_edited_and_reset() {
    never_more_than_it_may(Kind::Gcra, ALL_EDITS);
}

#[test]
fn a_leaky_meter_never_admits_more_while_it_is_edited_and_reset() {
    never_more_than_it_may(Kind::LeakyBucket, ALL_EDITS);
}

/// Leases that are outstanding when the capacity is lowered may exceed it once, but never the larger one.
#[test]
fn an_edit_of_the_numbers_admits_no_more_than_the_larger_ones() {
    let edits = Edits {
        numbers: true,
        resets: false,
        ..ALL_EDITS
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::LeakyBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// Units that are outstanding when the algorithm is switched may be used once beside what the other
/// one admits.
#[test]
fn switching_the_algorithm_forgives_only_what_is_owed() {
    let edits = Edits {
        kind: true,
        numbers: true,
        resets: false,
        ..ALL_EDITS
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// A step J forward adds r·J at most, a step back nothing.
#[test]
fn setting_the_clock_forward_adds_at_most_the_skipped_refill() {
    let edits = Edits {
        clock: true,
        ..Edits::default()
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// Two buckets that get the same input.
struct Both(Real, Model);

impl Bucket for Both {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let real = self.0.ask(now_ms, ttl_ms, question);
        let model = self.1.ask(now_ms, ttl_ms, question);
        let reply = Reply {
            reset_after_ms: real.reset_after_ms,
            ..model
        };
        assert_eq!(real, reply, "at {now_ms} {question:?}");
        real
    }

    fn edit(&mut self, algorithm: Algorithm) {
        self.0.edit(algorithm);
        self.1.edit(algorithm);
    }

    fn reset(&mut self) {
        self.0.reset();
        self.1.reset();
    }

    fn expire(&mut self) {
        self.0.expire();
        self.1.expire();
    }
}

/// The tests make mistakes in the model, so it has to be right without them.
#[test]
fn the_model_agrees_with_the_algorithm() {
    for seed in seeds() {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        let mut both = Both(Real::new(algorithm), Model::new(&algorithm, None));
        let edits = Edits {
            resets: false,
            ..ALL_EDITS
        };
        fleet(seed, &algorithm, &mut both, Lapses::default(), edits);
    }
}
