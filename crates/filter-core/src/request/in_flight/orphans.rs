//! Slots that a worker could not free before it was deleted: when Envoy receives a new configuration,
//! the worker of the old one is deleted with its last request. It writes the pending frees to shared
//! data, and any worker of the domain sends them.

use algorithms::SlotAct;

use crate::{
    call::{CHECK_PATH, CallId, encode_checks},
    codec::{Put, Reader},
    host::{Change, Host, update},
    request::PendingCheck,
    time::Now,
    worker::{Call, CallAnswer, Worker},
};

/// Bytes of the calls in shared data, at most; beyond that, slots expire.
const MAX_BYTES: usize = 256 * 1024;
/// How often a worker looks for frees in shared data.
const EVERY_MS: u64 = 500;
/// Checks in one call.
const MAX_CHECKS: usize = 128;

/// The frees that this worker has taken from shared data and is sending.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    looked_us: u64,
    /// Calls that carry frees, until they are answered.
    in_flight: Vec<(CallId, Frees)>,
}

/// The frees in one call.
#[derive(Debug)]
struct Frees {
    /// When the last of the slots expires, on the monotonic clock.
    until_us: u64,
    body: Vec<u8>,
}

fn key(domain: &str) -> Vec<u8> {
    format!("rl1:{domain}:freed").into_bytes()
}

impl Worker {
    /// Leaves the slots still to be freed to the other workers. The host must not use the worker
    /// afterwards.
    pub fn leave(&mut self, host: &impl Host, now: Now) {
        let frees = |check: &PendingCheck| {
            let release = check.free.as_ref();
            release.is_some_and(|of| of.act == SlotAct::Free)
        };
        let mut checks = self.calls.registry.take_checks();
        for check in &mut checks {
            self.free_doubtful(now, check);
            // Their requests are gone, and nobody else will receive the answers.
            self.undo_left(std::mem::take(&mut check.claims));
        }
        self.free_slots(host, now);
        checks.append(&mut self.calls.batcher.take_waiting());
        checks.append(&mut self.requests.holds.take_unsent());
        checks.retain(frees);
        for check in &mut checks {
            if let Some(release) = &check.free {
                check.entries = release.entries.clone();
            }
        }
        for batch in checks.chunks_mut(MAX_CHECKS) {
            let releases = batch.iter().filter_map(|check| check.free.as_ref());
            let until_us = releases.map(|release| release.until_us).max().unwrap_or(0);
            let body = encode_checks(self, batch);
            self.leave_call(host, now, &Frees { until_us, body });
        }
        for (_, frees) in std::mem::take(&mut self.requests.in_flight.orphans.in_flight) {
            self.leave_call(host, now, &frees);
        }
    }

    /// Sends the frees that deleted workers left.
    pub(crate) fn send_orphans(&mut self, host: &impl Host, now: Now) {
        let orphans = &mut self.requests.in_flight.orphans;
        if !now.reached(orphans.looked_us.saturating_add(EVERY_MS * 1000)) {
            return;
        }
        orphans.looked_us = now.mono_us;
        let key = key(self.config.domain.as_str());
        if host.load(&key).is_none_or(|left| left.bytes.is_empty()) {
            return;
        }
        let taken = update(host, &key, |bytes| {
            Change::Write(Vec::new(), bytes.to_vec())
        });
        let bytes = taken.unwrap_or_default();
        let mut reader = Reader::new(&bytes);
        while let Some(frees) = Frees::read(&mut reader) {
            let id = self.calls.registry.start_orphans();
            let body = frees.body.clone();
            let orphans = &mut self.requests.in_flight.orphans;
            orphans.in_flight.push((id, frees));
            self.call(Call {
                id,
                method: "POST",
                path: CHECK_PATH.to_owned(),
                headers: vec![("content-type", protocol::CHECK_CBOR.to_owned())],
                body: Some(body),
                timeout_ms: self.config.limiter.timeout_ms,
            });
        }
    }

    /// A call that carried frees was answered. If a limiter refuses it, the slots expire.
    pub(crate) fn on_orphans_answered(
        &mut self,
        host: &impl Host,
        now: Now,
        id: CallId,
        answer: Option<&dyn CallAnswer>,
    ) {
        let status = answer.and_then(|answer| answer.header(":status")?.first());
        if let Some(b'2' | b'4') = status {
            let in_flight = &mut self.requests.in_flight.orphans.in_flight;
            in_flight.retain(|(of, _)| *of != id);
        } else {
            self.on_orphans_failed(host, now, id);
        }
    }

    /// A call that carried frees failed: they go back to shared data. Freeing a slot twice does
    /// nothing.
    pub(crate) fn on_orphans_failed(&mut self, host: &impl Host, now: Now, id: CallId) {
        let in_flight = &mut self.requests.in_flight.orphans.in_flight;
        let at = in_flight.iter().position(|(of, _)| *of == id);
        if let Some((_, frees)) = at.map(|at| in_flight.swap_remove(at)) {
            self.leave_call(host, now, &frees);
        }
    }

    fn leave_call(&self, host: &impl Host, now: Now, frees: &Frees) {
        if now.reached(frees.until_us) {
            return;
        }
        // Contended: the slots expire.
        let _ = update(host, &key(self.config.domain.as_str()), |bytes| {
            let mut all = bytes.to_vec();
            if all.len() + frees.body.len() > MAX_BYTES {
                return Change::Keep(());
            }
            frees.write(&mut all);
            Change::Write(all, ())
        });
    }
}

impl Frees {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let until_us = reader.u64()?;
        let len = usize::try_from(reader.u32()?).ok()?;
        let body = reader.take(len)?.to_vec();
        Some(Self { until_us, body })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.until_us);
        out.put_u32(u32::try_from(self.body.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.body);
    }
}
