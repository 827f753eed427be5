//! Whether an undecided check may have been charged.

use protocol::ErrorCode;

/// Whether an undecided check was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeStatus {
    /// It was not: it was never sent, or the limiter answered that it charged nothing. Units admitted
    /// now become a debt.
    NotCharged,
    /// It may have been: it was sent. It is never charged again.
    Unknown,
}

impl ChargeStatus {
    /// The charge status after an error of the limiter.
    pub(crate) fn after(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Stale
            | ErrorCode::PolicyUnavailable
            | ErrorCode::StoreUntouched
            | ErrorCode::Overloaded
            | ErrorCode::Unauthorized
            | ErrorCode::InvalidRequest
            | ErrorCode::TooLarge => Self::NotCharged,
            _ => Self::Unknown,
        }
    }

    /// The charge status after a response that Envoy made in place of the limiter's. Unless it
    /// contains one of these reasons, the check may have been sent.
    pub(crate) fn after_reply(body: &[u8]) -> Self {
        const NOT_SENT: [&str; 5] = [
            "no healthy upstream",
            "reset reason: remote connection failure",
            "reset reason: local connection failure",
            "reset reason: connection timeout",
            "reset reason: overflow",
        ];
        let contains = |reason: &str| {
            let mut parts = body.windows(reason.len());
            parts.any(|part| part == reason.as_bytes())
        };
        if NOT_SENT.into_iter().any(contains) {
            Self::NotCharged
        } else {
            Self::Unknown
        }
    }
}
