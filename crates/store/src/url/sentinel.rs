//! `redis-sentinel://user:password@host:port,host:port/service`.

use redis::RedisConnectionInfo;

use super::{Address, Server, UrlError};

/// Where sentinels listen unless they are told otherwise.
const PORT: u16 = 26379;

/// Sentinels, any of which tells where the primary is.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    /// Host and port of each, at least one.
    pub(crate) hosts: Vec<(String, u16)>,
    /// What the sentinels call the primary.
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
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let query = Query::parse(query)?;
        let service = path.to_owned();
        if service.is_empty() || service.contains('/') {
            return Err(malformed(
                "the service is one name: redis-sentinel://host:port/service",
            ));
        }
        let sentinel_userinfo = match (query.user, query.password) {
            (user, Some(password)) => Some(format!("{}:{password}", user.unwrap_or_default())),
            (Some(_), None) => return Err(UrlError::UserWithoutPassword),
            (None, None) => None,
        };
        let login = login(userinfo, query.db)?;
        Ok(Self {
            address: Address::Sentinel {
                sentinels: Sentinels {
                    hosts: hosts.split(',').map(host).collect::<Result<_, _>>()?,
                    service,
                    login: self::login(sentinel_userinfo.as_deref(), None)?,
                },
                tls,
            },
            login,
        })
    }
}

/// The parameters after `?`, still percent-encoded.
#[derive(Default)]
struct Query<'a> {
    db: Option<&'a str>,
    user: Option<&'a str>,
    password: Option<&'a str>,
}

impl<'a> Query<'a> {
    fn parse(text: &'a str) -> Result<Self, UrlError> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "db" => query.db = Some(value),
                "sentinel_user" => query.user = Some(value),
                "sentinel_password" => query.password = Some(value),
                _ => {
                    let known = "the parameters are db, sentinel_user and sentinel_password";
                    return Err(UrlError::Malformed(known.to_owned()));
                }
            }
        }
        Ok(query)
    }
}

/// Credentials and database, read by the rules of a `redis://` URL.
fn login(userinfo: Option<&str>, db: Option<&str>) -> Result<RedisConnectionInfo, UrlError> {
    let userinfo = userinfo.map_or_else(String::new, |userinfo| format!("{userinfo}@"));
    let url = format!("redis://{userinfo}host/{}", db.unwrap_or_default());
    Ok(Server::parse(&url, false)?.login)
}

fn host(text: &str) -> Result<(String, u16), UrlError> {
    let parsed = Server::parse(&format!("redis://{text}"), false)?;
    let has_port = text
        .rsplit_once(']')
        .map_or(text, |(_, rest)| rest)
        .contains(':');
    match parsed.address {
        Address::Tcp { host, port, .. } => Ok((host, if has_port { port } else { PORT })),
        _ => Err(UrlError::Malformed("a sentinel is host:port".to_owned())),
    }
}
