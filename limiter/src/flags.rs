//! The command line and the environment.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{CommandFactory, Parser, ValueEnum};
use store::{ClientCertificate, Keys, StoreUrl, UrlError};

use crate::{TlsFiles, XdsServer};

/// The limiter service: decides checks that proxies and programs send over HTTP, from limits and
/// buckets in Redis, Valkey or (for development) its own memory.
///
/// It keeps nothing that would be lost with it when the store is Redis or Valkey: run as many
/// replicas as you like.
#[derive(Debug, Parser)]
#[command(name = "limiter", version, after_help = format!("{EXAMPLES}{TRACES}"), max_term_width = 100)]
pub struct Flags {
    /// Print the manual, as in `limiter --man | man -l -`.
    #[arg(long, exclusive = true)]
    pub man: bool,

    /// Where checks are answered: HTTP/1.1 and HTTP/2, also without TLS.
    #[arg(
        long,
        env = "RL_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:8090",
        value_parser = address
    )]
    pub listen: SocketAddr,

    /// Where /healthz, /readyz and /metrics are answered, and the page with --page-token-file; may
    /// be several addresses.
    #[arg(
        long,
        env = "RL_ADMIN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:8091",
        value_delimiter = ',',
        value_parser = address
    )]
    pub admin: Vec<SocketAddr>,

    /// Where limits and buckets are: `memory`; a server, redis://, rediss:// (TLS), valkey://,
    /// valkeys:// or unix://; the primary that Sentinel names, redis-sentinel:// or
    /// rediss-sentinel://HOST:PORT,HOST:PORT/SERVICE; a Cluster, redis-cluster:// or
    /// rediss-cluster://HOST:PORT,HOST:PORT. A URL with a password belongs in the variable, which
    /// other users of the machine cannot see.
    #[arg(
        long,
        env = "RL_STORE",
        value_name = "URL",
        default_value = "memory",
        hide_env_values = true
    )]
    pub store: StoreArgument,

    /// The certificate chain (PEM) to show to the store, where the URL says TLS. Read again for new
    /// connections, as are its key and the root certificates.
    #[arg(
        long,
        env = "RL_STORE_CERT",
        value_name = "FILE",
        requires = "store_key"
    )]
    pub store_cert: Option<PathBuf>,

    /// The private key (PEM) of that certificate.
    #[arg(
        long,
        env = "RL_STORE_KEY",
        value_name = "FILE",
        requires = "store_cert"
    )]
    pub store_key: Option<PathBuf>,

    /// A limits file; may be given once per domain. It fills a domain that has no limits in the
    /// store yet, and is ignored otherwise. With `--store memory` it is the policy: edits of the
    /// file take effect at once.
    #[arg(long, env = "RL_LIMITS", value_name = "FILE", value_delimiter = ',')]
    pub limits: Vec<PathBuf>,

    /// A folder of envoyproxy/ratelimit's files (`*.yaml`, `*.yml`), as they are; they are read
    /// again when they change. With a store the limiter writes them there, unless somebody else
    /// edited a domain's limits since.
    #[arg(long, env = "RL_RLS_CONFIG", value_name = "FOLDER")]
    pub rls_config: Option<PathBuf>,

    /// A management server that has the limits, as Envoy Gateway has those of its rate limit service
    /// (ADS, `RateLimitConfig`): http://HOST:PORT, or https://HOST:PORT. With a store the limiter
    /// writes them there, unless somebody else edited a domain's limits since.
    #[arg(
        long,
        env = "RL_XDS_SERVER",
        value_name = "URL",
        value_parser = xds_url,
        conflicts_with_all = ["limits", "rls_config"]
    )]
    pub xds_server: Option<String>,

    /// The node that the management server has the limits for.
    #[arg(
        long,
        env = "RL_XDS_NODE",
        value_name = "ID",
        default_value = "envoy-ratelimit"
    )]
    pub xds_node: String,

    /// Authorities (PEM) of the management server's certificate; without it those of this machine.
    /// This file and the next two are read again for each connection.
    #[arg(long, env = "RL_XDS_CA", value_name = "FILE", requires = "xds_server")]
    pub xds_ca: Option<PathBuf>,

    /// The certificate chain (PEM) to show to the management server.
    #[arg(long, env = "RL_XDS_CERT", value_name = "FILE", requires_all = ["xds_server", "xds_key"])]
    pub xds_cert: Option<PathBuf>,

    /// The private key (PEM) of that certificate.
    #[arg(long, env = "RL_XDS_KEY", value_name = "FILE", requires = "xds_cert")]
    pub xds_key: Option<PathBuf>,

    /// Another rate limit service, grpc://HOST:PORT or grpcs://HOST:PORT: calls of Envoy's rate
    /// limit service are sent there as well, and what it decides otherwise is counted and logged
    /// (with descriptors, a line a second). Answers are this limiter's own, and never wait for it.
    #[arg(long, env = "RL_COMPARE_WITH", value_name = "URL", value_parser = grpc_url)]
    pub compare_with: Option<String>,

    /// What every key in the store starts with.
    #[arg(
        long,
        env = "RL_KEY_PREFIX",
        value_name = "PREFIX",
        default_value = "rl:"
    )]
    pub key_prefix: Keys,

    /// How long a check may wait for the store, queue and call together, before it is answered 503. Keep
    /// it below the filter's timeout (20ms), so that the filter gets the reason.
    #[arg(long, env = "RL_STORE_TIMEOUT", value_name = "DURATION", default_value = "10ms", value_parser = duration)]
    pub store_timeout: Duration,

    /// Bearer tokens, one per line; a request must carry one. The file is read again when it
    /// changes, so tokens are rotated by having both in it for a while.
    #[arg(long, env = "RL_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Tokens, one per line, for people who look at the page: limits and their rates, buckets,
    /// proxies, edits and problems, at / of the admin port. Without this flag there is no page.
    #[arg(long, env = "RL_PAGE_TOKEN_FILE", value_name = "FILE")]
    pub page_token_file: Option<PathBuf>,

    /// The certificate chain (PEM) of the data port, which then speaks TLS only. Read again when
    /// it changes.
    #[arg(long, env = "RL_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The private key (PEM) of the certificate.
    #[arg(long, env = "RL_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Authorities (PEM): clients must show a certificate that one of them signed.
    #[arg(long, env = "RL_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,

    /// The largest request body; a larger one is answered 413.
    #[arg(long, env = "RL_MAX_BODY", value_name = "BYTES", default_value = "256KiB", value_parser = bytes)]
    pub max_body: usize,

    /// Requests worked on at once; one more is answered 503 `overloaded`.
    #[arg(long, env = "RL_MAX_INFLIGHT", value_name = "N", default_value = "4096", value_parser = at_least_one)]
    pub max_inflight: usize,

    /// Connections to the data port at once; one more is answered 503 and closed.
    #[arg(long, env = "RL_MAX_CONNECTIONS", value_name = "N", default_value = "8192", value_parser = at_least_one)]
    pub max_connections: usize,

    /// Proxies of one address that count for the share which each takes while no limiter answers.
    /// The loopback address has no such bound.
    #[arg(long, env = "RL_PROXIES_PER_ADDRESS", value_name = "N", default_value = "16", value_parser = at_least_one)]
    pub proxies_per_address: usize,

    /// The longest `wait_ms` of a check.
    #[arg(long, env = "RL_MAX_WAIT", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub max_wait: Duration,

    /// Checks that wait at once; one more is answered 429 `too_many_waiters`.
    #[arg(long, env = "RL_MAX_WAITERS", value_name = "N", default_value = "1024")]
    pub max_waiters: usize,

    /// A connection without a request for this long is closed.
    #[arg(long, env = "RL_IDLE_TIMEOUT", value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub idle_timeout: Duration,

    /// A connection that is older is closed once its requests are answered, so that new replicas
    /// behind one address get work: its client opens another. Up to a tenth earlier, so that
    /// clients do not come back all at once.
    #[arg(long, env = "RL_MAX_CONNECTION_AGE", value_name = "DURATION", value_parser = duration)]
    pub max_connection_age: Option<Duration>,

    /// After SIGTERM or SIGINT: how long requests are still accepted while clients are asked to reconnect
    /// elsewhere. A second signal ends at once.
    #[arg(long, env = "RL_DRAIN", value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub drain: Duration,

    /// How log lines look: `auto` is text on a terminal, JSON otherwise.
    #[arg(
        long,
        env = "RL_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "auto"
    )]
    pub log_format: LogFormat,

    /// What is logged: error, warn, info, debug, trace, or a list like `info,limiter=debug`.
    #[arg(long, env = "RL_LOG", value_name = "FILTER", default_value = "info", value_parser = log_filter)]
    pub log: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// One object per line.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  Try it without a store; edits of the file take effect at once:
    limiter --limits limits.yaml
    curl localhost:8090/v1/check --json '{\"domain\":\"shop\",\"descriptor\":{\"user\":\"alice\"}}'

  With Redis or Valkey, filling the domain from a file the first time:
    RL_STORE=redis://:password@redis:6379 limiter --listen 0.0.0.0:8090 --limits limits.yaml

  With tokens and TLS, clients showing certificates:
    limiter --store rediss://redis:6379 --token-file /run/secrets/tokens \\
            --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt

Signals: SIGTERM and SIGINT end it without losing an answer; SIGHUP reads
the limits files again where they are the policy.";

#[cfg(feature = "otel")]
const TRACES: &str = "

Traces: with OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 checks continue the
trace of their `traceparent`; the other OTEL_* variables mean what they always do.";
#[cfg(not(feature = "otel"))]
const TRACES: &str = "";

impl Flags {
    /// The service's settings; `main` uses the other flags (store, addresses, logs).
    pub fn settings(&self) -> Settings {
        let tls = self
            .tls_cert
            .clone()
            .zip(self.tls_key.clone())
            .map(|(cert, key)| TlsFiles {
                cert,
                key,
                client_ca: self.client_ca.clone(),
            });
        let xds = self.xds_server.clone().map(|url| XdsServer {
            url,
            node: self.xds_node.clone(),
            ca: self.xds_ca.clone(),
            identity: self.xds_cert.clone().zip(self.xds_key.clone()),
        });
        Settings {
            limits: self.limits.clone(),
            rls_config: self.rls_config.clone(),
            xds,
            compare_with: self.compare_with.clone(),
            limits_are_the_policy: matches!(self.store.0, Ok(StoreUrl::Memory)),
            token_file: self.token_file.clone(),
            page_token_file: self.page_token_file.clone(),
            key_prefix: self.key_prefix.prefix().to_owned(),
            tls,
            store_timeout: self.store_timeout,
            max_body: self.max_body,
            max_inflight: self.max_inflight,
            max_connections: self.max_connections,
            proxies_per_address: self.proxies_per_address,
            max_wait: self.max_wait,
            max_waiters: self.max_waiters,
            idle_timeout: self.idle_timeout,
            max_connection_age: self.max_connection_age,
            drain: self.drain,
            ..Settings::default()
        }
    }

    /// What to say of variables that look like flags and are none: whoever misspells `RL_TOKEN_FILE` has a
    /// limiter that requires no token. Their values may be secrets.
    pub fn unread(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
        let command = Self::command();
        let flags = command.get_arguments().filter_map(|flag| flag.get_env());
        let flags: Vec<&str> = flags.filter_map(|name| name.to_str()).collect();
        let names = variables.filter_map(|(name, _)| name.into_string().ok());
        // Kubernetes has variables for each Service, such as one whose name begins with `rl-`.
        let ours = |name: &String| {
            let others = ["_PORT", "_SERVICE_HOST", "RL_TEST_"];
            name.starts_with("RL_") && !others.iter().any(|other| name.contains(other))
        };
        let unread = names.filter(|name| ours(name) && !flags.contains(&name.as_str()));
        let say = |name: String| match policy::similar(&name, &flags) {
            Some(meant) => format!("the variable {name} is not read; did you mean {meant}?"),
            None => {
                format!("the variable {name} is not read; `limiter --help` lists those that are")
            }
        };
        unread.map(say).collect()
    }

    /// Whether nothing can ever be limited: limits in memory come from files or a management server.
    pub fn has_no_limits(&self) -> bool {
        let in_memory = matches!(self.store.0, Ok(StoreUrl::Memory));
        let from_files = !self.limits.is_empty() || self.rls_config.is_some();
        in_memory && !from_files && self.xds_server.is_none()
    }

    /// How the store is to be used.
    pub fn store_options(&self) -> store::Options {
        let files = self.store_cert.clone().zip(self.store_key.clone());
        store::Options {
            client_certificate: files.map(|(cert, key)| ClientCertificate { cert, key }),
            keys: self.key_prefix.clone(),
            ..store::Options::within(self.store_timeout)
        }
    }
}

// --- Values of flags: durations, sizes, URLs

/// A store's URL as given. The caller that opens it reports a parse error: clap's message would
/// show the URL with its password.
#[derive(Clone, Debug)]
pub struct StoreArgument(pub Result<StoreUrl, UrlError>);

impl FromStr for StoreArgument {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse()))
    }
}

/// An address with the scheme replaced by HTTP's.
fn grpc_url(text: &str) -> Result<String, String> {
    for (grpc, http) in [("grpc://", "http://"), ("grpcs://", "https://")] {
        if let Some(address) = text.strip_prefix(grpc) {
            return Ok(format!("{http}{address}"));
        }
    }
    Err("a URL, grpc://HOST:PORT or grpcs://HOST:PORT".to_owned())
}

fn xds_url(text: &str) -> Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Ok(text.to_owned());
    }
    Err("a URL, http://HOST:PORT or https://HOST:PORT".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "an address and a port: 127.0.0.1:8090, or 0.0.0.0:8090 for all addresses of this machine"
            .to_owned()
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    let ms = policy::parse_duration(text).map_err(|error| error.to_string())?;
    if ms == 0 {
        return Err("at least 1ms".to_owned());
    }
    Ok(Duration::from_millis(ms))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("a whole number".to_owned()),
    }
}

/// A word alone is a level: taken for a module, a misspelt one would silence everything else.
fn log_filter(text: &str) -> Result<String, String> {
    let is_level = |part: &str| match part.rsplit_once('=') {
        Some(_) => true,
        None => part
            .trim()
            .parse::<tracing::level_filters::LevelFilter>()
            .is_ok(),
    };
    match text.split(',').find(|part| !is_level(part)) {
        None => Ok(text.to_owned()),
        Some(part) => Err(format!(
            "`{part}` is none of error, warn, info, debug and trace; of one module it is `{part}=debug`"
        )),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let wanted = "a number of bytes, like 65536, 256KiB or 1MiB";
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let factor = match unit {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1024,
        "MiB" | "M" | "m" => 1024 * 1024,
        _ => return Err(wanted.to_owned()),
    };
    let number: usize = digits.parse().map_err(|_| wanted.to_owned())?;
    match number.checked_mul(factor) {
        Some(0) | None => Err(wanted.to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

// --- The settings of the service

/// The service's settings; [`Settings::default`] is what the flags default to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits files, one per domain.
    pub limits: Vec<PathBuf>,
    /// A folder of envoyproxy/ratelimit's files.
    pub rls_config: Option<PathBuf>,
    /// Another rate limit service, to which calls of Envoy's rate limit service are sent as well:
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub compare_with: Option<String>,
    /// A management server that has the limits.
    pub xds: Option<XdsServer>,
    /// The files are the policy and are followed; otherwise they only fill domains without a
    /// record.
    pub limits_are_the_policy: bool,
    /// Bearer tokens, one per line; `None`: anybody may send requests.
    pub token_file: Option<PathBuf>,
    /// Tokens of the page on the admin port, one per line; `None`: no page.
    pub page_token_file: Option<PathBuf>,
    /// What every key in the store starts with, for the commands that the page shows.
    pub key_prefix: String,
    /// TLS on the data port; `None`: plain.
    pub tls: Option<TlsFiles>,
    /// The longest a check waits for the store, in the queue and in the call.
    pub store_timeout: Duration,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// Requests worked on at once.
    pub max_inflight: usize,
    /// Connections to the data port at once.
    pub max_connections: usize,
    /// Proxies of one address that count at once.
    pub proxies_per_address: usize,
    /// The longest a check may ask to wait for permits.
    pub max_wait: Duration,
    /// Checks that wait for permits at once.
    pub max_waiters: usize,
    /// The longest that a policy poll is held, whatever wait it requests.
    pub max_poll_wait: Duration,
    /// A connection without a request for this long is closed.
    pub idle_timeout: Duration,
    /// An older connection ends after its current requests, so that its client opens
    /// another, perhaps to another replica; `None`: no limit.
    pub max_connection_age: Option<Duration>,
    /// How long requests are still accepted after SIGTERM or SIGINT.
    pub drain: Duration,
    /// How long accepted requests may take after that.
    pub last_answers: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            rls_config: None,
            xds: None,
            compare_with: None,
            limits_are_the_policy: false,
            token_file: None,
            page_token_file: None,
            key_prefix: "rl:".to_owned(),
            tls: None,
            store_timeout: Duration::from_millis(10),
            max_body: 256 * 1024,
            max_inflight: 4096,
            max_connections: 8192,
            proxies_per_address: 16,
            max_wait: Duration::from_secs(30),
            max_waiters: 1024,
            max_poll_wait: Duration::from_secs(1),
            idle_timeout: Duration::from_mins(10),
            max_connection_age: None,
            drain: Duration::from_secs(1),
            last_answers: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests;
