//! Timelines as a drawing.

use std::{fmt::Write as _, ops::Range};

use super::timeline::{Timeline, round_up};
use crate::{render::duration, simulate::Report};

/// The most time slots in a drawing.
const SLOTS_MAX: u64 = 120;
const WIDTH: u64 = 960;
const LEFT: u64 = 64;
const TOP: u64 = 40;
const HEIGHT: u64 = 120;
/// The most lines across a chart.
const LINES_MAX: u64 = 12;
// Distinguishable by lightness too.
const ADMITTED: &str = "#2e7d32";
const HELD: &str = "#1e88e5";
const DENIED: &str = "#ef9a9a";
/// A scenario's part of the drawing: title, chart, axis.
const PART: u64 = TOP + HEIGHT + 48;

/// One chart below the other; admitted requests are drawn below denied ones. `during` is the time
/// range of the traffic, in milliseconds.
pub fn draw(report: &Report, during: Option<&Range<u64>>) -> String {
    let parts = u64::try_from(report.scenarios.len()).unwrap_or(0);
    let height = parts.saturating_mul(PART);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (n, run) in (0_u64..).zip(&report.scenarios) {
        let top = n * PART;
        let timeline = Timeline::of(run, during, SLOTS_MAX);
        let _ = writeln!(svg, "<g transform=\"translate(0 {top})\">");
        title(&mut svg, &run.id, &timeline);
        lines(&mut svg, &timeline);
        bars(&mut svg, &timeline);
        axes(&mut svg, &timeline);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn title(svg: &mut String, id: &str, timeline: &Timeline) {
    let (id, summary) = (escape(id), timeline.summary());
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\"><tspan font-weight=\"bold\">{id}</tspan>: \
         {summary}</text>"
    );
    let held = timeline.holds().then_some((790, HELD, "held"));
    let words = [(700, ADMITTED, "admitted"), (860, DENIED, "denied")];
    for (x, color, word) in words.into_iter().chain(held) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"11\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"20\">{word}</text>",
            x + 16
        );
    }
}

/// A line and its time at round intervals.
fn lines(svg: &mut String, timeline: &Timeline) {
    let slots = u64::try_from(timeline.slots.len()).unwrap_or(0);
    let whole_ms = slots.saturating_mul(timeline.slot_ms).max(1);
    let every_ms = round_up(whole_ms.div_ceil(LINES_MAX));
    let (bottom, below) = (TOP + HEIGHT, TOP + HEIGHT + 18);
    for n in 0..=whole_ms / every_ms {
        let at_ms = n * every_ms;
        let along = u128::from(WIDTH - LEFT - 16) * u128::from(at_ms) / u128::from(whole_ms);
        let x = LEFT + u64::try_from(along).unwrap_or(0);
        let at = duration(at_ms);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x}\" y=\"{below}\" text-anchor=\"middle\">{at}</text>"
        );
    }
}

fn bars(svg: &mut String, timeline: &Timeline) {
    let slots = u64::try_from(timeline.slots.len()).unwrap_or(1).max(1);
    let highest = timeline.highest().max(1);
    let tall = |units: u64| {
        let tall = u128::from(units) * u128::from(HEIGHT) / u128::from(highest);
        u64::try_from(tall).unwrap_or(HEIGHT)
    };
    let x = |n: u64| LEFT + (WIDTH - LEFT - 16) * n / slots;
    for (n, slot) in (0_u64..).zip(&timeline.slots) {
        let (left, wide) = (x(n), (x(n + 1) - x(n)).max(2) - 1);
        let admitted = tall(slot.admitted);
        let passed = tall(slot.admitted.saturating_add(slot.held));
        let all = tall(slot.units());
        let mut bar = |tall: u64, bottom: u64, color: &str| {
            if tall > 0 {
                let y = TOP + HEIGHT - bottom - tall;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\" fill=\"{color}\"/>"
                );
            }
        };
        bar(admitted, 0, ADMITTED);
        bar(passed - admitted, admitted, HELD);
        bar(all - passed, passed, DENIED);
    }
}

fn axes(svg: &mut String, timeline: &Timeline) {
    let (right, bottom) = (WIDTH - 16, TOP + HEIGHT);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#555\"/>"
    );
    let labels = [
        (TOP + 10, timeline.highest().to_string()),
        (bottom, "0".to_owned()),
    ];
    for (y, label) in labels {
        let x = LEFT - 6;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>"
        );
    }
    let slot = duration(timeline.slot_ms);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">units per {slot}</text>",
        u64::midpoint(LEFT, right),
        bottom + 36
    );
}

/// Text as XML has it.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
