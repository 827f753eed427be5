//! `rlctl check`.

mod view;

use std::time::Duration;

use clap::Args;
use policy::{Compiled, Name, Policy, SlotId, parse_duration};
use protocol::{Answer, Check as Request};
use store::CheckError;
use tokio::time::Instant;

use crate::{
    args::{Global, examples},
    bucket::{RequestArgs, parse_whole_number},
    error::Error,
    exit::Exit,
    printer::Printer,
    render::duration,
    session::{self, Session},
};

use view::Report;

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
            costs: Vec::new(),
            reserve: false,
            settle: Vec::new(),
            denied: Vec::new(),
            descriptor,
            cost: self.cost,
            peek: self.peek,
            only: self.only(&policy)?,
            skip: Vec::new(),
            require_match: false,
            debits: Vec::new(),
            leases: Vec::new(),
            free: Vec::new(),
            patience_ms: 0,
            max_delay_ms: None,
            proxy: 0,
            service: None,
            slot: Some(store::new_slot_id(SlotId::PROGRAM)),
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
            if !answer.is_denied_for_up_to(request.patience_ms) {
                break answer;
            }
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
