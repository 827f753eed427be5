//! `rlctl context`.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    args::{Global, examples},
    contexts::{self, Context, Contexts, Password},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::{Page, Table, View},
    settings::{self, variable},
};

/// Save servers by name, and choose the current one.
///
/// They are saved in ~/.config/rlctl/config.yaml, which only its owner can read. --context or
/// RLCTL_CONTEXT chooses one for a single command.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl context set prod --redis rediss://ann@cache:6380 --password-env PROD_REDIS --domain shop"
    "rlctl context set staging --redis redis://staging:6379 --password-command 'pass redis/staging'"
    "rlctl context use prod"
    "rlctl list-limits --context staging"
), subcommand_required = true, arg_required_else_help = true)]
pub struct ContextCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the contexts, without their passwords.
    #[command(after_help = examples!("rlctl context list" "rlctl context list -o name"))]
    List,
    /// Make a context the current one, which is used unless a flag or a variable says otherwise.
    #[command(after_help = examples!("rlctl context use prod"))]
    Use {
        /// The context.
        name: String,
    },
    /// Create a context, or change fields of one.
    ///
    /// Saves --redis, --domain, --key-prefix and --timeout.
    #[command(after_help = examples!(
        "rlctl context set prod --redis rediss://ann@cache:6380 --password-env PROD_REDIS"
        "rlctl context set prod --domain shop --timeout 3s"
    ))]
    Set {
        /// The context.
        name: String,
        /// The environment variable that holds the password.
        #[arg(long, value_name = "VARIABLE", conflicts_with = "password_command")]
        password_env: Option<String>,
        /// A shell command that prints the password.
        #[arg(long, value_name = "COMMAND")]
        password_command: Option<String>,
    },
    /// Delete a context.
    #[command(after_help = examples!("rlctl context delete staging"))]
    Delete {
        /// The context.
        name: String,
    },
}

impl ContextCommand {
    /// Reads the file, and writes it if something changes.
    pub fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let path = contexts::path(variable)
            .ok_or_else(|| Error::usage("HOME is not set: contexts have no file"))?;
        let mut kept = contexts::read(&path)?;
        match &self.what {
            What::List => return list(&kept, printer),
            What::Use { name } => {
                kept.get(name)?;
                kept.current = Some(name.clone());
                contexts::write(&path, &kept)?;
                printer.note(format_args!("{name} is in use"));
                warn_of_variables(printer);
            }
            What::Set {
                name,
                password_env,
                password_command,
            } => {
                let password = password_env.clone().map(Password::Variable);
                let password = password.or(password_command.clone().map(Password::Command));
                set(&mut kept, name, global, password, printer)?;
                contexts::write(&path, &kept)?;
                printer.note(format_args!("{name} is saved in {}", path.display()));
            }
            What::Delete { name } => {
                kept.get(name)?;
                kept.by_name.remove(name);
                if kept.current.as_ref() == Some(name) {
                    kept.current = None;
                    printer.warn("it was the current context; there is none now");
                }
                contexts::write(&path, &kept)?;
                printer.note(format_args!("{name} is deleted"));
            }
        }
        Ok(Exit::Done)
    }
}

fn set(
    kept: &mut Contexts,
    name: &str,
    global: &Global,
    password: Option<Password>,
    printer: &Printer,
) -> Result<(), Error> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Error::usage("a context's name is one word"));
    }
    if global.redis.as_deref().is_some_and(has_password) {
        printer.warn("the password is saved in the file, which only you can read");
        printer.hint("--password-env or --password-command keep it elsewhere");
    }
    let known = kept.by_name.get(name).cloned();
    let old = known.unwrap_or_default();
    let context = Context {
        redis: global.redis.clone().unwrap_or(old.redis),
        password: password.or(old.password),
        domain: global.domain.clone().or(old.domain),
        key_prefix: global.key_prefix.clone().or(old.key_prefix),
        timeout: global.timeout.clone().or(old.timeout),
    };
    if context.redis.is_empty() {
        return Err(
            Error::usage(format!("{name} is a new context: --redis is missing")).hint(format!(
                "as in `rlctl context set {name} --redis redis://host:6379`"
            )),
        );
    }
    settings::check(&context)?;
    kept.by_name.insert(name.to_owned(), context);
    Ok(())
}

/// Whether a URL has a password after its user.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let user = rest.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':'))
}

/// Warns of a variable that outranks the current context and so makes `use` useless.
fn warn_of_variables(printer: &Printer) {
    if let Some(name) = settings::URL_VARIABLES
        .into_iter()
        .find(|name| variable(name).is_some())
    {
        printer.warn(format_args!(
            "{name} is set, and overrides the current context"
        ));
        printer.hint("unset it, or choose the context with --context");
    }
}

fn list(kept: &Contexts, printer: &Printer) -> Result<Exit, Error> {
    if kept.by_name.is_empty() {
        printer.note("there is no context yet; `rlctl context set NAME --redis URL` makes one");
    }
    let rows = kept.by_name.iter().map(|(name, context)| Row {
        name: name.clone(),
        current: kept.current.as_ref() == Some(name),
        // Without secrets.
        redis: settings::check(context)
            .map_or_else(|_| "(malformed)".to_owned(), |u| u.to_string()),
        password: match &context.password {
            Some(Password::Variable(name)) => Some(format!("from {name}")),
            Some(Password::Command(_)) => Some("from a command".to_owned()),
            None if has_password(&context.redis) => Some("kept here".to_owned()),
            None => None,
        },
        domain: context.domain.clone(),
        key_prefix: context.key_prefix.clone(),
        timeout: context.timeout.clone(),
    });
    printer.data(&Report(rows.collect()))?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Row>);

#[derive(Serialize)]
struct Row {
    name: String,
    current: bool,
    redis: String,
    /// Its source, never its value.
    password: Option<String>,
    domain: Option<String>,
    key_prefix: Option<String>,
    timeout: Option<String>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let headers = [
            "NAME", "IN USE", "REDIS", "PASSWORD", "DOMAIN", "PREFIX", "TIMEOUT",
        ];
        let mut table = Table::new(headers);
        for row in &self.0 {
            let or_nothing = |text: &Option<String>| text.clone().unwrap_or_default();
            table.row([
                row.name.clone(),
                if row.current { "yes" } else { "" }.to_owned(),
                row.redis.clone(),
                or_nothing(&row.password),
                or_nothing(&row.domain),
                or_nothing(&row.key_prefix),
                or_nothing(&row.timeout),
            ]);
        }
        table.draw(page)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|row| row.name.clone()).collect()
    }
}
