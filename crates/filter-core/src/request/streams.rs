//! The state of each request that has not ended.

use crate::{response::QuotaHeaders, worker::StreamId};

/// Requests in one chain share the low byte of their ids. The host counts ids up, so thousands of
/// requests at once are a few in each chain, and no table has to grow.
const CHAINS: usize = 256;

/// The state of one request.
#[derive(Debug)]
pub(crate) enum Stream {
    /// Its check is in flight.
    Waiting,
    /// A queue holds it.
    Held,
    /// It went on; its response will show these quotas.
    Passed(QuotaHeaders),
}

/// Requests by their ids: as many as the host has under way.
#[derive(Debug)]
pub(crate) struct Streams {
    chains: Box<[Vec<(StreamId, Stream)>; CHAINS]>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            chains: Box::new([const { Vec::new() }; CHAINS]),
        }
    }
}

impl Streams {
    pub(crate) fn get(&self, id: StreamId) -> Option<&Stream> {
        let chain = self.chains.get(chain_of(id))?;
        chain.iter().find(|(of, _)| *of == id).map(|(_, kept)| kept)
    }

    /// Replaces the state of a request.
    pub(crate) fn insert(&mut self, id: StreamId, stream: Stream) {
        let Some(chain) = self.chains.get_mut(chain_of(id)) else {
            return;
        };
        match chain.iter_mut().find(|(of, _)| *of == id) {
            Some((_, kept)) => *kept = stream,
            None => chain.push((id, stream)),
        }
    }

    pub(crate) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let at = chain.iter().position(|(of, _)| *of == id)?;
        Some(chain.swap_remove(at).1)
    }
}

/// Always below [`CHAINS`].
fn chain_of(id: StreamId) -> usize {
    let [low, ..] = id.0.to_le_bytes();
    usize::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_requests_each_has_its_own_until_it_is_gone() {
        let mut streams = Streams::default();
        for id in 0..2000 {
            streams.insert(StreamId(id), Stream::Waiting);
        }
        for id in (0..2000).step_by(2) {
            streams.insert(StreamId(id), Stream::Held);
        }
        for id in (0..2000).step_by(5) {
            assert!(streams.remove(StreamId(id)).is_some());
        }
        for id in 0..2000 {
            let kept = streams.remove(StreamId(id));
            let right = match id {
                _ if id % 5 == 0 => kept.is_none(),
                _ if id % 2 == 0 => matches!(kept, Some(Stream::Held)),
                _ => matches!(kept, Some(Stream::Waiting)),
            };
            assert!(right, "{id}: {kept:?}");
            assert!(streams.get(StreamId(id)).is_none());
        }
    }
}
