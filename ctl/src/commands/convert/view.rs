//! What a conversion prints.

use std::path::PathBuf;

use migration::{Conversion, Domain, FileReport};
use policy::{Node, Problem};
use serde::Serialize;

use crate::render::{Page, View, counted};

#[derive(Serialize)]
pub(super) struct Converted<'c> {
    domains: Vec<Written<'c>>,
    /// Rules that mean something else after the conversion.
    changed: Vec<Note<'c>>,
    /// What a limits file cannot express.
    lost: Vec<Note<'c>>,
}

#[derive(Serialize)]
struct Written<'c> {
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
        let written = |domain: &'c Domain| Written {
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
            None => domain.document.to_yaml(),
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
