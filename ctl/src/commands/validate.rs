//! `rlctl validate`.

mod filter;

use algorithms::Kind;
use clap::Args;
use policy::{Limit, Problem, Problems, Surroundings};
use serde::Serialize;

use crate::{
    cli::examples,
    error::Error,
    exit::Exit,
    input::{FilesArg, Source},
    printer::Printer,
    render::{Page, View, counted, diagnostics},
};

use filter::Supplied;

/// A limit is dear that weighs as much as so many token buckets.
const DEAR: usize = 8;
/// A log is long that has so many entries, each of so many bytes.
const LONG_LOG: u64 = 10_000;
const LOG_ENTRY_BYTES: u64 = 25;

/// Check limits files and show every problem; needs no Redis.
///
/// Warned of is what is valid and probably not meant: patterns that match nothing, requests that cost
/// more than a bucket holds, overrides that have ended. Warnings do not count, unless --strict.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl validate -f limits.yaml"
    "rlctl validate -f limits/                              # every file of a folder"
    "rlctl validate -f limits.yaml --filter envoy.yaml      # is every entry supplied?"
    "rlctl export | rlctl validate --strict -f -"
    "rlctl validate -f limits.yaml -o json | jq '.[].problems[].message'"
))]
pub struct Validate {
    #[command(flatten)]
    files: FilesArg,

    /// Check against the filter's configuration in this file, Envoy's or a WasmPlugin: is every
    /// entry supplied, and the domain asked for? May be given several times.
    #[arg(long, value_name = "FILE")]
    filter: Vec<String>,

    /// Warnings count as problems.
    #[arg(long)]
    strict: bool,
}

impl Validate {
    /// Shows what is wrong; the answer is no if anything is.
    pub async fn run(&self, printer: &Printer) -> Result<Exit, Error> {
        let supplied = Supplied::read(&self.filter).await?;
        let around = Surroundings {
            now_ms: None,
            supply: (!self.filter.is_empty()).then(|| supplied.supply()),
        };
        let sources = self.files.read().await?;
        let mut files: Vec<Checked> = Vec::with_capacity(sources.len());
        for source in &sources {
            let mut file = check(source, &around);
            file.fails = !file.valid || self.strict && !file.warnings.is_empty();
            files.push(file);
        }
        let report = Report(files);
        printer.data(&report)?;
        for cost in report.0.iter().flat_map(|file| &file.costs) {
            printer.warn(cost);
        }
        Ok(if report.0.iter().any(|file| file.fails) {
            Exit::No
        } else {
            Exit::Done
        })
    }
}

fn check(source: &Source, around: &Surroundings<'_>) -> Checked {
    let file = source.name.clone();
    match source.policy(around) {
        Ok((policy, warnings)) => Checked {
            file,
            valid: true,
            domain: Some(policy.domain.to_string()),
            limits: Some(policy.limits.len()),
            problems: Vec::new(),
            warnings: rows(warnings.as_ref()),
            costs: policy.limits.iter().filter_map(dear).collect(),
            fails: false,
            diagnostics: warnings,
        },
        Err(problems) => Checked {
            file,
            valid: false,
            domain: None,
            limits: None,
            problems: rows(Some(&problems)),
            warnings: Vec::new(),
            costs: Vec::new(),
            fails: false,
            diagnostics: Some(problems),
        },
    }
}

fn rows(problems: Option<&Problems>) -> Vec<Row> {
    let problems = problems.into_iter().flat_map(Problems::iter);
    problems.map(Row::from).collect()
}

/// What a limit whose checks or buckets are dear costs.
fn dear(limit: &Limit) -> Option<String> {
    let name = &limit.name;
    let (algorithm, leased) = (limit.quota.algorithm(), limit.lease_ttl_ms.is_some());
    let weight = store::script::weight(algorithm, leased);
    let units = limit.quota.parameters().rate.units;
    match algorithm.kind() {
        Kind::SlidingWindowBuckets if weight >= DEAR => Some(format!(
            "limit {name}: a check may take the store as long as {} of a token bucket; fewer \
             sub_windows cost less",
            5 * weight
        )),
        Kind::SlidingWindowLog if units >= LONG_LOG => Some(format!(
            "limit {name}: a bucket in full use takes about {} MB in the store; sub-windows take \
             some kilobytes",
            units.saturating_mul(LOG_ENTRY_BYTES).div_ceil(1_000_000)
        )),
        _ => None,
    }
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
    /// What works, and costs more than its author may know.
    #[serde(skip)]
    costs: Vec<String>,
    /// Whether it makes the answer a no.
    #[serde(skip)]
    fails: bool,
    /// Either of them, as people read them.
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
        format!("{diagnostics}{file}: {verdict}\n")
    }
}
