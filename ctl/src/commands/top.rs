//! `rlctl top`.

mod model;
mod view;

use std::{io, pin::Pin, time::Duration};

use anstream::ColorChoice;
use clap::Args;
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt;
use policy::Name;
use store::Overrides;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use crate::{
    activity::Span,
    args::{Format, Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    screen::Screen,
    session::Session,
};

use model::{Action, Bucket, Data, Model};

/// Limiters report once a second.
const EVERY: Duration = Duration::from_secs(1);

/// Watch the busiest and most denied buckets, and what each limit decides.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl top"
    "rlctl top --filter alice --over 1m"
    ""
    "Keys: q quit, d r n sort by denied, requests or name, / filter, Esc clear it, 1 2 last 10 s or"
    "minute, arrows and PgUp PgDn move, Enter opens the selected bucket, p pause, ? help."
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

    /// How far back rates look: 10s or 1m.
    #[arg(long, value_name = "TIME", default_value = "10s", hide_possible_values = true,
        value_parser = clap::builder::PossibleValuesParser::new(["10s", "1m"]))]
    over: String,
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
        let span = if self.over == "1m" {
            Span::Minute
        } else {
            Span::TenSeconds
        };
        let mut model = Model::new(&domain, &session.store.address(), span, &self.filter);
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
                        Action::Look => ticks.reset_immediately(),
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
                if fetching.is_none() && !model.paused {
                    fetching = Some(Box::pin(look(session, domain, model.span)));
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
async fn look(session: &Session<'_>, domain: &Name, span: Span) -> Result<Data, Error> {
    let pong = session.store.ping().await;
    let pong = pong.map_err(|error| session.failed(&error))?;
    let stored = session.read(domain, Overrides::None).await?;
    let limits = stored.policy().map_or(&[][..], |policy| &policy.limits);
    let limits: Vec<Name> = limits.iter().map(|limit| limit.name.clone()).collect();
    let observed = session.activity(domain, span).await?;
    let fleet = session.store.fleet().await;
    let fleet = fleet.map_err(|error| session.failed(&error))?;
    let sharing = session.proxies(domain, limits.iter()).await?;
    Ok(Data {
        limits,
        observed,
        sharing,
        limiters: fleet.limiters.len(),
        proxies: fleet.proxies.get(domain).map_or(0, Vec::len),
        latency_us: u64::try_from(pong.latency.as_micros()).unwrap_or(u64::MAX),
    })
}
