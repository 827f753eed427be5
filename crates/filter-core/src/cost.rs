//! Costs that are not a fixed number: read from the request, or reserved when it arrives and settled
//! when its response ends.

mod body_reader;
mod json_reader;

use std::sync::Arc;

use body_reader::{BodyReader, Format, is_encoded};
use policy::{
    IfAbsent, Limit, Name, Pointer, Pricing, RequestPlace, ResponsePrice, ResponseValue,
    whole_number,
};
use protocol::{Answer, CostSettlement, LimitRequest, Reservation};

use crate::{
    active_policy::ActiveLimit,
    cache::BucketKey,
    host::{Host, Now},
    request::{
        ByStream, Extracted, LimitCheck, PendingCheck, Request, RequestDescriptor, SlotRelease,
        Stream, grouped, magnitude,
    },
    response::ResponseHeaders,
    worker::{HOLDING_MS, ResponseNeeds, StreamId, Worker},
};

// --- Measures what the response of one request costs that reserved units.

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
    request: Arc<RequestDescriptor>,
    reserved: Vec<Reserved>,
    /// 0 before the response has begun.
    status: u16,
    /// In the order of [`Meter::values`]. The reader has the numbers in the body.
    numbers: Vec<Option<u64>>,
    body: BodyReader,
    /// The body is compressed, a part, or left out (HEAD), so its length says nothing.
    opaque: bool,
}

/// Units that a request reserved in one bucket.
#[derive(Debug)]
struct Reserved {
    limit: Arc<ActiveLimit>,
    key: BucketKey,
    reservation: Reservation,
    /// What the bucket holds, in units.
    capacity: u64,
}

/// What a request cost in one bucket, still to be sent.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) request: Arc<RequestDescriptor>,
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
    pub(crate) fn from_answer(
        check: &PendingCheck,
        answer: &Answer,
        request: Option<&Arc<RequestDescriptor>>,
    ) -> Option<Box<Self>> {
        if !answer.allowed {
            return None;
        }
        let reserved = answer.limits.iter().filter_map(|answered| {
            let reservation = answered.reservation?;
            let limit_check = check.find(&answered.name)?;
            Some(Reserved {
                limit: Arc::clone(&limit_check.limit),
                key: limit_check.bucket.key,
                reservation,
                capacity: answered.limit.unwrap_or(0),
            })
        });
        let reserved: Vec<Reserved> = reserved.collect();
        let request = request.filter(|_| !reserved.is_empty())?;
        Some(Box::new(Self {
            request: Arc::clone(request),
            reserved,
            status: 0,
            numbers: Vec::new(),
            body: BodyReader::new(Format::Other, &[]),
            opaque: check.head,
        }))
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
    fn values(&self) -> impl Iterator<Item = &ResponseValue> {
        let prices = self.limits().map(|(_, _, price)| price);
        prices
            .flat_map(ResponsePrice::terms)
            .map(|term| &term.place)
    }

    fn pointers(&self) -> Vec<&Pointer> {
        let pointers = self.values().filter_map(|value| match value {
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
        let number = |value: &ResponseValue| match value {
            ResponseValue::Header(name) => headers.get(name).and_then(|text| whole_number(&text)),
            _ => None,
        };
        self.numbers = self.values().map(number).collect();
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
    fn chunk(&mut self, size: usize, response: &impl Response) {
        let mut body = std::mem::replace(&mut self.body, BodyReader::new(Format::Other, &[]));
        let bytes = |from, len| response.body(from, len);
        body.read_chunk(&self.pointers(), size, bytes);
        self.body = body;
    }

    /// The response completed: reads trailers and metadata.
    fn read_last(&mut self, response: &impl Response) {
        let number = |value: &ResponseValue| match value {
            ResponseValue::Trailer(name) => whole_number(&response.trailer(name)?),
            ResponseValue::Metadata(keys) => {
                let path = format!("{METADATA}\0{}", keys.join("\0"));
                metadata_number(&response.property(path.as_bytes())?)
            }
            ResponseValue::Header(_) | ResponseValue::Json(_) => None,
        };
        let last: Vec<Option<u64>> = self.values().map(number).collect();
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
            request: Arc::clone(&self.request),
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
        price.said(self.status, |value| match value {
            ResponseValue::Json(_) if !body => None,
            ResponseValue::Json(pointer) => {
                let at = self.pointers().iter().position(|of| *of == pointer)?;
                self.body.found(at)
            }
            _ => {
                let at = self.values().position(|of| of == value)?;
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
    let (whole, exact) = magnitude(bits).filter(|_| bits >> 63 == 0)?;
    let units = whole + u64::from(!exact);
    (units < 1 << 63).then_some(units)
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
        let release = SlotRelease {
            request: Arc::clone(&first.request),
            limits: vec![LimitRequest {
                settle: settled.iter().map(|of| of.settlement).collect(),
                ..LimitRequest::new(first.limit.clone())
            }],
            streams: Vec::new(),
            until_us: now.after_ms(RESEND_MS),
        };
        self.push_release(now, PendingCheck::of_slots(release));
    }
}

// --- Reads request bodies that contain the number to reserve. The request waits for its body for one
// second at most; then it is decided without that number.

/// Bound: milliseconds that a request waits for its body. Beyond it, the default is reserved.
const PATIENCE_MS: u64 = 1_000;

/// After this many requests waited in vain, the filter reports that Envoy passes no bodies to it; fewer
/// could be slow clients.
const MISSED: u8 = 3;

/// A body at the host, while it passes.
pub trait Body {
    /// Up to `len` bytes of the current chunk; `None`: they cannot be read.
    fn bytes(&self, from: usize, len: usize) -> Option<Vec<u8>>;
}

/// How the filter treats a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyNeed {
    /// The body continues with the request.
    None,
    /// The filter does not read it, but the request is not decided yet: the body waits.
    Waits,
    /// The filter reads it: the host passes its chunks to [`Worker::on_request_body`].
    Reads,
    /// The filter has read it: the host calls [`Worker::on_request_read`].
    Read,
}

/// The body of one request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    /// The limits that need numbers of the body.
    limits: Vec<Arc<ActiveLimit>>,
    reader: BodyReader,
    /// Whether the body ended, and all of it was read.
    pub(crate) ended: bool,
}

impl RequestBody {
    /// The number at a pointer.
    pub(crate) fn number(&self, pointer: &Pointer) -> Option<u64> {
        let at = self.pointers().iter().position(|of| *of == pointer)?;
        let whole = self.ended && self.reader.is_whole(true);
        self.reader.found(at).filter(|_| whole)
    }

    fn pointers(&self) -> Vec<&Pointer> {
        pointers(&self.limits).collect()
    }
}

fn pointers(limits: &[Arc<ActiveLimit>]) -> impl Iterator<Item = &Pointer> {
    let prices = limits.iter().filter_map(|limit| limit.response_price());
    prices.flat_map(|price| price.reserve.pointers())
}

/// Requests that wait for their bodies.
#[derive(Debug, Default)]
pub(crate) struct RequestBodies {
    bodies: ByStream<Box<RequestBody>>,
    /// The deadline of each of them, in order of arrival.
    until: Vec<(u64, StreamId)>,
    /// How many waited in vain, up to [`MISSED`].
    missed: u8,
    /// Whether any part of any body arrived.
    came: bool,
}

impl RequestBodies {
    /// When the next request stops waiting; `u64::MAX`: none waits.
    pub(crate) fn next_us(&self) -> u64 {
        self.until
            .first()
            .map_or(u64::MAX, |(until_us, _)| *until_us)
    }

    /// Whether Envoy seems to pass no bodies to the filter.
    pub(crate) fn are_missed(&self) -> bool {
        self.missed == MISSED && !self.came
    }

    /// The requests that have waited long enough. They are late again if the host does not decide them.
    pub(crate) fn late(&mut self, now: Now) -> Vec<StreamId> {
        let count = { self.until.iter() }.take_while(|(until_us, _)| now.reached(*until_us));
        let late: Vec<_> = self
            .until
            .drain(..count.count())
            .map(|(_, of)| of)
            .collect();
        let again_us = now.after_ms(PATIENCE_MS);
        self.until.extend(late.iter().map(|of| (again_us, *of)));
        late
    }

    /// Removes a request that no longer waits.
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Box<RequestBody>> {
        let body = self.bodies.remove(stream)?;
        self.until.retain(|(_, of)| *of != stream);
        Some(body)
    }
}

impl Worker {
    /// How the filter treats the body of a request, before any of it has arrived.
    pub fn body_need(&self, stream: StreamId) -> BodyNeed {
        if self.resumptions.contains(stream) {
            return BodyNeed::Waits;
        }
        match self.requests.streams.get(stream) {
            Some(Stream::Body) => BodyNeed::Reads,
            Some(Stream::Waiting | Stream::Held) => BodyNeed::Waits,
            Some(Stream::Passed(_)) | None => BodyNeed::None,
        }
    }

    /// A chunk of `size` bytes of a request's body arrived; `ended`: it is the last.
    pub fn on_request_body(
        &mut self,
        stream: StreamId,
        size: usize,
        ended: bool,
        body: &impl Body,
    ) -> BodyNeed {
        let Some(of) = self.requests.bodies.bodies.get_mut(stream) else {
            return self.body_need(stream);
        };
        self.requests.bodies.came = true;
        let RequestBody { limits, reader, .. } = &mut **of;
        let pointers: Vec<&Pointer> = pointers(limits).collect();
        reader.read_chunk(&pointers, size, |from, len| body.bytes(from, len));
        of.ended = ended;
        let max = self.config.request_body_max.unwrap_or(0);
        if ended || of.reader.bytes() > max || !of.reader.is_legible(false) {
            return BodyNeed::Read;
        }
        BodyNeed::Reads
    }

    /// No more of a request's body will be read. The same steps follow as for [`Worker::on_request`].
    pub fn on_request_read(
        &mut self,
        host: &impl Host,
        now: Now,
        stream: StreamId,
        request: &impl Request,
    ) {
        let Some(body) = self.requests.bodies.take(stream) else {
            return;
        };
        let bodies = &mut self.requests.bodies;
        if bodies.missed < MISSED {
            bodies.missed += 1;
            if bodies.are_missed() {
                self.share_entries(host);
            }
        }
        self.requests.streams.remove(stream);
        self.decide(host, &|| now, stream, request, Some(&*body));
        self.send_soon(host, now);
    }

    /// Whether a request must wait for its body, which contains what it reserves. If so, it is
    /// registered.
    pub(crate) fn reads_body(
        &mut self,
        now: Now,
        stream: StreamId,
        limit_checks: &[LimitCheck],
        request: &impl Request,
    ) -> bool {
        let Some(max) = self.config.request_body_max else {
            return false;
        };
        let limits = limit_checks.iter().map(|check| &check.limit);
        let limits = limits.filter(|limit| pointers(std::slice::from_ref(limit)).next().is_some());
        let limits: Vec<Arc<ActiveLimit>> = limits.cloned().collect();
        if limits.is_empty() || !is_readable(request, max) {
            return false;
        }
        // Slow bodies must not use the permits of queues.
        let waiting = &mut self.requests.bodies;
        if waiting.until.len() >= self.config.hold_max {
            return false;
        }
        let found: Vec<&Pointer> = pointers(&limits).collect();
        let reader = BodyReader::new(Format::Json, &found);
        let until_us = now.after_ms(PATIENCE_MS);
        let body = RequestBody {
            limits,
            reader,
            ended: false,
        };
        waiting.bodies.insert(stream, Box::new(body));
        waiting.until.push((until_us, stream));
        self.requests.streams.insert(stream, Stream::Body);
        self.ticks.by(now, until_us, HOLDING_MS);
        true
    }
}

/// Whether a body follows that is JSON of at most `max` bytes and that the client sends without waiting
/// for the service.
fn is_readable(request: &impl Request, max: u64) -> bool {
    let short = request
        .header("content-length")
        .is_none_or(|length| whole_number(length).is_some_and(|length| length <= max));
    let (media_type, coding) = (
        request.header("content-type"),
        request.header("content-encoding"),
    );
    // Envoy answers `expect: 100-continue` itself and removes it, unless it is configured not to.
    let waits = ["upgrade", "expect"]
        .iter()
        .any(|name| request.header(name).is_some());
    let connect = request.header(":method") == Some(b"CONNECT");
    request.has_body()
        && short
        && !waits
        && !connect
        && Format::from_media_type(media_type, coding) == Format::Json
}

// --- The cost of a request when it arrives.

impl LimitCheck {
    /// Sets the cost of a request if the limit's is not a fixed number: units, or the units that it
    /// reserves until its response ends. `body`: its body, if it was read.
    pub(crate) fn price(
        &mut self,
        request: &impl Request,
        entries: &Extracted,
        body: Option<&RequestBody>,
    ) {
        let number = |from: &RequestPlace| match from {
            RequestPlace::Header(name) => whole_number(request.header(name)?),
            RequestPlace::Json(pointer) => body?.number(pointer),
        };
        (self.asked, self.cost) = match self.limit.pricing.as_deref() {
            None => return,
            Some(Pricing::Request(price)) => {
                let units = price.units(number, entries);
                (units, units)
            }
            Some(Pricing::Response(price)) => {
                let wanted = price.reserve.wanted(number);
                let most = self.limit.quota.limit();
                (wanted, price.reserve.capped(wanted, most))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Bare, Measured};

    #[test]
    fn a_body_that_was_read_in_part_still_arrives() {
        // After a body, the host does not say again that one followed.
        for (ended, measured) in [(false, Measured::Arriving), (true, Measured::Since(0))] {
            let reader = BodyReader::new(Format::Json, &[]);
            let body = RequestBody {
                limits: Vec::new(),
                reader,
                ended,
            };
            assert_eq!(Measured::new(&Bare, Some(&body)), measured);
        }
    }

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
