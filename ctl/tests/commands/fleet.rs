//! Revisions in the fleet: `list-proxies`, `--wait`, and the warning if no proxy polls the domain.

#![expect(clippy::expect_used, reason = "a test may fail loudly")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use crate::support::{Server, of, wait};
use anyhow::{Context, Result};
use harness::{Engine, until};
use policy::{Name, Revision};
use store::{FleetReport, HeadState, Options, ProxyStatus, Report, Store, open};

const PATIENCE: Duration = Duration::from_secs(20);

fn store(server: &Server) -> Result<Arc<dyn Store>> {
    Ok(open(&server.url().parse()?, Options::default())?)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// The revision of `shop`.
async fn revision(store: &Arc<dyn Store>) -> Option<Revision> {
    let heads = store.heads().await.ok()?;
    let shop = heads.into_iter().find(|head| head.domain == name("shop"))?;
    match shop.state {
        HeadState::Live(revision) => Some(revision),
        _ => None,
    }
}

fn proxy(id: &str, node: Option<&str>, revision: Option<&Revision>, ago_ms: u64) -> ProxyStatus {
    ProxyStatus {
        id: id.to_owned(),
        node: node.map(str::to_owned),
        is_module: false,
        revision: revision.cloned(),
        supplies: None,
        ago_ms,
    }
}

/// Sends a limiter's report: its own revision of `shop`, and these proxies.
async fn report(
    store: &Arc<dyn Store>,
    limiter: &str,
    own: Option<&Revision>,
    proxies: Vec<ProxyStatus>,
) -> Result<()> {
    let own = own.map(|revision| (name("shop"), revision.clone()));
    let fleet_report = FleetReport {
        revisions: own.into_iter().collect(),
        proxies: BTreeMap::from([(name("shop"), proxies)]),
        ..FleetReport::default()
    };
    Ok(store
        .report(limiter, &[Report::Fleet(&fleet_report)])
        .await?)
}

/// Sends a report of a proxy that supplies these entries.
async fn supplied(store: &Arc<dyn Store>, entries: &[&str]) -> Result<()> {
    let entries: BTreeSet<_> = entries.iter().copied().map(name).collect();
    let proxy = ProxyStatus {
        supplies: Some(Arc::new(entries)),
        ..proxy("p1", None, None, 0)
    };
    let report = FleetReport {
        proxies: BTreeMap::from([(name("shop"), vec![proxy])]),
        ..FleetReport::default()
    };
    let reports = [Report::Fleet(&report)];
    Ok(store.report("web-1:8090/00aa", &reports).await?)
}

#[test]
#[ignore = "needs a server"]
fn of_several_files_the_one_that_failed_decides_whoever_lacks_the_others() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    wait(async {
        let rights = "ACL SETUSER half on >s3cret +@all &* %R~* ~*shop* ~rl:domains*";
        let rights: Vec<&str> = rights.split(' ').collect();
        server.command(&rights).await?;
        report(&store(&server)?, "web-1:8090/00aa", None, Vec::new()).await
    })?;
    let files = tempfile::TempDir::new()?;
    let mut arguments = vec!["apply".to_owned(), "--wait=100ms".to_owned()];
    for domain in ["shop", "admin"] {
        let path = files.path().join(format!("{domain}.yaml"));
        std::fs::write(
            &path,
            format!("domain: {domain}\nlimits: [{{name: a, rate: 1/s}}]\n"),
        )?;
        arguments.extend(["-f".to_owned(), path.display().to_string()]);
    }
    let url = format!("redis://half:s3cret@127.0.0.1:{}", server.port());
    let mut command = crate::support::rlctl(&["--redis", &url]);
    let ran = crate::support::ran(command.args(&arguments))?.with(8);
    for said in ["NOPERM", "revision 1 is written, but after"] {
        assert!(ran.err.contains(said), "{ran:?}");
    }
    assert!(ran.out.contains("shop: 1 created; revision 1"), "{ran:?}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn the_fleet_is_listed() -> Result<()> {
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        for rate in ["1/s", "2/s"] {
            let edit = server.run(&format!("set-limit a --yes --rate {rate}"))?;
            edit.with(0);
        }
        wait(async {
            let store = store(&server)?;
            let now = revision(&store).await.context("an edit")?;
            let old = Revision {
                number: 1,
                digest: 0xabc,
            };
            let odd = Revision {
                digest: !now.digest,
                ..now
            };
            let seen = vec![
                proxy("00ff00ff00ff00ff", Some("edge-1"), Some(&now), 100),
                proxy("11ff00ff00ff00ff", Some("edge-2"), Some(&old), 100),
                proxy("22ff00ff00ff00ff", None, None, 100),
                proxy("33ff00ff00ff00ff", Some("edge-4"), Some(&odd), 100),
            ];
            report(&store, "web-1:8090/00aa", Some(&now), seen).await?;
            report(&store, "web-2:8090/00bb", None, Vec::new()).await?;
            let elsewhere = FleetReport {
                proxies: BTreeMap::from([(name("typo"), vec![proxy("44", None, None, 0)])]),
                ..FleetReport::default()
            };
            let reports = [Report::Fleet(&elsewhere)];
            store.report("web-3:8090/00cc", &reports).await?;
            anyhow::Ok(())
        })?;
        server.transcript("tests/fleet/list.trycmd");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn who_is_silent_and_who_is_cut_off_is_listed_and_said() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server.run("set-limit a --yes --rate 1/s")?.with(0);
    let listed = || -> Result<(Vec<(String, String)>, String)> {
        let list = server.run("list-proxies -o json")?;
        let rows: serde_json::Value = serde_json::from_str(&list.out)?;
        let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap().to_owned();
        let rows = rows.as_array().context("a list")?.iter();
        let states = rows.map(|row| (text(row, "name"), text(row, "state")));
        Ok((states.collect(), list.err))
    };
    wait(async {
        let store = store(&server)?;
        let now = revision(&store).await;
        let seen = vec![
            proxy("p1", Some("edge-1"), now.as_ref(), 100),
            proxy("p2", Some("edge-2"), now.as_ref(), 4000),
        ];
        report(&store, "web-1:8090/00aa", now.as_ref(), seen).await?;
        let row = |name: &str, state: &str| (name.to_owned(), state.to_owned());
        let (states, said) = listed()?;
        let expected = [
            row("web-1:8090", "current"),
            row("edge-1", "current"),
            row("edge-2", "cut_off"),
        ];
        assert_eq!(states, expected, "{said}");
        let cut_off = "proxies that poll no limiter: edge-2;";
        assert!(said.contains(cut_off), "{said}");
        assert!(!said.contains("report no more"), "{said}");

        // Its only limiter reports no more; what it said of its proxies is as old.
        let silent = async || {
            let (states, said) = listed().ok()?;
            let is_silent = states.first() == Some(&row("web-1:8090", "silent"));
            is_silent.then_some((states, said))
        };
        let (states, said) = until("the limiter is silent", PATIENCE, silent).await?;
        let gone = "limiters that report no more: web-1:8090;";
        assert!(said.contains(gone), "{said}");
        assert_eq!(states.get(1), Some(&row("edge-1", "cut_off")), "{said}");
        anyhow::Ok(())
    })
}

#[test]
#[ignore = "needs a server"]
fn an_edit_can_be_waited_for() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let output = wait(async {
        let store = store(&server)?;
        let asks = || vec![proxy("p1", None, None, 0)];
        // Before the edit, so that `--wait` has somebody to wait for.
        report(&store, "web-1:8090/00aa", None, asks()).await?;
        let mut waiting = server
            .rlctl("set-limit a --yes --rate 1/s --wait=20s")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let written = async || revision(&store).await;
        let now = until("the edit is written", PATIENCE, written).await?;
        report(&store, "web-1:8090/00aa", Some(&now), asks()).await?;
        assert!(waiting.try_wait()?.is_none(), "the proxy is still to ask");
        let seen = vec![
            proxy("p1", None, Some(&now), 0),
            proxy("gone", None, None, 5000),
        ];
        report(&store, "web-1:8090/00aa", Some(&now), seen).await?;
        anyhow::Ok(waiting.wait_with_output()?)
    })?;
    let said = of(&output).with(0).err;
    for part in [
        "1 limiter and 1 proxy have revision 1",
        "no report in the last 3 s: proxy gone has none",
    ] {
        assert!(said.contains(part), "{said}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn entries_that_no_live_proxy_supplies_are_warned_of() -> Result<()> {
    let server = Server::start(Engine::Valkey, &["--appendonly", "yes"])?;
    wait(async {
        let store = store(&server)?;
        supplied(&store, &["user"]).await
    })?;
    server.transcript("tests/fleet/entries.trycmd");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn one_address_is_named_as_the_proxies_name_its_bucket() -> Result<()> {
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        wait(async {
            let store = store(&server)?;
            let entries = ["api_key", "api_key.hashed", "remote_address.32.56"];
            supplied(&store, &entries).await
        })?;
        server.transcript("tests/fleet/addresses.trycmd");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn who_lacks_an_edit_is_named() -> Result<()> {
    let server = Server::start(Engine::Redis, &[])?;
    wait(async {
        let store = store(&server)?;
        let seen = vec![proxy("p1", Some("edge-1"), None, 0)];
        report(&store, "web-1:8090/00aa", None, seen).await
    })?;
    server.transcript("tests/fleet/wait.trycmd");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_proxy_that_is_running_can_be_waited_for() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server.run("set-limit a --yes --rate 1/s")?.with(0);
    let said = server.run("list-proxies --wait=100ms")?.with(9).err;
    let nobody = "after 100 ms no proxy has the limits";
    assert!(said.contains(nobody), "{said}");

    let output = wait(async {
        let store = store(&server)?;
        let now = revision(&store).await;
        // One that has the limits, and has ended.
        let ended = || proxy("ended", None, now.as_ref(), 2000);
        report(
            &store,
            "web-1:8090/00aa",
            now.as_ref(),
            vec![proxy("late", None, None, 0)],
        )
        .await?;
        let said = server.run("list-proxies --wait=100ms")?.with(9).err;
        assert!(
            said.contains("these do not have the limits: late"),
            "{said}"
        );
        report(&store, "web-1:8090/00aa", now.as_ref(), vec![ended()]).await?;
        let before = server.hashes_read().await.context("reads")?;
        let mut waiting = server
            .rlctl("list-proxies --wait=20s")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let has_read = async || (server.hashes_read().await? > before + 10).then_some(());
        until("it has read the fleet", PATIENCE, has_read).await?;
        assert!(waiting.try_wait()?.is_none(), "no proxy is running");
        let started = vec![ended(), proxy("new", None, now.as_ref(), 0)];
        report(&store, "web-1:8090/00aa", now.as_ref(), started).await?;
        anyhow::Ok(waiting.wait_with_output()?)
    })?;
    let listed = of(&output).with(0);
    assert!(listed.out.contains("new"), "{listed:?}");
    Ok(())
}
