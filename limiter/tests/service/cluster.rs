//! The service on a Cluster.

use anyhow::Result;
use harness::{Cluster, Engine};
use serde_json::{Value, json};
use store::{Options, open, slot};
use tempfile::TempDir;

use crate::support::{PATIENCE, Service, publish, quick};

/// Two limits whose buckets are in different slots.
const LIMITS: &str = "  - {name: per-user, per: [user], rate: 10/1d}
  - {name: per-path, per: [path], rate: 2/1d}
";

async fn left(service: &Service, limit: &str, descriptor: Value) -> Result<Value> {
    let peek = json!({"descriptor": descriptor, "limits": [limit], "peek": true});
    Ok(service.ask(peek).await?.json()?["remaining"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server"]
async fn checks_over_several_nodes_are_all_or_nothing() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let dir = TempDir::new()?;
        let cluster = Cluster::start(&engine.program()?, dir.path()).await?;
        let owner = |key: String| cluster.owner(slot(key.as_bytes()));
        // A user's bucket on each node, and a path's on the node after it.
        let path = owner("rl:b:shop:per-path:p".to_owned())?;
        let mut users = Vec::new();
        for port in cluster.ports() {
            let mut names = (0..1000).map(|i| format!("u{i}"));
            let on = |user: &String| {
                owner(format!("rl:b:shop:per-user:{user}")).is_ok_and(|owner| owner == port)
            };
            users.push((port, names.find(on).expect("a user there")));
        }
        let options = Options {
            timeout: PATIENCE,
            ..Options::default()
        };
        let store = open(&cluster.url().parse()?, options)?;
        publish(&store, LIMITS).await?;
        let service = Service::ready_on(store, quick()).await?;
        let (_, first) = users
            .iter()
            .find(|(port, _)| *port != path)
            .expect("three nodes");
        let both = json!({"descriptor": {"user": first, "path": "p"}});
        for allowed in [true, true, false, false] {
            let answer = service.ask(both.clone()).await?.json()?;
            assert_eq!(answer["allowed"], allowed, "{answer}");
            let denied_by = if allowed {
                json!([])
            } else {
                json!(["per-path"])
            };
            assert_eq!(answer["denied_by"], denied_by, "{answer}");
        }
        // What denied checks took from the user's limit was refunded.
        assert_eq!(left(&service, "per-user", json!({"user": first})).await?, 8);
        assert_eq!(left(&service, "per-path", json!({"path": "p"})).await?, 0);
        // A batch goes to all nodes.
        let checks: Vec<_> = users
            .iter()
            .map(|(_, user)| json!({"descriptor": {"user": user}, "limits": ["per-user"]}))
            .collect();
        let answer = service.ask(json!({"checks": checks})).await?.json()?;
        for (result, (_, user)) in answer["results"]
            .as_array()
            .expect("results")
            .iter()
            .zip(&users)
        {
            assert_eq!(result["allowed"], true, "{answer}");
            assert_eq!(
                result["remaining"],
                if user == first { 7 } else { 9 },
                "{answer}"
            );
        }
    }
    Ok(())
}
