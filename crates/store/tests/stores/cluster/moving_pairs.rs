//! A slot is migrated key by key during checks of buckets that have a second key: reservations or
//! denials. While only one of the two keys has moved, no node runs the call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use harness::Engine;
use policy::{Compiled, SlotId};
use protocol::{Check, CostSettlement, LimitRequest};
use store::{Credit, ResetScope, Store, slot};
use tokio::{task::JoinSet, time::sleep};

use super::{
    Cluster,
    faults::{errors, impatient},
};
use crate::{
    given::{by, check, name, policy, publish, request, reset, units_left},
    servers::until,
    with_both_engines,
};

const LIMITS: &str = "  - {name: tokens, match: {kind: call}, per: [tenant], algorithm: fixed_window, rate: 10000000/365d, \
         cost: {from: {response_json: /total}, reserve: {default: 100}}}\n  \
     - {name: logins, match: {kind: login}, per: [tenant, user], partition: [tenant], algorithm: fixed_window, \
         rate: 5/365d, penalty: {after: 1000000, within: 1d, for: 1m}}\n";
const CLIENTS: u64 = 10;
const SETTLED_AT: u64 = 30;
with_both_engines!(pairs_of_keys_move_and_every_check_counts_once);

const PATIENCE: Duration = Duration::from_secs(20);

/// What clients do until they are stopped, and how often they did it.
struct Load {
    store: Arc<dyn Store>,
    policy: Compiled,
    done: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    /// Each client logs in, and makes calls that reserve a hundred units and cost thirty.
    fn run(self: &Arc<Self>) -> JoinSet<Result<()>> {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let load = Arc::clone(self);
            clients.spawn(async move {
                let mut id = client << 32;
                while !load.ended.load(Ordering::Relaxed) {
                    id += 1;
                    check(&load.store, &load.policy, &login(client)).await?;
                    load.call(id).await?;
                    load.done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        clients
    }

    async fn call(&self, id: u64) -> Result<()> {
        let reserving = Check {
            reserve: true,
            slot: Some(SlotId {
                stamp: 1,
                secret: id,
            }),
            ..request(&[("kind", "call"), ("tenant", "t")])
        };
        let answer = check(&self.store, &self.policy, &reserving).await?;
        let settled = CostSettlement {
            reservation: answer.limits[0].reservation.context("a reservation")?,
            units: SETTLED_AT,
        };
        let entry = LimitRequest {
            settle: vec![settled],
            ..LimitRequest::new(name("tokens"))
        };
        let settling = Check {
            cost: 0,
            reserve: false,
            slot: None,
            limits: vec![entry],
            ..reserving
        };
        check(&self.store, &self.policy, &settling).await?;
        Ok(())
    }

    async fn goes_on(&self) -> Result<()> {
        let before = self.done.load(Ordering::Relaxed);
        let enough = async || (self.done.load(Ordering::Relaxed) > before + 50).then_some(());
        until("enough calls", PATIENCE, enough).await.map(drop)
    }
}

fn login(client: u64) -> Check {
    let user = format!("user{client}");
    request(&[("kind", "login"), ("tenant", "t"), ("user", &user)])
}

/// Moves a slot to the next node with a pause after each key, so that pairs are apart.
async fn move_slot(cluster: &Cluster, slot: u16, load: &Load) -> Result<()> {
    load.goes_on().await?;
    let moving = cluster.start_moving(slot).await?;
    load.goes_on().await?;
    for key in moving.keys().await? {
        moving.migrate(&key).await?;
        sleep(Duration::from_millis(20)).await;
    }
    moving.finish().await?;
    load.goes_on().await?;
    let (source, target) = (moving.source, moving.target);
    let apart = errors(source, "TRYAGAIN").await? + errors(target, "TRYAGAIN").await?;
    assert!(apart > 0, "pairs were apart");
    let owner = cluster.owner(slot).await?;
    assert_eq!(cluster.nodes[owner].port(), target.port(), "it has moved");
    Ok(())
}

async fn pairs_of_keys_move_and_every_check_counts_once(engine: Engine) -> Result<()> {
    let cluster = Cluster::start(engine).await?;
    let store = cluster.store()?;
    let policy = publish(&store, &policy(LIMITS)).await?;
    let load = Arc::new(Load {
        store,
        policy,
        done: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    });
    // Each client is denied once, so that the keys beside all buckets exist.
    for client in 0..CLIENTS {
        for _ in 0..6 {
            check(&load.store, &load.policy, &login(client)).await?;
        }
    }
    let mut clients = load.run();
    move_slot(&cluster, slot(b"rl:b:shop:tokens:{t}"), &load).await?;
    load.ended.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client??;
    }
    let done = load.done.load(Ordering::Relaxed) as u64;
    let tenant = [Some(b"t".to_vec())];
    let limit = name("tokens");
    let tokens = load.store.inspect(&load.policy, &limit, &tenant, 1).await?;
    assert_eq!(tokens.answer.verdict.reserved.open, 0);
    assert_eq!(
        tokens.answer.verdict.decision.remaining,
        10_000_000 - SETTLED_AT * done
    );
    let mut denials = 0;
    for client in 0..CLIENTS {
        let peek = Check {
            peek: true,
            ..login(client)
        };
        let seen = check(&load.store, &load.policy, &peek).await?;
        assert!(!seen.allowed);
        denials += seen.limits[0].verdict.penalty.denials;
    }
    assert_eq!(denials, CLIENTS + done);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_bucket_whose_keys_are_apart_is_credited_and_reset_when_they_are_together() -> Result<()>
{
    for resets in [false, true] {
        let cluster = Cluster::start(Engine::Redis).await?;
        let store = cluster.store()?;
        let policy = publish(&store, &policy(LIMITS)).await?;
        let values = [Some(b"t".to_vec()), Some(b"user1".to_vec())];
        let limit = &policy.limits()[1];
        for _ in 0..6 {
            check(&store, &policy, &login(1)).await?;
        }
        let moving = cluster.start_moving(slot(b"rl:b:shop:logins:{t}")).await?;
        let keys = moving.keys().await?;
        assert_eq!(keys.len(), 2);
        moving.migrate(&keys[0]).await?;
        let goes_on = async {
            sleep(Duration::from_millis(300)).await;
            moving.migrate(&keys[1]).await?;
            moving.finish().await
        };
        let edits = async {
            if resets {
                let scope = ResetScope::Bucket(&values);
                assert_eq!(reset(&store, limit, scope).await?, 1);
                return Ok(());
            }
            let credit = Credit {
                policy: &policy,
                limit: &limit.name,
                values: &values,
                units: 2,
                peek: false,
                force: false,
            };
            assert_eq!(store.credit(&credit, &by("ann")).await?.left, 2);
            anyhow::Ok(())
        };
        let (moved, edited) = tokio::join!(goes_on, edits);
        moved?;
        edited?;
    }
    Ok(())
}

/// A bucket without denials has one key, and the call names two, of which no node has the second.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn buckets_without_denials_decide_while_their_slot_moves() -> Result<()> {
    let cluster = Cluster::start(Engine::Redis).await?;
    let store = cluster.store_with(impatient())?;
    let policy = publish(&store, &policy(LIMITS)).await?;
    let logins = [1, 2].map(login);
    let [old, _] = &logins;
    assert!(check(&store, &policy, old).await?.allowed);
    cluster.start_moving(slot(b"rl:b:shop:logins:{t}")).await?;
    // Each of several in one batch.
    let both = store.check(&policy, &logins, false).await;
    assert!(both.iter().all(Result::is_ok), "{both:?}");
    for login in &logins {
        let admitted = 4 - u64::from(login == old);
        for left in (0..admitted).rev() {
            let answer = check(&store, &policy, login).await?;
            assert_eq!(units_left(&answer), left);
        }
        assert!(!check(&store, &policy, login).await?.allowed);
        // Whoever inspects such a bucket must not take it for one without a penalty.
        let user = login.descriptor.get("user").map(<[u8]>::to_vec);
        let values = [Some(b"t".to_vec()), user];
        let seen = store.inspect(&policy, &name("logins"), &values, 1).await?;
        assert!(seen.answer.verdict.penalty.unread);
    }
    Ok(())
}
