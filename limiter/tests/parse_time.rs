//! Input from clients and operators is read in linear time: four times as much takes about four
//! times as long, not sixteen.

use std::{fmt::Write, hint::black_box};

use policy::Compiled;
use protocol::{
    compact::{Batch, BatchCheck, Report},
    json, parse_proxies,
};
use rustix::time::{ClockId, clock_gettime};

/// Makes an input of this many items.
type Make = fn(usize) -> String;

/// CPU time of this thread in nanoseconds, so that other processes do not count.
fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The shortest of several runs.
fn least(work: &mut dyn FnMut()) -> i64 {
    let once = || {
        let started = cpu_ns();
        work();
        cpu_ns() - started
    };
    std::iter::repeat_with(once).take(5).min().unwrap_or(0)
}

/// Reads a small input and one four times as large. Quadratic work takes sixteen times as long.
fn grows_evenly<I>(what: &str, items: usize, make: impl Fn(usize) -> I, read: impl Fn(&I)) {
    let (small, large) = (make(items), make(4 * items));
    let small = least(&mut || read(&small));
    let large = least(&mut || read(&large));
    assert!(large < small * 10, "{what}: {small} ns, then {large} ns");
}

/// This many items, separated by commas.
fn list(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

fn names(count: usize) -> String {
    list(count, |i| format!(r#""n{i}""#))
}

fn check(limits: &str) -> String {
    format!(r#"{{"domain":"d","descriptor":{{}},"limits":{limits}}}"#)
}

fn entries(entries: &str) -> String {
    format!(r#"{{"domain":"d","descriptor":{{{entries}}}}}"#)
}

#[test]
fn parse_time_of_json_checks_grows_evenly() {
    let read = |body: &String| drop(black_box(json::parse(body.as_bytes())));
    let bodies: [(&str, Make); 8] = [
        ("names of limits", |n| check(&format!("[{}]", names(n)))),
        ("limits of many checks", |n| {
            let check = format!(r#"{{"descriptor":{{}},"limits":[{}]}}"#, names(100));
            let checks = list(n / 100, |_| check.clone());
            format!(r#"{{"domain":"d","checks":[{checks}]}}"#)
        }),
        ("the same name", |n| {
            check(&format!("[{}]", list(n, |_| r#""n""#.to_owned())))
        }),
        ("entries", |n| {
            entries(&list(n, |i| format!(r#""k{i}":"v""#)))
        }),
        ("the same entry", |n| {
            entries(&list(n, |_| r#""k":"v""#.to_owned()))
        }),
        ("unknown fields", |n| {
            let fields = list(n, |i| format!(r#""f{i}":1"#));
            format!(r#"{{"domain":"d",{fields}}}"#)
        }),
        ("escapes", |n| {
            entries(&format!(r#""k":"{}""#, r"\u00e9\n".repeat(n)))
        }),
        ("lines, and an error at the end", |n| "\n".repeat(n) + "x"),
    ];
    for (what, make) in bodies {
        grows_evenly(what, 2000, make, read);
    }
}

#[test]
fn decode_time_of_batches_reports_and_headers_grows_evenly() {
    let check = |_| BatchCheck {
        values: (0..100).map(|n| Some(vec![n])).collect(),
        cost: 1,
        ..BatchCheck::default()
    };
    let batch = |count| Batch {
        domain: "d".parse().unwrap(),
        proxy: "p".to_owned(),
        revision: None,
        keys: (0..100).map(|n| format!("k{n}").parse().unwrap()).collect(),
        checks: (0..count).map(check).collect(),
    };
    let encoded = |count| batch(count).encode();
    grows_evenly("checks", 250, encoded, |bytes| {
        let batch = Batch::decode(bytes).unwrap();
        let checks = batch.checks.into_iter();
        let checks = checks.map(|check| check.into_check(&batch.keys));
        black_box(checks.collect::<Vec<_>>());
    });
    let named = |count: usize| {
        let mut bytes = vec![0x84, 0x61, b'd', 0x61, b'p', 0x99];
        bytes.extend(u16::try_from(count).unwrap().to_be_bytes());
        for n in 0..count {
            bytes.push(0x60 + 7);
            bytes.extend(format!("n{n:06}").as_bytes());
        }
        bytes
    };
    let read = |bytes: &Vec<u8>| drop(black_box(Report::decode(bytes)));
    grows_evenly("a report's names", 2500, named, read);
    let proxies = |count| list(count, |n| format!(" n{n}=3"));
    grows_evenly("live proxies", 10_000, proxies, |text| {
        _ = black_box(parse_proxies(text).count());
    });
}

/// This many limits, each with these fields.
fn limits(count: usize, fields: impl Fn(usize) -> String) -> String {
    let mut text = "domain: d\nlimits:\n".to_owned();
    for n in 0..count {
        let _ = writeln!(text, "  - {{name: n{n}, rate: 1/s{}}}", fields(n));
    }
    text
}

#[test]
fn parse_time_of_documents_grows_evenly() {
    let read = |text: &String| {
        let policy = limits_file::read("limits.yaml", text.as_bytes());
        drop(black_box(policy.map(Compiled::new)));
    };
    let documents: [(&str, Make); 9] = [
        ("limits", |n| {
            limits(n, |i| format!(", match: {{path: /p{i}}}, per: [user]"))
        }),
        ("the same limit", |n| {
            limits(n, |_| String::new()).replace("- {name: n", "- {name: n0, description: n")
        }),
        ("per", |n| {
            limits(1, |_| format!(", per: [{}]", list(n, |i| format!("k{i}"))))
        }),
        ("per and partition", |n| {
            let keys = list(n, |i| format!("k{i}"));
            limits(1, |_| format!(", per: [{keys}], partition: [{keys}]"))
        }),
        ("replaces", |n| {
            limits(n, |i| format!(", replaces: [n{}]", (i + 1).min(n - 1)))
                .replace(&format!("replaces: [n{}]", n - 1), "hidden: true")
        }),
        ("replaces that lead nowhere", |n| {
            limits(n, |_| ", replaces: [nowhere]".to_owned())
        }),
        ("circles", |n| {
            limits(n, |i| format!(", replaces: [n0, n{}]", (i + 1) % n))
        }),
        ("overrides", |n| {
            let overrides = list(n, |i| format!("{{values: {{user: u{i}}}, rate: 2/s}}"));
            limits(1, |_| format!(", per: [user], overrides: [{overrides}]"))
        }),
        ("unknown fields", |n| {
            limits(1, |_| format!(", {}", list(n, |i| format!("f{i}: 1"))))
        }),
    ];
    for (what, make) in documents {
        grows_evenly(what, 250, make, read);
    }
}
