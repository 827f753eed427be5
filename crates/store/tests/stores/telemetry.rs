//! Reports of the fleet and of decisions, on real servers.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use harness::Engine;
use policy::Revision;
use protocol::{DecidedBy, Outcome};
use store::{
    Activity, ActivityReport, BucketActivity, FleetReport, LimitActivity, ProxyStatus, Report,
    Resolution, Store, TimeSlot,
};

use crate::{given::name, on_both_servers, servers::Server};

on_both_servers!(
    the_fleet_combines_the_reports_of_all_limiters,
    activity_is_added_up_over_limiters_and_slots
);

fn fleet_report(proxies: &[(&str, u64)]) -> FleetReport {
    let revision = |number| Revision {
        number,
        digest: 0xfeed,
    };
    let seen = proxies.iter().map(|(id, number)| ProxyStatus {
        id: (*id).to_owned(),
        node: Some(format!("node-{id}")),
        is_module: true,
        revision: Some(revision(*number)),
        supplies: None,
        ago_ms: 100,
    });
    FleetReport {
        revisions: BTreeMap::from([(name("shop"), revision(2))]),
        proxies: BTreeMap::from([(name("shop"), seen.collect())]),
        ..FleetReport::default()
    }
}

fn noted(requests: u64) -> ActivityReport {
    let mut limit = LimitActivity::default();
    limit.add(Outcome::Allowed, DecidedBy::Limiter, requests);
    ActivityReport {
        covered_ms: 1000,
        activity: Activity {
            limits: BTreeMap::from([(name("per-user"), limit)]),
            buckets: vec![BucketActivity {
                limit: name("per-user"),
                bucket: vec![(name("user"), Some(b"al\xffice".to_vec()))],
                requests,
                denied: 0,
                over: 0,
                last: None,
            }],
            ..Activity::default()
        },
    }
}

async fn write(store: &Arc<dyn Store>, limiter: &str, slot: TimeSlot, requests: u64) -> Result<()> {
    let domain = name("shop");
    let note = Report::Activity {
        domain: &domain,
        slot,
        report: &noted(requests),
    };
    Ok(store.report(limiter, &[note]).await?)
}

async fn the_fleet_combines_the_reports_of_all_limiters(server: Server) -> Result<()> {
    let (store, reader) = (server.store()?, server.store()?);
    assert_eq!(reader.fleet().await?, store::Fleet::default());
    let first = fleet_report(&[("p1", 1), ("p2", 2)]);
    store.report("a", &[Report::Fleet(&first)]).await?;
    let second = fleet_report(&[("p3", 2)]);
    store.report("b", &[Report::Fleet(&second)]).await?;
    let fleet = reader.fleet().await?;
    let ids: Vec<_> = fleet.limiters.iter().map(|l| l.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(fleet.limiters[0].revisions[&name("shop")].number, 2);
    let proxies = &fleet.proxies[&name("shop")];
    let found: Vec<_> = proxies
        .iter()
        .map(|p| (p.node.as_deref(), p.revision.as_ref().map(|r| r.number)))
        .collect();
    let expected = [
        (Some("node-p1"), Some(1)),
        (Some("node-p2"), Some(2)),
        (Some("node-p3"), Some(2)),
    ];
    assert_eq!(found, expected);
    assert!(proxies.iter().all(|p| p.ago_ms >= 100));

    // A report replaces the limiter's own, and no other.
    store
        .report("a", &[Report::Fleet(&fleet_report(&[]))])
        .await?;
    assert_eq!(reader.fleet().await?.proxies[&name("shop")].len(), 1);

    // The report expires.
    let slot = store.estimated_now_ms() / 10_000;
    let mut left = Vec::new();
    for slot in [slot - 1, slot] {
        let key = format!("rl:fleet:{slot}");
        if let redis::Value::Int(ttl) = server.command(&["PTTL", &key]).await? {
            left.push(ttl);
        }
    }
    assert!(
        left.iter()
            .all(|ttl| *ttl == -2 || (1..=20_000).contains(ttl))
    );
    assert!(left.iter().any(|ttl| *ttl > 0), "{left:?}");
    Ok(())
}

async fn activity_is_added_up_over_limiters_and_slots(server: Server) -> Result<()> {
    let store = server.store()?;
    // The first answer has the server's time.
    store
        .report("a", &[Report::Fleet(&fleet_report(&[]))])
        .await?;
    let now = Resolution::Fine.slot(store.estimated_now_ms());
    let before = TimeSlot {
        number: now.number - 1,
        ..now
    };
    write(&store, "a", before, 5).await?;
    write(&store, "a", now, 1).await?;
    // This replaces what it wrote a moment ago.
    write(&store, "a", now, 7).await?;
    write(&store, "b", now, 20).await?;
    write(
        &store,
        "a",
        Resolution::Coarse.slot(store.estimated_now_ms()),
        100,
    )
    .await?;
    let domain = name("shop");
    let seen = store.activity(&domain, Resolution::Fine, 10_000).await?;
    let limit = &seen.activity.limits[&name("per-user")];
    assert_eq!(limit.total(Outcome::Allowed), 32);
    assert_eq!(seen.covered_ms, 2000, "two slots of `a`");
    assert_eq!(seen.activity.buckets.len(), 1);
    assert_eq!(seen.activity.buckets[0].requests, 32);
    let hour = store
        .activity(&domain, Resolution::Coarse, 3_600_000)
        .await?;
    let limit = &hour.activity.limits[&name("per-user")];
    assert_eq!(limit.total(Outcome::Allowed), 100);
    let nothing = store
        .activity(&name("else"), Resolution::Fine, 10_000)
        .await?;
    assert!(nothing.activity.limits.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn activity_reports_are_kept_for_a_bounded_number_of_limiters() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let store = server.store()?;
    store
        .report("a", &[Report::Fleet(&fleet_report(&[]))])
        .await?;
    let slot = Resolution::Coarse.slot(store.estimated_now_ms());
    for n in 0..1030 {
        write(&store, &format!("limiter-{n}"), slot, 1).await?;
    }
    // Limiters that were there first can still report.
    write(&store, "limiter-0", slot, 3).await?;
    let domain = name("shop");
    let seen = store.activity(&domain, Resolution::Coarse, 1).await?;
    let limit = &seen.activity.limits[&name("per-user")];
    assert_eq!(limit.total(Outcome::Allowed), 1023 + 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn foreign_data_under_fleet_keys_is_skipped_or_an_error() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    store
        .report("a", &[Report::Fleet(&fleet_report(&[("p1", 1)]))])
        .await?;
    let slot = store.estimated_now_ms() / 10_000;
    let key = format!("rl:fleet:{slot}");
    server
        .command(&["HSET", &key, "b", "nonsense", "c", "12 {", "d", "x {}"])
        .await?;
    assert_eq!(store.fleet().await?.limiters.len(), 1);
    server.command(&["SET", &key, "text"]).await?;
    assert!(store.fleet().await.is_err());
    Ok(())
}
