//! Settings from the global options, the environment and the contexts.

mod location;

use std::{borrow::Cow, time::Duration};

use policy::Name;
use store::{Keys, SCHEMES, StoreUrl, UrlError};

use crate::{
    args::Global,
    contexts::{Context, Contexts, with_password},
    error::Error,
};

use location::Location;

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
    pub url_source: Cow<'static, str>,
    /// What keys start with.
    pub keys: Keys,
    /// How long one step may take.
    pub timeout: Duration,
    /// The domain that was named, if one was.
    pub domain: Option<Name>,
}

impl Settings {
    /// Flags first, then the environment, then the context in use, then the defaults. An empty
    /// variable counts as unset. A context's other settings apply only if its URL does.
    pub fn resolve(
        global: &Global,
        contexts: &Contexts,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let location = Location::find(global, contexts, variable)?;
        let context = location.context.cloned().unwrap_or_default();
        let pick = |flag: &Option<String>, name: &str, kept: Option<String>| {
            let said = flag.clone();
            // A context named on the command line outranks the environment.
            if location.named {
                said.or(kept).or_else(|| variable(name))
            } else {
                said.or_else(|| variable(name)).or(kept)
            }
        };
        Ok(Self {
            url: parse_url(&location.url, &location.source)?,
            url_source: location.source,
            keys: parse_prefix(pick(
                &global.key_prefix,
                "RL_KEY_PREFIX",
                context.key_prefix,
            ))?,
            timeout: parse_timeout(pick(&global.timeout, "RLCTL_TIMEOUT", context.timeout))?,
            domain: parse_domain(pick(&global.domain, "RLCTL_DOMAIN", context.domain))?,
        })
    }
}

/// A variable of the environment; an empty one counts as unset.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A context's URL without its secrets; an error if it could not be used.
pub fn check(context: &Context) -> Result<StoreUrl, Error> {
    let url = match &context.password {
        Some(_) => with_password(&context.redis, "unknown"),
        None => context.redis.clone(),
    };
    parse_prefix(context.key_prefix.clone())?;
    parse_timeout(context.timeout.clone())?;
    parse_domain(context.domain.clone())?;
    parse_url(&url, FLAG_SOURCE)
}

/// The messages of the URL's parser never quote it, and neither may these: it can hold a password.
pub fn parse_url(text: &str, source: &str) -> Result<StoreUrl, Error> {
    match text.parse() {
        Ok(StoreUrl::Memory) => Err(Error::usage(format!(
            "{source} is `memory`, a store inside one limiter that rlctl cannot reach"
        ))
        .hint("edit the limiter's --limits file and restart it, or give it a Redis")),
        Ok(url) => Ok(url),
        Err(UrlError::Scheme) => Err(Error::usage(format!(
            "{source}: the URL of a Redis starts with {SCHEMES}"
        ))
        .hint("as in redis://[[user]:password@]host[:port][/db]")),
        Err(error) => Err(Error::usage(format!("{source}: {error}"))
            .hint("a URL is redis://[[user]:password@]host[:port][/db]")),
    }
}

fn parse_prefix(text: Option<String>) -> Result<Keys, Error> {
    let Some(text) = text else {
        return Ok(Keys::default());
    };
    text.parse()
        .map_err(|error: store::PrefixError| Error::usage(format!("--key-prefix: {error}")))
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
