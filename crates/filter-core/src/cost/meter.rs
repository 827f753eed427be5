//! Measures what the response of one request costs that reserved units.

use std::rc::Rc;

use policy::{IfAbsent, Limit, Name, Pointer, ResponsePrice, ResponseValue, whole_number};
use protocol::{Answer, CostSettlement, Reservation};

use super::body_reader::{BodyReader, Format, is_encoded};
use crate::{
    active_policy::ActiveLimit,
    cache::BucketKey,
    request::{ByStream, PendingCheck, RequestDescriptor, SlotRelease, grouped},
    response::ResponseHeaders,
    time::Now,
    worker::{ResponseNeeds, StreamId, Worker},
};

/// The property of Envoy with a request's dynamic metadata.
const METADATA: &str = "metadata\0filter_metadata";
/// Headers that say how a body, or each message in it, is compressed.
const CODINGS: [&str; 3] = [
    "content-encoding",
    "grpc-encoding",
    "connect-content-encoding",
];

/// A response at the host, while it passes.
pub trait Response {
    /// Up to `len` bytes of the current chunk of the body; `None`: they cannot be read.
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>>;
    /// The first value of a trailer.
    fn trailer(&self, name: &str) -> Option<Vec<u8>>;
    /// A property by its path, whose parts are separated by zero bytes.
    fn property(&self, path: &[u8]) -> Option<Vec<u8>>;
}

/// A request that reserved units, until its response ended.
#[derive(Debug)]
pub(crate) struct Meter {
    request: Rc<RequestDescriptor>,
    reserved: Vec<Reserved>,
    /// 0 before the response has begun.
    status: u16,
    /// In the order of [`Meter::places`]. The reader has the numbers in the body.
    numbers: Vec<Option<u64>>,
    body: BodyReader,
    /// The body is compressed, a part, or left out (HEAD), so its length says nothing.
    opaque: bool,
}

/// Units that a request reserved in one bucket.
#[derive(Debug)]
struct Reserved {
    limit: Rc<ActiveLimit>,
    key: BucketKey,
    reservation: Reservation,
    /// What the bucket holds, in units.
    capacity: u64,
}

/// What a request cost in one bucket, still to be sent.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) request: Rc<RequestDescriptor>,
    pub(crate) limit: Name,
    pub(crate) key: BucketKey,
    pub(crate) settlement: CostSettlement,
    /// Whether the response did not contain its cost.
    pub(crate) absent: bool,
    /// Whether the cost was estimated from the bytes that passed.
    pub(crate) estimated: bool,
    /// Whether the limit's `max` cut the cost.
    pub(crate) cut: bool,
}

impl Meter {
    /// The reservations in the answer to a check; `None`: there are none.
    pub(crate) fn from_answer(check: &PendingCheck, answer: &Answer) -> Option<Box<Self>> {
        if !answer.allowed {
            return None;
        }
        let reserved = answer.limits.iter().filter_map(|answered| {
            let reservation = answered.reservation?;
            let limit_check = check.find(&answered.name)?;
            Some(Reserved {
                limit: Rc::clone(&limit_check.limit),
                key: limit_check.key,
                reservation,
                capacity: answered.limit.unwrap_or(0),
            })
        });
        let reserved: Vec<Reserved> = reserved.collect();
        (!reserved.is_empty()).then(|| {
            Box::new(Self {
                request: Rc::new(RequestDescriptor::from_check(check)),
                reserved,
                status: 0,
                numbers: Vec::new(),
                body: BodyReader::new(Format::Other, &[]),
                opaque: check.head,
            })
        })
    }

    /// What the request's upstream has to send so that the cost can be read.
    #[inline(never)]
    pub(crate) fn needs(&self) -> ResponseNeeds {
        let mut needs = ResponseNeeds::default();
        for (_, _, price) in self.limits() {
            needs.body |= price.needs_body();
            needs.trailers |= price.has_trailer();
        }
        needs
    }

    fn limits(&self) -> impl Iterator<Item = (&Reserved, &Limit, &ResponsePrice)> {
        self.reserved.iter().filter_map(|reserved| {
            let limit: &Limit = &reserved.limit;
            Some((reserved, limit, limit.response_price()?))
        })
    }

    /// Where the response may contain numbers, in the order of the limits.
    fn places(&self) -> impl Iterator<Item = &ResponseValue> {
        let prices = self.limits().map(|(_, _, price)| price);
        prices
            .flat_map(ResponsePrice::terms)
            .map(|term| &term.place)
    }

    fn pointers(&self) -> Vec<&Pointer> {
        let pointers = self.places().filter_map(|place| match place {
            ResponseValue::Json(pointer) => Some(pointer),
            _ => None,
        });
        pointers.collect()
    }

    /// The response begins.
    pub(crate) fn begin(&mut self, headers: &impl ResponseHeaders) {
        let status = headers.get(":status").and_then(|text| whole_number(&text));
        self.status = status
            .and_then(|number| number.try_into().ok())
            .unwrap_or(0);
        let number = |place: &ResponseValue| match place {
            ResponseValue::Header(name) => headers.get(name).and_then(|text| whole_number(&text)),
            _ => None,
        };
        self.numbers = self.places().map(number).collect();
        if !self.needs().body {
            return;
        }
        let mut codings = CODINGS.iter().filter_map(|name| headers.get(name));
        self.opaque |=
            matches!(self.status, 206 | 226) || codings.any(|coding| is_encoded(&coding));
        let media_type = headers.get("content-type").filter(|_| !self.opaque);
        let format = Format::from_media_type(media_type.as_deref(), None);
        self.body = BodyReader::new(format, &self.pointers());
    }

    /// A chunk of `size` bytes passes.
    pub(crate) fn chunk(&mut self, size: usize, response: &impl Response) {
        let mut body = std::mem::replace(&mut self.body, BodyReader::new(Format::Other, &[]));
        let bytes = |from, len| response.body(from, len);
        body.read_chunk(&self.pointers(), size, bytes);
        self.body = body;
    }

    /// The response completed: reads trailers and metadata.
    fn read_last(&mut self, response: &impl Response) {
        let number = |place: &ResponseValue| match place {
            ResponseValue::Trailer(name) => whole_number(&response.trailer(name)?),
            ResponseValue::Metadata(keys) => {
                let path = format!("{METADATA}\0{}", keys.join("\0"));
                metadata_number(&response.property(path.as_bytes())?)
            }
            ResponseValue::Header(_) | ResponseValue::Json(_) => None,
        };
        let last: Vec<Option<u64>> = self.places().map(number).collect();
        for (known, last) in self.numbers.iter_mut().zip(last) {
            *known = known.or(last);
        }
    }

    /// The cost of the request in each bucket; `ended`: the response completed.
    pub(crate) fn settle(&self, ended: bool) -> Vec<Settled> {
        let whole = self.body.is_whole(ended);
        let settled = self.limits().map(|(reserved, limit, price)| {
            let said = self.cost(price, whole);
            let bytes = self.bytes_passed(price, ended);
            let absent = price.absent(reserved.reservation.units, bytes, reserved.capacity);
            let units = said.unwrap_or_else(|| match price.if_absent {
                // The cost in the part that arrived is a lower bound.
                IfAbsent::Estimate => absent.max(self.cost(price, true).unwrap_or(0)),
                IfAbsent::Reserved | IfAbsent::Max | IfAbsent::Units(_) => absent,
            });
            let absent = said.is_none();
            let estimated = absent && price.if_absent == IfAbsent::Estimate && bytes.is_some();
            Settled {
                absent,
                estimated,
                cut: units > price.max,
                ..self.settled(reserved, limit, price.cut(units))
            }
        });
        settled.collect()
    }

    /// The bytes that a cost may be estimated from; `None`: the filter cannot read what passed, so the
    /// client might have chosen that.
    fn bytes_passed(&self, price: &ResponsePrice, ended: bool) -> Option<u64> {
        let bytes = self.body.bytes();
        // The body of a redirect is no answer.
        if (300..400).contains(&self.status) {
            return Some(0);
        }
        let unread = bytes > 0 && price.has_json() && !self.body.is_legible(ended);
        (!self.opaque && !unread).then_some(bytes)
    }

    /// Refunds all reserved units: the request did not continue.
    pub(crate) fn cancel(&self) -> impl Iterator<Item = Settled> {
        let limits = self.limits();
        limits.map(|(reserved, limit, _)| self.settled(reserved, limit, 0))
    }

    fn settled(&self, reserved: &Reserved, limit: &Limit, units: u64) -> Settled {
        Settled {
            request: Rc::clone(&self.request),
            limit: limit.name.clone(),
            key: reserved.key,
            settlement: CostSettlement {
                reservation: reserved.reservation,
                units,
            },
            absent: false,
            estimated: false,
            cut: false,
        }
    }

    /// The cost that the response states; `body`: whether numbers in its body count.
    fn cost(&self, price: &ResponsePrice, body: bool) -> Option<u64> {
        if self.status == 0 {
            return None;
        }
        if let Some(units) = price.on_error.filter(|_| self.status >= 400) {
            return Some(units);
        }
        price.said(self.status, |place| match place {
            ResponseValue::Json(_) if !body => None,
            ResponseValue::Json(pointer) => {
                let at = self.pointers().iter().position(|of| *of == pointer)?;
                self.body.found(at)
            }
            _ => {
                let at = self.places().position(|of| of == place)?;
                *self.numbers.get(at)?
            }
        })
    }
}

/// A number in dynamic metadata, as text or as Envoy's float, rounded up.
fn metadata_number(bytes: &[u8]) -> Option<u64> {
    if let Some(number) = whole_number(bytes) {
        return Some(number);
    }
    let bits = u64::from_le_bytes(bytes.try_into().ok()?);
    whole_of_float(bits)
}

/// Converts the bits of a float to a whole number, rounded up; `None`: negative, or not below 2^63.
fn whole_of_float(bits: u64) -> Option<u64> {
    let (exponent, fraction) = (bits >> 52, bits & ((1 << 52) - 1));
    if bits == 0 {
        return Some(0);
    }
    // An exponent of 1023 is 2^0; a value below 1 rounds up to 1. The sign is the highest bit, so a
    // negative number is out of range here.
    if exponent >= 1023 + 63 {
        return None;
    }
    let Some(power) = exponent.checked_sub(1023) else {
        return Some(1);
    };
    let digits = fraction | 1 << 52;
    Some(match 52_u64.checked_sub(power) {
        Some(less) => (digits >> less) + u64::from(digits & ((1 << less) - 1) != 0),
        None => digits << (power - 52),
    })
}

// --- Requests that reserved units, and their actual costs. The costs of requests that ended in one turn
// leave together, in one check for each bucket.
//
// A settlement that may not have arrived is sent again: the bucket executes it once.

/// Bound: milliseconds for which a settlement that failed is sent again. Beyond it, the reserve
/// stands.
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
        self.ticks.tick_sooner();
        metered.finish(stream, response)
    }

    /// The trailers of a response pass, which end it.
    pub fn on_response_trailers(&mut self, stream: StreamId, response: &impl Response) -> Metering {
        self.ticks.tick_sooner();
        self.requests.metered.finish(stream, response)
    }

    /// Sends the costs of requests that ended, those of one bucket together.
    pub(crate) fn settle_costs(&mut self, now: Now) {
        let settled = std::mem::take(&mut self.requests.metered.settled);
        for of in &settled {
            self.counts.settled(of);
        }
        let same =
            |one: &Settled, other: &Settled| one.key == other.key && one.limit == other.limit;
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
            slots: Vec::new(),
            settle: settled
                .iter()
                .map(|of| (of.limit.clone(), of.settlement))
                .collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_metadata_are_floats_or_text() {
        for (number, units) in [
            (0.0, Some(0)),
            (1.0, Some(1)),
            (0.25, Some(1)),
            (1234.0, Some(1234)),
            (1234.5, Some(1235)),
            (9_007_199_254_740_992.0, Some(1 << 53)),
            (1e18, Some(1_000_000_000_000_000_000)),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (1e30, None),
        ] {
            assert_eq!(
                metadata_number(&f64::to_le_bytes(number)),
                units,
                "{number}"
            );
        }
        assert_eq!(metadata_number(b"12345678"), Some(12_345_678));
        assert_eq!(metadata_number(b"many"), None);
    }
}
