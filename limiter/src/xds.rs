//! `--xds-server`: limits from a management server, as Envoy Gateway sends them to its rate limit
//! service: `RateLimitConfig` resources over ADS, in the state-of-the-world variant.
//!
//! The limiter publishes them into the store like those of `--rls-config`. It rejects an unusable
//! response whole. Then, and while the server is unreachable, the limits stay as they were.

mod connection;
mod messages;
mod unknown;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use migration::File;
use policy::Policy;
use prost::Message;
use store::Store;
use tokio::time::{Instant, sleep_until};

use crate::rls_config::{Publisher, converted};

use connection::Connection;
use messages::{DiscoveryResponse, RateLimitConfig};
use unknown::Field;

/// The type of the resources.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The pause before reconnecting: doubled up to the longest while no response comes, and shortened
/// by up to half at random, so that limiters do not all reconnect at once.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The pause before limits that could not be stored are written again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Resources of one response.
const MAX_RESOURCES: usize = 4096;

/// The management server, and how this limiter identifies itself to it.
#[derive(Clone, Debug)]
pub struct XdsServer {
    /// `http://HOST:PORT`, or `https://HOST:PORT`.
    pub url: String,
    /// The node whose limits the server sends.
    pub node: String,
    /// Authorities of the server's certificate, PEM; `None`: those of this machine.
    pub ca: Option<PathBuf>,
    /// The certificate chain and the private key to show, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The parts that can fail separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Connection,
    Configuration,
    Store,
}

/// The limits of a management server.
pub(crate) struct Xds {
    server: XdsServer,
    store: Arc<dyn Store>,
    errors: Mutex<BTreeMap<Part, String>>,
    /// Fields of the last response that this limiter does not support.
    unknown: Mutex<BTreeSet<Field>>,
}

/// The limits that the store should hold.
struct Wanted {
    publisher: Publisher,
    policies: Vec<Policy>,
    /// When to write them (again); `None`: they are stored.
    due: Option<Instant>,
}

impl Xds {
    pub(crate) fn new(server: XdsServer, store: Arc<dyn Store>) -> Self {
        Self {
            server,
            store,
            errors: Mutex::default(),
            unknown: Mutex::default(),
        }
    }

    /// Why the server's current limits are not in force.
    pub(crate) fn error(&self) -> Option<String> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<&str> = errors.values().map(String::as_str).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Records an error, and logs it if it is new.
    fn report(&self, part: Part, error: Option<String>) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.get(&part) == error.as_ref() {
            return;
        }
        let server = &self.server.url;
        if let Some(error) = error {
            tracing::error!(server, %error, "the limits stay as they were");
            errors.insert(part, error);
        } else {
            errors.remove(&part);
            tracing::info!(server, "the limits are as the management server has them");
        }
    }

    /// Follows the server forever.
    pub(crate) async fn follow(&self) {
        let mut wanted = Wanted {
            publisher: Publisher::of_place(
                Arc::clone(&self.store),
                "--xds-server",
                &format!("{} {}", self.server.url, self.server.node),
            ),
            policies: Vec::new(),
            due: None,
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match Connection::open(&self.server).await {
                Ok(connection) => self.listen(connection, &mut wanted, &mut pause).await,
                Err(error) => error.to_string(),
            };
            self.report(Part::Connection, Some(error));
            let shorter = fastrand::u64(0..=u64::try_from(pause.as_millis()).unwrap_or(0) / 2);
            let again = Instant::now() + pause.saturating_sub(Duration::from_millis(shorter));
            while let Some(due) = wanted.due.filter(|due| *due < again) {
                sleep_until(due).await;
                self.write(&mut wanted).await;
            }
            sleep_until(again).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows one connection; returns why it ended.
    async fn listen(
        &self,
        mut connection: Connection,
        wanted: &mut Wanted,
        pause: &mut Duration,
    ) -> String {
        loop {
            let due = wanted.due;
            let write = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let response = tokio::select! {
                response = connection.next() => response,
                () = write => {
                    self.write(wanted).await;
                    continue;
                }
            };
            let response = match response {
                Ok(response) => response,
                Err(error) => return error.to_string(),
            };
            *pause = FIRST_PAUSE;
            self.report(Part::Connection, None);
            self.report_unknown(&response);
            let answered = match policies(&response).await {
                Ok(policies) => {
                    wanted.policies = policies;
                    self.report(Part::Configuration, None);
                    self.write(wanted).await;
                    connection.accept(response).await
                }
                Err(error) => {
                    self.report(Part::Configuration, Some(error.clone()));
                    connection.reject(response, error).await
                }
            };
            if let Err(error) = answered {
                return error.to_string();
            }
        }
    }

    /// Logs which fields of a response this limiter does not support, unless the last response had
    /// the same ones.
    fn report_unknown(&self, response: &DiscoveryResponse) {
        let mut found = BTreeSet::new();
        for resource in &response.resources {
            unknown::fields(&resource.value, &mut found);
        }
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if *unknown != found && !found.is_empty() {
            let fields = found.iter().map(ToString::to_string).collect::<Vec<_>>();
            tracing::warn!(
                server = self.server.url,
                fields = fields.join(", "),
                "the management server sends fields that this limiter does not know; they have no effect"
            );
        }
        *unknown = found;
    }

    async fn write(&self, wanted: &mut Wanted) {
        let error = wanted.publisher.publish(&wanted.policies).await.err();
        wanted.due = error.as_ref().map(|_| Instant::now() + WRITE_AGAIN);
        self.report(Part::Store, error.map(|error| error.to_string()));
    }
}

/// The policies in a response, or what is wrong with it.
async fn policies(response: &DiscoveryResponse) -> Result<Vec<Policy>, String> {
    if response.resources.len() > MAX_RESOURCES {
        return Err(format!("more than {MAX_RESOURCES} resources"));
    }
    let mut files = Vec::with_capacity(response.resources.len());
    for resource in &response.resources {
        if resource.type_url != TYPE_URL {
            return Err(format!("a resource of another type: {}", resource.type_url));
        }
        let config = RateLimitConfig::decode(resource.value.clone());
        let config = config.map_err(|error| error.to_string())?;
        files.push((config.name.clone(), config.file().to_string()));
    }
    let converting = tokio::task::spawn_blocking(move || {
        let files = files.iter().map(|(name, text)| File {
            name,
            bytes: text.as_bytes(),
        });
        converted(&files.collect::<Vec<_>>()).map_err(|error| error.to_string())
    });
    converting.await.map_err(|error| error.to_string())?
}
