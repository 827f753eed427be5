//! Commands and scripts that concern limits, listings and the servers themselves.

use std::time::Duration;

use redis_link::{Cmd, Deadline, Lane, Outcome, Request, Script, Value, is_refused, value};
use tokio::time::{Instant, sleep_until};

use super::RedisStore;
use crate::StoreError;

/// Pause before a call is retried whose keys are being migrated.
const AGAIN: Duration = Duration::from_millis(10);

impl RedisStore {
    /// The deadline of anything but a check.
    pub(super) fn control_deadline(&self) -> Deadline {
        Deadline::within(self.options.control_timeout)
    }

    /// Runs one command; it has to succeed.
    pub(super) async fn control(&self, command: Cmd) -> Result<Value, StoreError> {
        let mut answers = self.control_each([command]).await;
        answers.pop().ok_or_else(value::short)?
    }

    /// Runs commands, in their order where they are of one slot; each has to succeed.
    pub(super) async fn control_all(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        self.control_each(commands).await.into_iter().collect()
    }

    /// As [`RedisStore::control_all`], for commands each of which may be refused on its own.
    pub(super) async fn control_each(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Vec<Outcome> {
        let requests: Vec<Request> = commands.into_iter().map(Request::from).collect();
        let deadline = self.control_deadline();
        self.servers.run(Lane::Control, &requests, deadline).await
    }

    /// Calls a script.
    pub(super) async fn control_script(
        &self,
        script: &'static Script,
        keys: &[String],
        args: &[String],
    ) -> Result<Value, StoreError> {
        let call = Request::call(script, keys, args);
        let deadline = self.control_deadline();
        let calls = std::slice::from_ref(&call);
        loop {
            let mut answers = self.servers.run(Lane::Control, calls, deadline).await;
            let answer = answers.pop().ok_or_else(value::short)?;
            // The slot is being migrated, and only some of the keys have moved: the call did
            // nothing, and works as soon as the slot has moved.
            let again = Instant::now() + AGAIN;
            if !is_refused(&answer, "TRYAGAIN") || again >= deadline.at() {
                return answer;
            }
            sleep_until(again).await;
        }
    }
}
