//! How `top` looks.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span as Text},
    widgets::{Cell, Clear, Paragraph, Row, Table},
};

use super::model::{Mode, Model, Sort};
use crate::{activity::Rate, render::counted};

/// Lines that the limits may take, of all: the buckets are what people look at.
const LIMITS_SHARE: u16 = 3;

const HELP: [&str; 11] = [
    "d r n     sort by denied, requests or name",
    "/         filter limits and buckets; Enter keeps, Esc clears it",
    "1 2       over the last 10 s, or the last minute",
    "arrows    move through the buckets; PgUp, PgDn, Home as well",
    "p         pause, and go on",
    "q         quit",
    "",
    "BY says who denied last: limiter, or the proxy itself: deny_cache,",
    "lease, precheck, proxy, local, missing, failure. OVER/S counts what",
    "is over limits that deny nothing. Buckets are the busiest and the",
    "most denied; of the others nothing is known. Any key closes this.",
];

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let limits = model.limits().len();
    let height = frame.area().height;
    let wanted = u16::try_from(limits).unwrap_or(u16::MAX).saturating_add(2);
    let limits_height = wanted.min((height / LIMITS_SHARE).max(3));
    let [title, status, limits, buckets, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(limits_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title_line(model), title);
    frame.render_widget(status_line(model), status);
    draw_limits(frame, model, limits);
    draw_buckets(frame, model, buckets);
    frame.render_widget(keys_line(model), keys);
    if model.mode == Mode::Help {
        draw_help(frame);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn colored(model: &Model, color: Color) -> Style {
    if model.color {
        Style::new().fg(color)
    } else {
        Style::new()
    }
}

fn title_line(model: &Model) -> Line<'static> {
    let mut parts = vec![
        Text::styled(format!("rlctl top  {}", model.domain), bold()),
        Text::raw(format!("  over the last {}", model.span.text())),
    ];
    if model.paused {
        parts.push(Text::styled(
            "  PAUSED",
            bold().patch(colored(model, Color::Yellow)),
        ));
    }
    if model.mode == Mode::Typing || !model.filter.is_empty() {
        let cursor = if model.mode == Mode::Typing { "_" } else { "" };
        parts.push(Text::raw("  filter: "));
        parts.push(Text::styled(format!("{}{cursor}", model.filter), bold()));
    }
    let errors = { model.data.as_ref() }.map_or(0, |data| data.observed.activity.errors);
    if errors > 0 {
        let style = colored(model, Color::Red);
        parts.push(Text::styled(
            format!("  {errors} without a decision"),
            style,
        ));
    }
    Line::from(parts)
}

fn status_line(model: &Model) -> Line<'static> {
    if let Some(error) = &model.error {
        let style = bold().patch(colored(model, Color::Red));
        return Line::styled(error.clone(), style);
    }
    let Some(data) = &model.data else {
        return Line::raw(format!("{}: asking", model.address));
    };
    let hundredths = data.latency_us.div_ceil(10);
    let proxies = if data.proxies == 1 {
        "proxy"
    } else {
        "proxies"
    };
    Line::raw(format!(
        "{} answers in {}.{:02} ms  {}, {} {proxies}",
        model.address,
        hundredths / 100,
        hundredths % 100,
        counted(data.limiters, "limiter"),
        data.proxies,
    ))
}

fn number(rate: Rate) -> Cell<'static> {
    Cell::from(Line::raw(rate.text()).right_aligned())
}

fn header<const N: usize>(model: &Model, cells: [(&'static str, Option<Sort>); N]) -> Row<'static> {
    let sign = if model.unicode { "▼" } else { "v" };
    let cell = |(text, sort): (&str, Option<Sort>)| {
        let by = sort == Some(model.sort);
        let text = if by {
            format!("{text}{sign}")
        } else {
            text.to_owned()
        };
        let right = text.contains("/S") || text == "PROXIES";
        let line = Line::styled(text, bold());
        Cell::from(if right { line.right_aligned() } else { line })
    };
    Row::new(cells.map(cell))
}

fn draw_limits(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let rows = model.limits();
    let denied = colored(model, Color::Red);
    let shown = rows.iter().map(|row| {
        let style = if row.denied > Rate::default() {
            denied
        } else {
            Style::new()
        };
        Row::new([
            Cell::from(row.name.clone()),
            number(row.allowed),
            number(row.denied).style(style),
            number(row.over),
            Cell::from(Line::raw(row.proxies.to_string()).right_aligned()),
        ])
    });
    let widths = [
        Constraint::Min(16),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    let header = header(
        model,
        [
            ("LIMIT", Some(Sort::Name)),
            ("ALLOWED/S", Some(Sort::Requests)),
            ("DENIED/S", Some(Sort::Denied)),
            ("OVER/S", None),
            ("PROXIES", None),
        ],
    );
    frame.render_widget(Table::new(shown, widths).header(header), area);
}

fn draw_buckets(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    model.fits = usize::from(area.height.saturating_sub(1));
    let rows = model.buckets();
    model.offset = model.offset.min(rows.len().saturating_sub(1));
    if rows.is_empty() {
        let why = match (&model.data, model.filter.is_empty()) {
            (None, _) => "",
            (Some(_), true) => "no bucket was asked for",
            (Some(_), false) => "no bucket is like the filter; Esc clears it",
        };
        return frame.render_widget(Paragraph::new(why), area);
    }
    let denied = colored(model, Color::Red);
    let shown = rows.into_iter().skip(model.offset).map(|row| {
        let style = if row.denied > Rate::default() {
            denied
        } else {
            Style::new()
        };
        Row::new([
            Cell::from(row.limit),
            Cell::from(row.bucket),
            number(row.requests),
            number(row.denied).style(style),
            Cell::from(row.by),
            Cell::from(row.request),
        ])
    });
    let widths = [
        Constraint::Length(14),
        Constraint::Fill(3),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Fill(4),
    ];
    let header = header(
        model,
        [
            ("LIMIT", Some(Sort::Name)),
            ("BUCKET", None),
            ("REQ/S", Some(Sort::Requests)),
            ("DENIED/S", Some(Sort::Denied)),
            ("BY", None),
            ("LAST REQUEST DENIED", None),
        ],
    );
    frame.render_widget(Table::new(shown, widths).header(header), area);
}

fn keys_line(model: &Model) -> Line<'static> {
    let text = if model.mode == Mode::Typing {
        "type to filter; Enter keeps, Esc clears"
    } else {
        "q quit  d r n sort  / filter  1 2 time  p pause  ? help"
    };
    Line::styled(text, Style::new().add_modifier(Modifier::DIM))
}

fn draw_help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let lines = u16::try_from(HELP.len()).unwrap_or(u16::MAX);
    let area = Rect {
        y: area.y.saturating_add(2).min(area.bottom()),
        height: lines.min(area.height.saturating_sub(2)),
        ..area
    };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP.map(Line::raw).to_vec()), area);
}

#[cfg(test)]
mod tests;
