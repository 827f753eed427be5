//! Started as `ratelimit`: translates the environment of envoyproxy/ratelimit into this program's
//! flags.
//!
//! Envoy Gateway starts `/bin/ratelimit` in the image of its rate limit service and configures it by
//! that environment (envoyproxy/ratelimit's `src/settings/settings.go`).

use std::{ffi::OsStr, net::IpAddr, path::Path};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The name by which the program is started in that case.
const NAME: &str = "ratelimit";

/// Variables without a counterpart here: the name, the value that changes nothing, and why others
/// have no effect. The limiter starts in spite of them.
const NO_EFFECT: [(&str, &str, &str); 8] = [
    ("USE_STATSD", "false", "metrics are at /metrics"),
    ("REDIS_PERSECOND", "false", "one store has all limits"),
    ("REDIS_TLS_CACERT", "", "name it in SSL_CERT_FILE"),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "false",
        "the store's name is always verified",
    ),
    (
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "false",
        "Envoy sets headers by enable_x_ratelimit_headers",
    ),
    (
        "GRPC_CLIENT_TLS_SAN",
        "",
        "any certificate of the authority is let in",
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        "",
        "the name of the server's address is verified",
    ),
    (
        "TRACING_ENABLED",
        "false",
        "traces need a limiter that was built with them",
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
        read.refuse("BACKEND_TYPE", "redis")?;
        read.refuse("SHADOW_MODE", "false")?;
        read.refuse("GRPC_UDS", "")?;
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
        for (flag, name) in [
            ("--key-prefix", "CACHE_KEY_PREFIX"),
            ("--max-connection-age", "GRPC_MAX_CONNECTION_AGE"),
            ("--log-format", "LOG_FORMAT"),
        ] {
            if let Some(value) = read.0(name) {
                add(flag, value);
            }
        }
        add("--log", read.log());
        let notes = NO_EFFECT.iter().filter_map(|(name, nothing, why)| {
            let value = read.0(name).filter(|value| value != nothing)?;
            Some(format!("{name}={value} has no effect: {why}"))
        });
        Ok(Self {
            notes: notes.collect(),
            arguments,
        })
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
        match self.or(name, "false").to_ascii_lowercase().as_str() {
            "true" | "t" | "1" => Ok(true),
            "false" | "f" | "0" => Ok(false),
            other => Err(format!("{name}={other}: true or false")),
        }
    }

    fn refuse(&self, name: &str, only: &str) -> Result<(), String> {
        match self.0(name) {
            Some(value) if value != only => Err(format!("{name}={value} is not supported")),
            _ => Ok(()),
        }
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

    fn store(&self) -> Result<String, String> {
        let url = self.wanted("REDIS_URL")?;
        let socket = self.or("REDIS_SOCKET_TYPE", "unix");
        let kind = self.or("REDIS_TYPE", "SINGLE").to_ascii_lowercase();
        if url.contains("://") {
            return Ok(url);
        }
        let auth = match self.0("REDIS_AUTH") {
            Some(auth) => {
                let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
                let escaped = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
                format!("{}:{}@", escaped(user), escaped(password))
            }
            None => String::new(),
        };
        let tls = self.flag("REDIS_TLS")? || socket == "tls";
        let scheme = if tls { "rediss" } else { "redis" };
        match (kind.as_str(), socket.as_str()) {
            ("single", "unix") if auth.is_empty() => Ok(format!("unix://{url}")),
            ("single", "tcp" | "tls") => Ok(format!("{scheme}://{auth}{url}")),
            ("cluster", _) => Ok(format!("{scheme}-cluster://{auth}{url}")),
            ("sentinel", _) => match url.split_once(',') {
                Some((service, servers)) => {
                    Ok(format!("{scheme}-sentinel://{auth}{servers}/{service}"))
                }
                None => {
                    Err("REDIS_URL: a service and its sentinels, with commas between".to_owned())
                }
            },
            _ => Err(format!(
                "REDIS_TYPE={kind} with REDIS_SOCKET_TYPE={socket} is not supported: set RL_STORE"
            )),
        }
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

    fn log(&self) -> String {
        let level = self.or("LOG_LEVEL", "warn").to_ascii_lowercase();
        match level.as_str() {
            "warning" => "warn".to_owned(),
            "panic" | "fatal" => "error".to_owned(),
            _ => level,
        }
    }
}

#[cfg(test)]
mod tests;
