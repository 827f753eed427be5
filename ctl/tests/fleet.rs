//! Revisions in the fleet: `list-proxies`, `--wait`, and the warning if no proxy polls the domain.

#![expect(clippy::expect_used, reason = "a test may fail loudly")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use harness::{Engine, until};
use policy::{Name, Revision};
use store::{FleetReport, HeadState, Options, ProxyStatus, Report, Store, open};
use support::{Server, cases, rlctl};

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
        revision: revision.cloned(),
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

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_all().build()?)
}

#[test]
#[ignore = "needs a server"]
fn the_fleet_is_listed() -> Result<()> {
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        for rate in ["1/s", "2/s"] {
            let edit = [
                "--redis",
                &server.url(),
                "--domain",
                "shop",
                "set-limit",
                "a",
            ];
            let edit = rlctl(&edit).args(["--yes", "--rate", rate]).output()?;
            assert!(edit.status.success());
        }
        runtime()?.block_on(async {
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
        let cases = cases();
        cases.env("RLCTL_REDIS", server.url());
        cases.case("tests/fleet/list.trycmd");
        cases.run();
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn who_is_silent_and_who_is_cut_off_is_listed_and_said() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let url = server.url();
    let run = |arguments: &[&str]| {
        rlctl(&["--redis", &url, "--domain", "shop"])
            .args(arguments)
            .output()
    };
    let edit = run(&["set-limit", "a", "--yes", "--rate", "1/s"])?;
    assert!(edit.status.success());
    let listed = || -> Result<(Vec<(String, String)>, String)> {
        let output = run(&["list-proxies", "-o", "json"])?;
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap().to_owned();
        let rows = rows.as_array().context("a list")?.iter();
        let states = rows.map(|row| (text(row, "name"), text(row, "state")));
        Ok((states.collect(), String::from_utf8(output.stderr)?))
    };
    runtime()?.block_on(async {
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
        assert!(
            said.contains("proxies that poll no limiter: edge-2;"),
            "{said}"
        );
        assert!(!said.contains("report no more"), "{said}");

        // Its only limiter reports no more; what it said of its proxies is as old.
        let silent = async || {
            let (states, said) = listed().ok()?;
            let is_silent = states.first() == Some(&row("web-1:8090", "silent"));
            is_silent.then_some((states, said))
        };
        let (states, said) = until("the limiter is silent", PATIENCE, silent).await?;
        assert!(
            said.contains("limiters that report no more: web-1:8090;"),
            "{said}"
        );
        assert_eq!(states.get(1), Some(&row("edge-1", "cut_off")), "{said}");
        anyhow::Ok(())
    })
}

#[test]
#[ignore = "needs a server"]
fn an_edit_can_be_waited_for() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let url = server.url();
    let arguments = [
        "--redis",
        &url,
        "--domain",
        "shop",
        "set-limit",
        "a",
        "--yes",
        "--rate",
        "1/s",
    ];
    let output = runtime()?.block_on(async {
        let store = store(&server)?;
        let asks = || vec![proxy("p1", None, None, 0)];
        // Before the edit, so that `--wait` has somebody to wait for.
        report(&store, "web-1:8090/00aa", None, asks()).await?;
        let mut waiting = rlctl(&arguments)
            .arg("--wait=20s")
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
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("1 limiter and 1 proxy have revision 1"),
        "{said}"
    );
    assert!(
        said.contains("no report in the last 3 s: proxy gone has none"),
        "{said}"
    );
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn entries_that_no_live_proxy_supplies_are_warned_of() -> Result<()> {
    let server = Server::start(Engine::Valkey, &["--appendonly", "yes"])?;
    runtime()?.block_on(async {
        let store = store(&server)?;
        let fleet_report = FleetReport {
            proxies: BTreeMap::from([(name("shop"), vec![proxy("p1", None, None, 0)])]),
            entries: BTreeMap::from([(name("shop"), BTreeSet::from([name("user")]))]),
            ..FleetReport::default()
        };
        let reports = [Report::Fleet(&fleet_report)];
        anyhow::Ok(store.report("web-1:8090/00aa", &reports).await?)
    })?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.case("tests/fleet/entries.trycmd");
    cases.run();
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn one_address_is_named_as_the_proxies_name_its_bucket() -> Result<()> {
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        runtime()?.block_on(async {
            let store = store(&server)?;
            let listed = ["api_key", "api_key.hashed", "remote_address.32.56"];
            let fleet_report = FleetReport {
                proxies: BTreeMap::from([(name("shop"), vec![proxy("p1", None, None, 0)])]),
                entries: BTreeMap::from([(name("shop"), listed.map(name).into())]),
                ..FleetReport::default()
            };
            let reports = [Report::Fleet(&fleet_report)];
            anyhow::Ok(store.report("web-1:8090/00aa", &reports).await?)
        })?;
        let cases = cases();
        cases.env("RLCTL_REDIS", server.url());
        cases.case("tests/fleet/addresses.trycmd");
        cases.run();
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn who_lacks_an_edit_is_named() -> Result<()> {
    let server = Server::start(Engine::Redis, &[])?;
    runtime()?.block_on(async {
        let store = store(&server)?;
        let seen = vec![proxy("p1", Some("edge-1"), None, 0)];
        report(&store, "web-1:8090/00aa", None, seen).await
    })?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.case("tests/fleet/wait.trycmd");
    cases.run();
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_proxy_that_is_running_can_be_waited_for() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let url = server.url();
    let run = |arguments: &[&str]| {
        rlctl(&["--redis", &url, "--domain", "shop"])
            .args(arguments)
            .output()
    };
    assert!(
        run(&["set-limit", "a", "--yes", "--rate", "1/s"])?
            .status
            .success()
    );
    let nobody = run(&["list-proxies", "--wait=100ms"])?;
    let said = String::from_utf8(nobody.stderr)?;
    assert_eq!(nobody.status.code(), Some(9), "{said}");
    assert!(
        said.contains("after 100 ms no proxy has the limits"),
        "{said}"
    );

    let output = runtime()?.block_on(async {
        let store = store(&server)?;
        let now = revision(&store).await;
        // One that has the limits, and has ended.
        let ended = || proxy("ended", None, now.as_ref(), 2000);
        report(&store, "web-1:8090/00aa", now.as_ref(), vec![ended()]).await?;
        let before = server.hashes_read().await.context("reads")?;
        let mut waiting = rlctl(&["--redis", &url, "list-proxies", "--wait=20s"])
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
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(String::from_utf8(output.stdout)?.contains("new"), "{said}");
    Ok(())
}
