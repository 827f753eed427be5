//! What the global options and the environment mean together.

use std::time::Duration;

use policy::Name;
use store::{Keys, StoreUrl};

use crate::{cli::Global, error::Error};

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// What [`Settings::url_source`] says where nothing was said.
pub const DEFAULT_SOURCE: &str = "the default";
/// What [`Settings::url_source`] says where the flag was given.
pub const FLAG_SOURCE: &str = "--redis";
/// Where the store's URL is looked for, after `--redis`.
const URL_VARIABLES: [&str; 3] = ["RLCTL_REDIS", "RL_STORE", "REDIS_URL"];

/// What commands that need Redis work with.
#[derive(Debug)]
pub struct Settings {
    /// Where Redis is.
    pub url: StoreUrl,
    /// Where that was said, for error messages.
    pub url_source: &'static str,
    /// What keys start with.
    pub keys: Keys,
    /// How long one step may take.
    pub timeout: Duration,
    /// The domain that was asked for, if one was.
    pub domain: Option<Name>,
}

impl Settings {
    /// Flags first, then the environment, then the defaults. An empty variable is as good as none.
    pub fn resolve(
        global: &Global,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let (url_source, url) = match &global.redis {
            Some(url) => (FLAG_SOURCE, url.clone()),
            None => URL_VARIABLES
                .into_iter()
                .find_map(|name| variable(name).map(|url| (name, url)))
                .unwrap_or_else(|| (DEFAULT_SOURCE, DEFAULT_URL.to_owned())),
        };
        Ok(Self {
            url: parse_url(&url, url_source)?,
            url_source,
            keys: parse_prefix(
                global
                    .key_prefix
                    .clone()
                    .or_else(|| variable("RL_KEY_PREFIX")),
            )?,
            timeout: parse_timeout(global.timeout.clone().or_else(|| variable("RLCTL_TIMEOUT")))?,
            domain: parse_domain(global.domain.clone().or_else(|| variable("RLCTL_DOMAIN")))?,
        })
    }
}

/// The messages of the URL's parser never quote it, and neither may these: it can hold a password.
fn parse_url(text: &str, source: &str) -> Result<StoreUrl, Error> {
    match text.parse() {
        Ok(StoreUrl::Memory) => Err(Error::usage(format!(
            "{source} says `memory`, a store inside one limiter that rlctl cannot reach"
        ))
        .hint("edit the limiter's --limits file and restart it, or give it a Redis")),
        Ok(url) => Ok(url),
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
        Ok(0) => Err(Error::usage("--timeout: 0 would be no time at all")),
        Ok(ms) => Ok(Duration::from_millis(ms)),
        Err(error) => Err(Error::usage(format!("--timeout: {error}"))),
    }
}

fn parse_domain(text: Option<String>) -> Result<Option<Name>, Error> {
    let wrong = |error| Error::usage(format!("--domain: {error}"));
    text.map(|text| text.parse().map_err(wrong)).transpose()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
    }

    fn resolve(flags: &[&str], environment: &[(&str, &str)]) -> Result<Settings, Error> {
        let words = ["rlctl"].iter().chain(flags);
        let global = Line::try_parse_from(words).unwrap().global;
        Settings::resolve(&global, |name| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn flags_come_before_the_environment_and_that_before_the_default() {
        let all = [
            ("RLCTL_REDIS", "redis://a:1"),
            ("RL_STORE", "redis://b:2"),
            ("REDIS_URL", "redis://c:3"),
            ("RLCTL_DOMAIN", "shop"),
        ];
        let settings = resolve(&["--redis", "redis://d:4", "--domain", "admin"], &all).unwrap();
        assert_eq!(settings.url.to_string(), "redis://d:4");
        assert_eq!(settings.domain.unwrap().as_str(), "admin");
        for (skipped, url, source) in [
            (0, "redis://a:1", "RLCTL_REDIS"),
            (1, "redis://b:2", "RL_STORE"),
            (2, "redis://c:3", "REDIS_URL"),
            (3, "redis://127.0.0.1:6379", "the default"),
        ] {
            let settings = resolve(&[], &all[skipped..]).unwrap();
            assert_eq!(settings.url.to_string(), url);
            assert_eq!(settings.url_source, source);
        }
    }

    #[test]
    fn an_empty_variable_says_nothing() {
        let empty = [
            ("RLCTL_REDIS", ""),
            ("RLCTL_DOMAIN", ""),
            ("RLCTL_TIMEOUT", ""),
        ];
        let settings = resolve(&[], &empty).unwrap();
        assert_eq!(settings.url_source, "the default");
        assert_eq!(settings.domain, None);
        assert_eq!(settings.timeout, DEFAULT_TIMEOUT);
    }

    #[test]
    fn errors_name_the_flag_and_never_the_password() {
        for (flags, message) in [
            (["--redis", "http://:s3cret@host"], "--redis: a store is"),
            (
                ["--redis", "redis://:s3cret@host:port"],
                "--redis: the store's URL is malformed",
            ),
            (["--redis", "memory"], "--redis says `memory`"),
            (["--timeout", "1"], "--timeout: "),
            (["--timeout", "0s"], "--timeout: 0"),
            (["--domain", "Shop"], "--domain: a name is"),
            (["--key-prefix", "{x}"], "--key-prefix: a key prefix is"),
        ] {
            let error = resolve(&flags, &[]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
