//! `rlctl test`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anstyle::{AnsiColor, Style};
use clap::Args;
use policy::{Compiled, Node, Place, Problem, Problems, Value, format_timestamp};
use serde::Serialize;

use super::validate::{Row, rows};
use crate::{
    bucket::visible,
    cases::{self, Case, Difference, FILE_MAX, Limits, Touched, Untouched, limits_of},
    cli::{Global, examples},
    error::{Error, Exit},
    input::{self, Source, has_extension},
    printer::Printer,
    render::{Page, View, counted, diagnostics},
    simulate::{EngineKind, Engines},
};

/// Run the cases beside limits files: requests at given times, and the decision that each expects.
///
/// The cases of limits.yaml are in limits.test.yaml. They are decided as by a limiter with empty
/// buckets, on a simulated clock, by the algorithms in this program or the scripts on a server. A case
/// ends at the first decision that is not as expected, which is shown with its line.
///
/// Exit codes: 0 all decisions are as expected, 1 one is not, 2 a file cannot be used.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl test                                  # every *.test.yaml of this folder"
    "rlctl test limits/"
    "rlctl test limits.test.yaml --coverage      # what is not tested?"
    "rlctl test --engine local,redis             # also by the scripts, on the server of --redis"
    "rlctl test limits/ --junit report.xml       # for a CI server"
))]
pub struct Test {
    /// Files of cases, or folders of them.
    #[arg(value_name = "PATH")]
    paths: Vec<String>,

    /// As `-f` of other commands.
    #[arg(short, long = "file", value_name = "FILE", hide = true)]
    files: Vec<String>,

    /// What decides: local, the algorithms in this program; redis, the scripts that limiters use, on a
    /// real server, with keys of their own that are removed in the end; or both, as local,redis.
    #[arg(
        long,
        value_name = "ENGINE",
        value_delimiter = ',',
        default_value = "local",
        hide_possible_values = true
    )]
    engine: Vec<EngineKind>,

    /// List the limits, overrides and exemptions that no case touches.
    #[arg(long)]
    coverage: bool,

    /// Also write the results to this file, in JUnit's format.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl Test {
    /// Runs all cases; the answer is no if a decision is not as expected.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let mut engines = Vec::new();
        for kind in &self.engine {
            if engines.iter().all(|(known, _)| known != kind) {
                engines.push((*kind, Engines::open(*kind, global, printer)?));
            }
        }
        let mut known = KnownLimits::default();
        let mut report = Report::default();
        for path in self.list()? {
            report
                .files
                .push(self.run_file(&path, &mut engines, &mut known).await?);
        }
        if self.coverage {
            report.coverage = Some(known.coverage());
        }
        report.passed = report.files.iter().all(|file| file.passed);
        let unusable = { report.files.iter() }.any(|file| !file.problems.is_empty());
        printer.data(&report)?;
        if let Some(path) = &self.junit {
            std::fs::write(path, report.junit()).map_err(|error| {
                Error::usage(format!("cannot write {}: {error}", path.display()))
            })?;
        }
        Ok(match (unusable, report.passed) {
            (true, _) => Exit::Usage,
            (false, false) => Exit::No,
            (false, true) => Exit::Done,
        })
    }

    /// The files of cases, without repetition.
    fn list(&self) -> Result<Vec<String>, Error> {
        let here = ".".to_owned();
        let mut named: Vec<&String> = self.paths.iter().chain(&self.files).collect();
        if named.is_empty() {
            named.push(&here);
        }
        let mut files: Vec<String> = Vec::new();
        for path in named {
            for file in files_at(path)? {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }

    async fn run_file(
        &self,
        path: &str,
        engines: &mut [(EngineKind, Engines<'_>)],
        known: &mut KnownLimits,
    ) -> Result<FileResult, Error> {
        let source = Source::read(path).await?;
        let mut result = FileResult::new(&source.name);
        let (cases, limits) = match read(&source, known).await {
            Ok(read) => read,
            Err(problems) => {
                result.unusable(problems);
                return Ok(result);
            }
        };
        let several = engines.len() > 1;
        for case in &cases {
            let Some(of) = limits.get(case.limits) else {
                continue;
            };
            for (kind, engines) in engines.iter_mut() {
                let mut engine = engines.engine(of.uncompiled.clone());
                let mut touched = Touched::default();
                let found = case.run(&mut engine, &mut touched).await;
                let difference = engines.close(engine, found).await?;
                known.touched(&of.limits.file, touched);
                result.passed &= difference.is_none();
                let found = difference.map(|found| Failure::new(&case.name, found, &source));
                result.cases.push(CaseResult {
                    name: case.name.clone(),
                    line: case.place.map(|place| place.line),
                    engine: several.then_some(*kind),
                    requests: case.request_count(),
                    passed: found.is_none(),
                    difference: found,
                });
            }
        }
        Ok(result)
    }
}

/// The files of cases at a path: the file itself, those of a folder, or the one beside a limits file.
fn files_at(path: &str) -> Result<Vec<String>, Error> {
    if Path::new(path).is_dir() {
        let files = input::files_at(path, &input::CASES).map_err(|error| {
            error.hint("the cases of limits.yaml go into limits.test.yaml beside it")
        })?;
        let named = |file: String| {
            file.strip_prefix("./")
                .map_or(file.clone(), ToOwned::to_owned)
        };
        return Ok(files.into_iter().map(named).collect());
    }
    if has_extension(path, &input::CASES) {
        return Ok(vec![path.to_owned()]);
    }
    if !Path::new(path).exists() {
        // Reading it says why not.
        return Ok(vec![path.to_owned()]);
    }
    // Whoever names a limits file means the cases beside it.
    let beside = Path::new(path).with_extension("test.yaml");
    let beside = beside.to_string_lossy().into_owned();
    if Path::new(&beside).exists() {
        return Ok(vec![beside]);
    }
    let message = format!("{path} is not a file of cases: their names end in .test.yaml");
    Err(Error::usage(message).hint(format!("its cases go into {beside}")))
}

// --- The limits files that cases are about, each read once.

/// By the path without links and `..`, so that what several files of cases touch adds up.
#[derive(Default)]
struct KnownLimits(BTreeMap<PathBuf, (OfFile, Touched)>);

/// The limits of a file.
#[derive(Clone)]
struct OfFile {
    limits: Limits,
    /// As an engine takes them.
    uncompiled: policy::Policy,
}

impl KnownLimits {
    async fn read(&mut self, path: &str) -> Result<OfFile, String> {
        let whole = whole(path);
        if let Some((known, _)) = self.0.get(&whole) {
            return Ok(known.clone());
        }
        let source = Source::read(path)
            .await
            .map_err(|error| error.to_string())?;
        let (policy, _) = source.policy(|_| None).map_err(|problems| {
            let count = counted(problems.count(), "problem");
            format!("{path} has {count}; the first: {}", first(&problems))
        })?;
        let of_file = OfFile {
            limits: Limits {
                file: path.to_owned(),
                policy: Arc::new(Compiled::new(policy.clone())),
            },
            uncompiled: policy,
        };
        let entry = (of_file.clone(), Touched::default());
        self.0.insert(whole, entry);
        Ok(of_file)
    }

    fn touched(&mut self, path: &str, more: Touched) {
        if let Some((_, touched)) = self.0.get_mut(&whole(path)) {
            touched.merge(more);
        }
    }

    fn coverage(&self) -> Vec<Coverage> {
        let files = self.0.values();
        files
            .map(|(of, touched)| Coverage {
                file: of.limits.file.clone(),
                untouched: Untouched::of(&of.limits.policy, touched),
            })
            .collect()
    }
}

fn whole(path: &str) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

fn first(problems: &Problems) -> String {
    let problem = problems.iter().next();
    let place = problem.and_then(|problem| problem.place);
    let at = place.map_or_else(String::new, |place| format!("line {}: ", place.line));
    let what = problem.map_or_else(String::new, ToString::to_string);
    format!("{at}{what}")
}

/// The cases of a file, and the limits that they are about.
async fn read(
    source: &Source,
    known: &mut KnownLimits,
) -> Result<(Vec<Case>, Vec<OfFile>), Problems> {
    let text = || String::from_utf8_lossy(source.bytes()).into_owned();
    let in_file = |problems: Problems| problems.in_file(source.name.clone(), text());
    if source.bytes().len() > FILE_MAX {
        let message = format!("larger than {FILE_MAX} bytes");
        return Err(in_file(cases::problem(
            message,
            Some("split the cases over several files"),
        )));
    }
    let document = limits_file::yaml::read(&source.name, source.bytes())?;
    if document.value == Value::Null {
        return Err(in_file(cases::problem(
            "the file is empty",
            Some(cases::EXAMPLE),
        )));
    }
    let named = limits_of(&document).map_err(in_file)?;
    let folder = Path::new(&source.name).parent().unwrap_or(Path::new(""));
    let paths = match &named {
        Some(named) => { named.iter() }
            .map(|(path, place)| (folder.join(path).to_string_lossy().into_owned(), *place))
            .collect(),
        None => vec![(beside(&source.name), None)],
    };
    let mut limits: Vec<OfFile> = Vec::with_capacity(paths.len());
    let mut problems = Vec::new();
    for (path, place) in paths {
        match known.read(&path).await {
            Ok(of_file) => limits.push(of_file),
            Err(why) => {
                let mut problem = Problem::new("limits", place, why);
                if place.is_none() {
                    problem.push_hint(
                        "`limits: PATH` names the limits file, if it is not of the same name",
                    );
                }
                problems.push(problem);
            }
        }
    }
    if let Some(problems) = Problems::found(problems) {
        return Err(in_file(problems));
    }
    let about: Vec<Limits> = limits.iter().map(|of| of.limits.clone()).collect();
    let cases = cases::read(&document, &about).map_err(in_file)?;
    Ok((cases, limits))
}

/// The limits file of the same name: `limits.yaml` of `limits.test.yaml`.
fn beside(path: &str) -> String {
    let stem = input::CASES.iter().find_map(|extension| {
        let stem = path.strip_suffix(extension)?;
        Some((stem, extension.strip_prefix("test.")?))
    });
    let Some((stem, own)) = stem else {
        return "limits.yaml".to_owned();
    };
    let names = [own, "yaml", "yml", "json"].map(|extension| format!("{stem}{extension}"));
    let there = names.iter().find(|name| Path::new(name).exists());
    there.or_else(|| names.first()).cloned().unwrap_or_default()
}

// --- The results, as JSON and as text.

const OK: Style = AnsiColor::Green.on_default();
const FAILED: Style = AnsiColor::Red.on_default().bold();
/// Overrides without a case that are listed.
const OVERRIDES_SHOWN: usize = 20;

/// The results of all files.
#[derive(Debug, Default, Serialize)]
struct Report {
    passed: bool,
    files: Vec<FileResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<Vec<Coverage>>,
}

#[derive(Debug, Serialize)]
struct FileResult {
    file: String,
    passed: bool,
    problems: Vec<Row>,
    cases: Vec<CaseResult>,
    #[serde(skip)]
    diagnostics: Option<Problems>,
}

#[derive(Debug, Serialize)]
struct CaseResult {
    name: String,
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<EngineKind>,
    requests: u64,
    passed: bool,
    difference: Option<Failure>,
}

/// The first decision of a case that is not as expected.
#[derive(Debug, Serialize)]
struct Failure {
    line: Option<u32>,
    column: Option<u32>,
    request: usize,
    at: String,
    expected: Node,
    actual: Node,
    #[serde(skip)]
    message: String,
    #[serde(skip)]
    diagnostics: Problems,
}

#[derive(Debug, Serialize)]
struct Coverage {
    file: String,
    untouched: Untouched,
}

impl FileResult {
    fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            passed: true,
            problems: Vec::new(),
            cases: Vec::new(),
            diagnostics: None,
        }
    }

    fn unusable(&mut self, problems: Problems) {
        self.passed = false;
        self.problems = rows(Some(&problems));
        self.diagnostics = Some(problems);
    }

    fn text(&self) -> String {
        let file = visible(self.file.as_bytes());
        let mut text = format!("{file}\n");
        for case in &self.cases {
            let (style, word) = if case.passed {
                (OK, "ok  ")
            } else {
                (FAILED, "FAIL")
            };
            let name = case.title();
            let count = counted(case.requests, "request");
            let _ = writeln!(text, "  {style}{word}{style:#}  {name}  ({count})");
            if let Some(found) = &case.difference {
                text.push_str(&diagnostics(&found.diagnostics));
            }
        }
        if let Some(problems) = &self.diagnostics {
            text.push_str(&diagnostics(problems));
        }
        text
    }
}

impl CaseResult {
    fn title(&self) -> String {
        let name = visible(self.name.as_bytes());
        match self.engine {
            Some(engine) => format!("{name}, by {}", engine.word()),
            None => name,
        }
    }
}

impl Failure {
    fn new(case: &str, found: Difference, source: &Source) -> Self {
        let at = format_timestamp(found.at_ms);
        let place: Option<Place> = found.place;
        let message = format!(
            "request {} at {at}: expected {}, got {}",
            found.request,
            found.expected.to_yaml_line(),
            found.actual.to_yaml_line()
        );
        let mut problem = Problem::new("", place, format!("{case}: {message}"));
        problem.push_hint(found.limits);
        let text = String::from_utf8_lossy(source.bytes()).into_owned();
        Self {
            line: place.map(|place| place.line),
            column: place.map(|place| place.column),
            request: found.request,
            at,
            expected: found.expected,
            actual: found.actual,
            message,
            diagnostics: Problems::one(problem).in_file(source.name.clone(), text),
        }
    }
}

impl View for Report {
    fn text(&self, _page: Page) -> String {
        let mut text: String = self.files.iter().map(FileResult::text).collect();
        for coverage in self.coverage.iter().flatten() {
            text.push_str(&coverage.text());
        }
        let cases = || self.files.iter().flat_map(|file| &file.cases);
        let count = counted(cases().count(), "case");
        let failed = cases().filter(|case| !case.passed).count();
        let unusable = self.files.iter().filter(|file| file.diagnostics.is_some());
        let mut found = Vec::new();
        if failed > 0 {
            found.push(format!("{failed} failed"));
        }
        match unusable.count() {
            0 => {}
            files => found.push(format!("{} cannot be used", counted(files, "file"))),
        }
        if found.is_empty() {
            found.push("as expected".to_owned());
        }
        let _ = writeln!(text, "{count}: {}", found.join(", "));
        text
    }

    /// The cases that failed.
    fn names(&self) -> Vec<String> {
        let cases = self.files.iter().flat_map(|file| &file.cases);
        let failed = cases.filter(|case| !case.passed);
        failed.map(CaseResult::title).collect()
    }
}

impl Coverage {
    fn text(&self) -> String {
        let Untouched {
            limits,
            overrides,
            exemptions,
        } = &self.untouched;
        let file = visible(self.file.as_bytes());
        if limits.is_empty() && overrides.is_empty() && exemptions.is_empty() {
            return format!("{file}: cases touch every limit, override and exemption\n");
        }
        let mut text = format!("{file}: no case touches\n");
        for limit in limits {
            let _ = writeln!(text, "  limit {limit}");
        }
        for of in overrides.iter().take(OVERRIDES_SHOWN) {
            let _ = writeln!(text, "  the override of {} for {}", of.limit, of.bucket);
        }
        let more = overrides.len().saturating_sub(OVERRIDES_SHOWN);
        if more > 0 {
            let _ = writeln!(text, "  and {}", counted(more, "more override"));
        }
        for exemption in exemptions {
            let _ = writeln!(text, "  exemption {exemption}");
        }
        text
    }
}

// --- The results in JUnit's format: as its viewers read it, who differ in what they require. Cases have a clock of
// their own, and take no time.

impl Report {
    fn junit(&self) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let cases = || self.files.iter().flat_map(|file| &file.cases);
        let unusable = |file: &&FileResult| file.diagnostics.is_some();
        let errors = self.files.iter().filter(unusable).count();
        let failures = cases().filter(|case| !case.passed).count();
        let tests = cases().count() + errors;
        let _ = writeln!(
            xml,
            "<testsuites name=\"rlctl test\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\">"
        );
        for file in &self.files {
            file.junit(&mut xml);
        }
        xml.push_str("</testsuites>\n");
        xml
    }
}

impl FileResult {
    fn junit(&self, xml: &mut String) {
        let file = escaped(&self.file);
        let errors = usize::from(self.diagnostics.is_some());
        let failures = self.cases.iter().filter(|case| !case.passed).count();
        let tests = self.cases.len() + errors;
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{file}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"0\" time=\"0\">"
        );
        let mut case = |name: &str, line: Option<u32>, outcome: Option<(&str, &str, String)>| {
            let line = line.map_or_else(String::new, |line| format!(" line=\"{line}\""));
            let name = escaped(name);
            let start = format!(
                "    <testcase classname=\"{file}\" name=\"{name}\" time=\"0\" file=\"{file}\"{line}"
            );
            let _ = match outcome {
                None => writeln!(xml, "{start}/>"),
                Some((element, message, text)) => writeln!(
                    xml,
                    "{start}>\n      <{element} type=\"{element}\" message=\"{}\">{}</{element}>\n    </testcase>",
                    escaped(message),
                    escaped(&text)
                ),
            };
        };
        for one in &self.cases {
            let failure = one.difference.as_ref();
            let failure = failure.map(|found| {
                (
                    "failure",
                    found.message.as_str(),
                    found.diagnostics.to_string(),
                )
            });
            case(&one.title(), one.line, failure);
        }
        if let Some(problems) = &self.diagnostics {
            let message = counted(problems.count(), "problem");
            case(
                "the file can be used",
                None,
                Some(("error", &message, problems.to_string())),
            );
        }
        xml.push_str("  </testsuite>\n");
    }
}

/// Text in an attribute or an element. XML cannot hold most control characters, whatever their spelling.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\n' => xml.push_str("&#10;"),
            '\t' => xml.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => xml.push('\u{fffd}'),
            c => xml.push(c),
        }
    }
    xml
}
