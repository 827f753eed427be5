//! `user:password@host:port,host:port`: several hosts in one URL.

use redis::RedisConnectionInfo;

use super::{Address, Host, Server, UrlError};

/// The port of a Cluster's node if the URL names none.
const CLUSTER_PORT: u16 = 6379;

/// Hosts and their login.
pub(super) struct Authority<'a> {
    /// Still percent-encoded.
    pub(super) userinfo: Option<&'a str>,
    /// At least one.
    pub(super) hosts: Vec<Host>,
}

impl<'a> Authority<'a> {
    /// `port` is that of a host that names none.
    pub(super) fn parse(text: &'a str, port: u16) -> Result<Self, UrlError> {
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

impl Server {
    /// Parses what follows the scheme of a Cluster.
    pub(super) fn parse_cluster(rest: &str, tls: bool) -> Result<Self, UrlError> {
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
}

/// Credentials and database, read by the rules of a `redis://` URL.
pub(super) fn login(
    userinfo: Option<&str>,
    db: Option<&str>,
) -> Result<RedisConnectionInfo, UrlError> {
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
