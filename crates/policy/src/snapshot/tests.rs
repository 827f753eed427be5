use super::*;
use crate::Descriptor;

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
    let mut policy = Policy::from_yaml("limits.yaml", text).unwrap();
    policy.revision = Revision {
        number: 17,
        digest: u64::MAX,
    };
    policy.limits[0].generation = 5;
    policy
}

fn bytes(node: &Node) -> Vec<u8> {
    serde_json::to_vec(node).unwrap()
}

#[cfg_attr(target_arch = "wasm32", ignore = "reads files")]
#[test]
fn a_snapshot_carries_what_a_filter_needs() {
    let snapshot = Compiled::new(policy()).to_snapshot(0);
    insta::assert_snapshot!(serde_json::to_string_pretty(&snapshot).unwrap());
    let compiled = Compiled::from_snapshot(&bytes(&snapshot)).unwrap();
    assert_eq!(compiled.revision(), &policy().revision);
    assert!(compiled.opaque().is_empty());
    assert_eq!(compiled.limits()[0].generation, 5);
    assert!(compiled.has_overrides(0));
    let tenant = [Some(b"t")];
    assert!(compiled.override_for(1, &tenant).is_some());
    // Its own snapshot is the same.
    assert_eq!(compiled.to_snapshot(0), snapshot);
}

#[test]
fn a_limit_of_a_later_version_is_left_to_the_limiter_alone() {
    let mut snapshot = Compiled::new(policy()).to_snapshot(0);
    let mut limits = snapshot.get("limits").unwrap().items().to_vec();
    let mut add = |text: &str| limits.push(serde_json::from_str(text).unwrap());
    add(r#"{"name":"later","level":3,"rate":"1/s","match":{"path":"/new/**"}}"#);
    add(r#"{"name":"field","level":1,"rate":"1/s","wobble":3,"on_failure":"deny"}"#);
    add(r#"{"name":"value","level":1,"rate":"1/s","match":{"path":"glob:x","a":"b"}}"#);
    add(r#"{"name":"word","level":1,"rate":"1/s","algorithm":"magic","on_failure":"sing"}"#);
    add(r#""not even a map""#);
    snapshot.set("limits", Node::list(limits));
    snapshot.set("later", true.into());
    snapshot.set(
        "keys",
        Node::list([Node::text("path"), Node::text("new-key")]),
    );
    let compiled = Compiled::from_snapshot(&bytes(&snapshot)).unwrap();
    assert_eq!(compiled.limits().len(), 2);
    assert!(
        compiled
            .needed_keys()
            .iter()
            .any(|key| key.as_str() == "new-key")
    );
    let opaque: Vec<_> = compiled
        .opaque()
        .iter()
        .map(|limit| (limit.name.as_ref().map(Name::as_str), limit.on_failure))
        .collect();
    let local = Some(OnFailure::Local);
    assert_eq!(
        opaque,
        [
            (Some("later"), local),
            (Some("field"), Some(OnFailure::Deny)),
            (Some("value"), local),
            (Some("word"), None),
            (None, local),
        ]
    );
    let mut request = Descriptor::new();
    request.insert("path".parse().unwrap(), "/old");
    assert!(!compiled.opaque()[0].may_match(&request));
    assert!(compiled.opaque()[1].may_match(&request));
    request.insert("path".parse().unwrap(), "/new/x");
    assert!(compiled.opaque()[0].may_match(&request));
}

#[test]
fn older_filters_leave_limits_with_a_penalty_to_the_limiter() {
    let mut policy = policy();
    let penalty = algorithms::Penalty {
        after: 10,
        within_ms: 60_000,
        for_ms: 900_000,
    };
    policy.limits[0].penalty = Some(penalty);
    let snapshot = Compiled::new(policy).to_snapshot(0);
    let compiled = Compiled::from_snapshot(&bytes(&snapshot)).unwrap();
    assert_eq!(compiled.limits()[0].penalty, Some(penalty));
    // To older filters it is an unknown field. They then cache no denial of the limit, so the
    // limiter counts each.
    let text = String::from_utf8(bytes(&snapshot)).unwrap();
    let to_older = text.replace("\"penalty\"", "\"later\"");
    assert_ne!(to_older, text);
    let older = Compiled::from_snapshot(to_older.as_bytes()).unwrap();
    assert_eq!(older.limits().len(), 1);
    assert_eq!(
        older.opaque()[0].name.as_ref().map(Name::as_str),
        Some("per-user")
    );
}

#[test]
fn an_invalid_snapshot_is_refused() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"format":2,"domain":"shop","revision":{"number":1,"digest":"0"},"limits":[]}"#,
        r#"{"format":1,"revision":{"number":1,"digest":"0"},"limits":[]}"#,
        r#"{"format":1,"domain":"shop","limits":[]}"#,
    ] {
        assert!(Compiled::from_snapshot(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_paused_domain_reaches_filters_on_every_limit() {
    let mut policy = policy();
    policy.paused = Some(Pause {
        until_ms: Some(5000),
    });
    policy.limits[1].paused = Some(Pause { until_ms: None });
    let snapshot = Compiled::new(policy).to_snapshot(0);
    let compiled = Compiled::from_snapshot(&bytes(&snapshot)).unwrap();
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
