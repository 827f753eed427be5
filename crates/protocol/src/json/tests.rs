use super::*;

fn descriptor(entries: &[(&str, &[u8])]) -> Descriptor {
    let entry = |(key, value): &(&str, &[u8])| (key.parse().unwrap(), value.to_vec());
    entries.iter().map(entry).collect()
}

#[test]
fn a_single_check_is_read() {
    let body = br#"{"domain":"shop","descriptor":{"user":"alice","n":42,"raw":{"base64":"/w=="},
        "absent":null},"cost":2,"peek":true,"limits":["per-user"],"require_match":true,
        "wait_ms":2000}"#;
    let request = parse(body).unwrap();
    let check = Check {
        descriptor: descriptor(&[("user", b"alice"), ("n", b"42"), ("raw", b"\xff")]),
        cost: 2,
        peek: true,
        only: vec!["per-user".parse().unwrap()],
        require_match: true,
        ..Check::default()
    };
    assert_eq!(
        request,
        Request {
            domain: "shop".parse().unwrap(),
            checks: vec![check],
            batch: false,
            wait_ms: 2000,
        }
    );
    let least = parse(br#"{"domain":"shop","descriptor":{}}"#).unwrap();
    assert_eq!(least.checks[0].cost, 1);
}

#[test]
fn a_batch_is_read_in_order() {
    let body = br#"{"domain":"shop","checks":[{"descriptor":{"user":"a"}},
        {"descriptor":{"user":"b"},"cost":0}]}"#;
    let request = parse(body).unwrap();
    assert!(request.batch);
    let costs: Vec<u64> = request.checks.iter().map(|check| check.cost).collect();
    assert_eq!(costs, [1, 0]);
}

#[test]
fn an_invalid_request_is_refused_with_its_field() {
    let many = format!(
        r#"{{"domain":"a","checks":[{}]}}"#,
        vec!["{}"; 1025].join(",")
    );
    let long = format!(
        r#"{{"domain":"a","descriptor":{{"k":"{}"}}}}"#,
        "x".repeat(65_537)
    );
    let cases = [
        ("", ""),
        ("[]", ""),
        ("{}", "domain"),
        (r#"{"domain":"","descriptor":{}}"#, "domain"),
        (r#"{"domain":null,"descriptor":{}}"#, "domain"),
        (r#"{"domain":"a"}"#, "descriptor"),
        (r#"{"domain":"a","descriptor":[]}"#, "descriptor"),
        (
            r#"{"domain":"a","descriptor":{"user":[1]}}"#,
            "descriptor.user",
        ),
        (
            r#"{"domain":"a","descriptor":{"User":"x"}}"#,
            "descriptor.User",
        ),
        (
            r#"{"domain":"a","descriptor":{"u":"x","u":"y"}}"#,
            "descriptor.u",
        ),
        (r#"{"domain":"a","descriptor":{},"cost":-1}"#, "cost"),
        (r#"{"domain":"a","descriptor":{},"cost":1.5}"#, "cost"),
        (r#"{"domain":"a","descriptor":{},"cots":1}"#, "cots"),
        (r#"{"domain":"a","descriptor":{},"limits":[]}"#, "limits"),
        (r#"{"domain":"a","descriptor":{},"peek":"yes"}"#, "peek"),
        (
            r#"{"domain":"a","checks":[{"descriptor":{}},{}]}"#,
            "checks[1].descriptor",
        ),
        (r#"{"domain":"a","checks":[],"cost":1}"#, "cost"),
        (many.as_str(), "checks"),
        (long.as_str(), "descriptor.k"),
    ];
    for (body, field) in cases {
        let error = parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert_eq!(error.field.unwrap_or_default(), field, "{body:.80}");
        assert!(!error.message.is_empty());
    }
}
