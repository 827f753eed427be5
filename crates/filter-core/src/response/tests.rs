use super::{headers_tests::quota_status, *};

fn denial(source: DecidedBy) -> Denial {
    Denial {
        deny_status: None,
        by: vec![
            ("per-user".parse().unwrap(), true),
            ("secret".parse().unwrap(), false),
        ],
        source,
        retry_after_ms: Some(1200),
        quota_statuses: vec![QuotaStatus {
            denies: true,
            ..quota_status("per-user", 0, 1900)
        }],
    }
}

fn quotas(reply: &LocalReply) -> String {
    let lines = reply.headers.iter().map(|(k, v)| format!("{k}: {v}\n"));
    let headers: String = lines.collect();
    format!(
        "{} grpc {} {}\n{headers}\n{}",
        reply.status, reply.grpc_status, reply.details, reply.body
    )
}

fn reply(denial: Denial, config: &DenyConfig, grpc: bool) -> LocalReply {
    let (random, reply_cache) = (&mut Random::new(1), &mut ReplyCache::default());
    denial.reply(config, Styles::default(), grpc, random, reply_cache)
}

#[test]
fn a_denial_names_limit_reason_and_retry() {
    let reply = reply(denial(DecidedBy::Limiter), &DenyConfig::default(), false);
    insta::assert_snapshot!(quotas(&reply), @r#"
    429 grpc 8 rl_denied:per-user:limiter
    x-envoy-ratelimited: true
    retry-after: 2
    content-type: application/problem+json
    x-ratelimit-remaining: 0
    x-ratelimit-limit: 20
    x-ratelimit-reset: 2
    ratelimit-policy: "per-user";q=20;w=2
    ratelimit: "per-user";r=0;t=2

    {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["per-user"]}
    "#);
}

#[test]
fn a_denial_by_a_hidden_limit_shows_no_numbers_of_another() {
    let hidden = Denial {
        by: vec![("secret".parse().unwrap(), false)],
        retry_after_ms: Some(63_025_000),
        quota_statuses: vec![quota_status("per-user", 59, 25_000)],
        ..denial(DecidedBy::Limiter)
    };
    let reply = reply(hidden, &DenyConfig::default(), false);
    insta::assert_snapshot!(quotas(&reply), @r#"
    429 grpc 8 rl_denied:secret:limiter
    x-envoy-ratelimited: true
    retry-after: 63025
    content-type: application/problem+json
    ratelimit-policy: "per-user";q=20;w=2

    {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429}
    "#);
}

#[test]
fn a_missing_entry_and_a_failure_are_not_exceeded_quotas() {
    let missing = reply(denial(DecidedBy::Missing), &DenyConfig::default(), false);
    assert_eq!((missing.status, missing.grpc_status), (403, 7));
    assert!(missing.body.contains("about:blank"), "{}", missing.body);
    let failure = reply(denial(DecidedBy::Failure), &DenyConfig::default(), false);
    assert_eq!((failure.status, failure.grpc_status), (503, 14));
    assert!(!quotas(&failure).contains("x-envoy-ratelimited"));
    assert_eq!(&*failure.details, "rl_denied:per-user:failure");
}

#[test]
fn a_cached_reply_is_never_used_for_a_different_denial() {
    let reply_cache = &mut ReplyCache::default();
    let mut reply = |denial: Denial, grpc| {
        let (config, random) = (DenyConfig::default(), &mut Random::new(1));
        denial.reply(&config, Styles::default(), grpc, random, reply_cache)
    };
    let other = || Denial {
        by: vec![("other".parse().unwrap(), true)],
        ..denial(DecidedBy::Limiter)
    };
    let first = reply(denial(DecidedBy::Limiter), false);
    assert_eq!(reply(denial(DecidedBy::Limiter), false), first);
    assert!(reply(other(), false).body.contains("[\"other\"]"));
    assert!(!reply(other(), true).body.contains('{'));
    let cached = reply(denial(DecidedBy::DenyCache), false);
    assert_eq!(&*cached.details, "rl_denied:per-user:deny_cache");
    assert_eq!(cached.body, first.body);
}

#[test]
fn a_limit_has_a_status_of_its_own() {
    let cache = &mut ReplyCache::default();
    let mut reply = |source, deny_status, grpc| {
        let denial = Denial {
            deny_status,
            ..denial(source)
        };
        let (config, random) = (DenyConfig::default(), &mut Random::new(1));
        let reply = denial.reply(&config, Styles::default(), grpc, random, cache);
        let limited = reply
            .headers
            .iter()
            .any(|(name, _)| name == "x-envoy-ratelimited");
        (reply.status, reply.grpc_status, limited, reply.body)
    };
    let shed = reply(DecidedBy::Limiter, Some(503), false);
    assert_eq!((shed.0, shed.1, shed.2), (503, 14, true));
    assert!(shed.3.contains("\"status\":503"), "{}", shed.3);
    // The next denial by the same limit has another status after an edit.
    let edited = reply(DecidedBy::Limiter, Some(499), false);
    assert_eq!((edited.0, edited.1, edited.2), (499, 8, true));
    assert!(edited.3.contains("\"status\":499"), "{}", edited.3);
    assert_eq!(reply(DecidedBy::Local, Some(500), true).1, 14);
    assert_eq!(reply(DecidedBy::Local, None, false).0, 429);
    // These deny for another reason than the limit's.
    assert_eq!(reply(DecidedBy::Missing, Some(503), false).0, 403);
    let failure = reply(DecidedBy::Failure, Some(444), false);
    assert_eq!((failure.0, failure.1, failure.2), (503, 14, false));
}

#[test]
fn a_request_that_can_never_pass_gets_no_retry_after() {
    let never = Denial {
        retry_after_ms: None,
        ..denial(DecidedBy::Limiter)
    };
    let reply = reply(never, &DenyConfig::default(), false);
    assert!(reply.headers.iter().all(|(name, _)| name != "retry-after"));
}

#[test]
fn message_docs_and_body_are_as_configured() {
    let config = DenyConfig {
        status: 420,
        message: Some("enhance your \"calm\"".to_owned()),
        docs: Some("https://example.com/limits".to_owned()),
        ..DenyConfig::default()
    };
    let problem = reply(denial(DecidedBy::Limiter), &config, false);
    insta::assert_snapshot!(problem.body, @r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"enhance your \"calm\"","status":420,"violated-policies":["per-user"],"documentation":"https://example.com/limits"}"#);
    let grpc = reply(denial(DecidedBy::Limiter), &config, true);
    assert_eq!(&*grpc.body, "enhance your \"calm\"");
    let config = DenyConfig {
        body: DenyBody::Empty,
        ..config
    };
    assert_eq!(&*reply(denial(DecidedBy::Limiter), &config, false).body, "");
}

#[test]
fn jitter_only_ever_lengthens_the_wait() {
    let config = DenyConfig {
        retry_jitter_percent: 50,
        ..DenyConfig::default()
    };
    let mut random = Random::new(3);
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let denial = Denial {
            retry_after_ms: Some(10_000),
            ..denial(DecidedBy::Limiter)
        };
        let reply_cache = &mut ReplyCache::default();
        let reply = denial.reply(&config, Styles::default(), false, &mut random, reply_cache);
        let (_, wait) = reply.headers.iter().nth(1).unwrap();
        waits.insert(wait.parse::<u64>().unwrap());
    }
    assert!(
        waits.iter().all(|wait| (10..=15).contains(wait)),
        "{waits:?}"
    );
    assert!(waits.len() >= 5, "{waits:?}");
}
