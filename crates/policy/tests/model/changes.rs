//! Changes between snapshots: what they lead to is what the whole would be.

use std::fmt::Write;

use limits_file::snapshot_after;
use policy::{Compiled, Descriptor, Name, Policy, Revision, Snapshot};
use proptest::prelude::*;

/// A limit of a tested policy: its name, and which of some conditions and rates it has.
type Spec = (u8, u8, u8);

const CONDITIONS: [&str; 10] = [
    "",
    "match: {path: /a}, ",
    "match: {path: \"/a/**\"}, ",
    "match: {path: \"/**/x\", method: GET}, ",
    "match: {path: \"re:/b+/c\", tenant: t1}, ",
    "match: {tenant: [t1, t2]}, ",
    "match: {method: \"!GET\"}, ",
    "match: {path: \"/A/*\"}, scope: proxy, ",
    "match: {path: \"re:/.*-x1[0-9]\"}, ",
    "match: {path: \"/**/a-x1*\"}, ",
];

fn policy_of(limits: &[Spec], number: u64, exempt: bool) -> Policy {
    let mut text = String::from("domain: shop\nlimits:\n");
    for (name, condition, rate) in limits {
        let condition = CONDITIONS[usize::from(*condition)];
        let rate = 1 + u64::from(*rate);
        writeln!(
            text,
            "  - {{name: n{name}, {condition}per: [user], rate: {rate}/s}}"
        )
        .unwrap();
    }
    if exempt {
        text.push_str("exempt:\n  - {name: health, match: {path: /health}}\n");
    }
    let mut policy = limits_file::read("limits.yaml", text.as_bytes()).unwrap();
    // Of limits that come and go.
    for (limit, (name, condition, _)) in policy.limits.iter_mut().zip(limits) {
        if *condition == 6 && *name > 3 {
            limit.replaces = vec!["n1".parse().unwrap(), "n3".parse().unwrap()];
        }
    }
    policy.revision = Revision {
        number,
        digest: policy::digest(text.as_bytes()) ^ number,
    };
    policy
}

/// The policies of an edit each; names are unique in each.
fn edits() -> impl Strategy<Value = Vec<(Vec<Spec>, bool)>> {
    let limits = prop::collection::vec((0..40_u8, 0..10_u8, 0..3_u8), 20..30);
    let changes = prop::collection::vec(
        (
            0..4_u8,
            any::<prop::sample::Index>(),
            (0..40_u8, 0..10_u8, 0..3_u8),
        ),
        1..4,
    );
    let edits = prop::collection::vec((changes, prop::bool::weighted(0.1)), 1..8);
    (limits, edits).prop_map(|(mut limits, edits)| {
        let unique = |limits: &mut Vec<Spec>| {
            let mut known = Vec::new();
            limits.retain(|(name, ..)| {
                !known.contains(name) && {
                    known.push(*name);
                    true
                }
            });
        };
        unique(&mut limits);
        let mut all = vec![(limits.clone(), false)];
        let mut exempt = false;
        for (changes, exempts) in edits {
            exempt ^= exempts;
            for (kind, at, new) in changes {
                let at = at.index(limits.len());
                match kind {
                    0 => limits.insert(at, new),
                    1 if limits.len() > 8 => drop(limits.remove(at)),
                    2 => {
                        let moved = limits.remove(at);
                        limits.insert(usize::from(new.0) % (limits.len() + 1), moved);
                    }
                    _ => (limits[at].1, limits[at].2) = (new.1, new.2),
                }
            }
            unique(&mut limits);
            all.push((limits.clone(), exempt));
        }
        all
    })
}

fn descriptors() -> Vec<Descriptor> {
    let values = |texts: &[&str]| -> Vec<Option<String>> {
        let texts = texts.iter().map(|text| Some((*text).to_owned()));
        texts.chain([None]).collect()
    };
    let mut all = Vec::new();
    for path in values(&["/a", "/a/b", "/q/x", "/b/c", "/A/z", "/health", "/q/a-x12"]) {
        for method in values(&["GET", "PUT"]) {
            for tenant in values(&["t1", "t2", "t3"]) {
                let entries = [("path", &path), ("method", &method), ("tenant", &tenant)];
                let entries = entries.into_iter().filter_map(|(key, value)| {
                    Some((key.parse::<Name>().unwrap(), value.clone()?.into_bytes()))
                });
                let user = ("user".parse().unwrap(), b"u".to_vec());
                all.push(entries.chain([user]).collect());
            }
        }
    }
    all
}

/// What applies to each descriptor, in order, with its rate.
fn decisions(compiled: &Compiled) -> Vec<Vec<String>> {
    let all = descriptors().into_iter().map(|descriptor| {
        let found = compiled.matching(&descriptor, 0);
        let found = found.iter().map(|found| {
            let same = compiled.limit(found.index).unwrap();
            assert_eq!(same.name, found.limit.name);
            format!(
                "{} {:?}",
                found.limit.name,
                found.limit.quota.parameters().rate
            )
        });
        found.collect()
    });
    all.collect()
}

fn tag(compiled: &Compiled) -> String {
    let revision = compiled.revision();
    format!("{}-{:016x}", revision.number, revision.digest)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The filter skips some of the revisions.
    #[test]
    fn changes_lead_to_what_the_whole_is(edits in edits(), skipped in any::<u8>()) {
        let mut limiter: Option<Snapshot> = None;
        let mut filters: Option<Compiled> = None;
        for (number, (limits, exempt)) in edits.iter().enumerate() {
            let number = u64::try_from(number).unwrap();
            let compiled = Compiled::new(policy_of(limits, number, *exempt));
            let next = snapshot_after(&compiled, 0, limiter.as_ref());
            if skipped & 1 << number != 0 {
                limiter = Some(next);
                continue;
            }
            let whole = Compiled::from_snapshot(next.bytes()).unwrap();
            let changes = filters.as_ref().and_then(|known| next.since(&tag(known)));
            let known = filters.take();
            // The limiter has every revision that the filter has, so its changes fit.
            let after = match (known, changes) {
                (Some(known), Some(changes)) => known.with_changes(&changes).expect("they fit"),
                _ => whole.clone(),
            };
            prop_assert_eq!(after.revision(), whole.revision());
            prop_assert!(decisions(&after) == decisions(&whole));
            filters = Some(after);
            limiter = Some(next);
        }
    }

    /// A limiter that skipped revisions, and one of another history.
    #[test]
    fn changes_of_other_limits_do_not_fit(edits in edits()) {
        let all: Vec<Compiled> = { (0..).zip(&edits) }
            .map(|(number, (limits, exempt))| Compiled::new(policy_of(limits, number, *exempt)))
            .collect();
        let whole = |compiled: &Compiled| {
            Compiled::from_snapshot(&limits_file::snapshot_at(compiled, 0)).unwrap()
        };
        let (first, last) = (&all[0], all.last().unwrap());
        let made = snapshot_after(last, 0, Some(&snapshot_after(first, 0, None)));
        for compiled in &all {
            let Some(changes) = made.since(&tag(compiled)) else { continue };
            if let Some(after) = whole(compiled).with_changes(&changes) {
                prop_assert_eq!(after.revision(), last.revision());
                prop_assert!(decisions(&after) == decisions(&whole(last)));
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_are_no_changes(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let limits: Vec<Spec> = (0..20).map(|name| (name, name % 8, 0)).collect();
        let mut other = limits.clone();
        other[7].2 = 1;
        let (before, after) = (policy_of(&limits, 1, false), policy_of(&other, 2, false));
        let (before, after) = (Compiled::new(before), Compiled::new(after));
        let made = snapshot_after(&before, 0, None);
        let filters = Compiled::from_snapshot(made.bytes()).unwrap();
        let made = snapshot_after(&after, 0, Some(&made));
        let mut changes = made.since(&tag(&before)).unwrap();
        prop_assert!(filters.with_changes(&changes).is_some());
        let at = at.index(changes.len());
        prop_assert!(filters.with_changes(&changes[..at]).is_none());
        changes[at] = to;
        if let Some(after) = filters.with_changes(&changes) {
            // At most the revision or a further key is another one.
            let whole = Compiled::from_snapshot(made.bytes()).unwrap();
            prop_assert!(decisions(&after) == decisions(&whole));
        }
    }
}

/// The sizes that docs promise.
#[test]
fn changes_of_one_limit_among_thousands_are_short() {
    let limits = |rate: u64| {
        let limits = (0..5000).map(|name| {
            let rate = if name == 2500 { rate } else { 10 };
            format!("  - {{name: limit-{name}, match: {{path: \"/api/{name}/**\"}}, per: [user], rate: {rate}/s}}\n")
        });
        let text = format!("domain: shop\nlimits:\n{}", limits.collect::<String>());
        let mut policy = limits_file::read("limits.yaml", text.as_bytes()).unwrap();
        policy.revision.number = rate;
        Compiled::new(policy)
    };
    let made = snapshot_after(&limits(1), 0, None);
    let next = snapshot_after(&limits(2), 0, Some(&made));
    let changes = next.since(made.tag()).unwrap();
    assert!(changes.len() < 200, "{} bytes", changes.len());
    assert!(next.bytes().len() > 300_000);
    let filters = Compiled::from_snapshot(made.bytes()).unwrap();
    assert!(filters.with_changes(&changes).is_some());
}

#[test]
fn a_snapshot_that_is_long_forgotten_has_no_changes() {
    let policy_of = |number: u64| {
        let rate = u8::try_from(number % 200).unwrap();
        let limits: Vec<Spec> = (0..40)
            .map(|name| (name, 1, if name == 7 { rate } else { 0 }))
            .collect();
        Compiled::new(policy_of(&limits, number, false))
    };
    let first = policy_of(1);
    let mut made = snapshot_after(&first, 0, None);
    for number in 2..=256 {
        made = snapshot_after(&policy_of(number), 0, Some(&made));
        assert!(made.since(&tag(&first)).is_some(), "{number}");
    }
    made = snapshot_after(&policy_of(257), 0, Some(&made));
    assert!(made.since(&tag(&first)).is_none());
    assert!(made.since(&tag(&policy_of(2))).is_some());
    // Of a later revision, or of no revision at all.
    assert!(made.since(&tag(&policy_of(258))).is_none());
    assert!(made.since("").is_none() && made.since("x-1").is_none());
}
