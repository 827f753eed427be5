//! `rlctl validate`.

mod filter;

use std::{collections::HashSet, fmt::Write as _};

use clap::Args;
use insight::Window;
use policy::{Name, Policy, Problem, Problems, Supply};
use serde::Serialize;

use crate::{
    args::{Global, examples},
    clock,
    error::Error,
    exit::Exit,
    input::{FilesArg, Source},
    printer::Printer,
    render::{Page, View, counted, diagnostics},
    session::{LiveEntries, Session},
};

use filter::Supplied;

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
    let now_ms = clock::now_ms();
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
            windows.extend(Window::of(&quota, now_ms));
        }
    }
    windows
}

fn rows(problems: Option<&Problems>) -> Vec<Row> {
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

#[derive(Serialize)]
struct Row {
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
