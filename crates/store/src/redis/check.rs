//! Checks in Redis: one script call for many of them.

use policy::{Compiled, Name};
use protocol::{Answer, Check};
use redis_link::{Deadline, Lane, Outcome, Request, Servers, slot, value};

use super::RedisStore;
use crate::{
    CheckError, Inspection, StoreError,
    clock::wall_ms,
    plan::CheckPlan,
    script::{self, CALL_MAX, CHECK, Clock, ScriptCheck, ScriptError, ScriptLimit, ScriptReply},
};

/// Entries of a log that an inspection shows, the newest.
const RAW_ITEMS: i64 = 100;

impl RedisStore {
    pub(super) async fn check(
        &self,
        policy: &Compiled,
        checks: &[Check],
        force: bool,
    ) -> Vec<Result<Answer, CheckError>> {
        let now_ms = wall_ms();
        let plan = |check| CheckPlan::new(policy, check, self.keys(), now_ms, force);
        let plans: Vec<_> = checks.iter().map(plan).collect();
        let asked: Vec<&CheckPlan<'_>> = plans
            .iter()
            .flatten()
            .filter(|planned| planned.buckets().next().is_some())
            .collect();
        let mut verdicts = self.ask(&asked).await.into_iter();
        plans
            .into_iter()
            .map(|planned| {
                let planned = planned?;
                if planned.buckets().next().is_none() {
                    return Ok(planned.without_buckets(policy, now_ms));
                }
                let (verdict, now_ms) = verdicts.next().ok_or_else(value::short)??;
                Ok(planned.answer(policy, &verdict, now_ms))
            })
            .collect()
    }

    /// One result for each, in order.
    async fn ask(&self, asked: &[&CheckPlan<'_>]) -> Vec<Result<Verdict, CheckError>> {
        if asked.is_empty() {
            return Vec::new();
        }
        let checks: Vec<ScriptCheck<'_>> = asked.iter().map(|p| script_check(p)).collect();
        if matches!(self.servers, Servers::Cluster(_)) {
            return self.ask_slots(asked, checks).await;
        }
        let batches = in_batches(&checks);
        let calls: Vec<_> = batches.iter().map(|batch| call(batch)).collect();
        let deadline = Deadline::within(self.options.timeout);
        let answers = self.servers.run(Lane::Data, &calls, deadline).await;
        let mut results = Vec::with_capacity(asked.len());
        for (batch, answer) in batches.iter().zip(answers) {
            match decode(answer, batch) {
                Ok(reply) => results.extend(verdicts(reply, asked, results.len())),
                Err(error) => results.extend(batch.iter().map(|_| Err(error.clone().into()))),
            }
        }
        results
    }

    pub(super) async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        let planned = CheckPlan::of_bucket(policy, limit, values, cost, self.keys(), wall_ms())?;
        let key = planned.key_of(policy.domain(), self.keys());
        let verdict = if planned.buckets().next().is_some() {
            self.ask(&[&planned]).await.pop()
        } else {
            None
        };
        let (answer, leased) = match verdict {
            Some(verdict) => {
                let (verdict, now_ms) = verdict?;
                let leased = verdict.limits.first().map_or(0, |limit| limit.leased);
                (planned.answer(policy, &verdict, now_ms), leased)
            }
            None => (planned.without_buckets(policy, wall_ms()), 0),
        };
        let (state, ttl_ms) = self.raw_state(&key).await?;
        let slot = slot(key.as_bytes());
        Ok(Inspection {
            leased,
            now_ms: answer.now_ms,
            answer: answer.limits.into_iter().next().ok_or_else(value::short)?,
            slot,
            // Known by now: it has just answered.
            node: self.servers.node_of(slot, self.control_deadline()).await,
            key,
            state,
            ttl_ms,
        })
    }

    /// What a key holds, as text, and for how long, in milliseconds.
    async fn raw_state(&self, key: &str) -> Result<(Option<String>, Option<u64>), StoreError> {
        // Of whichever type it is: the other two are refused as WRONGTYPE.
        let mut raw = ["PTTL", "GET", "HGETALL", "LRANGE"].map(redis_link::cmd);
        for command in &mut raw {
            command.arg(key);
        }
        if let Some(range) = raw.last_mut() {
            range.arg(-RAW_ITEMS).arg(-1);
        }
        let mut answers = self.control_each(raw).await.into_iter();
        let ttl = answers.next().ok_or_else(value::short)??;
        let state = answers.flatten().find_map(value::shown);
        Ok((state, u64::try_from(value::integer(ttl)?).ok()))
    }
}

/// A verdict and the server's time, in milliseconds since the epoch.
pub(super) type Verdict = (algorithms::check::Verdict, u64);

fn script_check<'a>(planned: &'a CheckPlan<'_>) -> ScriptCheck<'a> {
    let limits = planned.buckets().map(|bucket| ScriptLimit {
        key: bucket.key.as_bytes(),
        algorithm: &bucket.algorithm,
        generation: bucket.generation,
        cost: bucket.cost,
        debit: bucket.debit,
        lease: bucket.lease.as_ref().map(|lease| lease.ask()),
        free: &bucket.free,
        mode: bucket.mode,
    });
    ScriptCheck {
        limits: limits.collect(),
        options: planned.options,
    }
}

/// Cuts a list of checks so that no part weighs more than [`CALL_MAX`], unless it is one check. Calls are
/// pipelined, so larger ones gain little, and a call blocks the server.
fn in_batches<'a, 'k>(checks: &'a [ScriptCheck<'k>]) -> Vec<&'a [ScriptCheck<'k>]> {
    let mut batches = Vec::new();
    let mut rest = checks;
    while !rest.is_empty() {
        let mut sum = 0;
        let full = rest.iter().position(|check| {
            sum += check.weight();
            sum > CALL_MAX
        });
        let (batch, more) = rest.split_at(full.map_or(rest.len(), |over| over.max(1)));
        batches.push(batch);
        rest = more;
    }
    batches
}

/// The script call of a batch.
pub(super) fn call(batch: &[ScriptCheck<'_>]) -> Request {
    let call = script::encode(batch, Clock::Server);
    Request::call(&CHECK, &call.keys, &call.args)
}

pub(super) fn decode(reply: Outcome, batch: &[ScriptCheck<'_>]) -> Result<ScriptReply, StoreError> {
    let numbers = value::integers(reply?)?;
    script::decode(&numbers, batch).map_err(|e| StoreError::Corrupt(e.to_string()))
}

/// The results of one call, whose first check is `asked[offset]`.
fn verdicts(
    reply: ScriptReply,
    asked: &[&CheckPlan<'_>],
    offset: usize,
) -> Vec<Result<Verdict, CheckError>> {
    let now_ms = reply.now_ms;
    let planned = asked.iter().skip(offset);
    let results = reply.results.into_iter().zip(planned);
    results
        .map(|(result, planned)| match result {
            Ok(verdict) => Ok((verdict, now_ms)),
            Err(error) => Err(undecided(error, planned, |limit| limit)),
        })
        .collect()
}

/// Why a check was not decided; `index` is that of a limit of the check.
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

#[cfg(test)]
mod tests {
    use algorithms::{Algorithm, Kind, Parameters};

    use super::*;

    fn limit(algorithm: &Algorithm) -> ScriptLimit<'_> {
        ScriptLimit {
            key: b"k",
            algorithm,
            generation: 1,
            cost: 1,
            debit: 0,
            lease: None,
            free: &[],
            mode: algorithms::check::Mode::Enforce,
        }
    }

    fn algorithm(kind: Kind, sub_windows: Option<u64>) -> Algorithm {
        let parameters = Parameters {
            sub_windows,
            ..Parameters::new(kind, 10, 60_000)
        };
        Algorithm::new(&parameters).unwrap()
    }

    #[test]
    fn batches_keep_every_check_once_and_in_order_and_weigh_little() {
        let plain = algorithm(Kind::TokenBucket, None);
        let log = algorithm(Kind::SlidingWindowLog, None);
        let dear = algorithm(Kind::SlidingWindowBuckets, Some(1000));
        let check = |limits: &[&'static str]| {
            let of = |name: &&str| match *name {
                "plain" => limit(&plain),
                "log" => limit(&log),
                _ => limit(&dear),
            };
            ScriptCheck {
                limits: limits.iter().map(of).collect(),
                options: algorithms::check::Options::default(),
            }
        };
        assert!(in_batches(&[]).is_empty());
        let sizes = |checks: &[ScriptCheck<'_>]| -> Vec<usize> {
            let batches = in_batches(checks);
            assert_eq!(batches.concat().len(), checks.len());
            batches.iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&vec![check(&["plain"]); 130]), [64, 64, 2]);
        assert_eq!(sizes(&vec![check(&["log", "plain"]); 10]), [7, 3]);
        assert_eq!(sizes(&vec![check(&["dear", "dear"]); 3]), [1, 1, 1]);
        assert_eq!(sizes(&vec![check(&["dear"]); 7]), [3, 3, 1]);
        let mixed = [check(&["plain"; 60]), check(&["dear"]), check(&["plain"])];
        assert_eq!(sizes(&mixed), [1, 2]);
    }
}
