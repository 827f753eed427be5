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

/// What Envoy Gateway 1.5 sets, with Prometheus.
const GATEWAY: &str = "
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false
    LOG_LEVEL=info USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/certs/tls.crt
    GRPC_SERVER_TLS_KEY=/certs/tls.key GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt CONFIG_GRPC_XDS_SERVER_USE_TLS=true
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true
    REDIS_SOCKET_TYPE=tcp REDIS_URL=redis.redis.svc:6379 USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001";

#[test]
fn envoy_gateways_environment_is_a_command_line() {
    let found = translated(&variables(GATEWAY)).unwrap();
    assert_eq!(found.notes, [""; 0]);
    let flags = Flags::try_parse_from(&found.arguments).unwrap();
    assert_eq!(flags.listen, "0.0.0.0:8081".parse().unwrap());
    let admin = ["0.0.0.0:8080", "0.0.0.0:19001"].map(|address| address.parse().unwrap());
    assert_eq!(flags.admin, admin);
    let url = flags.store.0.unwrap();
    assert_eq!(url.to_string(), "redis://redis.redis.svc:6379");
    let server = Some("https://envoy-gateway:18001");
    assert_eq!(flags.xds_server.as_deref(), server);
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

/// The variables of a line, such as `REDIS_URL=r:1 REDIS_TLS=true`.
fn variables(line: &str) -> Vec<(&str, &str)> {
    let words = line.split_whitespace();
    words.map(|word| word.split_once('=').unwrap()).collect()
}

/// Each line has variables, and behind `=>` what becomes of them.
fn rows(table: &str) -> impl Iterator<Item = (Vec<(&str, &str)>, &str)> {
    let rows = table
        .trim()
        .lines()
        .map(|line| line.split_once(" => ").unwrap());
    rows.map(|(left, right)| (variables(left), right.trim()))
}

#[test]
fn stores_of_all_kinds_are_named() {
    let table = "
        REDIS_URL=/run/redis.sock => unix:///run/redis.sock
        REDIS_URL=/run/redis.sock REDIS_AUTH=p/w => unix:///run/redis.sock?pass=p%2Fw
        REDIS_URL=r:1 REDIS_SOCKET_TYPE=tcp REDIS_AUTH=p/w => redis://:p%2Fw@r:1
        REDIS_URL=r:1 REDIS_SOCKET_TYPE=tls REDIS_AUTH=u:p => rediss://u:p@r:1
        REDIS_URL=main,a:1,b:2 REDIS_TYPE=SENTINEL REDIS_TLS=true REDIS_SENTINEL_AUTH=eve:s&t => rediss-sentinel://a:1,b:2/main?sentinel_user=eve&sentinel_password=s%26t
        REDIS_URL=a:1,b:2 REDIS_TYPE=cluster => redis-cluster://a:1,b:2";
    for (variables, expected) in rows(table) {
        assert_eq!(store(&variables).as_deref(), Ok(expected));
        assert!(expected.parse::<StoreUrl>().is_ok(), "{expected}");
    }
    let own = translated(&[("RL_STORE", "memory")]).unwrap();
    assert!(!own.arguments.contains(&"--store".to_owned()));
}

#[test]
fn a_scheme_replaces_the_socket_type_and_nothing_else() {
    let table = "
        REDIS_URL=redis://r:1/2 REDIS_TLS=true REDIS_AUTH=s3cret => rediss://:s3cret@r:1/2
        REDIS_URL=redis://:s3cret@r:1 REDIS_TLS=1 => rediss://:s3cret@r:1
        REDIS_URL=valkeys://r:1 REDIS_AUTH=u:p => rediss://u:p@r:1
        REDIS_URL=redis://a:1,b:2 REDIS_TYPE=CLUSTER REDIS_AUTH=s3cret REDIS_TLS=T => rediss-cluster://:s3cret@a:1,b:2
        REDIS_URL=redis-sentinel://a:1/main?db=2 REDIS_AUTH=p REDIS_SENTINEL_AUTH=q => redis-sentinel://:p@a:1/main?db=2&sentinel_password=q";
    for (variables, expected) in rows(table) {
        assert_eq!(store(&variables).as_deref(), Ok(expected));
    }
}

/// In the first row: which of the two passwords?
#[test]
fn a_store_that_would_be_another_one_is_refused() {
    let table = "
        REDIS_URL=redis://:a@r:1 REDIS_AUTH=s3cret => REDIS_AUTH
        REDIS_URL=/run/redis.sock REDIS_TLS=true => REDIS_TLS
        REDIS_URL=main REDIS_TYPE=sentinel => REDIS_URL
        REDIS_URL=r:1 REDIS_SOCKET_TYPE=udp => REDIS_SOCKET_TYPE
        REDIS_URL=http://r:1 => REDIS_URL
        REDIS_URL=redis://r:1?ssl=true => REDIS_URL
        REDIS_URL=r:1 REDIS_TYPE=ring => REDIS_TYPE";
    for (variables, names) in rows(table) {
        let error = store(&variables).unwrap_err();
        assert!(error.contains(names), "{variables:?}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// Every setting of envoyproxy/ratelimit (2026, releases and open pull requests), with a value that is not its
/// default, and those of Envoy Gateway. What becomes of it is words of the command line; `note`: a line of the log names
/// it, and nothing else changes; `error`: the start fails with a message that names it; or `nothing`, because
/// decisions and what one sees stay the same.
const ALL: &str = "
BACKEND_TYPE=memcache => error
CACHE_KEY_PREFIX=mine: => --key-prefix mine:
CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:s3cret => error
CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c.pem => --xds-cert c.pem
CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k.pem => --xds-key k.pem
CONFIG_GRPC_XDS_NODE_ID=me => --xds-node me
CONFIG_GRPC_XDS_NODE_METADATA=a:b => error
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=9s => nothing
CONFIG_GRPC_XDS_SERVER_TLS_CACERT=ca.pem => --xds-ca ca.pem
CONFIG_GRPC_XDS_SERVER_TLS_SAN=other => note
CONFIG_GRPC_XDS_SERVER_URL=xds:1 => --xds-server https://xds:1
CONFIG_GRPC_XDS_SERVER_USE_TLS=false => --xds-server http://localhost:18000
CONFIG_TYPE=FILE => --rls-config
DEBUG_HOST=127.0.0.1 => nothing
DEBUG_PORT=6071 => note
DISABLE_STATS=true => note
EXPIRATION_JITTER_MAX_SECONDS=30 => nothing
EXTRA_TAGS=a:b => note
FORCE_START_WITHOUT_INITIAL_CONFIG=true => nothing
GRPC_CLIENT_TLS_CACERT=ca.pem => --client-ca ca.pem
GRPC_CLIENT_TLS_SAN=envoy => error
GRPC_HOST=127.0.0.1 => --listen 127.0.0.1:8081
GRPC_MAX_CONCURRENT_STREAMS=16 => note
GRPC_MAX_CONNECTION_AGE=1h30m => --max-connection-age 5400000ms
GRPC_MAX_CONNECTION_AGE_GRACE=1m => note
GRPC_PORT=9 => --listen 0.0.0.0:9
GRPC_SERVER_TLS_CA_CERT=ca.pem => --client-ca ca.pem
GRPC_SERVER_TLS_CERT=c.pem => --tls-cert c.pem
GRPC_SERVER_TLS_KEY=k.pem => --tls-key k.pem
GRPC_SERVER_USE_TLS=1 => --tls-cert
GRPC_UDS=/run/grpc.sock => error
HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true => note
HOST=127.0.0.1 => --admin 127.0.0.1:8080
LIMIT_LIMIT_HEADER=X-L => nothing
LIMIT_REMAINING_HEADER=X-R => nothing
LIMIT_REQUEST_HEADERS_ENABLED=true => note
LIMIT_REQUEST_LIMIT_HEADER=X-L => nothing
LIMIT_REQUEST_REMAINING_HEADER=X-R => nothing
LIMIT_REQUEST_RESET_HEADER=X-T => nothing
LIMIT_RESET_HEADER=X-T => nothing
LIMIT_RESPONSE_HEADERS_ENABLED=true => note
LOCAL_CACHE_SIZE_IN_BYTES=1000 => nothing
LOG_FORMAT=JSON => --log-format json
LOG_LEVEL=DEBUG => --log debug
MAX_CONCURRENT_REQUESTS=32 => note
MEMCACHE_HOST_PORT=m:1 => nothing
MEMCACHE_MAX_IDLE_CONNS=3 => nothing
MEMCACHE_SRV=m => nothing
MEMCACHE_SRV_REFRESH=3s => nothing
MEMCACHE_TLS=true => nothing
MEMCACHE_TLS_CACERT=ca.pem => nothing
MEMCACHE_TLS_CLIENT_CERT=c.pem => nothing
MEMCACHE_TLS_CLIENT_KEY=k.pem => nothing
MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true => nothing
MERGE_DOMAIN_CONFIG=true => nothing
NEAR_LIMIT_RATIO=0.5 => note
PORT=9 => --admin 0.0.0.0:9
PROMETHEUS_ADDR=:19001 => --admin 0.0.0.0:8080,0.0.0.0:19001
PROMETHEUS_MAPPER_YAML=conf.yaml => nothing
PROMETHEUS_PATH=/stats => note
PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true => note
PROTO=tcp6 => note
QUOTA_MODE=true => error
REDIS_AUTH=s3cret => --store redis://:s3cret@r:1
REDIS_AUTH_FILE=/run/secret => error
REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR=true => nothing
REDIS_CLUSTER_PIPELINE_PARALLELISM=8 => nothing
REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true => note
REDIS_PERSECOND=true => note
REDIS_PERSECOND_AUTH=s3cret => nothing
REDIS_PERSECOND_AUTH_FILE=/run/secret => nothing
REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM=8 => nothing
REDIS_PERSECOND_PIPELINE_LIMIT=3 => nothing
REDIS_PERSECOND_PIPELINE_WINDOW=3ms => nothing
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=ERROR => nothing
REDIS_PERSECOND_POOL_SIZE=3 => nothing
REDIS_PERSECOND_SENTINEL_AUTH=s3cret => nothing
REDIS_PERSECOND_SOCKET_TYPE=tcp => nothing
REDIS_PERSECOND_TIMEOUT=3s => nothing
REDIS_PERSECOND_TLS=true => nothing
REDIS_PERSECOND_TYPE=CLUSTER => nothing
REDIS_PERSECOND_URL=r:2 => nothing
REDIS_PERSECOND_USE_EXPLICIT_PIPELINE=true => nothing
REDIS_PIPELINE_LIMIT=3 => nothing
REDIS_PIPELINE_WINDOW=3ms => nothing
REDIS_POOL_ON_EMPTY_BEHAVIOR=ERROR => nothing
REDIS_POOL_SIZE=3 => nothing
REDIS_SENTINEL_AUTH=s3cret => /main?sentinel_password=s3cret
REDIS_SOCKET_TYPE=tls => --store rediss://r:1
REDIS_TIMEOUT=3s => note
REDIS_TLS=true => --store rediss://r:1
REDIS_TLS_CACERT=ca.pem => note
REDIS_TLS_CLIENT_CERT=c.pem => --store-cert c.pem
REDIS_TLS_CLIENT_KEY=k.pem => --store-key k.pem
REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true => note
REDIS_TYPE=CLUSTER => --store redis-cluster://r:1
REDIS_URL=r:7 => --store redis://r:7
REDIS_USE_EXPLICIT_PIPELINE=true => nothing
REQUEST_TIMEOUT=250ms => note
RESPONSE_DYNAMIC_METADATA=true => note
RUNTIME_APPDIRECTORY=conf => --rls-config /srv/runtime_data/current/conf
RUNTIME_IGNOREDOTFILES=true => nothing
RUNTIME_ROOT=/data => --rls-config /data/config
RUNTIME_SUBDIRECTORY=sub => --rls-config /srv/runtime_data/current/sub/config
RUNTIME_WATCH_ROOT=false => nothing
SHADOW_MODE=true => error
STATSD_HOST=s => nothing
STATSD_PORT=1 => nothing
STATS_FLUSH_INTERVAL=3s => nothing
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true => nothing
TRACING_ENABLED=true => note
TRACING_EXPORTER_PROTOCOL=grpc => nothing
TRACING_SAMPLING_RATE=0.5 => nothing
TRACING_SERVICE_INSTANCE_ID=a => nothing
TRACING_SERVICE_NAME=a => nothing
TRACING_SERVICE_NAMESPACE=a => nothing
USE_CALENDAR_MONTH_RATE_LIMIT=true => error
USE_DOG_STATSD=true => note
USE_DOG_STATSD_MOGRIFIERS=a => nothing
USE_PROMETHEUS=true => --admin 0.0.0.0:8080,0.0.0.0:9090
USE_STATSD=true => note
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=3s => nothing
XDS_CLIENT_BACKOFF_JITTER=false => nothing
XDS_CLIENT_BACKOFF_MAX_INTERVAL=3s => nothing
XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.1 => nothing
XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=100 => note
";

/// What a setting needs beside it to mean anything.
fn beside(name: &str) -> Vec<(&'static str, &'static str)> {
    let mut variables = vec![("REDIS_URL", "r:1"), ("REDIS_SOCKET_TYPE", "tcp")];
    if name.starts_with("CONFIG_GRPC") {
        variables.push(("CONFIG_TYPE", "GRPC_XDS_SOTW"));
        variables.push(("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"));
    }
    if name.starts_with("CONFIG_GRPC_XDS_CLIENT_TLS") {
        variables.push(("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "x.pem"));
        variables.push(("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "x.pem"));
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
    let missed = rows(ALL).filter(|(_, becomes)| matches!(*becomes, "note" | "error"));
    let missed: Vec<&str> = missed.map(|(setting, _)| setting[0].0).collect();
    assert_eq!(table, missed);
    for (setting, becomes) in rows(ALL) {
        let (name, value) = setting[0];
        let without = || translated(&beside(name)).unwrap();
        let found = translated(&[&beside(name)[..], &[(name, value)]].concat());
        match becomes {
            "note" => {
                let found = found.unwrap();
                assert_eq!(found.arguments, without().arguments, "{name}");
                let notes = found.notes.join("\n");
                assert!(notes.starts_with(name), "{name}: {notes:?}");
            }
            "error" => {
                let error = found.unwrap_err();
                assert!(error.starts_with(name), "{name}: {error}");
                assert!(!error.contains("s3cret"), "{error}");
            }
            "nothing" => assert_eq!(found.as_ref(), Ok(&without()), "{name}"),
            words => {
                let found = found.unwrap();
                let arguments = found.arguments.join(" ");
                assert!(arguments.contains(words), "{name}: {arguments}");
                assert_eq!(found.notes, [""; 0], "{name}");
                let flags = Flags::try_parse_from(&found.arguments);
                assert!(flags.is_ok(), "{name}: {arguments}");
            }
        }
        let documented = docs.contains(&format!("`{name}`"));
        assert!(documented, "{name} is not in the docs");
    }
}

#[test]
fn a_value_that_the_original_takes_is_no_error() {
    let file = ("REDIS_URL", "/run/redis.sock");
    let table = "
        GRPC_MAX_CONNECTION_AGE=90s => --max-connection-age 90000ms
        GRPC_MAX_CONNECTION_AGE=1h1.5s => --max-connection-age 3601500ms
        GRPC_MAX_CONNECTION_AGE=100us => --max-connection-age 1ms
        LOG_FORMAT=Text => --log-format text
        LOG_LEVEL=Warning => --log warn
        LOG_LEVEL=panic => --log error
        GRPC_SERVER_USE_TLS=FALSE => --listen";
    for (setting, words) in rows(table) {
        let arguments = translated(&[file, setting[0]]).unwrap().arguments;
        assert!(arguments.join(" ").contains(words), "{arguments:?}");
        let flags = Flags::try_parse_from(&arguments);
        assert!(flags.is_ok(), "{setting:?}: {:?}", flags.err());
    }
    // No age at all.
    let never = translated(&[file, ("GRPC_MAX_CONNECTION_AGE", "0")]).unwrap();
    assert!(!never.arguments.contains(&"--max-connection-age".to_owned()));
    // A default that is set all the same needs no note.
    let defaults = variables("USE_STATSD=False DEBUG_PORT=6070 SHADOW_MODE=f");
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
    let line = "REDIS_URL=/r RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit";
    let arguments = translated(&variables(line)).unwrap().arguments.join(" ");
    let folder = "--rls-config /data/ratelimit/config";
    assert!(arguments.contains(folder), "{arguments}");
}

#[test]
fn an_unsupported_variable_is_an_error_or_a_note() {
    let redis = ("REDIS_URL", "/run/redis.sock");
    let wrong = "BACKEND_TYPE=memcache SHADOW_MODE=true CONFIG_TYPE=CONSUL GRPC_SERVER_USE_TLS=perhaps \
                 GRPC_SERVER_USE_TLS=true GRPC_HOST=localhost REDIS_URL=";
    for wrong in variables(wrong) {
        assert!(translated(&[redis, wrong]).is_err(), "{wrong:?}");
    }
    let found = translated(&[redis, ("USE_STATSD", "true")]).unwrap();
    assert_eq!(
        found.notes,
        ["USE_STATSD=true has no effect: metrics are at /metrics"]
    );
    let size = ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10485760");
    let found = translated(&[redis, size]).unwrap();
    let most = format!("{} MiB", crate::xds::MAX_RESPONSE >> 20);
    assert!(found.notes.concat().ends_with(&most), "{found:?}");
}
