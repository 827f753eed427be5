//! Reading a request's body, no further than the bound.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

/// How long a client may take to send what it announced: a request holds its place meanwhile.
const WITHIN: Duration = Duration::from_secs(5);

/// Why there is no whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// Larger than the bound.
    TooLarge,
    /// Still not whole after a long while.
    TooSlow,
    /// The client stopped sending.
    Broken,
}

/// How large a body is going to be at most, unless it is larger than `max`.
pub(crate) fn size(body: &Incoming, max: usize) -> Result<usize, BodyError> {
    let hint = body.size_hint();
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    if bytes(hint.lower()) > max {
        return Err(BodyError::TooLarge);
    }
    Ok(hint.upper().map_or(max, bytes))
}

/// Reads a body of at most `max` bytes.
pub(crate) async fn read(body: Incoming, max: usize) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(WITHIN, gather(body, max)).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::TooSlow),
    }
}

async fn gather(mut body: Incoming, max: usize) -> Result<Bytes, BodyError> {
    // A small body comes in one piece, which is not copied.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        if first.len() + rest.len() + data.len() > max {
            return Err(BodyError::TooLarge);
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}
