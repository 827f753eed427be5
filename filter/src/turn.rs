//! The end of a turn of Envoy's event loop.
//!
//! What a worker puts into a shared queue of its own comes back to it through the event loop, in the
//! same turn, after all that the turn had begun with. It is the only way there that takes no time.

use std::cell::{Cell, RefCell};

use crate::host::{HostError, environment, shared_queue};

/// What a queue is called: by chance, for nobody else may use it.
type Name = [u8; 16];

thread_local! {
    /// Queues of plugins of this VM that have gone. Envoy keeps a queue for as long as any VM of
    /// this id lives, so they are used again.
    static SPARE: RefCell<Vec<Name>> = const { RefCell::new(Vec::new()) };
}

/// The queue of one plugin.
#[derive(Debug, Default)]
pub struct Turn {
    queue: Cell<Option<(u32, Name)>>,
}

impl Turn {
    /// Has `proxy_on_queue_ready` called when the turn ends. The current context must be the
    /// plugin's root.
    pub fn tell_end(&self) -> Result<(), HostError> {
        let (queue, _) = match self.queue.get() {
            Some(known) => known,
            // Neither a canary nor the main thread ever gets here.
            None => self.register()?,
        };
        shared_queue::enqueue(queue)
    }

    fn register(&self) -> Result<(u32, Name), HostError> {
        let name = match SPARE.with_borrow_mut(Vec::pop) {
            Some(name) => name,
            None => environment::random()?,
        };
        let known = (shared_queue::register(&name)?, name);
        self.queue.set(Some(known));
        Ok(known)
    }

    /// Whether it is this plugin's turn that has ended.
    pub fn has_ended(&self, queue: u32) -> bool {
        let own = self.queue.get().is_some_and(|(own, _)| own == queue);
        own && shared_queue::dequeue(queue).is_ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((_, name)) = self.queue.get() {
            SPARE.with_borrow_mut(|spare| spare.push(name));
        }
    }
}
