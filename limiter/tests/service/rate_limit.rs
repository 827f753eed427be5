//! Envoy's rate limit service: which limits apply, what is charged, and what is answered.

use anyhow::Result;
use serde_json::{Value, json};
use store::{CheckError, StoreError};

use crate::support::{Scripted, Service, quick};

/// A descriptor of these entries, as the service's JSON has it.
fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entries = entries
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}));
    json!({"entries": entries.collect::<Vec<_>>()})
}

/// A descriptor with units of its own.
fn with_units(entries: &[(&str, &str)], units: u64) -> Value {
    let mut descriptor = descriptor(entries);
    descriptor["hitsAddend"] = json!(units.to_string());
    descriptor
}

/// The status and the answer of a call.
async fn call(service: &Service, descriptors: &[Value]) -> Result<(u16, Value)> {
    let body = json!({"domain": "shop", "descriptors": descriptors});
    let reply = service.post("/json", body.to_string()).send().await?;
    Ok((reply.status.as_u16(), reply.json()?))
}

/// The overall code, the codes of the descriptors, and what remains of each.
async fn codes(service: &Service, descriptors: &[Value]) -> Result<String> {
    let (status, answer) = call(service, descriptors).await?;
    let overall = answer["overallCode"].as_str().unwrap_or_default();
    assert_eq!(status, if overall == "OK" { 200 } else { 429 }, "{answer}");
    let statuses = answer["statuses"].as_array().unwrap();
    let each = statuses.iter().map(|status| {
        let code = status["code"].as_str().unwrap_or_default();
        format!("{code} {}", status["limitRemaining"].as_u64().unwrap_or(0))
    });
    Ok(format!(
        "{overall}: {}",
        each.collect::<Vec<_>>().join(", ")
    ))
}

#[tokio::test]
async fn an_answer_names_the_limit_and_what_is_left() -> Result<()> {
    let service = Service::with(
        "  - {name: marketing, descriptor: [message_type=marketing, to_number], \
            algorithm: fixed_window, rate: 2/365d}\n",
    )
    .await?;
    let sent = [descriptor(&[
        ("message_type", "marketing"),
        ("to_number", "206"),
    ])];
    let (status, answer) = call(&service, &sent).await?;
    assert_eq!(status, 200);
    let limit = json!({"name": "marketing", "requestsPerUnit": 2, "unit": "YEAR"});
    assert_eq!(answer["statuses"][0]["currentLimit"], limit, "{answer}");
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1);
    assert!(
        answer["statuses"][0]["durationUntilReset"].is_string(),
        "{answer}"
    );
    assert_eq!(answer["dynamicMetadata"], json!({"limits": ["marketing"]}));
    assert_eq!(codes(&service, &sent).await?, "OK: OK 0");
    let (status, answer) = call(&service, &sent).await?;
    assert_eq!(status, 429);
    assert_eq!(answer["overallCode"], "OVER_LIMIT");
    let metadata = json!({"limits": ["marketing"], "denied_by": ["marketing"]});
    assert_eq!(answer["dynamicMetadata"], metadata);
    let other = [descriptor(&[
        ("message_type", "marketing"),
        ("to_number", "207"),
    ])];
    assert_eq!(codes(&service, &other).await?, "OK: OK 1");
    Ok(())
}

#[tokio::test]
async fn a_descriptor_without_a_limit_is_ok_and_counted() -> Result<()> {
    let service = Service::with("  - {name: a, descriptor: [a], rate: 1/h}\n").await?;
    let none = [
        descriptor(&[("b", "1")]),
        descriptor(&[("a", "1"), ("a", "1")]),
    ];
    assert_eq!(codes(&service, &none).await?, "OK: OK 0, OK 0");
    let body = json!({"domain": "ns/gateway/listener", "descriptors": none});
    let reply = service.post("/json", body.to_string()).send().await?;
    assert_eq!(
        (reply.status.as_u16(), reply.json()?["overallCode"].as_str()),
        (200, Some("OK"))
    );
    let unmatched = |reason: &str| format!("rl_unmatched_descriptors_total{{reason=\"{reason}\"}}");
    assert_eq!(service.metric(&unmatched("limit")).await?, 2);
    assert_eq!(service.metric(&unmatched("domain")).await?, 2);
    Ok(())
}

#[tokio::test]
async fn quotas_deny_only_together() -> Result<()> {
    let service = Service::with(
        "  - {name: a, descriptor: [a], rate: 1/365d, algorithm: fixed_window, quota_mode: true}\n  \
           - {name: b, descriptor: [b], rate: 2/365d, algorithm: fixed_window, quota_mode: true}\n",
    )
    .await?;
    let both = [descriptor(&[("a", "1")]), descriptor(&[("b", "1")])];
    assert_eq!(codes(&service, &both).await?, "OK: OK 0, OK 1");
    assert_eq!(codes(&service, &both).await?, "OK: OVER_LIMIT 0, OK 0");
    assert_eq!(
        codes(&service, &both).await?,
        "OVER_LIMIT: OVER_LIMIT 0, OVER_LIMIT 0"
    );
    let denied = "rl_checks_total{domain=\"shop\",limit=\"b\",decision=\"denied\"}";
    assert_eq!(service.metric(denied).await?, 1);
    Ok(())
}

#[tokio::test]
async fn bad_calls_are_refused_with_the_field() -> Result<()> {
    let service = Service::with("  - {name: a, descriptor: [a], rate: 1/h}\n").await?;
    let many = vec![descriptor(&[("a", "1")]); 1025];
    let entries = |count: usize| {
        let keys: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
        descriptor(&keys.iter().map(|key| (&**key, "x")).collect::<Vec<_>>())
    };
    let cases = [
        ("{".to_owned(), "EOF"),
        (json!({"domain": "shop"}).to_string(), "at least one"),
        (
            json!({"domain": "", "descriptors": [{}]}).to_string(),
            "512 bytes",
        ),
        (
            json!({"domain": "shop", "descriptors": many}).to_string(),
            "at most 1024",
        ),
        (
            json!({"domain": "shop", "descriptors": [descriptor(&[("", "")])]}).to_string(),
            "a key is",
        ),
        (
            json!({"domain": "shop", "descriptors": [descriptor(&[(&"k".repeat(65_536), "")])]})
                .to_string(),
            "a key is 1 to 512 bytes",
        ),
        (
            json!({"domain": "shop", "descriptors": [entries(129)]}).to_string(),
            "at most 128 entries",
        ),
        (
            json!({"domain": "shop", "descriptors": [{"limit": {"unit": 9}}]}).to_string(),
            "unit",
        ),
        (
            json!({"domain": "shop", "hitsAddend": -1, "descriptors": [{}]}).to_string(),
            "line 1 column",
        ),
    ];
    for (body, words) in cases {
        let reply = service.post("/json", body).send().await?;
        assert_eq!(reply.status, 400, "{words}: {}", reply.text());
        assert!(reply.text().contains(words), "{words}: {}", reply.text());
    }
    assert_eq!(codes(&service, &[entries(128)]).await?, "OK: OK 0");
    Ok(())
}

/// A web page can send text and forms to other sites without asking.
#[tokio::test]
async fn the_body_of_json_is_declared_as_json() -> Result<()> {
    let service = Service::with("  - {name: a, descriptor: [a], rate: 1/h}\n").await?;
    let body = json!({"domain": "shop", "descriptors": [descriptor(&[("a", "1")])]}).to_string();
    for (media_type, status) in [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/vnd.rl.check+cbor", 415),
        ("Application/JSON; charset=utf-8", 200),
    ] {
        let request = service.post("/json", body.clone());
        let reply = request.header("content-type", media_type).send().await?;
        assert_eq!(reply.status, status, "{media_type}: {}", reply.text());
        let hinted = reply
            .text()
            .contains("this path takes application/json (curl --json)");
        assert_eq!(hinted, status == 415, "{media_type}: {}", reply.text());
    }
    Ok(())
}

/// Envoy sends a handful of descriptors. A thousand would be one script call during which the store
/// answers nobody else.
#[tokio::test]
async fn descriptors_that_weigh_too_much_together_are_refused_and_none_is_charged() -> Result<()> {
    let service = Service::with(
        "  - {name: light, descriptor: [light], algorithm: fixed_window, rate: 9/365d}\n  \
           - {name: heavy, descriptor: [heavy], algorithm: sliding_window_buckets, rate: 9/1h, sub_windows: 1000}\n",
    )
    .await?;
    let of = |key: &str, count: usize| -> Vec<Value> {
        let one = |n: usize| descriptor(&[(key, &n.to_string())]);
        (0..count).map(one).collect()
    };
    for (key, fitting) in [("light", 128), ("heavy", 7), ("unlimited", 1024)] {
        let (status, answer) = call(&service, &of(key, fitting)).await?;
        assert_eq!(status, 200, "{key}: {}", answer["error"]);
    }
    let own = with_units(&[("light", "own")], 3);
    for (key, too_many) in [("light", 129), ("heavy", 8)] {
        let mut sent = of(key, too_many);
        sent.insert(0, own.clone());
        let (status, answer) = call(&service, &sent).await?;
        assert_eq!(status, 400, "{key}: {}", answer["overallCode"]);
        assert_eq!(answer["error"]["code"], "invalid_request");
        assert_eq!(answer["error"]["field"], "descriptors");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("at most 128"), "{message}");
    }
    // Only the calls that fitted were charged.
    for (sent, left) in [(of("light", 1), 7), (of("heavy", 1), 7)] {
        assert_eq!(codes(&service, &sent).await?, format!("OK: OK {left}"));
    }
    let unused = [descriptor(&[("light", "own")])];
    assert_eq!(codes(&service, &unused).await?, "OK: OK 8");
    // Descriptors with units of their own are separate checks, which need not share a call.
    let apart: Vec<_> = (0..300)
        .map(|n| with_units(&[("light", &format!("apart{n}"))], 1))
        .collect();
    let (status, answer) = call(&service, &apart).await?;
    assert_eq!(status, 200, "{}", answer["error"]);
    Ok(())
}

#[tokio::test]
async fn an_exempt_descriptor_has_no_limit_not_even_its_own() -> Result<()> {
    let service = Service::with(
        "  - {name: a, descriptor: [source], algorithm: fixed_window, rate: 1/365d}\n  \
         - {name: b, match: {source: \"*\"}, per: [source], algorithm: fixed_window, rate: 1/365d}\n\
         exempt: [{name: internal, match: {source: internal}}, {name: health, match: {path: /health}}]\n",
    )
    .await?;
    let mut internal = descriptor(&[("source", "internal")]);
    internal["limit"] = json!({"requestsPerUnit": 0, "unit": "HOUR"});
    let other = descriptor(&[("source", "other")]);
    assert_eq!(
        codes(&service, &[internal.clone(), other.clone()]).await?,
        "OK: OK 0, OK 0"
    );
    // The exempt descriptor stays allowed beside a denied one.
    assert_eq!(
        codes(&service, &[internal.clone(), other]).await?,
        "OVER_LIMIT: OK 0, OVER_LIMIT 0"
    );
    // With several values it may not be the exempt one.
    let both = descriptor(&[("source", "internal"), ("source", "x")]);
    for expected in ["OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0"] {
        assert_eq!(
            codes(&service, std::slice::from_ref(&both)).await?,
            expected
        );
    }
    // But a path has one value however it is spelled.
    let spelled = [
        ("source", "y"),
        ("path", "/%68ealth"),
        ("path", "/./%68ealth"),
    ];
    for _ in 0..2 {
        let codes = codes(&service, &[descriptor(&spelled)]).await?;
        assert_eq!(codes, "OK: OK 0");
    }
    let exempt = "rl_exempt_total{domain=\"shop\",exemption=\"internal\"}";
    assert_eq!(service.metric(exempt).await?, 2);
    let unmatched = "rl_unmatched_descriptors_total{reason=\"limit\"}";
    assert_eq!(service.metric(unmatched).await.unwrap_or(0), 0);
    // A program's check, which names no limit.
    let check =
        json!({"domain": "shop", "descriptor": {"source": "internal"}, "require_match": true});
    let reply = service.post("/v1/check", check.to_string()).send().await?;
    let answer: Value = reply.json()?;
    assert_eq!(answer["allowed"], true, "{answer}");
    assert_eq!(service.metric(exempt).await?, 3);
    Ok(())
}

/// Envoy writes the numbers of statuses that have a limit into the headers of its response.
#[tokio::test]
async fn a_denial_shows_no_numbers_of_hidden_limits_or_of_others() -> Result<()> {
    let service = Service::with(
        "  - {name: secret, descriptor: [a], algorithm: fixed_window, rate: 1/365d, hidden: true}\n  \
           - {name: open, descriptor: [b], rate: 60/1m}\n  \
           - {name: small, descriptor: [c], rate: 2/1h}\n",
    )
    .await?;
    let [secret, open, small] = ["a", "b", "c"].map(|key| descriptor(&[(key, "1")]));
    let both = [secret, open.clone()];
    let (status, passed) = call(&service, &both).await?;
    assert_eq!(status, 200);
    assert_eq!(passed["statuses"][0], json!({"code": "OK"}), "{passed}");
    assert_eq!(passed["statuses"][1]["currentLimit"]["name"], "open");

    let (status, denied) = call(&service, &both).await?;
    assert_eq!(status, 429);
    assert_eq!(denied["statuses"][0], json!({"code": "OVER_LIMIT"}));
    assert_eq!(denied["statuses"][1]["code"], "OK");
    assert_eq!(
        denied["statuses"][1]["currentLimit"],
        Value::Null,
        "{denied}"
    );

    // A visible limit shows its own; without a time, where waiting does not help.
    let dear = json!({"domain": "shop", "descriptors": [open, small], "hitsAddend": 5});
    let reply = service.post("/json", dear.to_string()).send().await?;
    let denied = reply.json()?;
    assert_eq!(reply.status, 429);
    assert_eq!(denied["statuses"][0]["currentLimit"]["name"], "open");
    let small = &denied["statuses"][1];
    assert_eq!(small["currentLimit"]["name"], "small");
    assert_eq!(small["durationUntilReset"], Value::Null, "{denied}");
    Ok(())
}

#[tokio::test]
async fn a_call_of_which_a_part_was_charged_does_not_say_that_nothing_was() -> Result<()> {
    let limits = "  - {name: all, descriptor: [user], algorithm: fixed_window, rate: 9/365d}\n";
    let store = Scripted::with(limits, 100).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    let sent = [
        descriptor(&[("user", "a")]),
        with_units(&[("user", "b")], 3),
    ];
    let unreachable = || CheckError::from(StoreError::Unreachable("as the test says".to_owned()));
    let broken = || CheckError::from(StoreError::Broken("as the test says".to_owned()));
    for (errors, charged) in [
        ([Some(unreachable()), Some(unreachable())], json!(false)),
        ([Some(unreachable()), None], Value::Null),
        ([None, Some(unreachable())], Value::Null),
        ([Some(unreachable()), Some(broken())], Value::Null),
    ] {
        store.fail_some(errors);
        let (status, answer) = call(&service, &sent).await?;
        assert_eq!(
            (status, &answer["error"]["charged"]),
            (503, &charged),
            "{answer}"
        );
    }
    Ok(())
}
