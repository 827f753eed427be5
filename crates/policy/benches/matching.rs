//! How long a request takes against a large policy: `cargo bench -p policy`.
//!
//! 10,000 limits of a kind that differ in one literal (a path of
//! each tenant, a header of each service), 20 that apply to everybody, and
//! 100,000 overrides of one of them. Then requests that no limit applies to, by kinds of patterns, and an
//! edit of one limit as a proxy applies it.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

use std::{hint::black_box, time::Instant};

use policy::{Compiled, Descriptor};

/// Each has a limit on its paths and one on its service; with the 20, that is 10,000 limits.
const TENANTS: usize = 4990;
const OVERRIDES: usize = 100_000;

fn main() {
    let text = limits_file();
    let started = Instant::now();
    let policy = limits_file::read("limits.yaml", text.as_bytes());
    let policy = policy.unwrap_or_else(|problems| panic!("{problems}"));
    println!(
        "read     {:>8} ms  ({} MB of YAML)",
        started.elapsed().as_millis(),
        text.len() / 1_000_000
    );
    let started = Instant::now();
    let compiled = Compiled::new(policy);
    println!("compile  {:>8} ms", started.elapsed().as_millis());

    let requests: Vec<Descriptor> = (0..1000).map(request).collect();
    let matched = compiled.matching(&requests[0], 0).len();
    per_call("match", 1000, |n| {
        black_box(compiled.matching(&requests[n], 0));
    });
    println!("         ({matched} limits match)");
    let values: Vec<Vec<u8>> = (0..1000).map(user).collect();
    let shared = compiled.position("per-user").expect("a limit of the file");
    per_call("override", 1000, |n| {
        black_box(compiled.quota_for(shared, &[Some(&values[n])], 0));
    });
    for limits in [100, 5000] {
        for (kind, pattern) in PATTERNS {
            against(limits, kind, pattern);
        }
    }
    println!();
    for limits in [100, 5000] {
        changes(limits);
    }
}

/// Kinds of patterns that tell limits apart; `#` is a limit's number.
const PATTERNS: [(&str, &str); 5] = [
    ("/api/#", "/api/#"),
    ("/api/#/**", "/api/#/**"),
    ("/**/x#", "/**/x#"),
    ("/*/x#", "/*/x#"),
    ("re:", "re:^/api/#/[a-z]+$"),
];

/// Limits of one kind of pattern, with this rate of one of them.
fn limits_of(limits: usize, pattern: &str, rate: u64) -> Compiled {
    let limit = |n: usize| {
        let (pattern, rate) = (
            pattern.replace('#', &n.to_string()),
            if n == 7 { rate } else { 10 },
        );
        format!(
            "  - {{name: limit-{n}, match: {{path: '{pattern}'}}, per: [user], rate: {rate}/s}}\n"
        )
    };
    let text: String = (0..limits).map(limit).collect();
    let text = format!("domain: shop\nlimits:\n{text}");
    let mut policy = limits_file::read("limits.yaml", text.as_bytes())
        .unwrap_or_else(|problems| panic!("{problems}"));
    policy.revision.number = rate;
    Compiled::new(policy)
}

/// A request that none of the limits applies to.
fn against(limits: usize, kind: &str, pattern: &str) {
    let compiled = limits_of(limits, pattern, 1);
    let entries = [("path", "/other/path/of/this"), ("user", "alice")];
    let request: Descriptor = entries
        .into_iter()
        .map(|(key, value)| (key.parse().expect("a name"), value.as_bytes().to_vec()))
        .collect();
    per_call(&format!("{kind} of {limits}, none"), 1000, |_| {
        black_box(compiled.matching(&request, 0));
    });
}

/// What a proxy gets of an edit of one limit, and what a worker of it spends on that.
fn changes(limits: usize) {
    let (before, after) = (
        limits_of(limits, "/api/#/**", 1),
        limits_of(limits, "/api/#/**", 2),
    );
    let made = limits_file::snapshot_after(&before, 0, None);
    let next = limits_file::snapshot_after(&after, 0, Some(&made));
    let bytes = next.since(made.tag()).expect("changes");
    println!(
        "{limits} limits: whole {} bytes, changes of one {} bytes",
        next.bytes().len(),
        bytes.len()
    );
    let started = Instant::now();
    let proxy = Compiled::from_snapshot(next.bytes()).expect("a snapshot");
    println!("whole    {:>8} us", started.elapsed().as_micros());
    let proxy = Compiled::from_snapshot(made.bytes()).unwrap_or(proxy);
    per_call("changes", 1, |_| {
        black_box(proxy.with_changes(&bytes).expect("they fit"));
    });
}

fn per_call(what: &str, calls: usize, mut call: impl FnMut(usize)) {
    const ROUNDS: usize = 200;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        for n in 0..calls {
            call(n);
        }
    }
    let ns = started.elapsed().as_nanos() / (ROUNDS * calls) as u128;
    println!("{what:<24} {ns:>8} ns");
}

fn user(n: usize) -> Vec<u8> {
    format!("user-{}", n * 199 % (2 * OVERRIDES)).into_bytes()
}

fn request(n: usize) -> Descriptor {
    let tenant = n * 37 % TENANTS;
    let entries = [
        ("path", format!("/tenants/t{tenant}/orders/{n}")),
        ("service", format!("s{tenant}")),
        ("method", "POST".to_owned()),
        ("remote_address", format!("10.1.{}.{}", n / 256, n % 256)),
        ("user", format!("user-{n}")),
    ];
    let entries = entries.into_iter();
    entries
        .map(|(key, value)| (key.parse().expect("a name"), value.into_bytes()))
        .collect()
}

fn limits_file() -> String {
    let mut text = "domain: bench\nlimits:\n".to_owned();
    let mut add = |limit: String| {
        text.push_str("  - {rate: 100/s, ");
        text.push_str(&limit);
        text.push_str("}\n");
    };
    for n in 0..TENANTS {
        add(format!(
            "name: path-{n}, per: [user], match: {{path: \"/tenants/t{n}/**\", method: [POST, PUT]}}"
        ));
        add(format!(
            "name: service-{n}, per: [user], match: {{service: s{n}, method: POST}}"
        ));
    }
    for n in 0..19 {
        add(format!(
            "name: all-{n}, per: [remote_address], match: {{remote_address: \"cidr:10.0.0.0/{}\"}}",
            8 + n % 3
        ));
    }
    text.push_str("  - name: per-user\n    per: [user]\n    rate: 10/s\n    overrides:\n");
    for n in 0..OVERRIDES {
        let line = format!(
            "      - {{values: {{user: user-{n}}}, rate: {}/s}}\n",
            n % 50 + 1
        );
        text.push_str(&line);
    }
    text
}
