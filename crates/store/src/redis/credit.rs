//! Units given back to a bucket.

use redis_link::{Lane, Request, value};

use super::RedisStore;
use crate::{
    CheckError, Credit, CreditReport, EditError, Signature, StoreError,
    clock::wall_ms,
    edit,
    plan::{self, CheckPlan},
    script::{self, CREDIT, Clock, Credited},
};

impl RedisStore {
    pub(super) async fn credit(
        &self,
        credit: &Credit<'_>,
        by: &Signature,
    ) -> Result<CreditReport, EditError> {
        let policy = credit.policy;
        let (limit, values) = (credit.limit, credit.values);
        let planned = CheckPlan::of_bucket(policy, limit, values, 0, self.keys(), wall_ms())?;
        let Some(bucket) = planned.buckets().next() else {
            return Ok(CreditReport::of_nothing(policy));
        };
        let Credited::Done {
            used,
            left_before,
            left,
            reset_after_ms,
        } = self.give_back(credit, bucket).await?
        else {
            return Ok(CreditReport::of_nothing(policy));
        };
        let mut report = CreditReport {
            used,
            left_before,
            left,
            reset_after_ms,
            revision: policy.revision().number,
        };
        // The bucket first: a cache filled from it before is dropped by the new generation.
        if let Some(limit) = planned.limit().filter(|_| used && !credit.peek) {
            let plan = edit::credit(limit, credit.units, &bucket.key);
            let revision = self
                .write_plan(policy.domain(), &edit::Expected::Any, &plan, by)
                .await?;
            report.revision = revision.number;
        }
        Ok(report)
    }

    async fn give_back(
        &self,
        credit: &Credit<'_>,
        bucket: &plan::Bucket,
    ) -> Result<Credited, EditError> {
        let call = script::encode_credit(
            &script::Credit {
                key: bucket.key.as_bytes(),
                algorithm: &bucket.algorithm,
                generation: bucket.generation,
                units: credit.units,
                lease_ttl_ms: bucket.lease_ask().ttl_ms,
                peek: credit.peek,
                force: credit.force,
            },
            Clock::Server,
        );
        let calls = [Request::call(&CREDIT, &call.keys, &call.args)];
        let deadline = self.control_deadline();
        let mut answers = self.servers.run(Lane::Control, &calls, deadline).await;
        let numbers = value::integers(answers.pop().ok_or_else(value::short)??)?;
        match script::decode_credited(&numbers) {
            Ok(Credited::Stale) => Err(CheckError::Stale.into()),
            Ok(Credited::Corrupt) => Err(CheckError::CorruptBucket(credit.limit.clone()).into()),
            Ok(done) => Ok(done),
            Err(error) => Err(StoreError::Corrupt(error.to_string()).into()),
        }
    }
}
