//! The settings of the service.

use std::{path::PathBuf, time::Duration};

use crate::{TlsFiles, XdsServer};

/// The service's settings; [`Settings::default`] is what the flags default to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits files, one per domain.
    pub limits: Vec<PathBuf>,
    /// A folder of envoyproxy/ratelimit's files.
    pub rls_config: Option<PathBuf>,
    /// Another rate limit service, to which calls of Envoy's rate limit service are sent as well:
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub compare_with: Option<String>,
    /// A management server that has the limits.
    pub xds: Option<XdsServer>,
    /// The files are the policy and are followed; otherwise they only fill domains without a
    /// record.
    pub limits_are_the_policy: bool,
    /// Bearer tokens, one per line; `None`: anybody may send requests.
    pub token_file: Option<PathBuf>,
    /// Tokens of the page on the admin port, one per line; `None`: no page.
    pub page_token_file: Option<PathBuf>,
    /// What every key in the store starts with, for the commands that the page shows.
    pub key_prefix: String,
    /// TLS on the data port; `None`: plain.
    pub tls: Option<TlsFiles>,
    /// The longest a check waits for the store, in the queue and in the call.
    pub store_timeout: Duration,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// Requests worked on at once.
    pub max_inflight: usize,
    /// Connections to the data port at once.
    pub max_connections: usize,
    /// Proxies of one address that count at once.
    pub proxies_per_address: usize,
    /// The longest a check may ask to wait for permits.
    pub max_wait: Duration,
    /// Checks that wait for permits at once.
    pub max_waiters: usize,
    /// The longest that a policy poll is held, whatever wait it requests.
    pub max_poll_wait: Duration,
    /// A connection without a request for this long is closed.
    pub idle_timeout: Duration,
    /// An older connection ends after its current requests, so that its client opens
    /// another, perhaps to another replica; `None`: no limit.
    pub max_connection_age: Option<Duration>,
    /// How long requests are still accepted after SIGTERM or SIGINT.
    pub drain: Duration,
    /// How long accepted requests may take after that.
    pub last_answers: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            rls_config: None,
            xds: None,
            compare_with: None,
            limits_are_the_policy: false,
            token_file: None,
            page_token_file: None,
            key_prefix: "rl:".to_owned(),
            tls: None,
            store_timeout: Duration::from_millis(10),
            max_body: 256 * 1024,
            max_inflight: 4096,
            max_connections: 8192,
            proxies_per_address: 16,
            max_wait: Duration::from_secs(30),
            max_waiters: 1024,
            max_poll_wait: Duration::from_secs(1),
            idle_timeout: Duration::from_mins(10),
            max_connection_age: None,
            drain: Duration::from_secs(1),
            last_answers: Duration::from_secs(5),
        }
    }
}
