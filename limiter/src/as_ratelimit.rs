//! Started as `ratelimit`: translates the environment of envoyproxy/ratelimit into this program's
//! flags.
//!
//! Envoy Gateway starts `/bin/ratelimit` in the image of its rate limit service and configures it by
//! that environment (envoyproxy/ratelimit's `src/settings/settings.go`).

use std::{ffi::OsStr, net::IpAddr, path::Path};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use store::{SCHEMES, StoreUrl};

/// The name by which the program is started in that case.
const NAME: &str = "ratelimit";

/// What becomes of a setting that [`Environment`] does not translate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Another value than this one has no effect, for a reason that the log gets.
    Noted(&'static str, &'static str),
    /// The program ends at another value than this one: it would decide otherwise, or be less safe.
    Refused(&'static str, &'static str),
}
use Action::{Noted, Refused};

/// The settings of envoyproxy/ratelimit, of releases and of open pull requests, and those that Envoy
/// Gateway adds, whose effect would be missed. Those that are neither here nor translated are harmless:
/// whatever their values, decisions and what people see of them stay the same, or an entry here that has
/// to be set for them to mean anything says what is different. The tests have all.
const SETTINGS: &[(&str, Action)] = &[
    // Addresses, TLS and connections.
    ("GRPC_UDS", Refused("", "the data port is a TCP port")),
    (
        "PROTO",
        Noted("tcp", "HOST says whether it is IPv4 or IPv6"),
    ),
    (
        "DEBUG_PORT",
        Noted("6070", "rlctl shows limits, and /metrics is at PORT"),
    ),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        Noted("1h", "a connection ends when its calls are answered"),
    ),
    (
        "GRPC_MAX_CONCURRENT_STREAMS",
        Noted("0", "RL_MAX_INFLIGHT bounds the calls of all connections"),
    ),
    (
        "MAX_CONCURRENT_REQUESTS",
        Noted("0", "it is RL_MAX_INFLIGHT here"),
    ),
    ("REQUEST_TIMEOUT", Noted("0", "it is RL_STORE_TIMEOUT here")),
    (
        "GRPC_CLIENT_TLS_SAN",
        Refused("", "any certificate of the authority would be let in"),
    ),
    // Where limits come from.
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        Noted("false", "a limiter without limits is ready, and admits"),
    ),
    (
        "CONFIG_GRPC_XDS_NODE_METADATA",
        Refused("", "the management server gets the node's id alone"),
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        Refused("", "the management server gets no other headers"),
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        Noted("", "the name of the server's address is verified"),
    ),
    (
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        Noted("", "a response may have 4 MiB"),
    ),
    // How it decides.
    (
        "BACKEND_TYPE",
        Refused("redis", "the store is Redis or Valkey"),
    ),
    (
        "SHADOW_MODE",
        Refused(
            "false",
            "set shadow_mode in each descriptor, or `rlctl pause`",
        ),
    ),
    (
        "QUOTA_MODE",
        Refused("false", "set quota_mode in each descriptor"),
    ),
    (
        "USE_CALENDAR_MONTH_RATE_LIMIT",
        Refused("false", "a month has 30 days"),
    ),
    // What answers contain.
    (
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        Noted("false", "Envoy sets headers by enable_x_ratelimit_headers"),
    ),
    (
        "LIMIT_REQUEST_HEADERS_ENABLED",
        Noted("false", "upstreams get no headers with limits"),
    ),
    (
        "RESPONSE_DYNAMIC_METADATA",
        Noted(
            "false",
            "dynamic_metadata has limits, denied_by and would_deny in any case",
        ),
    ),
    // The store.
    (
        "REDIS_AUTH_FILE",
        Refused("", "the password belongs in REDIS_AUTH or RL_STORE"),
    ),
    ("REDIS_TLS_CACERT", Noted("", "name it in SSL_CERT_FILE")),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        Noted("false", "the store's name is always verified"),
    ),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        Noted(
            "false",
            "/healthcheck?strict fails while checks get no decision",
        ),
    ),
    ("REDIS_TIMEOUT", Noted("10s", "it is RL_STORE_TIMEOUT here")),
    (
        "REDIS_PERSECOND",
        Noted("false", "one store has all limits"),
    ),
    // Logs, metrics and traces.
    (
        "PROMETHEUS_PATH",
        Noted("/metrics", "metrics are at /metrics"),
    ),
    (
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        Noted("false", "times are in seconds"),
    ),
    ("USE_STATSD", Noted("false", "metrics are at /metrics")),
    ("USE_DOG_STATSD", Noted("false", "metrics are at /metrics")),
    (
        "EXTRA_TAGS",
        Noted("", "the configuration of Prometheus adds labels"),
    ),
    ("DISABLE_STATS", Noted("false", "/metrics is always there")),
    (
        "NEAR_LIMIT_RATIO",
        Noted("0.8", "no metric counts requests near a limit"),
    ),
    (
        "TRACING_ENABLED",
        Noted("false", "traces need a limiter that was built with them"),
    ),
];

/// The command line equivalent to an environment.
#[derive(Debug, PartialEq, Eq)]
pub struct AsRatelimit {
    /// Arguments, with the name of the program.
    pub arguments: Vec<String>,
    /// The variables that have no effect, and why.
    pub notes: Vec<String>,
}

impl AsRatelimit {
    /// Whether a program started by this name should act as envoyproxy/ratelimit.
    pub fn is_meant(program: &OsStr) -> bool {
        Path::new(program).file_name() == Some(OsStr::new(NAME))
    }

    /// Translates an environment.
    ///
    /// # Errors
    /// If a variable that would change decisions has no counterpart here or an invalid value.
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let read = Environment(&|name| variable(name).filter(|value| !value.is_empty()));
        let notes = read.untranslated()?;
        let mut arguments = vec![NAME.to_owned()];
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add("--listen", read.address("GRPC_HOST", "GRPC_PORT", "8081")?);
        add("--admin", read.admin()?);
        if read.0("RL_STORE").is_none() {
            add("--store", read.store()?);
        }
        if read.flag("GRPC_SERVER_USE_TLS")? {
            add("--tls-cert", read.wanted("GRPC_SERVER_TLS_CERT")?);
            add("--tls-key", read.wanted("GRPC_SERVER_TLS_KEY")?);
            let authorities = ["GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_TLS_CA_CERT"];
            if let Some(path) = authorities.into_iter().find_map(read.0) {
                add("--client-ca", path);
            }
        }
        if let Some(cert) = read.0("REDIS_TLS_CLIENT_CERT") {
            add("--store-cert", cert);
            add("--store-key", read.wanted("REDIS_TLS_CLIENT_KEY")?);
        }
        for (flag, value) in read.limits()? {
            add(flag, value);
        }
        if let Some(prefix) = read.0("CACHE_KEY_PREFIX") {
            add("--key-prefix", prefix);
        }
        if let Some(ms) = read.connection_age()? {
            add("--max-connection-age", format!("{ms}ms"));
        }
        if let Some(format) = read.0("LOG_FORMAT") {
            // There, too, whatever is not JSON is text.
            let json = format.eq_ignore_ascii_case("json");
            add(
                "--log-format",
                if json { "json" } else { "text" }.to_owned(),
            );
        }
        add("--log", read.log()?);
        Ok(Self { arguments, notes })
    }
}

/// Reads variables; an empty one counts as unset.
struct Environment<'f>(&'f dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn or(&self, name: &str, default: &str) -> String {
        self.0(name).unwrap_or_else(|| default.to_owned())
    }

    fn wanted(&self, name: &str) -> Result<String, String> {
        self.0(name).ok_or_else(|| format!("{name} is not set"))
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        let value = self.or(name, "false");
        boolean(&value).ok_or_else(|| format!("{name}={value}: true or false"))
    }

    /// Notes about the variables without an effect.
    fn untranslated(&self) -> Result<Vec<String>, String> {
        let mut notes = Vec::new();
        for (name, action) in SETTINGS {
            let (Noted(only, why) | Refused(only, why)) = action;
            let same = |value: &String| match boolean(only) {
                Some(only) => boolean(value) == Some(only),
                None => value == only,
            };
            let Some(value) = self.0(name).filter(|value| !same(value)) else {
                continue;
            };
            // What may be any text may be a secret.
            let shown = if only.is_empty() {
                (*name).to_owned()
            } else {
                format!("{name}={value}")
            };
            if matches!(action, Refused(..)) {
                return Err(format!("{shown} is not supported: {why}"));
            }
            notes.push(format!("{shown} has no effect: {why}"));
        }
        Ok(notes)
    }

    fn address(&self, host: &str, port: &str, default: &str) -> Result<String, String> {
        let (address, port) = (self.or(host, "0.0.0.0"), self.or(port, default));
        match address.parse() {
            Ok(IpAddr::V4(_)) => Ok(format!("{address}:{port}")),
            Ok(IpAddr::V6(_)) => Ok(format!("[{address}]:{port}")),
            Err(_) => Err(format!("{host}={address}: not an IP address")),
        }
    }

    /// The health address, and the one for metrics if Prometheus scrapes a separate one.
    fn admin(&self) -> Result<String, String> {
        let health = self.address("HOST", "PORT", "8080")?;
        if !self.flag("USE_PROMETHEUS")? {
            return Ok(health);
        }
        let metrics = self.or("PROMETHEUS_ADDR", ":9090");
        let host = if metrics.starts_with(':') {
            "0.0.0.0"
        } else {
            ""
        };
        Ok(format!("{health},{host}{metrics}"))
    }

    /// The store's URL. A scheme in `REDIS_URL` replaces `REDIS_SOCKET_TYPE`; the password and TLS
    /// are those of the other variables in any case.
    fn store(&self) -> Result<String, String> {
        let url = self.wanted("REDIS_URL")?;
        let socket = self.or("REDIS_SOCKET_TYPE", "unix");
        let kind = self.or("REDIS_TYPE", "SINGLE").to_ascii_lowercase();
        let (scheme, place) = match (url.split_once("://"), socket.as_str()) {
            (Some((scheme, place)), _) => (scheme, place),
            (None, "tcp") => ("redis", url.as_str()),
            (None, "tls") => ("rediss", url.as_str()),
            // Clusters and sentinels are never sockets.
            (None, "unix") if kind != "single" => ("redis", url.as_str()),
            (None, "unix") => ("unix", url.as_str()),
            (None, other) => return Err(format!("REDIS_SOCKET_TYPE={other}: tcp, tls or unix")),
        };
        let (protocol, kind) = match scheme.split_once('-') {
            Some((protocol, kind)) => (protocol, kind),
            None => (scheme, kind.as_str()),
        };
        let tls = match protocol {
            "redis" | "valkey" | "unix" => self.flag("REDIS_TLS")?,
            "rediss" | "valkeys" => true,
            _ => return Err(format!("REDIS_URL: the scheme is not one of {SCHEMES}")),
        };
        let auth = self.0("REDIS_AUTH");
        let has_login = place.split(['/', '?']).next().unwrap_or("").contains('@');
        if auth.is_some() && has_login {
            return Err("REDIS_AUTH and REDIS_URL have a password each: keep one".to_owned());
        }
        let login = auth.as_deref().map(login_of);
        let protocol = if tls { "rediss" } else { protocol };
        let protocol = protocol.replace("valkey", "redis");
        let at = match &login {
            Some((user, password)) => format!("{user}:{password}@"),
            None => String::new(),
        };
        let url = match (protocol.as_str(), kind) {
            ("unix", "single") => match login {
                None => format!("unix://{place}"),
                Some((user, password)) => {
                    let url = with_parameter(format!("unix://{place}"), "user", &user);
                    with_parameter(url, "pass", &password)
                }
            },
            _ if scheme == "unix" => {
                return Err("REDIS_TLS: a unix socket has no TLS".to_owned());
            }
            (_, "single") => format!("{protocol}://{at}{place}"),
            (_, "cluster") => format!("{protocol}-cluster://{at}{place}"),
            (_, "sentinel") => self.sentinel(&protocol, &at, place)?,
            (_, other) => {
                return Err(format!("REDIS_TYPE={other}: SINGLE, SENTINEL or CLUSTER"));
            }
        };
        // The messages quote nothing of a URL.
        match url.parse::<StoreUrl>() {
            Ok(_) => Ok(url),
            Err(error) => Err(format!("REDIS_URL: {error}")),
        }
    }

    /// `SERVICE,HOST:PORT,HOST:PORT`, or what follows the scheme of a URL.
    fn sentinel(&self, protocol: &str, at: &str, place: &str) -> Result<String, String> {
        let place = match place.split_once(',') {
            _ if place.contains('/') => place.to_owned(),
            Some((service, servers)) => format!("{servers}/{service}"),
            None => return Err("REDIS_URL: a service, and after commas its sentinels".to_owned()),
        };
        let url = format!("{protocol}-sentinel://{at}{place}");
        let Some(auth) = self.0("REDIS_SENTINEL_AUTH") else {
            return Ok(url);
        };
        let (user, password) = login_of(&auth);
        let url = with_parameter(url, "sentinel_user", &user);
        Ok(with_parameter(url, "sentinel_password", &password))
    }

    /// Milliseconds; none if connections may have any age.
    fn connection_age(&self) -> Result<Option<u64>, String> {
        const NAME: &str = "GRPC_MAX_CONNECTION_AGE";
        let Some(text) = self.0(NAME) else {
            return Ok(None);
        };
        let form = || format!("{NAME}={text}: a duration like 90s, 1h30m or 1.5h");
        let nanos = go_duration(&text).ok_or_else(form)?;
        let ms = u64::try_from(nanos.div_ceil(1_000_000)).map_err(|_| form())?;
        Ok(Some(ms).filter(|ms| *ms > 0))
    }

    /// Where the limits come from.
    fn limits(&self) -> Result<Vec<(&'static str, String)>, String> {
        match self.or("CONFIG_TYPE", "FILE").as_str() {
            "FILE" => {
                let root = self.or("RUNTIME_ROOT", "/srv/runtime_data/current");
                let app = self.or("RUNTIME_APPDIRECTORY", "config");
                let folder = Path::new(&root)
                    .join(self.or("RUNTIME_SUBDIRECTORY", ""))
                    .join(app);
                Ok(vec![("--rls-config", folder.display().to_string())])
            }
            "GRPC_XDS_SOTW" => {
                let server = self.or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
                let node = self.or("CONFIG_GRPC_XDS_NODE_ID", "default");
                let tls = self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")?;
                let scheme = if tls { "https" } else { "http" };
                let mut flags = vec![
                    ("--xds-server", format!("{scheme}://{server}")),
                    ("--xds-node", node),
                ];
                for (flag, name) in [
                    ("--xds-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
                    ("--xds-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
                    ("--xds-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
                ] {
                    if let Some(path) = self.0(name).filter(|_| tls) {
                        flags.push((flag, path));
                    }
                }
                Ok(flags)
            }
            other => Err(format!("CONFIG_TYPE={other}: FILE or GRPC_XDS_SOTW")),
        }
    }

    fn log(&self) -> Result<String, String> {
        let level = self.or("LOG_LEVEL", "warn").to_ascii_lowercase();
        Ok(match level.as_str() {
            "warning" => "warn".to_owned(),
            "panic" | "fatal" => "error".to_owned(),
            "error" | "warn" | "info" | "debug" | "trace" => level,
            other => {
                return Err(format!(
                    "LOG_LEVEL={other}: error, warn, info, debug or trace"
                ));
            }
        })
    }
}

/// As Go's `strconv.ParseBool` reads it.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Nanoseconds of what Go's `time.ParseDuration` reads, rounded down: `1h30m`, `1.5s`, `0`.
fn go_duration(text: &str) -> Option<u128> {
    const UNITS: [(&str, u128); 7] = [
        ("ns", 1),
        ("us", 1000),
        ("µs", 1000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    let mut sum: u128 = 0;
    loop {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at_checked(rest.find(|c| !is_number(c))?)?;
        let end = after.find(is_number).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        // Digits beyond the twelfth are less than a nanosecond of an hour.
        let fraction = fraction.get(..fraction.len().min(12))?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        let part = whole.parse::<u128>().ok()?.checked_mul(*nanos)?;
        let part = part.checked_add(fraction.parse::<u128>().ok()? * nanos / scale)?;
        sum = sum.checked_add(part)?;
        rest = after;
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

/// The user and the password of `password` or `user:password`, escaped for a URL.
fn login_of(auth: &str) -> (String, String) {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    let escaped = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    (escaped(user), escaped(password))
}

/// The URL with a parameter, unless it is empty.
fn with_parameter(url: String, name: &str, value: &str) -> String {
    if value.is_empty() {
        return url;
    }
    let before = if url.contains('?') { '&' } else { '?' };
    format!("{url}{before}{name}={value}")
}

#[cfg(test)]
mod tests;
