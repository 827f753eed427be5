//! The arguments of one `RequestRateLimiter`.

use documents::{Name, Problem, quoted};

use super::tree::At;
use crate::{Options, names::name_of, report::Reading};

/// One limiter, with Spring's defaults.
pub(super) struct Limiter {
    pub(super) replenish_rate: u64,
    pub(super) burst_capacity: u64,
    pub(super) requested_tokens: u64,
    pub(super) deny_empty_key: bool,
    /// The entry that stands for the key resolver.
    pub(super) key: Name,
}

/// Settings for all limiters, and the map of configurations by route.
pub(super) struct Defaults<'n> {
    deny_empty_key: bool,
    by_route: Vec<(String, At<'n>)>,
}

impl<'n> Defaults<'n> {
    pub(super) fn read(gateway: &At<'n>, reading: &mut Reading) -> Self {
        let filter = gateway.at(&["filter", "request-rate-limiter"]);
        let mut deny_empty_key = true;
        for (name, at) in filter.iter().flat_map(At::leaves) {
            match name.as_str() {
                "denyemptykey" => deny_empty_key = at.text() != Some("false"),
                "emptykeystatuscode" | "emptykeystatus" => empty_key_status(&at, reading),
                "enabled" => {}
                _ => unknown(&at, reading),
            }
        }
        let limiter = gateway.at(&["redis-rate-limiter"]);
        let mut by_route = Vec::new();
        for (name, at) in limiter.iter().flat_map(At::leaves) {
            match name.strip_prefix("config.") {
                Some(rest) => by_route.push((rest.to_owned(), at)),
                None if name == "includeheaders" || name.ends_with("header") => {
                    headers(&at, reading);
                }
                None => unknown(&at, reading),
            }
        }
        Self {
            deny_empty_key,
            by_route,
        }
    }
}

/// The limiter; `None`, and a report, if it cannot be expressed.
pub(super) fn read_limiter(
    filter: &At<'_>,
    route: &str,
    defaults: &Defaults<'_>,
    options: &Options,
    reading: &mut Reading,
) -> Option<Limiter> {
    let Some(args) = filter.at(&["args"]) else {
        let message = "this `RequestRateLimiter` has no `args`";
        reading.lost.add(&filter.path(), filter.place(), message).push_hint(
            "Spring does not read the short form `RequestRateLimiter=…` either; use `name` and `args`",
        );
        return None;
    };
    let mut found = Limiter {
        replenish_rate: 0,
        burst_capacity: 1,
        requested_tokens: 1,
        deny_empty_key: defaults.deny_empty_key,
        key: "user".parse().ok()?,
    };
    let mut resolver = None;
    let prefix = format!("{}.", super::canonical(route));
    let by_route = defaults.by_route.iter().filter_map(|(name, at)| {
        let rest = name.strip_prefix(&prefix)?;
        Some((format!("redisratelimiter.{rest}"), at.clone()))
    });
    let lost = reading.lost.problems.len();
    for (name, at) in by_route.chain(args.leaves()) {
        match name.as_str() {
            "redisratelimiter.replenishrate" => found.replenish_rate = number(&at, 1, reading)?,
            "redisratelimiter.burstcapacity" => found.burst_capacity = number(&at, 0, reading)?,
            "redisratelimiter.requestedtokens" => found.requested_tokens = number(&at, 1, reading)?,
            "denyemptykey" => found.deny_empty_key = at.text() != Some("false"),
            "emptykeystatus" => empty_key_status(&at, reading),
            "keyresolver" => resolver = Some(at),
            "statuscode" => status(&at, reading),
            "ratelimiter" => lost_limiter(&at, reading),
            _ => unknown(&at, reading),
        }
    }
    if found.replenish_rate == 0 && reading.lost.problems.len() == lost {
        let message = "there is no `redis-rate-limiter.replenishRate`";
        reading.lost.add(&args.path(), args.place(), message);
    }
    found.key = key(filter, resolver.as_ref(), options, reading)?;
    (reading.lost.problems.len() == lost).then_some(found)
}

/// A number, or the default of a placeholder like `${RATE:10}`.
fn number(at: &At<'_>, least: u64, reading: &mut Reading) -> Option<u64> {
    let text = at.text().unwrap_or_default();
    let default = text
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'));
    let default = default
        .and_then(|inside| inside.split_once(':'))
        .map(|(_, default)| default);
    let number = default
        .unwrap_or(text)
        .trim()
        .parse()
        .ok()
        .filter(|n| *n >= least);
    match (number, default) {
        (Some(number), Some(_)) => {
            let message = format!("{} is taken as {number}", quoted(text));
            change(at, &message, reading).push_hint(
                "limits files have no placeholders; `rlctl set-limit` changes a rate live",
            );
        }
        (Some(_), None) => {}
        (None, _) => {
            let message = format!(
                "expected a whole number of at least {least}, found {}",
                quoted(text)
            );
            reading.lost.add(&at.path(), at.place(), message);
        }
    }
    number
}

/// The entry for a key resolver, which is code that is not available here.
fn key(
    filter: &At<'_>,
    resolver: Option<&At<'_>>,
    options: &Options,
    reading: &mut Reading,
) -> Option<Name> {
    let written = resolver
        .and_then(At::text)
        .unwrap_or("#{@principalNameKeyResolver}");
    let bean = written
        .strip_prefix("#{@")
        .and_then(|rest| rest.strip_suffix('}'));
    let bean = bean.unwrap_or(written);
    if let Some((_, name)) = options.keys.iter().find(|(named, _)| named == bean) {
        return Some(name.clone());
    }
    let lower = bean.to_ascii_lowercase();
    let stem = lower
        .strip_suffix("keyresolver")
        .or(lower.strip_suffix("resolver"));
    let name = match stem.unwrap_or(&lower) {
        "" => "key".to_owned(),
        "principalname" | "principal" => "user".to_owned(),
        "ip" | "ipaddress" | "remoteaddr" | "remoteaddress" | "remoteip" | "clientip" | "host"
        | "hostaddr" | "hostname" => "remote_address".to_owned(),
        "uri" | "url" | "path" | "requestpath" => "path".to_owned(),
        "api" => "api_key".to_owned(),
        other => name_of(other),
    };
    let at = resolver.unwrap_or(filter);
    let message =
        format!("the key resolver `{bean}` is code, so its key is taken to be the entry `{name}`");
    change(at, &message, reading).push_hint(format!(
        "let the filter's `descriptors` supply what the resolver returned, or say which entry that \
         is: --key {bean}=ENTRY"
    ));
    name.parse().ok()
}

fn empty_key_status(at: &At<'_>, reading: &mut Reading) {
    if !matches!(at.text(), Some("403" | "FORBIDDEN")) {
        change(at, "a request without a key is refused with 403", reading);
    }
}

fn status(at: &At<'_>, reading: &mut Reading) {
    if !matches!(at.text(), Some("429" | "TOO_MANY_REQUESTS")) {
        change(at, "a request over the limit is answered 429", reading)
            .push_hint("the filter's configuration has `deny: {status: …}`");
    }
}

fn headers(at: &At<'_>, reading: &mut Reading) {
    change(
        at,
        "the filter's configuration decides about headers",
        reading,
    )
    .push_hint("`headers: [spring]` sends X-RateLimit-Remaining and the others that Spring sends");
}

fn lost_limiter(at: &At<'_>, reading: &mut Reading) {
    if !at
        .text()
        .is_some_and(|text| super::canonical(text).contains("redisratelimiter"))
    {
        let message = "a rate limiter of your own is code, and cannot be converted";
        reading.lost.add(&at.path(), at.place(), message);
    }
}

fn unknown(at: &At<'_>, reading: &mut Reading) {
    reading
        .lost
        .add(&at.path(), at.place(), "this argument is not known");
}

fn change<'r>(at: &At<'_>, message: &str, reading: &'r mut Reading) -> &'r mut Problem {
    reading
        .changed
        .add(&at.path(), at.place(), message.to_owned())
}
