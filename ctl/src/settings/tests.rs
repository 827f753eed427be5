use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    global: Global,
}

fn resolve(flags: &[&str], environment: &[(&str, &str)]) -> Result<Settings, Error> {
    let words = ["rlctl"].iter().chain(flags);
    let global = Line::try_parse_from(words).unwrap().global;
    Settings::resolve(&global, |name| {
        let found = environment.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_default() {
    let all = [
        ("RLCTL_REDIS", "redis://a:1"),
        ("RL_STORE", "redis://b:2"),
        ("REDIS_URL", "redis://c:3"),
        ("RLCTL_DOMAIN", "shop"),
    ];
    let settings = resolve(&["--redis", "redis://d:4", "--domain", "admin"], &all).unwrap();
    assert_eq!(settings.url.to_string(), "redis://d:4");
    assert_eq!(settings.domain.unwrap().as_str(), "admin");
    for (skipped, url, source) in [
        (0, "redis://a:1", "RLCTL_REDIS"),
        (1, "redis://b:2", "RL_STORE"),
        (2, "redis://c:3", "REDIS_URL"),
        (3, "redis://127.0.0.1:6379", "the default"),
    ] {
        let settings = resolve(&[], &all[skipped..]).unwrap();
        assert_eq!(settings.url.to_string(), url);
        assert_eq!(settings.url_source, source);
    }
}

#[test]
fn an_empty_variable_says_nothing() {
    let empty = [
        ("RLCTL_REDIS", ""),
        ("RLCTL_DOMAIN", ""),
        ("RLCTL_TIMEOUT", ""),
    ];
    let settings = resolve(&[], &empty).unwrap();
    assert_eq!(settings.url_source, "the default");
    assert_eq!(settings.domain, None);
    assert_eq!(settings.timeout, DEFAULT_TIMEOUT);
}

#[test]
fn a_certificate_is_set_with_its_key() {
    let (cert, key) = (("RL_STORE_CERT", "c.pem"), ("RL_STORE_KEY", "c.key"));
    assert_eq!(resolve(&[], &[]).unwrap().client_certificate, None);
    let both = resolve(&[], &[cert, key]).unwrap();
    assert!(both.client_certificate.is_some());
    for (alone, message) in [
        (cert, "RL_STORE_CERT is set and RL_STORE_KEY is not"),
        (key, "RL_STORE_KEY is set and RL_STORE_CERT is not"),
    ] {
        let error = resolve(&[], &[alone]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn errors_name_the_flag_and_never_the_password() {
    for (flags, message) in [
        (["--redis", "http://:s3cret@host"], "--redis: the URL of"),
        (
            ["--redis", "redis://:s3cret@host:port"],
            "--redis: the store's URL is malformed",
        ),
        (
            ["--redis", "redis://:s3cret@host?ssl=true"],
            "--redis: the store's URL is malformed: a parameter after `?` is unknown",
        ),
        (["--redis", "memory"], "--redis is `memory`"),
        (["--timeout", "1"], "--timeout: "),
        (["--timeout", "0s"], "--timeout: expected more"),
        (["--domain", "a\u{7}"], "--domain: a domain is"),
        (["--key-prefix", "{x}"], "--key-prefix: a key prefix is"),
    ] {
        let error = resolve(&flags, &[]).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn a_misspelt_variable_is_noticed() {
    let variables = [
        "RLCTL_REDSI",
        "RLCTL_REDIS",
        "RLCTL_BINARY",
        "RL_STORE",
        "RLCTL_DOMIAN",
    ];
    let found: Vec<_> = misspelt(variables.iter().map(OsString::from)).collect();
    let pair = |name: &str, meant| (name.to_owned(), meant);
    let meant = [pair("RLCTL_REDSI", "REDIS"), pair("RLCTL_DOMIAN", "DOMAIN")];
    assert_eq!(found, meant);
}
