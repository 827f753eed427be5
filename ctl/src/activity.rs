//! The activity that limiters report: decisions over a span of time.

use std::time::Duration;

use clap::ValueEnum;
use policy::Name;
use store::{ActivitySummary, Resolution};
use tokio::time::{Instant, sleep};

pub use insight::{
    Rate,
    bucket::{bucket_text, denial_rank, request_text},
};

use crate::{error::Error, session::Session};

/// How far back to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Span {
    /// Ten seconds.
    #[value(name = "10s")]
    TenSeconds,
    /// A minute.
    #[default]
    #[value(name = "1m")]
    Minute,
    /// An hour.
    #[value(name = "1h")]
    Hour,
}

impl Span {
    /// Its spelling on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::TenSeconds => "10s",
            Self::Minute => "1m",
            Self::Hour => "1h",
        }
    }

    /// Its spelling in messages.
    pub fn text(self) -> &'static str {
        match self {
            Self::TenSeconds => "10 s",
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    fn slots(self) -> (Resolution, u64) {
        match self {
            Self::TenSeconds => (Resolution::Fine, 10_000),
            Self::Minute => (Resolution::Fine, 60_000),
            Self::Hour => (Resolution::Coarse, 3_600_000),
        }
    }
}

/// Until a decision of this moment is in the store: a proxy reports once a second, and so does the
/// limiter that receives its report.
const REPORTED_AFTER: Duration = Duration::from_millis(2500);

/// The time between two reads until then.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Session<'_> {
    /// The activity of a domain, as all limiters report it.
    pub async fn activity(&self, domain: &Name, span: Span) -> Result<ActivitySummary, Error> {
        let (stretch, span_ms) = span.slots();
        let observed = self.store.activity(domain, stretch, span_ms).await;
        observed.map_err(|error| self.failed(&error))
    }

    /// The activity of a domain as soon as it has what was asked for. If it has not, decisions of
    /// this moment are waited for, since they are reported a little later.
    pub async fn activity_with(
        &self,
        domain: &Name,
        span: Span,
        has: impl Fn(&ActivitySummary) -> bool,
    ) -> Result<ActivitySummary, Error> {
        let reported = Instant::now() + REPORTED_AFTER;
        loop {
            let observed = self.activity(domain, span).await?;
            if has(&observed) || Instant::now() >= reported {
                return Ok(observed);
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
