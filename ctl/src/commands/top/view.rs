//! How `top` looks.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span as Text},
    widgets::{Cell, Clear, Paragraph, Row, Table},
};

use super::{LimitRow, List, Mode, Model, Sort};
use crate::{commands::stats::Rate, render::counted};

/// The limits get at least 1/3 of the lines if there are more buckets than fit: buckets are what
/// people look at.
const LIMITS_SHARE: u16 = 3;

const HELP: [&str; 13] = [
    "d r n     sort by denied, requests or name",
    "/         filter limits and buckets; Enter keeps, Esc clears it",
    "1 2 3 4   over the last 10 s, minute, hour, or 24 h",
    "arrows    move through the buckets; PgUp, PgDn, Home, End as well",
    "Enter     open the selected bucket, as `rlctl inspect` shows it; Esc closes it",
    "Tab       move through the limits instead, and back",
    "p         pause, and go on",
    "q         quit",
    "",
    "BY is what denied last: limiter, or in the proxy: deny_cache,",
    "lease, precheck, proxy, local, missing, failure. OVER/S counts what",
    "is over limits that deny nothing. Buckets are the top-k by checks",
    "and by denials, not all there are. Any key closes this.",
];

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let lines =
        |rows: usize, more: u16| u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(more);
    let room = frame.area().height.saturating_sub(3);
    // A header and an empty line. The limits get the lines that the buckets leave.
    let wanted = lines(model.limits().len(), 2);
    let left = room.saturating_sub(lines(model.buckets().len().max(1), 1));
    let limits_height = wanted.min(left.max(room / LIMITS_SHARE).max(3));
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
    match (model.mode, &model.opened) {
        (Mode::Help, _) => draw_over(frame, HELP.map(Line::raw).to_vec()),
        (Mode::Open, Some((_, text))) => {
            let text = text.as_deref().unwrap_or("asking");
            let lines = text.lines().map(|line| Line::raw(line.to_owned()));
            let more = [Line::raw(""), Line::raw("Esc closes this.")];
            draw_over(frame, lines.chain(more).collect());
        }
        _ => {}
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

fn header(model: &Model, column: &Column) -> Cell<'static> {
    let sign = if model.unicode { "▼" } else { "v" };
    let title = &column.title;
    let text = if column.sort == Some(model.sort) {
        format!("{title}{sign}")
    } else {
        title.clone()
    };
    let right = text.contains("/S") || ["PROXIES", "PENALTIES", "IN USE"].contains(&text.as_str());
    let line = Line::styled(text, bold());
    Cell::from(if right { line.right_aligned() } else { line })
}

fn draw_limits(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    // The last line is empty.
    model.limits_fit = usize::from(area.height.saturating_sub(2));
    let rows = model.limits();
    let last = rows.len().saturating_sub(model.limits_fit);
    model.limits_offset = model.limits_offset.min(last);
    let denied = colored(model, Color::Red);
    let shown = rows.iter().skip(model.limits_offset).take(model.limits_fit);
    let shown = shown.map(|row| {
        let style = if row.denied > Rate::default() {
            denied
        } else {
            Style::new()
        };
        vec![
            Cell::from(row.name.clone()),
            number(row.allowed),
            number(row.denied).style(style),
            number(row.over),
            number(row.costs),
            number(row.slots),
            Cell::from(Line::raw(row.in_use.clone().unwrap_or_default()).right_aligned()),
            Cell::from(Line::raw(row.penalties.to_string()).right_aligned()),
            Cell::from(Line::raw(row.proxies.to_string()).right_aligned()),
        ]
    });
    // Most domains have no such limits.
    let has = |of: &dyn Fn(&LimitRow) -> bool| rows.iter().any(of);
    let if_any = |any: bool, order: usize| if any { order } else { NEVER };
    let costs = if_any(has(&|row| row.costs > Rate::default()), 4);
    let slots = if_any(has(&|row| row.slots > Rate::default()), 5);
    let in_use = if_any(has(&|row| row.in_use.is_some()), 4);
    let penalties = if_any(has(&|row| row.penalties > 0), 6);
    let limit = part_of("LIMIT", rows.len(), model.limits_fit, model.limits_offset);
    let columns = [
        Column::new(limit, Some(Sort::Name), 0, Constraint::Min(12)),
        Column::new("ALLOWED/S", Some(Sort::Requests), 2, Constraint::Length(10)),
        Column::new("DENIED/S", Some(Sort::Denied), 1, Constraint::Length(10)),
        Column::new("OVER/S", None, 3, Constraint::Length(8)),
        Column::new("COST/S", None, costs, Constraint::Length(9)),
        Column::new("SLOTS/S", None, slots, Constraint::Length(8)),
        Column::new("IN USE", None, in_use, Constraint::Length(13)),
        Column::new("PENALTIES", None, penalties, Constraint::Length(9)),
        Column::new("PROXIES", None, 7, Constraint::Length(8)),
    ];
    table(frame, model, area, &columns, shown, None);
}

/// `LIMIT 10-18 of 40`, where not all are shown.
fn part_of(what: &str, rows: usize, fit: usize, offset: usize) -> String {
    if rows <= fit {
        return what.to_owned();
    }
    let (first, last) = (offset + 1, offset + fit.min(rows));
    format!("{what} {first}-{last} of {rows}")
}

/// A column and its importance: 0 is dropped last if there is no room.
struct Column {
    title: String,
    sort: Option<Sort>,
    order: usize,
    width: Constraint,
}

impl Column {
    fn new(title: impl Into<String>, sort: Option<Sort>, order: usize, width: Constraint) -> Self {
        Self {
            title: title.into(),
            sort,
            order,
            width,
        }
    }

    /// The least width, with the gap after it.
    fn least(&self) -> u16 {
        match self.width {
            Constraint::Length(width) | Constraint::Min(width) => width.saturating_add(1),
            // Such columns share the remaining width in proportion to their parts.
            Constraint::Fill(part) => part.saturating_mul(FILLED_MIN).saturating_add(1),
            _ => 1,
        }
    }
}

/// The order of a column that is not shown.
const NEVER: usize = usize::MAX;

/// The least width of each part of a column that takes the rest.
const FILLED_MIN: u16 = 5;

/// A table with as many columns as fit: a truncated column would be misread.
fn table<'a>(
    frame: &mut Frame<'_>,
    model: &Model,
    area: Rect,
    columns: &[Column],
    rows: impl Iterator<Item = Vec<Cell<'a>>>,
    selected: Option<usize>,
) {
    let mut by_order: Vec<usize> = (0..columns.len()).collect();
    by_order.sort_by_key(|at| columns.get(*at).map(|column| column.order));
    let mut room = area.width.saturating_add(1);
    let order = |at: &usize| columns.get(*at).map_or(NEVER, |column| column.order);
    let wanted = by_order.into_iter().filter(|at| order(at) != NEVER);
    let fitting = wanted.take_while(|at| {
        let least = columns.get(*at).map_or(0, Column::least);
        let fits = least <= room;
        room = room.saturating_sub(least);
        fits
    });
    let mut shown: Vec<usize> = fitting.collect();
    // At least one column is shown.
    if shown.is_empty() {
        shown.push(0);
    }
    shown.sort_unstable();
    let kept = |at: &usize| shown.contains(at);
    let rows = rows.enumerate().map(|(n, cells)| {
        let cells = cells.into_iter().enumerate();
        let row = Row::new(cells.filter(|(at, _)| kept(at)).map(|(_, cell)| cell));
        if selected == Some(n) {
            row.style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            row
        }
    });
    let columns: Vec<&Column> = shown.iter().filter_map(|at| columns.get(*at)).collect();
    let widths = columns.iter().map(|column| column.width);
    let header = Row::new(columns.iter().map(|column| header(model, column)));
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

fn draw_buckets(frame: &mut Frame<'_>, model: &mut Model, area: Rect) {
    model.fits = usize::from(area.height.saturating_sub(1));
    let rows = model.buckets();
    model.keep_selected_in_sight(rows.len());
    if rows.is_empty() {
        let why = match (&model.data, model.filter.is_empty()) {
            (None, _) => "",
            (Some(_), true) => "no bucket was checked",
            (Some(_), false) => "no bucket matches the filter; Esc clears it",
        };
        return frame.render_widget(Paragraph::new(why), area);
    }
    let denied = colored(model, Color::Red);
    let bucket = part_of("BUCKET", rows.len(), model.fits, model.offset);
    let shown = rows.into_iter().skip(model.offset).take(model.fits);
    let shown = shown.map(|row| {
        let style = if row.enforced && row.denied > Rate::default() {
            denied
        } else {
            Style::new()
        };
        vec![
            Cell::from(row.limit),
            Cell::from(row.bucket),
            number(row.requests),
            number(row.denied).style(style),
            Cell::from(row.by),
            Cell::from(row.request),
        ]
    });
    let columns = [
        Column::new("LIMIT", Some(Sort::Name), 3, Constraint::Length(14)),
        Column::new(bucket, None, 0, Constraint::Fill(3)),
        Column::new("REQ/S", Some(Sort::Requests), 2, Constraint::Length(7)),
        Column::new("DENIED/S", Some(Sort::Denied), 1, Constraint::Length(9)),
        Column::new("BY", None, 4, Constraint::Length(10)),
        Column::new("LAST REQUEST DENIED", None, 5, Constraint::Fill(4)),
    ];
    let selected = model.selected.checked_sub(model.offset);
    let selected = selected.filter(|_| model.moved() == List::Buckets);
    table(frame, model, area, &columns, shown, selected);
}

fn keys_line(model: &Model) -> Line<'static> {
    let text = if model.mode == Mode::Typing {
        "type to filter; Enter keeps, Esc clears"
    } else {
        "q quit  ? help  Enter open  d r n sort  / filter  1-4 time  p pause  Tab limits"
    };
    Line::styled(text, Style::new().add_modifier(Modifier::DIM))
}

/// Draws lines over the lists.
fn draw_over(frame: &mut Frame<'_>, text: Vec<Line<'_>>) {
    let area = frame.area();
    let lines = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let area = Rect {
        y: area.y.saturating_add(2).min(area.bottom()),
        height: lines.min(area.height.saturating_sub(2)),
        ..area
    };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text), area);
}

#[cfg(test)]
mod tests;
