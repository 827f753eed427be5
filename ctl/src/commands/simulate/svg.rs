//! Timelines as a drawing.

use std::fmt::Write as _;

use super::timeline::Timeline;
use crate::{render::duration, simulate::Report};

/// Stretches of time in a drawing, at most.
const SLOTS_MAX: u64 = 120;
const WIDTH: u64 = 960;
const LEFT: u64 = 64;
const TOP: u64 = 40;
const HEIGHT: u64 = 200;
/// A scenario's part of the drawing: title, chart, axis.
const PART: u64 = TOP + HEIGHT + 48;

/// One chart below the other, admitted under denied.
pub fn draw(report: &Report) -> String {
    let parts = u64::try_from(report.scenarios.len()).unwrap_or(0);
    let height = parts.saturating_mul(PART);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (n, run) in (0_u64..).zip(&report.scenarios) {
        let top = n * PART;
        let timeline = Timeline::of(run, SLOTS_MAX);
        let _ = writeln!(svg, "<g transform=\"translate(0 {top})\">");
        title(&mut svg, &run.id);
        bars(&mut svg, &timeline);
        axes(&mut svg, &timeline);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn title(svg: &mut String, id: &str) {
    let id = escape(id);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{id}</text>"
    );
    for (x, color, word) in [(720, "#2e7d32", "admitted"), (820, "#c62828", "denied")] {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"11\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"20\">{word}</text>",
            x + 16
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
        let both = tall(slot.admitted.saturating_add(slot.denied));
        let mut bar = |tall: u64, bottom: u64, color: &str| {
            if tall > 0 {
                let y = TOP + HEIGHT - bottom - tall;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left}\" y=\"{y}\" width=\"{wide}\" height=\"{tall}\" fill=\"{color}\"/>"
                );
            }
        };
        bar(admitted, 0, "#2e7d32");
        bar(both - admitted, admitted, "#c62828");
    }
}

fn axes(svg: &mut String, timeline: &Timeline) {
    let (right, bottom) = (WIDTH - 16, TOP + HEIGHT);
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"#555\"/>"
    );
    let (highest, below) = (timeline.highest(), bottom + 18);
    let labels = [(TOP + 10, highest.to_string()), (bottom, "0".to_owned())];
    for (y, label) in labels {
        let x = LEFT - 6;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>"
        );
    }
    let slots = u64::try_from(timeline.slots.len()).unwrap_or(0);
    let whole = duration(slots.saturating_mul(timeline.slot_ms));
    let slot = duration(timeline.slot_ms);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{below}\">0</text>\
         <text x=\"{right}\" y=\"{below}\" text-anchor=\"end\">{whole}</text>\
         <text x=\"{}\" y=\"{below}\" text-anchor=\"middle\">units per {slot}</text>",
        u64::midpoint(LEFT, right)
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
