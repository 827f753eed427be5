//! Figures of all rounds, compared, and whether they are within the budgets.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::setups::{Answers, Block, Row, Run};
use crate::wasm::kilobytes;

/// What the rounds of one run of the benchmark measured.
#[derive(Default)]
pub struct Report {
    pub blocks: Vec<(Block, Vec<Series>)>,
    figures: Vec<Figure>,
}

/// The runs of one row, one per round; of a reference, one beside each other row.
#[derive(Default, Clone)]
pub struct Series {
    runs: Vec<Run>,
    /// Each run with its reference's, directly before or after it.
    pairs: Vec<[Run; 2]>,
}

/// One number, as every round measured it.
struct Figure {
    name: String,
    unit: Unit,
    rounds: Vec<u64>,
    goal: Goal,
}

#[derive(Debug, Clone, Copy)]
pub enum Unit {
    Count,
    PerSecond,
    Nanos,
    Micros,
    Millis,
    /// A ratio.
    Thousandths,
    Bytes,
}

/// What the median of a figure is to be.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    None,
    AtLeast(u64),
    AtMost(u64),
}

impl Unit {
    fn text(self, value: u64) -> String {
        match self {
            Self::Count => value.to_string(),
            Self::PerSecond => format!("{value}/s"),
            Self::Nanos => format!("{}.{} us", value / 1000, value % 1000 / 100),
            Self::Micros => format!("{}.{:02} ms", value / 1000, value % 1000 / 10),
            Self::Millis => format!("{value} ms"),
            Self::Thousandths => format!("{}.{:02}", value / 1000, value % 1000 / 10),
            Self::Bytes => kilobytes(value),
        }
    }
}

impl Goal {
    fn text(self, unit: Unit) -> String {
        match self {
            Self::None => String::new(),
            Self::AtLeast(value) => format!(">= {}", unit.text(value)),
            Self::AtMost(value) => format!("<= {}", unit.text(value)),
        }
    }

    fn verdict(self, value: u64) -> &'static str {
        match self {
            Self::None => "",
            Self::AtLeast(least) if value < least => "missed",
            Self::AtMost(most) if value > most => "missed",
            _ => "met",
        }
    }
}

impl Report {
    /// A report without a round.
    pub fn from_blocks(blocks: &[Block]) -> Self {
        let empty = |block: &Block| (*block, vec![Series::default(); block.rows.len()]);
        Self {
            blocks: blocks.iter().map(empty).collect(),
            figures: Vec::new(),
        }
    }

    /// Adds a round of a row, and of the reference beside it.
    pub fn push(&mut self, block: usize, row: &Row, own: Run, reference: Run) {
        let Some((block, all)) = self.blocks.get_mut(block) else {
            return;
        };
        for (other, series) in block.rows.iter().zip(all) {
            if other.name == row.name {
                series.runs.push(own);
                series.pairs.push([own, reference]);
            } else if other.name == row.reference {
                series.runs.push(reference);
            }
        }
    }

    /// Adds a round of a figure.
    pub fn figure(&mut self, name: &str, unit: Unit, goal: Goal, value: u64) {
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.rounds.push(value),
            None => self.figures.push(Figure {
                name: name.to_owned(),
                unit,
                rounds: vec![value],
                goal,
            }),
        }
    }

    /// As text.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (block, series) in &self.blocks {
            rates(&mut table, block, series);
            cpu(&mut table, block, series);
        }
        if !self.figures.is_empty() {
            table += "\n";
            write_row(&mut table, ["", "median", "least", "to be", "", "", ""]);
        }
        for Figure {
            name,
            unit,
            rounds,
            goal,
        } in &self.figures
        {
            let median = median(rounds.clone());
            let least = rounds.iter().copied().min().unwrap_or(0);
            write_row(
                &mut table,
                [
                    name,
                    &unit.text(median),
                    &unit.text(least),
                    &goal.text(*unit),
                    goal.verdict(median),
                    "",
                    "",
                ],
            );
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        table += "\nMedians; ratios are of pairs of runs right after one another. Other load on the machine\n";
        table += "only adds to CPU time, so the least of it is the best estimate.";
        // Writing to a String cannot fail.
        let _ = writeln!(table, " {cores} cores for all programs.");
        table
    }

    /// As JSON.
    pub fn json(&self) -> String {
        let row = |block: &Block, row: &Row, series: &Series| {
            let cpu = |n| series.each(|run| run.cpu_ns.get(n).copied().unwrap_or(0));
            json!({
                "name": row.name,
                "reference": row.reference,
                "answers": format!("{:?}", block.answers),
                "workers": block.workers,
                "connections": block.connections,
                "requests_per_second": series.each(|run| run.sample.per_second),
                "p50_us": series.each(|run| run.sample.p50_us),
                "p99_us": series.each(|run| run.sample.p99_us),
                "of_reference_permille": series.ratios(|run| run.sample.per_second),
                "cpu_ns_per_request": {"envoy": cpu(0), "limiters": cpu(1), "redis": cpu(2)},
                "script_calls_per_million": series.each(|run| run.calls),
            })
        };
        let rows = self.blocks.iter().flat_map(|(block, all)| {
            { block.rows.iter().zip(all) }.map(move |(name, series)| row(block, name, series))
        });
        let figures = self.figures.iter().map(|figure| {
            let Figure {
                name, unit, rounds, ..
            } = figure;
            json!({"name": name, "unit": format!("{unit:?}"), "rounds": rounds})
        });
        let (rows, figures): (Vec<Value>, Vec<Value>) = (rows.collect(), figures.collect());
        format!("{:#}\n", json!({"setups": rows, "figures": figures}))
    }
}

impl Series {
    fn each(&self, figure: impl Fn(&Run) -> u64) -> Vec<u64> {
        self.runs.iter().map(figure).collect()
    }

    /// A figure as thousandths of the reference's, pair by pair.
    fn ratios(&self, figure: impl Fn(&Run) -> u64) -> Vec<u64> {
        let pairs = self.pairs.iter();
        pairs
            .filter_map(|[own, reference]| (figure(own) * 1000).checked_div(figure(reference)))
            .collect()
    }

    fn cpu_ns(&self, process: usize) -> Vec<u64> {
        self.each(|run| run.cpu_ns.get(process).copied().unwrap_or(0))
    }
}

/// Requests per second and their latencies, and the share of the reference's requests.
fn rates(table: &mut String, block: &Block, all: &[Series]) {
    let answers = match block.answers {
        Answers::Envoy => "Envoy answers itself",
        Answers::Service => "a service behind Envoy",
        Answers::Model => "a model behind Envoy",
    };
    let Block {
        workers,
        connections,
        ..
    } = block;
    let _ = writeln!(
        table,
        "\n{answers}; workers: {workers}, connections: {connections}"
    );
    let head = ["", "requests", "p50", "p99", "ratio", "spread", "to be"];
    write_row(table, head);
    for (row, series) in block.rows.iter().zip(all) {
        let of = |figure: fn(&Run) -> u64| median(series.each(figure));
        let ratios = series.ratios(|run| run.sample.per_second);
        let [least, most] = [ratios.iter().min(), ratios.iter().max()]
            .map(|value| Unit::Thousandths.text(value.copied().unwrap_or(0)));
        let [itself, before] = row.goals;
        let goal = match if block.answers == Answers::Envoy {
            itself
        } else {
            before
        } {
            0 => Goal::None,
            goal => Goal::AtLeast(goal),
        };
        let ratio = median(ratios);
        let is_reference = row.name == row.reference;
        let cell = |text: String| if is_reference { String::new() } else { text };
        write_row(
            table,
            [
                row.name,
                &Unit::PerSecond.text(of(|run| run.sample.per_second)),
                &Unit::Micros.text(of(|run| run.sample.p50_us)),
                &Unit::Micros.text(of(|run| run.sample.p99_us)),
                &cell(Unit::Thousandths.text(ratio)),
                &cell(format!("{least}–{most}")),
                &format!("{} {}", goal.text(Unit::Thousandths), goal.verdict(ratio)),
            ],
        );
    }
}

/// The CPU time of each process per request, and Redis's script calls per thousand requests.
fn cpu(table: &mut String, block: &Block, all: &[Series]) {
    let head = [
        "CPU per request",
        "Envoy",
        "limiters",
        "Redis",
        "ratio",
        "Envoy least",
        "calls/k",
    ];
    write_row(table, head);
    let least = |series: &Series| series.cpu_ns(0).into_iter().min().unwrap_or(0);
    for (row, series) in block.rows.iter().zip(all) {
        let [envoy, limiters, redis] =
            [0, 1, 2].map(|n| Unit::Nanos.text(median(series.cpu_ns(n))));
        let rows = block.rows.iter().zip(all);
        let mut reference = rows.filter(|(other, _)| other.name == row.reference);
        let reference = reference.next().map_or(0, |(_, series)| least(series));
        let ratio = (least(series) * 1000).checked_div(reference).unwrap_or(0);
        let calls = median(series.each(|run| run.calls));
        write_row(
            table,
            [
                row.name,
                &envoy,
                &limiters,
                &redis,
                &Unit::Thousandths.text(ratio),
                &Unit::Nanos.text(least(series)),
                &Unit::Thousandths.text(calls),
            ],
        );
    }
}

fn write_row(table: &mut String, cells: [&str; 7]) {
    const WIDTHS: [usize; 7] = [36, 10, 10, 10, 10, 13, 15];
    let mut row = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        // The first is to the left, the numbers are to the right.
        let _ = if row.is_empty() {
            write!(row, "{cell:<width$}")
        } else {
            write!(row, "{cell:>width$}")
        };
    }
    let _ = writeln!(table, "{}", row.trim_end());
}

pub fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
