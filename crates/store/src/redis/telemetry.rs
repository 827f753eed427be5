//! Notes of what limiters saw.

use std::sync::atomic::{AtomicI64, Ordering};

use policy::Name;
use redis::{Pipeline, Value};

use super::{
    RedisStore,
    link::Deadline,
    run::{self, Call},
    value,
};
use crate::{
    Fleet, Note, Observed, StoreError, Stretch,
    clock::wall_ms,
    scripts::NOTE,
    telemetry::{self, Noted},
};

/// How far the server's clock is ahead of ours, in milliseconds, as of its last answer.
#[derive(Debug, Default)]
pub(super) struct Ahead(AtomicI64);

impl Ahead {
    pub(super) fn now_ms(&self) -> u64 {
        wall_ms().saturating_add_signed(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, server_ms: u64) {
        let signed = |ms| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead = signed(server_ms).saturating_sub(signed(wall_ms()));
        self.0.store(ahead, Ordering::Relaxed);
    }
}

impl RedisStore {
    pub(super) async fn note(&self, limiter: &str, notes: &[Note<'_>]) -> Result<(), StoreError> {
        if notes.is_empty() {
            return Ok(());
        }
        let calls: Result<Vec<_>, StoreError> =
            notes.iter().map(|note| self.call(limiter, note)).collect();
        let deadline = Deadline::within(self.options.control_timeout);
        // One that is written twice says the same twice.
        for reply in run::scripts(&self.control, &NOTE, &calls?, deadline).await? {
            let now_ms = value::integer(reply?)?;
            self.ahead.set(u64::try_from(now_ms).unwrap_or(0));
        }
        Ok(())
    }

    fn call(&self, limiter: &str, note: &Note<'_>) -> Result<Call<String, String>, StoreError> {
        let (key, json, kept_ms) = match note {
            Note::Fleet(sighting) => {
                let slot = self.ahead.now_ms() / telemetry::FLEET_SLOT_MS;
                let key = self.keys().fleet(slot);
                (key, sighting.to_json()?, telemetry::FLEET_KEPT_MS)
            }
            Note::Activity {
                domain,
                slot,
                noted,
            } => {
                let key = self.keys().activity(domain, *slot);
                (key, noted.to_json()?, slot.stretch.kept_ms())
            }
        };
        let bound = telemetry::NOTES_MAX.to_string();
        Ok(Call {
            keys: vec![key],
            args: vec![limiter.to_owned(), json, kept_ms.to_string(), bound],
        })
    }

    pub(super) async fn fleet(&self) -> Result<Fleet, StoreError> {
        let now_ms = self.time().await?;
        let newest = now_ms / telemetry::FLEET_SLOT_MS;
        let slots = (0..telemetry::FLEET_SLOTS).map(|back| newest.saturating_sub(back));
        let keys = slots.map(|slot| self.keys().fleet(slot));
        Ok(Fleet::of(self.notes(keys).await?, now_ms))
    }

    pub(super) async fn activity(
        &self,
        domain: &Name,
        stretch: Stretch,
        span_ms: u64,
    ) -> Result<Observed, StoreError> {
        let now_ms = self.time().await?;
        let slots = stretch.back(now_ms, span_ms);
        let keys = slots.map(|slot| self.keys().activity(domain, slot));
        let notes = self.notes(keys).await?;
        let notes = notes.into_iter();
        let notes = notes.map(|(limiter, _, json)| (limiter, Noted::read(&json)));
        Ok(Observed::of(notes, now_ms))
    }

    /// The server's clock, in milliseconds since the epoch.
    async fn time(&self) -> Result<u64, StoreError> {
        let mut time = Pipeline::new();
        time.cmd("TIME");
        let reply = self.control(&time).await?.pop().unwrap_or(Value::Nil);
        let [seconds, micros] = value::integers(reply)?[..] else {
            return Err(value::short());
        };
        let ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
        u64::try_from(ms).map_err(|_| value::short())
    }

    /// Every note under these keys: who wrote it, when, and what.
    async fn notes(
        &self,
        keys: impl Iterator<Item = String>,
    ) -> Result<Vec<(String, u64, String)>, StoreError> {
        let mut all = Pipeline::new();
        for key in keys {
            all.cmd("HGETALL").arg(key);
        }
        let mut notes = Vec::new();
        for reply in self.control(&all).await? {
            for (limiter, note) in value::pairs(reply)? {
                // What no limiter of ours wrote says nothing.
                if let Some((at_ms, json)) = note.split_once(' ')
                    && let Ok(at_ms) = at_ms.parse()
                {
                    notes.push((limiter, at_ms, json.to_owned()));
                }
            }
        }
        Ok(notes)
    }
}
