//! A Cluster that changes or fails while checks run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use harness::Engine;
use policy::Compiled;
use protocol::{Check, Debit, LeaseRequest, LimitRequest, Settlement};
use store::{CheckError, Options, Store, StoreError, slot};
use tokio::task::JoinSet;

use super::Cluster;
use crate::{
    given::{TEN_A_DAY, check, name, policy, publish, request, units_left},
    servers::{Server, until},
    with_both_engines,
};

with_both_engines!(
    a_moving_slot_charges_each_check_once,
    a_lost_master_is_replaced,
    a_lost_master_of_which_nobody_wants_anything_is_forgotten
);

const PATIENCE: Duration = Duration::from_secs(20);

pub fn impatient() -> Options {
    Options {
        timeout: Duration::from_millis(200),
        ..Options::default()
    }
}

/// Checks of many clients until they are stopped, and how many there were so far.
struct Load {
    store: Arc<dyn Store>,
    policy: Compiled,
    checks: AtomicUsize,
    ended: AtomicBool,
}

const CLIENTS: usize = 20;

impl Load {
    /// How many checks pass; none may fail.
    fn run(self: &Arc<Self>) -> JoinSet<Result<usize>> {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let load = Arc::clone(self);
            clients.spawn(async move {
                let user = format!("user{client}");
                let to_check = request(&[("tenant", "t"), ("user", &user)]);
                let mut admitted = 0;
                while !load.ended.load(Ordering::Relaxed) {
                    load.checks.fetch_add(1, Ordering::Relaxed);
                    let answer = check(&load.store, &load.policy, &to_check).await?;
                    admitted += usize::from(answer.allowed);
                }
                Ok(admitted)
            });
        }
        clients
    }

    /// Waits for a few more checks of each client.
    async fn goes_on(&self) -> Result<()> {
        let before = self.checks.load(Ordering::Relaxed);
        let enough = async || {
            let checks = self.checks.load(Ordering::Relaxed);
            (checks >= before + 10 * CLIENTS).then_some(())
        };
        until("enough checks", PATIENCE, enough).await.map(drop)
    }
}

/// How often a node answered with an error.
pub async fn errors(node: &Server, code: &str) -> Result<u64> {
    let stats: String = node.ask(&["INFO", "errorstats"]).await?;
    let name = format!("errorstat_{code}:count=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&name));
    Ok(count.unwrap_or("0").trim().parse()?)
}

/// Moves a slot to the next node, with a few checks between the steps.
async fn move_slot(cluster: &Cluster, slot: u16, load: &Load) -> Result<()> {
    load.goes_on().await?;
    let moving = cluster.start_moving(slot).await?;
    load.goes_on().await?;
    // One bucket first, so that the slot is in two places for a while.
    for most in [1, 1000] {
        let mut moved = 0;
        while moved < most {
            let Some(key) = moving.keys().await?.into_iter().next() else {
                break;
            };
            moving.migrate(&key).await?;
            moved += 1;
        }
        load.goes_on().await?;
    }
    moving.finish().await
}

/// What passes while a slot moves, and what is left of its first limit.
async fn admitted_while_a_slot_moves(engine: Engine, limits: &str) -> Result<(usize, u64)> {
    let cluster = Cluster::start(engine).await?;
    let store = cluster.store()?;
    let policy = publish(&store, &policy(limits)).await?;
    // The first limit's bucket chooses the slot.
    let slot = slot(b"rl:b:shop:tenant:{t}");
    let from = cluster.owner(slot).await?;
    let to = (from + 1) % 3;
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let load = Arc::new(Load {
        store: Arc::clone(&store),
        policy,
        checks: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    });
    let mut clients = load.run();
    move_slot(&cluster, slot, &load).await?;
    load.goes_on().await?;
    load.ended.store(true, Ordering::Relaxed);
    let mut admitted = 0;
    while let Some(client) = clients.join_next().await {
        admitted += client??;
    }
    assert_eq!(cluster.owner(slot).await?, to, "it has moved");
    assert!(errors(source, "ASK").await? > 0 && errors(source, "MOVED").await? > 0);
    if load.policy.limits().len() > 1 {
        let apart = errors(source, "TRYAGAIN").await? + errors(target, "TRYAGAIN").await?;
        assert!(apart > 0, "only some of the buckets were there");
    }
    let peek = Check {
        peek: true,
        ..request(&[("tenant", "t"), ("user", "nobody")])
    };
    let left = check(&store, &load.policy, &peek).await?;
    Ok((admitted, units_left(&left)))
}

/// What passed and what is left add up to the limit: nothing was charged twice, nor without passing.
async fn a_moving_slot_charges_each_check_once(engine: Engine) -> Result<()> {
    let window = "algorithm: fixed_window, partition: [tenant]";
    let one = format!("  - {{name: tenant, per: [tenant], {window}, rate: 1000000/7d}}\n");
    let (admitted, left) = admitted_while_a_slot_moves(engine, &one).await?;
    assert_eq!(admitted as u64 + left, 1_000_000);
    // Two buckets of the slot for each check, of which one soon denies.
    let two = format!("{one}  - {{name: user, per: [tenant, user], {window}, rate: 25/7d}}\n");
    let (admitted, left) = admitted_while_a_slot_moves(engine, &two).await?;
    assert_eq!(admitted as u64 + left, 1_000_000);
    assert_eq!(admitted, 25 * CLIENTS);
    Ok(())
}

/// A user whose bucket is on a node.
pub async fn user_on(cluster: &Cluster, node: usize) -> Result<String> {
    for i in 0..1000 {
        let key = format!("rl:b:shop:per-user:u{i}");
        if cluster.owner(slot(key.as_bytes())).await? == node {
            return Ok(format!("u{i}"));
        }
    }
    anyhow::bail!("no user there")
}

async fn a_lost_master_is_replaced(engine: Engine) -> Result<()> {
    let mut cluster = Cluster::start(engine).await?;
    cluster.add_replica(1).await?;
    let store = cluster.store_with(impatient())?;
    let policy = publish(&cluster.store()?, &policy(TEN_A_DAY)).await?;
    let lost = request(&[("user", &user_on(&cluster, 1).await?)]);
    let kept = request(&[("user", &user_on(&cluster, 0).await?)]);
    let warm = async || check(&store, &policy, &lost).await.ok();
    until("a first answer", PATIENCE, warm).await?;
    cluster.nodes[1].kill();
    // The other nodes go on all the while, or report that the Cluster is down.
    let both = [lost.clone(), kept];
    let mut alone = 0;
    let answers = async || {
        let results = store.check(&policy, &both, false).await;
        alone += usize::from(results[0].is_err() && results[1].is_ok());
        results[0].is_ok().then_some(())
    };
    until("the replica is asked", PATIENCE, answers).await?;
    assert!(alone > 0, "one shard down is an error of its checks only");
    let up = async || store.fault().is_none().then_some(());
    until("nothing is the matter any more", PATIENCE, up).await?;
    Ok(())
}

/// Nothing is sent to its slots, so that no request fails and no node redirects one.
async fn a_lost_master_of_which_nobody_wants_anything_is_forgotten(engine: Engine) -> Result<()> {
    let mut cluster = Cluster::start(engine).await?;
    cluster.add_replica(1).await?;
    let store = cluster.store_with(impatient())?;
    // As a limiter does, whose nodes are all connected then.
    let _edits = store.watch_edits();
    let warm = async || store.is_warm().then_some(());
    until("the nodes are connected", PATIENCE, warm).await?;
    cluster.nodes[1].kill();
    let lost = async || store.fault();
    until("it is missed", PATIENCE, lost).await?;
    let over = async || store.fault().is_none().then_some(());
    until("its replica is connected in its place", PATIENCE, over).await?;
    Ok(())
}

async fn questions(node: &Server) -> Result<u64> {
    let stats: String = node.ask(&["INFO", "commandstats"]).await?;
    let calls = stats.lines().find_map(|line| {
        let calls = line.strip_prefix("cmdstat_cluster|slots:calls=")?;
        calls.split(',').next()?.parse().ok()
    });
    Ok(calls.unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_cluster_that_is_down_refuses_calmly_and_is_found_again() -> Result<()> {
    let mut cluster = Cluster::start(Engine::Redis).await?;
    let store = cluster.store_with(impatient())?;
    let policy = publish(&cluster.store()?, &policy(TEN_A_DAY)).await?;
    let to_check = request(&[("user", &user_on(&cluster, 0).await?)]);
    let warm = async || check(&store, &policy, &to_check).await.ok();
    until("a first answer", PATIENCE, warm).await?;
    cluster.nodes[2].kill();
    let refused = async || match check(&store, &policy, &to_check).await {
        Err(CheckError::Store(StoreError::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let (refusal, _) = until("a refusal", PATIENCE, refused).await?;
    assert_eq!(refusal.code, "CLUSTERDOWN");
    // However often checks fail, the store requests the slot map at its own pace.
    let before = questions(&cluster.nodes[0]).await? + questions(&cluster.nodes[1]).await?;
    let mut checks = 0;
    let since = tokio::time::Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        assert!(check(&store, &policy, &to_check).await.is_err());
        checks += 1;
    }
    let after = questions(&cluster.nodes[0]).await? + questions(&cluster.nodes[1]).await?;
    // At most twenty requests a second, to two nodes at once, and those of this test.
    assert!(
        checks > 100 && after - before <= 90,
        "{checks} {before} {after}"
    );
    cluster.revive(2).await?;
    let answers = async || check(&store, &policy, &to_check).await.ok();
    until("it is found again", PATIENCE, answers).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_server_that_is_no_cluster_says_so() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let store = store::open(&url.parse()?, impatient())?;
    let Err(StoreError::Unsupported(why)) = store.ping().await else {
        panic!("there is no cluster")
    };
    assert!(why.contains("not a node of a cluster"), "{why}");
    // A node that is used as if it were a single server reports what it is.
    let cluster = Cluster::start(Engine::Redis).await?;
    let node = user_on(&cluster, 1).await?;
    let alone = cluster.nodes[0].store()?;
    let policy = Compiled::new(policy(TEN_A_DAY));
    let refused = check(&alone, &policy, &request(&[("user", &node)])).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("redis-cluster://"), "{refused}");
    Ok(())
}

/// A user whose bucket of `api` is on the first node, and that of `per-user` on the second.
async fn user_of_both(cluster: &Cluster) -> Result<String> {
    for i in 0..1000 {
        let user = format!("u{i}");
        let node = async |limit: &str| {
            let key = format!("rl:b:shop:{limit}:{user}");
            cluster.owner(slot(key.as_bytes())).await
        };
        if (node("api").await?, node("per-user").await?) == (0, 1) {
            return Ok(user);
        }
    }
    anyhow::bail!("no such user")
}

/// A leased limit on a node that answers, and one on a node that is gone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn what_one_node_executed_before_another_failed_is_not_called_uncharged() -> Result<()> {
    const LEASED: &str =
        "  - {name: api, match: {kind: api}, per: [user], rate: 100/1d, lease: {ttl: 1m}}\n";
    let mut cluster = Cluster::start(Engine::Redis).await?;
    for node in &cluster.nodes {
        // The others go on as if the Cluster were whole.
        let partial = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        node.command(&partial).await?;
    }
    let store = cluster.store_with(impatient())?;
    let policy = publish(&cluster.store()?, &policy(&format!("{LEASED}{TEN_A_DAY}"))).await?;
    let user = user_of_both(&cluster).await?;
    let of_lease = |of: LimitRequest| Check {
        limits: vec![of],
        ..request(&[("user", &user), ("kind", "api")])
    };
    let leasing = |want, settle: Vec<Settlement>| LimitRequest {
        lease: Some(LeaseRequest { want, settle }),
        ..LimitRequest::new(name("api"))
    };
    let granted = async || {
        check(&store, &policy, &of_lease(leasing(20, Vec::new())))
            .await
            .ok()
    };
    let (granted, _) = until("a grant", PATIENCE, granted).await?;
    let lease = granted.limits[0].verdict.lease.expect("a grant");
    assert_eq!(lease.units, 20);
    cluster.nodes[1].kill();
    let settled = Settlement {
        epoch: lease.epoch,
        spent: 2,
        returned: 3,
    };
    let owed = LimitRequest {
        debit: Some(Debit {
            units: 5,
            serial: None,
        }),
        ..LimitRequest::new(name("api"))
    };
    let values = [Some(user.clone().into_bytes())];
    for (executed, leased, left) in [(leasing(0, vec![settled]), 15, 82), (owed, 15, 77)] {
        let failed = check(&store, &policy, &of_lease(executed)).await;
        assert!(
            matches!(failed, Err(CheckError::PartiallyCharged(_))),
            "{failed:?}"
        );
        let seen = store.inspect(&policy, &name("api"), &values, 1).await?;
        let seen = seen.answer.verdict;
        assert_eq!((seen.leased, seen.decision.remaining), (leased, left));
    }
    // What only charged, and was refunded, may be sent again.
    let failed = check(&store, &policy, &of_lease(leasing(0, Vec::new()))).await;
    assert!(
        matches!(&failed, Err(CheckError::Store(error)) if error.is_harmless()),
        "{failed:?}"
    );
    Ok(())
}
