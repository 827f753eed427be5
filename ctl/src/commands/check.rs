//! `rlctl check`.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::Args;
use policy::{Compiled, IfMissing, Name, Policy, SlotId, parse_duration};
use protocol::{Answer, Check as Request, LimitAnswer, Outcome, json};
use serde::{Serialize, Serializer};
use store::CheckError;
use tokio::time::Instant;

use crate::{
    bucket::{self, RequestArgs, parse_whole_number},
    cli::{Global, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, Table, View, duration, text},
    session::{self, Session},
};

/// The shortest pause between two tries of --wait.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Decide a request as a limiter would, and charge it.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl check user=alice path=/api/orders method=GET"
    "rlctl check user=alice --peek                 # would it pass? nothing is charged"
    "rlctl check user=alice --limit per-user --cost 5"
    "rlctl check user=batch --wait 30s && ./nightly-job"
))]
pub struct Check {
    #[command(flatten)]
    request: RequestArgs,

    /// How many requests to check at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    cost: u64,

    /// Charge nothing.
    #[arg(long)]
    peek: bool,

    /// Only these limits.
    #[arg(long = "limit", value_name = "NAME", value_delimiter = ',')]
    limits: Vec<String>,

    /// If it is denied, retry for this long, as in 30s.
    #[arg(long, value_name = "TIME", conflicts_with = "peek")]
    wait: Option<String>,
}

impl Check {
    /// Checks, and retries a denial within `--wait`.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let wait = self.wait.as_deref().map(parse_duration).transpose();
        let wait = wait.map_err(|error| Error::usage(format!("--wait: {error}")))?;
        let session = Session::open(global, printer)?;
        let descriptor = session.descriptor(self.request.pairs()).await?;
        let policy = session.policy_for_request(&descriptor).await?;
        let named: Vec<&str> = self.limits.iter().map(String::as_str).collect();
        session.warn_of_pause(&policy, &named);
        let mut request = Request {
            descriptor,
            cost: self.cost,
            peek: self.peek,
            only: self.only(&policy)?,
            slot: Some(store::new_slot_id(SlotId::PROGRAM)),
            ..Request::default()
        };
        let mut compiled = Compiled::new(policy);
        let deadline = Instant::now() + Duration::from_millis(wait.unwrap_or(0));
        let answer = loop {
            // A denial that is not the last must not count towards a penalty.
            request.patience_ms = millis(deadline.saturating_duration_since(Instant::now()));
            let answer = decide(&session, &mut compiled, &request).await?;
            let Some(pause) = retry_after(&answer) else {
                break answer;
            };
            if !answer.is_repeated(&compiled, request.patience_ms) {
                break answer;
            }
            // At a limit on requests in flight it may take less.
            let pause = pause.min(Duration::from_millis(request.patience_ms));
            printer.note(format_args!(
                "denied; trying again in {}",
                duration(millis(pause))
            ));
            tokio::time::sleep(pause).await;
        };
        let allowed = answer.allowed;
        if answer.limits.is_empty() {
            printer.note("no limit matches; `rlctl explain` with the same entries says why");
        }
        printer.data(&Report {
            answer,
            policy: compiled,
            peek: self.peek || self.cost == 0,
        })?;
        Ok(if allowed { Exit::Done } else { Exit::No })
    }

    fn only(&self, policy: &Policy) -> Result<Vec<Name>, Error> {
        let limits = self.limits.iter();
        let names = limits.map(|name| session::find_limit(policy, name).map(|l| l.name.clone()));
        names.collect()
    }
}

/// Decides; reads the limits again if a bucket has a newer generation.
async fn decide(
    session: &Session<'_>,
    compiled: &mut Compiled,
    request: &Request,
) -> Result<Answer, Error> {
    for force in [false, true] {
        let checks = std::slice::from_ref(request);
        let mut answers = session.store.check(compiled, checks, force).await;
        match answers.pop() {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(CheckError::Stale)) if !force => {
                let policy = session.policy_for_request(&request.descriptor).await?;
                *compiled = Compiled::new(policy);
            }
            Some(Err(error)) => return Err(session.check_failed(&error)),
            None => break,
        }
    }
    Err(session.check_failed(&CheckError::Stale))
}

/// How long until a denied request would pass; `None` if it passed, or never will.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let summary = answer.summary();
    let ms = summary.retry_after_ms.filter(|_| !answer.allowed)?;
    Some(Duration::from_millis(ms).max(PAUSE_MIN))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// --- A decision, limit by limit.

const ALLOWED: Style = AnsiColor::Green.on_default().bold();
const DENIED: Style = AnsiColor::Red.on_default().bold();

/// An answer, and the limits that gave it.
#[derive(Debug)]
struct Report {
    answer: Answer,
    policy: Compiled,
    /// Whether the check could not have charged anything.
    peek: bool,
}

/// In the form of the limiter's HTTP API.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::Reply::new(&self.answer, &self.policy).serialize(serializer)
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let bucket = |limit: &LimitAnswer| {
            let (names, values): (Vec<_>, Vec<_>) = limit.bucket.iter().cloned().unzip();
            bucket::display(&names, &values)
        };
        let left = |limit: &LimitAnswer| {
            let quota = self.quota(limit)?;
            Some(format!("{} of {quota}", limit.verdict.decision.remaining))
        };
        let charged = |limit: &LimitAnswer| (!self.peek).then_some(limit.verdict.charged);
        let wait = |limit: &LimitAnswer| {
            let delay_ms = limit.verdict.decision.delay_ms;
            (delay_ms > 0).then(|| duration(delay_ms))
        };
        let full = |limit: &LimitAnswer| {
            let quota = self.quota(limit);
            quota.map(|_| duration(limit.verdict.decision.reset_after_ms))
        };
        let table = Table::of(&self.answer.limits)
            .column("LIMIT", |limit| &limit.name)
            .column("BUCKET", bucket)
            .column("DECISION", decision)
            .column("LEFT", |limit| text(left(limit)))
            .column("CHARGED", |limit| text(charged(limit)))
            .column("WAIT", |limit| text(wait(limit)))
            .column("RETRY IN", |limit| {
                let decision = &limit.verdict.decision;
                again(decision.allowed, decision.retry_after.millis())
            })
            .column("FULL IN", |limit| text(full(limit)));
        format!("{}{}", self.verdict(), table.draw(page))
    }

    /// The limits that deny it.
    fn names(&self) -> Vec<String> {
        self.answer
            .summary()
            .denied_by
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

impl Report {
    fn verdict(&self) -> String {
        let would = if self.peek { "would be " } else { "" };
        let summary = self.answer.summary();
        if self.answer.allowed {
            let how = match (self.answer.limits.is_empty(), summary.delay_ms) {
                (true, _) => ": no limit matches".to_owned(),
                (false, 0) => String::new(),
                (false, ms) => format!(" after a wait of {}", duration(ms)),
            };
            return format!("{would}{ALLOWED}allowed{ALLOWED:#}{how}\n");
        }
        let denied = self
            .answer
            .limits
            .iter()
            .filter(|limit| summary.denied_by.contains(&&limit.name));
        let by: Vec<String> = denied
            .map(|limit| match self.missing(limit) {
                Some(key) => format!("{} (the request has no {key})", limit.name),
                None => limit.name.to_string(),
            })
            .collect();
        let again = match summary.retry_after_ms {
            Some(ms) => format!("try again in {}", duration(ms)),
            None => "it can never pass".to_owned(),
        };
        format!(
            "{would}{DENIED}denied{DENIED:#} by {}; {again}\n",
            by.join(", ")
        )
    }

    /// What the limit has in all, unless it denies for want of an entry.
    fn quota(&self, limit: &LimitAnswer) -> Option<u64> {
        limit.limit.filter(|_| self.missing(limit).is_none())
    }

    /// The entry that the request lacks and without which the limit denies.
    fn missing<'a>(&self, limit: &'a LimitAnswer) -> Option<&'a Name> {
        let denies = self.policy.named(&limit.name)?.if_missing == IfMissing::Deny;
        let missing = limit.bucket.iter().find(|(_, value)| value.is_none())?;
        denies.then_some(&missing.0)
    }
}

fn decision(limit: &LimitAnswer) -> &'static str {
    match limit.outcome() {
        Outcome::Allowed if limit.limit.is_none() => "unlimited",
        Outcome::Allowed => "allows",
        Outcome::WouldDeny => "would deny",
        Outcome::Degraded => "degrades",
        Outcome::Denied => "denies",
    }
}

/// When what was denied would pass.
pub(super) fn again(allowed: bool, retry_after_ms: Option<u64>) -> String {
    match retry_after_ms {
        _ if allowed => String::new(),
        Some(ms) => duration(ms),
        None => "never".to_owned(),
    }
}
