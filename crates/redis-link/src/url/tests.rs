//! URLs as users write them.

use super::*;

fn parse(text: &str) -> Result<Server, UrlError> {
    text.parse()
}

#[test]
fn passwords_are_never_shown() {
    let url = parse("valkeys://bob:s3cret%40x@[::1]:7000/3").unwrap();
    assert_eq!(url.to_string(), "rediss://bob@[::1]:7000/3");
    assert!(!format!("{url:?}").contains("s3cret"));
    assert_eq!(url.login.password(), Some("s3cret@x"));
    assert_eq!(url.login.username(), Some("bob"));
}

#[test]
fn a_user_without_a_password_is_refused_rather_than_ignored() {
    let refused = parse("redis://bob@127.0.0.1").unwrap_err();
    assert_eq!(refused, UrlError::UserWithoutPassword);
}

/// Each of these URLs is refused, and no message shows the password; returns the messages.
fn refused(urls: &str) -> Vec<String> {
    let refuse = |url: &str| {
        let message = parse(url).unwrap_err().to_string();
        assert!(!message.contains("s3cret"), "{url}: {message}");
        message
    };
    urls.split_whitespace().map(refuse).collect()
}

#[test]
fn errors_quote_nothing_of_the_url() {
    refused(
        "redis://:s3cret@ redis://:s3cret@host:notaport redis://:s3cret@host/db redis://:s3cret#x@host \
             http://:s3cret@host s3cret",
    );
    assert!(parse("").is_err());
}

#[test]
fn sentinels_are_a_list_of_hosts_and_a_service() {
    let text = "redis-sentinel://bob:s3cret@a,[::1]:7,c:8/main?db=2\
                &sentinel_user=eve&sentinel_password=s3cret%26";
    let url = parse(text).unwrap();
    let shown = "redis-sentinel://bob@a:26379,[::1]:7,c:8/main?db=2";
    assert_eq!(url.to_string(), shown);
    assert!(!format!("{url:?}").contains("s3cret"));
    let Address::Sentinel { sentinels, tls } = url.address else {
        panic!("found by sentinels")
    };
    assert!(!tls && sentinels.service == "main");
    assert_eq!(sentinels.login.username(), Some("eve"));
    assert_eq!(sentinels.login.password(), Some("s3cret&"));
    refused(
        "redis-sentinel://a:1 redis-sentinel://a:1/ redis-sentinel:///main
         redis-sentinel://a:1/main/2 redis-sentinel://a:x/main redis-sentinel://a:1,/main
         redis-sentinel://bob@a:1/main redis-sentinel://a:1/main?sentinel_user=eve
         redis-sentinel://a:1/main?password=s3cret",
    );
}

#[test]
fn a_cluster_is_a_list_of_hosts() {
    let url = parse("rediss-cluster://bob:s3cret@a,[::1]:7,c:8/").unwrap();
    assert_eq!(url.to_string(), "rediss-cluster://bob@a:6379,[::1]:7,c:8");
    assert!(!format!("{url:?}").contains("s3cret"));
    assert_eq!(url.login.password(), Some("s3cret"));
    assert!(matches!(url.address, Address::Cluster { tls: true, .. }));
    refused(
        "redis-cluster:// redis-cluster://:s3cret@ redis-cluster://a:1, redis-cluster://a:x
         redis-cluster://a:1/2 redis-cluster://a:1/main redis-cluster://bob@a:1
         redis-cluster://:s3cret#@a:1 redis-cluster://:s3cret@a:1?db=2",
    );
    let database = parse("redis-cluster://a:1/2").unwrap_err().to_string();
    assert!(database.contains("database"), "{database}");
}

#[test]
fn no_parameter_is_dropped() {
    for (text, shown) in [
        ("redis://a:1?db=3", "redis://a:1/3"),
        ("rediss://bob:s3cret@a:1/?db=3", "rediss://bob@a:1/3"),
        ("redis://a:1/3?", "redis://a:1/3"),
        ("unix:///r?db=3&user=bob&pass=s3cret", "unix:///r/3"),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), shown, "{text}");
    }
    let sentinel = "redis-sentinel://a:1/main?db=3";
    assert_eq!(parse(sentinel).unwrap().to_string(), sentinel);
    let socket = parse("unix:///run/r.sock?user=bob&pass=s3%26ret").unwrap();
    assert_eq!(socket.login.username(), Some("bob"));
    assert_eq!(socket.login.password(), Some("s3&ret"));
    let messages = refused(
        "redis://a:1?ssl=true redis://:s3cret@a:1/?db=3&tls=1 redis://a:1/2?db=3
         redis://a:1?db=3&db=4 redis://a:1?db= redis://a:1?db redis://a:1?db=x
         redis://a:1?protocol=resp3 redis://a:1?password=s3cret redis://:pa?s3cret@a:1
         valkeys://a:1?ssl_cert_reqs=none unix:///run/r.sock?password=s3cret
         unix:///run/r.sock?protocol=3 redis-sentinel://a:1/main?ssl=true
         redis-sentinel://a:1/main?db=1&db=2 redis-cluster://a:1?ssl=true",
    );
    for message in messages {
        let named = message.contains("parameter") || message.contains("database");
        assert!(named, "{message}");
    }
}
