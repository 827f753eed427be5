//! Why a check was not decided.

use policy::{Node, Problems};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// The kind of an error, as a word that programs can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request is malformed; the error names the field.
    InvalidRequest,
    /// No token, or a wrong one.
    Unauthorized,
    /// No such path.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body is larger than the limiter accepts.
    TooLarge,
    /// The limiter does not support the encoding of the body.
    UnsupportedMediaType,
    /// The domain has no limits and never had any. A proxy treats it as having no limits.
    UnknownDomain,
    /// A limit that the check names does not exist.
    UnknownLimit,
    /// `require_match` was set, and no limit matched.
    NoMatch,
    /// Too many requests are waiting for permits already.
    TooManyWaiters,
    /// Too many requests are being decided already.
    Overloaded,
    /// The limits of the domain are not loaded yet, or the limiter is ending. Nothing was charged.
    PolicyUnavailable,
    /// The store did not answer in time, or the connection broke. It is unknown whether the check was
    /// charged.
    StoreUnavailable,
    /// The store was not reached, or refused: nothing was charged. Programs see `store_unavailable`
    /// with `"charged": false`.
    StoreUntouched,
    /// The limits changed while the check was decided. Nothing was charged.
    Stale,
    /// Any other error, including words that only a later version has.
    Internal,
}

impl ErrorCode {
    /// Every code, with its number in the compact encoding. Numbers never change.
    const ALL: [(Self, u16, &'static str, u16); 16] = [
        (Self::Internal, 0, "internal", 500),
        (Self::InvalidRequest, 1, "invalid_request", 400),
        (Self::Unauthorized, 2, "unauthorized", 401),
        (Self::NotFound, 3, "not_found", 404),
        (Self::MethodNotAllowed, 4, "method_not_allowed", 405),
        (Self::TooLarge, 5, "too_large", 413),
        (Self::UnsupportedMediaType, 6, "unsupported_media_type", 415),
        (Self::UnknownDomain, 7, "unknown_domain", 404),
        (Self::UnknownLimit, 8, "unknown_limit", 404),
        (Self::NoMatch, 9, "no_match", 404),
        (Self::TooManyWaiters, 10, "too_many_waiters", 429),
        (Self::Overloaded, 11, "overloaded", 503),
        (Self::PolicyUnavailable, 12, "policy_unavailable", 503),
        (Self::StoreUnavailable, 13, "store_unavailable", 503),
        (Self::Stale, 14, "stale", 503),
        (Self::StoreUntouched, 15, "store_unavailable", 503),
    ];

    fn row(self) -> (u16, &'static str, u16) {
        let mut rows = Self::ALL.into_iter();
        let row = rows.find(|(code, ..)| *code == self);
        row.map_or((0, "internal", 500), |(_, number, word, status)| {
            (number, word, status)
        })
    }

    /// The words of all codes; some are the same.
    pub fn words() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().map(|(_, _, word, _)| word)
    }

    /// The word in JSON.
    pub fn word(self) -> &'static str {
        self.row().1
    }

    /// The HTTP status of an answer that is nothing but this error.
    pub fn http_status(self) -> u16 {
        self.row().2
    }

    /// The code of a word; unknown words, of later versions, become an internal error.
    fn from_word(word: &str) -> Self {
        let mut rows = Self::ALL.into_iter();
        rows.find(|(_, _, known, _)| *known == word)
            .map_or(Self::Internal, |(code, ..)| code)
    }

    pub(crate) fn number(self) -> u16 {
        self.row().0
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let mut rows = Self::ALL.into_iter();
        rows.find(|(_, n, ..)| u64::from(*n) == number)
            .map_or(Self::Internal, |(code, ..)| code)
    }
}

/// An error in a limiter's answer: `{"error":{"code":…,"message":…,"field":…}}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind of error.
    pub code: ErrorCode,
    /// A message for people.
    pub message: String,
    /// The field of the request that is wrong, as `checks[2].descriptor.user`.
    pub field: Option<String>,
}

impl Serialize for ApiError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", self.code.word())?;
        map.serialize_entry("message", &self.message)?;
        if self.code == ErrorCode::StoreUntouched {
            map.serialize_entry("charged", &false)?;
        }
        if let Some(field) = &self.field {
            map.serialize_entry("field", field)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Body<E> {
    error: E,
}

impl ApiError {
    /// An error that is not about a field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: None,
        }
    }

    /// The body of the answer.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&Body { error: self }).unwrap_or_default()
    }

    /// Reads such a body; `None` if it is anything else.
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let node = Node::from_json(body).ok()?;
        let error = node.get("error")?;
        let text = |field: &str| error.get(field).and_then(Node::as_text);
        let code = match ErrorCode::from_word(text("code")?) {
            ErrorCode::StoreUnavailable if text("charged") == Some("false") => {
                ErrorCode::StoreUntouched
            }
            code => code,
        };
        Some(Self {
            code,
            message: text("message").unwrap_or_default().to_owned(),
            field: text("field").map(str::to_owned),
        })
    }
}

/// Keeps the first problem, because an answer has room for only one.
impl From<Problems> for ApiError {
    fn from(problems: Problems) -> Self {
        let first = problems.iter().next();
        let message = first.map(|problem| match &problem.hint {
            Some(hint) => format!("{} ({hint})", problem.message),
            None => problem.message.clone(),
        });
        Self {
            code: ErrorCode::InvalidRequest,
            message: message.unwrap_or_default(),
            field: first.map(|p| p.path.clone()).filter(|p| !p.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_code_maps_to_its_word_number_and_status() {
        for (code, number, word, status) in ErrorCode::ALL {
            assert_eq!((code.word(), code.http_status()), (word, status));
            let error = ApiError::new(code, "why");
            assert_eq!(ApiError::from_json(error.to_json().as_bytes()), Some(error));
            assert_eq!(ErrorCode::from_number(number.into()), code);
            assert_eq!(code.number(), number);
        }
        assert_eq!(ErrorCode::from_number(999), ErrorCode::Internal);
    }

    #[test]
    fn an_error_is_read_back_also_from_a_later_version() {
        let error = ApiError {
            code: ErrorCode::InvalidRequest,
            message: "expected \"text\"".to_owned(),
            field: Some("descriptor.user".to_owned()),
        };
        assert_eq!(ApiError::from_json(error.to_json().as_bytes()), Some(error));
        let later = br#"{"error":{"code":"brand_new","more":1},"and":2}"#;
        assert_eq!(
            ApiError::from_json(later).map(|error| error.code),
            Some(ErrorCode::Internal)
        );
        assert_eq!(ApiError::from_json(b"<html>"), None);
    }

    #[test]
    fn an_error_says_that_nothing_was_charged_in_a_separate_field() {
        let error = ApiError::new(ErrorCode::StoreUntouched, "refused");
        assert_eq!(
            error.to_json(),
            r#"{"error":{"code":"store_unavailable","message":"refused","charged":false}}"#
        );
        for unsure in ["true", "null", "\"no\""] {
            let body = format!(r#"{{"error":{{"code":"store_unavailable","charged":{unsure}}}}}"#);
            let read = ApiError::from_json(body.as_bytes()).unwrap();
            assert_eq!(read.code, ErrorCode::StoreUnavailable, "{unsure}");
        }
    }
}
