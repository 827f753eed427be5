use std::fmt::Write;

use proptest::{collection::vec, option::of, prelude::*, sample::select};

use documents::Node;
use limits_file::{limit_from_node, read};
use policy::{Algorithm, Compiled, Descriptor, Name, Policy};

fn compile(limits: &str) -> Compiled {
    let text = format!("domain: test\nlimits:\n{limits}");
    let policy = read("test.yaml", text.as_bytes());
    Compiled::new(policy.unwrap_or_else(|problems| panic!("{problems}")))
}

fn request(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| (key.parse().unwrap(), value.as_bytes().to_vec());
    entries.iter().map(entry).collect()
}

fn names(compiled: &Compiled, entries: &[(&str, &str)]) -> Vec<String> {
    let descriptor = request(entries);
    let matches = compiled.matching(&descriptor, 0);
    matches.iter().map(|m| m.limit.name.to_string()).collect()
}

#[test]
fn every_limit_whose_conditions_hold_applies_in_the_order_of_the_policy() {
    let compiled = compile(
        r#"
- {name: all, rate: 1/s}
- {name: api, match: {path: "/api/**"}, rate: 1/s}
- {name: writes, match: {path: "/api/**", method: [POST, PUT]}, rate: 1/s}
- {name: inside, match: {path: ["**", "!/api/**"]}, rate: 1/s}
- {name: not-bot, match: {agent: "!bot"}, rate: 1/s}
- {name: exact, match: {path: ["/api/v1", "/api/**"]}, rate: 1/s}
"#,
    );
    assert_eq!(
        names(&compiled, &[("path", "/api/v1"), ("method", "GET")]),
        ["all", "api", "not-bot", "exact"]
    );
    assert_eq!(
        names(
            &compiled,
            &[("path", "/api"), ("method", "PUT"), ("agent", "bot")]
        ),
        ["all", "api", "writes", "exact"]
    );
    assert_eq!(
        names(&compiled, &[("path", "/x")]),
        ["all", "inside", "not-bot"]
    );
    assert_eq!(names(&compiled, &[]), ["all", "not-bot"]);
}

#[test]
fn patterns_test_the_whole_address_and_buckets_are_of_its_prefix() {
    let compiled = compile(
        r#"
- {name: one, match: {remote_address: "2001:DB8:1:2:0::9"}, rate: 1/s}
- {name: eight, match: {remote_address: "cidr:2001:db8:1:2::8/125"}, per: [remote_address], rate: 1/s}
- {name: others, match: {remote_address: "!2001:db8:1:2::9"}, per: [remote_address], rate: 1/s}
- {name: v4, match: {remote_address: "::ffff:10.1.2.3"}, rate: 1/s}
- {name: v4-net, match: {remote_address: "cidr:::ffff:10.0.0.0/104"}, per: [remote_address], rate: 1/s}
"#,
    );
    let of = |cut: &str, whole: Option<&str>| {
        let whole = whole.map(|whole| ("remote_address.whole", whole));
        let entries: Vec<_> = [("remote_address", cut)].into_iter().chain(whole).collect();
        let descriptor = request(&entries);
        let matches = compiled.matching(&descriptor, 0);
        let told = matches.iter().map(|found| {
            let values = found.values.iter().flatten();
            let values: Vec<_> = values.map(|v| String::from_utf8_lossy(v)).collect();
            format!("{} {}", found.limit.name, values.join(","))
        });
        told.collect::<Vec<_>>()
    };
    let cut = "2001:db8:1:2::";
    let (eight, others) = (&*format!("eight {cut}"), &*format!("others {cut}"));
    assert_eq!(of(cut, Some("2001:db8:1:2::9")), ["one ", eight]);
    assert_eq!(of(cut, Some("2001:db8:1:2::a")), [eight, others]);
    assert_eq!(of(cut, Some("2001:db8:1:2::10")), [others]);
    // Programs have no prefix: their address is whole.
    let (eight, v4) = ("eight 2001:db8:1:2::9", "v4-net 10.1.2.3");
    assert_eq!(of("2001:DB8:1:2::9", None), ["one ", eight]);
    let others = "others 10.1.2.3";
    for spelling in ["10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203"] {
        assert_eq!(of(spelling, None), [others, "v4 ", v4], "{spelling}");
    }
    let keys: Vec<&str> = compiled.needed_keys().iter().map(Name::as_str).collect();
    assert_eq!(keys, ["remote_address", "remote_address.whole"]);
}

#[test]
fn a_paused_limit_is_ignored_until_its_pause_ends() {
    let compiled = compile(
        "
- {name: first, rate: 1/s, replaces: [second], paused: {until: 1970-01-01T00:00:05Z}}
- {name: second, rate: 1/s}
- {name: third, rate: 1/s, paused: true}
- {name: fourth, rate: 1/s, paused: false}
",
    );
    let at = |now_ms| {
        let descriptor = request(&[]);
        let matches = compiled.matching(&descriptor, now_ms);
        let names: Vec<_> = matches.iter().map(|m| m.limit.name.to_string()).collect();
        names
    };
    // What is paused suppresses nothing.
    assert_eq!(at(4999), ["second", "fourth"]);
    assert_eq!(at(5000), ["first", "fourth"]);
    assert!(compiled.pause_of(0, 4999).is_some());
    assert!(compiled.pause_of(0, 5000).is_none());
}

#[test]
fn a_paused_domain_has_no_limits_until_its_pause_ends() {
    let text = "
domain: test
paused: {until: 1970-01-01T00:00:05Z}
limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s, paused: true}]
";
    let policy = read("test.yaml", text.as_bytes()).unwrap();
    let compiled = Compiled::new(policy);
    let descriptor = request(&[]);
    assert!(compiled.matching(&descriptor, 4999).is_empty());
    assert_eq!(compiled.matching(&descriptor, 5000).len(), 1);
    assert_eq!(
        compiled.pause_of(0, 0).and_then(|pause| pause.until_ms),
        Some(5000)
    );
}

#[test]
fn the_bucket_is_the_values_of_per() {
    let compiled = compile("- {name: a, per: [user, path], rate: 1/s}");
    let keys: Vec<&str> = compiled.needed_keys().iter().map(Name::as_str).collect();
    assert_eq!(keys, ["path", "user"]);
    let descriptor = request(&[("path", "/x"), ("user", "")]);
    let matches = compiled.matching(&descriptor, 0);
    assert_eq!(matches[0].values, [Some(&b""[..]), Some(b"/x")]);
}

#[test]
fn a_request_without_an_entry_of_per_shares_skips_or_is_denied() {
    let compiled = compile(
        "
- {name: share, per: user, rate: 1/s}
- {name: skip, per: user, if_missing: skip, rate: 1/s}
- {name: deny, per: user, if_missing: deny, rate: 1/s}
",
    );
    let descriptor = request(&[]);
    let matches = compiled.matching(&descriptor, 0);
    let found: Vec<_> = matches
        .iter()
        .map(|m| {
            (
                m.limit.name.as_str(),
                m.values.as_slice(),
                m.missing.map(Name::as_str),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("share", &[None][..], None),
            ("deny", &[None][..], Some("user"))
        ]
    );
}

#[test]
fn a_limit_suppresses_what_it_replaces_unless_it_is_only_reported() {
    let compiled = compile(
        r#"
- {name: broad, rate: 1/s}
- {name: middle, match: {path: "/a/**"}, replaces: [broad], rate: 1/s}
- {name: narrow, match: {path: "/a/b"}, replaces: [middle], rate: 1/s}
- {name: shadow, match: {path: "/s"}, replaces: [broad], enforce: 0%, rate: 1/s}
"#,
    );
    assert_eq!(names(&compiled, &[("path", "/x")]), ["broad"]);
    assert_eq!(names(&compiled, &[("path", "/a/x")]), ["middle"]);
    assert_eq!(names(&compiled, &[("path", "/a/b")]), ["narrow"]);
    assert_eq!(names(&compiled, &[("path", "/s")]), ["broad", "shadow"]);
}

/// A header that is sent twice, or a value too long to search, gets nobody a looser limit.
#[test]
fn a_limit_that_may_not_be_meant_suppresses_nothing() {
    let mut limits = r#"
- {name: everyone, rate: 10/s}
- {name: staff, match: {group: staff}, rate: 100/s, replaces: [everyone]}
- {name: paid, match: {plan: "!free"}, rate: 100/s, replaces: [everyone]}
- {name: static, match: {path: "re:/static/.*"}, rate: 100/s, replaces: [everyone]}
"#
    .to_owned();
    let long = format!("/{}", "x".repeat(9000));
    // Without an index, and with one.
    for _ in 0..2 {
        let compiled = compile(&limits);
        let of = |group: &str, plan: &str, path: &str| {
            let entries = [("group", group), ("plan", plan), ("path", path)];
            let entries: Vec<_> = entries
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .collect();
            names(&compiled, &entries)
        };
        let doubtful = "(several)";
        assert_eq!(of("staff", "free", ""), ["staff"]);
        assert_eq!(of(doubtful, "free", ""), ["everyone", "staff"]);
        assert_eq!(of("", "gold", ""), ["paid"]);
        assert_eq!(of("", doubtful, ""), ["everyone", "paid"]);
        assert_eq!(of("", "free", "/static/a"), ["static"]);
        assert_eq!(of("", "free", &long), ["everyone", "static"]);
        // Another one that is certain.
        assert_eq!(of("staff", "free", &long), ["staff", "static"]);
        // That it is absent is certain.
        assert_eq!(of("", "", ""), ["paid"]);
        for n in 0..10 {
            writeln!(
                limits,
                "- {{name: other-{n}, match: {{user: u{n}}}, rate: 1/s}}"
            )
            .unwrap();
        }
    }
}

#[test]
fn overrides_are_found_by_bucket_and_end_in_time() {
    let compiled = compile(
        "
- name: a
  per: [user]
  rate: 10/s
  burst: 20
  overrides:
    - {values: {user: alice}, rate: 100/s, until: 2026-12-01T00:00Z}
    - {values: {user: probe}, unlimited: true}
    - {values: {user: ~}, burst: 1}
    - {values: {user: {base64: /w==}}, burst: 0}
",
    );
    let quota = |value: Option<&[u8]>, now_ms| compiled.quota_for(0, &[value], now_ms);
    let numbers = |quota: Option<Algorithm>| {
        let quota = quota.expect("it is limited");
        (quota.parameters().rate.units, quota.limit())
    };
    let end = 1_796_083_200_000;
    assert_eq!(numbers(quota(Some(b"bob"), 0)), (10, 20));
    assert_eq!(numbers(quota(Some(b"alice"), end - 1)), (100, 20));
    assert_eq!(numbers(quota(Some(b"alice"), end)), (10, 20));
    assert_eq!(quota(Some(b"probe"), 0), None);
    assert_eq!(numbers(quota(None, 0)), (10, 1));
    assert_eq!(numbers(quota(Some(b""), 0)), (10, 20));
    assert_eq!(numbers(quota(Some(b"\xff"), 0)), (10, 0));
    assert_eq!(compiled.quota_for::<&[u8]>(1, &[], 0), None);
}

#[test]
fn a_share_of_the_buckets_is_enforced() {
    let compiled = compile("- {name: a, per: [user], rate: 1/s, enforce: 30%}");
    let enforced = (0..10_000)
        .filter(|user| compiled.limits()[0].enforces(&[Some(user.to_string())]))
        .count();
    assert!((2_800..3_200).contains(&enforced), "{enforced}");
}

#[test]
fn case_is_ignored_by_patterns_that_say_so() {
    let mut limits = "- {name: sign-in, match: {path: \"i:/Login/**\"}, rate: 1/s}\n".to_owned();
    // Enough for an index.
    for n in 0..10 {
        writeln!(
            limits,
            "- {{name: other-{n}, match: {{path: /other/{n}}}, rate: 1/s}}"
        )
        .unwrap();
    }
    let compiled = compile(&limits);
    for path in [
        "/login",
        "/LOGIN",
        "/LogIn/now",
        "/Login;x",
        "//lOGIN/",
        "/%4cogin%20",
    ] {
        assert_eq!(names(&compiled, &[("path", path)]), ["sign-in"], "{path}");
    }
    assert_eq!(names(&compiled, &[("path", "/logins")]).len(), 0);
}

#[test]
fn an_entry_with_several_values_matches_every_pattern() {
    let mut limits = String::new();
    // More than a word of them.
    for n in 0..100 {
        writeln!(
            limits,
            "- {{name: u{n}, match: {{user: user-{n}}}, rate: 1/s}}"
        )
        .unwrap();
    }
    limits += "- {name: not-staff, match: {user: \"!staff-*\"}, per: [user], rate: 1/s}\n";
    limits += "- {name: elsewhere, match: {user: \"**\", path: /x}, rate: 1/s}\n";
    let compiled = compile(&limits);
    assert_eq!(names(&compiled, &[("user", "(several)")]).len(), 101);
    assert_eq!(names(&compiled, &[("user", "staff-1")]).len(), 0);
}

#[test]
fn a_value_too_long_for_expressions_is_found_by_all_of_them() {
    let limit = |n| format!("- {{name: l{n}, match: {{path: 're:/l{n}/.*'}}, rate: 1/s}}\n");
    let compiled = compile(&(0..10).map(limit).collect::<Vec<_>>().concat());
    assert_eq!(names(&compiled, &[("path", "/l3/x")]), ["l3"]);
    let long = format!("/{}", "x".repeat(9000));
    assert_eq!(names(&compiled, &[("path", &long)]).len(), 10);
}

fn any_limits() -> impl Strategy<Value = Vec<Vec<(usize, Vec<&'static str>)>>> {
    let patterns = [
        "",
        "/",
        "/a",
        "/b",
        "/a/b",
        "/a/**",
        "/a/b/**",
        "/**",
        "**",
        "*",
        "/*",
        "/a*",
        "/*/b",
        "**/b",
        "a",
        "!/a",
        "!/a/**",
        "!**",
        "exact:/a",
        "i:/A",
        "i:/a/**",
        "i:/A/*",
        "!i:/B",
        "re:/[ab]",
        "re:/a/b+",
        "re:^/a/[bc]/c?",
        "re:/a/b|/b",
        "re:(?i)/a/b",
        "/**/b",
        "/a/**/c",
        "**/b/c",
        "i:**/B",
        "*.b",
        "a*.b/c",
        "/**/a.b",
        "/*b",
        "cidr:10.0.0.0/8",
        "/**/bcd/**",
        "*bcd*",
        "i:*A/BcD*",
        "/a/bcd*",
        "re:/?x*bcd.*",
        "re:(?i).*/abcd[0-9]?/.*",
        "re:.*(/abc|bcd)+/é?",
        "re:/a/.*abcd",
    ];
    let list = vec(select(patterns.to_vec()), 1..4);
    vec(vec((0..3_usize, list), 0..3), 1..70)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        limits in any_limits(),
        values in vec(
            of(select(vec![
                "", "/", "/a", "/b", "/a/", "/a/b", "/a/b/c", "/ab", "a", "10.1.1.1", "/A",
                "/A/b", "/B", "/B/A/B", "b", "x.b", "a.b/c", "/x/a.b", "/a/x.b/c", "/ab.b", "/a/bb", "/x/b/c",
                "(several)", "/bcd/a", "/a/bcd", "abcd", "/A/BCD", "/x/ABCD1/b", "/abcd/\u{e9}", "/a/xabcd",
            ])),
            3,
        ),
    ) {
        let keys = ["path", "user", "method"];
        let mut policy = Policy::empty("test".parse().unwrap());
        for (n, conditions) in limits.into_iter().enumerate() {
            let mut matched = Node::map::<String>([]);
            for (key, patterns) in conditions {
                matched.set(keys[key], Node::list(patterns.into_iter().map(Node::text)));
            }
            let limit = Node::map([
                ("name", Node::text(format!("l{n}"))),
                ("rate", Node::text("1/s")),
                ("match", matched),
            ]);
            policy.limits.push(limit_from_node(&limit).unwrap());
        }
        let entries = keys.iter().zip(values);
        let entries: Vec<_> = entries.filter_map(|(key, value)| Some((*key, value?))).collect();
        let descriptor = request(&entries);
        let scanned: Vec<String> = policy
            .limits
            .iter()
            .filter(|limit| {
                let mut matchers = limit.matchers.iter();
                matchers.all(|m| m.holds(descriptor.get(m.key.as_str())))
            })
            .map(|limit| limit.name.to_string())
            .collect();
        prop_assert_eq!(names(&Compiled::new(policy.clone()), &entries), scanned);
    }
}
