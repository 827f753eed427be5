//! `rlctl validate`.

use algorithms::Kind;
use clap::Args;
use policy::{Limit, Problem, Problems};
use serde::Serialize;

use crate::{
    cli::examples,
    error::Error,
    exit::Exit,
    input::Source,
    printer::Printer,
    render::{Page, View, counted, diagnostics},
};

/// A limit is dear that weighs as much as so many token buckets.
const DEAR: usize = 8;
/// A log is long that has so many entries, each of so many bytes.
const LONG_LOG: u64 = 10_000;
const LOG_ENTRY_BYTES: u64 = 25;

/// Check limits files and show every problem; needs no Redis.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl validate -f limits.yaml"
    "rlctl validate -f shop.yaml -f admin.yaml"
    "rlctl export | rlctl validate -f -"
    "rlctl validate -f limits.yaml -o json | jq '.[].problems[].message'"
))]
pub struct Validate {
    /// A limits file; `-` is stdin. May be given several times.
    #[arg(
        short,
        long = "file",
        value_name = "FILE",
        required_unless_present = "paths"
    )]
    files: Vec<String>,

    /// What -f is for, without it: nobody means anything else by a bare path.
    #[arg(hide = true)]
    paths: Vec<String>,
}

impl Validate {
    /// Shows what is wrong; the answer is no if anything is.
    pub async fn run(&self, printer: &Printer) -> Result<Exit, Error> {
        let mut files = Vec::new();
        for path in self.files.iter().chain(&self.paths) {
            files.push(check(path).await?);
        }
        let report = Report(files);
        printer.data(&report)?;
        for warning in report.0.iter().flat_map(|file| &file.warnings) {
            printer.warn(warning);
        }
        Ok(if report.0.iter().all(|file| file.valid) {
            Exit::Done
        } else {
            Exit::No
        })
    }
}

async fn check(path: &str) -> Result<Checked, Error> {
    let source = Source::read(path).await?;
    Ok(match source.policy() {
        Ok(policy) => Checked {
            file: source.name,
            valid: true,
            domain: Some(policy.domain.to_string()),
            limits: Some(policy.limits.len()),
            warnings: policy.limits.iter().filter_map(dear).collect(),
            problems: Vec::new(),
            diagnostics: None,
        },
        Err(problems) => Checked {
            file: source.name,
            valid: false,
            domain: None,
            limits: None,
            warnings: Vec::new(),
            problems: problems.iter().map(Row::from).collect(),
            diagnostics: Some(problems),
        },
    })
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
    /// What works, and costs more than its author may know.
    #[serde(skip)]
    warnings: Vec<String>,
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

    /// The files that are not valid.
    fn names(&self) -> Vec<String> {
        let invalid = self.0.iter().filter(|file| !file.valid);
        invalid.map(|file| file.file.clone()).collect()
    }
}

impl Checked {
    fn text(&self) -> String {
        let file = &self.file;
        match (&self.diagnostics, &self.domain, self.limits) {
            (Some(problems), ..) => {
                let count = counted(problems.count(), "problem");
                format!("{}\n{file}: {count}\n", diagnostics(problems))
            }
            (None, Some(domain), Some(limits)) => {
                format!(
                    "{file}: valid, {} in domain {domain}\n",
                    counted(limits, "limit")
                )
            }
            _ => String::new(),
        }
    }
}
