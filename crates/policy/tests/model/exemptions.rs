use proptest::{prelude::*, sample::select};
use std::fmt::Write;

use limits_file::snapshot_at;
use policy::{Compiled, Descriptor, Edits, Entries, MULTIPLE_VALUES, Pause, Policy};

fn read(exempt: &str) -> Policy {
    let limits = "limits: [{name: all, rate: 1/s}, {name: own, match: {path: /own}, rate: 1/s}]";
    let file = format!("domain: shop\nexempt: {exempt}\n{limits}\n");
    limits_file::read("limits.yaml", file.as_bytes())
        .unwrap_or_else(|problems| panic!("{problems}"))
}

fn compiled(exempt: &str) -> Compiled {
    Compiled::new(read(exempt))
}

fn request(entries: &[(&str, &[u8])]) -> Descriptor {
    let entries = entries.iter();
    entries
        .map(|(key, value)| (key.parse().unwrap(), value.to_vec()))
        .collect()
}

/// The exemption of a request; without one, the limits apply.
fn exempts(compiled: &Compiled, entries: &[(&str, &[u8])]) -> Option<String> {
    let request = request(entries);
    let found = compiled.exemption(&request);
    assert_eq!(found.is_some(), compiled.matching(&request, 0).is_empty());
    let value = &|at: usize| Entries::get(&request, compiled.needed_keys().get(at)?.as_str());
    assert_eq!(found, compiled.matching_values(value, 0).err());
    found.map(|exemption| exemption.name.to_string())
}

#[test]
fn no_limit_applies_to_what_an_exemption_matches() {
    let compiled = compiled(
        "[{name: health, match: {path: [/healthz, /own], method: GET}}, \
          {name: internal, match: {remote_address: \"cidr:10.0.0.0/8\"}}]",
    );
    let of = |entries: &[(&str, &[u8])]| exempts(&compiled, entries);
    let health = Some("health".to_owned());
    assert_eq!(of(&[("path", b"/healthz"), ("method", b"GET")]), health);
    assert_eq!(of(&[("path", b"/own"), ("method", b"GET")]), health);
    assert_eq!(of(&[("path", b"/healthz"), ("method", b"POST")]), None);
    assert_eq!(of(&[("path", b"/healthz/x"), ("method", b"GET")]), None);
    let internal = Some("internal".to_owned());
    assert_eq!(of(&[("remote_address", b"10.1.2.3")]), internal);
    assert_eq!(of(&[("remote_address", b"11.1.2.3")]), None);
    assert_eq!(of(&[]), None);
}

#[test]
fn a_request_is_exempt_only_if_the_match_is_certain() {
    let compiled = compiled(
        "[{name: text, match: {tier: gold}}, {name: any, match: {key: \"*\"}}, \
          {name: not, match: {plan: \"!free\"}}, {name: re, match: {path: \"re:/x+\"}}, \
          {name: not-re, match: {agent: \"!re:bot.*\"}}]",
    );
    let of = |key: &str, value: &[u8]| exempts(&compiled, &[(key, value)]);
    let long = [&b"/"[..], &[b'x'; 8192]].concat();
    for (key, value, name) in [
        ("tier", &b"gold"[..], Some("text")),
        ("key", b"k", Some("any")),
        ("plan", b"paid", Some("not")),
        ("plan", b"free", None),
        ("path", b"/xx", Some("re")),
        ("agent", b"curl", Some("not-re")),
        // Too long to be searched.
        ("path", &long, None),
        ("agent", &long, None),
    ] {
        assert_eq!(of(key, value).as_deref(), name, "{key}");
    }
    // Several values, of which a service uses one; and none, which only a negation would match.
    for key in ["tier", "key", "plan", "path", "agent"] {
        assert_eq!(of(key, MULTIPLE_VALUES), None, "{key}");
    }
    assert_eq!(exempts(&compiled, &[]), None);
    // Another entry with several values changes nothing.
    let both: &[(&str, &[u8])] = &[("path", MULTIPLE_VALUES), ("tier", b"gold")];
    assert_eq!(exempts(&compiled, both).as_deref(), Some("text"));
}

#[test]
fn an_edit_of_only_exemptions_replaces_the_old_ones() {
    let before = compiled("[{name: a, match: {path: /x}}]");
    let after = before.caught_up(Edits {
        domain: read("[{name: a, match: {path: /y}}]"),
        base: 0,
        limit_count: 2,
        limits: Vec::new(),
        cleared: Vec::new(),
        overrides: Vec::new(),
    });
    let after = after.unwrap();
    assert_eq!(exempts(&after, &[("path", b"/x")]), None);
    assert_eq!(exempts(&after, &[("path", b"/y")]).as_deref(), Some("a"));
}

#[test]
fn a_filter_leaves_requests_of_unreadable_exemptions_to_the_limiter() {
    let compiled = compiled("[{name: a, match: {path: /x}}, {name: b, match: {path: /y}}]");
    let bytes = snapshot_at(&compiled, 0);
    let same = Compiled::from_snapshot(&bytes).unwrap();
    assert_eq!(same.exemptions().len(), 2);
    assert_eq!(exempts(&same, &[("path", b"/x")]).as_deref(), Some("a"));
    let newer = super::snapshot::with_part(&bytes, b"b", |part| part[1] = 2);
    let newer = Compiled::from_snapshot(&newer).unwrap();
    assert_eq!(exempts(&newer, &[("path", b"/x")]).as_deref(), Some("a"));
    assert_eq!(exempts(&newer, &[("path", b"/y")]), None);
    let opaque = &newer.opaque()[0];
    assert!(opaque.may_match(&request(&[("path", b"/y")])));
    assert!(!opaque.may_match(&request(&[("path", b"/x")])));
}

proptest! {
    /// The index finds what trying each in turn finds.
    #[test]
    fn the_first_matching_exemption_is_found(
        patterns in prop::collection::vec(select(vec![
            "/a", "/b", "/a/**", "/a/*", "!/a", "*", "i:/A", "re:/[ab]", "/c",
        ]), 1..12),
        path in select(vec!["/a", "/A", "/b", "/a/b", "/a/b/c", "/c", "/d"]),
    ) {
        let mut exempt = String::new();
        for (n, pattern) in patterns.iter().enumerate() {
            write!(exempt, "{{name: e{n}, match: {{path: \"{pattern}\"}}}}, ").unwrap();
        }
        let compiled = compiled(&format!("[{exempt}]"));
        let expected = compiled.exemptions().iter().find(|found| {
            found.matchers.iter().all(|matcher| matcher.holds_surely(Some(path.as_bytes())))
        });
        let found = exempts(&compiled, &[("path", path.as_bytes())]);
        prop_assert_eq!(found, expected.map(|found| found.name.to_string()));
    }
}

const FOREVER: Pause = Pause { until_ms: None };

fn until(ms: u64) -> Pause {
    Pause { until_ms: Some(ms) }
}

#[test]
fn a_pause_holds_up_to_its_end() {
    assert!(FOREVER.holds(u64::MAX));
    assert!(until(5).holds(4));
    assert!(!until(5).holds(5));
    assert!(!Pause::OVER.holds(0));
}

#[test]
fn the_later_of_two_pauses_holds() {
    assert_eq!(Pause::later(None, None), None);
    assert_eq!(Pause::later(Some(until(1)), None), Some(until(1)));
    assert_eq!(Pause::later(Some(until(1)), Some(until(2))), Some(until(2)));
    assert_eq!(Pause::later(Some(FOREVER), Some(until(2))), Some(FOREVER));
}
