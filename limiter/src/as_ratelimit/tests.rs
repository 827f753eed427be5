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

#[test]
fn stores_of_all_kinds_are_named() {
    for (variables, expected) in [
        (
            &[("REDIS_URL", "/run/redis.sock")][..],
            "unix:///run/redis.sock",
        ),
        (
            &[
                ("REDIS_URL", "r:1"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_AUTH", "p/w"),
            ],
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
            ],
            "rediss-sentinel://a:1,b:2/main",
        ),
        (
            &[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "cluster")],
            "redis-cluster://a:1,b:2",
        ),
    ] {
        let found = translated(variables).unwrap();
        let at = found
            .arguments
            .iter()
            .position(|word| word == "--store")
            .unwrap();
        assert_eq!(found.arguments[at + 1], expected);
        assert!(expected.parse::<StoreUrl>().is_ok(), "{expected}");
    }
    let own = translated(&[("RL_STORE", "memory")]).unwrap();
    assert!(!own.arguments.contains(&"--store".to_owned()));
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
