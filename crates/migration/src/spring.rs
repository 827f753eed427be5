//! Spring Cloud Gateway: routes with a `RequestRateLimiter`, in `application.yml` or in properties.
//!
//! Its buckets refill at `replenishRate` a second up to `burstCapacity`, as a token bucket here does.

mod properties;

use std::borrow::Cow;

use documents::{Entry, Name, Node, Place, Problem, Problems, Value, quoted};
use patterns::Pattern;

use crate::{
    Conversion, File, Options,
    assemble::{DomainDraft, Draft, Fields, Unique, assemble, literal, name_of},
    report::{Reading, load_all, truth, yaml},
};
use properties::{At, canonical};

pub(crate) fn convert(files: &[File<'_>], options: &Options) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, |(name, map), text, report| {
        let extension = std::path::Path::new(name).extension();
        let mut documents = if extension.is_some_and(|extension| extension == "properties") {
            properties::load(text, report)
        } else {
            yaml((name, map), text, report)
        };
        if let Some(profile) = profile(name, map) {
            for document in &mut documents {
                if let Value::Map(entries) = &mut document.value {
                    // A value that is there later replaces what the document itself says.
                    entries.push(Entry {
                        key: ON_PROFILE.join("."),
                        place: document.place,
                        value: Node::text(profile),
                    });
                }
            }
        }
        documents
    })?;
    let mut domains = Vec::new();
    for (file, reading) in readings.iter_mut().enumerate() {
        if reading.errors.problems.is_empty() {
            let node = in_force(reading);
            one_file(file, &node, reading, options, &mut domains);
        }
    }
    assemble(domains, readings)
}

const ON_PROFILE: [&str; 4] = ["spring", "config", "activate", "on-profile"];

/// The profile that a file in a `ConfigMap` is for, by its name there: `application-prod.yml`, or `gateway-prod.yml`
/// beside `gateway.yml`. A file that is given itself is what is in force.
fn profile<'n>(name: &'n str, map: &[Entry]) -> Option<&'n str> {
    let (own, _) = name.rsplit_once('.')?;
    // Profiles have hyphens, too: the shortest name before one is the application's.
    let mut hyphens = own.match_indices('-').filter(|_| !map.is_empty());
    hyphens.find_map(|(at, _)| {
        let (base, profile) = (own.get(..at)?, own.get(at + 1..)?);
        let is_base = |entry: &Entry| {
            let stem = entry.key.rsplit_once('.').map(|(stem, _)| stem);
            stem == Some(base)
        };
        (base == "application" || map.iter().any(is_base)).then_some(profile)
    })
}

/// All documents of a file as one: of two values for a property the later one is in force. A document
/// for a profile is left out.
fn in_force(reading: &mut Reading) -> Node {
    let mut whole = Node::from(Value::Map(Vec::new()));
    for node in std::mem::take(&mut reading.nodes) {
        let document = properties::nested(node);
        let root = At::root(&document);
        let conditions: [&[&str]; 3] = [
            &ON_PROFILE,
            &["spring", "config", "activate", "on-cloud-platform"],
            &["spring", "profiles"],
        ];
        let condition = conditions.iter().find_map(|names| {
            let at = root.at(names)?;
            let listed: Vec<&str> = at.items().iter().filter_map(At::text).collect();
            (!listed.is_empty()).then(|| (listed.join(", "), at.place()))
        });
        match condition {
            Some((profile, place)) if gateway(&root).is_some() => {
                let message =
                    format!("this document, which applies to `{profile}` only, is left out");
                reading
                    .lost
                    .add(&documents::Path::Root, place, message)
                    .push_hint("convert a file with the configuration that is in force there");
            }
            Some(_) => {}
            None => properties::merge(&mut whole, document),
        }
    }
    whole
}

fn one_file(
    file: usize,
    node: &Node,
    reading: &mut Reading,
    options: &Options,
    domains: &mut Vec<DomainDraft>,
) {
    let root = At::root(node);
    let Some(gateway) = gateway(&root) else {
        // What is left out says more.
        if reading.lost.problems.is_empty() {
            let message = "there is no `spring.cloud.gateway` here";
            let place = Some(Place::START);
            reading.errors.add(&documents::Path::Root, place, message);
        }
        reading.errors.problems.append(&mut reading.lost.problems);
        return;
    };
    let prefix = root.at(&["spring", "cloud", "gateway"]);
    let older = prefix.filter(|prefix| prefix.at(&NEWER).is_some());
    let names = ["routes", "default-filters", "redis-rate-limiter", "filter"];
    for at in names.iter().filter_map(|name| older.as_ref()?.at(&[*name])) {
        let message = "this is left out, since other settings are below `server.webflux`: Spring reads one of the two places";
        lose(&at, message, reading).push_hint("write all of them below one prefix");
    }
    if let Some(base) = root.at(&["spring", "webflux", "base-path"]) {
        let message = "paths of routes are below this one there; here they are as they are written";
        change(&base, message, reading).push_hint("put it before each path in `match`");
    }
    let drafts = limits(file, &gateway, reading, options);
    if drafts.is_empty() {
        let message = "no route has a `RequestRateLimiter`, so there is nothing to convert";
        reading.changed.add(&documents::Path::Root, None, message);
        return;
    }
    let name = domain_name(&root, options, reading);
    match domains.iter_mut().find(|domain| domain.name == name) {
        Some(domain) => domain.limits.extend(drafts),
        None => domains.push(DomainDraft {
            name,
            limits: drafts,
        }),
    }
}

/// Where the gateway's settings are since version 5, below those of older ones.
const NEWER: [&str; 2] = ["server", "webflux"];

/// The routes' parent.
fn gateway<'n>(root: &At<'n>) -> Option<At<'n>> {
    let gateway = root.at(&["spring", "cloud", "gateway"])?;
    gateway.at(&NEWER).or(Some(gateway))
}

/// Spring has no domains: the given domain, or else the application's name.
fn domain_name(root: &At<'_>, options: &Options, reading: &mut Reading) -> String {
    if let Some(domain) = &options.domain {
        return domain.to_string();
    }
    let application = root.at(&["spring", "application", "name"]);
    let name = application
        .as_ref()
        .and_then(At::text)
        .map_or("gateway".to_owned(), name_of);
    reading
        .changed
        .add(
            &documents::Path::Root,
            application.and_then(|at| at.place()),
            format!("Spring has no domains; this one is called `{name}`"),
        )
        .push_hint("--domain gives another; the filter's configuration has to name the same");
    name
}

fn limits(file: usize, gateway: &At<'_>, reading: &mut Reading, options: &Options) -> Vec<Draft> {
    let defaults = Defaults::read(gateway, reading);
    let mut names = Unique::default();
    let mut drafts = Vec::new();
    let everywhere = gateway.at(&["default-filters"]);
    let mut known = vec![DEFAULT_FILTERS.to_owned()];
    for filter in everywhere.iter().flat_map(At::items).filter(is_limiter) {
        let message = "each route counts apart there; this limit counts all of them together";
        change(&filter, message, reading);
        let limiter = read_limiter(&filter, DEFAULT_FILTERS, &defaults, options, reading);
        drafts.extend(limiter.map(|limiter| Draft {
            node: draft("default-filter", None, &limiter, &mut names),
            file,
            place: filter.place(),
        }));
    }
    let routes: Vec<At<'_>> = gateway.at(&["routes"]).iter().flat_map(At::items).collect();
    for (nth, route) in routes.iter().enumerate() {
        let id = route
            .at(&["id"])
            .as_ref()
            .and_then(At::text)
            .map(str::to_owned);
        let id = id.unwrap_or_else(|| format!("route-{nth}"));
        let filters = route.at(&["filters"]);
        known.push(id.clone());
        if { route.at(&["enabled"]) }.is_some_and(|at| flag(&at, reading) == Some(false)) {
            change(route, "this route is not enabled, and is left out", reading);
            continue;
        }
        for filter in filters.iter().flat_map(At::items).filter(is_limiter) {
            let lost = reading.lost.problems.len();
            let matchers = read(route, reading);
            let limiter = read_limiter(&filter, &id, &defaults, options, reading);
            // Without one of its predicates the limiter would apply to more requests.
            if reading.lost.problems.len() > lost {
                let message = format!("the limiter of route `{id}` is left out");
                lose(&filter, message, reading);
                continue;
            }
            drafts.extend(limiter.map(|limiter| Draft {
                node: draft(&id, matchers, &limiter, &mut names),
                file,
                place: filter.place(),
            }));
        }
    }
    if routes.len() > 1 && !drafts.is_empty() {
        first_route_wins(&routes, reading);
    }
    for (name, at) in &defaults.by_route {
        let is_used = |id: &String| name.starts_with(&format!("{}.", canonical(id)));
        if !known.iter().any(is_used) {
            let message = "there is no route of this id here: its limiter is elsewhere";
            lose(at, message, reading);
        }
    }
    drafts
}

/// The id by which the numbers of `default-filters` are configured.
const DEFAULT_FILTERS: &str = "defaultFilters";

fn first_route_wins(routes: &[At<'_>], reading: &mut Reading) {
    let place: Option<Place> = routes.first().and_then(At::place);
    let path = documents::Path::Root;
    reading
        .changed
        .add(&path, place, "a request takes the first route that matches, but every limit that matches")
        .push_hint("where routes overlap, exclude the earlier one's path: `path: [\"/a/**\", \"!/a/b/**\"]`");
}

fn is_limiter(filter: &At<'_>) -> bool {
    let name = filter.at(&["name"]).as_ref().and_then(At::text);
    // Spring itself cannot use the short form `RequestRateLimiter=…`.
    let name = name.or(filter.text()).unwrap_or_default();
    let name = name.split('=').next().unwrap_or_default();
    canonical(name) == "requestratelimiter"
}

fn draft(route: &str, matchers: Option<Node>, limiter: &Limiter, names: &mut Unique) -> Node {
    let mut fields = Fields::default();
    fields.text("name", names.name(route));
    fields.description(&format!("Spring Cloud Gateway, route {route}"));
    if let Some(matchers) = matchers {
        fields.set("match", matchers);
    }
    fields.names("per", std::slice::from_ref::<Name>(&limiter.key));
    let if_missing = if limiter.deny_empty_key {
        "deny"
    } else {
        "skip"
    };
    fields.text("if_missing", if_missing);
    fields.text("algorithm", "token_bucket");
    fields.text("rate", format!("{}/s", limiter.replenish_rate));
    fields.set("burst", Node::number(limiter.burst_capacity));
    if limiter.requested_tokens != 1 {
        fields.set("cost", Node::number(limiter.requested_tokens));
    }
    // Spring lets requests pass while Redis does not answer.
    fields.text("on_failure", "allow");
    fields.finish()
}

// --- The arguments of one `RequestRateLimiter`.

/// One limiter, with Spring's defaults.
struct Limiter {
    pub(super) replenish_rate: u64,
    pub(super) burst_capacity: u64,
    pub(super) requested_tokens: u64,
    pub(super) deny_empty_key: bool,
    /// The entry that stands for the key resolver.
    pub(super) key: Name,
}

/// Settings for all limiters, and the map of configurations by route.
struct Defaults<'n> {
    deny_empty_key: bool,
    by_route: Vec<(String, At<'n>)>,
}

impl<'n> Defaults<'n> {
    pub(super) fn read(gateway: &At<'n>, reading: &mut Reading) -> Self {
        let filter = gateway.at(&["filter", "request-rate-limiter"]);
        let mut deny_empty_key = true;
        for (name, at) in filter.iter().flat_map(At::leaves) {
            match name.as_str() {
                "denyemptykey" => deny_empty_key = flag(&at, reading).unwrap_or(true),
                "emptykeystatuscode" | "emptykeystatus" => empty_key_status(&at, reading),
                "enabled" if flag(&at, reading) == Some(true) => {}
                "enabled" => {
                    let message =
                        "the limiters are not enabled there, and are converted all the same";
                    change(&at, message, reading);
                }
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
fn read_limiter(
    filter: &At<'_>,
    route: &str,
    defaults: &Defaults<'_>,
    options: &Options,
    reading: &mut Reading,
) -> Option<Limiter> {
    let Some(args) = filter.at(&["args"]) else {
        let message = "this `RequestRateLimiter` has no `args`";
        lose(filter, message, reading).push_hint(
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
    let prefix = format!("{}.", canonical(route));
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
            "denyemptykey" => found.deny_empty_key = flag(&at, reading)?,
            "emptykeystatus" => empty_key_status(&at, reading),
            "keyresolver" => resolver = Some(at),
            "statuscode" => status(&at, reading),
            "ratelimiter" => lost_limiter(&at, reading),
            _ => unknown(&at, reading),
        }
    }
    if found.replenish_rate == 0 && reading.lost.problems.len() == lost {
        let message = "there is no `redis-rate-limiter.replenishRate`";
        lose(&args, message, reading);
    }
    found.key = key(filter, resolver.as_ref(), options, reading)?;
    (reading.lost.problems.len() == lost).then_some(found)
}

fn number(at: &At<'_>, least: u64, reading: &mut Reading) -> Option<u64> {
    let what = format!("a whole number of at least {least}");
    let read = |text: &str| text.parse().ok().filter(|n| *n >= least);
    scalar(at, &what, read, reading)
}

fn flag(at: &At<'_>, reading: &mut Reading) -> Option<bool> {
    scalar(at, "true or false", truth, reading)
}

/// A value, or the default of a placeholder like `${RATE:10}`.
fn scalar<T: std::fmt::Display>(
    at: &At<'_>,
    what: &str,
    read: impl Fn(&str) -> Option<T>,
    reading: &mut Reading,
) -> Option<T> {
    let text = at.text().unwrap_or_default();
    let inside = { text.strip_prefix("${") }.and_then(|rest| rest.strip_suffix('}'));
    let default = inside.and_then(|inside| Some(inside.split_once(':')?.1));
    let found = read(default.unwrap_or(text).trim());
    match (&found, default) {
        (Some(found), Some(_)) => {
            let message = format!("{} is taken as {found}", quoted(text));
            change(at, &message, reading).push_hint(
                "limits files have no placeholders; `rlctl set-limit` changes a rate live",
            );
        }
        (Some(_), None) => {}
        (None, _) => {
            let message = format!("expected {what}, found {}", quoted(text));
            lose(at, message, reading);
        }
    }
    found
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
        .is_some_and(|text| canonical(text).contains("redisratelimiter"))
    {
        let message = "a rate limiter of your own is code, and cannot be converted";
        lose(at, message, reading);
    }
}

fn unknown(at: &At<'_>, reading: &mut Reading) {
    lose(at, "this argument is not known", reading);
}

fn lose<'r>(
    at: &At<'_>,
    message: impl Into<Cow<'static, str>>,
    reading: &'r mut Reading,
) -> &'r mut Problem {
    reading.lost.add(&at.path(), at.place(), message)
}

fn change<'r>(at: &At<'_>, message: &str, reading: &'r mut Reading) -> &'r mut Problem {
    reading
        .changed
        .add(&at.path(), at.place(), message.to_owned())
}

// --- A route's predicates as `match`: when its limiter applies.

/// The patterns, by entry. Predicates without a counterpart are reported as lost.
fn read(route: &At<'_>, reading: &mut Reading) -> Option<Node> {
    let mut matchers: Vec<(Name, Vec<String>)> = Vec::new();
    let predicates = route.at(&["predicates"]);
    for predicate in predicates.iter().flat_map(At::items) {
        let (name, args) = parts(&predicate);
        match patterns(&name, &args) {
            Ok(found) => {
                if let Some((key, patterns)) = found {
                    note_entry(&predicate, &name, &key, reading);
                    if matchers.iter().any(|(held, _)| *held == key) {
                        let message = format!("a second predicate for `{key}`");
                        lose(&predicate, message, reading);
                    }
                    matchers.push((key, patterns));
                }
            }
            Err(why) => {
                lose(&predicate, why, reading);
            }
        }
    }
    let matchers = matchers.into_iter().map(|(key, patterns)| {
        let node = match patterns.as_slice() {
            [only] => Node::text(only),
            many => Node::list(many.iter().map(Node::text)),
        };
        (key.to_string(), node)
    });
    let matchers: Vec<_> = matchers.collect();
    (!matchers.is_empty()).then(|| Node::map(matchers))
}

/// `Path=/a,/b`, or `{name: Path, args: {…}}`.
fn parts(predicate: &At<'_>) -> (String, Vec<String>) {
    if let Some(text) = predicate.text() {
        let (name, args) = text.split_once('=').unwrap_or((text, ""));
        let args = args.split(',').map(|arg| arg.trim().to_owned());
        return (
            name.trim().to_owned(),
            args.filter(|arg| !arg.is_empty()).collect(),
        );
    }
    let name = predicate
        .at(&["name"])
        .as_ref()
        .and_then(At::text)
        .unwrap_or_default()
        .to_owned();
    let args = predicate.at(&["args"]);
    let mut args: Vec<_> = args.iter().flat_map(At::leaves).collect();
    // By name, in whatever order; others have their position.
    args.sort_by_key(|(path, _)| !matches!(path.as_str(), "header" | "name" | "param"));
    let args = args.iter().flat_map(|(_, at)| at.items());
    let args = args.filter_map(|at| at.text().map(str::to_owned));
    (name, args.collect())
}

type Found = Option<(Name, Vec<String>)>;

fn patterns(name: &str, args: &[String]) -> Result<Found, String> {
    let all = |args: &[String], key: &str, pattern: fn(&str) -> Option<String>| {
        let patterns = args.iter().map(|arg| {
            pattern(arg).ok_or_else(|| format!("`{arg}` has no counterpart among patterns"))
        });
        Ok(Some((entry(key)?, patterns.collect::<Result<_, _>>()?)))
    };
    if let Some(arg) = args.iter().find(|arg| arg.contains("${")) {
        return Err(format!(
            "`{arg}` has a placeholder: write what it stands for"
        ));
    }
    match (canonical(name).as_str(), args) {
        ("path", [_, ..]) => {
            // Whether a slash may follow is no path.
            let is_path = |arg: &&String| !matches!(arg.as_str(), "true" | "false");
            let paths: Vec<String> = args.iter().filter(is_path).cloned().collect();
            all(&paths, "path", path_pattern)
        }
        ("method", [_, ..]) => all(args, "method", |arg| {
            Some(literal(&arg.to_ascii_uppercase()))
        }),
        ("host", [_, ..]) => all(args, "host", host_pattern),
        ("remoteaddr", [_, ..]) => all(args, "remote_address", network),
        ("header" | "cookie" | "query", [key, rest @ ..]) => {
            let pattern = match rest {
                [] => "**".to_owned(),
                [expression, ..] => format!("re:{expression}"),
            };
            if Pattern::parse(&pattern).is_err() {
                return Err(format!("`{pattern}` has no counterpart among patterns"));
            }
            Ok(Some((entry(&key.to_ascii_lowercase())?, vec![pattern])))
        }
        // A limit cannot decide which share of requests a route gets.
        _ => Err(format!("the predicate `{name}` has no counterpart")),
    }
}

fn entry(key: &str) -> Result<Name, String> {
    key.parse()
        .map_err(|error| format!("`{key}` cannot be an entry: {error}"))
}

/// Notes that the filter must supply an entry that is not built in.
fn note_entry(predicate: &At<'_>, name: &str, key: &Name, reading: &mut Reading) {
    let source = canonical(name);
    if matches!(source.as_str(), "header" | "cookie" | "query") {
        let message = format!("the filter has to supply the entry `{key}`");
        reading
            .changed
            .add(&predicate.path(), predicate.place(), message)
            .push_hint(format!(
                "in its `descriptors`: {{\"key\": \"{key}\", \"{source}\": \"{key}\"}}"
            ));
    }
}

/// Spring's path patterns: `{name}` is a segment, `{*name}` and `**` are the rest.
fn path_pattern(path: &str) -> Option<String> {
    let path = path
        .strip_suffix('/')
        .filter(|path| !path.is_empty())
        .unwrap_or(path);
    let segments = path.split('/').map(|segment| match segment {
        "**" => Some("**".to_owned()),
        rest if rest.starts_with("{*") && rest.ends_with('}') => Some("**".to_owned()),
        rest if rest.contains(['?', '\\', ':', '!']) => None,
        rest => braces(rest),
    });
    let pattern = segments.collect::<Option<Vec<_>>>()?.join("/");
    Pattern::parse(&pattern).ok().map(|_| pattern)
}

/// A segment with `{name}` replaced by `*`.
fn braces(segment: &str) -> Option<String> {
    let mut pattern = String::new();
    let mut rest = segment;
    while let Some((before, inside)) = rest.split_once('{') {
        pattern.push_str(before);
        pattern.push('*');
        rest = inside.split_once('}')?.1;
    }
    if rest.contains('}') {
        return None;
    }
    pattern.push_str(rest);
    Some(pattern)
}

/// Hosts have labels instead of segments; `*` is one label, `**` any number of them.
fn host_pattern(host: &str) -> Option<String> {
    let host = host.to_ascii_lowercase();
    if !host.contains(['*', '{', '?']) {
        return Some(literal(&host));
    }
    if host.contains(['?', '{', '}', ':']) {
        return None;
    }
    if host == "**" {
        return Some(host);
    }
    let (host, behind) = match host.strip_suffix(".**") {
        Some(host) => (host, r"(?:\.[^.]+)*"),
        None => (&*host, ""),
    };
    let labels = host.split('.').map(|label| match label {
        "**" => r"(?:[^.]+\.)*".to_owned(),
        label => regex_lite::escape(label).replace(r"\*", "[^.]*") + r"\.",
    });
    let whole: String = labels.collect();
    let whole = whole.strip_suffix(r"\.")?;
    Some(format!("re:{whole}{behind}"))
}

/// The host bits of a network may be set; they are ignored.
fn network(arg: &str) -> Option<String> {
    let pattern = if arg.contains('/') {
        format!("cidr:{arg}")
    } else {
        arg.to_owned()
    };
    match Pattern::parse(&pattern) {
        Ok(_) => Some(pattern),
        Err(patterns::PatternError::HostBits(meant)) => Some(format!("cidr:{meant}")),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_hosts_and_networks_are_patterns() {
        assert_eq!(path_pattern("/red/{segment}").as_deref(), Some("/red/*"));
        assert_eq!(path_pattern("/red/**").as_deref(), Some("/red/**"));
        assert_eq!(path_pattern("/{*rest}").as_deref(), Some("/**"));
        assert_eq!(path_pattern("/a/").as_deref(), Some("/a"));
        assert_eq!(path_pattern("/").as_deref(), Some("/"));
        assert_eq!(path_pattern("/{id:[0-9]+}"), None);
        assert_eq!(path_pattern("/a?"), None);
        assert_eq!(host_pattern("Example.org").as_deref(), Some("example.org"));
        for (written, yes, no) in [
            (
                "**.example.org",
                "example.org a.example.org a.b.example.org",
                "aexample.org org",
            ),
            (
                "*.example.org",
                "a.example.org",
                "example.org a.b.example.org",
            ),
            (
                "shop.**",
                "shop shop.example.org",
                "shops.example.org a.shop",
            ),
            ("a.**.c", "a.c a.b.c a.b.b.c", "ac a.bc"),
            ("**", "a a.b", ""),
        ] {
            let pattern = Pattern::parse(&host_pattern(written).unwrap()).unwrap();
            for (hosts, matches) in [(yes, true), (no, false)] {
                for host in hosts.split_whitespace() {
                    assert_eq!(pattern.finds(host.as_bytes()), matches, "{written} {host}");
                }
            }
        }
        assert_eq!(
            network("192.168.1.1/24").as_deref(),
            Some("cidr:192.168.1.0/24")
        );
        assert_eq!(network("192.168.1.1").as_deref(), Some("192.168.1.1"));
    }
}
