//! Where the URL of Redis comes from.

use std::borrow::Cow;

use super::{DEFAULT_SOURCE, DEFAULT_URL, FLAG_SOURCE, URL_VARIABLES};
use crate::{
    args::Global,
    contexts::{Context, Contexts, with_password},
    error::Error,
};

/// The URL of Redis, its source, and the context that gave it.
pub(super) struct Location<'c> {
    pub(super) url: String,
    pub(super) source: Cow<'static, str>,
    pub(super) context: Option<&'c Context>,
    /// Whether the context was named on the command line.
    pub(super) named: bool,
}

impl<'c> Location<'c> {
    /// Looks in the order flag, own variable, context, common variables, current context, default.
    pub(super) fn find(
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
