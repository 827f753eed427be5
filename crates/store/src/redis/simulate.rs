//! Simulations: the shipped script, at made-up times, on keys of their own.

use algorithms::check::Verdict;
use redis_link::{Lane, Request, value};

use super::{RedisStore, check::decode};
use crate::{
    CheckError, StoreError,
    script::{self, CHECK, Clock, ScriptCheck, ScriptError, ScriptLimit},
};

impl RedisStore {
    pub(super) async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        let keys: Vec<Vec<u8>> = check
            .limits
            .iter()
            .map(|limit| self.keys().simulated(run, limit.key))
            .collect();
        let limits = check.limits.iter().zip(&keys);
        let check = ScriptCheck {
            limits: limits
                .map(|(limit, key)| ScriptLimit { key, ..*limit })
                .collect(),
            options: check.options,
        };
        let checks = std::slice::from_ref(&check);
        let call = script::encode(checks, Clock::Injected(now_ms));
        let call = Request::call(&CHECK, &call.keys, &call.args);
        let calls = std::slice::from_ref(&call);
        let deadline = self.control_deadline();
        let mut answers = self.servers.run(Lane::Control, calls, deadline).await;
        let reply = decode(answers.pop().ok_or_else(value::short)?, checks)?;
        match { reply.results }.pop().ok_or_else(value::short)? {
            Ok(verdict) => Ok(verdict),
            Err(ScriptError::Stale { .. }) => Err(CheckError::Stale),
            Err(ScriptError::Corrupt { .. }) => {
                let what = "a bucket of the simulation holds something else".to_owned();
                Err(StoreError::Corrupt(what).into())
            }
        }
    }

    pub(super) async fn end_simulation(
        &self,
        run: u64,
        buckets: &[&[u8]],
    ) -> Result<(), StoreError> {
        // A reply to each, in pieces that the server makes at once.
        for piece in buckets.chunks(1000) {
            let unlink = piece.iter().map(|bucket| {
                let mut unlink = redis_link::cmd("UNLINK");
                unlink.arg(self.keys().simulated(run, bucket));
                unlink
            });
            self.control_all(unlink).await?;
        }
        Ok(())
    }
}
