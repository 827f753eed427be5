//! What the global options and the environment mean together.

use std::{borrow::Cow, time::Duration};

use policy::Name;
use store::{Keys, SCHEMES, StoreUrl, UrlError};

use crate::{
    args::Global,
    contexts::{Context, Contexts, with_password},
    error::Error,
};

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// What [`Settings::url_source`] says where nothing was said.
pub const DEFAULT_SOURCE: &str = "the default";
/// What [`Settings::url_source`] says where the flag was given.
pub const FLAG_SOURCE: &str = "--redis";
/// Where the store's URL is looked for, after `--redis`.
pub const URL_VARIABLES: [&str; 3] = ["RLCTL_REDIS", "RL_STORE", "REDIS_URL"];

/// What commands that need Redis work with.
#[derive(Debug)]
pub struct Settings {
    /// Where Redis is.
    pub url: StoreUrl,
    /// Where that was said, for error messages.
    pub url_source: Cow<'static, str>,
    /// What keys start with.
    pub keys: Keys,
    /// How long one step may take.
    pub timeout: Duration,
    /// The domain that was asked for, if one was.
    pub domain: Option<Name>,
}

impl Settings {
    /// Flags first, then the environment, then the context in use, then the defaults. An empty
    /// variable is as good as none. A context gives the rest only where it gives the URL.
    pub fn resolve(
        global: &Global,
        contexts: &Contexts,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        let place = Place::find(global, contexts, variable)?;
        let context = place.context.cloned().unwrap_or_default();
        let pick = |flag: &Option<String>, name: &str, kept: Option<String>| {
            let said = flag.clone();
            // A context that was named counts for more than what happens to be set.
            if place.named {
                said.or(kept).or_else(|| variable(name))
            } else {
                said.or_else(|| variable(name)).or(kept)
            }
        };
        Ok(Self {
            url: parse_url(&place.url, &place.source)?,
            url_source: place.source,
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

/// Where Redis is, who said so, and the context that did.
struct Place<'c> {
    url: String,
    source: Cow<'static, str>,
    context: Option<&'c Context>,
    /// Whether the context was named on the command line.
    named: bool,
}

impl<'c> Place<'c> {
    fn find(
        global: &Global,
        contexts: &'c Contexts,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let plain = |source: &'static str, url: String| Self {
            url,
            source: Cow::Borrowed(source),
            context: None,
            named: false,
        };
        if let Some(url) = &global.redis {
            return Ok(plain(FLAG_SOURCE, url.clone()));
        }
        if let Some(name) = &global.context {
            return Self::of(name, contexts, true, variable);
        }
        let [own, others @ ..] = URL_VARIABLES;
        if let Some(url) = variable(own) {
            return Ok(plain(own, url));
        }
        if let Some(name) = variable("RLCTL_CONTEXT") {
            return Self::of(&name, contexts, false, variable);
        }
        if let Some((name, url)) = others.into_iter().find_map(|n| Some((n, variable(n)?))) {
            return Ok(plain(name, url));
        }
        match &contexts.current {
            Some(name) => Self::of(name, contexts, false, variable),
            None => Ok(plain(DEFAULT_SOURCE, DEFAULT_URL.to_owned())),
        }
    }

    fn of(
        name: &str,
        contexts: &'c Contexts,
        named: bool,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let context = contexts.get(name)?;
        let url = match &context.password {
            Some(password) => with_password(&context.redis, &password.fetch(name, variable)?),
            None => context.redis.clone(),
        };
        Ok(Self {
            url,
            source: Cow::Owned(format!("context {name}")),
            context: Some(context),
            named,
        })
    }
}

/// A variable of the environment; an empty one is as good as none.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A context's URL without what is secret; an error if it could not be used.
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
        let contexts = Contexts::default();
        Settings::resolve(&global, &contexts, |name| {
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
    fn a_context_that_is_named_comes_before_the_environment_and_one_in_use_after_it() {
        let mut contexts = Contexts::default();
        for name in ["prod", "staging"] {
            let context = Context {
                redis: format!("redis://{name}:1"),
                domain: Some(name.to_owned()),
                ..Context::default()
            };
            contexts.by_name.insert(name.to_owned(), context);
        }
        contexts.current = Some("prod".to_owned());
        let resolve = |flags: &[&str], environment: &[(&str, &str)]| {
            let words = ["rlctl"].iter().chain(flags);
            let global = Line::try_parse_from(words).unwrap().global;
            let settings = Settings::resolve(&global, &contexts, |name| {
                let found = environment.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            settings.map(|settings| {
                let domain = settings.domain.map(|name| name.to_string());
                let said = (settings.url.to_string(), settings.url_source.into_owned());
                (said, domain.unwrap_or_default())
            })
        };
        let prod = || ("redis://prod:1".to_owned(), "context prod".to_owned());
        let staging = || ("redis://staging:1".to_owned(), "context staging".to_owned());
        assert_eq!(resolve(&[], &[]).unwrap(), (prod(), "prod".to_owned()));
        let env = [("REDIS_URL", "redis://c:3"), ("RLCTL_DOMAIN", "shop")];
        let (said, domain) = resolve(&[], &env).unwrap();
        assert_eq!((said.0.as_str(), domain.as_str()), ("redis://c:3", "shop"));
        let flag = resolve(&["--context", "staging"], &env).unwrap();
        assert_eq!(flag, (staging(), "staging".to_owned()));
        let both = [("RLCTL_CONTEXT", "staging"), ("REDIS_URL", "redis://c:3")];
        assert_eq!(resolve(&[], &both).unwrap().0, staging());
        let unknown = resolve(&["--context", "prd"], &[]).unwrap_err();
        assert_eq!(unknown.hints().next(), Some("did you mean `prod`?"));
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
            (["--redis", "http://:s3cret@host"], "--redis: the URL of"),
            (
                ["--redis", "redis://:s3cret@host:port"],
                "--redis: the store's URL is malformed",
            ),
            (["--redis", "memory"], "--redis is `memory`"),
            (["--timeout", "1"], "--timeout: "),
            (["--timeout", "0s"], "--timeout: expected more"),
            (["--domain", "Shop"], "--domain: a name is"),
            (["--key-prefix", "{x}"], "--key-prefix: a key prefix is"),
        ] {
            let error = resolve(&flags, &[]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
