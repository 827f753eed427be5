//! How a pause ends: the request of the effective context continues, or is answered here.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use proxy_wasm::types::StreamType;

use super::{
    headers, raw,
    status::{HostError, check},
};

/// Resumes the request of the effective context.
///
/// Does not use the SDK, which panics if Envoy has nothing to resume.
pub fn resume_request() -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { raw::proxy_continue_stream(StreamType::HttpRequest as u32) })
}

/// A response that Envoy sends itself.
pub struct LocalResponse<'a> {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// What `%RESPONSE_CODE_DETAILS%` shows.
    pub details: &'a str,
    /// For a gRPC request, the status message instead.
    pub body: &'a [u8],
    /// Header pairs; a line break in one would split the response, so none may hold client bytes.
    pub headers: &'a [(&'a str, &'a str)],
    /// The status of a gRPC call, -1 for none.
    pub grpc_status: i32,
}

/// Answers the request of the effective context.
///
/// Does not use the SDK, which sets no response code details and panics if the stream no longer exists.
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
