//! Reports of limiters in Redis.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use policy::Name;
use redis_link::{Lane, Request, Value, value};

use super::RedisStore;
use crate::{
    ActiveProxies, ActivityReport, ActivitySummary, Diagnostics, Fleet, PROXIES_MAX, ProxyCounts,
    Report, Resolution, StoreError, Telemetry,
    plan::telemetry::{self, PROXY_LIFE_MS},
    scripts::{POLICY_PROXIES, REPORT},
    wall_ms,
};

/// How far the server's clock is ahead of ours, in milliseconds, as of its last answer.
#[derive(Debug, Default)]
pub(super) struct ClockOffset(AtomicI64);

impl ClockOffset {
    pub(super) fn now_ms(&self) -> u64 {
        wall_ms().saturating_add_signed(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, server_ms: u64) {
        let signed = |ms| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead = signed(server_ms).saturating_sub(signed(wall_ms()));
        self.0.store(ahead, Ordering::Relaxed);
    }
}

#[async_trait]
impl Telemetry for RedisStore {
    async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError> {
        let mut counts = ProxyCounts::new();
        for call in in_calls(seen) {
            self.count_proxies_of(domain, &call, &mut counts).await?;
        }
        Ok(counts)
    }

    async fn report(&self, limiter: &str, reports: &[Report<'_>]) -> Result<(), StoreError> {
        if reports.is_empty() {
            return Ok(());
        }
        let calls = reports.iter().map(|report| self.call(limiter, report));
        let calls: Vec<Request> = calls.collect();
        let deadline = self.control_deadline();
        // A report that is written twice is stored once.
        for answer in self.servers.run(Lane::Control, &calls, deadline).await {
            let now_ms = value::integer(answer?)?;
            self.clock_offset.set(u64::try_from(now_ms).unwrap_or(0));
        }
        Ok(())
    }

    fn estimated_now_ms(&self) -> u64 {
        self.clock_offset.now_ms()
    }

    async fn fleet(&self) -> Result<Fleet, StoreError> {
        let now_ms = self.now_ms().await?;
        let newest = now_ms / telemetry::FLEET_SLOT_MS;
        let slots = (0..telemetry::FLEET_SLOTS).map(|back| newest.saturating_sub(back));
        let keys = slots.map(|slot| self.keys().fleet(slot));
        let reports = self.reports(keys).await?;
        Ok(Fleet::from_reports(reports.into_iter().flatten(), now_ms))
    }

    async fn activity(
        &self,
        domain: &Name,
        resolution: Resolution,
        span_ms: u64,
    ) -> Result<ActivitySummary, StoreError> {
        let now_ms = self.now_ms().await?;
        let slots = resolution.back(now_ms, span_ms);
        let keys = slots.map(|slot| self.keys().activity(domain, slot));
        let slots = self.reports(keys).await?;
        let read =
            |(limiter, _, json): (String, u64, String)| (limiter, ActivityReport::read(&json));
        let earliest_first = slots.into_iter().rev();
        let slots = earliest_first.map(|reports| reports.into_iter().map(read).collect());
        Ok(ActivitySummary::from_slots(slots, now_ms))
    }
}

impl RedisStore {
    fn call(&self, limiter: &str, report: &Report<'_>) -> Request {
        let (key, json, kept_ms) = match report {
            Report::Fleet(fleet_report) => {
                let slot = self.clock_offset.now_ms() / telemetry::FLEET_SLOT_MS;
                let key = self.keys().fleet(slot);
                (key, fleet_report.to_json(), telemetry::FLEET_KEPT_MS)
            }
            Report::Activity {
                domain,
                slot,
                report: noted,
            } => {
                let key = self.keys().activity(domain, *slot);
                (key, noted.to_json(), slot.resolution.kept_ms())
            }
        };
        let bound = telemetry::REPORTS_MAX.to_string();
        let args = [limiter.to_owned(), json, kept_ms.to_string(), bound];
        Request::call(&REPORT, &[key], &args)
    }

    /// Every report under each of these keys: the limiter, when it wrote it, and the JSON.
    async fn reports(
        &self,
        keys: impl Iterator<Item = String>,
    ) -> Result<Vec<Vec<(String, u64, String)>>, StoreError> {
        let all = keys.map(|key| redis_link::cmd(("HGETALL", key)));
        let mut reports = Vec::new();
        for reply in self.control_all(all).await? {
            // A field that no limiter wrote is skipped.
            let readable = value::readable_pairs(reply).filter_map(|(limiter, report)| {
                let (at_ms, json) = report.split_once(' ')?;
                Some((limiter, at_ms.parse().ok()?, json.to_owned()))
            });
            reports.push(readable.collect());
        }
        Ok(reports)
    }
}

/// The answer to TIME, in milliseconds since the epoch.
pub(super) fn time(answer: Value) -> Result<u64, StoreError> {
    let [seconds, micros] = value::integers(answer)?[..] else {
        return Err(value::short());
    };
    let ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
    u64::try_from(ms).map_err(|_| value::short())
}

// ---- Which proxies are active for which limits.

/// Limits and proxies in one script call, which takes the server about a millisecond.
const PROXIES_PER_CALL: usize = 150;

/// A limit, and some of the proxies that are active for it.
pub(super) type Piece<'a> = (&'a Option<Name>, &'a [String]);

impl RedisStore {
    pub(super) async fn count_proxies_of(
        &self,
        domain: &Name,
        asked: &[Piece<'_>],
        counts: &mut ProxyCounts,
    ) -> Result<(), StoreError> {
        let mut keys = Vec::with_capacity(asked.len());
        let mut args = vec![PROXY_LIFE_MS.to_string(), PROXIES_MAX.to_string()];
        for (limit, ids) in asked {
            keys.push(self.keys().proxies(domain, limit.as_ref()));
            args.push(ids.len().to_string());
            args.extend(ids.iter().cloned());
        }
        let reply = self
            .control_script(&Request::call(&POLICY_PROXIES, &keys, &args))
            .await?;
        let found = value::integers(reply)?.into_iter();
        let found = found.map(|n| u64::try_from(n).unwrap_or(0));
        // If a limit is in several calls, the last count includes all its proxies.
        let limits = asked.iter().map(|(limit, _)| (*limit).clone());
        counts.extend(limits.zip(found));
        Ok(())
    }
}

/// Cuts what was asked so that no part is much larger than [`PROXIES_PER_CALL`].
pub(super) fn in_calls(seen: &ActiveProxies) -> Vec<Vec<Piece<'_>>> {
    let mut calls = Vec::new();
    let (mut call, mut size) = (Vec::new(), 0);
    for (limit, proxies) in seen {
        let none = proxies.is_empty().then_some(proxies.as_slice());
        for ids in proxies.chunks(PROXIES_PER_CALL).chain(none) {
            if size > 0 && size + 1 + ids.len() > PROXIES_PER_CALL {
                calls.push(std::mem::take(&mut call));
                size = 0;
            }
            call.push((limit, ids));
            size += 1 + ids.len();
        }
    }
    calls.push(call);
    calls.retain(|call| !call.is_empty());
    calls
}
