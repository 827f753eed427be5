use algorithms::{Edges, Parameters, UTC};
use cbor::{Reader, Writer};
use limits_file::snapshot_at;
use policy::{
    BucketEdit, BucketEdits, Compiled, Descriptor, Limit, Name, OnFailure, Opaque, Pause, Policy,
    Revision, digest, snapshot_bytes,
};
use proptest::prelude::*;

fn policy() -> Policy {
    let text = br#"
domain: shop
limits:
  - name: per-user
    description: not for filters
    match: {path: "/api/**"}
    per: [user]
    rate: 10/s
    overrides: [{values: {user: alice}, rate: 100/s}]
  - name: here
    per: [tenant]
    rate: 5/s
    scope: proxy
    overrides: [{values: {tenant: t}, unlimited: true}]
"#;
    let mut policy = limits_file::read("limits.yaml", text).unwrap();
    policy.revision = Revision {
        number: 17,
        digest: u64::MAX,
    };
    policy.limits[0].generation = 5;
    policy
}

/// A snapshot with the bytes of one limit or exemption edited, as another version might write them.
pub fn with_part(bytes: &[u8], name: &[u8], edit: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let item = |reader: &mut Reader<'_>| reader.item().map(<[u8]>::to_vec);
    let read = |reader: &mut Reader<'_>| {
        let head = [item(reader)?, item(reader)?, item(reader)?, item(reader)?];
        let limits = reader.list(usize::MAX, "", item)?;
        Ok((head, limits, reader.list(usize::MAX, "", item)?))
    };
    let (head, limits, exempt) = Reader::new(bytes).fields(6, read).unwrap();
    let mut writer = Writer::default();
    writer.array(6);
    writer.0.extend(head.concat());
    for parts in [limits, exempt] {
        writer.list(parts.iter(), |writer, part| {
            let read = |reader: &mut Reader<'_>| Ok((reader.unsigned()?, reader.bytes()?.to_vec()));
            let (_, mut part) = Reader::new(part).fields(2, read).unwrap();
            // Behind the number of fields and the level, as a text of its length.
            let at = if part[0] == 0x98 { 4 } else { 3 };
            if part.get(at..at + name.len()) == Some(name) {
                edit(&mut part);
            }
            writer.array(2);
            writer.unsigned(digest(&part));
            writer.bytes(&part);
        });
    }
    writer.0
}

fn read(bytes: &[u8]) -> Compiled {
    Compiled::from_snapshot(bytes).unwrap()
}

/// Edges that do not depend on the time zone, whose name does not travel.
fn edges(parameters: &Parameters) -> Option<Edges> {
    let starts_ms = std::array::from_fn(|at| u64::try_from(at).unwrap() * 86_400_000);
    parameters.rate.calendar.map(|_| Edges::new(7, starts_ms))
}

#[test]
fn limits_of_the_version_before_have_fewer_fields_at_their_ends() {
    let text = b"{domain: shop, limits: [{name: checkout, algorithm: concurrency, limit: 9, deny_status: 503, \
                 adaptive: {min: 1, max: 20, latency: 300ms}}]}";
    let mut policy = limits_file::read("limits.yaml", text).unwrap();
    let now = snapshot_at(&Compiled::new(policy.clone()), 0);
    let items = |bytes: &[u8]| {
        let item = |reader: &mut Reader<'_>| reader.item().map(<[u8]>::to_vec);
        Reader::new(bytes).list(usize::MAX, "", item).unwrap()
    };
    let array = |items: &[Vec<u8>]| {
        let mut writer = Writer::default();
        writer.array(items.len());
        [writer.0, items.concat()].concat()
    };
    let before = with_part(&now, b"checkout", |part| {
        let mut fields = items(part);
        // The edits of buckets, `deny_status`, and `adaptive` in the quota behind the header, `per` and `if_missing`.
        fields.truncate(fields.len() - 2);
        let mut quota = items(&fields[6]);
        quota.pop();
        fields[6] = array(&quota);
        *part = array(&fields);
    });
    let limit = &mut policy.limits[0];
    assert_eq!(limit.deny_status.take(), Some(503));
    let mut numbers = *limit.quota.parameters();
    assert!(numbers.adaptive.take().is_some());
    let read = read(&before);
    assert!(read.opaque().is_empty(), "{:?}", read.opaque());
    assert_eq!(read.limits()[0].deny_status, None);
    assert_eq!(*read.limits()[0].quota.parameters(), numbers);
}

#[test]
fn a_snapshot_that_a_limiter_of_the_version_before_sent_reads_as_its_limits_do_now() {
    let text = r#"
domain: shop
limits:
  - {name: probe, match: {path: "/a/**"}, rate: 1000/s, burst: 50}
  - {name: leased, match: {path: /leased}, rate: 500/s, lease: {ttl: 250ms}}
  - {name: flight, match: {path: "**.html"}, per: [user], algorithm: concurrency, limit: 5}
  - {name: here, match: {path: "re:/[a-z]+"}, per: [user], rate: 2/s, scope: proxy, overrides: [{values: {user: alice}, rate: 9/s}]}
  - {name: pen, match: {user: "!bob"}, per: [user], rate: 1/s, penalty: {after: 3, within: 10s, for: 5s}}
  - {name: queue, rate: 10/s, algorithm: leaky_bucket, over_limit: queue, max_delay: 2s, replaces: [pen]}
  - {name: log, rate: 3/1h, algorithm: sliding_window_log, if_missing: deny, per: [tenant], on_failure: deny, hidden: true}
"#;
    // Before limits had `deny_status` and edits of buckets, and quotas `adaptive`.
    let before = read(include_bytes!("snapshot_before.cbor"));
    assert!(before.opaque().is_empty(), "{:?}", before.opaque());
    let mut policy = limits_file::read("limits.yaml", text.as_bytes()).unwrap();
    policy.revision = before.revision().clone();
    for limit in &mut policy.limits {
        limit.generation = 1;
    }
    let now = snapshot_at(&Compiled::new(policy), 0);
    assert_eq!(before.limits(), read(&now).limits());
    assert_eq!(snapshot_at(&before, 0), now);
}

#[test]
fn a_snapshot_carries_what_a_filter_needs() {
    let compiled = Compiled::new(policy());
    let snapshot = snapshot_at(&compiled, 0);
    let compiled = read(&snapshot);
    assert_eq!(compiled.revision(), &policy().revision);
    assert!(compiled.opaque().is_empty());
    assert_eq!(compiled.limits()[0].generation, 5);
    assert!(compiled.has_overrides(0));
    let tenant = [Some(b"t")];
    assert!(compiled.override_for(1, &tenant).is_some());
    // Its own snapshot is the same.
    assert_eq!(snapshot_at(&compiled, 0), snapshot);
}

#[test]
fn every_field_of_a_limit_travels() {
    let text = include_bytes!("../../../limits-file/tests/every_field.yaml");
    let compiled = Compiled::new(limits_file::read("every_field.yaml", text).unwrap());
    let snapshot = compiled.to_snapshot(&edges);
    let filters = read(&snapshot);
    assert!(filters.opaque().is_empty(), "{:?}", filters.opaque());
    assert_eq!(filters.to_snapshot(&edges), snapshot);
    assert_eq!(filters.needed_keys(), compiled.needed_keys());
    let limits = compiled.limits().iter();
    let limits = limits.filter(|limit| limit.descriptor.is_none());
    for (ours, theirs) in limits.zip(filters.limits()) {
        let expected = Limit {
            description: None,
            partition: Vec::new(),
            reset_generation: 0,
            place: 0,
            paused: Pause::later(ours.paused, compiled.paused()),
            // These are other words for the same.
            matchers: theirs.matchers.clone(),
            quota: theirs.quota,
            pricing: theirs.pricing.clone(),
            ..Limit::clone(ours)
        };
        assert_eq!(**theirs, expected);
        let zoned = |parameters: &Parameters| Parameters {
            time_zone: parameters.time_zone.map(|_| UTC),
            ..*parameters
        };
        assert_eq!(*theirs.quota.parameters(), zoned(ours.quota.parameters()));
    }
    // Whatever is cut off or changed, it is decided without a panic.
    for at in 0..snapshot.len() {
        assert!(
            Compiled::from_snapshot(&snapshot[..at]).is_err(),
            "cut at {at}"
        );
        for bit in 0..8 {
            let mut damaged = snapshot.clone();
            damaged[at] ^= 1 << bit;
            let _ = Compiled::from_snapshot(&damaged);
        }
    }
}

#[test]
fn a_snapshot_takes_no_more_than_was_counted_whichever_buckets_are_edited() {
    for count in [1, 3, 40, 2000] {
        let limits = (0..count).map(|n| format!("{{name: l{n}, per: [user], rate: 1/s}}, "));
        let text = format!("domain: shop\nlimits: [{}]\n", limits.collect::<String>());
        let mut policy = limits_file::read("test", text.as_bytes()).unwrap();
        let counted = |policy: &Policy| -> usize { policy.limits.iter().map(snapshot_bytes).sum() };
        let before = counted(&policy);
        for limit in &mut policy.limits {
            limit.generation = u64::MAX / 2;
            for slot in (0..=u8::MAX).take(BucketEdits::most(count)) {
                limit.bucket_edits.add(BucketEdit {
                    slot,
                    generation: u64::MAX,
                    reset_generation: 0,
                });
            }
        }
        assert_eq!(counted(&policy), before);
        let bytes = snapshot_at(&Compiled::new(policy), 0).len();
        assert!(
            bytes <= before + 512 * 12 + 200,
            "{count}: {bytes}, {before}"
        );
    }
    // However the limits came, one after the other, each with as many edits as it might have then.
    let more = |count| BucketEdits::most(count) - BucketEdits::most(usize::MAX);
    assert!((1..=10_000).map(more).sum::<usize>() * 12 < 60 << 10);
}

#[test]
fn filters_search_values_as_long_as_limiters_do() {
    let text = "domain: shop\nlimits: [{name: a, match: {path: \"re:(/?[0-9a-z-]{1,64})*\"}, rate: 1/s}]\n";
    let compiled = Compiled::new(limits_file::read("test", text.as_bytes()).unwrap());
    let longest = |compiled: &Compiled| {
        let patterns = &compiled.limits()[0].matchers[0].patterns;
        patterns[0].longest_searched()
    };
    assert_eq!(longest(&compiled), Some(203));
    assert_eq!(longest(&read(&snapshot_at(&compiled, 0))), Some(203));
}

/// The field behind the last.
fn one_more(array: &mut Vec<u8>) {
    // The head of an array has a byte of its own for more than 23 items.
    match array[0] {
        0x97 => drop(array.splice(..1, [0x98, 24])),
        0x98 => array[1] += 1,
        _ => array[0] += 1,
    }
    array.extend(b"\x83\x01\x02\xf6");
}

#[test]
fn fields_of_a_later_version_are_ignored() {
    let snapshot = snapshot_at(&Compiled::new(policy()), 0);
    let mut later = with_part(&snapshot, b"per-user", one_more);
    one_more(&mut later);
    let compiled = read(&later);
    assert!(compiled.opaque().is_empty());
    assert_eq!(snapshot_at(&compiled, 0), snapshot);
}

#[test]
fn a_limit_of_a_later_version_is_left_to_the_limiter_alone() {
    let file = "domain: shop\nlimits:\n  - {name: a, match: {path: \"/new/**\", user: x}, rate: 1/s, \
                on_failure: deny}\n  - {name: b, rate: 1/s}\n";
    let mut policy = limits_file::read("test", file.as_bytes()).unwrap();
    let opaque = |edit: &dyn Fn(&mut Vec<u8>)| {
        let snapshot = snapshot_at(&Compiled::new(policy.clone()), 0);
        let compiled = read(&with_part(&snapshot, b"a", edit));
        assert_eq!(compiled.limits().len(), 1);
        assert_eq!(compiled.limits()[0].name.as_str(), "b");
        // Its keys are extracted all the same.
        assert_eq!(compiled.needed_keys().len(), 2);
        compiled.opaque()[0].clone()
    };
    let request = |path: &str, user: &str| -> Descriptor {
        let entries = [("path", path), ("user", user)];
        let entries = entries.map(|(key, value)| (key.parse().unwrap(), value.into()));
        entries.into_iter().collect()
    };
    let replace = |part: &mut Vec<u8>, from: &[u8], to: u8| {
        let at = part.windows(from.len()).position(|window| window == from);
        part[at.unwrap() + from.len()] = to;
    };
    let later = opaque(&|part| part[2] = 2);
    assert_eq!(later.name.as_ref().map(Name::as_str), Some("a"));
    assert_eq!(later.on_failure, Some(OnFailure::Deny));
    assert!(later.may_match(&request("/new/x", "x")));
    assert!(!later.may_match(&request("/old", "x")) && !later.may_match(&request("/new/x", "y")));
    // Another kind of pattern: that condition counts as one that holds.
    let pattern = opaque(&|part| replace(part, b"path\x81\x84\xf4", 9));
    assert!(pattern.may_match(&request("/old", "x")) && !pattern.may_match(&request("/old", "y")));
    // Another `on_failure`.
    assert_eq!(opaque(&|part| replace(part, b"\x61a", 9)).on_failure, None);
    // Another shape altogether.
    assert_eq!(opaque(&|part| *part = vec![0xf6]), Opaque::default());
    // Damaged on the way: nothing in it is certain, not even its name.
    let snapshot = snapshot_at(&Compiled::new(policy.clone()), 0);
    let at = snapshot
        .windows(5)
        .position(|window| window == b"/new/")
        .unwrap();
    let mut damaged = snapshot.clone();
    damaged[at] = b'!';
    assert_eq!(read(&damaged).opaque(), [Opaque::default()]);
    policy.limits.clear();
    assert!(
        read(&snapshot_at(&Compiled::new(policy), 0))
            .opaque()
            .is_empty()
    );
}

#[test]
fn an_invalid_snapshot_is_refused() {
    let json = br#"{"format":1,"domain":"shop","revision":{"number":1,"digest":"0"}}"#;
    for bytes in [&b""[..], b"[]", json, b"\x80", b"\x86\x01"] {
        assert!(Compiled::from_snapshot(bytes).is_err(), "{bytes:?}");
    }
    // Another version's may be anything behind its number.
    let other = Compiled::from_snapshot(b"\x83\x02\xf6\xf6").unwrap_err();
    assert_eq!(other.to_string(), "format 2, and this version reads 1");
}

#[test]
fn a_paused_domain_reaches_filters_on_every_limit() {
    let mut policy = policy();
    policy.paused = Some(Pause {
        until_ms: Some(5000),
    });
    policy.limits[1].paused = Some(Pause { until_ms: None });
    let compiled = read(&snapshot_at(&Compiled::new(policy), 0));
    let until = |at: usize| compiled.limits()[at].paused.map(|pause| pause.until_ms);
    assert_eq!(until(0), Some(Some(5000)));
    assert_eq!(until(1), Some(None));
    let request: Descriptor = [("path", "/api/x"), ("user", "u")]
        .map(|(key, value)| (key.parse().unwrap(), value.as_bytes().to_vec()))
        .into_iter()
        .collect();
    assert!(compiled.matching(&request, 4999).is_empty());
    assert_eq!(compiled.matching(&request, 5000).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_snapshot_or_refused(bytes: Vec<u8>) {
        let _ = Compiled::from_snapshot(&bytes);
    }
}

/// A limit that a filter cannot read is asked of a limiter for each request.
#[test]
fn a_filter_reads_a_limit_that_replaces_hundreds() {
    let names = (0..300).map(|n| format!("n{n}"));
    let limits = names
        .clone()
        .map(|name| format!("{{name: {name}, rate: 1/s}}, "));
    let file = format!(
        "{{domain: shop, limits: [{}{{name: all, rate: 1/s, replaces: [{}]}}]}}",
        limits.collect::<String>(),
        names.collect::<Vec<_>>().join(", ")
    );
    let policy = limits_file::read("limits.yaml", file.as_bytes()).unwrap();
    let compiled = read(&snapshot_at(&Compiled::new(policy), 0));
    assert_eq!(compiled.opaque(), []);
    assert_eq!(compiled.matching(&Descriptor::new(), 0).len(), 1);
}
