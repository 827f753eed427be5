//! Edges around every change of every time zone's clocks from 2020 to 2040, against Python's `zoneinfo`
//! (`local_dates.py`) with the same version of the time zone database.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop with the reason"
)]

use std::{path::Path, process::Command};

use algorithms::{CalendarUnit, Edges, WeekStart};

/// 1970-01-01, counted from the first day of the year 1.
const EPOCH_DAY: u64 = 719_163;

/// The first instant of a local date.
struct Begins {
    zone: String,
    day: u64,
    at_ms: u64,
}

fn from_python() -> Vec<Begins> {
    let packages = std::env::var("RL_TEST_TZDATA").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/local_dates.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(packages)
        .output()
        .unwrap();
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{problems}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let zone = words.next().unwrap().to_owned();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        Begins {
            zone,
            day: number() + EPOCH_DAY,
            at_ms: number() * 1000,
        }
    };
    text.lines().map(line).collect()
}

/// Windows of a unit that begin with the date begin with it, and no other window begins between.
fn assert_begins(found: &Begins, unit: CalendarUnit, week_start: WeekStart, serial: u64) {
    let Begins { zone, at_ms, .. } = found;
    let what = format!("{zone} {unit:?} {serial} at {at_ms}");
    let around = |now_ms| calendar::edges(zone, unit, week_start, now_ms);
    let hours = |hours: u64| hours * 3_600_000;
    for edges in [at_ms - 1, at_ms + hours(20)].map(around) {
        let window = edges.of(serial, unit.nominal_ms());
        assert_eq!(window.start_ms, *at_ms, "{what} {edges:?}");
        let at = |edges: &Edges, now_ms| edges.at(now_ms, unit.nominal_ms()).serial;
        assert!(at(&edges, *at_ms) >= serial, "{what}");
        assert!(at(&edges, at_ms - 1) < serial, "{what}");
        assert!(edges.cover(*at_ms) && edges.cover(at_ms - 1), "{what}");
    }
}

#[test]
#[ignore = "needs a server: the Python package tzdata"]
fn every_change_of_every_zone() {
    let begins = from_python();
    let changed = begins.len();
    assert!(changed > 20_000, "{changed}");
    let mut firsts = 0;
    for found in &begins {
        assert!(calendar::zone(&found.zone).is_some(), "{}", found.zone);
        let day = found.day;
        assert_begins(found, CalendarUnit::Day, WeekStart::Monday, day);
        if day % 7 == 1 {
            assert_begins(found, CalendarUnit::Week, WeekStart::Monday, (day - 1) / 7);
        }
        if day % 7 == 0 {
            assert_begins(found, CalendarUnit::Week, WeekStart::Sunday, day / 7);
        }
        let (year, month, day_of_month) = civil(day - EPOCH_DAY);
        if day_of_month == 1 {
            firsts += 1;
            let serial = year * 12 + month - 1;
            assert_begins(found, CalendarUnit::Month, WeekStart::Monday, serial);
        }
        if (month, day_of_month) == (1, 1) {
            assert_begins(found, CalendarUnit::Year, WeekStart::Monday, year);
        }
    }
    assert!(firsts > 1000, "{firsts}");
}

/// Year, month and day of a number of days since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let text = documents::format_timestamp(days * 86_400_000);
    let number = |from: usize, to: usize| text.get(from..to).unwrap().parse().unwrap();
    (number(0, 4), number(5, 7), number(8, 10))
}
