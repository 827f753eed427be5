//! gRPC's health service, for Envoy's and Kubernetes's gRPC health checks.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    net::IpAddr,
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

/// Bound: calls of `Health/Watch`. Beyond it, the oldest of the address with the most ends, first
/// of clients that have shown no token.
///
/// A program opens one for each service. No token is needed, so with more in all, an earlier one
/// ends, and not the one whose client has none yet.
const WATCHES: usize = 1024;
/// Bound: calls of `Health/Watch` of a connection. Beyond it, further ones are refused.
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
    watches: Arc<Watches>,
}

impl Watched {
    pub(crate) fn new(watches: Gauge) -> Self {
        Self {
            health: watch::Sender::new(message(Health::NotServing)),
            unknown: watch::Sender::new(message(Health::ServiceUnknown)),
            watches: Arc::new(Watches {
                open: Mutex::default(),
                opened: AtomicU64::new(0),
                gauge: watches,
            }),
        }
    }
}

/// The open watches.
struct Watches {
    open: Mutex<Open>,
    opened: AtomicU64,
    gauge: Gauge,
}

/// Watches by their numbers, which grow. Who has to make room is known without a search: strangers may
/// open many a second.
#[derive(Default)]
struct Open {
    watchers: HashMap<u64, Watcher>,
    /// Those of clients that had no token when this was last looked at.
    strangers: ByAddress,
    clients: ByAddress,
}

struct Watcher {
    peer: Arc<Peer>,
    is_stranger: bool,
    /// The watch ends when this is dropped.
    _end: oneshot::Sender<()>,
}

/// Watches of each address, and the addresses by how many they have and how old their oldest one is.
#[derive(Default)]
struct ByAddress {
    numbers: HashMap<IpAddr, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
}

/// The more watches an address has, and among equals the older its oldest one, the larger.
type Rank = (usize, Reverse<u64>, IpAddr);

/// The permit of one watch.
struct WatchPermit {
    watches: Arc<Watches>,
    number: u64,
}

impl ByAddress {
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let rank = |numbers: &BTreeSet<u64>| -> Option<Rank> {
            Some((numbers.len(), Reverse(*numbers.first()?), address))
        };
        let numbers = self.numbers.entry(address).or_default();
        if let Some(before) = rank(numbers) {
            self.ranks.remove(&before);
        }
        change(numbers);
        match rank(numbers) {
            Some(after) => {
                self.ranks.insert(after);
            }
            None => {
                self.numbers.remove(&address);
            }
        }
    }

    /// The oldest watch of the address that has the most.
    fn least_entitled(&self) -> Option<u64> {
        let (_, Reverse(number), _) = self.ranks.last()?;
        Some(*number)
    }
}

impl Open {
    fn add(&mut self, number: u64, watcher: Watcher) {
        let kind = if watcher.is_stranger {
            &mut self.strangers
        } else {
            &mut self.clients
        };
        kind.change(watcher.peer.address, |numbers| {
            numbers.insert(number);
        });
        self.watchers.insert(number, watcher);
    }

    fn remove(&mut self, number: u64) -> Option<Watcher> {
        let watcher = self.watchers.remove(&number)?;
        let kind = if watcher.is_stranger {
            &mut self.strangers
        } else {
            &mut self.clients
        };
        kind.change(watcher.peer.address, |numbers| {
            numbers.remove(&number);
        });
        Some(watcher)
    }

    /// Ends one watch, if a client (with a token, or without one) may take its permit.
    fn make_room(&mut self, for_stranger: bool) -> Option<()> {
        while let Some(number) = self.strangers.least_entitled() {
            let mut watcher = self.remove(number)?;
            if !watcher.peer.is_authenticated() {
                return Some(());
            }
            // It has shown a token since; each does so once.
            watcher.is_stranger = false;
            self.add(number, watcher);
        }
        let number = self.clients.least_entitled().filter(|_| !for_stranger)?;
        self.remove(number).map(drop)
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit, and what resolves when it is lost to another client. `None`: all are of clients with
    /// tokens, and this one has shown none.
    fn enter(self: &Arc<Self>, peer: &Arc<Peer>) -> Option<(WatchPermit, oneshot::Receiver<()>)> {
        let mut open = self.lock();
        let is_stranger = !peer.is_authenticated();
        if open.watchers.len() >= WATCHES {
            open.make_room(is_stranger)?;
        }
        let (end, ended) = oneshot::channel();
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let newest = Watcher {
            peer: Arc::clone(peer),
            is_stranger,
            _end: end,
        };
        open.add(number, newest);
        self.count(&open);
        let watches = Arc::clone(self);
        Some((WatchPermit { watches, number }, ended))
    }

    fn count(&self, open: &Open) {
        let count = open.watchers.len();
        self.gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut open = self.watches.lock();
        open.remove(self.number);
        self.watches.count(&open);
    }
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
        let (permit, ended) = self.watched.watches.enter(&peer).ok_or_else(full)?;
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
        let held = (permit, of_peer, ended);
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
        response
            .extensions_mut()
            .insert(Following::new(changes, None));
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_oldest_watch_of_the_address_with_the_most_makes_room() {
        let address = |nth: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, nth));
        let mut found = ByAddress::default();
        let mut open: Vec<(u64, IpAddr)> = Vec::new();
        for number in 0..5000 {
            let from = address(fastrand::u8(0..40).min(fastrand::u8(0..40)));
            found.change(from, |numbers| {
                numbers.insert(number);
            });
            open.push((number, from));
            if open.len() < 100 {
                continue;
            }
            // Either the one that makes room, or one that ends by itself.
            let held = |from| open.iter().filter(|(_, other)| *other == from).count();
            let (number, from) = if fastrand::bool() {
                let expected = { open.iter() }.min_by_key(|(n, from)| (Reverse(held(*from)), *n));
                assert_eq!(found.least_entitled(), expected.map(|(number, _)| *number));
                *expected.unwrap()
            } else {
                open[fastrand::usize(..open.len())]
            };
            open.retain(|(n, _)| *n != number);
            found.change(from, |numbers| {
                numbers.remove(&number);
            });
        }
        for (number, from) in open {
            found.change(from, |numbers| {
                numbers.remove(&number);
            });
        }
        assert!(found.numbers.is_empty() && found.ranks.is_empty());
    }
}
