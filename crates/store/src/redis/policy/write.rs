//! Writing records of limits.

use policy::{Name, Revision};
use redis_link::{Value, value};

use super::fields::{check_format, revision};
use crate::{
    DOMAINS_MAX, EditError, Signature, StoreError,
    edit::{self, HISTORY_BYTES_MAX, HISTORY_MAX, How, OverrideWrites, Plan},
    redis::RedisStore,
    scripts::POLICY_WRITE,
};

/// Overrides that one step of staging writes: a millisecond or two of the server's time.
const STAGE_STEP: usize = 500;
/// How long a staged write waits for its edit, in milliseconds, before it goes by itself.
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
        expected: &edit::Expected,
        plan: &Plan,
        by: &Signature,
    ) -> Result<Revision, EditError> {
        let staged = self.stage(domain, plan).await?;
        let (keys, args) = self.write_call(domain, expected, plan, staged, by);
        let reply = self.control_script(&POLICY_WRITE, &keys, &args).await?;
        outcome(reply, expected)
    }

    /// Writes what is too much for one script call under keys that no reader uses; the keys, in order.
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

    /// KEYS and ARGV of `lua/policy_write.lua`.
    fn write_call(
        &self,
        domain: &Name,
        expected: &edit::Expected,
        plan: &Plan,
        staged: Vec<String>,
        by: &Signature,
    ) -> (Vec<String>, Vec<String>) {
        let mut keys = vec![self.keys().policy(domain), self.keys().history(domain)];
        let (number, digest) = expected.as_arguments();
        let limit = plan.limit.as_ref().map(ToString::to_string);
        let mut args = vec![
            number,
            digest,
            plan.operation.to_owned(),
            by.author.clone(),
            by.reason.clone(),
            plan.before.clone(),
            plan.after.clone(),
            limit.unwrap_or_default(),
            plan.limits.clone().unwrap_or_default(),
            self.keys().edits(),
            domain.to_string(),
            HISTORY_MAX.to_string(),
            HISTORY_BYTES_MAX.to_string(),
        ];
        for names in [&plan.raise, &plan.forget] {
            args.push(names.len().to_string());
            args.extend(names.iter().map(ToString::to_string));
        }
        args.push(plan.overrides.len().to_string());
        for (limit, writes) in &plan.overrides {
            keys.push(self.keys().overrides(domain, limit));
            push_writes(&mut args, writes);
        }
        keys.extend(staged);
        (keys, args)
    }
}

fn push_writes(args: &mut Vec<String>, writes: &OverrideWrites) {
    let (how, fields) = match writes.how {
        How::Keep => ("keep", &writes.fields[..]),
        How::Clear => ("clear", &writes.fields[..]),
        How::Stage => ("staged", &[][..]),
    };
    args.push(how.to_owned());
    args.push(fields.len().to_string());
    for (field, json) in fields {
        args.push(field.clone());
        args.push(json.clone().unwrap_or_default());
    }
}

/// The reply of `lua/policy_write.lua`.
fn outcome(reply: Value, expected: &edit::Expected) -> Result<Revision, EditError> {
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
