//! Which limit of the rate limit service applies to a descriptor.

use std::fmt::Write as _;

use limits_file::{read, snapshot_at};
use policy::{Compiled, Descriptor, push_entry};
use proptest::prelude::*;

type Entry = (&'static str, &'static str);

fn compiled(limits: &str) -> Compiled {
    let file = format!("domain: ns/gateway/listener\nlimits:\n{limits}");
    Compiled::new(read("test", file.as_bytes()).unwrap_or_else(|e| panic!("{e}")))
}

fn sent(entries: &[Entry]) -> Descriptor {
    let mut text = Vec::new();
    for (key, value) in entries {
        push_entry(&mut text, key.as_bytes(), value.as_bytes());
    }
    [("descriptor".parse().unwrap(), text)]
        .into_iter()
        .collect()
}

/// The limits that apply, each with its bucket.
fn applied(compiled: &Compiled, entries: &[Entry]) -> Vec<(String, String)> {
    let descriptor = sent(entries);
    let matches = compiled.matching(&descriptor, 0);
    let named = matches.into_iter().map(|found| {
        let name = found.limit.name.to_string();
        let bucket = found.into_values().remove(0).unwrap();
        (name, String::from_utf8(bucket).unwrap())
    });
    named.collect()
}

#[test]
fn the_most_specific_entry_wins_and_the_depth_is_exact() {
    let limits = compiled(
        r#"
  - {name: marketing, descriptor: [message_type=marketing, to_number], rate: 5/d}
  - {name: phone, descriptor: [to_number], rate: 100/d}
  - {name: known, descriptor: [to_number=1], rate: 100/d}
  - {name: prefix, descriptor: ["to_number=2*"], rate: 100/d}
  - {name: narrow, descriptor: ["to_number=20*"], rate: 100/d}
  - {name: shared, descriptor: ["path=/a/*", user], share_threshold: true, rate: 1/s}
  - {name: odd, descriptor: ["a,b=c,d\\\\"], rate: 1/s}
"#,
    );
    let one = |entries: &[Entry], name: &str, bucket: &str| {
        assert_eq!(
            applied(&limits, entries),
            [(name.to_owned(), bucket.to_owned())]
        );
    };
    one(
        &[("message_type", "marketing"), ("to_number", "206")],
        "marketing",
        "message_type=marketing,to_number=206",
    );
    one(&[("to_number", "3")], "phone", "to_number=3");
    one(&[("to_number", "1")], "known", "to_number=1");
    one(&[("to_number", "201")], "prefix", "to_number=201");
    one(
        &[("path", "/a/x"), ("user", "u")],
        "shared",
        "path=/a/*,user=u",
    );
    one(&[("a,b", "c,d\\")], "odd", "a\\,b=c\\,d\\\\");
    for none in [
        &[("message_type", "marketing")][..],
        &[("message_type", "other"), ("to_number", "206")],
        &[("to_number", "206"), ("message_type", "marketing")],
        &[("to_number", "1"), ("to_number", "1")],
        &[("path", "/b/x"), ("user", "u")],
    ] {
        assert_eq!(applied(&limits, none), [], "{none:?}");
    }
}

/// A node of a tree of nested descriptors, as the other service's files have them.
#[derive(Default)]
struct Tree {
    children: Vec<(&'static str, Option<&'static str>, Tree)>,
    limit: Option<usize>,
}

impl Tree {
    fn add(&mut self, entries: &[(&'static str, Option<&'static str>)], limit: usize) {
        let Some((first, rest)) = entries.split_first() else {
            self.limit.get_or_insert(limit);
            return;
        };
        let known = self
            .children
            .iter()
            .position(|(key, value, _)| (*key, *value) == *first);
        let at = known.unwrap_or_else(|| {
            self.children.push((first.0, first.1, Self::default()));
            self.children.len() - 1
        });
        self.children[at].2.add(rest, limit);
    }

    /// Key and value; else a prefix, in the order of the file; else the key. It never goes back.
    fn find(&self, entries: &[Entry]) -> Option<usize> {
        let Some(((key, value), rest)) = entries.split_first() else {
            return self.limit;
        };
        let of_key = || self.children.iter().filter(|(k, _, _)| k == key);
        let wildcard = |pattern: &str| {
            pattern
                .strip_suffix('*')
                .is_some_and(|prefix| value.starts_with(prefix))
        };
        let exact = of_key().find(|(_, v, _)| *v == Some(*value));
        let prefix = || of_key().find(|(_, v, _)| v.is_some_and(wildcard));
        let any = || of_key().find(|(_, v, _)| v.is_none());
        exact.or_else(prefix).or_else(any)?.2.find(rest)
    }
}

const VALUES: [Option<&str>; 6] = [
    None,
    Some("x"),
    Some("y"),
    Some("x*"),
    Some("*"),
    Some("xy"),
];

fn entries() -> impl Strategy<Value = Vec<(&'static str, Option<&'static str>)>> {
    let entry = (
        prop::sample::select(vec!["a", "b"]),
        prop::sample::select(VALUES.to_vec()),
    );
    prop::collection::vec(entry, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_limits_apply_as_the_other_service_applies_them(
        limits in prop::collection::vec(entries(), 1..10),
        descriptors in prop::collection::vec(
            prop::collection::vec(
                (prop::sample::select(vec!["a", "b"]), prop::sample::select(vec!["x", "y", "xy", "z"])),
                1..4,
            ),
            1..20,
        ),
    ) {
        let mut tree = Tree::default();
        let mut file = String::new();
        for (index, entries) in limits.iter().enumerate() {
            tree.add(entries, index);
            let items = entries.iter().map(|(key, value)| match value {
                Some(value) => format!("\"{key}={value}\""),
                None => (*key).to_owned(),
            });
            let items: Vec<String> = items.collect();
            writeln!(file, "  - {{name: n{index}, descriptor: [{}], rate: 1/s}}", items.join(", ")).unwrap();
        }
        let compiled = compiled(&file);
        for entries in &descriptors {
            let expected: Vec<String> = tree.find(entries).map(|at| format!("n{at}")).into_iter().collect();
            let found = applied(&compiled, entries);
            let found: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
            prop_assert_eq!(found, expected, "{:?} of {:?}", entries, limits);
        }
    }
}

#[test]
fn a_limit_that_replaces_another_does_so_even_in_shadow() {
    let limits = compiled(
        "  - {name: a, descriptor: [x], rate: 1/s, replaces: [b], enforce: 0%}\n  \
           - {name: b, rate: 1/s}\n",
    );
    let names: Vec<String> = limits
        .matching(&sent(&[("x", "1")]), 0)
        .iter()
        .map(|found| found.limit.name.to_string())
        .collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn a_limit_that_is_replaced_itself_replaces_others_all_the_same() {
    let limits = compiled(
        "  - {name: everyone, descriptor: [x], rate: 1/s}\n  \
           - {name: staff, rate: 1/s, replaces: [everyone]}\n  \
           - {name: admins, rate: 1/s, replaces: [staff]}\n",
    );
    let sent = sent(&[("x", "1")]);
    let matches = limits.matching(&sent, 0);
    let names: Vec<&str> = { matches.iter() }
        .map(|found| found.limit.name.as_str())
        .collect();
    assert_eq!(names, ["admins"]);
}

#[test]
fn snapshots_for_filters_omit_descriptor_limits() {
    let limits = compiled(
        "  - {name: a, descriptor: [x], rate: 1/s}\n  - {name: b, per: [user], rate: 1/s}\n",
    );
    let file =
        b"domain: shop\nlimits: [{name: a, descriptor: [x], rate: 1/s}, {name: b, rate: 1/s}]";
    let policy = read("test", file).unwrap();
    let snapshot = Compiled::from_snapshot(&snapshot_at(&Compiled::new(policy), 0)).unwrap();
    assert_eq!(snapshot.limits().len(), 1);
    assert!(snapshot.opaque().is_empty());
    let keys: Vec<&str> = limits
        .needed_keys()
        .iter()
        .map(policy::Name::as_str)
        .collect();
    assert_eq!(keys, ["user"]);
}
