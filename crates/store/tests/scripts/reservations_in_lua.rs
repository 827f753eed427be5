//! Reservations in the script: bounds and histories that random walks seldom reach, and what the
//! comparison with the algorithm does not cover.

use crate::support::random::Random;
use crate::support::{
    Engine, LuaRedis, Reserving, RustEngine, Scripts, Subject, algorithm, bursting, script_check,
};
use algorithms::check::Options;
use algorithms::{
    Algorithm, CostSettlement, Debits, Kind, RESERVATIONS_MAX, Reservation, Reserved,
    SETTLE_WITHIN_MS,
};
use lua_redis::mlua::LuaString;
use store::script::Clock;

const START_MS: u64 = 1_763_000_040_000;
const BUCKET: &str = "{b}";
const RECORDS: &str = "r:{b}";

/// One bucket in both implementations; each check has to be decided alike.
struct Both {
    rust: RustEngine,
    lua: LuaRedis,
    subject: Subject,
    now_ms: u64,
}

impl Both {
    fn new(algorithm: Algorithm) -> Self {
        Self {
            rust: RustEngine::default(),
            lua: LuaRedis::new(),
            subject: Subject::new(BUCKET, algorithm),
            now_ms: START_MS,
        }
    }

    /// Gives units back without naming a reservation.
    fn credit(&mut self, units: u64) {
        let debits = Debits::Refunded;
        let options = Options {
            debits,
            ..Options::default()
        };
        (self.subject.cost, self.subject.debit) = (0, units);
        self.decide(Reserving::default(), options);
        self.subject.debit = 0;
    }

    fn check(&mut self, cost: u64, secret: Option<u64>, settle: Vec<CostSettlement>) -> Reserved {
        self.subject.cost = cost;
        let count_open = secret.is_none();
        let costs = Reserving {
            secret,
            settle,
            count_open,
            ..Reserving::default()
        };
        self.decide(costs, Options::default())
    }

    fn decide(&mut self, costs: Reserving, options: Options) -> Reserved {
        let key = RECORDS.to_owned();
        self.subject.costs = Some(Reserving { key, ..costs });
        let subjects = std::slice::from_ref(&self.subject);
        let expected = self.rust.check(subjects, self.now_ms, options);
        assert_eq!(self.lua.check(subjects, self.now_ms, options), expected);
        expected.unwrap().limits[0].reserved
    }

    fn reserve(&mut self, units: u64, secret: u64) -> CostSettlement {
        let number = self.check(units, Some(secret), Vec::new()).number;
        assert!(number > 0, "{units} units are reserved");
        CostSettlement {
            reservation: Reservation {
                secret,
                number,
                units,
                seal: 0,
            },
            units: 0,
        }
    }

    fn given_back(&mut self, of: CostSettlement) -> u64 {
        self.check(0, None, vec![of]).given_back
    }
}

fn bucket(units: u64, period_ms: u64, burst: u64) -> Both {
    Both::new(bursting(Kind::TokenBucket, units, period_ms, burst))
}

#[test]
fn the_oldest_of_too_many_reservations_is_forgotten() {
    let mut both = Both::new(algorithm(Kind::FixedWindow, 5000, 60_000));
    let flights: Vec<_> = (0..=RESERVATIONS_MAX).map(|n| both.reserve(2, n)).collect();
    let back = [0, 1, flights.len() - 1].map(|nth| both.given_back(flights[nth]));
    assert_eq!(back, [0, 2, 2]);
    let fields: Vec<String> = both.lua.command(&["HGETALL", RECORDS]);
    assert_eq!(fields.len(), 2 * (1000 + 1), "and the head");
}

/// Nine hundred open reservations, which are settled in another order while more come and the bucket drains.
#[test]
fn a_bucket_gives_back_exactly_however_many_are_open() {
    let mut both = bucket(20, 1000, 20_000);
    let mut random = Random::new(5);
    let mut open: Vec<_> = (0..900).map(|n| both.reserve(10 + n % 3, n)).collect();
    for secret in 900..1500 {
        both.now_ms += random.below(100);
        if random.one_in(50) {
            both.now_ms += 5000;
        }
        let of = open.swap_remove(random.below_len(open.len()));
        let units = random.below(of.reservation.units + 3);
        both.check(0, None, vec![CostSettlement { units, ..of }]);
        if secret < 1300 {
            open.push(both.reserve(10 + secret % 3, secret));
        }
    }
    let fields: Vec<LuaString> = both.lua.command(&["HGETALL", RECORDS]);
    let (names, texts): (Vec<_>, Vec<_>) = fields.chunks(2).map(|of| (&of[0], &of[1])).unzip();
    let chunks = names
        .iter()
        .filter(|name| name.as_bytes().starts_with(b"c"));
    let chunks = chunks.count();
    // And the head, and the sums.
    assert_eq!(fields.len(), 2 * (1000 + 2 + chunks));
    assert!((15..=21).contains(&chunks), "{chunks}");
    let longest = texts.iter().map(|text| text.as_bytes().len()).max();
    assert_eq!(longest, Some(400));
    // At a rate that hardly drains, all that was not used comes back.
    let mut both = bucket(1, 3_600_000, 20_000);
    let mut open: Vec<_> = (0..900).map(|n| both.reserve(10, n)).collect();
    let mut back = 0;
    while !open.is_empty() {
        let of = open.swap_remove(random.below_len(open.len()));
        back += both.given_back(CostSettlement { units: 3, ..of });
    }
    assert_eq!(back, 900 * 7);
}

#[test]
fn a_younger_reservation_gets_back_nothing_an_older_one_got() {
    let mut both = bucket(20, 1000, 100);
    let older = both.reserve(20, 1);
    let younger = both.reserve(80, 2);
    // 50 are owed at the least; then another request is charged 50.
    both.now_ms += 2500;
    both.check(50, None, Vec::new());
    assert_eq!(both.given_back(older), 20);
    assert_eq!(both.given_back(younger), 30);
}

#[test]
fn a_record_is_kept_as_long_as_it_may_be_settled() {
    let mut both = bucket(20, 1000, 100);
    both.reserve(20, 1);
    let subjects = [both.subject.clone()];
    let check = script_check(&subjects, Options::default());
    both.lua.set_time(START_MS / 1000, 0);
    both.lua.batch(&[check], Clock::Server);
    let within_ms = i64::try_from(SETTLE_WITHIN_MS).unwrap();
    assert_eq!(both.lua.ttl(RECORDS), within_ms + 1000);
    assert!(both.lua.ttl(BUCKET) < within_ms, "it drains sooner");
}

#[test]
fn records_outlive_a_bucket_that_has_drained() {
    let mut both = bucket(20, 1000, 100);
    let of = both.reserve(20, 1);
    both.now_ms += 60_000;
    let _: i64 = both.lua.command(&["DEL", BUCKET]);
    // The excess is charged, once; what has drained is not given back.
    let dear = CostSettlement { units: 70, ..of };
    assert_eq!(both.check(0, None, vec![dear]).excess, 50);
    assert_eq!(both.check(0, None, vec![dear]).excess, 0);
    assert_eq!(both.given_back(of), 0);
}

#[test]
fn a_key_of_another_type_in_the_place_of_records_is_replaced() {
    let mut both = bucket(20, 1000, 100);
    let _: i64 = both.lua.command(&["RPUSH", RECORDS, "x"]);
    let of = both.reserve(20, 1);
    assert_eq!(both.given_back(of), 20);
}

#[test]
fn a_window_gives_back_what_it_still_counts() {
    for kind in [
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingWindowBuckets,
    ] {
        let mut both = Both::new(algorithm(kind, 100, 60_000));
        let flight = both.reserve(20, 1);
        // The units that an edit gives back void no reservation.
        both.subject.generation = 2;
        both.credit(15);
        assert_eq!(both.given_back(flight), 5, "{kind}");
    }
}
