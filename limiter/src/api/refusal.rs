//! Error responses.

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use protocol::{ApiError, ErrorCode};
use store::{CheckError, CheckPlanError, StoreError};

use super::body::BodyError;
use crate::{batch::Undecided, serve};

/// The HTTP answer that an error is.
pub(super) fn response(error: &ApiError) -> Response<Bytes> {
    let status =
        StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = serve::answer(status, serve::JSON, error.to_json());
    let header = match error.code {
        ErrorCode::Unauthorized => Some((WWW_AUTHENTICATE, "Bearer")),
        ErrorCode::Overloaded | ErrorCode::TooManyWaiters => Some((RETRY_AFTER, "1")),
        _ => None,
    };
    if let Some((name, value)) = header {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// An error about one field of the request.
pub(super) fn invalid(field: &str, message: impl Into<String>) -> ApiError {
    ApiError {
        field: Some(field.to_owned()),
        ..ApiError::new(ErrorCode::InvalidRequest, message)
    }
}

/// More requests are in flight than `--max-inflight` allows.
pub(super) fn overloaded() -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        "as many requests as this limiter takes at once are being decided (--max-inflight)",
    )
}

/// The requests of all connections, or of this one, exceed the memory bound.
pub(super) fn no_room() -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        "the requests being received and decided take as much memory as this limiter gives them",
    )
}

/// This limiter ends, and a check would have to wait for units.
pub(super) fn ending() -> ApiError {
    ApiError::new(
        ErrorCode::PolicyUnavailable,
        "this limiter is ending, and the check would have to wait; nothing was charged, send it again",
    )
}

/// The error for a body that could not be read.
pub(super) fn of_body(error: BodyError, max: usize) -> ApiError {
    match error {
        BodyError::TooLarge => ApiError::new(
            ErrorCode::TooLarge,
            format!("the body is larger than {max} bytes (--max-body)"),
        ),
        BodyError::TooSlow => {
            ApiError::new(ErrorCode::InvalidRequest, "the body did not come in time")
        }
        BodyError::NoRoom => no_room(),
        BodyError::Broken => ApiError::new(ErrorCode::InvalidRequest, "the body broke off"),
    }
}

/// Why checks were not decided at all.
pub(super) fn of_undecided(error: Undecided, timeout: std::time::Duration) -> ApiError {
    match error {
        Undecided::Overloaded => ApiError::new(
            ErrorCode::Overloaded,
            "the store is slower than the checks come",
        ),
        Undecided::TimedOut => ApiError::new(
            ErrorCode::StoreUnavailable,
            format!(
                "no answer from the store within {} ms (--store-timeout)",
                timeout.as_millis()
            ),
        ),
        Undecided::NotSent => ApiError::new(
            ErrorCode::StoreUntouched,
            format!(
                "the store was busy with other checks for {} ms (--store-timeout)",
                timeout.as_millis()
            ),
        ),
    }
}

/// Why one check was not decided, in a word.
pub(super) fn code(error: &CheckError) -> ErrorCode {
    match error {
        CheckError::Store(error) if error.is_harmless() => ErrorCode::StoreUntouched,
        CheckError::CorruptBucket(_) => ErrorCode::StoreUntouched,
        CheckError::Store(_) | CheckError::PartiallyCharged(_) => ErrorCode::StoreUnavailable,
        CheckError::Stale => ErrorCode::Stale,
        CheckError::Plan(CheckPlanError::UnknownLimit(_)) => ErrorCode::UnknownLimit,
        CheckError::Plan(CheckPlanError::NoMatch) => ErrorCode::NoMatch,
        CheckError::Plan(CheckPlanError::WrongBucket { .. }) => ErrorCode::Internal,
    }
}

/// Whether a check failed for what its bucket holds or where it is: others that the same store decides do not.
pub(super) fn is_of_the_bucket(error: &CheckError) -> bool {
    match error {
        CheckError::CorruptBucket(_) => true,
        CheckError::Store(StoreError::Refused(refusal))
        | CheckError::PartiallyCharged(StoreError::Refused(refusal)) => refusal.is_of_the_keys(),
        _ => false,
    }
}

/// Why one check was not decided.
pub(super) fn of_check(error: &CheckError) -> ApiError {
    ApiError::new(code(error), error.to_string())
}
