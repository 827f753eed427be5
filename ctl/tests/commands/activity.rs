//! `stats` and `denials`: the decisions and the denied buckets that limiters reported.

#![expect(clippy::expect_used, reason = "a test may fail loudly")]

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};

use crate::support::{Server, cases, rlctl, schema};
use anyhow::{Context, Result};
use harness::{Engine, until};
use policy::Name;
use protocol::{DecidedBy, Outcome};
use store::{
    Activity, ActivityReport, BucketActivity, Denial, FleetReport, LimitActivity, Options, Report,
    Resolution, Store, TimeSlot, open,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_all().build()?)
}

/// A server with limits in `shop`.
fn server(engine: Engine) -> Result<Server> {
    let server = Server::start(engine, &[])?;
    for limit in ["per-user", "exports", "idle"] {
        let url = server.url();
        let edit = ["--redis", &url, "--domain", "shop", "set-limit", limit];
        let edit = rlctl(&edit)
            .args(["--per", "user", "--rate", "1/s"])
            .output()?;
        assert!(edit.status.success());
    }
    Ok(server)
}

async fn store(server: &Server) -> Result<Arc<dyn Store>> {
    let store = open(&server.url().parse()?, Options::default())?;
    // The reply to the first report carries the server's time.
    store
        .report("a", &[Report::Fleet(&FleetReport::default())])
        .await?;
    Ok(store)
}

fn bucket(limit: &str, user: &[u8], denied: u64, outcome: Outcome, at_ms: u64) -> BucketActivity {
    BucketActivity {
        limit: name(limit),
        bucket: vec![(name("user"), Some(user.to_vec()))],
        requests: denied + 2,
        denied: if outcome == Outcome::Denied {
            denied
        } else {
            0
        },
        over: if outcome == Outcome::Denied {
            0
        } else {
            denied
        },
        last: (denied > 0).then(|| Denial {
            at_ms,
            outcome,
            by: DecidedBy::DenyCache,
            proxy: Some("00ff".to_owned()),
            descriptor: vec![
                (name("path"), b"/api/x".to_vec()),
                (name("remote_address"), b"192.0.2.7".to_vec()),
            ],
        }),
    }
}

fn noted(buckets: Vec<BucketActivity>) -> ActivityReport {
    let mut limit = LimitActivity {
        delayed: 4,
        ..LimitActivity::default()
    };
    limit.add(Outcome::Allowed, DecidedBy::Limiter, 120);
    limit.add(Outcome::Denied, DecidedBy::Limiter, 3);
    limit.add(Outcome::Denied, DecidedBy::DenyCache, 42_000);
    let mut exports = LimitActivity::default();
    exports.add(Outcome::Allowed, DecidedBy::Limiter, 1);
    exports.add(Outcome::WouldDeny, DecidedBy::Limiter, 25);
    ActivityReport {
        covered_ms: 10_000,
        activity: Activity {
            limits: [(name("per-user"), limit), (name("exports"), exports)].into(),
            unmatched: 7,
            errors: 2,
            buckets,
            ..Activity::default()
        },
    }
}

async fn report(store: &Arc<dyn Store>, limiter: &str, noted: &ActivityReport) -> Result<()> {
    let shop = name("shop");
    for resolution in Resolution::ALL {
        let slot = resolution.slot(store.estimated_now_ms());
        let note = Report::Activity {
            domain: &shop,
            slot,
            report: noted,
        };
        store.report(limiter, &[note]).await?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn decisions_and_denials_are_shown() -> Result<()> {
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = server(engine)?;
        runtime()?.block_on(async {
            let store = store(&server).await?;
            let now_ms = store.estimated_now_ms();
            let denied = vec![
                bucket("per-user", b"alice", 40, Outcome::Denied, now_ms - 10),
                bucket("per-user", b"b\x1b[2Job", 3, Outcome::Denied, now_ms - 20),
                bucket("exports", b"carol", 25, Outcome::WouldDeny, now_ms - 30),
                bucket("exports", b"dave", 0, Outcome::Denied, 0),
            ];
            report(&store, "web-1:8090/00aa", &noted(denied)).await?;
            let asked = [(
                Some(name("per-user")),
                vec!["p1".to_owned(), "p2".to_owned()],
            )];
            store.count_proxies(&name("shop"), &asked.into()).await?;
            anyhow::Ok(())
        })?;
        let cases = cases();
        cases.env("RLCTL_REDIS", server.url());
        cases.case("tests/activity/*.trycmd");
        cases.run();
    }
    Ok(())
}

/// A limiter's counts of some hours: one busy user, and twelve of ten requests each.
#[test]
#[ignore = "needs a server"]
fn a_number_is_suggested_from_what_limiters_counted() -> Result<()> {
    let server = server(Engine::Valkey)?;
    runtime()?.block_on(async {
        let store = store(&server).await?;
        let now = Resolution::Hourly.slot(store.estimated_now_ms());
        for (back, busiest) in [(3, 200), (2, 220), (1, 190)] {
            let others = (1..=12).map(|n| (format!("u{n}"), 10));
            let users = std::iter::once(("alice".to_owned(), busiest)).chain(others);
            let of = |(user, requests): (String, u64)| BucketActivity {
                requests,
                ..bucket("exports", user.as_bytes(), 0, Outcome::Denied, 0)
            };
            let mut noted = noted(users.map(of).collect());
            let mut exports = LimitActivity::default();
            exports.add(Outcome::Allowed, DecidedBy::Limiter, 120 + busiest - 50);
            exports.add(Outcome::WouldDeny, DecidedBy::Limiter, 50);
            noted.activity.limits.insert(name("exports"), exports);
            let slot = TimeSlot {
                number: now.number - back,
                ..now
            };
            let note = Report::Activity {
                domain: &name("shop"),
                slot,
                report: &noted,
            };
            store.report("web-1:8090/00aa", &[note]).await?;
        }
        anyhow::Ok(())
    })?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.case("tests/activity/suggest/*.trycmd");
    cases.run();
    Ok(())
}

/// And at once: where no limiter runs, nothing is on its way.
#[test]
#[ignore = "needs a server"]
fn nothing_told_is_said() -> Result<()> {
    let server = server(Engine::Valkey)?;
    let reads = || runtime()?.block_on(server.hashes_read()).context("reads");
    let before = reads()?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.case("tests/activity/nothing/*.trycmd");
    cases.run();
    // Of each command: twelve slots of a minute, the limits, and reports of limiters.
    let read = reads()? - before;
    assert!(read < 2 * 20, "{read}");
    Ok(())
}

/// A denial of half a second ago is on its way: the proxy and the limiter report once a second.
#[test]
#[ignore = "needs a server"]
fn a_denial_that_is_not_reported_yet_is_shown() -> Result<()> {
    let server = server(Engine::Valkey)?;
    let url = server.url();
    let arguments = ["--redis", &url, "denials", "-d", "user=alice"];
    let runtime = runtime()?;
    let before = runtime.block_on(server.hashes_read()).context("reads")?;
    let store = runtime.block_on(store(&server))?;
    let (mut showing, mut lines) = follow(&arguments)?;
    runtime.block_on(async {
        // A minute has twelve slots.
        let has_read = async || (server.hashes_read().await? > before + 12).then_some(());
        until("it has read the activity", PATIENCE, has_read).await?;
        let now_ms = store.estimated_now_ms();
        let denied = vec![bucket("per-user", b"alice", 1, Outcome::Denied, now_ms)];
        report(&store, "web-1:8090/00aa", &noted(denied)).await
    })?;
    assert!(lines.any(|line| line.contains("user=alice")));
    assert!(showing.wait()?.success());
    Ok(())
}

/// Starts a command that does not end by itself; returns its output lines.
fn follow(arguments: &[&str]) -> Result<(Child, impl Iterator<Item = String> + use<>)> {
    let mut child = rlctl(arguments).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("piped")?).lines();
    Ok((child, lines.map_while(std::result::Result::ok)))
}

#[test]
#[ignore = "needs a server"]
fn denials_are_followed_as_they_come() -> Result<()> {
    let server = server(Engine::Valkey)?;
    let url = server.url();
    let arguments = ["--redis", &url, "denials", "--follow", "-d", "path=/api/x"];
    let (mut following, mut lines) = follow(&arguments)?;
    let as_json = ["--redis", &url, "denials", "--follow", "-o", "json"];
    let (mut following_json, mut json) = follow(&as_json)?;
    let runtime = runtime()?;
    let store = runtime.block_on(store(&server))?;
    let report_denials = |user: &[u8], count| {
        let denied = bucket(
            "per-user",
            user,
            count,
            Outcome::Denied,
            store.estimated_now_ms(),
        );
        runtime.block_on(report(&store, "web-1:8090/00aa", &noted(vec![denied])))
    };
    report_denials(b"alice", 1)?;
    let first = lines.next().context("a line")?;
    assert!(
        first.ends_with(
            "Z per-user user=alice denied by deny_cache: path=/api/x remote_address=192.0.2.7"
        ),
        "{first}"
    );
    let row = serde_json::from_str(&json.next().context("a line")?)?;
    schema::validate("denial", &row)?;
    following_json.kill()?;
    following_json.wait()?;
    // A repeated denial is reported again, and none is reported twice.
    report_denials(b"alice", 2)?;
    report_denials(b"bob", 1)?;
    let second = lines.next().context("a line")?;
    assert!(
        second.contains("user=alice") || second.contains("user=bob"),
        "{second}"
    );
    following.kill()?;
    following.wait()?;
    Ok(())
}
