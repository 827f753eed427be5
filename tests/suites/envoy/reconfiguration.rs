//! The filter's configuration changes while requests flow, as Istio changes it: by an update of the
//! listener.

use std::path::PathBuf;

use harness::{Host, RawClient, flood, free_port, put_listeners};
use serde_json::{Value, json};

use crate::stage::{Plan, Stage, eventually, limits};

/// The filter's configuration in a listener.
fn filter(listener: &mut Value) -> &mut Value {
    let host = if Host::is_module() {
        "filter_config"
    } else {
        "config/configuration"
    };
    let of = "/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config";
    listener.pointer_mut(&format!("{of}/{host}/value")).unwrap()
}

/// A listener in a file, which Envoy reads again when the file is replaced.
pub struct Delivered {
    pub stage: Stage,
    pub port: u16,
    listener: Value,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Delivered {
    async fn start(items: &[&str]) -> Self {
        Self::from_plan(limits(items)).await
    }

    /// Starts a plan whose listener comes from a file.
    pub async fn from_plan(plan: Plan) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, port) = (dir.path().join("listeners.json"), free_port().unwrap());
        let to = file.clone();
        let stage = plan
            .config(move |config| {
                put_listeners(&to, vec![(config.listener().unwrap(), port)]).unwrap();
                config.listeners_in(&to)
            })
            .start_unlimited()
            .await;
        let text = std::fs::read_to_string(&file).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        let delivered = Self {
            stage,
            port,
            listener: written["resources"][0].clone(),
            file,
            _dir: dir,
        };
        delivered.follows().await;
        delivered
    }

    /// Waits until every worker has the limits.
    async fn follows(&self) {
        eventually("Envoy follows the limits", async || {
            for _ in 0..12 {
                let mut fresh = RawClient::new(self.port);
                let reply = fresh.get(b"/probe", &[]).await.ok()??;
                reply.header("ratelimit-policy").first()?;
            }
            Some(())
        })
        .await;
    }

    /// Replaces the listener, with the filter's configuration edited; returns when Envoy has
    /// accepted or rejected it, by the counter of that name.
    pub async fn change(&self, counter: &str, edit: impl FnOnce(&mut Value)) {
        let name = format!("listener_manager.lds.{counter}");
        let before = self.stage.envoy().stat(&name).await.unwrap();
        let mut listener = self.listener.clone();
        let value = filter(&mut listener);
        let mut config = serde_json::from_str(value.as_str().unwrap()).unwrap();
        edit(&mut config);
        *value = json!(config.to_string());
        put_listeners(&self.file, vec![(listener, self.port)]).unwrap();
        eventually(&name, async || {
            (self.stage.envoy().stat(&name).await.unwrap() > before).then_some(())
        })
        .await;
    }
}

fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-user-id: alice\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_change_of_the_configuration_under_load_loses_no_count() {
    // A bucket of 1000 an hour would refill a unit every 3.6 s, less than a busy machine takes.
    let delivered = Delivered::start(&[
        "{name: here, match: {host: here}, per: [user], rate: 1000/30d, scope: proxy}",
        "{name: there, match: {host: there}, per: [user], rate: 400/30d}",
    ])
    .await;
    let mut allowed = [0, 0];
    for round in 0..6 {
        let port = delivered.port;
        let here = tokio::spawn(flood(port, 4, 300, |_| request("here")));
        let there = tokio::spawn(flood(port, 4, 100, |_| request("there")));
        let edit = |config: &mut Value| config["deny"] = json!({"message": format!("{round}")});
        delivered.change("update_success", edit).await;
        allowed[0] += here.await.unwrap().unwrap();
        allowed[1] += there.await.unwrap().unwrap();
    }

    assert_eq!(allowed, [1000, 400]);
    let mut fresh = RawClient::new(delivered.port);
    let reply = fresh.send(&request("here")).await.unwrap().unwrap();
    let body = String::from_utf8(reply.body).unwrap();
    assert!(
        body.contains("\"title\":\"5\""),
        "the last one is in force: {body}"
    );
}

#[tokio::test]
async fn a_configuration_that_is_refused_leaves_the_one_before_in_force() {
    let delivered = Delivered::start(&[
        "{name: here, match: {host: here}, per: [user], rate: 3/1h, scope: proxy}",
    ])
    .await;
    let mut client = RawClient::new(delivered.port);
    let mut statuses = Vec::new();
    for n in 0..5 {
        if n == 1 {
            let wrong = |config: &mut Value| {
                config["domian"] = json!("shop");
                config["failure_mode"] = json!("open");
            };
            delivered.change("update_rejected", wrong).await;
        }
        let reply = client.send(&request("here")).await.unwrap().unwrap();
        statuses.push(reply.status);
    }

    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let log = delivered.stage.envoy().process().log();
    for named in ["domian", "failure_mode"] {
        assert!(log.contains(named), "{named} is not named in the log");
    }
}
