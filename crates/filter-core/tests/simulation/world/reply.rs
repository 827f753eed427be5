//! Responses of upstreams.

use filter_core::{Metering, Response, ResponseHeaders, StreamId};

use super::{Event, World};

/// The response to one request.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub media_type: &'static str,
    pub coding: Option<&'static str>,
    pub body: Vec<u8>,
    /// Whether it completes.
    pub ended: bool,
}

impl Reply {
    pub fn json(status: u16, body: &str) -> Self {
        Self {
            status,
            media_type: "application/json",
            coding: None,
            body: body.as_bytes().to_vec(),
            ended: true,
        }
    }
}

/// A response, and the chunk of it that passes.
struct Passing<'r>(&'r Reply, &'r [u8]);

impl ResponseHeaders for Passing<'_> {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        match name {
            ":status" => Some(self.0.status.to_string().into_bytes()),
            "content-type" => Some(self.0.media_type.as_bytes().to_vec()),
            "content-encoding" => Some(self.0.coding?.as_bytes().to_vec()),
            _ => None,
        }
    }
    fn set(&mut self, _: &'static str, _: &str) {}
    fn add(&mut self, _: &'static str, _: &str) {}
}

impl Response for Passing<'_> {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        Some(self.1.get(from..from + len)?.to_vec())
    }
    fn trailer(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
    fn property(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

impl World {
    /// The upstream answers an admitted request, in several chunks; or Envoy answers one that waits.
    pub fn respond(&mut self, number: usize, reply: &Reply) -> Metering {
        let (envoy, of) = (self.requests[number].envoy, self.requests[number].worker);
        let stream = StreamId(u32::try_from(number).unwrap());
        let now = self.now();
        let worker = &mut self.envoys[envoy].workers[of];
        let headers = &mut Passing(reply, b"");
        let mut metering = worker.on_response(|| now, stream, headers, reply.body.is_empty());
        let mut chunks = reply.body.chunks(1 + number % 7 * 1000).peekable();
        while let (Metering::Reads, Some(chunk)) = (metering, chunks.next()) {
            let last = chunks.peek().is_none() && reply.ended;
            metering = worker.on_response_body(stream, chunk.len(), last, &Passing(reply, chunk));
        }
        if metering == Metering::Settled && self.reports_turn_ends {
            let worker = of;
            self.schedule(0, Event::TurnEnd { envoy, worker });
        }
        metering
    }
}
