//! The end of a turn of Envoy's event loop.
//!
//! Envoy delivers a value of a shared queue through the event loop of the worker that registered the
//! queue: in the same turn, after all events that were ready when the turn began. No other callback
//! comes at the end of a turn.

use std::cell::{Cell, OnceCell, RefCell};

use proxy_wasm::hostcalls;

use crate::host;

thread_local! {
    /// Queue names of deleted plugins of this VM. Envoy keeps a queue as long as any VM with this id
    /// exists, so the next plugin reuses it.
    static UNUSED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The shared queue of one plugin.
#[derive(Debug, Default)]
pub struct TurnEnd {
    queue: OnceCell<Queue>,
    /// Whether the end of this turn was requested. One report serves all requests that end in it.
    requested: Cell<bool>,
}

#[derive(Debug)]
struct Queue {
    id: u32,
    /// Random, so that no other worker or plugin registers it.
    name: String,
}

/// Envoy will not report the end of the turn.
#[derive(Clone, Copy, Debug)]
pub struct NotReported;

impl TurnEnd {
    /// Has Envoy call the root's `on_queue_ready` when the turn ends.
    pub fn request(&self) -> Result<(), NotReported> {
        if self.requested.get() {
            return Ok(());
        }
        let id = match self.queue.get() {
            Some(queue) => queue.id,
            // Neither a canary nor the main thread ever gets here.
            None => self.register()?,
        };
        // The SDK reads an empty value as an empty queue.
        hostcalls::enqueue_shared_queue(id, Some(b"1")).map_err(|_| NotReported)?;
        self.requested.set(true);
        Ok(())
    }

    /// At a tick, which begins another turn: a report that has not come by now was missed.
    pub fn forget(&self) {
        self.requested.set(false);
    }

    fn register(&self) -> Result<u32, NotReported> {
        let name = UNUSED.with_borrow_mut(Vec::pop);
        let name = name.map_or_else(random_name, Ok)?;
        let id = hostcalls::register_shared_queue(&name).map_err(|_| NotReported)?;
        Ok(self.queue.get_or_init(|| Queue { id, name }).id)
    }

    /// Whether `on_queue_ready` for this queue reports the end of a turn that was requested here.
    pub fn is_reported_by(&self, queue_id: u32) -> bool {
        let own = self.queue.get().is_some_and(|queue| queue.id == queue_id);
        if own {
            self.forget();
        }
        own && matches!(hostcalls::dequeue_shared_queue(queue_id), Ok(Some(_)))
    }
}

fn random_name() -> Result<String, NotReported> {
    let random = host::random().map_err(|_| NotReported)?;
    Ok(format!("rl1:turn:{:032x}", u128::from_ne_bytes(random)))
}

impl Drop for TurnEnd {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            UNUSED.with_borrow_mut(|unused| unused.push(queue.name));
        }
    }
}
