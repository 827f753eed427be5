//! What can be done to a stream: let it go on, answer it, speak in its name.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use super::{
    headers, raw,
    status::{HostError, check},
};

/// Makes a context the one that following host calls are about.
///
/// A stream that has gone gives [`HostError::BadArgument`].
pub fn set_effective_context(context_id: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_set_effective_context(context_id) })
}

/// Lets the request of the effective context go on.
pub fn resume_request() -> Result<(), HostError> {
    const REQUEST: u32 = 0;
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_continue_stream(REQUEST) })
}

/// An answer that Envoy gives itself.
pub struct LocalResponse<'a> {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// What `%RESPONSE_CODE_DETAILS%` shows.
    pub details: &'a str,
    /// For a gRPC request, the status message instead.
    pub body: &'a [u8],
    /// Header pairs; a line break in one would split the response, so none may hold client bytes.
    pub headers: &'a [(&'a str, &'a str)],
    /// The status a gRPC request is given.
    pub grpc_status: i32,
}

/// Answers the request of the effective context.
pub fn send_local_response(response: &LocalResponse<'_>) -> Result<(), HostError> {
    let pairs = headers::encode(response.headers);
    // SAFETY: all slices outlive the call.
    check(unsafe {
        raw::proxy_send_local_response(
            u32::from(response.status),
            response.details.as_ptr(),
            response.details.len(),
            response.body.as_ptr(),
            response.body.len(),
            pairs.as_ptr(),
            pairs.len(),
            response.grpc_status,
        )
    })
}
