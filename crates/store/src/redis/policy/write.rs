//! Writing records of limits.

use policy::{Name, OVERRIDES_MAX, Revision};
use redis_link::{Value, value};
use store_plan::{
    EditPlanError, Signature,
    edit::{Expected, How, Plan},
};

use super::fields::{check_format, revision};
use crate::{DOMAINS_MAX, EditError, StoreError, redis::RedisStore, scripts::POLICY_WRITE};

/// Overrides that one step of staging writes: a millisecond or two of the server's time.
const STAGE_STEP: usize = 500;
/// When a staged write without its edit expires, in milliseconds.
const STAGE_LIFE_MS: u64 = 600_000;

impl RedisStore {
    /// Two new domains at the same time may both be the last.
    pub(super) async fn has_room_for(&self, domain: &Name) -> Result<(), EditError> {
        let listed = self.listed().await?;
        if listed.len() < DOMAINS_MAX || listed.contains(domain) {
            return Ok(());
        }
        Err(EditError::TooManyDomains(listed.len()))
    }

    pub(in crate::redis) async fn write_plan(
        &self,
        domain: &Name,
        expected: &Expected,
        plan: &Plan,
        by: &Signature,
    ) -> Result<Revision, EditError> {
        let staged = self.stage(domain, plan).await?;
        let (keys, args) = plan.script_call(self.keys(), domain, expected, staged, by);
        let reply = self.control_script(&POLICY_WRITE, &keys, &args).await?;
        outcome(reply, expected)
    }

    /// Writes overrides that are too many for one script call under keys that no reader uses;
    /// returns the keys, in order.
    async fn stage(&self, domain: &Name, plan: &Plan) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        for (_, writes) in &plan.overrides {
            if writes.how != How::Stage {
                continue;
            }
            let key = self.keys().staged(domain, fastrand::u64(..));
            for fields in writes.fields.chunks(STAGE_STEP) {
                let mut set = redis_link::cmd("HSET");
                set.arg(&key);
                for (field, json) in fields {
                    set.arg(field).arg(json.as_deref().unwrap_or_default());
                }
                let mut expire = redis_link::cmd("PEXPIRE");
                expire.arg(&key).arg(STAGE_LIFE_MS);
                self.control_all([set, expire]).await?;
            }
            keys.push(key);
        }
        Ok(keys)
    }
}

/// The reply of `lua/policy_write.lua`.
fn outcome(reply: Value, expected: &Expected) -> Result<Revision, EditError> {
    let mut fields = value::items(reply)?.into_iter();
    let mut next = || fields.next().ok_or_else(value::short);
    let (status, number) = (value::integer(next()?)?, value::integer(next()?)?);
    let digest = value::text(next()?)?;
    let deleted = value::integer(next()?)? != 0;
    let found = || revision(Some(&number.to_string()), Some(&digest));
    match status {
        1 => Ok(found()?),
        0 => Err(EditError::Conflict {
            expected: expected.revision(),
            found: match (number, deleted) {
                (0, _) | (_, true) => None,
                _ => Some(found()?),
            },
        }),
        4 => Err(EditPlanError::TooManyOverrides {
            count: usize::try_from(number).unwrap_or(usize::MAX),
            max: OVERRIDES_MAX,
        }
        .into()),
        3 => Err(StoreError::Corrupt(
            "the overrides that were being written are gone; try again".to_owned(),
        )
        .into()),
        _ => Err(check_format(Some(&digest))
            .err()
            .unwrap_or_else(value::short)
            .into()),
    }
}
