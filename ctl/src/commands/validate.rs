//! `rlctl validate`.

use std::{collections::HashSet, fmt::Write as _};

use algorithms::Kind;
use clap::Args;
use filter_config::{Config, Source as EntrySource};
use insight::Window;
use limits_file::{Dear, Supply};
use policy::{
    Alterations, Compiled, Limit, Name, Node, Policy, Problem, Problems, REMOTE_ADDRESS,
    REQUEST_BODY, REQUEST_BODY_PASSES, Value,
};
use serde::Serialize;

use crate::{
    cli::{Global, examples},
    error::{Error, Exit},
    input::{FilesArg, Source},
    printer::Printer,
    render::{Page, View, counted, diagnostics},
    session::{LiveEntries, Session},
};

/// Check limits files and show every problem; needs no Redis, unless --live asks it.
///
/// Warnings are about what is valid but probably a mistake: patterns that match nothing, requests that
/// cost more than a bucket holds, overrides that have ended, limits that cost the store much. They do
/// not change the exit code, unless --strict.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl validate -f limits.yaml"
    "rlctl validate -f limits/                              # every file of a folder"
    "rlctl validate -f limits.yaml --filter envoy.yaml      # is every entry supplied?"
    "rlctl validate -f limits.yaml --live                   # by a proxy that runs now?"
    "rlctl export | rlctl validate --strict -f -"
    "rlctl validate -f limits.yaml -o json | jq '.[].problems[].message'"
))]
pub struct Validate {
    #[command(flatten)]
    files: FilesArg,

    /// Check against the filter's configuration in this file, Envoy's or a WasmPlugin: does it
    /// supply every entry, and use the domain? May be given several times.
    #[arg(long, value_name = "FILE")]
    filter: Vec<String>,

    /// Check against the live proxies: does one of the file's domain supply every entry? This asks
    /// Redis.
    #[arg(long, conflicts_with = "filter")]
    live: bool,

    /// Treat warnings as problems.
    #[arg(long)]
    strict: bool,

    /// Print the limits of one valid file as the filter's configuration takes them in `limits`,
    /// and nothing else.
    #[arg(long, conflicts_with_all = ["filter", "live", "strict"])]
    compiled: bool,
}

impl Validate {
    /// Shows every problem; the answer is no if there is any.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let supplied = Supplied::read(&self.filter).await?;
        let live = if self.live {
            Session::open(global, printer)?.live_entries().await?
        } else {
            LiveEntries::default()
        };
        let supply = |domain: &Name| match self.filter.as_slice() {
            [] => live.supply(domain),
            _ => Some(supplied.supply()),
        };
        let sources = self.files.read().await?;
        if self.compiled {
            return print_compiled(&sources, printer);
        }
        let mut files: Vec<Checked> = Vec::with_capacity(sources.len());
        for source in &sources {
            let mut file = check(source, supply);
            let twin = { files.iter() }
                .find(|other| other.domain.is_some() && other.domain == file.domain);
            if let Some(twin) = twin {
                let what = format!("{} is for the same domain", twin.file);
                let mut problem = Problem::new("domain", None, what);
                problem.push_hint("a domain belongs in one file: `apply` takes no other");
                file = Checked::invalid(file.file, Problems::one(problem));
            }
            file.fails = !file.valid || self.strict && !file.warnings.is_empty();
            files.push(file);
        }
        let report = Report(files);
        printer.data(&report)?;
        for why in &supplied.no_streams {
            printer.warn(why);
            printer.hint("docs/filter.md, \"Check streams\", has the cluster's options");
        }
        let no_streams = self.strict && !supplied.no_streams.is_empty();
        Ok(if no_streams || report.0.iter().any(|file| file.fails) {
            Exit::No
        } else {
            Exit::Done
        })
    }
}

/// Limits as the filter's configuration has them.
#[derive(Serialize)]
struct CompiledText {
    #[serde(skip)]
    domain: Name,
    limits: String,
}

impl View for CompiledText {
    fn text(&self, _page: Page) -> String {
        format!("{}\n", self.limits)
    }

    fn names(&self) -> Vec<String> {
        vec![self.domain.to_string()]
    }
}

fn print_compiled(sources: &[Source], printer: &Printer) -> Result<Exit, Error> {
    let [source] = sources else {
        let message = "--compiled takes one file: a filter is of one domain".to_owned();
        return Err(Error::new(Exit::Usage, message));
    };
    let (policy, _) = source.policy(|_| None).map_err(|problems| {
        let text = diagnostics(&problems);
        Error::new(Exit::No, format!("{} is invalid\n{text}", source.name))
    })?;
    printer.data(&CompiledText {
        domain: policy.domain.clone(),
        limits: limits_file::snapshot_text(&Compiled::new(policy), crate::now_ms()),
    })?;
    Ok(Exit::Done)
}

fn check<'s>(source: &Source, supply: impl FnOnce(&Name) -> Option<Supply<'s>>) -> Checked {
    let file = source.name.clone();
    match source.policy(supply) {
        // What `apply` could not write is not valid, either.
        Ok((policy, _)) if store::fits(&policy).is_err() => {
            let why = store::fits(&policy).err().map(|error| error.to_string());
            let mut problem = Problem::new("limits", None, why.unwrap_or_default());
            problem.push_hint("split the limits over several domains, or match more in one limit");
            Checked::invalid(file, Problems::one(problem))
        }
        Ok((policy, warnings)) => Checked {
            file,
            valid: true,
            domain: Some(policy.domain.to_string()),
            limits: Some(policy.limits.len()),
            problems: Vec::new(),
            warnings: rows(warnings.as_ref()),
            windows: windows(&policy),
            fails: false,
            diagnostics: warnings,
        },
        Err(problems) => Checked::invalid(file, problems),
    }
}

/// Each window that limits and overrides count in now, once.
fn windows(policy: &Policy) -> Vec<Window> {
    let now_ms = crate::now_ms();
    let overrides = policy.limits.iter().flat_map(|limit| {
        let overrides = limit.overrides.iter();
        overrides.filter_map(|found| found.quota.of(&limit.quota))
    });
    let limits = policy.limits.iter().map(|limit| limit.quota);
    let mut windows: Vec<Window> = Vec::new();
    // Most of many overrides name the same few zones.
    let mut known = HashSet::new();
    for quota in limits.chain(overrides) {
        let parameters = quota.parameters();
        if known.insert((
            parameters.rate.calendar,
            parameters.time_zone,
            parameters.week_start,
        )) {
            windows.extend(Window::from_quota(&quota, now_ms));
        }
    }
    windows
}

/// The rows of problems, if there are any.
pub fn rows(problems: Option<&Problems>) -> Vec<Row> {
    let problems = problems.into_iter().flat_map(Problems::iter);
    problems.map(Row::from).collect()
}

#[derive(Serialize)]
#[serde(transparent)]
struct Report(Vec<Checked>);

#[derive(Serialize)]
struct Checked {
    file: String,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<usize>,
    problems: Vec<Row>,
    warnings: Vec<Row>,
    /// The windows that its calendar limits count in now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    windows: Vec<Window>,
    /// Whether this file makes the answer no.
    #[serde(skip)]
    fails: bool,
    /// Problems or warnings, as text.
    #[serde(skip)]
    diagnostics: Option<Problems>,
}

/// A problem or a warning.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    line: Option<u32>,
    column: Option<u32>,
    limit: Option<String>,
    field: String,
    message: String,
    hint: Option<String>,
}

impl From<&Problem> for Row {
    fn from(problem: &Problem) -> Self {
        Self {
            line: problem.place.map(|place| place.line),
            column: problem.place.map(|place| place.column),
            limit: problem.limit.clone(),
            field: problem.path.clone(),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        }
    }
}

impl View for Report {
    fn text(&self, _page: Page) -> String {
        self.0.iter().map(Checked::text).collect()
    }

    /// The files that are not valid; with --strict, those with warnings as well.
    fn names(&self) -> Vec<String> {
        let invalid = self.0.iter().filter(|file| file.fails);
        invalid.map(|file| file.file.clone()).collect()
    }
}

impl Checked {
    fn invalid(file: String, problems: Problems) -> Self {
        Self {
            file,
            valid: false,
            domain: None,
            limits: None,
            problems: rows(Some(&problems)),
            warnings: Vec::new(),
            windows: Vec::new(),
            fails: false,
            diagnostics: Some(problems),
        }
    }

    fn text(&self) -> String {
        let file = &self.file;
        let diagnostics = self
            .diagnostics
            .as_ref()
            .map_or_else(String::new, |found| diagnostics(found) + "\n");
        let count = self.diagnostics.as_ref().map_or(0, Problems::count);
        let verdict = match (&self.domain, self.limits) {
            (Some(domain), Some(limits)) => {
                let limits = counted(limits, "limit");
                let warnings = match count {
                    0 => String::new(),
                    count => format!(", {}", counted(count, "warning")),
                };
                format!("valid, {limits} in domain {domain}{warnings}")
            }
            _ => counted(count, "problem"),
        };
        let mut text = format!("{diagnostics}{file}: {verdict}\n");
        for window in &self.windows {
            let _ = writeln!(text, "  counts in {window}");
        }
        text
    }
}

// --- The filter's configuration inside the files that carry it: Envoy's, a WasmPlugin's, or its own.

/// What the filters of some files supply.
#[derive(Debug, Default)]
struct Supplied {
    entries: Vec<Name>,
    domains: Vec<Name>,
    alterations: Alterations,
    /// The files, for messages.
    source: String,
    /// Why check streams will not work, a line each.
    no_streams: Vec<String>,
}

impl Supplied {
    /// Reads the configurations of the filter in these files; a file without one is an error.
    async fn read(paths: &[String]) -> Result<Self, Error> {
        let mut supplied = Self {
            source: paths.join(", "),
            ..Self::default()
        };
        for path in paths {
            let file = Source::read(path).await?;
            let (configs, http1) = configs(&file)?;
            if configs.is_empty() {
                return Err(Error::new(
                    Exit::No,
                    format!("{path} contains no filter configuration"),
                )
                .hint("expected an Envoy configuration, a WasmPlugin, or the filter's own JSON"));
            }
            for (config, waits) in configs {
                let cluster = &config.limiter.cluster;
                if config.limiter.stream && http1.contains(cluster) {
                    supplied.no_streams.push(format!(
                        "{path}: `stream` needs HTTP/2 to the limiters, and the cluster `{cluster}` has no \
                         `http2_protocol_options`: every check goes by a callout"
                    ));
                }
                supplied.add(config, waits);
            }
        }
        Ok(supplied)
    }

    fn add(&mut self, config: Config, waits: Waits) {
        let bodies = config.request_body_max.map(|_| REQUEST_BODY);
        let passes = bodies.and((waits == Waits::No).then_some(REQUEST_BODY_PASSES));
        let names = bodies.into_iter().chain(passes);
        self.entries
            .extend(names.filter_map(|name| name.parse().ok()));
        for (name, source) in config.sources {
            match source {
                EntrySource::RemoteAddress(prefixes) if name.as_str() == REMOTE_ADDRESS => {
                    let lengths = [prefixes.v4, prefixes.v6];
                    self.alterations.prefixes.insert(lengths);
                }
                EntrySource::Hashed(_) => {
                    self.alterations.hashed.insert(name.clone());
                }
                _ => {}
            }
            if !self.entries.contains(&name) {
                self.entries.push(name);
            }
        }
        if !self.domains.contains(&config.domain) {
            self.domains.push(config.domain);
        }
    }

    /// The entries and domains that limits are checked against.
    fn supply(&self) -> Supply<'_> {
        Supply {
            entries: &self.entries,
            domains: &self.domains,
            alterations: &self.alterations,
            source: Some(&self.source),
        }
    }
}

/// Whether Envoy holds requests at the filter for their bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Yes,
    No,
    /// The file is not about Envoy.
    Unknown,
}

impl Waits {
    /// For what is inside a map, which may be a plugin in Envoy's or Istio's form.
    fn within(self, map: &Node) -> Self {
        if map.get("pluginConfig").is_some() {
            return Self::No;
        }
        if map.get("filter_config").is_some() {
            // A dynamic module, which may hold headers in any case.
            return Self::Yes;
        }
        if map.get("configuration").is_none() {
            return self;
        }
        match map.get(ENVOYS_FLAG).map(|flag| &flag.value) {
            Some(Value::Bool(true)) => Self::Yes,
            _ => Self::No,
        }
    }
}

const ENVOYS_FLAG: &str = "allow_on_headers_stop_iteration";

/// Configurations of the filter, and whether Envoy holds requests for their bodies.
type Configs = Vec<(Config, Waits)>;

/// The configurations in a file, which may hold several YAML documents, and the clusters in it that speak
/// HTTP/1.1 only.
fn configs(file: &Source) -> Result<(Configs, Vec<String>), Error> {
    let text = String::from_utf8_lossy(file.bytes());
    let (mut found, mut http1) = (Vec::new(), Vec::new());
    for document in documents(&text) {
        let node = limits_file::yaml::read(&file.name, document.as_bytes());
        let node = node.map_err(|problems| {
            let text = diagnostics(&problems);
            Error::new(Exit::No, format!("{} cannot be read\n{text}", file.name))
        })?;
        collect(&node, Waits::Unknown, &mut found);
        http1_clusters(&node, &mut http1);
    }
    let read = |(json, waits): (String, Waits)| {
        let config = Config::from_json(json.as_bytes());
        config.map(|config| (config, waits)).map_err(|problems| {
            let text = diagnostics(&problems);
            let message = format!(
                "the filter's configuration in {} is invalid\n{text}",
                file.name
            );
            Error::new(Exit::No, message)
        })
    };
    let configs: Result<Configs, Error> = found.into_iter().map(read).collect();
    Ok((configs?, http1))
}

/// The clusters of an Envoy configuration that speak HTTP/1.1 only, by name.
fn http1_clusters(node: &Node, found: &mut Vec<String>) {
    /// One of these is in every cluster, and in nothing else that has a name.
    const OF_CLUSTERS: [&str; 3] = ["load_assignment", "eds_cluster_config", "lb_policy"];
    const OF_HTTP2: [&str; 4] = [
        "http2_protocol_options",
        "http3_protocol_options",
        "auto_config",
        "use_downstream_protocol_config",
    ];
    let name = node.get("name").and_then(Node::as_text);
    if let Some(name) = name.filter(|_| OF_CLUSTERS.iter().any(|field| node.get(field).is_some())) {
        if !OF_HTTP2.iter().any(|field| has_field(node, field)) {
            found.push(name.to_owned());
        }
        return;
    }
    children(node).for_each(|child| http1_clusters(child, found));
}

/// Whether a field of this name is anywhere in a tree.
fn has_field(node: &Node, field: &str) -> bool {
    node.get(field).is_some() || children(node).any(|child| has_field(child, field))
}

fn children(node: &Node) -> impl Iterator<Item = &Node> {
    let (items, entries) = match &node.value {
        Value::List(items) => (&items[..], &[][..]),
        Value::Map(entries) => (&[][..], &entries[..]),
        _ => (&[][..], &[][..]),
    };
    items.iter().chain(entries.iter().map(|entry| &entry.value))
}

/// The documents of a YAML file, each with its original line numbers.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for (lines_before, line) in text.lines().enumerate() {
        let ends = line == "---" || line.starts_with("--- ");
        if ends {
            documents.push("\n".repeat(lines_before + 1));
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

/// Every configuration of the filter in a tree, as JSON.
fn collect(node: &Node, waits: Waits, found: &mut Vec<(String, Waits)>) {
    if let Some(json) = config(node) {
        return found.push((json, waits));
    }
    let waits = waits.within(node);
    children(node).for_each(|child| collect(child, waits, found));
}

/// A configuration is a map with a domain and a limiter; Envoy's files have it as JSON in a text.
fn config(node: &Node) -> Option<String> {
    match &node.value {
        Value::Map(_) if is_config(node) => serde_json::to_string(node).ok(),
        Value::Text(text) if text.trim_start().starts_with('{') => {
            let is_meant = match serde_json::from_str::<Node>(text) {
                Ok(inner) => is_config(&inner),
                // Its reader says what is wrong with it. Other texts that begin so are of others.
                Err(_) => ["domain", "limiter", "cluster"]
                    .iter()
                    .all(|word| text.contains(word)),
            };
            is_meant.then(|| text.clone())
        }
        _ => None,
    }
}

fn is_config(node: &Node) -> bool {
    let limiter = node.get("limiter");
    node.get("domain").is_some() && limiter.is_some_and(|limiter| limiter.get("cluster").is_some())
}

// --- Warnings about limits that are expensive for the store.

/// A check is costly if it weighs as much as this many checks of a token bucket.
const WEIGHT: usize = 8;
/// A log is costly with this many entries; and the bytes of each.
const LONG_LOG: u64 = 10_000;
const LOG_ENTRY_BYTES: u64 = 25;

/// The warning about a limit whose checks or buckets are expensive.
pub fn cost_warning(limit: &Limit) -> Option<Dear> {
    let (algorithm, leased) = (&limit.quota, limit.lease_ttl_ms.is_some());
    let weight = store::script::weight(algorithm, leased);
    let more = store::script::more_keys_weight(limit.settles(), limit.penalty.is_some());
    let units = limit.quota.parameters().rate.units;
    match algorithm.kind() {
        Kind::SlidingWindowBuckets if weight + more >= WEIGHT => Some(Dear {
            field: "sub_windows",
            message: format!(
                "a check may cost the store as much as {} checks of a token bucket",
                5 * weight + more
            ),
            hint: "fewer sub_windows cost less",
        }),
        Kind::SlidingWindowLog if units >= LONG_LOG => Some(Dear {
            field: "algorithm",
            message: format!(
                "a bucket in full use takes about {} MB in the store",
                units.saturating_mul(LOG_ENTRY_BYTES).div_ceil(1_000_000)
            ),
            hint: "sliding_window_buckets takes some kilobytes",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use policy::BUILT_IN;

    use super::*;

    #[test]
    fn penalties_and_costs_of_responses_weigh() {
        let warning = |more: &str| {
            let limit = format!(
                "{{name: a, algorithm: sliding_window_buckets, rate: 100/1m, sub_windows: 300{more}}}"
            );
            let node = limits_file::yaml::read("test", limit.as_bytes()).unwrap();
            let limit = limits_file::limit_from_node(&node).unwrap();
            cost_warning(&limit).map(|dear| dear.message)
        };
        assert_eq!(warning(""), None);
        let penalty = ", penalty: {after: 10, within: 1m, for: 15m}";
        let as_32 = "a check may cost the store as much as 32 checks of a token bucket";
        assert_eq!(warning(penalty).as_deref(), Some(as_32));
    }

    #[test]
    fn documents_keep_their_lines() {
        let found = documents("a: 1\n---\nb: 2\n");
        assert_eq!(found, ["a: 1\n", "\n\nb: 2\n"]);
        assert_eq!(documents("---\na: 1\n"), ["\na: 1\n"]);
    }

    #[test]
    fn a_plugin_waits_for_bodies_as_envoys_flag_says() {
        let waits = |plugin: &str| {
            let node = limits_file::yaml::read("test", plugin.as_bytes()).unwrap();
            let mut found = Vec::new();
            collect(&node, Waits::Unknown, &mut found);
            found.pop().unwrap().1
        };
        let config = "{domain: shop, limiter: {cluster: l}}";
        assert_eq!(waits(config), Waits::Unknown);
        let envoy = format!("config: {{configuration: {config}");
        assert_eq!(waits(&format!("{envoy}}}")), Waits::No);
        let flagged = |value| format!("{envoy}, {ENVOYS_FLAG}: {value}}}");
        assert_eq!(waits(&flagged("true")), Waits::Yes);
        assert_eq!(waits(&flagged("false")), Waits::No);
        assert_eq!(
            waits(&format!("spec: {{pluginConfig: {config}}}")),
            Waits::No
        );
        assert_eq!(
            waits(&format!(
                "{{filter_name: r, filter_config: {{value: {config}}}}}"
            )),
            Waits::Yes
        );
    }

    #[test]
    fn a_cluster_without_http2_is_found() {
        let http1 = |clusters: &str| {
            let file = format!("static_resources: {{clusters: [{clusters}]}}");
            let mut found = Vec::new();
            let node = limits_file::yaml::read("test", file.as_bytes()).unwrap();
            http1_clusters(&node, &mut found);
            found
        };
        let plain = "{name: a, load_assignment: {cluster_name: a}}";
        assert_eq!(http1(plain), ["a"]);
        let options = "{explicit_http_config: {http2_protocol_options: {}}}";
        let http2 = format!(
            "{{name: b, lb_policy: RANDOM, typed_extension_protocol_options: {{x: {options}}}}}"
        );
        assert_eq!(http1(&format!("{http2}, {plain}")), ["a"]);
        assert_eq!(http1("{name: a, address: x}"), [""; 0]);
    }

    #[test]
    fn a_filter_supplies_at_least_what_is_built_in() {
        let json = r#"{"domain":"shop","limiter":{"cluster":"l"},"descriptors":[{"key":"user","header":"x"}]}"#;
        let config = Config::from_json(json.as_bytes()).unwrap();
        let mut supplied = Supplied::default();
        supplied.add(config, Waits::Unknown);
        for name in BUILT_IN.iter().chain(&["user"]) {
            assert!(
                supplied.entries.iter().any(|known| known.as_str() == *name),
                "{name}"
            );
        }
        assert_eq!(supplied.alterations.longest_prefixes(), [32, 64]);
    }
}
