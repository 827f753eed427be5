//! Queues that Envoy hands over through the event loop of the worker that registered them.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

use std::ptr;

use super::{
    memory::receive,
    raw,
    status::{HostError, check},
};

/// Has `on_queue_ready` called, in the context that is current now, for what is put into the queue
/// of this name; returns the queue's number. A name that is known keeps its number.
pub fn register(name: &[u8]) -> Result<u32, HostError> {
    let mut queue = 0;
    // SAFETY: `name` outlives the call, and the out pointer is valid for writes.
    check(unsafe { raw::proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) })?;
    Ok(queue)
}

/// Puts an empty value into a queue.
pub fn enqueue(queue: u32) -> Result<(), HostError> {
    // SAFETY: of no bytes the host reads none.
    check(unsafe { raw::proxy_enqueue_shared_queue(queue, ptr::null(), 0) })
}

/// Takes a value out of a queue.
pub fn dequeue(queue: u32) -> Result<Vec<u8>, HostError> {
    // SAFETY: the out pointers are valid for writes.
    receive(|value, value_len| unsafe { raw::proxy_dequeue_shared_queue(queue, value, value_len) })
}
