//! Units that Envoy's rate limit service reports once a response has ended: charged beyond the limit.

use std::sync::Arc;

use anyhow::{Context, Result};
use policy::Compiled;
use protocol::{Check, OwnUnits, ServiceCheck, ServicePart};
use store::Store;

use crate::{
    given::{check, policy, publish, request},
    on_every_store,
};

type Shared = Arc<dyn Store>;

on_every_store!(
    units_reported_beyond_a_bucket_are_owed_even_after_an_edit,
    a_queue_drops_units_reported_beyond_its_capacity,
);

const A_UNIT_MS: u64 = 8_640_000;

fn reporting(own: OwnUnits) -> Check {
    let part = ServicePart {
        descriptor: request(&[("user", "alice")]).descriptor,
        cost: 1,
        rate: None,
    };
    let service = ServiceCheck {
        quotas_elsewhere: false,
        parts: vec![part],
        own: Some(own),
    };
    Check {
        service: Some(Box::new(service)),
        ..request(&[])
    }
}

/// How long a check that only looks is denied, in units.
async fn denied_for(store: &Shared, policy: &Compiled) -> Result<u64> {
    let looked = check(store, policy, &reporting(OwnUnits::Look)).await?;
    assert!(!looked.allowed);
    let wait_ms = looked.limits[0].retry_after_ms.context("a time")?;
    Ok(wait_ms.div_ceil(A_UNIT_MS))
}

async fn units_reported_beyond_a_bucket_are_owed_even_after_an_edit(store: Shared) -> Result<()> {
    for algorithm in ["token_bucket", "gcra", "leaky_bucket"] {
        let name = algorithm.replace('_', "-");
        let limit = |burst: u64| {
            let text = format!(
                "  - {{name: {name}, per: [user], algorithm: {algorithm}, rate: 10/1d, burst: {burst}}}\n"
            );
            policy(&text)
        };
        let limits = publish(&store, &limit(10)).await?;
        let reported = check(&store, &limits, &reporting(OwnUnits::Charge(25))).await?;
        assert_eq!(reported.limits[0].remaining, 0, "{algorithm}");
        assert_eq!(denied_for(&store, &limits).await?, 16, "{algorithm}");
        // Fifteen are owed beyond, and as many as fit within.
        let lowered = publish(&store, &limit(4)).await?;
        assert_eq!(denied_for(&store, &lowered).await?, 16, "{algorithm}");
        check(&store, &lowered, &reporting(OwnUnits::Refund(16))).await?;
        let looked = check(&store, &lowered, &reporting(OwnUnits::Look)).await?;
        assert!(looked.allowed, "{algorithm}");
    }
    Ok(())
}

async fn a_queue_drops_units_reported_beyond_its_capacity(store: Shared) -> Result<()> {
    let limits = "  - {name: queue, per: [user], algorithm: leaky_bucket, rate: 10/1d, \
                  over_limit: queue, max_delay: 1d}\n";
    let limits = publish(&store, &policy(limits)).await?;
    check(&store, &limits, &reporting(OwnUnits::Charge(25))).await?;
    // The service holds no request: a look passes once the queue is empty.
    assert_eq!(denied_for(&store, &limits).await?, 10);
    Ok(())
}
