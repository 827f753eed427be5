//! Problems of a limit, in terms of the flags that set its fields.

use policy::{Limit, Name, Override, Policy, Problem, Problems, Surroundings};

use crate::{clock, costly::cost_warning, error::Error, exit::Exit, session::Session};

/// The error for flags that make an invalid limit.
pub fn invalid_limit(limit: &str, problems: &Problems) -> Error {
    let mut lines: Vec<String> = problems.iter().map(line).collect();
    lines.dedup();
    let message = match lines.as_slice() {
        [only] => format!("limit {limit}: {only}"),
        many => format!("limit {limit}:\n  {}", many.join("\n  ")),
    };
    let mut hints: Vec<&str> = problems
        .iter()
        .filter_map(|problem| problem.hint.as_deref())
        .collect();
    hints.dedup();
    let error = Error::new(Exit::Usage, message);
    hints.into_iter().fold(error, Error::hint)
}

/// Warnings about a limit that is valid but probably a mistake.
pub async fn warn(session: &Session<'_>, domain: &Name, limit: &Limit) {
    for problem in warnings(session, domain, limit).await {
        let line = line(&problem);
        show(
            session,
            &problem,
            format_args!("limit {}: {line}", limit.name),
        );
    }
}

/// Warnings about an override that is valid but probably a mistake.
pub async fn warn_of_override(session: &Session<'_>, domain: &Name, limit: &Limit, one: &Override) {
    let mut limit = limit.clone();
    limit.overrides = vec![one.clone()];
    for problem in warnings(session, domain, &limit).await {
        if problem.path.contains(".overrides[") {
            show(session, &problem, format_args!("{}", problem.message));
        }
    }
}

fn show(session: &Session<'_>, problem: &Problem, text: std::fmt::Arguments<'_>) {
    session.printer.warn(text);
    if let Some(hint) = &problem.hint {
        session.printer.hint(hint);
    }
}

async fn warnings(session: &Session<'_>, domain: &Name, limit: &Limit) -> Vec<Problem> {
    // Without it some warnings are missing; the edit reports errors of Redis.
    let live = session.live_entries().await.unwrap_or_default();
    let mut policy = Policy::empty(limit.name.clone());
    policy.limits = vec![limit.clone()];
    let around = Surroundings {
        now_ms: Some(clock::now_ms()),
        supply: live.supply(domain),
        dear: Some(cost_warning),
    };
    policy.warnings(&around)
}

fn line(problem: &Problem) -> String {
    let message = &problem.message;
    match place_of(&problem.path) {
        Some(place) => format!("{place}: {message}"),
        None => message.clone(),
    }
}

/// `max_delay` is `--max-delay`, `match.path[0]` is `--match path`, `penalty.for` is `--penalty for`; an
/// override has no flag and keeps its path, `overrides[2].rate`.
fn place_of(path: &str) -> Option<String> {
    let field = match path.strip_prefix("limits[") {
        Some(rest) => rest.split_once("].").map(|(_, field)| field)?,
        None => path,
    };
    let mut parts = field.split(['.', '[']);
    let first = parts
        .next()
        .filter(|first| !first.is_empty() && *first != "name")?;
    let flag = format!("--{}", first.replace('_', "-"));
    match (first, parts.next()) {
        ("match" | "penalty", Some(key)) => Some(format!("{flag} {key}")),
        ("overrides", _) => Some(field.to_owned()),
        _ => Some(flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_as_flags() {
        assert_eq!(
            place_of("limits[2].max_delay").as_deref(),
            Some("--max-delay")
        );
        assert_eq!(place_of("rate").as_deref(), Some("--rate"));
        assert_eq!(place_of("match.path[1]").as_deref(), Some("--match path"));
        assert_eq!(
            place_of("limits[0].overrides[2].rate").as_deref(),
            Some("overrides[2].rate")
        );
        assert_eq!(
            place_of("limits[0].penalty.for").as_deref(),
            Some("--penalty for")
        );
        assert_eq!(place_of("limits[0].name"), None);
        assert_eq!(place_of(""), None);
    }
}
