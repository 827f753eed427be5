//! Requests that reserved units, and their actual costs. The costs of requests that ended in one turn
//! leave together, in one check for each bucket.
//!
//! A settlement that may not have arrived is sent again: the bucket executes it once.

use std::rc::Rc;

use algorithms::SlotAct;

use super::meter::{Meter, Response, Settled};
use crate::{
    grouped::grouped,
    request::{ByStream, PendingCheck, SlotRelease},
    response::ResponseHeaders,
    time::Now,
    worker::{StreamId, Worker},
};

/// How long a settlement that no limiter has received is sent again.
const RESEND_MS: u64 = 60_000;

/// The requests of this worker that reserved units.
#[derive(Debug, Default)]
pub(crate) struct Metered {
    meters: ByStream<Box<Meter>>,
    /// Settlements of requests that ended since the last event.
    settled: Vec<Settled>,
}

/// What the host does with the rest of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metering {
    /// Nothing.
    None,
    /// It passes body and trailers to [`Worker::on_response_body`] and
    /// [`Worker::on_response_trailers`].
    Reads,
    /// Nothing any more. It calls [`Worker::on_turn_end`] when this turn ends.
    Settled,
}

impl Metered {
    /// Whether no request has units reserved, and no settlement is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.meters.is_empty() && self.settled.is_empty()
    }

    /// Follows the response of a request that continues.
    pub(crate) fn follow(&mut self, stream: StreamId, meter: Option<Box<Meter>>) {
        if let Some(meter) = meter
            && let Some(before) = self.meters.insert(stream, meter)
        {
            self.settled.extend(before.settle(false));
        }
    }

    /// Refunds the reserved units of a request that does not continue.
    pub(crate) fn cancel(&mut self, meter: Option<&Meter>) {
        self.settled
            .extend(meter.into_iter().flat_map(Meter::cancel));
    }

    /// Settles for a request that is gone; returns whether it had reserved units. `forwarded`:
    /// its upstream may have worked for it.
    pub(crate) fn end(&mut self, stream: StreamId, forwarded: bool) -> bool {
        if self.meters.is_empty() {
            return false;
        }
        let meter = self.meters.remove(stream);
        let any = meter.is_some();
        match meter {
            Some(meter) if forwarded => self.settled.extend(meter.settle(false)),
            meter => self.cancel(meter.as_deref()),
        }
        any
    }

    /// A response begins; `ended`: it has no body.
    pub(crate) fn begin(
        &mut self,
        stream: StreamId,
        headers: &impl ResponseHeaders,
        ended: bool,
    ) -> Metering {
        if self.meters.is_empty() {
            return Metering::None;
        }
        let Some(meter) = self.meters.get_mut(stream) else {
            return Metering::None;
        };
        meter.begin(headers);
        if !ended {
            return Metering::Reads;
        }
        let meter = self.meters.remove(stream);
        self.settled
            .extend(meter.iter().flat_map(|meter| meter.settle(true)));
        Metering::Settled
    }

    fn finish(&mut self, stream: StreamId, response: &impl Response) -> Metering {
        let Some(mut meter) = self.meters.remove(stream) else {
            return Metering::None;
        };
        meter.read_last(response);
        self.settled.extend(meter.settle(true));
        Metering::Settled
    }
}

impl Worker {
    /// A chunk of `size` bytes of a response's body passes; `ended`: it is the last, and no trailers
    /// follow.
    pub fn on_response_body(
        &mut self,
        stream: StreamId,
        size: usize,
        ended: bool,
        response: &impl Response,
    ) -> Metering {
        let metered = &mut self.requests.metered;
        let Some(meter) = metered.meters.get_mut(stream) else {
            return Metering::None;
        };
        meter.chunk(size, response);
        if !ended {
            return Metering::Reads;
        }
        self.ticks.hurry();
        metered.finish(stream, response)
    }

    /// The trailers of a response pass, which end it.
    pub fn on_response_trailers(&mut self, stream: StreamId, response: &impl Response) -> Metering {
        self.ticks.hurry();
        self.requests.metered.finish(stream, response)
    }

    /// Sends the costs of requests that ended, those of one bucket together.
    pub(crate) fn settle_costs(&mut self, now: Now) {
        let settled = std::mem::take(&mut self.requests.metered.settled);
        for of in &settled {
            self.counts.settled(of);
        }
        let same = |one: &Settled, other: &Settled| {
            one.key == other.key && one.settlement.limit == other.settlement.limit
        };
        for settled in grouped(settled, |settled| settled.key.hash(), same) {
            for together in settled.chunks(protocol::MAX_SETTLED) {
                self.send_settlements(now, together);
            }
        }
    }

    fn send_settlements(&mut self, now: Now, settled: &[Settled]) {
        let Some(first) = settled.first() else {
            return;
        };
        let request = Rc::clone(&first.request);
        let check = PendingCheck::of_slots(SlotRelease {
            act: SlotAct::Free,
            slots: Vec::new(),
            settle: settled.iter().map(|of| of.settlement.clone()).collect(),
            streams: Vec::new(),
            skip: Some(request.skip.clone()),
            entries: request.entries.clone(),
            until_us: now.after_ms(RESEND_MS),
        });
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
        }
    }
}
