//! `rlctl top`.

mod view;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, IsTerminal, Stdout},
    pin::Pin,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anstream::ColorChoice;
use clap::Args;
use crossterm::{
    cursor,
    event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute,
    terminal::{
        Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
        enable_raw_mode,
    },
};
use futures_util::StreamExt;
use policy::{Compiled, Limit, Name, Policy, Scope};
use protocol::Outcome;
use ratatui::{Terminal, backend::CrosstermBackend};
use store::{ActivitySummary, BucketActivity, LimitActivity, Overrides};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use crate::{
    bucket::Values,
    cli::{Format, Global, examples},
    commands::stats::{Rate, Span, bucket_text, request_text},
    error::{Error, Exit},
    printer::Printer,
    session::Session,
};

/// Limiters report once a second.
const EVERY: Duration = Duration::from_secs(1);

/// Reports of hours and days are written less often, and take longer to read.
const LONG_EVERY: u32 = 10;

/// Watch the busiest and most denied buckets, and what each limit decides.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl top"
    "rlctl top --filter alice --over 1m"
    ""
    "Keys: q quit, d r n sort by denied, requests or name, / filter, Esc clear it, 1 2 3 4 last 10 s,"
    "minute, hour or 24 h, arrows and PgUp PgDn move, Enter opens the selected bucket, p pause, ? help."
))]
pub struct Top {
    /// Only limits and buckets that have this in them.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,

    /// How far back rates look: 10s, 1m, 1h or 24h.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        hide_possible_values = true
    )]
    over: Span,
}

impl Top {
    /// Takes the terminal until a key ends it.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        if !matches!(printer.format(), Format::Table | Format::Wide) {
            return Err(
                Error::usage("top draws on a terminal and has no other output")
                    .hint("`rlctl stats -o json` and `rlctl denials -o json` are for programs"),
            );
        }
        if !Screen::is_there() {
            return Err(Error::usage("top needs a terminal to draw on")
                .hint("`rlctl stats` and `rlctl denials` print the same once"));
        }
        let session = Session::open(global, printer)?;
        // Errors of the address or the domain are printed before the screen is taken.
        let domain = session.policy(Overrides::None).await?.domain;
        let mut model = Model::new(&domain, &session.store.address(), self.over, &self.filter);
        model.color = anstream::AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        model.unicode = printer.page().unicode;
        let terminal = |error: io::Error| {
            Error::new(Exit::Usage, format!("the terminal does not work: {error}"))
        };
        let mut screen = Screen::take().map_err(terminal)?;
        watch(&session, &domain, &mut model, &mut screen)
            .await
            .map_err(terminal)
    }
}

async fn watch(
    session: &Session<'_>,
    domain: &Name,
    model: &mut Model,
    screen: &mut Screen,
) -> io::Result<Exit> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut keys = EventStream::new();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Redis may be slow; keys work meanwhile.
    let mut fetching = None;
    let mut opening = None;
    loop {
        screen.terminal.draw(|frame| view::draw(frame, model))?;
        let fetched = async {
            match &mut fetching {
                Some(fetch) => Pin::as_mut(fetch).await,
                None => std::future::pending().await,
            }
        };
        let read = async {
            match &mut opening {
                Some(open) => Pin::as_mut(open).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = keys.next() => match key {
                Some(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                    match model.press(key) {
                        Action::Stay => {}
                        Action::Fetch => ticks.reset_immediately(),
                        Action::Open => opening = open(session, model),
                        Action::Quit => return Ok(Exit::Done),
                        Action::Interrupt => return Ok(Exit::Interrupted),
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                // The terminal is gone, so no key can be pressed.
                None => return Ok(Exit::Interrupted),
            },
            (of, text) = read => {
                opening = None;
                model.show_opened(&of, text);
            }
            data = fetched => {
                fetching = None;
                model.show(data);
            }
            _ = ticks.tick() => {
                if fetching.is_none() && model.is_due() {
                    fetching = Some(Box::pin(fetch(session, domain, model.span)));
                }
                if opening.is_none() {
                    opening = open(session, model);
                }
            }
            _ = terminate.recv() => return Ok(Exit::Interrupted),
            _ = hang_up.recv() => return Ok(Exit::Interrupted),
        }
    }
}

/// A bucket that is being read.
type Reading<'s> = Pin<Box<dyn Future<Output = (Bucket, Result<String, Error>)> + 's>>;

/// Reads the bucket that is open.
fn open<'s>(session: &'s Session<'_>, model: &Model) -> Option<Reading<'s>> {
    let (of, _) = model.opened.clone()?;
    Some(Box::pin(async move {
        let text = super::inspect::card(session, of.0.as_str(), of.1.clone()).await;
        (of, text)
    }))
}

/// Fetches the data to show.
async fn fetch(session: &Session<'_>, domain: &Name, span: Span) -> Result<Data, Error> {
    let pong = session.call(session.store.ping()).await?;
    let stored = session.read(domain, Overrides::None).await?;
    let limits = stored.policy().map_or(&[][..], |policy| &policy.limits);
    let limits: Vec<Name> = limits.iter().map(|limit| limit.name.clone()).collect();
    let observed = session.activity(domain, span).await?;
    let fleet = session.call(session.store.fleet()).await?;
    let sharing = session.proxies(domain, limits.iter()).await?;
    let in_use = match stored.policy() {
        Some(policy) => in_use(session, policy).await?,
        None => BTreeMap::new(),
    };
    Ok(Data {
        limits,
        observed,
        sharing,
        in_use,
        limiters: fleet.limiters.len(),
        proxies: fleet.proxies.get(domain).map_or(0, Vec::len),
        latency_us: u64::try_from(pong.latency.as_micros()).unwrap_or(u64::MAX),
    })
}

/// Limits whose slots in use are read: each is a call.
const IN_USE_MAX: usize = 20;

/// How many slots of limits with one bucket are in use, and how many there are.
async fn in_use(
    session: &Session<'_>,
    policy: &Policy,
) -> Result<BTreeMap<Name, (u64, u64)>, Error> {
    let has_one =
        |limit: &&Limit| limit.per.is_empty() && limit.gives_slots() && limit.scope != Scope::Proxy;
    let mut limits = policy
        .limits
        .iter()
        .filter(has_one)
        .take(IN_USE_MAX)
        .peekable();
    let mut in_use = BTreeMap::new();
    // Most domains have no such limits.
    if limits.peek().is_some() {
        let compiled = Compiled::new(policy.clone());
        for limit in limits {
            let found = session.store.inspect(&compiled, &limit.name, &[], 1).await;
            let answer = found.map_err(|error| session.check_failed(&error))?.answer;
            let slots = answer
                .limit
                .map(|of| (of.saturating_sub(answer.verdict.decision.remaining), of));
            in_use.extend(slots.map(|slots| (limit.name.clone(), slots)));
        }
    }
    Ok(in_use)
}

// --- The state of `top`, and how keys change it.

/// The longest filter.
const FILTER_MAX: usize = 64;

/// The result of one poll.
#[derive(Debug)]
struct Data {
    pub(super) limits: Vec<Name>,
    pub(super) observed: ActivitySummary,
    /// Proxies that share each limit.
    pub(super) sharing: BTreeMap<Name, u64>,
    /// Of limits on requests in flight with one bucket, the slots in use and all there are.
    pub(super) in_use: BTreeMap<Name, (u64, u64)>,
    pub(super) limiters: usize,
    pub(super) proxies: usize,
    pub(super) latency_us: u64,
}

/// The sort order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Denied,
    Requests,
    Name,
}

/// The list that the arrow keys move through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    Limits,
    #[default]
    Buckets,
}

/// How keys are interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
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
enum Action {
    Stay,
    /// Poll again at once.
    Fetch,
    /// Look at the selected bucket.
    Open,
    Quit,
    Interrupt,
}

#[derive(Debug, Default)]
struct Model {
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
    /// Seconds since a key asked for data.
    ticks: u32,
    pub(super) data: Option<Data>,
    /// Why the last poll failed.
    pub(super) error: Option<String>,
    pub(super) color: bool,
    pub(super) unicode: bool,
}

/// One limit as it is shown.
#[derive(Debug)]
struct LimitRow {
    pub(super) name: String,
    pub(super) allowed: Rate,
    pub(super) denied: Rate,
    /// Requests over limits that deny nothing.
    pub(super) over: Rate,
    /// Units that responses cost.
    pub(super) costs: Rate,
    /// Slots that requests took.
    pub(super) slots: Rate,
    /// How many of how many slots are in use.
    pub(super) in_use: Option<String>,
    /// Penalties that began.
    pub(super) penalties: u64,
    pub(super) proxies: u64,
}

/// A limit, and the values of its `per`.
type Bucket = (Name, Values);

/// One bucket as it is shown.
#[derive(Debug)]
struct BucketRow {
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
            filter: filter.chars().take(FILTER_MAX).collect(),
            color: true,
            unicode: true,
            ..Self::default()
        }
    }

    /// Takes over the result of a poll; after a failed one the earlier result stays.
    pub(super) fn show(&mut self, fetched: Result<Data, Error>) {
        match fetched {
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
                if !self.paused {
                    return self.look_back(self.span);
                }
            }
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('1') => return self.look_back(Span::TenSeconds),
            KeyCode::Char('2') => return self.look_back(Span::Minute),
            KeyCode::Char('3') => return self.look_back(Span::Hour),
            KeyCode::Char('4') => return self.look_back(Span::Day),
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
        (self.span, self.ticks) = (span, 0);
        Action::Fetch
    }

    /// Whether to read data this second: also while it is paused, if a key asked for another time.
    fn is_due(&mut self) -> bool {
        let is_long = matches!(self.span, Span::Hour | Span::Day);
        let is_time = !is_long || self.ticks.is_multiple_of(LONG_EVERY);
        let is_asked = self.ticks == 0;
        self.ticks = self.ticks.saturating_add(1);
        is_asked || is_time && !self.paused
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
            let rate = |outcome| Rate::new(activity.total(outcome), covered_ms);
            let over = activity.total(Outcome::WouldDeny) + activity.total(Outcome::Degraded);
            LimitRow {
                name: name.to_string(),
                allowed: rate(Outcome::Allowed),
                denied: rate(Outcome::Denied),
                over: Rate::new(over, covered_ms),
                costs: Rate::new(activity.settled_units, covered_ms),
                slots: Rate::new(activity.slots_taken, covered_ms),
                in_use: { data.in_use.get(name) }.map(|(used, of)| format!("{used} of {of}")),
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
        // Of a limit that denies nothing, what it would have denied.
        let denied = |found: &BucketActivity| match found.denied {
            0 => found.over,
            denied => denied,
        };
        let row = |found: &BucketActivity| BucketRow {
            key: (found.limit.clone(), values(found)),
            limit: found.limit.to_string(),
            bucket: bucket_text(found),
            requests: Rate::new(found.requests, covered_ms),
            denied: Rate::new(denied(found), covered_ms),
            enforced: found.over == 0 || found.denied > 0,
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
                let enforced = |row: &BucketRow| {
                    if row.enforced {
                        row.denied
                    } else {
                        Rate::default()
                    }
                };
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

// --- Takes over the whole terminal, and restores it afterwards.

/// Whether the terminal is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in full-screen mode. Dropping it restores the terminal, and so does a panic.
#[derive(Debug)]
pub struct Screen {
    /// The terminal to draw on.
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Whether there is a terminal to take, to draw on and to read keys from.
    pub fn is_there() -> bool {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb
    }

    /// Switches the terminal to full-screen mode.
    ///
    /// # Errors
    /// The terminal's error; the terminal is then as before.
    pub fn take() -> io::Result<Self> {
        give_back_at_panic();
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        enable_raw_mode()?;
        // From here on the terminal has to be restored.
        TAKEN.store(true, Ordering::SeqCst);
        let screen = Self { terminal };
        // Not `Terminal::clear`: it asks the terminal for the cursor's position, and some terminals
        // do not answer, or not in time.
        let all = Clear(ClearType::All);
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide, all)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal, once: a second time would move the cursor back over later output. Errors
/// are ignored, as the terminal may be closed.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic's message, which would vanish with the full screen.
fn give_back_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}
