//! Calls to clusters, which belong to the root context.
//!
//! The SDK gives an answer to the context whose callback was running when the
//! call was made, and drops it if that context is gone; a request that leaves
//! would take the answers of others with it. So calls are made while the SDK
//! believes a tick of the root context to be running: [`reenter_tick`].

#![expect(unsafe_code, reason = "re-enters an export of the SDK by its name")]

use std::time::Duration;

use proxy_wasm::{hostcalls, types::Status};

use super::{HostError, stream};

unsafe extern "C" {
    /// The SDK's export: finds the root context and runs its `on_tick`.
    fn proxy_on_tick(context_id: u32);
}

/// Runs the root context's `on_tick` from within a callback of one of its streams, then
/// gives the effective context back to that stream.
///
/// The caller must not hold a borrow that `on_tick` takes.
pub fn reenter_tick(root_id: u32, stream_id: u32) -> Result<(), HostError> {
    stream::set_effective_context(root_id)?;
    // SAFETY: the SDK defines the function with this signature. It panics for
    // an unknown root, which one with living streams is not, and borrows its
    // root contexts, which no stream callback holds.
    unsafe { proxy_on_tick(root_id) };
    stream::set_effective_context(stream_id)
}

/// Makes a call; the root context's `on_http_call_response` is given the same token.
///
/// An unknown cluster is [`HostError::BadArgument`], one without endpoints
/// [`HostError::InternalFailure`]. To the host, 0 ms would mean for ever, so it is made 1.
pub fn dispatch(
    cluster: &str,
    headers: Vec<(&str, &str)>,
    body: Option<&[u8]>,
    timeout: Duration,
) -> Result<u32, HostError> {
    let timeout = timeout.max(Duration::from_millis(1));
    hostcalls::dispatch_http_call(cluster, headers, body, Vec::new(), timeout).map_err(|status| {
        match status {
            Status::BadArgument => HostError::BadArgument,
            Status::InternalFailure => HostError::InternalFailure,
            other => HostError::Other(other as u32),
        }
    })
}
