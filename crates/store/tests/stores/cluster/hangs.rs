//! A node that hangs.

use std::time::Duration;

use anyhow::Result;
use harness::Engine;
use store::{CheckError, StoreError};

use super::{
    Cluster,
    faults::{impatient, user_on},
};
use crate::{
    given::{TEN_A_DAY, check, policy, publish, request},
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
    let (answer, _) = until("it is asked again", PATIENCE, answers).await?;
    // The first, this one, and perhaps, late, the one that was sent: never those after it.
    assert!((7..=8).contains(&answer.limits[0].remaining), "{answer:?}");
    Ok(())
}
