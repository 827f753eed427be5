//! What came back of a call.

use protocol::{API_HEADER, API_VERSION, ApiError, ErrorCode, compact::BatchAnswer};

use crate::{outage::ChargeStatus, worker::CallAnswer};

/// The largest answer that is read: many times what the largest batch needs.
const MAX_ANSWER: usize = 1 << 20;
/// The longest answer of something else that is read for its reason.
const MAX_REASON: usize = 512;

/// Why a whole call brought no decision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The limiter does not know the domain.
    UnknownDomain,
    /// It was not read, and charged nothing: too large, or not what a limiter understands.
    Refused {
        why: String,
        too_large: bool,
        /// Whether a limiter said so, and not something in between.
        signed: bool,
    },
    /// Anything else: no limiter, or one in trouble.
    Failed { why: String, charge: ChargeStatus },
}

impl CallError {
    /// What a limiter's own error comes to.
    fn of(error: &ApiError) -> Self {
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
            },
        }
    }

    pub(crate) fn unknown(why: String) -> Self {
        let charge = ChargeStatus::Unknown;
        Self::Failed { why, charge }
    }
}

/// Reads the answer to a batch. Whatever does not come from a limiter of this version, whole and
/// with as many results as there were checks, decides nothing.
pub(crate) fn read(answer: &impl CallAnswer, checks: usize) -> Result<BatchAnswer, CallError> {
    let failed = |why: String| Err(CallError::unknown(why));
    let status = answer.header(":status").unwrap_or_default();
    let status = String::from_utf8_lossy(status);
    if answer.header(API_HEADER) != Some(API_VERSION.as_bytes()) {
        let body = answer.body(MAX_REASON).unwrap_or_default();
        let charge = ChargeStatus::after_reply(&body);
        // A log's line holds nothing that ends it.
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
            CallError::Failed { why, charge }
        });
    }
    let Some(body) = answer.body(MAX_ANSWER) else {
        return failed("an answer without end".to_owned());
    };
    if status != "200" {
        return match ApiError::from_json(&body) {
            Some(error) if error.code == ErrorCode::UnknownDomain => Err(CallError::UnknownDomain),
            Some(error) => Err(CallError::of(&error)),
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
