//! Parses a configuration.

use std::ops::RangeInclusive;

use documents::{Choice, Field, Name, Node, Path, Report, Take, Value, from_base64};
use policy::{
    Alterations, CHECK_STREAM_REFUSED, Compiled, OnFailure, REMOTE_ADDRESS, REQUEST_BODY,
    REQUEST_BODY_PASSES, WHOLE_ADDRESS,
};

use crate::{
    Config, DenyBody, DenyConfig, Direction, Format, IfSeveral, LimiterConfig, Prefixes, Source,
    Styles,
};

const FIELDS: [&str; 15] = [
    "domain",
    "limiter",
    "direction",
    "descriptors",
    "remote_address",
    "failure_mode",
    "status_on_error",
    "deny",
    "retry_after",
    "headers",
    "enabled_percent",
    "hold",
    "request_body",
    "memory",
    "limits",
];

const DEFAULT_TIMEOUT_MS: u64 = 20;
const MAX_TIMEOUT_MS: u64 = 10_000;
const DEFAULT_HELD: u64 = 1024;
const MAX_HELD: u64 = 65_536;
const MAX_REQUEST_BODY: u64 = 16 << 20;
const DEFAULT_BUCKETS: u64 = 16_384;
const MAX_BUCKETS: u64 = 1 << 20;

pub(crate) fn read(bytes: &[u8], report: &mut Report) -> Option<Config> {
    let node = match Node::from_json(bytes) {
        Ok(node) => node,
        Err(error) => {
            let problem = report.add(&Path::Root, None, format!("not JSON: {error}"));
            if let Some(hint) = hint_for(bytes) {
                problem.push_hint(hint);
            }
            return None;
        }
    };
    let root = Field::root(&node);
    let take = &mut Take::new(&root, report)?;
    let config = read_fields(take, &root);
    take.finish(&FIELDS);
    config
}

/// A hint at what the bytes probably are.
fn hint_for(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("the plugin has no configuration; `domain` and `limiter` are needed");
    }
    let is_text = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace();
    (!bytes.iter().all(is_text)).then_some(
        "this looks like a google.protobuf.Struct; give a google.protobuf.StringValue that holds \
         JSON (Istio's pluginConfig arrives as JSON already)",
    )
}

fn read_fields(take: &mut Take<'_, '_>, root: &Field<'_>) -> Option<Config> {
    let domain = required(take, root, "domain", "the name of a set of limits");
    let domain = domain.and_then(|field| field.name("a name", take.report));
    let limiter = required(take, root, "limiter", "at least `{\"cluster\": …}`");
    let limiter = limiter.and_then(|field| read_limiter(field, take.report));
    let direction = take.choice::<Direction>("direction");
    let prefixes = read_prefixes(take);
    let sources = read_sources(take, prefixes);
    let failure_mode = take.choice::<OnFailure>("failure_mode");
    let deny = read_deny(take);
    let styles = read_styles(take);
    let enabled_percent = read_share(take);
    let hold_max = bounded_in(take, "hold", "max", 0..=MAX_HELD).unwrap_or(DEFAULT_HELD);
    let request_body_max = bounded_in(take, "request_body", "max", 1..=MAX_REQUEST_BODY);
    let buckets = bounded_in(take, "memory", "buckets", 1..=MAX_BUCKETS).unwrap_or(DEFAULT_BUCKETS);
    let limits = read_limits(take, domain.as_ref());
    Some(Config {
        domain: domain?,
        limiter: limiter?,
        direction,
        sources,
        failure_mode,
        deny,
        styles,
        enabled_percent,
        hold_max: usize::try_from(hold_max).ok()?,
        request_body_max,
        buckets: u32::try_from(buckets).ok()?,
        limits,
    })
}

fn required<'p>(
    take: &mut Take<'_, 'p>,
    map: &Field<'_>,
    name: &'p str,
    what: &'static str,
) -> Option<Field<'p>> {
    let field = take.field(name);
    if field.is_none() && map.node.get(name).is_none() {
        map.report(take.report, format!("`{name}` is missing"))
            .push_hint(what);
    }
    field
}

const LIMITER_FIELDS: [&str; 6] = [
    "cluster",
    "authority",
    "timeout",
    "token_env",
    "stream",
    "trust_host",
];

fn read_limiter(limiter: Field<'_>, report: &mut Report) -> Option<LimiterConfig> {
    let (mut cluster, mut authority, mut token_env) = (None, None, None);
    let mut timeout_ms = DEFAULT_TIMEOUT_MS;
    let (mut stream, mut trust_host) = (false, false);
    limiter.read_map(&LIMITER_FIELDS, report, &mut |take| {
        if let Some(field) = required(take, &limiter, "cluster", "an Envoy cluster") {
            cluster = visible_text(field, "the name of an Envoy cluster", take.report);
        }
        if let Some(field) = take.field("authority") {
            authority = visible_text(field, "a host", take.report);
        }
        if let Some(field) = take.field("timeout") {
            timeout_ms = read_timeout(field, take.report);
        }
        if let Some(field) = take.field("token_env") {
            let name = field.text("an environment variable", take.report);
            token_env = name.map(str::to_owned);
        }
        stream = take.boolean("stream").unwrap_or(false);
        trust_host = take.boolean("trust_host").unwrap_or(false);
    })?;
    let cluster = cluster?;
    // Istio's clusters end in the service's host: `outbound|8090||limiter.ns.svc.cluster.local`.
    let bar = cluster.bytes().rposition(|byte| byte == b'|');
    let host = bar.and_then(|bar| cluster.get(bar + 1..));
    let host = host.unwrap_or(&cluster);
    Some(LimiterConfig {
        authority: authority.unwrap_or_else(|| host.to_owned()),
        timeout_ms,
        token_env,
        stream,
        trust_host,
        cluster,
    })
}

fn read_timeout(field: Field<'_>, report: &mut Report) -> u64 {
    let ms = field.duration(report).unwrap_or(DEFAULT_TIMEOUT_MS);
    if !(1..=MAX_TIMEOUT_MS).contains(&ms) {
        field.report(report, "a timeout is between 1ms and 10s");
    }
    ms
}

/// Text that may be part of a header.
fn visible_text(field: Field<'_>, what: &str, report: &mut Report) -> Option<String> {
    let text = field.text(what, report)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        field.expected(what, report);
        return None;
    }
    Some(text.to_owned())
}

impl Choice for DenyBody {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("problem_json", Self::ProblemJson),
        ("text", Self::Text),
        ("empty", Self::Empty),
    ];
}

const DENY_FIELDS: [&str; 4] = ["status", "body", "message", "docs"];

fn read_deny(take: &mut Take<'_, '_>) -> DenyConfig {
    let mut config = DenyConfig::default();
    if let Some(status) = take.field("status_on_error") {
        config.status_on_error = read_status(status, take.report);
    }
    if let Some(deny) = take.field("deny") {
        deny.read_map(&DENY_FIELDS, take.report, &mut |inner| {
            if let Some(status) = inner.field("status") {
                config.status = read_status(status, inner.report);
            }
            config.body = inner.choice("body");
            for (name, text) in [("message", &mut config.message), ("docs", &mut config.docs)] {
                if let Some(field) = inner.field(name) {
                    *text = field.text("text", inner.report).map(str::to_owned);
                }
            }
        });
    }
    if let Some(retry) = take.field("retry_after") {
        retry.read_map(&["jitter"], take.report, &mut |inner| {
            let jitter = inner.percent("jitter", 0, 100).unwrap_or(0);
            config.retry_jitter_percent = u8::try_from(jitter).unwrap_or(100);
        });
    }
    config
}

/// Envoy sends broken replies for a status outside 400 to 599.
fn read_status(field: Field<'_>, report: &mut Report) -> u16 {
    let status: Option<u64> = field.node.as_text().and_then(|text| text.parse().ok());
    let status = status.filter(|status| (400..=599).contains(status));
    if status.is_none() {
        field.expected("a status from 400 to 599", report);
    }
    status
        .and_then(|status| u16::try_from(status).ok())
        .unwrap_or(0)
}

/// A style of headers.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Ratelimit,
    XRatelimit,
    RetryAfter,
    Spring,
}

impl Choice for Style {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("ratelimit", Self::Ratelimit),
        ("x_ratelimit", Self::XRatelimit),
        ("retry_after", Self::RetryAfter),
        ("spring", Self::Spring),
    ];
}

fn read_styles(take: &mut Take<'_, '_>) -> Styles {
    let Some(field) = take.field("headers") else {
        return Styles::default();
    };
    let Value::List(items) = &field.node.value else {
        field.expected("a list of header styles", take.report);
        return Styles::default();
    };
    let mut styles = Styles {
        ratelimit: false,
        x_ratelimit: false,
        retry_after: false,
        spring: false,
    };
    for (index, node) in items.iter().enumerate() {
        let path = Path::Item(&field.path, index);
        match (Field { node, path }).choice(take.report) {
            Some(Style::Ratelimit) => styles.ratelimit = true,
            Some(Style::XRatelimit) => styles.x_ratelimit = true,
            Some(Style::RetryAfter) => styles.retry_after = true,
            Some(Style::Spring) => styles.spring = true,
            None => {}
        }
    }
    styles
}

/// A percentage, with or without the percent sign.
fn read_share(take: &mut Take<'_, '_>) -> u8 {
    let Some(field) = take.field("enabled_percent") else {
        return 100;
    };
    let text = field.node.as_text().unwrap_or_default();
    let share: Option<u64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let share = share.filter(|share| *share <= 100);
    if share.is_none() {
        field.expected("a whole number from 0 to 100", take.report);
    }
    share
        .and_then(|share| u8::try_from(share).ok())
        .unwrap_or(100)
}

/// A whole number that is the only field of a map.
fn bounded_in(
    take: &mut Take<'_, '_>,
    map: &'static str,
    name: &'static str,
    bounds: RangeInclusive<u64>,
) -> Option<u64> {
    let mut found = None;
    let field = take.field(map)?;
    field.read_map(&[name], take.report, &mut |inner| {
        let Some(field) = inner.field(name) else {
            return;
        };
        found = field.integer(*bounds.start(), inner.report);
        let most = *bounds.end();
        if found.is_some_and(|number| number > most) {
            field.report(inner.report, format!("at most {most}"));
        }
    })?;
    found
}

/// Reads compiled limits: those of a limits file would need its whole reader in each Envoy.
fn read_limits(take: &mut Take<'_, '_>, domain: Option<&Name>) -> Option<Compiled> {
    const HINT: &str = "`rlctl validate --compiled -f limits.yaml` prints them";
    let field = take.field("limits")?;
    let bytes = field.node.as_text().and_then(from_base64);
    let Some(bytes) = bytes else {
        field
            .expected("compiled limits", take.report)
            .push_hint(HINT);
        return None;
    };
    let compiled = match Compiled::from_snapshot(&bytes) {
        Ok(compiled) => compiled,
        Err(error) => {
            field
                .report(take.report, format!("not compiled limits: {error}"))
                .push_hint(HINT);
            return None;
        }
    };
    if Some(compiled.domain()) != domain {
        let message = format!("limits of the domain `{}`", compiled.domain());
        field.report(take.report, message);
    }
    Some(compiled)
}

const SOURCES: [&str; 6] = ["header", "cookie", "query", "metadata", "property", "value"];
const DESCRIPTOR_FIELDS: [&str; 10] = [
    "key",
    "header",
    "cookie",
    "query",
    "metadata",
    "property",
    "value",
    "as",
    "if_several",
    "hash",
];
/// Envoy's pseudo-headers whose value is as the client sent it.
const PSEUDO_HEADERS: [&str; 4] = [":method", ":path", ":authority", ":scheme"];
/// The property in which other filters store values about a request.
const METADATA: &[u8] = b"metadata\0filter_metadata\0";
const MAX_DESCRIPTORS: usize = 64;

impl Choice for Format {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("text", Self::Text), ("integer", Self::Integer)];
}

impl Choice for IfSeveral {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("share", Self::Share),
        ("first", Self::First),
        ("last", Self::Last),
    ];
}

/// The entries that every request has without configuration.
fn built_in(prefixes: Prefixes) -> Vec<(Name, Source)> {
    const SOURCES: usize = 8;
    let whole = Prefixes { v4: 32, v6: 128 };
    let property = |path: &[u8]| Source::Property(path.to_vec(), Format::Text);
    let sources: [(&str, Source); SOURCES] = [
        ("method", Source::Method),
        ("path", Source::Path),
        ("host", Source::Host),
        ("route", property(b"xds\0route_name")),
        (REMOTE_ADDRESS, Source::RemoteAddress(prefixes)),
        (WHOLE_ADDRESS, Source::RemoteAddress(whole)),
        ("workload", property(b"node\0metadata\0WORKLOAD_NAME")),
        ("namespace", property(b"node\0metadata\0NAMESPACE")),
    ];
    let mut named = Vec::with_capacity(SOURCES);
    for (key, source) in sources {
        if let Ok(key) = key.parse() {
            named.push((key, source));
        }
    }
    named
}

fn read_prefixes(take: &mut Take<'_, '_>) -> Prefixes {
    let mut prefixes = Prefixes::default();
    let Some(field) = take.field("remote_address") else {
        return prefixes;
    };
    field.read_map(&["v4", "v6"], take.report, &mut |inner| {
        for (name, most, prefix) in [("v4", 32, &mut prefixes.v4), ("v6", 128, &mut prefixes.v6)] {
            let Some(field) = inner.field(name) else {
                continue;
            };
            let bits = field
                .node
                .as_text()
                .and_then(|text| text.parse::<u64>().ok());
            match bits.and_then(|bits| u8::try_from(bits).ok()) {
                Some(bits) if bits <= most => *prefix = bits,
                _ => {
                    let what = format!("a prefix length from 0 to {most}");
                    field.expected(&what, inner.report);
                }
            }
        }
    });
    prefixes
}

fn read_sources(take: &mut Take<'_, '_>, prefixes: Prefixes) -> Vec<(Name, Source)> {
    let mut sources = built_in(prefixes);
    let Some(field) = take.field("descriptors") else {
        return sources;
    };
    let Value::List(items) = &field.node.value else {
        field.expected("a list of descriptors", take.report);
        return sources;
    };
    if items.len() > MAX_DESCRIPTORS {
        field.report(
            take.report,
            format!("more than {MAX_DESCRIPTORS} descriptors"),
        );
        return sources;
    }
    let built_in = sources.len();
    for (index, node) in items.iter().enumerate() {
        let item = field.item(index, node);
        let Some((key, source)) = read_one(item, take.report) else {
            continue;
        };
        let why = match sources.iter().position(|(known, _)| *known == key) {
            Some(at) if at < built_in => "is built in",
            Some(_) => "is there already",
            None if is_mark(&key) => "is how filters report something else",
            None => {
                sources.push((key, source));
                continue;
            }
        };
        item.report(take.report, format!("`{key}` {why}"))
            .push_hint("choose another key");
    }
    sources
}

/// Whether filters list this name beside the entries that they supply, for something else. Not by
/// [`Alterations::read_mark`], whose sets would take 6 KB in the filter.
fn is_mark(key: &Name) -> bool {
    let key = key.as_str();
    Alterations::prefixes_of(key).is_some()
        || key.ends_with(Alterations::HASHED)
        || [REQUEST_BODY, REQUEST_BODY_PASSES, CHECK_STREAM_REFUSED].contains(&key)
}

fn read_one(item: Field<'_>, report: &mut Report) -> Option<(Name, Source)> {
    let take = &mut Take::new(&item, report)?;
    let key = take.field("key");
    let key = key.and_then(|field| field.name("the entry's key", take.report));
    if item.node.get("key").is_none() {
        item.report(take.report, "`key` is missing");
    }
    let (format, several) = (take.field("as"), take.field("if_several"));
    let chosen = (
        format.and_then(|field| field.choice::<Format>(take.report)),
        several.and_then(|field| field.choice::<IfSeveral>(take.report)),
    );
    let mut given = Vec::with_capacity(SOURCES.len());
    for name in SOURCES {
        given.extend(take.field(name).map(|field| (name, field)));
    }
    let source = if let [(name, field)] = given.as_slice() {
        read_source(name, *field, chosen, take.report)
    } else {
        let message = "a descriptor has one of header, cookie, query, metadata, property, value";
        item.report(take.report, message);
        None
    };
    if let (Some(field), Some(source)) = (format, &source)
        && !matches!(source, Source::Property(..))
    {
        field.report(take.report, "`as` goes with `metadata` and `property` only");
    }
    if let (Some(field), Some(source)) = (several, &source)
        && !matches!(
            source,
            Source::Header(..) | Source::Cookie(..) | Source::Query(..)
        )
    {
        let message = "`if_several` goes with `header`, `cookie` and `query` only";
        field.report(take.report, message);
    }
    let hash = take.boolean("hash").unwrap_or(false);
    take.finish(&DESCRIPTOR_FIELDS);
    let source = source?;
    let source = if hash {
        Source::Hashed(Box::new(source))
    } else {
        source
    };
    Some((key?, source))
}

fn read_source(
    name: &str,
    field: Field<'_>,
    (format, several): (Option<Format>, Option<IfSeveral>),
    report: &mut Report,
) -> Option<Source> {
    let several = several.unwrap_or_default();
    Some(match name {
        "header" => Source::Header(read_header(field, report)?, several),
        "cookie" => Source::Cookie(read_text(field, "the name of a cookie", report)?, several),
        "query" => Source::Query(
            read_text(field, "the name of a parameter", report)?,
            several,
        ),
        "value" => Source::Constant(read_text(field, "text", report)?.into_bytes()),
        "metadata" => {
            let mut path = METADATA.to_vec();
            path.append(&mut read_path(field, report)?);
            Source::Property(path, format.unwrap_or(Format::Metadata))
        }
        _ => {
            let path = read_path(field, report)?;
            let usual = if path.starts_with(METADATA) {
                Format::Metadata
            } else {
                Format::Text
            };
            Source::Property(path, format.unwrap_or(usual))
        }
    })
}

fn read_text(field: Field<'_>, what: &str, report: &mut Report) -> Option<String> {
    field.text(what, report).map(str::to_owned)
}

fn read_header(field: Field<'_>, report: &mut Report) -> Option<String> {
    let text = field.text("the name of a header", report)?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if !text.is_empty() && text.bytes().all(is_token) || PSEUDO_HEADERS.contains(&text) {
        let name = text.to_ascii_lowercase();
        // Envoy has it under the other name alone.
        let host = name == "host";
        return Some(if host { ":authority".to_owned() } else { name });
    }
    let problem = field.expected("the name of a header", report);
    if text.starts_with(':') {
        problem.push_hint("of those with a colon: :method, :path, :authority and :scheme");
    }
    None
}

/// A list of texts, converted to the host's format of a path.
fn read_path(field: Field<'_>, report: &mut Report) -> Option<Vec<u8>> {
    let path = path_of(field.node.items());
    if path.is_none() {
        field.expected("a list of texts, the way to a value", report);
    }
    path
}

fn path_of(parts: &[Node]) -> Option<Vec<u8>> {
    let (first, rest) = parts.split_first()?;
    let part_of = |node: &Node| {
        let text = node.as_text().filter(|text| !text.contains('\0'))?;
        Some(text.as_bytes().to_vec())
    };
    let mut path = part_of(first)?;
    for part in rest {
        path.push(0);
        path.append(&mut part_of(part)?);
    }
    Some(path)
}
