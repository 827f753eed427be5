//! The URL of the store.

use std::{fmt, str::FromStr};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

/// A server, or several that are one store, and how to log in. Neither `Display` nor `Debug` shows the
/// password.
///
/// `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://`: one server; `redis-sentinel://`,
/// `rediss-sentinel://`: the primary that Sentinel names; `redis-cluster://`, `rediss-cluster://`:
/// the masters of a Cluster.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) address: Address,
    pub(crate) login: RedisConnectionInfo,
}

/// How to reach a server.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp {
        host: String,
        port: u16,
        tls: bool,
    },
    Sentinel {
        sentinels: Sentinels,
        tls: bool,
    },
    /// Nodes of a Cluster, any of which lists the others.
    Cluster {
        seeds: Vec<Host>,
        tls: bool,
    },
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

/// Sentinels, any of which names the primary.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    /// Host and port of each, at least one.
    pub(crate) hosts: Vec<Host>,
    /// The sentinels' name for the primary.
    pub(crate) service: String,
    /// How to log in to a sentinel; the URL's user and password are for the primary.
    pub(crate) login: RedisConnectionInfo,
}

/// A host and a port.
pub(crate) type Host = (String, u16);

/// Where sentinels listen by default.
const SENTINEL_PORT: u16 = 26379;
/// The port of a Cluster's node if the URL names none.
const CLUSTER_PORT: u16 = 6379;

/// The schemes of a server's URL, for messages.
pub const SCHEMES: &str = "redis://, rediss://, valkey://, valkeys://, redis-sentinel://, \
     rediss-sentinel://, redis-cluster://, rediss-cluster:// or unix://";

/// Why a text is not the URL of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not one of the schemes.
    #[error("the URL of a server starts with {SCHEMES}")]
    Scheme,
    /// The part after the scheme.
    #[error("the store's URL is malformed: {0}")]
    Malformed(String),
    /// A user without a password would be ignored at login.
    #[error("the store's URL has a user but no password: write user:password@host")]
    UserWithoutPassword,
}

impl FromStr for Server {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        match scheme {
            "redis" | "valkey" => Server::parse(&format!("redis://{rest}"), false),
            "rediss" | "valkeys" => Server::parse(&format!("redis://{rest}"), true),
            "unix" | "redis+unix" | "valkey+unix" => Server::parse(text, false),
            "redis-sentinel" => Server::parse_sentinel(rest, false),
            "rediss-sentinel" => Server::parse_sentinel(rest, true),
            "redis-cluster" => Server::parse_cluster(rest, false),
            "rediss-cluster" => Server::parse_cluster(rest, true),
            _ => Err(UrlError::Scheme),
        }
    }
}

impl Server {
    fn parse(url: &str, tls: bool) -> Result<Self, UrlError> {
        // The client library's messages are fixed texts that quote nothing of the URL.
        let malformed = |e: redis::RedisError| UrlError::Malformed(e.to_string());
        if url.contains('#') {
            return Err(UrlError::Malformed(
                "a `#` must be written %23; certificates are always verified".to_owned(),
            ));
        }
        // The client library ignores a parameter that it does not know: `ssl=true` would send the
        // password in clear, and `db=2` use another database.
        let (before, parameters) = url.split_once('?').unwrap_or((url, ""));
        let url = if before.starts_with("redis://") {
            match Query::parse(parameters, &["db"], "for TLS write rediss://")?.get("db") {
                None => before.to_owned(),
                Some(db) => match before.trim_end_matches('/') {
                    // A second slash begins the path, which is a database as well.
                    host if host.matches('/').count() == 2 => format!("{host}/{db}"),
                    _ => return Err(UrlError::Malformed("two databases: /db and db=".to_owned())),
                },
            }
        } else {
            Query::parse(
                parameters,
                &["db", "user", "pass"],
                "the socket's path is before them",
            )?;
            url.to_owned()
        };
        let info = url.into_connection_info().map_err(malformed)?;
        let login = info.redis_settings();
        if login.username().is_some() && login.password().is_none() {
            return Err(UrlError::UserWithoutPassword);
        }
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp {
                host: host.clone(),
                port: *port,
                tls,
            },
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(UrlError::Scheme),
        };
        Ok(Self {
            address,
            // Redis 7.0 has no CLIENT SETINFO, and rejects a whole ACL that names it.
            login: login.clone().set_skip_set_lib_name(),
        })
    }

    /// Parses what follows the scheme of a Cluster.
    fn parse_cluster(rest: &str, tls: bool) -> Result<Self, UrlError> {
        let malformed = |why: &str| UrlError::Malformed(why.to_owned());
        if rest.contains('#') {
            return Err(malformed("a `#` must be written %23"));
        }
        if rest.contains('?') {
            return Err(malformed(
                "a cluster's URL takes no parameters; for TLS write rediss-cluster://",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0") {
            return Err(malformed(
                "a cluster has one database: redis-cluster://host:port,host:port",
            ));
        }
        let authority = Authority::parse(authority, CLUSTER_PORT)?;
        Ok(Self {
            login: login(authority.userinfo, None)?,
            address: Address::Cluster {
                seeds: authority.hosts,
                tls,
            },
        })
    }

    /// Parses what follows the scheme: `user:password@host:port,host:port/service`.
    fn parse_sentinel(rest: &str, tls: bool) -> Result<Self, UrlError> {
        let malformed = |why: &str| UrlError::Malformed(why.to_owned());
        if rest.contains('#') {
            return Err(malformed("a `#` must be written %23"));
        }
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_once('/').ok_or_else(|| {
            malformed("the service is missing: redis-sentinel://host:port/service")
        })?;
        let authority = Authority::parse(authority, SENTINEL_PORT)?;
        let names = ["db", "sentinel_user", "sentinel_password"];
        let query = Query::parse(query, &names, "for TLS write rediss-sentinel://")?;
        let service = path.to_owned();
        if service.is_empty() || service.contains('/') {
            return Err(malformed(
                "the service is one name: redis-sentinel://host:port/service",
            ));
        }
        let sentinel_userinfo = match (query.get("sentinel_user"), query.get("sentinel_password")) {
            (user, Some(password)) => Some(format!("{}:{password}", user.unwrap_or_default())),
            (Some(_), None) => return Err(UrlError::UserWithoutPassword),
            (None, None) => None,
        };
        Ok(Self {
            address: Address::Sentinel {
                sentinels: Sentinels {
                    hosts: authority.hosts,
                    service,
                    login: login(sentinel_userinfo.as_deref(), None)?,
                },
                tls,
            },
            login: login(authority.userinfo, query.get("db"))?,
        })
    }
}

/// The parameters after `?`, still percent-encoded.
struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    /// Parses parameters of these names. The messages quote nothing: the `?` may be a password's.
    fn parse(text: &'a str, names: &[&str], hint: &str) -> Result<Self, UrlError> {
        let wrong = |why: &str| {
            let names = names.join(", ");
            UrlError::Malformed(format!("{why}; the parameters are {names}: {hint}"))
        };
        let mut found: Vec<(&str, &str)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((name, value)) if names.contains(&name) && !value.is_empty() => {
                    if found.iter().any(|(other, _)| *other == name) {
                        return Err(wrong("a parameter is there twice"));
                    }
                    found.push((name, value));
                }
                Some((name, _)) if names.contains(&name) => {
                    return Err(wrong("a parameter has no value"));
                }
                _ => return Err(wrong("a parameter after `?` is unknown")),
            }
        }
        Ok(Self(found))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let mut found = self.0.iter().filter(|(known, _)| *known == name);
        found.next().map(|(_, value)| *value)
    }
}

/// `user:password@host:port,host:port`: several hosts and their login.
struct Authority<'a> {
    /// Still percent-encoded.
    userinfo: Option<&'a str>,
    /// At least one.
    hosts: Vec<Host>,
}

impl<'a> Authority<'a> {
    /// `port` is that of a host that names none.
    fn parse(text: &'a str, port: u16) -> Result<Self, UrlError> {
        let (userinfo, hosts) = match text.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, text),
        };
        let hosts = hosts.split(',').map(|text| host(text, port));
        Ok(Self {
            userinfo,
            hosts: hosts.collect::<Result<_, _>>()?,
        })
    }
}

/// Credentials and database, read by the rules of a `redis://` URL.
fn login(userinfo: Option<&str>, db: Option<&str>) -> Result<RedisConnectionInfo, UrlError> {
    let userinfo = userinfo.map_or_else(String::new, |userinfo| format!("{userinfo}@"));
    let url = format!("redis://{userinfo}host/{}", db.unwrap_or_default());
    Ok(Server::parse(&url, false)?.login)
}

fn host(text: &str, default_port: u16) -> Result<Host, UrlError> {
    if text.is_empty() {
        return Err(UrlError::Malformed("a host is missing".to_owned()));
    }
    let parsed = Server::parse(&format!("redis://{text}"), false)?;
    let has_port = text
        .rsplit_once(']')
        .map_or(text, |(_, rest)| rest)
        .contains(':');
    match parsed.address {
        Address::Tcp { host, port, .. } => Ok((host, if has_port { port } else { default_port })),
        _ => Err(UrlError::Malformed(
            "hosts are host:port,host:port".to_owned(),
        )),
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port, tls } => {
                f.write_str(if *tls { "rediss://" } else { "redis://" })?;
                self.write_user(f)?;
                f.write_str(&host_text(host, *port))?;
            }
            Address::Sentinel { sentinels, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                write!(f, "{scheme}-sentinel://")?;
                self.write_user(f)?;
                write_hosts(f, &sentinels.hosts)?;
                write!(f, "/{}", sentinels.service)?;
                return match self.login.db() {
                    0 => Ok(()),
                    db => write!(f, "?db={db}"),
                };
            }
            Address::Cluster { seeds, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                write!(f, "{scheme}-cluster://")?;
                self.write_user(f)?;
                write_hosts(f, seeds)?;
            }
            #[cfg(unix)]
            Address::Unix(path) => write!(f, "unix://{}", path.display())?,
        }
        match self.login.db() {
            0 => Ok(()),
            db => write!(f, "/{db}"),
        }
    }
}

impl Server {
    /// The nodes of a Cluster that the URL names.
    pub(crate) fn seeds(&self) -> Vec<Host> {
        match &self.address {
            Address::Cluster { seeds, .. } => seeds.clone(),
            _ => Vec::new(),
        }
    }

    fn write_user(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.login.username() {
            Some(user) => write!(f, "{user}@"),
            None => Ok(()),
        }
    }
}

fn write_hosts(f: &mut fmt::Formatter<'_>, hosts: &[Host]) -> fmt::Result {
    let texts = hosts.iter().map(|(host, port)| host_text(host, *port));
    let hosts: Vec<String> = texts.collect();
    f.write_str(&hosts.join(","))
}

/// A host and a port as URLs have them.
pub(crate) fn host_text(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests;
