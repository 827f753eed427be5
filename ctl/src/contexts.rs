//! Contexts: servers saved by name with `rlctl context`.

mod file;
mod password;

use std::collections::BTreeMap;

use policy::{Node, Value};

use crate::error::Error;

pub use file::{path, read, write};
pub use password::{Password, with_password};

/// A server and how it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Its URL. A password in it is stored, and never shown.
    pub redis: String,
    /// Where its password comes from, if not from the URL.
    pub password: Option<Password>,
    /// The default domain.
    pub domain: Option<String>,
    /// The prefix of its keys.
    pub key_prefix: Option<String>,
    /// How long to wait for it.
    pub timeout: Option<String>,
}

/// Every context, and which of them is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// The current context, used unless a flag or a variable gives the URL.
    pub current: Option<String>,
    /// By name.
    pub by_name: BTreeMap<String, Context>,
}

impl Contexts {
    /// The context of that name; an error that lists the others if there is none.
    pub fn get(&self, name: &str) -> Result<&Context, Error> {
        self.by_name.get(name).ok_or_else(|| {
            let known = self.by_name.keys().map(String::as_str);
            Error::not_found(format!("there is no context `{name}`"))
                .hint(crate::suggest::hint(name, "contexts", known))
        })
    }

    fn from_node(node: &Node) -> Result<Self, String> {
        let mut contexts = Self::default();
        for (key, value) in entries(node)? {
            match key {
                "current" => contexts.current = Some(text(key, value)?),
                "contexts" => {
                    for (name, context) in entries(value)? {
                        let read = Context::from_node(context);
                        let context = read.map_err(|why| format!("contexts.{name}: {why}"))?;
                        contexts.by_name.insert(name.to_owned(), context);
                    }
                }
                other => return Err(format!("unknown field `{other}`")),
            }
        }
        Ok(contexts)
    }

    fn to_node(&self) -> Node {
        let mut node = Node::map::<&str>([]);
        if let Some(current) = &self.current {
            node.set("current", Node::text(current));
        }
        let contexts = self.by_name.iter();
        let contexts = contexts.map(|(name, context)| (name.as_str(), context.to_node()));
        node.set("contexts", Node::map(contexts));
        node
    }
}

impl Context {
    fn from_node(node: &Node) -> Result<Self, String> {
        let mut context = Self::default();
        for (key, value) in entries(node)? {
            let value = text(key, value)?;
            match key {
                "redis" => context.redis = value,
                "password_env" => context.password = Some(Password::Variable(value)),
                "password_command" => context.password = Some(Password::Command(value)),
                "domain" => context.domain = Some(value),
                "key_prefix" => context.key_prefix = Some(value),
                "timeout" => context.timeout = Some(value),
                other => return Err(format!("unknown field `{other}`")),
            }
        }
        if context.redis.is_empty() {
            return Err("`redis` is missing".to_owned());
        }
        Ok(context)
    }

    fn to_node(&self) -> Node {
        let mut node = Node::map([("redis", Node::text(&self.redis))]);
        let (variable, command) = match &self.password {
            Some(Password::Variable(name)) => (Some(name), None),
            Some(Password::Command(words)) => (None, Some(words)),
            None => (None, None),
        };
        let fields = [
            ("password_env", variable),
            ("password_command", command),
            ("domain", self.domain.as_ref()),
            ("key_prefix", self.key_prefix.as_ref()),
            ("timeout", self.timeout.as_ref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                node.set(name, Node::text(value));
            }
        }
        node
    }
}

fn entries(node: &Node) -> Result<Vec<(&str, &Node)>, String> {
    match &node.value {
        Value::Map(entries) => Ok(entries.iter().map(|e| (e.key.as_str(), &e.value)).collect()),
        Value::Null => Ok(Vec::new()),
        _ => Err("expected a map".to_owned()),
    }
}

/// The value itself is not quoted: it may hold a password.
fn text(key: &str, node: &Node) -> Result<String, String> {
    let text = node.as_text().map(str::to_owned);
    text.ok_or_else(|| format!("{key}: expected text"))
}
