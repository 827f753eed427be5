//! Pieces of requests and answers that both ports share.

use bytes::Bytes;
use hyper::{
    Response, StatusCode, Uri,
    header::{CONTENT_TYPE, HeaderValue},
};

pub(crate) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// An answer with a body.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Bytes> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer of a line or two.
pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Bytes> {
    answer(status, TEXT, body)
}

/// The parameters of a request's query, as sent: names and values here need no escapes, and an
/// escaped name matches none of them.
pub(crate) fn query(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    uri.query()
        .unwrap_or_default()
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
}
