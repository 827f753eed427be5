//! Every algorithm under many clients at once, while the scripts are flushed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use harness::Engine;
use policy::{Compiled, Name};
use protocol::Check;
use store::Store;
use tokio::task::JoinSet;

use crate::{
    cluster::Cluster,
    given::{EVERY_ALGORITHM, check, policy, publish, request},
    servers::Server,
    with_both_engines,
};

with_both_engines!(exactly_the_limit_is_admitted);

const CLIENTS: usize = 300;
const CHECKS_EACH: usize = 4;
const CHECKS: usize = CLIENTS * CHECKS_EACH;

/// What the clients' stores are on.
enum Servers {
    One(Server),
    Cluster(Cluster),
}

impl Servers {
    fn store(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::One(server) => server.store(),
            Self::Cluster(cluster) => cluster.store(),
        }
    }

    async fn flush_scripts(&self) -> Result<()> {
        let nodes = match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => &cluster.nodes,
        };
        for node in nodes {
            node.command(&["SCRIPT", "FLUSH"]).await?;
        }
        Ok(())
    }
}

/// How many of all clients' checks of one limit pass, with two flushes in the middle.
async fn admitted(
    servers: &Arc<Servers>,
    stores: &[Arc<dyn Store>],
    policy: &Arc<Compiled>,
    limit: &Name,
) -> Result<usize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for store in stores.iter().cycle().take(CLIENTS) {
        let (servers, store, policy) = (Arc::clone(servers), Arc::clone(store), Arc::clone(policy));
        let asked = Arc::clone(&asked);
        let only = Check {
            only: vec![limit.clone()],
            ..request(&[("user", "alice")])
        };
        clients.spawn(async move {
            let mut admitted = 0;
            for _ in 0..CHECKS_EACH {
                let nth = asked.fetch_add(1, Ordering::Relaxed);
                if nth == CHECKS / 3 || nth == CHECKS * 2 / 3 {
                    servers.flush_scripts().await?;
                }
                admitted += usize::from(check(&store, &policy, &only).await?.allowed);
            }
            anyhow::Ok(admitted)
        });
    }
    let mut admitted = 0;
    while let Some(client) = clients.join_next().await {
        admitted += client??;
    }
    Ok(admitted)
}

async fn exactly_the_limit_is_admitted(engine: Engine) -> Result<()> {
    exactly(Servers::One(Server::start(engine).await?)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn exactly_the_limit_is_admitted_by_a_cluster() -> Result<()> {
    exactly(Servers::Cluster(Cluster::start(Engine::Valkey).await?)).await
}

async fn exactly(servers: Servers) -> Result<()> {
    let servers = Arc::new(servers);
    // Two limiters: the count has to be exact between them.
    let stores = [servers.store()?, servers.store()?];
    let limits = EVERY_ALGORITHM
        .replace("2/1d", "100/7d")
        .replace("1d", "7d");
    let policy = Arc::new(publish(&stores[0], &policy(&limits)).await?);
    assert_eq!(policy.limits().len(), 8);
    for limit in policy.limits() {
        let admitted = admitted(&servers, &stores, &policy, &limit.name).await?;
        assert_eq!(admitted, 100, "{}", limit.name);
    }
    Ok(())
}
