//! The names that a shell completes. After an error there are none, and no message.

use store::Overrides;

use super::Kind;
use crate::{args::Global, error::Error, exit::Exit, printer::Printer, session::Session};

/// The timeout after Tab.
const PATIENCE: &str = "500ms";

/// Prints names, one a line.
pub(super) async fn print(
    kind: Kind,
    global: &Global,
    words: &[String],
    printer: &Printer,
) -> Result<Exit, Error> {
    let typed = |flag: &str| given(words, flag);
    let global = Global {
        redis: typed("--redis").or_else(|| global.redis.clone()),
        domain: typed("--domain").or_else(|| global.domain.clone()),
        key_prefix: typed("--key-prefix").or_else(|| global.key_prefix.clone()),
        timeout: Some(PATIENCE.to_owned()),
        ..global.clone()
    };
    if let Ok(names) = names(kind, &global, printer).await {
        printer.raw(&(names.join("\n") + "\n"))?;
    }
    Ok(Exit::Done)
}

async fn names(kind: Kind, global: &Global, printer: &Printer) -> Result<Vec<String>, Error> {
    let session = Session::open(global, printer)?;
    if kind == Kind::Domains {
        let domains = session.domains().await?;
        return Ok(domains.iter().map(ToString::to_string).collect());
    }
    let policy = session.policy(Overrides::None).await?;
    let names = policy.limits.iter().map(|limit| limit.name.to_string());
    Ok(names.collect())
}

/// The value of an option on the command line, if given.
fn given(words: &[String], flag: &str) -> Option<String> {
    let after = |word: &String| {
        let rest = word.strip_prefix(flag)?.strip_prefix('=')?;
        Some(rest.to_owned())
    };
    let next = words.windows(2).find_map(|pair| match pair {
        [word, value] if word == flag => Some(value.clone()),
        _ => None,
    });
    next.or_else(|| words.iter().find_map(after))
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_the_line() {
        let words = [
            "rlctl",
            "--domain",
            "shop",
            "--redis=redis://a",
            "get-limit",
            "",
        ];
        let words = words.map(str::to_owned);
        assert_eq!(given(&words, "--domain").as_deref(), Some("shop"));
        assert_eq!(given(&words, "--redis").as_deref(), Some("redis://a"));
        assert_eq!(given(&words, "--key-prefix"), None);
    }
}
