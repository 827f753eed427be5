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

/// What is before each message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
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
    with_prefix(message.encoded_len(), |body| {
        // The buffer grows as needed.
        let _ = message.encode(body);
    })
}

/// Bytes as a message, with its prefix.
pub(super) fn frame(message: &[u8]) -> Bytes {
    with_prefix(message.len(), |body| body.put_slice(message))
}

fn with_prefix(length: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    write(&mut body);
    body.freeze()
}

/// The answer of one message.
pub(super) fn answer(message: &impl Message) -> Response<Bytes> {
    of_body(framed(message), Code::Ok)
}

/// The start of an answer that stays open; if its connection ends first, its status is no success.
pub(super) fn open(first: Bytes) -> Response<Bytes> {
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
pub(super) fn trailers(status: Code) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, (status as u16).into());
    trailers
}

/// The gRPC response for an error.
pub(super) fn error(error: &ApiError) -> Response<Bytes> {
    let mut text = error.message.clone();
    if let Some(field) = &error.field {
        text = format!("{field}: {text}");
    }
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    headers.insert(STATUS, (status(error.code) as u16).into());
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

/// The gRPC status for an error.
fn status(code: ErrorCode) -> Code {
    match code {
        ErrorCode::InvalidRequest => Code::InvalidArgument,
        ErrorCode::UnknownDomain | ErrorCode::UnknownLimit | ErrorCode::NoMatch => Code::NotFound,
        ErrorCode::TooLarge | ErrorCode::TooManyWaiters => Code::ResourceExhausted,
        ErrorCode::NotFound | ErrorCode::MethodNotAllowed | ErrorCode::UnsupportedMediaType => {
            Code::Unimplemented
        }
        ErrorCode::Unauthorized => Code::Unauthenticated,
        ErrorCode::Internal => Code::Internal,
        _ => Code::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_message_prefix_is_refused() {
        let message = "x".to_owned();
        let framed = answer(&message).into_body();
        assert_eq!(decode::<String>(&framed).unwrap(), message);
        let longer = [&framed[..], b"x"].concat();
        for (at, value) in [(0, 1), (0, 7), (1, 255), (4, 200), (4, 0)] {
            let mut wrong = framed.to_vec();
            wrong[at] = value;
            assert!(decode::<String>(&wrong).is_err(), "{at} {value}");
        }
        for wrong in [&framed[..4], &framed[..7], &longer] {
            assert!(decode::<String>(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn messages_of_statuses_are_escaped() {
        assert_eq!(escaped("50 % \u{e9}\n"), "50 %25 %C3%A9%0A");
    }
}
