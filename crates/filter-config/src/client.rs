//! What clients receive: denials and headers.

/// The format of denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenyConfig {
    /// The status of a denial, 400 to 599.
    pub status: u16,
    /// The content of the body.
    pub body: DenyBody,
    /// A sentence for the client, instead of the standard one.
    pub message: Option<String>,
    /// A link to documentation for the client.
    pub docs: Option<String>,
    /// How much longer than needed `Retry-After` may be, in percent, so that denied
    /// clients do not come back all at once.
    pub retry_jitter_percent: u8,
    /// The status of a denial by a limit that fails closed, or that may do so.
    pub status_on_error: u16,
}

impl Default for DenyConfig {
    fn default() -> Self {
        Self {
            status: 429,
            body: DenyBody::default(),
            message: None,
            docs: None,
            retry_jitter_percent: 0,
            status_on_error: 503,
        }
    }
}

/// The body of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenyBody {
    /// `application/problem+json`.
    #[default]
    ProblemJson,
    /// The message alone.
    Text,
    /// None.
    Empty,
}

/// The styles of headers in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each style is on or off by itself"
)]
pub struct Styles {
    /// `RateLimit-Policy` and `RateLimit` (IETF draft httpapi-ratelimit-headers).
    pub ratelimit: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the tightest limit.
    pub x_ratelimit: bool,
    /// `Retry-After` on denials.
    pub retry_after: bool,
    /// `X-RateLimit-Remaining`, `-Replenish-Rate`, `-Burst-Capacity` and `-Requested-Tokens`,
    /// as Spring Cloud Gateway sends them, and `X-RateLimit-Retry-After` on denials.
    pub spring: bool,
}

impl Default for Styles {
    fn default() -> Self {
        Self {
            ratelimit: true,
            x_ratelimit: true,
            retry_after: true,
            spring: false,
        }
    }
}
