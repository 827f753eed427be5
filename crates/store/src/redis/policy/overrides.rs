//! Reading overrides: one, some, or how many there are.

use policy::{Name, Override, Revision};
use redis::{Cmd, Value};

use super::fields::head_state;
use crate::{
    HeadState, Keys, LimitOf, OverrideCursor, OverridePage, StoreError, Unfit, record,
    redis::{RedisStore, value},
};

/// Fields that one step of reading overrides asks for: a reply of about 100 KB.
const SCAN_COUNT: usize = 1000;

impl RedisStore {
    pub(in crate::redis) async fn read_override(
        &self,
        of: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.keys().overrides(of.domain, &of.limit.name));
        get.arg(Keys::override_field(values));
        let found = value::optional_text(self.control(get).await?)?;
        found
            .map(|json| record::read_override(of.limit, &json))
            .transpose()
    }

    pub(in crate::redis) async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        let counts = limits.iter().map(|limit| {
            let mut count = redis::cmd("HLEN");
            count.arg(self.keys().overrides(domain, limit));
            count
        });
        let count = |reply| Ok(u64::try_from(value::integer(reply)?).unwrap_or(0));
        let replies = self.control_all(counts).await?;
        replies.into_iter().map(count).collect()
    }

    pub(in crate::redis) async fn scan_overrides(
        &self,
        of: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        let reply = self
            .control(self.step(of.domain, &of.limit.name, cursor.0))
            .await?;
        let (next, pairs) = value::scan(reply)?;
        let texts = value::texts(pairs)?.into_iter().skip(1).step_by(2);
        Ok(OverridePage {
            overrides: texts.map(|json| Unfit::read(of.limit, json)).collect(),
            next: (next != 0).then_some(OverrideCursor(next)),
        })
    }

    /// The overrides of some limits as JSON; `None` if the record changed meanwhile.
    pub(super) async fn read_overrides(
        &self,
        domain: &Name,
        limits: &[Name],
        revision: &Revision,
    ) -> Result<Option<Vec<(Name, String)>>, StoreError> {
        let mut found = Vec::new();
        // A hash that just shrank gives some fields twice.
        let mut seen = std::collections::HashSet::new();
        let mut open: Vec<(&Name, u64)> = limits.iter().map(|name| (name, 0)).collect();
        while !open.is_empty() {
            let scans = open.iter().map(|(limit, at)| self.step(domain, limit, *at));
            let step = scans.chain([self.head_of(domain)]);
            let mut replies = self.control_all(step).await?;
            let head = head_state(replies.pop().unwrap_or(Value::Nil))?;
            if head != HeadState::Live(revision.clone()) {
                return Ok(None);
            }
            let mut still_open = Vec::new();
            for ((limit, _), reply) in open.into_iter().zip(replies) {
                let (next, pairs) = value::scan(reply)?;
                let mut texts = value::texts(pairs)?.into_iter();
                while let (Some(field), Some(json)) = (texts.next(), texts.next()) {
                    if seen.insert((limit, field)) {
                        found.push((limit.clone(), json));
                    }
                }
                if next != 0 {
                    still_open.push((limit, next));
                }
            }
            open = still_open;
        }
        Ok(Some(found))
    }

    fn step(&self, domain: &Name, limit: &Name, cursor: u64) -> Cmd {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(self.keys().overrides(domain, limit)).arg(cursor);
        scan.arg("COUNT").arg(SCAN_COUNT);
        scan
    }
}
