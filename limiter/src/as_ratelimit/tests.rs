use clap::Parser;
use store::StoreUrl;

use super::*;
use crate::Flags;

fn translated(variables: &[(&str, &str)]) -> Result<AsRatelimit, String> {
    AsRatelimit::new(|name| {
        let mut found = variables.iter().filter(|(known, _)| *known == name);
        found.next_back().map(|(_, value)| (*value).to_owned())
    })
}

/// What Envoy Gateway 1.5 sets, with Prometheus as by default.
const GATEWAY: [(&str, &str); 20] = [
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis.redis.svc:6379"),
];

#[test]
fn envoy_gateways_environment_is_a_command_line() {
    let prometheus = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", ":19001")];
    let found = translated(&[&GATEWAY[..], &prometheus].concat()).unwrap();
    assert_eq!(found.notes, [""; 0]);
    let flags = Flags::try_parse_from(&found.arguments).unwrap();
    assert_eq!(flags.listen, "0.0.0.0:8081".parse().unwrap());
    let admin = ["0.0.0.0:8080", "0.0.0.0:19001"].map(|address| address.parse().unwrap());
    assert_eq!(flags.admin, admin);
    let url = flags.store.0.unwrap();
    assert_eq!(url.to_string(), "redis://redis.redis.svc:6379");
    assert_eq!(
        flags.xds_server.as_deref(),
        Some("https://envoy-gateway:18001")
    );
    assert_eq!(flags.xds_node, "envoy-ratelimit");
    for (path, expected) in [
        (&flags.tls_cert, "/certs/tls.crt"),
        (&flags.tls_key, "/certs/tls.key"),
        (&flags.client_ca, "/certs/ca.crt"),
        (&flags.xds_cert, "/certs/tls.crt"),
        (&flags.xds_key, "/certs/tls.key"),
        (&flags.xds_ca, "/certs/ca.crt"),
    ] {
        assert_eq!(path.as_deref(), Some(Path::new(expected)));
    }
    assert_eq!(flags.log, "info");
}

fn store(variables: &[(&str, &str)]) -> Result<String, String> {
    let arguments = translated(variables)?.arguments;
    let at = arguments.iter().position(|word| word == "--store");
    Ok(arguments[at.unwrap() + 1].clone())
}

#[test]
fn stores_of_all_kinds_are_named() {
    let tcp = ("REDIS_SOCKET_TYPE", "tcp");
    for (variables, expected) in [
        (
            &[("REDIS_URL", "/run/redis.sock")][..],
            "unix:///run/redis.sock",
        ),
        (
            &[("REDIS_URL", "/run/redis.sock"), ("REDIS_AUTH", "p/w")],
            "unix:///run/redis.sock?pass=p%2Fw",
        ),
        (
            &[("REDIS_URL", "r:1"), tcp, ("REDIS_AUTH", "p/w")],
            "redis://:p%2Fw@r:1",
        ),
        (
            &[
                ("REDIS_URL", "r:1"),
                ("REDIS_SOCKET_TYPE", "tls"),
                ("REDIS_AUTH", "u:p"),
            ],
            "rediss://u:p@r:1",
        ),
        (
            &[
                ("REDIS_URL", "main,a:1,b:2"),
                ("REDIS_TYPE", "SENTINEL"),
                ("REDIS_TLS", "true"),
                ("REDIS_SENTINEL_AUTH", "eve:s&t"),
            ],
            "rediss-sentinel://a:1,b:2/main?sentinel_user=eve&sentinel_password=s%26t",
        ),
        (
            &[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "cluster")],
            "redis-cluster://a:1,b:2",
        ),
    ] {
        assert_eq!(store(variables).as_deref(), Ok(expected));
        assert!(expected.parse::<StoreUrl>().is_ok(), "{expected}");
    }
    let own = translated(&[("RL_STORE", "memory")]).unwrap();
    assert!(!own.arguments.contains(&"--store".to_owned()));
}

#[test]
fn a_scheme_replaces_the_socket_type_and_nothing_else() {
    for (variables, expected) in [
        (
            &[
                ("REDIS_URL", "redis://r:1/2"),
                ("REDIS_TLS", "true"),
                ("REDIS_AUTH", "s3cret"),
            ][..],
            "rediss://:s3cret@r:1/2",
        ),
        (
            &[("REDIS_URL", "redis://:s3cret@r:1"), ("REDIS_TLS", "1")],
            "rediss://:s3cret@r:1",
        ),
        (
            &[("REDIS_URL", "valkeys://r:1"), ("REDIS_AUTH", "u:p")],
            "rediss://u:p@r:1",
        ),
        (
            &[
                ("REDIS_URL", "redis://a:1,b:2"),
                ("REDIS_TYPE", "CLUSTER"),
                ("REDIS_AUTH", "s3cret"),
                ("REDIS_TLS", "T"),
            ],
            "rediss-cluster://:s3cret@a:1,b:2",
        ),
        (
            &[
                ("REDIS_URL", "redis-sentinel://a:1/main?db=2"),
                ("REDIS_AUTH", "p"),
                ("REDIS_SENTINEL_AUTH", "q"),
            ],
            "redis-sentinel://:p@a:1/main?db=2&sentinel_password=q",
        ),
    ] {
        assert_eq!(store(variables).as_deref(), Ok(expected));
    }
}

#[test]
fn a_store_that_would_be_another_one_is_refused() {
    for (variables, names) in [
        // Which of the two passwords?
        (
            &[("REDIS_URL", "redis://:a@r:1"), ("REDIS_AUTH", "s3cret")][..],
            "REDIS_AUTH",
        ),
        (
            &[("REDIS_URL", "/run/redis.sock"), ("REDIS_TLS", "true")],
            "REDIS_TLS",
        ),
        (
            &[("REDIS_URL", "main"), ("REDIS_TYPE", "sentinel")],
            "REDIS_URL",
        ),
        (
            &[("REDIS_URL", "r:1"), ("REDIS_SOCKET_TYPE", "udp")],
            "REDIS_SOCKET_TYPE",
        ),
        (&[("REDIS_URL", "http://r:1")], "REDIS_URL"),
        (&[("REDIS_URL", "redis://r:1?ssl=true")], "REDIS_URL"),
        (
            &[("REDIS_URL", "r:1"), ("REDIS_TYPE", "ring")],
            "REDIS_TYPE",
        ),
    ] {
        let error = store(variables).unwrap_err();
        assert!(error.contains(names), "{variables:?}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// What becomes of a setting.
#[derive(Clone, Copy, Debug)]
enum Becomes {
    /// These words are arguments then.
    Words(&'static str),
    /// A line of the log names it; nothing else changes.
    Note,
    /// The start fails with a message that names it.
    Error,
    /// Decisions and what one sees stay the same: there is nothing to say.
    Nothing,
}
use Becomes::{Error, Note, Nothing, Words};

/// Every setting of envoyproxy/ratelimit (2026, releases and open pull requests), with a value that
/// is not its default, and those of Envoy Gateway.
const ALL: &[(&str, &str, Becomes)] = &[
    ("BACKEND_TYPE", "memcache", Error),
    ("CACHE_KEY_PREFIX", "mine:", Words("--key-prefix mine:")),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        "authorization:s3cret",
        Error,
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        "c.pem",
        Words("--xds-cert c.pem"),
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        "k.pem",
        Words("--xds-key k.pem"),
    ),
    ("CONFIG_GRPC_XDS_NODE_ID", "me", Words("--xds-node me")),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "a:b", Error),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "9s",
        Nothing,
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        "ca.pem",
        Words("--xds-ca ca.pem"),
    ),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "other", Note),
    (
        "CONFIG_GRPC_XDS_SERVER_URL",
        "xds:1",
        Words("--xds-server https://xds:1"),
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        "false",
        Words("--xds-server http://localhost:18000"),
    ),
    ("CONFIG_TYPE", "FILE", Words("--rls-config")),
    ("DEBUG_HOST", "127.0.0.1", Nothing),
    ("DEBUG_PORT", "6071", Note),
    ("DISABLE_STATS", "true", Note),
    ("EXPIRATION_JITTER_MAX_SECONDS", "30", Nothing),
    ("EXTRA_TAGS", "a:b", Note),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true", Nothing),
    (
        "GRPC_CLIENT_TLS_CACERT",
        "ca.pem",
        Words("--client-ca ca.pem"),
    ),
    ("GRPC_CLIENT_TLS_SAN", "envoy", Error),
    ("GRPC_HOST", "127.0.0.1", Words("--listen 127.0.0.1:8081")),
    ("GRPC_MAX_CONCURRENT_STREAMS", "16", Note),
    (
        "GRPC_MAX_CONNECTION_AGE",
        "1h30m",
        Words("--max-connection-age 5400000ms"),
    ),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "1m", Note),
    ("GRPC_PORT", "9", Words("--listen 0.0.0.0:9")),
    (
        "GRPC_SERVER_TLS_CA_CERT",
        "ca.pem",
        Words("--client-ca ca.pem"),
    ),
    ("GRPC_SERVER_TLS_CERT", "c.pem", Words("--tls-cert c.pem")),
    ("GRPC_SERVER_TLS_KEY", "k.pem", Words("--tls-key k.pem")),
    ("GRPC_SERVER_USE_TLS", "1", Words("--tls-cert")),
    ("GRPC_UDS", "/run/grpc.sock", Error),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true", Note),
    ("HOST", "127.0.0.1", Words("--admin 127.0.0.1:8080")),
    ("LIMIT_LIMIT_HEADER", "X-L", Nothing),
    ("LIMIT_REMAINING_HEADER", "X-R", Nothing),
    ("LIMIT_REQUEST_HEADERS_ENABLED", "true", Note),
    ("LIMIT_REQUEST_LIMIT_HEADER", "X-L", Nothing),
    ("LIMIT_REQUEST_REMAINING_HEADER", "X-R", Nothing),
    ("LIMIT_REQUEST_RESET_HEADER", "X-T", Nothing),
    ("LIMIT_RESET_HEADER", "X-T", Nothing),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "true", Note),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1000", Nothing),
    ("LOG_FORMAT", "JSON", Words("--log-format json")),
    ("LOG_LEVEL", "DEBUG", Words("--log debug")),
    ("MAX_CONCURRENT_REQUESTS", "32", Note),
    ("MEMCACHE_HOST_PORT", "m:1", Nothing),
    ("MEMCACHE_MAX_IDLE_CONNS", "3", Nothing),
    ("MEMCACHE_SRV", "m", Nothing),
    ("MEMCACHE_SRV_REFRESH", "3s", Nothing),
    ("MEMCACHE_TLS", "true", Nothing),
    ("MEMCACHE_TLS_CACERT", "ca.pem", Nothing),
    ("MEMCACHE_TLS_CLIENT_CERT", "c.pem", Nothing),
    ("MEMCACHE_TLS_CLIENT_KEY", "k.pem", Nothing),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "true", Nothing),
    ("MERGE_DOMAIN_CONFIG", "true", Nothing),
    ("NEAR_LIMIT_RATIO", "0.5", Note),
    ("PORT", "9", Words("--admin 0.0.0.0:9")),
    (
        "PROMETHEUS_ADDR",
        ":19001",
        Words("--admin 0.0.0.0:8080,0.0.0.0:19001"),
    ),
    ("PROMETHEUS_MAPPER_YAML", "conf.yaml", Nothing),
    ("PROMETHEUS_PATH", "/stats", Note),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true", Note),
    ("PROTO", "tcp6", Note),
    ("QUOTA_MODE", "true", Error),
    ("REDIS_AUTH", "s3cret", Words("--store redis://:s3cret@r:1")),
    ("REDIS_AUTH_FILE", "/run/secret", Error),
    ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true", Nothing),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "8", Nothing),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true", Note),
    ("REDIS_PERSECOND", "true", Note),
    ("REDIS_PERSECOND_AUTH", "s3cret", Nothing),
    ("REDIS_PERSECOND_AUTH_FILE", "/run/secret", Nothing),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "8", Nothing),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "3", Nothing),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "3ms", Nothing),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "ERROR", Nothing),
    ("REDIS_PERSECOND_POOL_SIZE", "3", Nothing),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "s3cret", Nothing),
    ("REDIS_PERSECOND_SOCKET_TYPE", "tcp", Nothing),
    ("REDIS_PERSECOND_TIMEOUT", "3s", Nothing),
    ("REDIS_PERSECOND_TLS", "true", Nothing),
    ("REDIS_PERSECOND_TYPE", "CLUSTER", Nothing),
    ("REDIS_PERSECOND_URL", "r:2", Nothing),
    ("REDIS_PERSECOND_USE_EXPLICIT_PIPELINE", "true", Nothing),
    ("REDIS_PIPELINE_LIMIT", "3", Nothing),
    ("REDIS_PIPELINE_WINDOW", "3ms", Nothing),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "ERROR", Nothing),
    ("REDIS_POOL_SIZE", "3", Nothing),
    (
        "REDIS_SENTINEL_AUTH",
        "s3cret",
        Words("/main?sentinel_password=s3cret"),
    ),
    ("REDIS_SOCKET_TYPE", "tls", Words("--store rediss://r:1")),
    ("REDIS_TIMEOUT", "3s", Note),
    ("REDIS_TLS", "true", Words("--store rediss://r:1")),
    ("REDIS_TLS_CACERT", "ca.pem", Note),
    (
        "REDIS_TLS_CLIENT_CERT",
        "c.pem",
        Words("--store-cert c.pem"),
    ),
    ("REDIS_TLS_CLIENT_KEY", "k.pem", Words("--store-key k.pem")),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true", Note),
    (
        "REDIS_TYPE",
        "CLUSTER",
        Words("--store redis-cluster://r:1"),
    ),
    ("REDIS_URL", "r:7", Words("--store redis://r:7")),
    ("REDIS_USE_EXPLICIT_PIPELINE", "true", Nothing),
    ("REQUEST_TIMEOUT", "250ms", Note),
    ("RESPONSE_DYNAMIC_METADATA", "true", Note),
    (
        "RUNTIME_APPDIRECTORY",
        "conf",
        Words("--rls-config /srv/runtime_data/current/conf"),
    ),
    ("RUNTIME_IGNOREDOTFILES", "true", Nothing),
    ("RUNTIME_ROOT", "/data", Words("--rls-config /data/config")),
    (
        "RUNTIME_SUBDIRECTORY",
        "sub",
        Words("--rls-config /srv/runtime_data/current/sub/config"),
    ),
    ("RUNTIME_WATCH_ROOT", "false", Nothing),
    ("SHADOW_MODE", "true", Error),
    ("STATSD_HOST", "s", Nothing),
    ("STATSD_PORT", "1", Nothing),
    ("STATS_FLUSH_INTERVAL", "3s", Nothing),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true", Nothing),
    ("TRACING_ENABLED", "true", Note),
    ("TRACING_EXPORTER_PROTOCOL", "grpc", Nothing),
    ("TRACING_SAMPLING_RATE", "0.5", Nothing),
    ("TRACING_SERVICE_INSTANCE_ID", "a", Nothing),
    ("TRACING_SERVICE_NAME", "a", Nothing),
    ("TRACING_SERVICE_NAMESPACE", "a", Nothing),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", "true", Error),
    ("USE_DOG_STATSD", "true", Note),
    ("USE_DOG_STATSD_MOGRIFIERS", "a", Nothing),
    (
        "USE_PROMETHEUS",
        "true",
        Words("--admin 0.0.0.0:8080,0.0.0.0:9090"),
    ),
    ("USE_STATSD", "true", Note),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "3s", Nothing),
    ("XDS_CLIENT_BACKOFF_JITTER", "false", Nothing),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "3s", Nothing),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.1", Nothing),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "100", Note),
];

/// What a setting needs beside it to mean anything.
fn beside(name: &str) -> Vec<(&'static str, &'static str)> {
    let mut variables = vec![("REDIS_URL", "r:1"), ("REDIS_SOCKET_TYPE", "tcp")];
    if name.starts_with("CONFIG_GRPC") {
        variables.push(("CONFIG_TYPE", "GRPC_XDS_SOTW"));
        variables.push(("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"));
    }
    if name.starts_with("CONFIG_GRPC_XDS_CLIENT_TLS") {
        let files = [
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        ];
        variables.extend(files.map(|name| (name, "x.pem")));
    }
    if name.starts_with("GRPC_SERVER") || name.starts_with("GRPC_CLIENT") {
        variables.push(("GRPC_SERVER_TLS_CERT", "x.pem"));
        variables.push(("GRPC_SERVER_TLS_KEY", "x.pem"));
        if name != "GRPC_SERVER_USE_TLS" {
            variables.push(("GRPC_SERVER_USE_TLS", "true"));
        }
    }
    match name {
        "PROMETHEUS_ADDR" => variables.push(("USE_PROMETHEUS", "true")),
        "REDIS_TLS_CLIENT_CERT" => variables.push(("REDIS_TLS_CLIENT_KEY", "x.pem")),
        "REDIS_TLS_CLIENT_KEY" => variables.push(("REDIS_TLS_CLIENT_CERT", "x.pem")),
        "REDIS_SENTINEL_AUTH" => {
            variables.extend([("REDIS_URL", "main,r:1"), ("REDIS_TYPE", "SENTINEL")]);
        }
        _ => {}
    }
    variables
}

#[test]
fn every_setting_of_the_original_is_translated_noted_refused_or_harmless() {
    let docs = include_str!("../../../docs/migrating/envoy-ratelimit.md");
    let mut table: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    table.sort_unstable();
    let missed = ALL
        .iter()
        .filter(|(.., becomes)| matches!(becomes, Note | Error));
    let missed: Vec<&str> = missed.map(|(name, ..)| *name).collect();
    assert_eq!(table, missed);
    for (name, value, becomes) in ALL {
        let without = || translated(&beside(name)).unwrap();
        let found = translated(&[&beside(name)[..], &[(name, value)]].concat());
        match becomes {
            Words(words) => {
                let found = found.unwrap();
                let arguments = found.arguments.join(" ");
                assert!(arguments.contains(words), "{name}: {arguments}");
                assert_eq!(found.notes, [""; 0], "{name}");
                assert!(
                    Flags::try_parse_from(&found.arguments).is_ok(),
                    "{name}: {arguments}"
                );
            }
            Note => {
                let found = found.unwrap();
                assert_eq!(found.arguments, without().arguments, "{name}");
                let notes = found.notes.join("\n");
                assert!(notes.starts_with(name), "{name}: {notes:?}");
            }
            Error => {
                let error = found.unwrap_err();
                assert!(error.starts_with(name), "{name}: {error}");
                assert!(!error.contains("s3cret"), "{error}");
            }
            Nothing => assert_eq!(found.as_ref(), Ok(&without()), "{name}"),
        }
        assert!(
            docs.contains(&format!("`{name}`")),
            "{name} is not in the docs"
        );
    }
}

#[test]
fn a_value_that_the_original_takes_is_no_error() {
    let file = ("REDIS_URL", "/run/redis.sock");
    for (name, value, words) in [
        (
            "GRPC_MAX_CONNECTION_AGE",
            "90s",
            "--max-connection-age 90000ms",
        ),
        (
            "GRPC_MAX_CONNECTION_AGE",
            "1h1.5s",
            "--max-connection-age 3601500ms",
        ),
        (
            "GRPC_MAX_CONNECTION_AGE",
            "100us",
            "--max-connection-age 1ms",
        ),
        ("LOG_FORMAT", "Text", "--log-format text"),
        ("LOG_LEVEL", "Warning", "--log warn"),
        ("LOG_LEVEL", "panic", "--log error"),
        ("GRPC_SERVER_USE_TLS", "FALSE", "--listen"),
    ] {
        let arguments = translated(&[file, (name, value)]).unwrap().arguments;
        assert!(arguments.join(" ").contains(words), "{name}: {arguments:?}");
        let flags = Flags::try_parse_from(&arguments);
        assert!(flags.is_ok(), "{name}={value}: {:?}", flags.err());
    }
    // No age at all.
    let never = translated(&[file, ("GRPC_MAX_CONNECTION_AGE", "0")]).unwrap();
    assert!(!never.arguments.contains(&"--max-connection-age".to_owned()));
    // A default that is set all the same needs no note.
    let defaults = [
        ("USE_STATSD", "False"),
        ("DEBUG_PORT", "6070"),
        ("SHADOW_MODE", "f"),
    ];
    let found = translated(&[&[file][..], &defaults].concat()).unwrap();
    assert_eq!(found.notes, [""; 0]);
    for (name, value) in [
        ("GRPC_MAX_CONNECTION_AGE", "1 hour"),
        ("GRPC_MAX_CONNECTION_AGE", "-3s"),
        ("GRPC_MAX_CONNECTION_AGE", "90"),
        ("GRPC_MAX_CONNECTION_AGE", "99999999999999999999h"),
        ("LOG_LEVEL", "loud"),
    ] {
        let error = translated(&[file, (name, value)]).unwrap_err();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn the_runtime_variables_set_the_configuration_folder() {
    let found = translated(&[
        ("REDIS_URL", "/r"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ]);
    let arguments = found.unwrap().arguments.join(" ");
    assert!(
        arguments.contains("--rls-config /data/ratelimit/config"),
        "{arguments}"
    );
}

#[test]
fn an_unsupported_variable_is_an_error_or_a_note() {
    let redis = ("REDIS_URL", "/run/redis.sock");
    for wrong in [
        ("BACKEND_TYPE", "memcache"),
        ("SHADOW_MODE", "true"),
        ("CONFIG_TYPE", "CONSUL"),
        ("GRPC_SERVER_USE_TLS", "perhaps"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_HOST", "localhost"),
        ("REDIS_URL", ""),
    ] {
        assert!(translated(&[redis, wrong]).is_err(), "{wrong:?}");
    }
    let found = translated(&[redis, ("USE_STATSD", "true")]).unwrap();
    assert_eq!(
        found.notes,
        ["USE_STATSD=true has no effect: metrics are at /metrics"]
    );
}
