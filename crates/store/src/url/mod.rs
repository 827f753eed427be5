//! Where the store is, as users write it.

mod sentinel;

use std::{fmt, str::FromStr};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

pub(crate) use sentinel::Sentinels;

/// A store's URL, parsed. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// `memory`: one process, nothing shared.
    Memory,
    /// `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://`: one server;
    /// `redis-sentinel://`, `rediss-sentinel://`: the one that Sentinel says is the primary.
    Single(Server),
}

/// One server and how to log in.
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
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

/// Why a text is not a usable store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not one of the schemes.
    #[error(
        "a store is `memory` or starts with redis://, rediss://, valkey://, valkeys://, \
         redis-sentinel://, rediss-sentinel:// or unix://"
    )]
    Scheme,
    /// The part after the scheme.
    #[error("the store's URL is malformed: {0}")]
    Malformed(String),
    /// A user without a password would be ignored at login.
    #[error("the store's URL has a user but no password: write user:password@host")]
    UserWithoutPassword,
    /// Known, but not in this version.
    #[error("{0}:// is not yet available; use redis://, rediss:// or redis-sentinel://")]
    NotYet(&'static str),
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        match scheme {
            "redis" | "valkey" => Server::parse(&format!("redis://{rest}"), false),
            "rediss" | "valkeys" => Server::parse(&format!("redis://{rest}"), true),
            "unix" | "redis+unix" | "valkey+unix" => Server::parse(text, false),
            "redis-sentinel" => Server::parse_sentinel(rest, false),
            "rediss-sentinel" => Server::parse_sentinel(rest, true),
            "redis-cluster" => Err(UrlError::NotYet("redis-cluster")),
            _ => Err(UrlError::Scheme),
        }
        .map(Self::Single)
    }
}

impl Server {
    fn parse(url: &str, tls: bool) -> Result<Self, UrlError> {
        // The client's messages are fixed texts, they quote nothing of the URL.
        let malformed = |e: redis::RedisError| UrlError::Malformed(e.to_string());
        if url.contains('#') {
            return Err(UrlError::Malformed(
                "a `#` must be written %23; certificates are always verified".to_owned(),
            ));
        }
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
            // Redis 7.0 does not know CLIENT SETINFO, and an ACL that names it is refused whole.
            login: login.clone().set_skip_set_lib_name(),
        })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Single(server) => server.fmt(f),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port, tls } => {
                f.write_str(if *tls { "rediss://" } else { "redis://" })?;
                self.write_user(f)?;
                write_host(f, host, *port)?;
            }
            Address::Sentinel { sentinels, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                write!(f, "{scheme}-sentinel://")?;
                self.write_user(f)?;
                for (i, (host, port)) in sentinels.hosts.iter().enumerate() {
                    f.write_str(if i > 0 { "," } else { "" })?;
                    write_host(f, host, *port)?;
                }
                write!(f, "/{}", sentinels.service)?;
                return match self.login.db() {
                    0 => Ok(()),
                    db => write!(f, "?db={db}"),
                };
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
    fn write_user(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.login.username() {
            Some(user) => write!(f, "{user}@"),
            None => Ok(()),
        }
    }
}

fn write_host(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') {
        write!(f, "[{host}]:{port}")
    } else {
        write!(f, "{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn passwords_are_never_shown() {
        let url = parse("valkeys://bob:s3cret%40x@[::1]:7000/3").unwrap();
        assert_eq!(url.to_string(), "rediss://bob@[::1]:7000/3");
        assert!(!format!("{url:?}").contains("s3cret"));
        let StoreUrl::Single(server) = url else {
            panic!("one server")
        };
        assert_eq!(server.login.password(), Some("s3cret@x"));
        assert_eq!(server.login.username(), Some("bob"));
    }

    #[test]
    fn a_user_without_a_password_is_refused_rather_than_ignored() {
        let refused = parse("redis://bob@127.0.0.1").unwrap_err();
        assert_eq!(refused, UrlError::UserWithoutPassword);
    }

    #[test]
    fn errors_quote_nothing_of_the_url() {
        for bad in [
            "redis://:s3cret@",
            "redis://:s3cret@host:notaport",
            "redis://:s3cret@host/db",
            "redis://:s3cret#x@host",
            "http://:s3cret@host",
            "s3cret",
            "",
        ] {
            let message = parse(bad).unwrap_err().to_string();
            assert!(!message.contains("s3cret"), "{bad}: {message}");
        }
    }

    #[test]
    fn sentinels_are_a_list_of_hosts_and_a_service() {
        let text = "redis-sentinel://bob:s3cret@a,[::1]:7,c:8/main?db=2\
                    &sentinel_user=eve&sentinel_password=s3cret%26";
        let url = parse(text).unwrap();
        assert_eq!(
            url.to_string(),
            "redis-sentinel://bob@a:26379,[::1]:7,c:8/main?db=2"
        );
        assert!(!format!("{url:?}").contains("s3cret"));
        let StoreUrl::Single(server) = url else {
            panic!("one server at a time")
        };
        let Address::Sentinel { sentinels, tls } = server.address else {
            panic!("found by sentinels")
        };
        assert!(!tls && sentinels.service == "main");
        assert_eq!(sentinels.login.username(), Some("eve"));
        assert_eq!(sentinels.login.password(), Some("s3cret&"));
        for bad in [
            "redis-sentinel://a:1",
            "redis-sentinel://a:1/",
            "redis-sentinel:///main",
            "redis-sentinel://a:1/main/2",
            "redis-sentinel://a:x/main",
            "redis-sentinel://a:1,/main",
            "redis-sentinel://bob@a:1/main",
            "redis-sentinel://a:1/main?sentinel_user=eve",
            "redis-sentinel://a:1/main?password=s3cret",
        ] {
            let refused = parse(bad).unwrap_err().to_string();
            assert!(!refused.contains("s3cret"), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_deployment_of_a_later_version_is_named() {
        let later = parse("redis-cluster://a:1,b:2").unwrap_err();
        assert!(matches!(later, UrlError::NotYet("redis-cluster")));
        assert!(later.to_string().contains("not yet available"), "{later}");
    }
}
