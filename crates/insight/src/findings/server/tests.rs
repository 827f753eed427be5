use std::time::Duration;

use super::*;

fn at(now_ms: u64, round_trip_ms: u64) -> Health {
    Health {
        address: "redis://here".to_owned(),
        info: None,
        settings: None,
        now_ms,
        round_trip: Duration::from_millis(round_trip_ms),
        scripts: Vec::new(),
        rights: None,
    }
}

#[test]
fn the_client_is_told_the_way_as_it_takes_it() {
    let warnings = |address: &str, store: &str| {
        let health = Health {
            address: address.to_owned(),
            ..at(0, 0)
        };
        client(&health, store)
    };
    let same = |address| warnings(address, address);
    assert_eq!(same("rediss://ann@a:1"), "redis-cli -u rediss://ann@a:1");
    assert_eq!(same("unix:///run/redis"), "redis-cli -s /run/redis");
    assert_eq!(same("redis-sentinel://a:1/main"), "redis-cli -h PRIMARY");
    let node = |store| warnings("a:2", store);
    assert_eq!(node("redis-cluster://a:1"), "redis-cli -u redis://a:2");
    assert_eq!(node("rediss-cluster://a:1"), "redis-cli -u rediss://a:2");
}

#[test]
fn a_clock_counts_as_wrong_only_beyond_what_asking_took() {
    let warnings = |now_ms, round_trip_ms| clocks(&[at(now_ms, round_trip_ms)], 100_000).len();
    assert_eq!(warnings(100_900, 1), 0);
    assert_eq!(warnings(101_100, 1), 1);
    assert_eq!(warnings(98_000, 1), 1);
    assert_eq!(warnings(101_100, 200), 0);
}

#[test]
fn more_memory_is_more_than_what_is_used() {
    let info = [("maxmemory", "1000"), ("used_memory", "3000")];
    let info = info.map(|(field, value)| (field.to_owned(), value.to_owned()));
    let health = Health {
        info: Some(info.into()),
        ..at(0, 0)
    };
    let node = Node {
        health: &health,
        store: "redis://here",
        prefix: "rl:",
    };
    let mend = node.memory().unwrap().mend.unwrap();
    assert!(mend.ends_with("maxmemory 6000"), "{mend}");
}
