//! Requests with bodies.

use filter_core::{Body, BodyNeed, Callback, NoProperty, Request, StreamId};

use super::{Sent, World};

/// A request by its headers.
#[derive(Clone, Debug)]
pub struct Upload {
    pub headers: Vec<(&'static str, &'static str)>,
    pub has_body: bool,
}

impl Request for Upload {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let own = self.headers.iter().filter(move |(own, _)| *own == name);
        let own: Vec<_> = own.map(|(_, value)| value.as_bytes()).collect();
        own.into_iter()
    }
    fn property(&self, _: &[u8]) -> Result<Vec<u8>, NoProperty> {
        Err(NoProperty::Absent)
    }
    fn has_body(&self) -> bool {
        self.has_body
    }
}

struct Chunk<'c>(&'c [u8]);

impl Body for Chunk<'_> {
    fn bytes(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        Some(self.0.get(from..from + len)?.to_vec())
    }
}

impl World {
    /// A request arrives at the first worker; returns its number, and how the filter treats its body.
    pub fn upload(&mut self, upload: &Upload) -> (usize, BodyNeed) {
        let number = self.requests.len();
        self.requests.push(Sent {
            user: "alice".to_owned(),
            path: "/",
            method: "POST",
            at_us: self.now_us,
            envoy: 0,
            worker: 0,
            outcome: None,
            answered: false,
            gone: false,
        });
        self.uploads.insert(number, upload.clone());
        let (now, stream) = (self.now(), StreamId(u32::try_from(number).unwrap()));
        let at = &mut self.envoys[0];
        at.workers[0].on_request(&at.shared, &|| now, stream, upload);
        self.carry_out(0, 0, Callback::of_request(stream));
        (number, self.envoys[0].workers[0].body_need(stream))
    }

    /// A chunk of its body arrives.
    pub fn send_body(&mut self, number: usize, chunk: &str, ended: bool) -> BodyNeed {
        let stream = StreamId(u32::try_from(number).unwrap());
        let worker = &mut self.envoys[0].workers[0];
        let need = worker.on_request_body(stream, chunk.len(), ended, &Chunk(chunk.as_bytes()));
        if need == BodyNeed::Read {
            self.read(0, 0, stream);
            self.carry_out(0, 0, Callback::of_request(stream));
        }
        need
    }

    /// No more of the body will be read.
    pub(super) fn read(&mut self, envoy: usize, worker: usize, stream: StreamId) {
        let now = self.now();
        let upload = &self.uploads[&usize::try_from(stream.0).unwrap()];
        let at = &mut self.envoys[envoy];
        at.workers[worker].on_request_read(&at.shared, now, stream, upload);
    }
}
