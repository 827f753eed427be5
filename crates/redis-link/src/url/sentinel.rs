//! `redis-sentinel://user:password@host:port,host:port/service`.

use redis::RedisConnectionInfo;

use super::{
    Address, Host, Query, Server, UrlError,
    hosts::{Authority, login},
};

/// Where sentinels listen by default.
const PORT: u16 = 26379;

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

impl Server {
    /// Parses what follows the scheme.
    pub(super) fn parse_sentinel(rest: &str, tls: bool) -> Result<Self, UrlError> {
        let malformed = |why: &str| UrlError::Malformed(why.to_owned());
        if rest.contains('#') {
            return Err(malformed("a `#` must be written %23"));
        }
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_once('/').ok_or_else(|| {
            malformed("the service is missing: redis-sentinel://host:port/service")
        })?;
        let authority = Authority::parse(authority, PORT)?;
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
