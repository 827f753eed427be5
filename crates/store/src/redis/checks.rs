//! Checks in Redis: one script call for many of them. Simulations call the same script at made-up
//! times, on keys of their own.

use algorithms::check::Verdict;
use async_trait::async_trait;
use policy::Compiled;
use protocol::{Answer, Check};
use redis_link::{Deadline, Lane, Outcome, Request, Servers, value};

use super::RedisStore;
use crate::{
    CheckError, Checks, StoreError,
    plan::{
        CheckPlan, reserves_or_settles,
        script::{self, Clock, ScriptCheck, ScriptError, ScriptReply},
    },
    scripts::CHECK,
};

#[async_trait]
impl Checks for RedisStore {
    async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>> {
        let seal = if checks.iter().any(reserves_or_settles) {
            self.seal().await.map(Some)
        } else {
            Ok(None)
        };
        let now_ms = self.clock_offset.now_ms();
        let plan = |check| {
            let seal = match &seal {
                Ok(seal) => seal.as_ref(),
                Err(error) if reserves_or_settles(check) => return Err(error.clone().into()),
                Err(_) => None,
            };
            Ok(CheckPlan::new(
                policy,
                check,
                self.keys(),
                seal,
                now_ms,
                force,
            )?)
        };
        let plans: Vec<Result<_, CheckError>> = checks.iter().map(plan).collect();
        let with_buckets: Vec<&CheckPlan<'_>> = plans
            .iter()
            .flatten()
            .filter(|planned| !planned.check.limits.is_empty())
            .collect();
        let mut verdicts = self.decide(&with_buckets).await.into_iter();
        plans
            .into_iter()
            .map(|planned| {
                let planned = planned?;
                if planned.check.limits.is_empty() {
                    return Ok(planned.without_buckets(policy, now_ms));
                }
                let (verdict, now_ms) = verdicts.next().ok_or_else(value::short)??;
                Ok(planned.answer(policy, &verdict, now_ms))
            })
            .collect()
    }

    async fn simulate(
        &self,
        run: u64,
        check: &ScriptCheck<'_>,
        now_ms: u64,
    ) -> Result<Verdict, CheckError> {
        let mut check = check.clone();
        for limit in &mut check.limits {
            let beside = [&mut limit.reservations, &mut limit.denials];
            for key in beside.into_iter().flatten().chain([&mut limit.key]) {
                *key = self.keys().simulated(run, key);
            }
        }
        let checks = &[&check];
        let call = script::encode(checks, Clock::Injected(now_ms));
        let call = Request::call(&CHECK, &call.keys, &[call.packed()]);
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

    async fn end_simulation(&self, run: u64, buckets: &[&str]) -> Result<(), StoreError> {
        // A reply to each, in pieces that the server makes at once.
        for piece in buckets.chunks(1000) {
            let unlink = piece
                .iter()
                .map(|bucket| redis_link::cmd(("UNLINK", self.keys().simulated(run, bucket))));
            self.control_all(unlink).await?;
        }
        Ok(())
    }
}

impl RedisStore {
    /// One result for each, in order.
    pub(super) async fn decide(
        &self,
        plans: &[&CheckPlan<'_>],
    ) -> Vec<Result<TimedVerdict, CheckError>> {
        if plans.is_empty() {
            return Vec::new();
        }
        if matches!(self.servers, Servers::Cluster(_)) {
            return self.decide_by_slot(plans).await;
        }
        let checks: Vec<&ScriptCheck<'_>> = plans.iter().map(|plan| &plan.check).collect();
        let batches = script::in_batches(&checks);
        let calls: Vec<_> = batches.iter().map(|batch| call(batch)).collect();
        let deadline = Deadline::within(self.options.timeout);
        let answers = self.servers.run(Lane::Data, &calls, deadline).await;
        let mut results = Vec::with_capacity(plans.len());
        for (batch, answer) in batches.iter().zip(answers) {
            match decode(answer, batch) {
                Ok(reply) => {
                    if let Some(now_ms) = stale_at_ms(&reply) {
                        self.clock_offset.set(now_ms);
                    }
                    results.extend(verdicts(reply, plans, results.len()));
                }
                Err(error) => results.extend(batch.iter().map(|_| Err(error.clone().into()))),
            }
        }
        results
    }
}

/// The server's time, if a limit was stale. The cause may be calendar edges for another time; a
/// plan for the server's time has the right ones.
pub(super) fn stale_at_ms(reply: &ScriptReply) -> Option<u64> {
    let stale = |result: &Result<_, ScriptError>| matches!(result, Err(ScriptError::Stale { .. }));
    reply.results.iter().any(stale).then_some(reply.now_ms)
}

/// A verdict and the server's time, in milliseconds since the epoch.
pub(super) type TimedVerdict = (Verdict, u64);

/// The script call of a batch.
pub(super) fn call(batch: &[&ScriptCheck<'_>]) -> Request {
    let call = script::encode(batch, Clock::Server);
    Request::call(&CHECK, &call.keys, &[call.packed()])
}

pub(super) fn decode(
    reply: Outcome,
    batch: &[&ScriptCheck<'_>],
) -> Result<ScriptReply, StoreError> {
    let numbers = value::bytes(reply?)?;
    script::decode(&numbers, batch).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// The results of one call, whose first check is `plans[offset]`.
fn verdicts(
    reply: ScriptReply,
    plans: &[&CheckPlan<'_>],
    offset: usize,
) -> Vec<Result<TimedVerdict, CheckError>> {
    let now_ms = reply.now_ms;
    let planned = plans.iter().skip(offset);
    let results = reply.results.into_iter().zip(planned);
    results
        .map(|(result, planned)| match result {
            Ok(verdict) => Ok((verdict, now_ms)),
            Err(error) => Err(undecided(error, planned, |limit| limit)),
        })
        .collect()
}

/// Why a check was not decided; `index` turns a limit's index in the call into that in the check.
pub(super) fn undecided(
    error: ScriptError,
    planned: &CheckPlan<'_>,
    index: impl Fn(usize) -> usize,
) -> CheckError {
    match error {
        ScriptError::Stale { .. } => CheckError::Stale,
        ScriptError::Corrupt { limit } => match planned.limit_name(index(limit)) {
            Some(name) => CheckError::CorruptBucket(name.clone()),
            None => value::short().into(),
        },
    }
}
