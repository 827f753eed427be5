//! A node that hangs.

use std::time::Duration;

use anyhow::Result;
use harness::Engine;
use policy::SlotId;
use protocol::Check;
use store::{CheckError, StoreError, slot};
use tokio::time::Instant;

use super::{
    Cluster,
    faults::{impatient, user_on},
};
use crate::{
    given::{TEN_A_DAY, check, policy, publish, request, units_left},
    servers::until,
};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_hung_node_costs_the_others_one_deadline() -> Result<()> {
    let cluster = Cluster::start(Engine::Redis).await?;
    for node in &cluster.nodes {
        // It can hang for the whole test without being declared failed.
        let calm = ["CONFIG", "SET", "cluster-node-timeout", "600000"];
        node.command(&calm).await?;
    }
    let store = cluster.store_with(impatient())?;
    let policy = publish(&cluster.store()?, &policy(TEN_A_DAY)).await?;
    let lost = request(&[("user", &user_on(&cluster, 1).await?)]);
    let kept = request(&[("user", &user_on(&cluster, 0).await?)]);
    let other = request(&[("user", &user_on(&cluster, 2).await?)]);
    for warm in [&lost, &kept, &other] {
        let answers = async || check(&store, &policy, warm).await.ok();
        until("a first answer", PATIENCE, answers).await?;
    }
    cluster.nodes[1].pause()?;
    let deadline = impatient().timeout;
    let both = [lost.clone(), kept];
    let first = store.check(&policy, &both, false).await;
    let error = first[0].as_ref().expect_err("it hangs");
    assert_eq!(*error, CheckError::Store(StoreError::Timeout(deadline)));
    assert!(first[1].is_ok(), "{first:?}");
    // From now on nothing more is sent to it, so no check waits for it.
    for _ in 0..8 {
        let results = store.check(&policy, &both, false).await;
        let Err(CheckError::Store(error)) = &results[0] else {
            panic!("{results:?}")
        };
        assert!(error.is_harmless() && results[1].is_ok(), "{results:?}");
    }
    assert!(check(&store, &policy, &other).await?.allowed);
    cluster.nodes[1].resume()?;
    let answers = async || check(&store, &policy, &lost).await.ok();
    let (answer, _) = until("it is called again", PATIENCE, answers).await?;
    // The first, this one, and perhaps, late, the one that was sent: never those after it.
    assert!((7..=8).contains(&units_left(&answer)), "{answer:?}");
    Ok(())
}

/// The node with the key of the reservations' seals hangs, before any limiter has read it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn without_a_seal_only_what_reserves_fails() -> Result<()> {
    const PRICED: &str = "  - {name: tokens, match: {kind: call}, per: [user], rate: 1000/1d, \
         cost: {from: {response_json: /total}, reserve: {default: 100}}}\n";
    let cluster = Cluster::start(Engine::Redis).await?;
    for node in &cluster.nodes {
        let calm = ["CONFIG", "SET", "cluster-node-timeout", "600000"];
        node.command(&calm).await?;
    }
    let store = cluster.store_with(impatient())?;
    let limits = policy(&format!("{TEN_A_DAY}{PRICED}"));
    let policy = publish(&cluster.store()?, &limits).await?;
    let hung = cluster.owner(slot(b"rl:r:seal")).await?;
    let user = user_on(&cluster, (hung + 1) % 3).await?;
    let plain = request(&[("user", &user)]);
    let reserving = Check {
        reserve: true,
        slot: Some(SlotId {
            stamp: 1,
            secret: 1,
        }),
        ..request(&[("user", &user), ("kind", "call")])
    };
    let answers = async || check(&store, &policy, &plain).await.ok();
    until("a first answer", PATIENCE, answers).await?;
    cluster.nodes[hung].pause()?;
    let both = [plain, reserving];
    let began = Instant::now();
    let results = store.check(&policy, &both, false).await;
    let took = began.elapsed();
    assert!(
        results[0].is_ok() && took < 2 * impatient().timeout,
        "{results:?} {took:?}"
    );
    let Err(CheckError::Store(error)) = &results[1] else {
        panic!("{results:?}")
    };
    assert!(error.is_harmless(), "{error}");
    cluster.nodes[hung].resume()?;
    let reserved = async || store.check(&policy, &both, false).await.pop()?.ok();
    let (answer, _) = until("a reservation", PATIENCE, reserved).await?;
    assert!(
        answer
            .limits
            .iter()
            .any(|limit| limit.reservation.is_some())
    );
    Ok(())
}
