//! Slots that a worker could not free before it was deleted: when Envoy gets a new configuration, the
//! worker of the old one ends with its last request. It leaves the frees in shared data, and any
//! worker of the domain sends them.

use algorithms::SlotAct;

use crate::{
    call::{CHECK_PATH, CallId, encode_checks},
    codec::{Put, Reader},
    host::{Change, Host, update},
    request::PendingCheck,
    time::Now,
    worker::{Call, Worker},
};

/// Bytes of the calls in shared data, at most; beyond that, slots expire.
const MAX_BYTES: usize = 256 * 1024;
/// How often a worker looks whether something was left.
const EVERY_MS: u64 = 500;
/// Checks in one call.
const MAX_CHECKS: usize = 128;

/// This worker's part in sending them.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    looked_us: u64,
    /// Calls that carry some, until they are answered.
    in_flight: Vec<(CallId, Vec<u8>)>,
}

fn key(domain: &str) -> Vec<u8> {
    format!("rl1:{domain}:freed").into_bytes()
}

impl Worker {
    /// Leaves the slots that are still to be freed to the other workers. Nothing may follow.
    pub fn leave(&mut self, host: &impl Host, now: Now) {
        self.free_in_flight(host, now);
        let frees = |check: &PendingCheck| {
            let release = check.free.as_ref();
            release.is_some_and(|of| of.act == SlotAct::Free && of.skip.is_some())
        };
        let mut checks = self.calls.registry.take_checks();
        for check in &checks {
            self.free_doubtful(now, check);
        }
        checks.append(&mut self.calls.batcher.take_waiting());
        checks.append(&mut self.requests.holds.take_unsent());
        checks.retain(frees);
        for check in &mut checks {
            if let Some(release) = &check.free {
                check.entries = release.entries.clone();
            }
        }
        for batch in checks.chunks_mut(MAX_CHECKS) {
            let body = encode_checks(self, batch);
            self.leave_call(host, &body);
        }
        for (_, body) in std::mem::take(&mut self.requests.in_flight.orphans.in_flight) {
            self.leave_call(host, &body);
        }
    }

    /// Sends what deleted workers left.
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
        while let Some(body) = next(&mut reader) {
            let id = self.calls.registry.start_orphans();
            let orphans = &mut self.requests.in_flight.orphans;
            orphans.in_flight.push((id, body.to_vec()));
            self.call(Call {
                id,
                method: "POST",
                path: CHECK_PATH.to_owned(),
                headers: vec![("content-type", protocol::CHECK_CBOR.to_owned())],
                body: Some(body.to_vec()),
                timeout_ms: self.config.limiter.timeout_ms,
            });
        }
    }

    /// A call that carried some ended. They are left again if it failed; the next worker
    /// cannot see whether they expired, but frees of slots that are gone do nothing.
    pub(crate) fn on_orphans_answered(&mut self, host: &impl Host, id: CallId, answered: bool) {
        let in_flight = &mut self.requests.in_flight.orphans.in_flight;
        let at = in_flight.iter().position(|(of, _)| *of == id);
        if let Some((_, body)) = at.map(|at| in_flight.swap_remove(at))
            && !answered
        {
            self.leave_call(host, &body);
        }
    }

    fn leave_call(&self, host: &impl Host, body: &[u8]) {
        // Contended: the slots expire.
        let _ = update(host, &key(self.config.domain.as_str()), |bytes| {
            let mut all = bytes.to_vec();
            if all.len() + body.len() > MAX_BYTES {
                return Change::Keep(());
            }
            all.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
            all.extend_from_slice(body);
            Change::Write(all, ())
        });
    }
}

fn next<'b>(reader: &mut Reader<'b>) -> Option<&'b [u8]> {
    let len = usize::try_from(reader.u32()?).ok()?;
    reader.take(len)
}
