//! What a user has to be allowed on a Cluster.

use anyhow::Result;
use harness::Engine;
use store::{Cursor, ResetScope, open, slot};

use super::{
    Cluster,
    faults::{errors, user_on},
};
use crate::{
    given::{TEN_A_DAY, check, name, policy, publish, request, reset},
    login::RIGHTS,
    servers::patient,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_user_with_few_rights_is_enough_even_while_a_slot_moves() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let cluster = Cluster::start(engine).await?;
        let mut acl = vec!["ACL", "SETUSER", "limiter", "on", ">pw"];
        acl.extend(RIGHTS.split_whitespace());
        acl.extend(["+cluster|slots", "+asking"]);
        for node in &cluster.nodes {
            node.command(&acl).await?;
        }
        let port = cluster.nodes[0].port();
        let url = format!("redis-cluster://limiter:pw@127.0.0.1:{port}");
        let store = open(&url.parse()?, patient())?;
        store.load_scripts().await?;
        let policy = publish(&store, &policy(TEN_A_DAY)).await?;
        let mut users = Vec::new();
        for node in 0..3 {
            users.push(user_on(&cluster, node).await?);
        }
        let of_second = slot(format!("rl:b:shop:per-user:{}", users[1]).as_bytes());
        cluster.start_moving(of_second).await?;
        for user in &users {
            assert!(
                check(&store, &policy, &request(&[("user", user)]))
                    .await?
                    .allowed
            );
        }
        assert!(errors(&cluster.nodes[1], "ASK").await? > 0, "it was asked");
        let page = store.list(&name("shop"), None, Cursor::default()).await?;
        assert!(!page.buckets.is_empty());
        assert_eq!(
            reset(&store, &policy.limits()[0], ResetScope::All).await?,
            3
        );
    }
    Ok(())
}
