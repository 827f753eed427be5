use std::collections::BTreeSet;

use algorithms::{Algorithm, Kind, Parameters};
use policy::BUILT_IN;
use proptest::prelude::*;

use super::*;
use crate::{read, read_with_warnings};

fn warned(limits: &str, around: &Surroundings<'_>) -> Vec<String> {
    let file = format!("domain: shop\nlimits:\n{limits}");
    let (_, warnings) = read_with_warnings("test", file.as_bytes(), |_| *around).unwrap();
    let list = warnings.iter().flat_map(Problems::iter);
    list.map(ToString::to_string).collect()
}

/// The warnings about a limit with these fields, in surroundings of which nothing is known.
fn of(fields: &str) -> String {
    let limit = format!("  - {{name: a, {fields}}}\n");
    let warned = warned(&limit, &Surroundings::default()).join("; ");
    warned.replace("limit `a`: ", "")
}

/// Each line of a table has the fields of a limit, and behind `=>` what the warning about it says, piece by piece;
/// nothing, if there is none.
fn assert_warned(table: &str, of: impl Fn(&str) -> String) {
    for line in table.trim().lines() {
        let (fields, expected) = line.split_once("=>").unwrap_or((line, ""));
        let said = of(fields.trim());
        if expected.trim().is_empty() {
            assert_eq!(said, "", "{line}");
        }
        for piece in expected.split('&') {
            assert!(said.contains(piece.trim()), "{line}: {said}");
        }
    }
}

/// The warning about one pattern of an entry, as `path /api/**`; empty if there is none.
fn of_pattern(pattern: &str) -> String {
    let (key, pattern) = pattern.split_once(' ').unwrap();
    let said = of(&format!("match: {{{key}: \"{pattern}\"}}, rate: 1/s"));
    said.replace("match.", "")
}

/// 1 in 4 ms where 3 in 10 would refill; 3 in 2 ms where 19 in 10 would; a cost of 4 in 3 ms.
#[test]
fn a_burst_that_the_rate_outruns_gets_a_larger_one() {
    assert_eq!(
        of("rate: 2000/s, burst: 1"),
        "burst: time counts in milliseconds, so requests that come evenly get about 50 % of the rate \
         from a bucket that holds 1 (a `burst` of 3 reaches the rate)"
    );
    let table = "
        rate: 300/s, burst: 1 => about 83 % & of 2 reaches
        rate: 1900/s, burst: 2 => about 78 % & of 3 reaches
        algorithm: gcra, rate: 1500/s, burst: 4, cost: 4 => about 88 % & of 6 reaches
        algorithm: leaky_bucket, over_limit: queue, rate: 5000/s, burst: 2 => about 40 % & of 6 reaches
        per: user, rate: 10/s, overrides: [{values: {user: x}, rate: 4000/s, burst: 1}] => about 25 % & of 5 reaches
        rate: 1000/s, burst: 1
        rate: 10/s, burst: 1
        rate: 30/s, burst: 1
        rate: 2000/s, burst: 3
        rate: 2000/s
        rate: 1000000/s
        rate: 2000/s, burst: 0
        rate: 2000/s, burst: 1, over_limit: queue
        algorithm: fixed_window, rate: 2000/s";
    assert_warned(table, of);
}

/// By the algorithm itself, under more requests than the rate admits.
#[test]
fn a_burst_reaches_what_the_warning_says() {
    let cases = [
        (2000, 1, 1),
        (300, 1, 1),
        (1900, 2, 1),
        (1500, 4, 4),
        (700, 1, 1),
    ];
    for (rate, burst, cost) in cases {
        let parameters = Parameters {
            burst: Some(burst),
            ..Parameters::new(Kind::TokenBucket, rate, 1000)
        };
        let algorithm = Algorithm::new(&parameters).unwrap();
        let admitted = |algorithm: &Algorithm| {
            let (mut state, mut admitted) = (None, 0);
            for now_ms in 1..=10_000 {
                loop {
                    let outcome = algorithm.evaluate(state.as_ref(), now_ms, cost).charge();
                    if outcome.verdict.charged == 0 {
                        break;
                    }
                    admitted += outcome.verdict.charged;
                    state = outcome.write;
                }
            }
            admitted
        };
        let warned = of(&format!("rate: {rate}/s, burst: {burst}, cost: {cost}"));
        let number = |after: &str| -> u64 {
            let text = warned.split_once(after).unwrap().1;
            text.split_whitespace().next().unwrap().parse().unwrap()
        };
        let percent = admitted(&algorithm) * 100 / (rate * 10);
        let close = percent.abs_diff(number("about ")) <= 1;
        assert!(close, "{percent}: {warned}");
        let enough = Parameters {
            burst: Some(number("a `burst` of ")),
            ..parameters
        };
        let enough = Algorithm::new(&enough).unwrap();
        assert!(admitted(&enough) >= rate * 10, "{warned}");
    }
}

#[test]
fn a_pattern_that_matches_nothing_gets_a_suggestion() {
    let table = r"
        method get => GET
        method !p* => !P*
        path api/** => /api/**
        path /api?x=1 => /api
        path /v?/orders => /v*/orders
        path ^/api/.*$ => re:/api/.*
        user !^bot-[0-9]+ => !re:bot-[0-9]+
        path * => **
        path *.php => **.php
        path exact:login => exact:/login
        path https://a.example/x => /x
        path i:login => i:/login
        path /api/ => /api
        path !/health/ => !/health
        path /a%20b => /a b
        path /a%2ab/*/ => /a\*b/*
        path exact:/a%2ab => exact:/a*b
        path /a;v=1/** => /a/**
        path //api//** => /api/**
        path /./api/x/../* => /api/*
        path /api/*. => /api/*
        path /50% => /50%25
        path **/admin/ => /**/admin
        host Shop.example => shop.example
        host shop.example:8080 => shop.example
        host https://shop.example/ => shop.example
        host [::1]:80 => [::1]
        remote_address 10.0.0.0/8 => cidr:10.0.0.0/8
        remote_address !10.0.0.0/8 => !cidr:10.0.0.0/8";
    for line in table.trim().lines() {
        let (pattern, meant) = line.trim().split_once(" => ").unwrap();
        if pattern.contains(" i:") && Pattern::parse("i:A").is_ok_and(|p| p.exact() == Some(b"i:A"))
        {
            continue; // A text like any other.
        }
        let said = of_pattern(pattern);
        let hint = format!("(did you mean `{meant}`?)");
        assert!(said.ends_with(&hint), "{pattern}: {said}");
        let excludes = pattern.contains(" !");
        let effect = if excludes { "excludes" } else { "matches" };
        assert!(said.contains(&format!("{effect} no request")), "{said}");
    }
    assert!(of_pattern("remote_address localhost").contains("it is no address"));
}

#[test]
fn patterns_that_can_match_are_left_alone() {
    let cases = [
        ("method", "GET P* !POST re:get|post exact:M-SEARCH"),
        (
            "path",
            r"/api/** ** **/x */x / \\* \\*** exact:* re:api !/x /a*b /* /** //** /**/ */ **/*.php",
        ),
        (
            "path",
            "/.well-known/* /..* /50%25 /%3F /%* /a%2* /%3** /café/**/x exact:/a*b",
        ),
        ("host", "shop.example *.example [::1] ::1 re:A:1 10.0.0.1"),
        (
            "remote_address",
            "10.0.0.1 10.0.* cidr:10.0.0.0/8 2001:db8::1 2001:DB8::1 ::ffff:10.0.0.1",
        ),
        ("remote_address", "cidr:2001:db8::1/128 re:x"),
        ("route", "API a?b x:1"),
        ("user", "Alice a/b get"),
    ];
    for (key, patterns) in cases {
        for pattern in patterns.split(' ') {
            assert_eq!(of_pattern(&format!("{key} {pattern}")), "", "{pattern}");
        }
    }
    assert_eq!(of_pattern("path /a b"), "");
}

proptest! {
    #[test]
    fn a_path_pattern_that_finds_a_path_is_left_alone(
        text in "(i:|exact:)?/?([/a.;% *2356F]|\\*\\*|%2[05f]|%3F|\\\\[*\\\\]){0,8}",
        target in "/([/a.;% *2356F]|%2[05f]){0,8}",
    ) {
        if let Ok(pattern) = Pattern::parse(&text)
            && pattern.finds(&normalize::path(target.as_bytes()))
        {
            prop_assert_eq!(never("path", &pattern), None, "{}", target);
        }
    }
}

#[test]
fn a_warning_points_at_its_line_and_column() {
    let text = "domain: shop\nlimits:\n  - name: a\n    match:\n      path: [/x, \"api/**\"]\n    rate: 1/s\n";
    let around = Surroundings::default();
    let (policy, warnings) =
        read_with_warnings("limits.yaml", text.as_bytes(), |_| around).unwrap();
    assert_eq!(policy.limits.len(), 1);
    insta::assert_snapshot!(warnings.unwrap(), @r#"
    warning: limit `a`: match.path[1]: `api/**` matches no request: paths start with a slash
     --> limits.yaml:5:18
      |
    5 |       path: [/x, "api/**"]
      |                  ^^^^^^^^
      = did you mean `/api/**`?
    "#);
}

#[test]
fn a_penalty_shorter_than_its_window_gets_a_warning() {
    let with = |rest: &str| {
        of(&format!(
            "{rest}, penalty: {{after: 10, within: 1m, for: 15m}}"
        ))
    };
    let said = "penalty.for: a penalty of 15m is shorter than the window of 1h, and a full window denies its rest \
                anyway (most penalties would end before their window: use a longer `for`, or another algorithm)";
    assert_eq!(with("algorithm: fixed_window, rate: 5/1h"), said);
    let table = "
        rate: 5/day => penalty.for
        algorithm: fixed_window, rate: 5/15m
        algorithm: sliding_window, rate: 5/1h
        rate: 5/1h";
    assert_warned(table, with);
}

/// A burst of 0 denies everything, and is meant to.
#[test]
fn a_request_that_costs_more_than_there_is_never_passes() {
    assert_eq!(
        of("rate: 10/s, burst: 5, cost: 6"),
        "cost: a request costs 6 and a bucket holds 5: every request is over the limit (give it a `burst` of at \
         least its `cost`)"
    );
    let table = "
        rate: 10/s, cost: 11, algorithm: fixed_window => cost:
        rate: 10/s, burst: 5, cost: 5
        rate: 10/s, burst: 0
        per: user, rate: 9/s, cost: 4, overrides: [{values: {user: x}, burst: 3}] => overrides[0]: a request costs 4";
    assert_warned(table, of);
}

#[test]
fn ended_pauses_and_overrides_get_a_warning_if_the_time_is_known() {
    let limit = "  - name: a\n    per: user\n    rate: 9/s\n    paused: {until: 2020-01-01T00:00Z}\n\
                 \x20   overrides: [{values: {user: x}, rate: 3/s, until: 2020-01-01T00:00Z}]\n";
    assert_eq!(warned(limit, &Surroundings::default()), [""; 0]);
    let now = Surroundings {
        now_ms: Some(1_700_000_000_000),
        ..Surroundings::default()
    };
    assert_eq!(
        warned(limit, &now),
        [
            "limit `a`: paused: the pause ended at 2020-01-01T00:00:00Z: the limit is in force (remove it)",
            "limit `a`: overrides[0].until: the override ended at 2020-01-01T00:00:00Z: it changes nothing",
        ]
    );
}

/// Filters that supply these entries.
fn supplying<'a>(entries: &'a [Name], alterations: &'a Alterations) -> Supply<'a> {
    Supply {
        entries,
        domains: &[],
        alterations,
        source: None,
    }
}

fn with(supply: Supply<'_>) -> Surroundings<'_> {
    Surroundings {
        supply: Some(supply),
        ..Surroundings::default()
    }
}

fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Name> {
    let names = names.into_iter().map(|name| name.parse().unwrap());
    names.collect()
}

#[test]
fn entries_that_nothing_supplies_get_a_warning() {
    let entries = names(BUILT_IN.iter().copied().chain(["user", "tenant"]));
    let (shop, shpo, alterations) = (names(["shop"]), names(["shpo"]), Alterations::default());
    let supply = Supply {
        domains: &shop,
        source: Some("envoy.yaml"),
        ..supplying(&entries, &alterations)
    };
    let around = with(supply);
    let limits =
        "  - {name: a, per: [user, usr], match: {tennant: x, session: \"!y\"}, rate: 1/s}\n";
    assert_eq!(
        warned(limits, &around),
        [
            "limit `a`: per[1]: envoy.yaml supplies no `usr`, so every request counts as one without it (did you mean `user`?)",
            "limit `a`: match.tennant: envoy.yaml supplies no `tennant`, so the limit matches no request (did you mean `tenant`?)",
            "limit `a`: match.session: envoy.yaml supplies no `session`, so this excludes no request (beside the built-in entries there are: user, tenant)",
        ]
    );
    let around = with(Supply {
        domains: &shpo,
        ..supply
    });
    let other = "  - {name: a, per: user, rate: 1/s}\n";
    assert_eq!(
        warned(other, &around),
        ["domain: envoy.yaml does not ask for domain `shop` (did you mean `shpo`?)"]
    );
}

#[test]
fn overrides_of_what_is_no_bucket_get_a_warning() {
    let alterations = Alterations {
        prefixes: BTreeSet::from([[24, 56]]),
        hashed: BTreeSet::from(["api_key".parse().unwrap()]),
    };
    let entries = names(BUILT_IN.iter().copied().chain(["user", "api_key"]));
    let (around, supply) = (Surroundings::default(), supplying(&entries, &alterations));
    let of = |around: &Surroundings<'_>, line: &str| {
        let (key, value) = line.split_once(' ').unwrap();
        let limits = format!(
            "  - {{name: a, per: [{key}], rate: 1/s, overrides: [{{values: {{{key}: \"{value}\"}}, rate: 9/s}}]}}\n"
        );
        let said = warned(&limits, around).pop().unwrap_or_default();
        let place = format!("limit `a`: overrides[0].values.{key}: `");
        assert!(said.is_empty() || said.starts_with(&place), "{said}");
        said
    };
    let unknown = "
        user team-* => a limit of its own with `match` and `replaces`
        path /api/** => a limit of its own with `match` and `replaces`
        user re:a|b => a limit of its own with `match` and `replaces`
        remote_address 10.0.0.0/8 => {remote_address: \"cidr:10.0.0.0/8\"}
        remote_address 2001:db8::/32 => {remote_address: \"cidr:2001:db8::/32\"}
        remote_address 2001:db8::/64 => did you mean `2001:db8::`, the bucket of the whole /64?
        remote_address 2001:db8::9 => did you mean `2001:db8::`, the bucket of the whole /64?
        remote_address localhost => it is no address
        user alice
        remote_address 192.0.2.7
        remote_address ::ffff:192.0.2.7
        remote_address 2001:db8::
        api_key abc";
    assert_warned(unknown, |line| of(&around, line));
    let known = "
        remote_address 2001:db8:0:1ff:: => did you mean `2001:db8:0:100::`, the bucket of the whole /56?
        remote_address 192.0.2.7 => did you mean `192.0.2.0`, the bucket of the whole /24?
        api_key abc => did you mean `ba7816bf8f01cfea414140de5dae2223`?
        remote_address 192.0.2.0
        api_key ba7816bf8f01cfea414140de5dae2223
        api_key (several)";
    assert_warned(known, |line| of(&with(supply), line));
}

#[test]
fn a_cost_from_bodies_that_no_filter_reads_gets_a_warning() {
    let limits = "  - {name: a, rate: 10/s, cost: {from: {response_json: /a}, \
         reserve: {from: {request_json: /b}, default: 1}, max: 9}}\n";
    let alterations = Alterations::default();
    let by = |entries: &[Name], source| {
        let supply = supplying(entries, &alterations);
        warned(limits, &with(Supply { source, ..supply })).join("; ")
    };
    let none = by(&[], Some("envoy.yaml"));
    let place = "limit `a`: cost.reserve.from: envoy.yaml has no `request_body`";
    assert!(none.starts_with(place), "{none}");
    assert!(by(&[], None).contains("no live proxy reads bodies"));
    assert_eq!(by(&names([REQUEST_BODY]), None), "");
    let some = by(
        &names([REQUEST_BODY, REQUEST_BODY_PASSES]),
        Some("envoy.yaml"),
    );
    assert!(
        some.contains("in envoy.yaml lacks `allow_on_headers_stop_iteration: true`"),
        "{some}"
    );
    assert!(warned(limits, &Surroundings::default()).is_empty());
}

#[test]
fn a_cost_that_no_bucket_holds_gets_a_warning() {
    let limit = "  - {name: a, per: [user], rate: 10/s, cost: {from: {request_header: x, min: 11, max: 12}, \
         table: [{match: {path: /a}, units: 10}, {match: {path: /b}, units: 50}], default: 1}, \
         overrides: [{values: {user: u}, rate: 60/s}, {values: {user: v}, rate: 5/s, burst: 0}, \
         {values: {user: w}, rate: 9/s}]}\n";
    let hint = "raise `burst` or the `rate`, or lower what it costs";
    assert_eq!(
        warned(limit, &Surroundings::default()),
        [
            format!("limit `a`: cost.from[0].min: such a request costs 11 and a bucket holds 10: each is over the limit ({hint})"),
            format!("limit `a`: cost.table[1].units: such a request costs 50 and a bucket holds 10: each is over the limit ({hint})"),
            "limit `a`: overrides[2]: such a request costs 10 and a bucket holds 9: each is over the limit \
             (`cost.table[0].units` is 10)".to_owned(),
        ]
    );
    // A rate of 0 denies everything, as it should; a reserve is cut to what a bucket holds.
    let table = "
        rate: 0/s, algorithm: fixed_window, cost: {table: [{match: {path: /b}, units: 5}], default: 1}
        rate: 10/s, cost: {from: {response_json: /a}, reserve: {default: 50}, max: 90}";
    assert_warned(table, of);
}

#[test]
fn entries_that_no_live_proxy_supplies_are_named() {
    let (entries, alterations) = (names(["user"]), Alterations::default());
    let around = with(supplying(&entries, &alterations));
    let said = "limit `a`: per[0]: no live proxy supplies `usr`, so every request counts as one without it (did you mean `user`?)";
    assert_eq!(
        warned("  - {name: a, per: usr, rate: 1/s}\n", &around),
        [said]
    );
}

#[test]
fn a_misspelled_built_in_entry_always_gets_a_warning() {
    let of = |key: &str| of(&format!("per: {key}, rate: 1/s"));
    for typo in "mehtod remote_adress hosts paths worklaod rout3".split(' ') {
        assert_ne!(of(typo), "", "{typo}");
    }
    for own in "user role post tenant api_key session path house".split(' ') {
        assert_eq!(of(own), "", "{own}");
    }
}

#[test]
fn a_second_limit_for_the_same_descriptor_gets_a_warning() {
    let limits = "  - {name: a, descriptor: [x=1, y], rate: 1/s}\n  \
                  - {name: b, descriptor: [x=1, y], rate: 2/s}\n";
    assert_eq!(
        warned(limits, &Surroundings::default()),
        ["limit `b`: descriptor: `a` has the same, so this limit never applies"]
    );
}

#[test]
fn a_domain_that_no_filter_can_request_gets_a_warning() {
    let warned = |limits: &str| {
        let file = format!("domain: My Shop\nlimits: [{limits}]\n");
        let read = read_with_warnings("test", file.as_bytes(), |_| Surroundings::default());
        let (_, warnings) = read.unwrap();
        warnings.map(|found| found.iter().next().unwrap().to_string())
    };
    let message = warned("{name: a, rate: 1/s}").unwrap();
    assert!(
        message.contains("only Envoy's rate limit service can use"),
        "{message}"
    );
    assert!(message.contains("did you mean `my-shop`?"), "{message}");
    assert_eq!(warned("{name: a, descriptor: [x], rate: 1/s}"), None);
}

#[test]
fn a_slow_pattern_gets_a_warning() {
    assert_eq!(
        of_pattern("path re:(/?[0-9a-z-]{1,64})*"),
        "path[0]: `re:(/?[0-9a-z-]{1,64})*` takes long, so it searches values of up to 203 bytes; a longer one counts \
         as what makes the limit apply (repeat less inside of what is repeated, or use a glob)"
    );
    let table = "
        path re:/v[0-9]+/users/[^/]+/(orders|carts)(/.*)?
        path re:/[0-9a-z/-]+";
    assert_warned(table, of_pattern);
}

#[test]
fn a_cost_without_a_most_gets_a_warning() {
    let of = |cost: &str| of(&format!("rate: 10/s, cost: {{{cost}}}"));
    let said = "cost: without `max`, a response whose body cannot be read (it is compressed, for instance) costs what a \
                whole bucket holds (set `max` to the most that a response can cost)";
    assert_eq!(of("from: {response_json: /a}, reserve: 5"), said);
    let table = "
        from: {response_header: a}, reserve: 5, if_absent: max => without `max`
        from: {response_json: /a}, reserve: 5, max: 9
        from: {response_json: /a}, reserve: 5, if_absent: reserved
        from: {response_json: /a}, reserve: 5, if_absent: 7
        from: {status: 401}
        from: {status: 401}, if_absent: max";
    assert_warned(table, of);
}

#[test]
fn what_can_never_work_is_warned_about() {
    let of = |limit: &str| {
        let text = format!("domain: shop\nlimits:\n  - {{name: a, rate: 1000/m, {limit}}}\n");
        let policy = read("", text.as_bytes()).unwrap();
        let warnings = warnings(&policy, &Surroundings::default());
        let shown = warnings
            .into_iter()
            .map(|one| format!("{}: {}", one.path, one.message));
        shown.collect::<Vec<_>>().join("\n")
    };
    let table = r#"
        match: {path: ["/a", "!/a"]} => limits[0].match.path: `!/a` excludes what is beside it: this matches no request
        match: {path: ["/a/b", "/a/c", "!/a/**"]} => limits[0].match.path: `!/a/**` excludes what is beside it
        match: {path: ["/a/**", "!/a/**"]} => limits[0].match.path: `!/a/**` excludes what is beside it
        match: {path: ["/a", "/b", "!/a"]}
        match: {path: ["/a/**", "!/a/b"]}
        match: {path: ["!/a"]}
        match: {path: /a}"#;
    assert_warned(table, of);
    let cost = |max| format!("cost: {{from: {{response_json: /n}}, reserve: 100, max: {max}}}");
    assert!(of(&cost(99)).starts_with("limits[0].cost.max: no response costs more than 99"));
    assert_eq!(of(&cost(100)), "");
}

#[test]
fn a_max_beyond_what_a_bucket_owes_is_warned_of() {
    let cost = "cost: {from: {response_json: /n}, reserve: 5, max: 1001}";
    let of = |fields: &str| of(&format!("{fields}, {cost}"));
    assert_eq!(
        of("rate: 10/s"),
        "cost.max: a bucket owes 100 times what it holds at most, 1000: what a response costs beyond that is not \
         counted (lower `max` to 1000, or raise `burst` or the `rate`)"
    );
    // A window counts all of it.
    let table = "
        rate: 10/s, burst: 11
        rate: 11/s
        rate: 10/s, algorithm: fixed_window
        rate: 11/s, per: user, overrides: [{values: {user: x}, rate: 10/s}] => overrides[0]: such a bucket owes 1000 at most, and a response may cost 1001";
    assert_warned(table, of);
}

#[test]
fn a_zone_whose_sign_is_the_opposite_is_warned_of() {
    let of = |fields: &str| of(&format!("rate: 10/day, {fields}"));
    assert_eq!(
        of("time_zone: Etc/GMT+5"),
        "time_zone: `Etc/GMT+5` is 5 h behind UTC: the sign is the opposite of the usual \
         (`Etc/GMT-5` is 5 h ahead of UTC; a region, like Europe/Berlin, says it without a sign)"
    );
    let table = "
        time_zone: UTC
        time_zone: Etc/GMT
        time_zone: Etc/GMT+0
        time_zone: Europe/Berlin
        per: user, overrides: [{values: {user: x}, rate: 9/day, time_zone: Etc/GMT-10}] => overrides[0].time_zone: `Etc/GMT-10` is 10 h ahead of UTC";
    assert_warned(table, of);
}

#[test]
fn many_regular_expressions_of_one_key_are_warned_of_together() {
    let limits = |many: usize| {
        let of = |n| format!("{{path: \"re:/v[0-9]+/{n}\", user: \"u{n}\"}}");
        let one = |n| format!("  - {{name: n{n}, match: {}, rate: 1/s}}\n", of(n));
        (0..many).map(one).collect::<Vec<_>>().concat()
    };
    let many = EXPRESSIONS_MANY + 1;
    let few = warned(&limits(EXPRESSIONS_MANY), &Surroundings::default());
    assert_eq!(few, [""; 0]);
    let found = warned(&limits(many), &Surroundings::default()).join("\n");
    let said = "21 regular expressions search the same `path`";
    assert!(found.contains(said), "{found}");
    let lack = |found: &str, many: usize| found.contains(&format!("which {many} of these lack"));
    // `/10` is a text that is looked up.
    assert!(lack(&found, 10), "{found}");
    let texts = limits(many).replace("/v[0-9]+/", "/v[0-9]+/no-");
    let found = warned(&texts, &Surroundings::default()).join("\n");
    assert!(lack(&found, 0), "{found}");
}

#[test]
fn names_that_are_too_many_are_counted() {
    assert_eq!(truncated_list(["a", "b"], 2), "a, b");
    assert_eq!(truncated_list(["a", "b", "c", "d"], 2), "a, b and 2 more");
    assert_eq!(truncated_list::<&str>([], 2), "");
}
