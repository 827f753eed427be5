//! Simulations: the shipped script, at made-up times, on keys of their own.

use algorithms::check::Verdict;
use redis::Pipeline;

use super::{
    RedisStore,
    check::decode,
    link::Deadline,
    run::{self, Call},
    value,
};
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
        let call = Call {
            keys: call.keys,
            args: call.args,
        };
        let deadline = Deadline::within(self.options.control_timeout);
        let calls = std::slice::from_ref(&call);
        let mut replies = run::scripts(&self.control, &CHECK, calls, deadline).await?;
        let reply = decode(replies.pop().ok_or_else(value::short)?, checks)?;
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
            let mut unlink = Pipeline::with_capacity(piece.len());
            for bucket in piece {
                unlink.cmd("UNLINK").arg(self.keys().simulated(run, bucket));
            }
            self.control(&unlink).await?;
        }
        Ok(())
    }
}
