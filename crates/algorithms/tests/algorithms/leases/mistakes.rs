//! Each rule is needed: without it, some fleet is admitted beyond the limit.

use std::fmt::Debug;

use algorithms::Kind;

use super::edits::Edits;
use super::model::{Model, Wrong};
use super::world::Lapses;
use super::{algorithm, fleet, real_fleet, seeds};

/// Finds the first fleet that exceeds the bound without a rule. `run` returns by how many parts a
/// fleet does, with the rule or without.
fn breaks(without: impl Debug, run: impl Fn(u64, bool) -> i128) {
    let unit = |seed| {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        i128::from(algorithm.parameters().rate.period_ms)
    };
    let found = seeds().find(|seed| run(*seed, false) >= unit(*seed));
    assert!(
        found.is_some(),
        "no fleet shows what is wrong with {without:?}"
    );
    if let Some(seed) = found {
        let units = run(seed, false) / unit(seed);
        println!("{without:?}: {units} too many by seed {seed}");
        assert!(run(seed, true) <= 0, "the rule makes the difference");
    }
}

fn by_the_model(wrong: Wrong, edits: Edits) {
    breaks(wrong, |seed, rule| {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        let mut model = Model::new(&algorithm, Some(wrong).filter(|_| !rule));
        fleet(seed, &algorithm, &mut model, Lapses::default(), edits).worst
    });
}

fn by_a_lapse(lapses: Lapses) {
    breaks(lapses, |seed, rule| {
        let lapses = if rule { Lapses::default() } else { lapses };
        real_fleet(seed, Kind::TokenBucket, lapses, Edits::default()).worst
    });
}

/// `max(debt − r·(t − ts), O)`: take all, spend at the deadline, lease again at the second edge.
#[test]
fn a_refill_by_one_max_credits_the_time_at_the_floor() {
    by_the_model(Wrong::OneMax, Edits::default());
}

#[test]
fn a_deadline_counted_from_receipt_is_too_late() {
    by_a_lapse(Lapses {
        deadline_from_receipt: true,
        ..Lapses::default()
    });
}

#[test]
fn an_epoch_by_division_forgets_leases_when_the_ttl_is_edited() {
    let edits = Edits {
        ttl: true,
        ..Edits::default()
    };
    by_the_model(Wrong::EpochByDivision, edits);
}

#[test]
fn a_key_that_lives_as_long_as_its_debt_dies_before_its_leases() {
    by_a_lapse(Lapses {
        ttl_of_the_debt: true,
        ..Lapses::default()
    });
}

#[test]
fn a_return_executed_twice_returns_what_others_hold() {
    by_a_lapse(Lapses {
        settled_twice: true,
        ..Lapses::default()
    });
}

#[test]
fn a_strict_check_that_ignores_the_slots_admits_what_is_leased() {
    let edits = Edits {
        switched_off: true,
        ..Edits::default()
    };
    by_the_model(Wrong::StrictIgnoresSlots, edits);
}
