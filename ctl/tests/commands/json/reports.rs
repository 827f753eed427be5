//! Reports of limiters: the fleet, the decisions, the denied buckets.

use std::collections::BTreeMap;

use anyhow::Result;
use policy::Name;
use protocol::{DecidedBy, Outcome};
use store::{
    Activity, ActivityReport, BucketActivity, Denial, FleetReport, LimitActivity, Options,
    ProxyStatus, Report, Resolution, open,
};

use crate::support::Server;

fn name(text: &str) -> Result<Name> {
    Ok(text.parse()?)
}

/// A limiter and two proxies, and what they decided.
pub async fn write(server: &Server) -> Result<()> {
    let store = open(&server.url().parse()?, Options::default())?;
    let shop = name("shop")?;
    let proxy = |id: &str, node: Option<&str>| ProxyStatus {
        id: id.to_owned(),
        node: node.map(str::to_owned),
        is_module: false,
        revision: None,
        supplies: None,
        ago_ms: 100,
    };
    let fleet_report = FleetReport {
        proxies: BTreeMap::from([
            (shop.clone(), vec![proxy("00ff", Some("edge-1"))]),
            (name("typo")?, vec![proxy("11ff", None)]),
        ]),
        ..FleetReport::default()
    };
    store
        .report("web-1:8090/00aa", &[Report::Fleet(&fleet_report)])
        .await?;
    let noted = noted(store.estimated_now_ms())?;
    for resolution in Resolution::ALL {
        let slot = resolution.slot(store.estimated_now_ms());
        let (domain, noted) = (&shop, &noted);
        let note = Report::Activity {
            domain,
            slot,
            report: noted,
        };
        store.report("web-1:8090/00aa", &[note]).await?;
    }
    Ok(())
}

/// Every outcome by every decider, and buckets whose values are text, bytes and missing.
fn noted(now_ms: u64) -> Result<ActivityReport> {
    let mut counts = LimitActivity::default();
    for outcome in [
        Outcome::Allowed,
        Outcome::Denied,
        Outcome::WouldDeny,
        Outcome::Degraded,
    ] {
        for by in DecidedBy::ALL {
            counts.add(outcome, by, 7);
        }
    }
    let bucket = |limit, user: Option<&[u8]>, outcome| {
        anyhow::Ok(BucketActivity {
            limit: name(limit)?,
            bucket: vec![(name("user")?, user.map(<[u8]>::to_vec))],
            requests: 9,
            denied: if outcome == Outcome::Denied { 7 } else { 0 },
            over: if outcome == Outcome::Denied { 0 } else { 7 },
            last: Some(Denial {
                at_ms: now_ms,
                outcome,
                by: DecidedBy::DenyCache,
                proxy: user.map(|_| "00ff".to_owned()),
                descriptor: vec![(name("path")?, b"/api/\xff".to_vec())],
            }),
        })
    };
    let buckets = vec![
        bucket("per-user", Some(b"alice"), Outcome::Denied)?,
        bucket("per-user", Some(b"\xff"), Outcome::Denied)?,
        bucket("trial", None, Outcome::WouldDeny)?,
    ];
    Ok(ActivityReport {
        covered_ms: 10_000,
        activity: Activity {
            limits: [(name("per-user")?, counts)].into(),
            unmatched: 1,
            errors: 1,
            buckets,
            ..Activity::default()
        },
    })
}
