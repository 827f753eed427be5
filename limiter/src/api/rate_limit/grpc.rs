//! gRPC's framing of single messages: requests, answers and statuses.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use hyper::{
    HeaderMap, Response,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use prost::Message;
use protocol::{ApiError, ErrorCode};
use tonic::Code;

use crate::{api::refusal, serve::Trailers};

const GRPC: &str = "application/grpc";
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

const UNAVAILABLE: u16 = 14;

/// What is before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Whether a request is one of gRPC.
pub(in crate::api) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(media_type) = headers.get(CONTENT_TYPE) else {
        return false;
    };
    let rest = media_type.as_bytes().strip_prefix(GRPC.as_bytes());
    // Not gRPC-Web.
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Decodes the only message of a body.
pub(super) fn decode<M: Message + Default>(body: &[u8]) -> Result<M, ApiError> {
    let wrong = |message: &str| refusal::invalid("message", message);
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(wrong("the body is no gRPC message"));
    };
    let [compressed, length @ ..] = *prefix;
    match compressed {
        0 => {}
        1 => {
            let error = "this service takes no compressed messages";
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, error));
        }
        _ => return Err(wrong("the body is no gRPC message")),
    }
    if usize::try_from(u32::from_be_bytes(length)).ok() != Some(message.len()) {
        return Err(wrong("the message is not as long as its prefix says"));
    }
    M::decode(message).map_err(|error| wrong(&error.to_string()))
}

/// A message with its prefix.
pub(super) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed.
    let _ = message.encode(&mut body);
    body.freeze()
}

/// Bytes as a message, with its prefix.
pub(in crate::api) fn frame(message: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(PREFIX + message.len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put_slice(message);
    body.freeze()
}

/// The answer of one message.
pub(super) fn answer(message: &impl Message) -> Response<Bytes> {
    of_body(framed(message), Code::Ok)
}

/// The start of an answer that stays open; if its connection ends first, its status is no success.
pub(in crate::api) fn open(first: Bytes) -> Response<Bytes> {
    of_body(first, Code::Unavailable)
}

fn of_body(body: Bytes, status: Code) -> Response<Bytes> {
    let mut response = Response::new(body);
    let media_type = HeaderValue::from_static(GRPC);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response.extensions_mut().insert(Trailers(trailers(status)));
    response
}

/// The trailers of an answer that ends with a status.
pub(in crate::api) fn trailers(status: Code) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, (status as u16).into());
    trailers
}

/// The gRPC response for an error.
pub(in crate::api) fn error(error: &ApiError) -> Response<Bytes> {
    let mut text = error.message.clone();
    if let Some(field) = &error.field {
        text = format!("{field}: {text}");
    }
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(STATUS, status(error.code).into());
    if let Ok(text) = HeaderValue::from_str(&escaped(&text)) {
        headers.insert(MESSAGE, text);
    }
    response
}

/// Text that a header can hold.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// gRPC's number for an error.
fn status(code: ErrorCode) -> u16 {
    const INVALID_ARGUMENT: u16 = 3;
    const NOT_FOUND: u16 = 5;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const UNIMPLEMENTED: u16 = 12;
    const INTERNAL: u16 = 13;
    const UNAUTHENTICATED: u16 = 16;
    match code {
        ErrorCode::InvalidRequest => INVALID_ARGUMENT,
        ErrorCode::UnknownDomain | ErrorCode::UnknownLimit | ErrorCode::NoMatch => NOT_FOUND,
        ErrorCode::TooLarge | ErrorCode::TooManyWaiters => RESOURCE_EXHAUSTED,
        ErrorCode::NotFound | ErrorCode::MethodNotAllowed | ErrorCode::UnsupportedMediaType => {
            UNIMPLEMENTED
        }
        ErrorCode::Unauthorized => UNAUTHENTICATED,
        ErrorCode::Internal => INTERNAL,
        _ => UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::rate_limit::messages::HealthCheckRequest;

    #[test]
    fn a_wrong_message_prefix_is_refused() {
        let message = HealthCheckRequest {
            service: "x".to_owned(),
        };
        let framed = answer(&message).into_body();
        assert_eq!(decode::<HealthCheckRequest>(&framed).unwrap(), message);
        let longer = [&framed[..], b"x"].concat();
        for (at, value) in [(0, 1), (0, 7), (1, 255), (4, 200), (4, 0)] {
            let mut wrong = framed.to_vec();
            wrong[at] = value;
            assert!(
                decode::<HealthCheckRequest>(&wrong).is_err(),
                "{at} {value}"
            );
        }
        for wrong in [&framed[..4], &framed[..7], &longer] {
            assert!(decode::<HealthCheckRequest>(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn messages_of_statuses_are_escaped() {
        assert_eq!(escaped("50 % \u{e9}\n"), "50 %25 %C3%A9%0A");
    }
}
