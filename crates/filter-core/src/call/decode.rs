//! Reads the answer to a check call.

use protocol::{API_HEADER, API_VERSION, ApiError, ErrorCode, compact::BatchAnswer};

use crate::{outage::ChargeStatus, worker::CallAnswer};

/// Bound: bytes of a limiter's answer. Beyond it, the call counts as failed.
///
/// Many times what the largest batch needs.
const MAX_ANSWER: usize = 1 << 20;
/// The longest response of a server other than a limiter that is read for the log, in bytes.
const MAX_REASON: usize = 512;

/// Why a whole call decided nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The limiter has no such domain.
    UnknownDomain,
    /// The limiter refused to read the call, so nothing was charged: it is too large, or malformed.
    Refused {
        why: String,
        too_large: bool,
        /// Whether a limiter refused it, and not a proxy in between.
        signed: bool,
    },
    /// Any other failure.
    Failed {
        why: String,
        charge: ChargeStatus,
        /// As above.
        signed: bool,
    },
}

impl CallError {
    /// Classifies a limiter's error.
    fn from_api(error: &ApiError) -> Self {
        let why = format!("{}: {}", error.code.word(), error.message);
        match error.code {
            ErrorCode::TooLarge | ErrorCode::InvalidRequest => Self::Refused {
                why,
                too_large: error.code == ErrorCode::TooLarge,
                signed: true,
            },
            code => Self::Failed {
                why,
                charge: ChargeStatus::after(code),
                signed: true,
            },
        }
    }

    pub(crate) fn unknown(why: String) -> Self {
        let charge = ChargeStatus::Unknown;
        let signed = false;
        Self::Failed {
            why,
            charge,
            signed,
        }
    }
}

/// Reads the answer to a batch. A response decides nothing unless it comes from a limiter of this
/// API version, is complete, and has one result for each check.
pub(crate) fn decode(answer: &dyn CallAnswer, checks: usize) -> Result<BatchAnswer, CallError> {
    let failed = |why: String| Err(CallError::unknown(why));
    let status = answer.header(":status").unwrap_or_default();
    let status = String::from_utf8_lossy(status);
    if answer.header(API_HEADER) != Some(API_VERSION.as_bytes()) {
        let body = answer.body(MAX_REASON).unwrap_or_default();
        let charge = ChargeStatus::after_reply(&body);
        // The reason becomes part of one log line.
        let plain = |byte: &u8| {
            if matches!(byte, b' '..=b'~') {
                *byte
            } else {
                b'.'
            }
        };
        let reason: String = body.iter().map(plain).map(char::from).collect();
        let why = format!("status {status}, not from a limiter: {reason}");
        return Err(if status == "413" {
            CallError::Refused {
                why,
                too_large: true,
                signed: false,
            }
        } else {
            CallError::Failed {
                why,
                charge,
                signed: false,
            }
        });
    }
    let Some(body) = answer.body(MAX_ANSWER) else {
        return failed("an answer without end".to_owned());
    };
    if status != "200" {
        return match ApiError::from_json(&body) {
            Some(error) if error.code == ErrorCode::UnknownDomain => Err(CallError::UnknownDomain),
            Some(error) => Err(CallError::from_api(&error)),
            None => failed(format!("status {status}")),
        };
    }
    match BatchAnswer::decode(&body) {
        Ok(answers) if answers.results.len() == checks => Ok(answers),
        Ok(answers) => failed(format!(
            "{} results for {checks} checks",
            answers.results.len()
        )),
        Err(error) => failed(error.to_string()),
    }
}
