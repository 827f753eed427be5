//! Reads request bodies that contain the number to reserve. The request waits for its body for one
//! second at most; then it is decided without that number.

use std::rc::Rc;

use policy::{Pointer, Pricing, RequestPlace, whole_number};

use super::body_reader::{BodyReader, Format};
use crate::{
    active_policy::ActiveLimit,
    host::Host,
    request::{ByStream, Extracted, LimitCheck, Request, Stream},
    time::Now,
    worker::{HOLDING_MS, StreamId, Worker},
};

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
    limits: Vec<Rc<ActiveLimit>>,
    reader: BodyReader,
    /// Whether the body ended, and all of it was read.
    ended: bool,
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

fn pointers(limits: &[Rc<ActiveLimit>]) -> impl Iterator<Item = &Pointer> {
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

    /// The requests that have waited long enough.
    pub(crate) fn late(&self, now: Now) -> impl Iterator<Item = StreamId> {
        let late = self.until.iter();
        late.take_while(move |(until_us, _)| now.reached(*until_us))
            .map(|(_, stream)| *stream)
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
        if ended || of.reader.bytes() > max {
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
        self.decide(host, now, stream, request, Some(&*body));
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
        let limits: Vec<Rc<ActiveLimit>> = limits.cloned().collect();
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
        let number = |place: &RequestPlace| match place {
            RequestPlace::Header(name) => whole_number(request.header(name)?),
            RequestPlace::Json(pointer) => body?.number(pointer),
        };
        let units = match self.limit.pricing.as_deref() {
            None => return,
            Some(Pricing::Request(price)) => price.units(number, entries),
            Some(Pricing::Response(price)) => {
                let most = self.limit.quota.algorithm().limit();
                price.reserve.units(most, number)
            }
        };
        self.cost = units;
    }
}
