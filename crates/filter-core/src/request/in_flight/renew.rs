//! Renews the slots of long requests until they end, and enters missing ones again.

use algorithms::{Missing, SlotAct};
use protocol::Answer;

use super::{InFlight, RENEWALS, RETRIES};
use crate::{host::Host, metrics::Event, request::SlotRelease, time::Now, worker::Worker};

impl InFlight {
    /// The breaker opened or closed. When it closes, the renewals that it stopped become due.
    pub(crate) fn look_at_breaker(&mut self, now: Now, open: bool) {
        if std::mem::replace(&mut self.stopped, open) && !open {
            self.next_us = self.next_us.min(now.mono_us);
        }
    }
}

impl Worker {
    /// Renews the slots of long requests.
    pub(crate) fn renew_slots(&mut self, host: &impl Host, now: Now) {
        if !now.reached(self.requests.in_flight.next_us) {
            return;
        }
        self.renew_shares(host, now);
        let (mut due, mut next_us) = (Vec::new(), u64::MAX);
        for (stream, held) in self.requests.in_flight.held.iter_mut() {
            for slot in &mut held.slots {
                let ttl_ms = slot.slot.ttl_ms().unwrap_or(u64::MAX);
                // Slots that are due a little later are renewed in the same check.
                if slot.renew_us <= now.after_ms(ttl_ms / RETRIES) {
                    slot.renew_us = now.after_ms(ttl_ms / RENEWALS);
                    due.push((Some(*stream), slot.clone()));
                }
                next_us = next_us.min(slot.renew_us);
            }
        }
        self.requests.in_flight.next_us = next_us;
        self.send_acts(now, SlotAct::Renew, due);
    }

    /// Handles the answer about slots: missing slots whose requests still run are entered again.
    pub(crate) fn on_slots_answered(
        &mut self,
        now: Now,
        sent: Now,
        release: &SlotRelease,
        answer: &Answer,
    ) {
        if release.act != SlotAct::Renew {
            return;
        }
        let limit = release.slots.first().map(|free| &free.limit);
        let limit = answer.limits.iter().find(|of| Some(&of.name) == limit);
        let bits = limit.and_then(|limit| limit.slot.filter(|_| limit.charged == 0));
        let missing = bits.map_or_else(Missing::default, |bits| {
            Missing::of(bits.start_ms, bits.parts)
        });
        let (mut gone, mut lapsed) = (Vec::new(), 0);
        for (position, (free, stream)) in release.slots.iter().zip(&release.streams).enumerate() {
            let Some(held) = self.requests.in_flight.slot(*stream, free) else {
                continue;
            };
            held.renew_us = sent.after_ms(free.slot.ttl_ms().unwrap_or(0) / RENEWALS);
            if missing.contains(position) {
                lapsed += u64::from(std::mem::replace(&mut held.stored, true));
                gone.push((Some(*stream), held.clone()));
            }
        }
        let entered = u64::try_from(gone.len()).unwrap_or(0) - lapsed;
        self.counts.happened_to(Event::SlotLapsed, lapsed);
        self.counts.happened_to(Event::SlotTaken, entered);
        self.send_acts(now, SlotAct::Enter, gone);
    }

    /// A check that renewed or entered slots got no answer: they are renewed soon.
    pub(crate) fn on_slots_unanswered(&mut self, now: Now, release: &SlotRelease) {
        let mut next_us = u64::MAX;
        for (free, stream) in release.slots.iter().zip(&release.streams) {
            if let Some(held) = self.requests.in_flight.slot(*stream, free) {
                held.renew_us = now.after_ms(free.slot.ttl_ms().unwrap_or(0) / RETRIES);
                next_us = next_us.min(held.renew_us);
            }
        }
        let in_flight = &mut self.requests.in_flight;
        in_flight.next_us = in_flight.next_us.min(next_us);
    }
}
