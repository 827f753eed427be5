//! What a simulation found, as tables and charts.

use std::{fmt::Write as _, ops::Range};

use anstyle::{AnsiColor, Style};
use serde::{Serialize, Serializer};

use super::timeline::Timeline;
use crate::{
    bucket::visible,
    render::{self, Page, Table, counted, duration},
    simulate::{Answer, Report, Run},
};

const SAME: Style = AnsiColor::Green.on_default();
const DIFFERENT: Style = AnsiColor::Red.on_default().bold();
/// The most time slots of a chart in text.
const SLOTS_MAX: u64 = 25;
/// Differences of one scenario that are listed.
const DIFFERENCES_SHOWN: usize = 10;

/// A report, and how it is shown.
#[derive(Debug)]
pub struct View {
    pub report: Report,
    /// The span of generated steps, in milliseconds: these are charted, not listed.
    pub traffic_ms: Option<Range<u64>>,
}

impl Serialize for View {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.report.serialize(serializer)
    }
}

impl render::View for View {
    fn text(&self, page: Page) -> String {
        if let Some(during) = &self.traffic_ms {
            return self
                .report
                .scenarios
                .iter()
                .map(|run| chart(run, during, page))
                .collect();
        }
        let tables = page.wide || self.report.scenarios.len() == 1;
        let mut text = String::new();
        for run in &self.report.scenarios {
            text.push_str(&heading(run));
            if tables {
                text.push_str(&table(run, page));
            }
            text.push_str(&differences(run));
        }
        let different = self
            .report
            .scenarios
            .iter()
            .filter(|run| !run.differences.is_empty())
            .count();
        let count = counted(self.report.scenarios.len(), "scenario");
        let _ = match different {
            0 => writeln!(text, "{count}: as expected"),
            n => writeln!(text, "{count}: {n} not as expected"),
        };
        text
    }

    /// The scenarios with differences.
    fn names(&self) -> Vec<String> {
        let different = self
            .report
            .scenarios
            .iter()
            .filter(|run| !run.differences.is_empty());
        different.map(|run| run.id.clone()).collect()
    }
}

fn heading(run: &Run) -> String {
    let (style, word) = if run.differences.is_empty() {
        (SAME, "ok")
    } else {
        (DIFFERENT, "different")
    };
    let steps = counted(run.steps.len(), "step");
    format!(
        "{style}{word}{style:#}  {}  ({steps})\n",
        visible(run.id.as_bytes())
    )
}

fn differences(run: &Run) -> String {
    let mut text = String::new();
    for found in run.differences.iter().take(DIFFERENCES_SHOWN) {
        let (step, field) = (found.step, &found.field);
        let (expected, actual) = (found.expected.to_yaml_line(), found.actual.to_yaml_line());
        let _ = writeln!(
            text,
            "    step {step}: {field}: expected {expected}, got {actual}"
        );
    }
    let more = run.differences.len().saturating_sub(DIFFERENCES_SHOWN);
    if more > 0 {
        let _ = writeln!(text, "    and {}", counted(more, "more difference"));
    }
    text
}

fn table(run: &Run, page: Page) -> String {
    let first = run
        .requests
        .iter()
        .flatten()
        .map(|(at, _)| *at)
        .min()
        .unwrap_or(0);
    let mut table = Table::new([
        "STEP", "TIME", "COST", "DECISION", "LEFT", "WAIT", "RETRY IN", "FULL IN",
    ]);
    for (n, (answer, request)) in run.steps.iter().zip(&run.requests).enumerate() {
        let since = request.map(|(at, _)| format!("+{}", duration(at - first)));
        let Some((answer, (_, cost))) = answer.as_ref().zip(*request) else {
            let what = since.as_ref().map_or("limits edited", |_| "client left");
            let since = since.as_deref().unwrap_or_default();
            let row = [since, "", what, "", "", "", ""].map(ToOwned::to_owned);
            table.row([n.to_string()].into_iter().chain(row));
            continue;
        };
        let (row, since) = (row(answer), since.unwrap_or_default());
        table.row(
            [n.to_string(), since, cost.to_string()]
                .into_iter()
                .chain(row),
        );
    }
    table.draw(page)
}

fn row(answer: &Answer) -> [String; 5] {
    let decision = if answer.given_back.is_some() {
        settled(answer)
    } else if answer.allowed {
        "allowed".to_owned()
    } else {
        format!("denied by {}", answer.denied_by.join(", "))
    };
    let again = match (answer.allowed, answer.retry_after_ms) {
        (true, _) => String::new(),
        (false, Some(ms)) => duration(ms),
        (false, None) => "never".to_owned(),
    };
    [
        decision,
        answer.remaining.map(|n| n.to_string()).unwrap_or_default(),
        answer
            .delay_ms
            .filter(|ms| *ms > 0)
            .map(duration)
            .unwrap_or_default(),
        again,
        duration(answer.reset_after_ms),
    ]
}

/// What a settlement did.
fn settled(answer: &Answer) -> String {
    let units = |count: Option<u64>, what: &str| {
        let count = count.filter(|count| *count > 0)?;
        Some(format!("{count} {what}"))
    };
    let (back, excess) = (
        units(answer.given_back, "given back"),
        units(answer.excess, "beyond the reserve"),
    );
    let done: Vec<String> = [back, excess].into_iter().flatten().collect();
    if done.is_empty() {
        return "settled".to_owned();
    }
    format!("settled: {}", done.join(", "))
}

fn chart(run: &Run, during: &Range<u64>, page: Page) -> String {
    let timeline = Timeline::of(run, Some(during), SLOTS_MAX);
    let id = visible(run.id.as_bytes());
    format!("{id}: {}\n{}", timeline.summary(), timeline.text(page))
}
