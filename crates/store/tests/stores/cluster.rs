//! The check script on a Cluster, called by clients that find the node of a key themselves, by
//! CLUSTER SLOTS and by MOVED.

mod client;
mod faults;
mod hangs;
mod moving_pairs;
mod nodes;
mod rights;
mod slot_move;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use algorithms::{Algorithm, Align, Kind, Parameters, check::Part};
use anyhow::Result;
use harness::{CLUSTER_SLOTS as SLOTS, Engine};
use store::{script::ScriptLimit, slot};
use tokio::task::JoinSet;

use self::client::Client;
pub use self::nodes::Cluster;

const LIMIT: u64 = 100;
/// Nothing refills, and no window ends, within a test.
const PERIOD_MS: u64 = 1 << 40;

fn every_algorithm() -> Result<Vec<Algorithm>> {
    let of = |kind| Parameters::new(kind, LIMIT, PERIOD_MS);
    let queue = Parameters {
        max_delay_ms: Some(PERIOD_MS),
        ..of(Kind::LeakyBucket)
    };
    let first_request = Parameters {
        align: Some(Align::FirstRequest),
        ..of(Kind::FixedWindow)
    };
    let sub_windows = |strict| Parameters {
        sub_windows: Some(64),
        strict: Some(strict),
        ..of(Kind::SlidingWindowBuckets)
    };
    let all = [
        of(Kind::TokenBucket),
        of(Kind::Gcra),
        of(Kind::LeakyBucket),
        queue,
        of(Kind::FixedWindow),
        first_request,
        of(Kind::SlidingWindowLog),
        sub_windows(true),
        sub_windows(false),
        of(Kind::SlidingWindow),
    ];
    let all = all.iter().map(Algorithm::new);
    Ok(all.collect::<Result<_, _>>()?)
}

fn limit<'a>(key: &'a str, algorithm: &'a Algorithm) -> ScriptLimit<'a> {
    ScriptLimit::new(key.as_bytes(), Part::new(algorithm, 1))
}

const CLIENTS: usize = 200;
/// Keys in slots of all nodes, and how often each client checks each.
const SPREAD: usize = 9;
/// How often each client checks the one key that all share.
const HOT: usize = 3;
const CHECKS: usize = CLIENTS * (HOT + SPREAD);

/// What all clients check, and how far they are.
struct Load {
    cluster: Arc<Cluster>,
    algorithm: Algorithm,
    keys: Vec<String>,
    asked: AtomicUsize,
}

impl Load {
    /// One client's checks: for each key, how many passed.
    async fn run(&self, number: usize, client: &mut Client) -> Result<Vec<u64>> {
        let mut admitted = vec![0; self.keys.len()];
        let spread = (0..SPREAD).map(|i| 1 + (i + number) % SPREAD);
        for key in std::iter::repeat_n(0, HOT).chain(spread) {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            if asked == CHECKS / 3 || asked == CHECKS * 2 / 3 {
                self.cluster.flush_scripts().await?;
            }
            let limit = limit(&self.keys[key], &self.algorithm);
            admitted[key] += u64::from(client.check(&[limit]).await?);
        }
        Ok(admitted)
    }
}

/// Runs all clients; returns them with what passed for each key.
async fn run(load: Load, clients: Vec<Client>) -> Result<(Vec<Client>, BTreeMap<String, u64>)> {
    let load = Arc::new(load);
    let mut running = JoinSet::new();
    for (number, mut client) in clients.into_iter().enumerate() {
        let load = Arc::clone(&load);
        running.spawn(async move {
            let admitted = load.run(number, &mut client).await?;
            anyhow::Ok((client, admitted))
        });
    }
    let (mut clients, mut admitted) = (Vec::new(), BTreeMap::new());
    while let Some(done) = running.join_next().await {
        let (client, passed) = done??;
        clients.push(client);
        for (key, passed) in load.keys.iter().zip(passed) {
            *admitted.entry(key.clone()).or_default() += passed;
        }
    }
    Ok((clients, admitted))
}

async fn exactly_the_limit_is_admitted(engine: Engine) -> Result<()> {
    let cluster = Arc::new(Cluster::start(engine).await?);
    let owners = cluster.owners().await?;
    assert_eq!(owners.len(), SLOTS.len());
    let knowing = Client::new(owners.clone());
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| {
            // Some are given one node only, and find the others.
            Client::new(if number % 10 == 0 {
                vec![(0, 16_383, cluster.nodes[0].port())]
            } else {
                owners.clone()
            })
        })
        .collect();
    let mut nodes = BTreeSet::new();
    for (i, algorithm) in every_algorithm()?.into_iter().enumerate() {
        let keys: Vec<_> = (0..=SPREAD).map(|n| format!("rl:b:shop:{i}:{n}")).collect();
        nodes.extend(
            keys.iter()
                .flat_map(|key| knowing.owner(slot(key.as_bytes()))),
        );
        let load = Load {
            cluster: Arc::clone(&cluster),
            algorithm,
            keys,
            asked: AtomicUsize::new(0),
        };
        let before: usize = clients.iter().map(|client| client.loaded).sum();
        let admitted;
        (clients, admitted) = run(load, clients).await?;
        for (key, admitted) in admitted {
            assert_eq!(admitted, LIMIT, "{key} {:?}", algorithm.parameters());
        }
        let after: usize = clients.iter().map(|client| client.loaded).sum();
        assert!(after > before, "the flushes came in the middle");
    }
    assert_eq!(nodes.len(), SLOTS.len(), "all nodes took part");
    let moved = |client: &Client| client.moved > 0;
    assert_eq!(clients.iter().filter(|c| moved(c)).count(), CLIENTS / 10);
    Ok(())
}

/// Limits in one slot are decided in one call; those in two are refused by the node, uncharged.
async fn one_slot_is_all_or_none(engine: Engine) -> Result<()> {
    let cluster = Cluster::start(engine).await?;
    let owners = cluster.owners().await?;
    for (i, wide) in every_algorithm()?.into_iter().enumerate() {
        let narrow = Algorithm::new(&Parameters::new(Kind::TokenBucket, 40, PERIOD_MS))?;
        let mut running = JoinSet::new();
        for _ in 0..50 {
            let owners = owners.clone();
            running.spawn(async move {
                let mut client = Client::new(owners);
                let [one, other] = ["wide", "narrow"].map(|name| format!("{{{i}}}:{name}"));
                let both = [limit(&one, &wide), limit(&other, &narrow)];
                let mut admitted = 0;
                for _ in 0..2 {
                    admitted += u64::from(client.check(&both).await?);
                }
                let apart = [limit(&one, &wide), limit("elsewhere", &narrow)];
                let refused = client.check(&apart).await.expect_err("two slots");
                let refused: redis::RedisError = refused.downcast()?;
                assert_eq!(refused.code(), Some("CROSSSLOT"), "{refused}");
                anyhow::Ok(admitted)
            });
        }
        let mut admitted = 0;
        while let Some(client) = running.join_next().await {
            admitted += client??;
        }
        assert_eq!(admitted, 40, "{:?}", wide.parameters());
        let mut client = Client::new(owners.clone());
        let key = format!("{{{i}}}:wide");
        let mut rest = limit(&key, &wide);
        rest.part.cost = LIMIT - 40 + 1;
        assert!(!client.check(&[rest]).await?, "40 were charged");
        rest.part.cost = LIMIT - 40;
        assert!(client.check(&[rest]).await?, "and no more");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn on_redis_exactly_the_limit_is_admitted() -> Result<()> {
    exactly_the_limit_is_admitted(Engine::Redis).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn on_valkey_exactly_the_limit_is_admitted() -> Result<()> {
    exactly_the_limit_is_admitted(Engine::Valkey).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn on_redis_one_slot_is_all_or_none() -> Result<()> {
    one_slot_is_all_or_none(Engine::Redis).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn on_valkey_one_slot_is_all_or_none() -> Result<()> {
    one_slot_is_all_or_none(Engine::Valkey).await
}
