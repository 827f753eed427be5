//! Clients with a token and a steady rate, and what they measure.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use harness::RawClient;
use tokio::task::LocalSet;

use super::post;

/// The default store timeout, plus 5 ms for the connection to the limiter.
pub const IN_TIME: Duration = Duration::from_millis(15);

/// Clients, each with a connection of its own.
const CLIENTS: u64 = 4;

/// The pause between two checks of a client.
const PERIOD: Duration = Duration::from_millis(20);

/// The results of checks.
#[derive(Default)]
pub struct Seen {
    /// The duration of each decided check, in microseconds.
    took_us: Vec<u64>,
    /// Checks without a decision: another status than 200, or no answer.
    undecided: u64,
}

impl Seen {
    /// All checks.
    pub fn checks(&self) -> u64 {
        u64::try_from(self.took_us.len()).unwrap_or(u64::MAX) + self.undecided
    }

    /// Checks that were not decided in time.
    pub fn late(&self) -> u64 {
        let late = |took_us: &&u64| u128::from(**took_us) > IN_TIME.as_micros();
        let late = self.took_us.iter().filter(late).count();
        u64::try_from(late).unwrap_or(u64::MAX) + self.undecided
    }

    /// A summary in one line.
    pub fn summary(&mut self) -> String {
        self.took_us.sort_unstable();
        let (checks, late) = (self.checks(), self.late());
        let in_time = (checks - late) * 100_000 / checks.max(1);
        format!(
            "{checks} checks, p50 {}, p99 {}, p99.9 {}, {}.{:03} % within {} ms, {} not decided",
            self.at(500),
            self.at(990),
            self.at(999),
            in_time / 1000,
            in_time % 1000,
            IN_TIME.as_millis(),
            self.undecided,
        )
    }

    /// The duration that this share of the checks, in thousandths, did not exceed.
    fn at(&self, per_mille: usize) -> String {
        let last = self.took_us.len().saturating_sub(1);
        let us = self.took_us.get(last * per_mille / 1000).unwrap_or(&0);
        format!("{}.{:02} ms", us / 1000, us % 1000 / 10)
    }

    /// Adds later results.
    pub fn add(&mut self, mut later: Self) {
        self.took_us.append(&mut later.took_us);
        self.undecided += later.undecided;
    }
}

/// The clients; dropping this ends them.
pub struct Honest {
    seen: Rc<RefCell<Seen>>,
    clients: LocalSet,
}

impl Honest {
    /// The clients run only while [`Honest::work`] is awaited.
    pub fn start(ports: [u16; 2]) -> Self {
        let (seen, clients) = (Rc::default(), LocalSet::new());
        for (client, port) in (0..CLIENTS).zip(ports.into_iter().cycle()) {
            clients.spawn_local(check_on(port, client, Rc::clone(&seen)));
        }
        Self { seen, clients }
    }

    /// Runs the clients for this long and returns their results.
    pub async fn work(&self, time: Duration) -> Seen {
        let rest = tokio::time::sleep(time);
        self.clients.run_until(rest).await;
        self.seen.take()
    }
}

async fn check_on(port: u16, client: u64, seen: Rc<RefCell<Seen>>) {
    let body =
        format!(r#"{{"domain":"soak","descriptor":{{"what":"honest","user":"u{client}"}}}}"#);
    let request = post("/v1/check", "application/json", body.as_bytes());
    let mut connection = RawClient::new(port);
    let mut turns = tokio::time::interval(PERIOD);
    loop {
        turns.tick().await;
        let started = Instant::now();
        let reply = connection.send(&request).await;
        let took = started.elapsed();
        let mut seen = seen.borrow_mut();
        match reply {
            Ok(Some(reply)) if reply.status == 200 => {
                seen.took_us
                    .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            }
            _ => seen.undecided += 1,
        }
    }
}
