//! When a pause ends.

use clap::Args;
use policy::{Pause, parse_duration, parse_timestamp};

use crate::{error::Error, session::Session};

/// When a pause ends by itself: without either, never.
#[derive(Debug, Args)]
pub struct PauseEnd {
    /// How long it lasts, as in 30m or 2h.
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,

    /// When it ends, as in 2026-12-01T00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "lasts")]
    until: Option<String>,
}

impl PauseEnd {
    /// The pause. A duration counts from now by the store's clock: limiters are closer to it than
    /// to the clock of the user's machine.
    pub async fn pause(&self, session: &Session<'_>) -> Result<Pause, Error> {
        if let Some(until) = &self.until {
            return point(until, session.now_ms().await?);
        }
        let Some(lasts) = &self.lasts else {
            return Ok(Pause { until_ms: None });
        };
        let ms = match parse_duration(lasts) {
            Ok(0) => return Err(Error::usage("--for: expected more than 0")),
            Ok(ms) => ms,
            Err(error) => {
                return Err(Error::usage(format!("--for: {error}"))
                    .hint("to pause one limit, name it with --limit"));
            }
        };
        let now_ms = session.now_ms().await?;
        // Whole seconds read better; rounded up, so that the pause is never shorter than requested.
        let until_ms = now_ms
            .saturating_add(ms)
            .div_ceil(1000)
            .saturating_mul(1000);
        Ok(Pause {
            until_ms: Some(until_ms),
        })
    }
}

fn point(until: &str, now_ms: u64) -> Result<Pause, Error> {
    match parse_timestamp(until) {
        Some(ms) if ms > now_ms => Ok(Pause { until_ms: Some(ms) }),
        Some(_) => Err(Error::usage(format!("--until: {until} has passed"))
            .hint("a pause that is over pauses nothing; `rlctl resume` ends one")),
        None => Err(Error::usage(format!("--until: `{until}` is not a time"))
            .hint("a time is like 2026-12-01T00:00Z; --for takes a while, like 30m")),
    }
}
