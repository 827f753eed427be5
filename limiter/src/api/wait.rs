//! Checks that wait for permits (`wait_ms`), for programs that call the limiter themselves.
//!
//! Waiting is unfair: the limiter checks again once the denial's `retry_after` has passed, and
//! another check may be faster. When the client disconnects, its wait ends at once, and nothing
//! more is charged.

use std::time::Duration;

use policy::Name;
use protocol::{ApiError, Check, ErrorCode, json::Reason};
use tokio::time::{Instant, sleep_until};

use super::{Api, decide::Decided, inflight::Place, refusal};
use crate::serve::Phase;

impl Api {
    /// Decides one check, repeating it for up to `wait`; returns the reason if the wait ended
    /// early.
    pub(super) async fn decide_waiting(
        &self,
        domain: &Name,
        mut check: Check,
        wait: Duration,
        mut place: Place,
    ) -> Result<(Decided, Option<Reason>), ApiError> {
        if wait > self.bounds.max_wait {
            let max = self.bounds.max_wait.as_millis();
            let message = format!("this limiter lets checks wait {max} ms at most (--max-wait)");
            return Err(refusal::invalid("wait_ms", message));
        }
        if check.peek || check.cost == 0 {
            let message = "a check that charges nothing cannot wait for permits";
            return Err(refusal::invalid("wait_ms", message));
        }
        let until = Instant::now() + wait;
        let mut waiting = None;
        loop {
            let deadline = Instant::now() + self.bounds.store_timeout;
            // What counts the denials has to know which of them is final.
            let left = if self.lifecycle.is_leaving() {
                Duration::ZERO
            } else {
                until.saturating_duration_since(Instant::now())
            };
            check.patience_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let decided = self
                .decide(domain, vec![check.clone()], deadline, None)
                .await?;
            let answer = match decided.decisions.first() {
                Some(Ok(answer)) if !answer.allowed => answer,
                _ => return Ok((decided, None)),
            };
            let Some(retry_after_ms) = answer.summary().retry_after_ms else {
                return Ok((decided, Some(Reason::ExceedsCapacity)));
            };
            if !answer.is_denied_for_up_to(check.patience_ms) {
                return Ok((decided, Some(Reason::WaitTooShort)));
            }
            let again = Instant::now() + Duration::from_millis(retry_after_ms);
            if waiting.is_none() {
                waiting = Some(self.bounds.waiting.enter().ok_or_else(too_many)?);
            }
            // A waiting check is not a request in flight.
            drop(place);
            tokio::select! {
                () = sleep_until(again) => {}
                () = self.lifecycle.reached(Phase::Leave) => {
                    return Ok((decided, Some(Reason::WaitTooShort)));
                }
            }
            place = self
                .bounds
                .inflight
                .enter()
                .ok_or_else(refusal::overloaded)?;
        }
    }
}

fn too_many() -> ApiError {
    ApiError::new(
        ErrorCode::TooManyWaiters,
        "as many checks as this limiter takes are waiting already (--max-waiters)",
    )
}
