//! The state of `top`, and how keys change it.

use std::{cmp::Reverse, collections::BTreeMap};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use policy::Name;
use protocol::Outcome;
use store::{ActivitySummary, BucketActivity, LimitActivity};

use crate::{
    activity::{Rate, Span, bucket_text, denial_rank, request_text},
    bucket::Values,
    error::Error,
};

/// The longest filter.
const FILTER_MAX: usize = 64;

/// The result of one poll.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) limits: Vec<Name>,
    pub(super) observed: ActivitySummary,
    /// Proxies that share each limit.
    pub(super) sharing: BTreeMap<Name, u64>,
    pub(super) limiters: usize,
    pub(super) proxies: usize,
    pub(super) latency_us: u64,
}

/// The sort order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Denied,
    Requests,
    Name,
}

/// The list that the arrow keys move through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Limits,
    Buckets,
}

/// How keys are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Watching,
    /// Keys edit the filter.
    Typing,
    /// Any key closes the help.
    Help,
    /// One bucket is open; Esc closes it.
    Open,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Stay,
    /// Poll again at once.
    Look,
    /// Look at the selected bucket.
    Open,
    Quit,
    Interrupt,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) domain: String,
    pub(super) address: String,
    pub(super) span: Span,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) paused: bool,
    /// The list that the arrows move through.
    pub(super) list: List,
    /// The first bucket shown.
    pub(super) offset: usize,
    /// The bucket that Enter opens.
    pub(super) selected: usize,
    /// The bucket that is open, and its state as text, once that was read.
    pub(super) opened: Option<(Bucket, Option<String>)>,
    /// Buckets that fit, as of the last drawing.
    pub(super) fits: usize,
    /// The same of limits.
    pub(super) limits_offset: usize,
    pub(super) limits_fit: usize,
    pub(super) data: Option<Data>,
    /// Why the last poll failed.
    pub(super) error: Option<String>,
    pub(super) color: bool,
    pub(super) unicode: bool,
}

/// One limit as it is shown.
#[derive(Debug)]
pub(super) struct LimitRow {
    pub(super) name: String,
    pub(super) allowed: Rate,
    pub(super) denied: Rate,
    /// Requests over limits that deny nothing.
    pub(super) over: Rate,
    /// Units that responses cost.
    pub(super) costs: Rate,
    /// Slots that requests took.
    pub(super) slots: Rate,
    /// Penalties that began.
    pub(super) penalties: u64,
    pub(super) proxies: u64,
}

/// A limit, and the values of its `per`.
pub(super) type Bucket = (Name, Values);

/// One bucket as it is shown.
#[derive(Debug)]
pub(super) struct BucketRow {
    pub(super) key: Bucket,
    pub(super) limit: String,
    pub(super) bucket: String,
    pub(super) requests: Rate,
    pub(super) denied: Rate,
    /// Whether it denies, and does not only report what it would deny.
    pub(super) enforced: bool,
    pub(super) by: &'static str,
    pub(super) request: String,
}

impl Model {
    pub(super) fn new(domain: &Name, address: &str, span: Span, filter: &str) -> Self {
        Self {
            domain: domain.to_string(),
            address: address.to_owned(),
            span,
            sort: Sort::Denied,
            filter: filter.chars().take(FILTER_MAX).collect(),
            mode: Mode::Watching,
            paused: false,
            list: List::Buckets,
            offset: 0,
            selected: 0,
            opened: None,
            fits: 0,
            limits_offset: 0,
            limits_fit: 0,
            data: None,
            error: None,
            color: true,
            unicode: true,
        }
    }

    /// Takes over the result of a poll; after a failed one the earlier result stays.
    pub(super) fn show(&mut self, looked: Result<Data, Error>) {
        match looked {
            Ok(data) => {
                self.error = None;
                self.data = Some(data);
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return Action::Interrupt;
        }
        if self.mode == Mode::Typing {
            self.type_in(key.code);
            return Action::Stay;
        }
        if self.mode == Mode::Help {
            self.mode = Mode::Watching;
            return Action::Stay;
        }
        if self.mode == Mode::Open {
            if matches!(key.code, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q')) {
                self.mode = Mode::Watching;
                self.opened = None;
            }
            return Action::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('d') => self.sort = Sort::Denied,
            KeyCode::Char('r') => self.sort = Sort::Requests,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('/') => self.mode = Mode::Typing,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p') => {
                self.paused = !self.paused;
                return Action::Look;
            }
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('1') => return self.look_back(Span::TenSeconds),
            KeyCode::Char('2') => return self.look_back(Span::Minute),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1, true),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(1, false),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll(self.page(), true),
            KeyCode::PageUp => self.scroll(self.page(), false),
            KeyCode::Home => self.scroll(usize::MAX, false),
            KeyCode::End => self.scroll(usize::MAX, true),
            KeyCode::Enter => return self.open(),
            KeyCode::Tab => {
                self.list = match self.moved() {
                    List::Limits => List::Buckets,
                    List::Buckets => List::Limits,
                }
            }
            _ => {}
        }
        Action::Stay
    }

    fn open(&mut self) -> Action {
        let rows = self.buckets();
        let row = rows.into_iter().nth(self.selected);
        let Some(row) = row.filter(|_| self.moved() == List::Buckets) else {
            return Action::Stay;
        };
        self.mode = Mode::Open;
        self.opened = Some((row.key, None));
        Action::Open
    }

    /// Takes over the state of the bucket that is open, unless another one is.
    pub(super) fn show_opened(&mut self, of: &Bucket, read: Result<String, Error>) {
        if let Some((bucket, text)) = &mut self.opened
            && bucket == of
        {
            *text = Some(read.unwrap_or_else(|error| error.to_string()));
        }
    }

    fn look_back(&mut self, span: Span) -> Action {
        self.span = span;
        Action::Look
    }

    fn type_in(&mut self, key: KeyCode) {
        (self.offset, self.selected, self.limits_offset) = (0, 0, 0);
        match key {
            KeyCode::Enter => self.mode = Mode::Watching,
            KeyCode::Esc => {
                self.mode = Mode::Watching;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    /// The list that keys move through: where there are no buckets, the limits.
    pub(super) fn moved(&self) -> List {
        let no_bucket = self.data.as_ref();
        let no_bucket = no_bucket.is_none_or(|data| data.observed.activity.buckets.is_empty());
        if no_bucket { List::Limits } else { self.list }
    }

    fn page(&self) -> usize {
        match self.moved() {
            List::Limits => self.limits_fit.max(1),
            List::Buckets => self.fits.max(1),
        }
    }

    fn scroll(&mut self, by: usize, down: bool) {
        let moved = |at: usize, last: usize| {
            if down {
                at.saturating_add(by).min(last)
            } else {
                at.saturating_sub(by)
            }
        };
        match self.moved() {
            List::Limits => {
                let last = self.limits().len().saturating_sub(self.limits_fit);
                self.limits_offset = moved(self.limits_offset, last);
            }
            List::Buckets => {
                self.selected = moved(self.selected, self.buckets().len().saturating_sub(1));
                self.keep_selected_in_sight(self.buckets().len());
            }
        }
    }

    /// Scrolls the buckets so that the selected one is shown.
    pub(super) fn keep_selected_in_sight(&mut self, rows: usize) {
        self.selected = self.selected.min(rows.saturating_sub(1));
        let first = (self.selected + 1).saturating_sub(self.fits.max(1));
        self.offset = self.offset.clamp(first, self.selected.max(first));
        self.offset = self.offset.min(rows.saturating_sub(self.fits));
    }

    /// The limits, in order.
    pub(super) fn limits(&self) -> Vec<LimitRow> {
        let Some(data) = &self.data else {
            return Vec::new();
        };
        let nothing = LimitActivity::default();
        let covered_ms = data.observed.covered_ms;
        let row = |name: &Name| {
            let activity = data.observed.activity.limits.get(name).unwrap_or(&nothing);
            let rate = |outcome| Rate::of(activity.total(outcome), covered_ms);
            let over = activity.total(Outcome::WouldDeny) + activity.total(Outcome::Degraded);
            LimitRow {
                name: name.to_string(),
                allowed: rate(Outcome::Allowed),
                denied: rate(Outcome::Denied),
                over: Rate::of(over, covered_ms),
                costs: Rate::of(activity.settled_units, covered_ms),
                slots: Rate::of(activity.slots_taken, covered_ms),
                penalties: activity.penalties,
                proxies: data.sharing.get(name).copied().unwrap_or(0),
            }
        };
        let mut rows: Vec<LimitRow> = data.limits.iter().map(row).collect();
        // If the filter matches no limit's name, it may still match buckets.
        let has = |row: &LimitRow| row.name.contains(&self.filter);
        if rows.iter().any(has) {
            rows.retain(has);
        }
        match self.sort {
            Sort::Denied => rows.sort_by_key(|row| Reverse((row.denied, row.over))),
            Sort::Requests => rows.sort_by_key(|row| Reverse(row.allowed)),
            Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        rows
    }

    /// The buckets, in order.
    pub(super) fn buckets(&self) -> Vec<BucketRow> {
        let Some(data) = &self.data else {
            return Vec::new();
        };
        let covered_ms = data.observed.covered_ms;
        let values = |found: &BucketActivity| {
            let values = found.bucket.iter().map(|(_, value)| value.clone());
            values.collect()
        };
        let row = |found: &BucketActivity| BucketRow {
            key: (found.limit.clone(), values(found)),
            limit: found.limit.to_string(),
            bucket: bucket_text(found),
            requests: Rate::of(found.requests, covered_ms),
            denied: Rate::of(found.denied, covered_ms),
            enforced: denial_rank(found).0 == found.denied,
            by: found.last.as_ref().map_or("", |last| match last.outcome {
                Outcome::WouldDeny => "would deny",
                _ => last.by.word(),
            }),
            request: { found.last.as_ref() }
                .map(|last| request_text(&last.descriptor))
                .unwrap_or_default(),
        };
        let mut rows: Vec<BucketRow> = data.observed.activity.buckets.iter().map(row).collect();
        rows.retain(|row| {
            [&row.limit, &row.bucket, &row.request]
                .iter()
                .any(|text| text.contains(&self.filter))
        });
        match self.sort {
            Sort::Denied => {
                let enforced =
                    |row: &BucketRow| row.enforced.then_some(row.denied).unwrap_or_default();
                rows.sort_by_key(|row| Reverse((enforced(row), row.denied, row.requests)));
            }
            Sort::Requests => rows.sort_by_key(|row| Reverse(row.requests)),
            Sort::Name => {
                rows.sort_by(|a, b| (&a.limit, &a.bucket).cmp(&(&b.limit, &b.bucket)));
            }
        }
        rows
    }
}
