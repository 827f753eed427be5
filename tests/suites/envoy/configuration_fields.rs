//! The effect of each field of the filter's configuration.

use serde_json::json;

use crate::stage::{alone, header, limits, statuses};

const ONE_AN_HOUR: &str = "{name: everything, rate: 1/1h, scope: proxy}";

#[tokio::test]
async fn a_share_of_requests_can_go_unchecked() {
    for (percent, fewest, most) in [(0, 400, 400), (50, 120, 280), (100, 1, 1)] {
        let stage = alone(&[ONE_AN_HOUR])
            .filter(move |config| config["enabled_percent"] = json!(percent))
            .await;

        let answers = statuses(&stage.get("/", "alice"), 400).await;

        let passed = answers.iter().filter(|&&status| status == 200).count();
        assert!((fewest..=most).contains(&passed), "{percent} %: {passed}");
    }
}

#[tokio::test]
async fn a_limit_can_be_enforced_for_a_share_of_its_users() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h, enforce: 30%}"]).await;
    let mut enforced = Vec::new();
    for n in 0..200 {
        let user = stage.get("/", &format!("user-{n}"));
        let answers = statuses(&user, 3).await;
        match answers.as_slice() {
            [200, 429, 429] => enforced.push(n),
            [200, 200, 200] => {}
            odd => panic!("one user sees one behaviour, not {odd:?}"),
        }
    }
    let share = enforced.len();
    assert!((35..=85).contains(&share), "30 % of 200 are not {share}");
}

#[tokio::test]
async fn the_answer_over_a_limit_is_as_configured() {
    let stage = alone(&[ONE_AN_HOUR])
        .filter(|config| {
            config["deny"] = json!({"status": 420, "body": "text", "message": "enhance your calm"});
            config["headers"] = json!(["spring"]);
        })
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 1).await, [200]);

    let reply = alice.send().await.unwrap();

    assert_eq!(reply.status, 420);
    assert_eq!(reply.text(), "enhance your calm\n");
    assert_eq!(header(&reply, "x-ratelimit-remaining"), "0");
    assert_eq!(header(&reply, "x-ratelimit-burst-capacity"), "1");
    assert_eq!(header(&reply, "x-ratelimit-requested-tokens"), "1");
    assert!(reply.header("x-ratelimit-replenish-rate").is_some());
    assert!(reply.header("x-ratelimit-retry-after").is_some());
    for other in ["ratelimit", "x-ratelimit-limit", "retry-after"] {
        assert_eq!(reply.header(other), None, "{other} was not asked for");
    }
}

#[tokio::test]
async fn tighter_limit_headers_of_the_service_are_kept() {
    let stage = alone(&["{name: ours, rate: 10/10s, burst: 20, scope: proxy}"]).await;
    stage.upstream.answer_with(&[
        ("ratelimit-policy", "\"theirs\";q=5;w=60"),
        ("ratelimit", "\"theirs\";r=3;t=40"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "3"),
        ("x-ratelimit-reset", "40"),
    ]);

    let reply = stage.get("/", "alice").send().await.unwrap();

    let all = |name: &str| {
        let values = reply.headers.get_all(name).iter();
        let values: Vec<&str> = values.map(|value| value.to_str().unwrap()).collect();
        values.join(", ")
    };
    for item in ["\"theirs\";r=3;t=40", "\"ours\";r=19;t=1"] {
        assert!(all("ratelimit").contains(item), "{}", all("ratelimit"));
    }
    assert!(all("ratelimit-policy").contains("\"theirs\";q=5;w=60"));
    assert!(all("ratelimit-policy").contains("\"ours\";q=20;w=20"));
    // The service's limit is the tightest.
    assert_eq!(all("x-ratelimit-remaining"), "3");
    assert_eq!(all("x-ratelimit-limit"), "5");
    assert_eq!(all("x-ratelimit-reset"), "40");
}

#[tokio::test]
async fn incomplete_limit_headers_of_the_service_are_replaced() {
    let stage = alone(&["{name: ours, rate: 10/10s, burst: 20, scope: proxy}"]).await;
    stage.upstream.answer_with(&[("x-ratelimit-limit", "5")]);

    let reply = stage.get("/", "alice").send().await.unwrap();

    let limits = reply.headers.get_all("x-ratelimit-limit");
    assert_eq!(limits.iter().collect::<Vec<_>>(), ["20"]);
}

/// What a plain request has, through a route without a name: an attribute without a value is empty, or it is absent.
#[tokio::test]
async fn attributes_without_a_value_are_the_same_wherever_the_filter_runs() {
    for (path, found) in [
        (&["xds", "route_name"][..], true),
        (&["connection", "requested_server_name"], true),
        (&["request", "query"], true),
        (&["request", "referer"], false),
        (&["connection", "tls_version"], false),
        (&["connection", "dns_san_peer_certificate"], false),
        (&["request", "headers", "x-none"], false),
    ] {
        let stage = alone(&["{name: of, per: [of], if_missing: deny, rate: 1/1h, scope: proxy}"]);
        let stage = stage.filter(move |config| {
            let sources = config["descriptors"].as_array_mut().unwrap();
            sources.push(json!({"key": "of", "property": path}));
        });
        let stage = stage.await;
        let statuses = statuses(&stage.get("/", "alice"), 2).await;
        let expected = if found { [200, 429] } else { [403, 403] };
        assert_eq!(statuses, expected, "{path:?}");
    }
}

#[tokio::test]
async fn a_header_that_is_read_as_a_property_has_all_its_values() {
    let limit = "{name: of, match: {of: \"a,b\"}, rate: 1/1h, scope: proxy}";
    let stage = alone(&[limit]).filter(|config| {
        let sources = config["descriptors"].as_array_mut().unwrap();
        sources.push(json!({"key": "of", "property": ["request", "headers", "x-of"]}));
    });
    let stage = stage.await;
    let mut client = stage.raw();
    for expected in [200, 429] {
        let reply = client.get(b"/", &[b"x-of: a", b"x-of: b"]).await;
        assert_eq!(reply.unwrap().unwrap().status, expected);
    }
}

#[tokio::test]
async fn any_number_of_limits_makes_a_bounded_number_of_metrics() {
    let limits: Vec<String> = (0..300)
        .map(|n| format!("{{name: limit-{n}, rate: 1000000/s, scope: proxy}}"))
        .collect();
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let stage = alone(&limits).await;
    assert_eq!(statuses(&stage.get("/", "alice"), 20).await, [200; 20]);

    let named = harness::until("all are counted", crate::stage::PATIENCE, async || {
        let page = stage
            .envoy()
            .admin("/stats?filter=rl_decisions")
            .await
            .ok()?;
        let counts = page.lines().filter_map(|line| line.rsplit_once(": "));
        let counts: Vec<u64> = counts.map(|(_, count)| count.parse().unwrap()).collect();
        (counts.iter().sum::<u64>() == 300 * 20).then_some(counts.len())
    });
    assert_eq!(named.await.unwrap(), 256 + 1);
}
