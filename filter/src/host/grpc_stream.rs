//! gRPC streams of the effective context, which is the root.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use super::{HostError, check, headers};

/// What a stream is opened to.
pub struct Target<'a> {
    /// `envoy.config.core.v3.GrpcService`.
    pub service: &'a [u8],
    /// The gRPC service.
    pub name: &'a str,
    /// The gRPC method.
    pub method: &'a str,
    /// Headers of the request.
    pub headers: &'a [(&'a str, &'a str)],
}

/// Opens a stream; returns its token.
///
/// Fails if the cluster does not exist or has no host.
pub fn open(target: &Target<'_>) -> Result<u32, HostError> {
    let pairs = headers::encode(target.headers);
    let mut token = 0;
    // SAFETY: all slices outlive the call, and `token` is valid for writes.
    check(unsafe {
        super::proxy_grpc_stream(
            target.service.as_ptr(),
            target.service.len(),
            target.name.as_ptr(),
            target.name.len(),
            target.method.as_ptr(),
            target.method.len(),
            pairs.as_ptr(),
            pairs.len(),
            &raw mut token,
        )
    })?;
    Ok(token)
}

/// Sends a message.
pub fn send(token: u32, message: &[u8]) -> Result<(), HostError> {
    // SAFETY: `message` outlives the call.
    check(unsafe { super::proxy_grpc_send(token, message.as_ptr(), message.len(), false) })
}

/// Closes this side.
pub fn close(token: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { super::proxy_grpc_close(token) })
}

/// Resets the stream; Envoy deletes its entry.
pub fn cancel(token: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { super::proxy_grpc_cancel(token) })
}
