//! gRPC's health service, for Envoy's and Kubernetes's gRPC health checks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, Limited};
use hyper::{Response, body::Incoming};
use prometheus_client::metrics::gauge::Gauge;
use protocol::{ApiError, ErrorCode};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

use super::messages::{Health, HealthCheckRequest, HealthCheckResponse};
use crate::{
    api::{Answered, Api, grpc},
    serve::{Following, Peer},
};

/// The path of a health check.
pub(in crate::api) const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The path of a call that returns the health, and again each time it changes.
pub(in crate::api) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The most watches in all, and per connection: a program opens one for each service. No token is needed,
/// so with more in all, an earlier one ends, and not the one whose client has none yet.
const WATCHES: usize = 1024;
const WATCHES_OF_ONE: usize = 8;

/// The interval at which the health is checked for watches.
const LOOK: Duration = Duration::from_millis(100);

/// The service names that are known: all, this one, and the name that envoyproxy/ratelimit uses.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "ratelimit",
];

/// The body of a health check, in bytes, and how long it may take.
const BODY_MAX: usize = 1024;
const BODY_WITHIN: Duration = Duration::from_secs(1);

/// The health as sent to watches.
pub(crate) struct Watched {
    /// The message for the current health.
    health: watch::Sender<Bytes>,
    /// The message for an unknown service; it never changes.
    unknown: watch::Sender<Bytes>,
    places: Arc<Places>,
}

impl Watched {
    pub(crate) fn new(watches: Gauge) -> Self {
        Self {
            health: watch::Sender::new(message(Health::NotServing)),
            unknown: watch::Sender::new(message(Health::ServiceUnknown)),
            places: Arc::new(Places {
                open: Mutex::default(),
                opened: AtomicU64::new(0),
                gauge: watches,
            }),
        }
    }
}

/// The open watches by their age.
struct Places {
    open: Mutex<BTreeMap<u64, Watcher>>,
    opened: AtomicU64,
    gauge: Gauge,
}

struct Watcher {
    peer: Arc<Peer>,
    /// The watch ends when this is dropped.
    _end: oneshot::Sender<()>,
}

/// The place of one watch.
struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Watcher>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, and what resolves when it is lost to another client. `None`: all are of clients with
    /// tokens, and this one has shown none.
    fn enter(self: &Arc<Self>, peer: &Arc<Peer>) -> Option<(Place, oneshot::Receiver<()>)> {
        let mut open = self.lock();
        if open.len() >= WATCHES {
            let lost =
                least_entitled(&open).filter(|(_, client)| !client || peer.is_authenticated())?;
            open.remove(&lost.0);
        }
        let (end, ended) = oneshot::channel();
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let watcher = Watcher {
            peer: Arc::clone(peer),
            _end: end,
        };
        open.insert(number, watcher);
        self.count(&open);
        let places = Arc::clone(self);
        Some((Place { places, number }, ended))
    }

    fn count(&self, open: &BTreeMap<u64, Watcher>) {
        self.gauge
            .set(i64::try_from(open.len()).unwrap_or(i64::MAX));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        open.remove(&self.number);
        self.places.count(&open);
    }
}

/// The oldest watch of the address that has the most, and whether its client has shown a token; those
/// of clients that have not come first.
fn least_entitled(open: &BTreeMap<u64, Watcher>) -> Option<(u64, bool)> {
    let mut held = HashMap::new();
    for watcher in open.values() {
        *held.entry(watcher.peer.address).or_insert(0_usize) += 1;
    }
    let order = |(number, watcher): &(&u64, &Watcher)| {
        let of_address = held.get(&watcher.peer.address).copied().unwrap_or(0);
        (
            watcher.peer.is_authenticated(),
            std::cmp::Reverse(of_address),
            **number,
        )
    };
    let (number, watcher) = open.iter().min_by_key(order)?;
    Some((*number, watcher.peer.is_authenticated()))
}

impl Api {
    /// `grpc.health.v1.Health/Check`.
    pub(in crate::api) async fn health_check(&self, body: Incoming) -> Answered {
        if !is_known(&receive(body).await?.service) {
            let message = "this limiter has no such service";
            return Err(ApiError::new(ErrorCode::UnknownDomain, message));
        }
        Ok(grpc::answer(&response(self.serving())))
    }

    /// `grpc.health.v1.Health/Watch`: a message now, and one whenever the health changes, until the
    /// connection ends.
    pub(in crate::api) async fn health_watch(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let request = receive(body).await?;
        let full = || ApiError::new(ErrorCode::TooManyWaiters, "too many watch the health");
        let of_peer = peer.follow(WATCHES_OF_ONE).ok_or_else(full)?;
        let (place, ended) = self.watched.places.enter(&peer).ok_or_else(full)?;
        let source = if is_known(&request.service) {
            self.look();
            &self.watched.health
        } else {
            &self.watched.unknown
        };
        let mut messages = source.subscribe();
        let first = messages.borrow_and_update().clone();
        let mut response: Response<Bytes> = grpc::open(first);
        // Changes faster than the client reads are merged into one message.
        let held = (place, of_peer, ended);
        let changes = unfold(
            (messages, peer, held),
            |(mut messages, peer, mut held)| async {
                tokio::select! {
                    () = peer.ordered_to_drain() => return None,
                    _ = &mut held.2 => return None,
                    changed = messages.changed() => changed.ok()?,
                }
                let message = messages.borrow_and_update().clone();
                Some((Ok(message), (messages, peer, held)))
            },
        );
        response.extensions_mut().insert(Following::new(changes));
        Ok(response)
    }

    /// Keeps the watched health up to date, forever.
    pub(crate) async fn follow_health(&self) {
        loop {
            self.look();
            sleep(LOOK).await;
        }
    }

    fn look(&self) {
        let now = message(self.serving());
        self.watched.health.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }

    fn serving(&self) -> Health {
        match self.health() {
            Ok(_) => Health::Serving,
            Err(_) => Health::NotServing,
        }
    }
}

/// Reads a request. The sender may have shown no token, so the request uses none of the memory
/// shared by the bodies of admitted clients.
async fn receive(body: Incoming) -> Result<HealthCheckRequest, ApiError> {
    let received = timeout(BODY_WITHIN, Limited::new(body, BODY_MAX).collect()).await;
    match received {
        Ok(Ok(body)) => grpc::decode(&body.to_bytes()),
        Ok(Err(_)) | Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("a health check is a body of at most {BODY_MAX} bytes, sent at once"),
        )),
    }
}

/// Whether a service is one of this limiter's.
fn is_known(service: &str) -> bool {
    SERVICES.contains(&service)
}

fn response(health: Health) -> HealthCheckResponse {
    HealthCheckResponse {
        status: health.into(),
    }
}

fn message(health: Health) -> Bytes {
    grpc::framed(&response(health))
}
