//! A limiter's reports about the fleet and its decisions, as rlctl reads them from Redis.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, until};
use policy::Name;
use protocol::{
    CHECK_CBOR, DecidedBy, Outcome, REPORT_CBOR,
    compact::{DeniedBucket, Report, RequestCounts, Tally},
};
use serde_json::json;
use store::{ActivitySummary, Change, Fleet, OverrideEdits, Resolution, Store};

use crate::support::{
    PATIENCE, PER_USER, Server, Service, compact, name, proxy_id, publish, quick, write,
};

/// The fleet, once it is as wanted.
async fn fleet(store: &Arc<dyn Store>, is: impl Fn(&Fleet) -> bool) -> Result<Fleet> {
    until("the fleet is as expected", PATIENCE, async || {
        store.fleet().await.ok().filter(|fleet| is(fleet))
    })
    .await
}

/// The activity of `shop` in the last minute, once it is as expected.
async fn activity(
    store: &Arc<dyn Store>,
    is: impl Fn(&ActivitySummary) -> bool,
) -> Result<ActivitySummary> {
    let shop = name("shop");
    until("the decisions are as expected", PATIENCE, async || {
        let observed = store.activity(&shop, Resolution::Fine, 60_000).await.ok();
        observed.filter(|observed| is(observed))
    })
    .await
}

fn count(observed: &ActivitySummary, limit: &str, outcome: Outcome, by: DecidedBy) -> u64 {
    let limit = observed.activity.limits.get(limit);
    let count = limit.and_then(|limit| limit.counts.get(&(outcome, by)));
    count.copied().unwrap_or(0)
}

#[tokio::test]
#[ignore = "needs a server"]
async fn polls_and_checks_report_each_proxys_revision() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let service = Service::ready_on(server.store()?, quick()).await?;
    let digest = {
        let heads = store.heads().await?;
        match &heads[0].state {
            store::HeadState::Live(revision) => revision.digest,
            other => panic!("{other:?}"),
        }
    };
    let poll = |query: String| {
        let path = format!("/v1/policy?{query}");
        let request = service.get(&path);
        async move { request.send().await }
    };
    let [new, p1, p2, p3] = ["new", "p1", "p2", "p3"].map(proxy_id);
    poll(format!("domain=shop&proxy={new}&node=edge-1")).await?;
    poll(format!("domain=shop&proxy={p1}&revision=1-{digest:016x}")).await?;
    poll(format!("domain=nothing&proxy={p1}")).await?;
    poll("domain=shop&proxy=made-up".to_owned()).await?;
    let tagged = service.get(&format!("/v1/policy?domain=shop&proxy={p2}"));
    let tag = format!("\"1-{digest:016x}\"");
    tagged.header("if-none-match", tag).send().await?;
    service
        .post("/v1/check", compact("p3", &["a"]))
        .header("content-type", CHECK_CBOR)
        .send()
        .await?;

    let known = |fleet: &Fleet| fleet.proxies.values().map(Vec::len).sum::<usize>() == 5;
    let fleet = fleet(&store, known).await?;
    let found: Vec<_> = fleet.proxies[&name("shop")]
        .iter()
        .map(|p| (p.id.as_str(), p.revision.as_ref().map(|r| r.digest)))
        .collect();
    let has = Some(digest);
    assert_eq!(
        found,
        [(&*p1, has), (&*p2, has), (&*p3, None), (&*new, None)]
    );
    let new = &fleet.proxies[&name("shop")][3];
    assert_eq!(new.node.as_deref(), Some("edge-1"));
    assert_eq!(fleet.proxies[&name("nothing")].len(), 1);
    let [limiter] = &fleet.limiters[..] else {
        panic!("{fleet:?}");
    };
    assert_eq!(limiter.revisions[&name("shop")].digest, digest);
    assert!(limiter.id.contains(&format!(":{}/", service.data.port())));
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_domains_entries_are_known_once_all_proxies_of_all_limiters_list_them() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let first = Service::ready_on(server.store()?, quick()).await?;
    let second = Service::ready_on(server.store()?, quick()).await?;
    let poll = async |service: &Service, proxy: &str, entries: &str| {
        let proxy = proxy_id(proxy);
        let path = format!("/v1/policy?domain=shop&proxy={proxy}{entries}");
        service.get(&path).send().await
    };
    let entries = |fleet: &Fleet| {
        let names = fleet.entries.get(&name("shop"))?.iter().map(Name::as_str);
        Some(names.collect::<Vec<_>>().join(","))
    };
    poll(&first, "p1", "&entries=tenant,user").await?;
    poll(&second, "p2", "&entries=").await?;
    fleet(&store, |fleet| {
        entries(fleet).as_deref() == Some("tenant,user")
    })
    .await?;

    poll(&second, "p3", "").await?;
    let three = |fleet: &Fleet| fleet.proxies[&name("shop")].len() == 3;
    let unknown = fleet(&store, three).await?;
    assert_eq!(entries(&unknown), None, "one did not list its own");
    poll(&second, "p3", "&entries=session").await?;
    let all = Some("session,tenant,user");
    fleet(&store, |fleet| entries(fleet).as_deref() == all).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn decisions_and_denied_buckets_are_reported() -> Result<()> {
    const LIMITS: &str = "
  - {name: per-user, per: [user], rate: 2/1d}
  - {name: trial, per: [user], rate: 1/1d, enforce: 0%}
";
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine).await?;
        let store = server.store()?;
        publish(&store, LIMITS).await?;
        let service = Service::ready_on(server.store()?, quick()).await?;
        let ask = |user: &'static str, peek: bool| {
            let descriptor = json!({"user": user, "path": "/x"});
            service.ask(json!({"descriptor": descriptor, "peek": peek}))
        };
        for _ in 0..5 {
            ask("alice", false).await?;
        }
        ask("bob", false).await?;
        ask("alice", true).await?;

        let observed = activity(&store, |observed| {
            count(observed, "per-user", Outcome::Allowed, DecidedBy::Limiter) == 3
        })
        .await?;
        let of = |limit, outcome| count(&observed, limit, outcome, DecidedBy::Limiter);
        assert_eq!(of("per-user", Outcome::Denied), 3);
        assert_eq!(of("trial", Outcome::Allowed), 2);
        assert_eq!(of("trial", Outcome::WouldDeny), 4);
        let is_alice = |bucket: &&store::BucketActivity| {
            bucket.limit == name("per-user")
                && bucket.bucket == [(name("user"), Some(b"alice".to_vec()))]
        };
        let alice = observed.activity.buckets.iter().find(is_alice);
        let alice = alice.expect("the most denied bucket");
        assert_eq!((alice.requests, alice.denied), (5, 3));
        let last = alice.last.as_ref().expect("a denied request");
        assert!(observed.now_ms.abs_diff(last.at_ms) < 60_000);
        assert_eq!(
            (last.outcome, last.by),
            (Outcome::Denied, DecidedBy::Limiter)
        );
        assert!(last.descriptor.contains(&(name("path"), b"/x".to_vec())));
        assert_eq!(last.proxy, None, "no proxy asked");

        let batch = compact("edge-1", &["alice"]);
        let request = service.post("/v1/check", batch);
        request.header("content-type", CHECK_CBOR).send().await?;
        activity(&store, |observed| {
            let buckets = &observed.activity.buckets;
            let last = buckets.iter().find(is_alice).and_then(|b| b.last.as_ref());
            last.is_some_and(|last| last.proxy == Some(proxy_id("edge-1")))
        })
        .await?;
    }
    Ok(())
}

fn report(proxy: &str) -> Report {
    let limit = |text: &str| -> Name { name(text) };
    let tally = |of, count| Tally {
        limit: limit(of),
        outcome: Outcome::Denied,
        by: DecidedBy::DenyCache,
        count,
    };
    Report {
        domain: name("shop"),
        proxy: proxy.to_owned(),
        requests: RequestCounts {
            allowed: 5,
            denied: 40,
        },
        tallies: vec![tally("per-user", 40), tally("made-up", 7)],
        denied: vec![DeniedBucket {
            limit: limit("per-user"),
            by: DecidedBy::DenyCache,
            count: 40,
            ago_ms: 3,
            bucket: vec![(name("user"), Some(b"alice".to_vec()))],
            descriptor: vec![(name("remote_address"), b"192.0.2.7".to_vec())],
        }],
    }
}

#[tokio::test]
#[ignore = "needs a server"]
async fn local_decisions_of_proxies_are_reported_too() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let service = Service::ready_on(server.store()?, quick()).await?;
    let send = |body: Vec<u8>| {
        let request = service.post("/v1/report", body);
        let request = request.header("content-type", REPORT_CBOR);
        async move { request.send().await }
    };
    let invented = Report {
        tallies: vec![Tally {
            limit: name("per-user"),
            outcome: Outcome::Allowed,
            by: DecidedBy::Local,
            count: 1,
        }],
        denied: Vec::new(),
        ..report("made-up")
    };
    for proxy in 0..100 {
        let proxy = format!("made-up-{proxy}");
        send(
            Report {
                proxy,
                ..invented.clone()
            }
            .encode(),
        )
        .await?;
    }
    for proxy in ["p1", "p2"].map(proxy_id) {
        let reply = send(report(&proxy).encode()).await?;
        assert_eq!(
            (reply.status.as_u16(), reply.header("x-rl-api")),
            (204, Some("1"))
        );
    }
    let observed = activity(&store, |observed| {
        count(observed, "per-user", Outcome::Denied, DecidedBy::DenyCache) == 80
    })
    .await?;
    assert!(!observed.activity.limits.contains_key("made-up"));
    assert_eq!(observed.activity.requests.denied, 102 * 40);
    let alice = &observed.activity.buckets[0];
    assert_eq!((alice.requests, alice.denied), (80, 80));
    let last = alice.last.as_ref().expect("a denied request");
    assert_eq!(last.proxy, Some(proxy_id("p2")));

    // A proxy that denies from its deny cache shares the limit like one that sends checks.
    until("two proxies are counted", PATIENCE, async || {
        let reply = service.get("/v1/policy?domain=shop").send().await.ok()?;
        (reply.header("x-rl-proxies") == Some("*=2, per-user=2")).then_some(())
    })
    .await?;

    assert_eq!(send(b"nonsense".to_vec()).await?.status, 400);
    let elsewhere = Report {
        domain: name("nothing"),
        ..report("p1")
    };
    assert_eq!(send(elsewhere.encode()).await?.status, 404);
    assert_eq!(service.get("/v1/report").send().await?.status, 405);
    Ok(())
}

/// A reporting client cannot create labels, count a limiter's decisions twice, or overflow a
/// counter.
#[tokio::test]
async fn proxy_reports_appear_in_the_metrics_of_existing_limits() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    assert!(service.allows("a").await?);
    let tally = |of, by, count| Tally {
        limit: name(of),
        outcome: Outcome::Denied,
        by,
        count,
    };
    for _ in 0..3 {
        let report = Report {
            tallies: vec![
                tally("per-user", DecidedBy::DenyCache, 40),
                tally("per-user", DecidedBy::Limiter, 40),
                tally("per-user", DecidedBy::Failure, u64::MAX),
                tally("made-up", DecidedBy::DenyCache, 7),
            ],
            ..report("p1")
        };
        let request = service.post("/v1/report", report.encode());
        let reply = request.header("content-type", REPORT_CBOR).send().await?;
        assert_eq!(reply.status, 204);
    }
    let counter = |decision: &str, source: &str| {
        let labels = format!("domain=\"shop\",limit=\"per-user\",decision=\"{decision}\"");
        format!("rl_decisions_total{{{labels},source=\"{source}\"}}")
    };
    for (decision, source, wanted) in [
        ("allowed", "limiter", 1),
        ("denied", "limiter", 0),
        ("denied", "deny_cache", 120),
        ("denied", "failure", 3 << 32),
    ] {
        assert_eq!(service.metric(&counter(decision, source)).await?, wanted);
    }
    let page = service.admin("/metrics").send().await?.text();
    assert!(!page.contains("made-up"), "{page}");

    // Metrics of a deleted domain disappear.
    write(&service.store, Change::Delete(&OverrideEdits::new())).await?;
    until("its counters are gone", PATIENCE, async || {
        let page = service.admin("/metrics").send().await.ok()?.text();
        (!page.contains("per-user")).then_some(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn checks_without_a_decision_are_reported_once_the_store_is_back() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    publish(&store, PER_USER).await?;
    let settings = limiter::Settings {
        store_timeout: Duration::from_millis(50),
        ..quick()
    };
    let timeout = settings.store_timeout;
    let service = Service::ready_on(server.store_within(timeout)?, settings).await?;
    service.allows("alice").await?;
    server.pause()?;
    let ask = json!({"descriptor": {"user": "alice"}});
    for _ in 0..3 {
        assert_eq!(service.ask(ask.clone()).await?.status, 503);
    }
    server.resume()?;
    activity(&store, |observed| observed.activity.errors == 3).await?;
    assert_eq!(
        service
            .metric("rl_undecided_total{domain=\"shop\"}")
            .await?,
        3
    );
    Ok(())
}
