//! `rlctl convert`.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use limits_file::Surroundings;
use migration::{
    Conversion, Domain, File, FileReport, Key, Options, System, ToObjects, convert, file_name,
    to_objects,
};
use policy::{Name, Node, Problem, Problems};
use serde::Serialize;

use crate::{
    cli::{Format, Global, examples},
    error::{Error, Exit},
    input::{Source, read_all},
    printer::Printer,
    render::{Page, View, counted, diagnostics},
};

/// The file name extensions of other systems' files in a folder.
const EXTENSIONS: [&str; 4] = ["yaml", "yml", "json", "properties"];

/// Turn another rate limiter's configuration into limits files, or these into Kubernetes objects; needs no Redis.
///
/// Limits go to stdout, or to a file for each domain with --out. What means something else than
/// before is a warning on stderr. What a limits file cannot express is an error there; the rest is
/// written all the same, and the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl convert --from envoy-ratelimit config.yaml > limits.yaml"
    "rlctl convert --from envoy-ratelimit config/ --out limits/       # a file for each domain"
    "rlctl convert --from limitador limits.yaml | rlctl validate -f -"
    "rlctl convert --from limitador limits.yaml --shadow | rlctl apply -f -"
    "rlctl convert --from spring application.yml --domain shop"
    "rlctl convert --from spring application.yml --domain shop --key apiKeyResolver=api_key"
    "rlctl convert --from envoy-ratelimit config/ -o json | jq '.changed, .lost'"
    "rlctl convert --to kubernetes --gateway infra/public limits.yaml | kubectl apply -f -"
    "rlctl convert --from kubernetes manifests/"
))]
pub struct Convert {
    /// Whose configuration it is: `envoy-ratelimit` (envoyproxy/ratelimit), `limitador`, `spring`
    /// (Spring Cloud Gateway's RequestRateLimiter), or `kubernetes` (RateLimit objects, with the
    /// routes that they name).
    #[arg(long, value_name = "SYSTEM", required_unless_present = "to")]
    from: Option<From>,

    /// Turn limits files into objects instead: `kubernetes`. Each file becomes a RateLimitDomain and
    /// a RateLimit on the Gateway.
    #[arg(long, value_name = "SYSTEM", requires = "gateway", conflicts_with_all = ["from", "shadow", "key"])]
    to: Option<To>,

    /// With --to: the Gateway whose proxies request the domain.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = gateway, requires = "to")]
    gateway: Option<Key>,

    /// A file, or a folder of them; `-` is stdin. May be given several times.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,

    /// Write to this file; or, if it is a folder or ends in `/`, a file for each domain into it.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// Replace files that are there.
    #[arg(long, requires = "out")]
    overwrite: bool,

    /// Make shadow limits of them all: they deny nothing, and `rlctl stats` shows what they would
    /// deny.
    #[arg(long)]
    shadow: bool,

    /// With `spring`: the descriptor entry that stands for a key resolver, by the name of its bean.
    /// May be given several times.
    #[arg(long, value_name = "RESOLVER=ENTRY", value_parser = key)]
    key: Vec<(String, Name)>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum From {
    EnvoyRatelimit,
    Limitador,
    Spring,
    Kubernetes,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    Kubernetes,
}

impl Convert {
    /// Converts all files together, because one domain may be in several.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let options = self.options(global)?;
        let sources = read_all(self.files.iter(), &EXTENSIONS).await?;
        let files: Vec<File<'_>> = sources.iter().map(file).collect();
        let conversion = match &self.gateway {
            Some(gateway) => {
                let gateway = gateway.clone();
                to_objects(&files, &ToObjects { gateway })
            }
            None => convert(self.system(), &files, &options),
        };
        let mut conversion = conversion.map_err(|problems| unusable(&problems))?;
        if self.shadow {
            conversion.domains.iter_mut().for_each(Domain::shadow);
        }
        let targets = targets(self.out.as_deref(), &conversion.domains)?;
        let one = self.to.is_none() && prints_one(printer);
        if targets.is_empty() && conversion.domains.len() > 1 && one {
            return Err(several(&conversion));
        }
        for report in &conversion.reports {
            for problems in [report.warnings(), report.errors()].iter().flatten() {
                printer.warn_of(problems);
            }
        }
        for domain in &conversion.domains {
            for problem in limits_file::warnings(&domain.policy, &Surroundings::default()) {
                printer.warn(&problem);
            }
        }
        write(&targets, &conversion.domains, self.overwrite)?;
        let lost = conversion.lost();
        printer.data(&Converted::new(&conversion, targets))?;
        if lost > 0 {
            let message = format!("{} could not be converted", counted(lost, "thing"));
            let hint = if matches!(self.system(), System::Kubernetes) {
                "the rest is written; docs/kubernetes.md says what cannot be expressed"
            } else {
                "the rest is written; the pages of docs/migrating say what to do instead"
            };
            return Err(Error::new(Exit::No, message).hint(hint));
        }
        Ok(Exit::Done)
    }

    fn system(&self) -> System {
        match self.from {
            Some(From::EnvoyRatelimit) => System::EnvoyRatelimit,
            Some(From::Limitador) => System::Limitador,
            Some(From::Spring) => System::Spring,
            Some(From::Kubernetes) | None => System::Kubernetes,
        }
    }

    fn options(&self, global: &Global) -> Result<Options, Error> {
        let spring = matches!(self.from, Some(From::Spring));
        if !self.key.is_empty() && !spring {
            return Err(Error::usage("--key is for `--from spring`"));
        }
        let domain = global.domain.as_deref();
        let domain = domain.map(|name| {
            let parsed = name.parse::<Name>();
            parsed.map_err(|error| Error::usage(format!("--domain {name}: {error}")))
        });
        let domain = domain.transpose()?;
        if domain.is_some() && !spring {
            let error = Error::usage("--domain is for `--from spring`");
            return Err(error.hint("the other systems' files name their domains"));
        }
        Ok(Options {
            domain,
            keys: self.key.clone(),
        })
    }
}

fn file(source: &Source) -> File<'_> {
    File {
        name: &source.name,
        bytes: source.bytes(),
    }
}

/// Whether several limits files cannot be distinguished on stdout.
fn prints_one(printer: &Printer) -> bool {
    matches!(printer.format(), Format::Table | Format::Wide)
}

fn several(conversion: &Conversion) -> Error {
    let names = conversion
        .domains
        .iter()
        .map(|domain| domain.policy.domain.as_str());
    let names: Vec<&str> = names.collect();
    let names = crate::render::truncated_list(&names, 10);
    Error::usage(format!(
        "several domains, each of which needs a file of its own: {names}"
    ))
    .hint("--out limits/ writes them all")
}

fn unusable(problems: &[Problems]) -> Error {
    let count: usize = problems.iter().map(Problems::count).sum();
    let text: String = problems
        .iter()
        .map(|problems| diagnostics(problems) + "\n")
        .collect();
    let count = counted(count, "problem");
    let message = format!("nothing was converted: {count}\n{}", text.trim_end());
    Error::new(Exit::No, message)
}

fn gateway(text: &str) -> Result<Key, String> {
    let parts = text.split_once('/');
    let parts = parts.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.ok_or("a namespace and a name, like infra/public")?;
    Ok(Key::new(namespace, name))
}

fn key(text: &str) -> Result<(String, Name), String> {
    let (resolver, entry) = text
        .split_once('=')
        .ok_or("a key resolver and an entry, like apiKeyResolver=api_key")?;
    let entry: Name = entry.parse().map_err(|error| format!("{entry}: {error}"))?;
    Ok((resolver.to_owned(), entry))
}

// --- Where the limits files go.

/// A file for each domain; empty if they go to stdout.
fn targets(out: Option<&Path>, domains: &[Domain]) -> Result<Vec<PathBuf>, Error> {
    let Some(out) = out else {
        return Ok(Vec::new());
    };
    let folder = out.is_dir() || out.to_string_lossy().ends_with('/');
    match domains {
        [_] if !folder => Ok(vec![out.to_owned()]),
        [_, _, ..] if !folder => {
            let message = format!(
                "--out {}: {} domains need a folder",
                out.display(),
                domains.len()
            );
            Err(Error::usage(message).hint(format!("--out {}/", out.display())))
        }
        domains => {
            let names = domains.iter().map(|domain| file_name(&domain.policy));
            Ok(names.map(|name| out.join(name)).collect())
        }
    }
}

/// Writes them. If one exists already, it writes none.
fn write(targets: &[PathBuf], domains: &[Domain], overwrite: bool) -> Result<(), Error> {
    let taken = targets.iter().find(|path| !overwrite && path.exists());
    if let Some(taken) = taken {
        return Err(exists(taken));
    }
    for (path, domain) in targets.iter().zip(domains) {
        let text = text_of(&domain.document);
        write_one(path, &text, overwrite).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(path),
            _ => Error::usage(format!("cannot write {}: {error}", path.display())),
        })?;
    }
    Ok(())
}

fn write_one(path: &Path, text: &str, overwrite: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = fs::File::options();
    options.write(true);
    if overwrite {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(path)?.write_all(text.as_bytes())
}

fn exists(path: &Path) -> Error {
    let message = format!("{} is there already", path.display());
    Error::new(Exit::Conflict, message).hint("--overwrite replaces it")
}

// --- What a conversion prints.

/// A limits file; of a list of objects a YAML stream.
fn text_of(document: &Node) -> String {
    let objects = document.get("items").map(Node::items).unwrap_or_default();
    if objects.is_empty() {
        return document.to_yaml();
    }
    let objects = objects
        .iter()
        .map(|object| format!("---\n{}", object.to_yaml()));
    objects.collect()
}

#[derive(Serialize)]
struct Converted<'c> {
    domains: Vec<ConvertedDomain<'c>>,
    /// Rules that mean something else after the conversion.
    changed: Vec<Note<'c>>,
    /// What a limits file cannot express.
    lost: Vec<Note<'c>>,
}

#[derive(Serialize)]
struct ConvertedDomain<'c> {
    domain: &'c str,
    limits: usize,
    /// The file it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    document: &'c Node,
}

#[derive(Serialize)]
struct Note<'c> {
    file: &'c str,
    line: Option<u32>,
    column: Option<u32>,
    field: &'c str,
    message: &'c str,
    hint: Option<&'c str>,
}

impl<'c> Converted<'c> {
    pub(super) fn new(conversion: &'c Conversion, targets: Vec<PathBuf>) -> Self {
        let mut targets = targets.into_iter();
        let written = |domain: &'c Domain| ConvertedDomain {
            domain: domain.policy.domain.as_str(),
            limits: domain.policy.limits.len(),
            file: targets.next(),
            document: &domain.document,
        };
        Self {
            domains: conversion.domains.iter().map(written).collect(),
            changed: notes(conversion, FileReport::changed),
            lost: notes(conversion, FileReport::lost),
        }
    }
}

fn notes<'c>(
    conversion: &'c Conversion,
    of: impl Fn(&'c FileReport) -> &'c [Problem],
) -> Vec<Note<'c>> {
    let reports = conversion.reports.iter();
    let notes = reports.flat_map(|report| of(report).iter().map(|problem| note(report, problem)));
    notes.collect()
}

fn note<'c>(report: &'c FileReport, problem: &'c Problem) -> Note<'c> {
    Note {
        file: &report.file,
        line: problem.place.map(|place| place.line),
        column: problem.place.map(|place| place.column),
        field: &problem.path,
        message: &problem.message,
        hint: problem.hint.as_deref(),
    }
}

impl View for Converted<'_> {
    fn text(&self, _page: Page) -> String {
        let text = self.domains.iter().map(|domain| match &domain.file {
            Some(file) => {
                let limits = counted(domain.limits, "limit");
                format!("{}: {limits} in domain {}\n", file.display(), domain.domain)
            }
            None => text_of(domain.document),
        });
        text.collect()
    }

    fn names(&self) -> Vec<String> {
        self.domains
            .iter()
            .map(|domain| domain.domain.to_owned())
            .collect()
    }
}
