//! JWT claims of every kind, with line breaks and control characters.

use std::fmt::Write;

use harness::Host;
use serde_json::{Value, json};

use crate::stage::{alone, limits};

/// Claims of a verified token, as Lua literals.
const SUBJECTS: [&str; 18] = [
    r"'alice\r\nx-injected: yes\r\n\r\nHTTP/1.1 200 OK\r\n\r\n'",
    r"'\0\1\2\255'",
    "string.rep('x', 200000)",
    "''",
    "true",
    "-0.5",
    "1e300",
    "0/0",
    "{nested = {deep = 'yes'}}",
    "nil",
    // Text of eight bytes, the length of a number.
    r"'abcdefg\n'",
    r"'\255\255\255\255\255\255\255\255'",
    r"'\194\133abcdef'",
    "100",
    "2^63",
    "{'admin', 'dev'}",
    // Lists of what no host can read, and of types that take turns.
    "(function() local t = {} for i = 1, 15000 do t[i] = {a = 1} end return t end)()",
    "(function() local t = {} for i = 1, 15000 do t[i] = i % 2 == 0 and 'a' or 1 end return t end)()",
];

/// Where a claim is. Envoy gives a module no nested metadata.
fn path(claim: &str) -> Vec<&str> {
    if Host::is_module() {
        vec!["jwt", claim]
    } else {
        vec!["jwt", "payload", claim]
    }
}

/// A filter that sets the claim with the number in a request's `x-case`.
fn claims() -> Value {
    let mut cases = String::new();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        writeln!(cases, "if case == '{n}' then claims.sub = {subject} end").unwrap();
    }
    let code = format!(
        "function envoy_on_request(handle)
           local case, claims = handle:headers():get('x-case'), {{sub = nil}}
           {cases}
           local metadata = handle:streamInfo():dynamicMetadata()
           metadata:set('jwt', 'payload', claims)
           if claims.sub ~= nil then metadata:set('jwt', 'sub', claims.sub) end
         end"
    );
    json!({
        "name": "claims",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": code}
        }
    })
}

#[tokio::test]
async fn claims_of_any_kind_are_counted_and_split_no_answer() {
    let stage = limits(&["{name: per-subject, per: [subject, case], rate: 2/1h}"])
        .in_memory()
        .filter(|config| {
            let sources = [
                json!({"key": "subject", "metadata": path("sub")}),
                json!({"key": "case", "header": "x-case"}),
            ];
            config["descriptors"]
                .as_array_mut()
                .unwrap()
                .extend(sources);
        })
        .after(claims())
        .await;
    let mut client = stage.raw();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        let case = format!("x-case: {n}");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let reply = client.get(b"/", &[case.as_bytes()]).await;
            let reply = reply.unwrap().unwrap();
            assert!(reply.header("x-injected").is_empty(), "{subject}");
            seen.push(reply.status);
        }
        assert_eq!(seen, [200, 200, 429], "{subject}");
    }
    let logged = stage.envoy().process().log().len();
    assert!(logged < 100_000, "{logged} bytes");
}

#[tokio::test]
async fn a_request_with_any_claim_is_not_skipped() {
    let limit =
        "{name: per-subject, per: [subject, case], if_missing: skip, rate: 1/1h, scope: proxy}";
    let stage = alone(&[limit])
        .filter(|config| {
            let sources = [
                json!({"key": "subject", "metadata": path("sub")}),
                json!({"key": "case", "header": "x-case"}),
            ];
            let all = config["descriptors"].as_array_mut().unwrap();
            all.extend(sources);
        })
        .after(claims())
        .await;
    let mut client = stage.raw();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        let case = format!("x-case: {n}");
        let mut seen = Vec::new();
        for _ in 0..2 {
            let reply = client.get(b"/", &[case.as_bytes()]).await;
            seen.push(reply.unwrap().unwrap().status);
        }
        // Nor does Envoy give it maps.
        let absent = *subject == "nil" || Host::is_module() && subject.starts_with("{nested");
        let second = if absent { 200 } else { 429 };
        assert_eq!(seen, [200, second], "{subject}");
    }
}

/// Claims, and the text of each that limits match.
fn kinds() -> Vec<(Value, &'static str)> {
    let mut kinds = vec![
        (json!("gold"), "gold"),
        (json!(""), ""),
        (json!("alice123"), "alice123"),
        (json!("abcdefg\n"), "abcdefg\n"),
        (json!("\u{85}abcdef"), "\u{85}abcdef"),
        (json!("\0\0\0\0\0\0Y@"), "\0\0\0\0\0\0Y@"),
        (json!("\u{1}"), "\u{1}"),
        (json!(100), "100"),
        (json!(-0.5), "0xbfe0000000000000"),
        (json!(9_223_372_036_854_775_808_u64), "9223372036854775808"),
        (json!(1e300), "0x7e37e43c8800759c"),
        (json!(true), "true"),
        (json!(["a", null, 2]), "[\"a\",null,2]"),
        (
            json!({"b": [], "a": {"c": "d"}}),
            "{\"a\":{\"c\":\"d\"},\"b\":[]}",
        ),
    ];
    kinds.retain(|(claim, _)| !claim.is_object() || !Host::is_module());
    kinds
}

#[tokio::test]
async fn claims_of_every_kind_are_the_text_that_the_manual_says() {
    let mut claims = serde_json::Map::new();
    let (mut limits, mut sources) = (Vec::new(), Vec::new());
    for (n, (claim, text)) in kinds().into_iter().enumerate() {
        let key = format!("claim-{n}");
        let conditions = json!({"path": format!("/{n}"), &key: format!("exact:{text}")});
        let limit = json!({"name": key, "match": conditions, "rate": "1/1h", "scope": "proxy"});
        limits.push(limit.to_string());
        sources.push(json!({"key": key, "metadata": path(&key)}));
        claims.insert(key, claim);
    }
    claims.insert("payload".to_owned(), Value::Object(claims.clone()));
    let metadata = json!({"metadata_namespace": "jwt", "value": claims});
    let set = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config";
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let stage = alone(&limits)
        .filter(move |config| {
            let all = config["descriptors"].as_array_mut().unwrap();
            all.extend(sources.clone());
        })
        .after(json!({
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {"@type": set, "metadata": [metadata]},
        }))
        .await;
    let mut client = stage.raw();
    for (n, (claim, _)) in kinds().iter().enumerate() {
        let path = format!("/{n}");
        for expected in [200, 429] {
            let reply = client.get(path.as_bytes(), &[]).await.unwrap().unwrap();
            assert_eq!(reply.status, expected, "{claim}");
        }
    }
}
