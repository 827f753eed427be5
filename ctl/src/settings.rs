//! Settings from the global options and the environment.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use policy::Name;
use store::{ClientCertificate, Keys, SCHEMES, StoreUrl, UrlError};

use crate::{
    cli::Global,
    error::{Error, closest},
};

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// [`Settings::url_source`] of the default.
pub const DEFAULT_SOURCE: &str = "the default";
/// [`Settings::url_source`] of the flag.
pub const FLAG_SOURCE: &str = "--redis";
/// Where the store's URL is looked for, after `--redis`.
pub const URL_VARIABLES: [&str; 3] = ["RLCTL_REDIS", "RL_STORE", "REDIS_URL"];

/// The settings of commands that need Redis.
#[derive(Debug)]
pub struct Settings {
    /// Where Redis is.
    pub url: StoreUrl,
    /// Where the URL comes from, for error messages.
    pub url_source: &'static str,
    /// What is shown to a server with TLS.
    pub client_certificate: Option<ClientCertificate>,
    /// What keys start with.
    pub keys: Keys,
    /// How long one step may take.
    pub timeout: Duration,
    /// The domain that was named, if one was.
    pub domain: Option<Name>,
}

impl Settings {
    /// Flags first, then the environment, then the defaults. An empty variable counts as unset.
    pub fn resolve(
        global: &Global,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let pick = |flag: &Option<String>, name: &str| flag.clone().or_else(|| variable(name));
        let flag = global.redis.clone().map(|url| (FLAG_SOURCE, url));
        let mut variables = URL_VARIABLES.into_iter();
        let (url_source, url) = flag
            .or_else(|| variables.find_map(|name| Some((name, variable(name)?))))
            .unwrap_or_else(|| (DEFAULT_SOURCE, DEFAULT_URL.to_owned()));
        Ok(Self {
            url: parse_url(&url, url_source)?,
            url_source,
            client_certificate: client_certificate(variable)?,
            keys: parse_prefix(pick(&global.key_prefix, "RL_KEY_PREFIX"))?,
            timeout: parse_timeout(pick(&global.timeout, "RLCTL_TIMEOUT"))?,
            domain: parse_domain(pick(&global.domain, "RLCTL_DOMAIN"))?,
        })
    }
}

/// What was probably meant for rlctl: whoever misspells RLCTL_REDIS edits another server without noticing.
pub fn misspelt(
    names: impl Iterator<Item = OsString>,
) -> impl Iterator<Item = (String, &'static str)> {
    let known = ["DOMAIN", "TIMEOUT", "AUTHOR", "DOCTOR_IGNORE", "REDIS"];
    names.filter_map(move |name| {
        let name = name.into_string().ok()?;
        let own = name
            .strip_prefix("RLCTL_")
            .filter(|own| !known.contains(own))?;
        let meant = closest(own, known)?;
        Some((name, meant))
    })
}

/// A variable of the environment; an empty one counts as unset.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The messages of the URL's parser never quote it, and neither may these: it can hold a password.
pub fn parse_url(text: &str, source: &str) -> Result<StoreUrl, Error> {
    match text.parse() {
        Ok(StoreUrl::Memory) => Err(Error::usage(format!(
            "{source} is `memory`, a store inside one limiter that rlctl cannot reach"
        ))
        .hint("edit the limiter's --limits file, which it follows, or give it a Redis")),
        Ok(url) => Ok(url),
        Err(UrlError::Scheme) => Err(Error::usage(format!(
            "{source}: the URL of a Redis starts with {SCHEMES}"
        ))
        .hint("as in redis://[[user]:password@]host[:port][/db]")),
        Err(error) => Err(Error::usage(format!("{source}: {error}"))
            .hint("a URL is redis://[[user]:password@]host[:port][/db], with %2F for a `/` in the password")),
    }
}

/// Both files, or neither: a server that wants a certificate does not say that it got none.
fn client_certificate(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<ClientCertificate>, Error> {
    let [cert, key] = ["RL_STORE_CERT", "RL_STORE_KEY"];
    let missing = |set: &str, other: &str| {
        Error::usage(format!("{set} is set and {other} is not"))
            .hint("a certificate is shown with its key: set both, or neither")
    };
    match [cert, key].map(|name| variable(name).map(PathBuf::from)) {
        [None, None] => Ok(None),
        [Some(cert), Some(key)] => Ok(Some(ClientCertificate { cert, key })),
        [Some(_), None] => Err(missing(cert, key)),
        [None, Some(_)] => Err(missing(key, cert)),
    }
}

fn parse_prefix(text: Option<String>) -> Result<Keys, Error> {
    let wrong = |error: store::PrefixError| Error::usage(format!("--key-prefix: {error}"));
    text.map_or_else(|| Ok(Keys::default()), |text| text.parse().map_err(wrong))
}

fn parse_timeout(text: Option<String>) -> Result<Duration, Error> {
    let Some(text) = text else {
        return Ok(DEFAULT_TIMEOUT);
    };
    match policy::parse_duration(&text) {
        Ok(0) => Err(Error::usage("--timeout: expected more than 0")),
        Ok(ms) => Ok(Duration::from_millis(ms)),
        Err(error) => Err(Error::usage(format!("--timeout: {error}"))),
    }
}

fn parse_domain(text: Option<String>) -> Result<Option<Name>, Error> {
    let wrong = |error| Error::usage(format!("--domain: {error}"));
    text.map(|text| Name::domain(&text).map_err(wrong))
        .transpose()
}

#[cfg(test)]
mod tests;
