//! The filter's configuration, as Envoy passes it.
//!
//! `docs/filter.md` is the manual. Unknown fields are errors, and all problems of a configuration are
//! reported together. It is a crate of its own because a configuration is read only once, so the module
//! builds this code for size alone.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod read;

use documents::{Choice, Name, Problems, Report};
use policy::{Alterations, Compiled, OnFailure, REMOTE_ADDRESS};

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The set of limits that applies.
    pub domain: Name,
    /// How checks reach the limiter.
    pub limiter: LimiterConfig,
    /// The direction of the requests that are checked.
    pub direction: Direction,
    /// The sources of entries, including the built-in ones.
    pub sources: Vec<(Name, Source)>,
    /// What happens without a limiter while no policy is loaded.
    pub failure_mode: OnFailure,
    /// The format of denials.
    pub deny: DenyConfig,
    /// The headers in responses.
    pub styles: Styles,
    /// Share of requests that are checked, in percent.
    pub enabled_percent: u8,
    /// Requests held at once in queues, for each worker; beyond it they are denied.
    pub hold_max: usize,
    /// The longest request body that is read for the number to reserve, in bytes; `None`: none is read.
    pub request_body_max: Option<u64>,
    /// Buckets in the shared table.
    pub buckets: u32,
    /// Limits until the first snapshot arrives.
    pub limits: Option<Compiled>,
}

/// How the limiter is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterConfig {
    /// The cluster.
    pub cluster: String,
    /// The `:authority` of calls.
    pub authority: String,
    /// How long a call may take, in milliseconds.
    pub timeout_ms: u64,
    /// The environment variable that holds the token, if the limiter requires one.
    pub token_env: Option<String>,
    /// Whether checks go by a stream where the limiter opens one.
    pub stream: bool,
    /// Whether requests to the limiter's host and paths pass unlimited without a token that proves that
    /// a filter sent them.
    pub trust_host: bool,
}

/// The direction of checked requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Inbound on a sidecar, everything elsewhere.
    #[default]
    Auto,
    /// To this workload.
    Inbound,
    /// From this workload.
    Outbound,
    /// All.
    Both,
}

impl Direction {
    /// Whether requests of a listener are checked. `sidecar`: this Envoy is one. `listener`: Envoy's number of
    /// the listener's direction.
    pub fn limits(self, sidecar: bool, listener: impl FnOnce() -> Option<u64>) -> bool {
        const INBOUND: u64 = 1;
        const OUTBOUND: u64 = 2;
        let wanted = match self {
            Self::Both => return true,
            Self::Auto if !sidecar => return true,
            Self::Auto | Self::Inbound => INBOUND,
            Self::Outbound => OUTBOUND,
        };
        listener() == Some(wanted)
    }
}

/// Whether an Envoy with this node id is a sidecar: Istio's node names begin with the kind of proxy.
pub fn is_sidecar(node: &[u8]) -> bool {
    node.starts_with(b"sidecar~")
}

impl Choice for Direction {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("inbound", Self::Inbound),
        ("outbound", Self::Outbound),
        ("both", Self::Both),
    ];
}

/// The source of an entry's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request's method.
    Method,
    /// Its path, in normal form.
    Path,
    /// Its host, in normal form.
    Host,
    /// The client's address, cut to a prefix.
    RemoteAddress(Prefixes),
    /// A header.
    Header(String, IfSeveral),
    /// One of its cookies.
    Cookie(String, IfSeveral),
    /// A parameter of its query.
    Query(String, IfSeveral),
    /// A property of the host's, by its path.
    Property(Vec<u8>, Format),
    /// A constant, the same for every request.
    Constant(Vec<u8>),
    /// A hash of another source's value; the value itself stays in the proxy.
    Hashed(Box<Source>),
}

impl Source {
    /// How a filter lists what it does to the values of this entry.
    pub fn mark(&self, entry: &Name) -> Option<String> {
        match self {
            Self::RemoteAddress(Prefixes { v4, v6 }) if entry.as_str() == REMOTE_ADDRESS => {
                Some(Alterations::cut_mark([*v4, *v6]))
            }
            Self::Hashed(_) => Alterations::hashed_mark(entry),
            _ => None,
        }
    }
}

/// Which of several different values of a header, cookie or parameter is the entry's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfSeveral {
    /// None: it is unknown which one the service takes, so all such requests share a bucket
    /// ([`policy::MULTIPLE_VALUES`]).
    #[default]
    Share,
    /// The first, as the service does.
    First,
    /// The last, as the service does.
    Last,
}

/// How a property's bytes become a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Unchanged.
    #[default]
    Text,
    /// Dynamic metadata: text, numbers, booleans, lists and maps, all as text.
    Metadata,
    /// A signed integer of 8 bytes, little-endian; other lengths are unchanged.
    Integer,
}

/// How many bits of an address identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, at most 32.
    pub v4: u8,
    /// Of an IPv6 address, at most 128. One client usually owns 64 bits.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        let [v4, v6] = policy::DEFAULT_PREFIXES;
        Self { v4, v6 }
    }
}

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

impl Config {
    /// Reads the configuration that Envoy passes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Problems> {
        let mut report = Report::default();
        let config = read::read(bytes, &mut report);
        report.finish(config)
    }
}

#[cfg(test)]
mod tests;
