//! Calls to clusters. A call belongs to the context in whose name it is made, and ends with it;
//! so calls are made in the name of the root context, which outlives the requests.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

use super::{
    headers, raw,
    status::{HostError, check},
};

/// Makes a call for the effective context, which is given the answer with the same token.
///
/// An unknown cluster is [`HostError::BadArgument`], one without endpoints
/// [`HostError::InternalFailure`]. To the host, 0 ms would mean for ever, so it is made 1.
pub fn dispatch(
    cluster: &str,
    header_pairs: &[(&str, &str)],
    body: &[u8],
    timeout_ms: u64,
) -> Result<u32, HostError> {
    let pairs = headers::encode(header_pairs);
    let trailers = headers::NONE;
    let timeout_ms = u32::try_from(timeout_ms.max(1)).unwrap_or(u32::MAX);
    let mut token = 0;
    // SAFETY: all slices outlive the call, and the out pointer is valid for writes.
    check(unsafe {
        raw::proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            pairs.as_ptr(),
            pairs.len(),
            body.as_ptr(),
            body.len(),
            trailers.as_ptr(),
            trailers.len(),
            timeout_ms,
            &raw mut token,
        )
    })?;
    Ok(token)
}
