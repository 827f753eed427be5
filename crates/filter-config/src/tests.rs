use super::*;

fn problems(json: &str) -> String {
    let problems = Config::from_json(json.as_bytes()).unwrap_err();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn domain_and_cluster_are_enough() {
    let json = r#"{"domain": "shop", "limiter": {"cluster": "outbound|8090||limiter.rl.svc"}}"#;
    let config = Config::from_json(json.as_bytes()).unwrap();
    assert_eq!(config.limiter.authority, "limiter.rl.svc");
    assert_eq!(config.limiter.timeout_ms, 20);
    assert!(!config.limiter.trust_host);
    assert_eq!(
        (config.deny.status, config.deny.status_on_error),
        (429, 503)
    );
    assert_eq!(
        (config.hold_max, config.buckets, config.enabled_percent),
        (1024, 16_384, 100)
    );
    assert_eq!(config.styles, Styles::default());
    let keys: Vec<&str> = config.sources.iter().map(|(key, _)| key.as_str()).collect();
    let built_in = [
        "method",
        "path",
        "host",
        "route",
        "remote_address",
        "remote_address.whole",
        "workload",
        "namespace",
    ];
    assert_eq!(keys, built_in);
    assert!(config.limits.is_none());
}

const EVERY_FIELD: &str = r#"{
        "domain": "shop",
        "limiter": {"cluster": "limiter", "authority": "rl", "timeout": "35ms", "token_env": "RL_TOKEN", "trust_host": true},
        "direction": "both",
        "descriptors": [
            {"key": "user", "header": "X-User-Id"},
            {"key": "tenant", "metadata": ["envoy.filters.http.jwt_authn", "payload", "tenant"]},
            {"key": "session", "cookie": "sid", "if_several": "first", "hash": true},
            {"key": "api_key", "query": "key"},
            {"key": "target", "header": ":path"},
            {"key": "site", "header": "Host"},
            {"key": "peer", "property": ["connection", "uri_san_peer_certificate"]},
            {"key": "role", "property": ["metadata", "filter_metadata", "jwt", "role"]},
            {"key": "port", "property": ["source", "port"], "as": "integer"},
            {"key": "env", "value": "prod"}
        ],
        "remote_address": {"v4": 24, "v6": 48},
        "failure_mode": "deny",
        "status_on_error": 500,
        "deny": {"status": 420, "body": "text", "message": "later", "docs": "https://example.com"},
        "retry_after": {"jitter": "20%"},
        "headers": ["spring"],
        "enabled_percent": 5,
        "hold": {"max": 7},
        "request_body": {"max": 65536},
        "memory": {"buckets": 100},
        "limits": "COMPILED"
    }"#;

/// One limit of a domain, compiled.
fn limits(domain: &str) -> String {
    let file = format!("domain: {domain}\nlimits: [{{name: all, rate: 10/s}}]\n");
    let policy = limits_file::read("test", file.as_bytes()).unwrap();
    limits_file::snapshot_text(&Compiled::new(policy), 0)
}

fn every_field() -> String {
    EVERY_FIELD.replace("COMPILED", &limits("shop"))
}

#[test]
fn every_field_is_read() {
    let config = Config::from_json(every_field().as_bytes()).unwrap();
    assert_eq!(config.direction, Direction::Both);
    assert!(config.limiter.trust_host);
    assert_eq!(config.failure_mode, OnFailure::Deny);
    assert_eq!(config.deny.retry_jitter_percent, 20);
    assert_eq!(
        (config.hold_max, config.buckets, config.enabled_percent),
        (7, 100, 5)
    );
    assert_eq!(config.request_body_max, Some(65_536));
    assert!(config.styles.spring && !config.styles.ratelimit);
    assert_eq!(config.limits.unwrap().limits().len(), 1);
}

#[test]
fn every_source_is_read() {
    let config = Config::from_json(every_field().as_bytes()).unwrap();
    let source = |key: &str| {
        config
            .sources
            .iter()
            .find(|(k, _)| k.as_str() == key)
            .unwrap()
            .1
            .clone()
    };
    let header = |name: &str| Source::Header(name.to_owned(), IfSeveral::Share);
    assert_eq!(source("user"), header("x-user-id"));
    assert_eq!(source("target"), header(":path"));
    assert_eq!(source("site"), header(":authority"));
    let session = Source::Cookie("sid".to_owned(), IfSeveral::First);
    assert_eq!(source("session"), Source::Hashed(Box::new(session)));
    let role = b"metadata\0filter_metadata\0jwt\0role".to_vec();
    assert_eq!(source("role"), Source::Property(role, Format::Metadata));
    assert_eq!(
        source("port"),
        Source::Property(b"source\0port".to_vec(), Format::Integer)
    );
    let path = b"metadata\0filter_metadata\0envoy.filters.http.jwt_authn\0payload\0tenant";
    assert_eq!(
        source("tenant"),
        Source::Property(path.to_vec(), Format::Metadata)
    );
    assert_eq!(
        source("remote_address"),
        Source::RemoteAddress(Prefixes { v4: 24, v6: 48 })
    );
}

#[test]
fn everything_wrong_is_said_at_once() {
    insta::assert_snapshot!(problems(r#"{
        "domian": "shop",
        "limiter": {"timeout": "20", "authority": "a b"},
        "direction": "in",
        "descriptors": [
            {"key": "path", "header": "x"},
            {"key": "user", "header": "x", "cookie": "y"},
            {"header": ":status"},
            {"key": "n", "header": "x", "as": "integer"},
            {"key": "v", "value": "x", "if_several": "first"},
            {"key": "m", "metadata": "x"}
        ],
        "remote_address": {"v4": 33},
        "deny": {"status": 200, "colour": "red"},
        "retry_after": {"jitter": "200%"},
        "headers": ["x-ratelimit"],
        "enabled_percent": 101,
        "hold": {"max": -1},
        "request_body": {"max": 0},
        "memory": {"buckets": 99999999},
        "lease": true
    }"#), @r#"
    `domain` is missing (the name of a set of limits)
    limiter: `cluster` is missing (an Envoy cluster)
    limiter.authority: expected a host, found `a b`
    limiter.timeout: expected a duration like 250ms or 3s, found `20` (a duration is a whole number and one of ms, s, m, h, d: 250ms, 3s, 1m)
    direction: expected one of auto, inbound, outbound, both, found `in`
    remote_address.v4: expected a prefix length from 0 to 32, found `33`
    descriptors[0]: `path` is built in (choose another key)
    descriptors[1]: a descriptor has one of header, cookie, query, metadata, property, value
    descriptors[2]: `key` is missing
    descriptors[2].header: expected the name of a header, found `:status` (of those with a colon: :method, :path, :authority and :scheme)
    descriptors[3].as: `as` goes with `metadata` and `property` only
    descriptors[4].if_several: `if_several` goes with `header`, `cookie` and `query` only
    descriptors[5].metadata: expected a list of texts, the way to a value, found `x`
    deny.status: expected a status from 400 to 599, found `200`
    deny.colour: unknown field (known fields: status, body, message, docs)
    retry_after.jitter: expected a whole percentage from 0% to 100%, found `200%`
    headers[0]: expected one of ratelimit, x_ratelimit, retry_after, spring, found `x-ratelimit` (did you mean `x_ratelimit`?)
    enabled_percent: expected a whole number from 0 to 100, found `101`
    hold.max: expected a whole number of at least 0, found `-1`
    request_body.max: expected a whole number of at least 1, found `0`
    memory.buckets: at most 1048576
    domian: unknown field (did you mean `domain`?)
    lease: unknown field (known fields: domain, limiter, direction, descriptors, remote_address, failure_mode, status_on_error, deny, retry_after, headers, enabled_percent, hold, request_body, memory, limits)
    "#);
}

#[test]
fn no_entry_has_a_name_by_which_filters_report_something_else() {
    for (key, is_free) in [
        ("user.hashed", false),
        ("hashed", true),
        ("user.hashed.id", true),
        ("remote_address.24.56", false),
        ("remote_address.country", true),
        ("remote_address.24", true),
        ("remote_address.24.256", true),
        ("client_address.24.56", true),
        ("request_body", false),
        ("request_body_passes", false),
        ("check_stream_refused", false),
        ("request_body_size", true),
    ] {
        let mut read = Alterations::default();
        let is_read = read.read_mark(&key.parse().unwrap(), |_| true);
        assert!(!is_free || !is_read, "{key}");
        let json = format!(
            r#"{{"domain": "shop", "limiter": {{"cluster": "limiter"}}, "descriptors": [{{"key": "{key}", "header": "x"}}]}}"#
        );
        if is_free {
            assert!(Config::from_json(json.as_bytes()).is_ok(), "{key}");
        } else {
            let expected = format!(
                "descriptors[0]: `{key}` is how filters report something else (choose another key)"
            );
            assert_eq!(problems(&json), expected);
        }
    }
}

#[test]
fn limits_in_the_configuration_are_compiled_ones_of_its_domain() {
    let config = |limits: &str| {
        problems(&format!(
            r#"{{"domain": "shop", "limiter": {{"cluster": "limiter"}}, "limits": {limits}}}"#
        ))
    };
    insta::assert_snapshot!(config(r#"[{"name": "all", "rate": "10/s"}]"#), @"limits: expected compiled limits, found a list (`rlctl validate --compiled -f limits.yaml` prints them)");
    insta::assert_snapshot!(config(r#""AAAA""#), @"limits: not compiled limits: an item of another type (`rlctl validate --compiled -f limits.yaml` prints them)");
    insta::assert_snapshot!(config(&format!("{:?}", limits("other"))), @"limits: limits of the domain `other`");
}

#[test]
fn what_is_not_json_is_told_from_a_struct() {
    for (json, expected) in [
        ("", "the plugin has no configuration"),
        (
            "\n\x10\n\x06domain\x12\x06\x1a\x04shop",
            "google.protobuf.StringValue",
        ),
        (
            "\n{\"domain\": }",
            "not JSON: expected a value at line 2 column 12",
        ),
        ("[]", "expected a map of fields, found a list"),
    ] {
        let said = problems(json);
        assert!(said.contains(expected), "{json:?}: {said}");
    }
}
