//! The state of each request that has not ended.

use crate::{response::QuotaHeaders, worker::StreamId};

/// Requests whose ids have the same low byte share a chain. The host counts ids up, so thousands of
/// concurrent requests are a few in each chain, and no table has to grow.
const CHAINS: usize = 256;

/// The state of one request.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The filter reads its body, which determines what it reserves.
    Body,
    /// Its check is in flight.
    Waiting,
    /// A queue holds it.
    Held,
    /// It continued; its response will show these quotas.
    Passed(QuotaHeaders),
}

/// A map from requests to values, by their ids.
#[derive(Debug)]
pub(crate) struct ByStream<T> {
    chains: Box<[Vec<(StreamId, T)>; CHAINS]>,
    len: usize,
}

impl<T> Default for ByStream<T> {
    fn default() -> Self {
        Self {
            chains: Box::new([const { Vec::new() }; CHAINS]),
            len: 0,
        }
    }
}

impl<T> ByStream<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&T> {
        let chain = self.chains.get(chain_of(id))?;
        chain.iter().find(|(of, _)| *of == id).map(|(_, kept)| kept)
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let mut kept = chain.iter_mut().filter(|(of, _)| *of == id);
        kept.next().map(|(_, kept)| kept)
    }

    /// Returns what was replaced.
    pub(crate) fn insert(&mut self, id: StreamId, new: T) -> Option<T> {
        if let Some(kept) = self.get_mut(id) {
            return Some(std::mem::replace(kept, new));
        }
        self.chains.get_mut(chain_of(id))?.push((id, new));
        self.len += 1;
        None
    }

    pub(crate) fn remove(&mut self, id: StreamId) -> Option<T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let at = chain.iter().position(|(of, _)| *of == id)?;
        self.len -= 1;
        Some(chain.swap_remove(at).1)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (StreamId, T)> {
        self.chains.iter_mut().flatten()
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
    fn each_request_keeps_its_own_state_until_it_is_removed() {
        let mut streams = ByStream::default();
        assert!(streams.is_empty());
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
        assert!(streams.is_empty());
    }
}
