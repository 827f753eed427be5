//! Units reserved for requests whose responses state what they cost.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use harness::Engine;
use policy::{Compiled, SlotId};
use protocol::{Check, CostSettlement, LimitRequest, Reservation};
use store::{ResetScope, Store};

use crate::{
    given::{check, current, name, policy, publish, request, reset, units_left},
    on_every_store,
    servers::{Server, until},
};

type Shared = Arc<dyn Store>;

on_every_store!(
    every_algorithm_settles_once,
    a_reset_forgets_reservations,
    only_a_reservation_that_was_given_has_an_excess_without_its_record,
);

/// A thousand units by each algorithm that settles.
const KINDS: [&str; 6] = [
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "fixed_window",
    "sliding_window",
    "sliding_window_buckets, sub_windows: 24",
];

fn limits(algorithm: &str) -> String {
    format!(
        "  - {{name: tokens, per: [user], rate: 1000/1d, algorithm: {algorithm}, \
         cost: {{from: {{response_json: /total}}, reserve: {{default: 100}}, max: 5000}}}}\n"
    )
}

fn reserving(id: u64) -> Check {
    Check {
        reserve: true,
        slot: Some(SlotId {
            stamp: 1,
            secret: id,
        }),
        ..request(&[("user", "alice")])
    }
}

async fn reserve(store: &Shared, policy: &Compiled, id: u64) -> Result<Reservation> {
    let answer = check(store, policy, &reserving(id)).await?;
    answer.limits[0].reservation.context("a reservation")
}

fn settling(reservation: Reservation, units: u64) -> Check {
    let entry = LimitRequest {
        settle: vec![CostSettlement { reservation, units }],
        ..LimitRequest::new(name("tokens"))
    };
    Check {
        cost: 0,
        limits: vec![entry],
        ..request(&[("user", "alice")])
    }
}

async fn after_reset(store: &Shared, policy: &Compiled) -> Result<Compiled> {
    reset(store, &policy.limits()[0], ResetScope::All).await?;
    current(store).await
}

/// The units left, and how many of the used ones are reserved.
async fn units(store: &Shared, policy: &Compiled) -> Result<(u64, u64)> {
    let alice = [Some(b"alice".to_vec())];
    let seen = store.inspect(policy, &name("tokens"), &alice, 1).await?;
    Ok((
        seen.answer.verdict.decision.remaining,
        seen.answer.verdict.reserved.open,
    ))
}

async fn every_algorithm_settles_once(store: Shared) -> Result<()> {
    for algorithm in KINDS {
        let published = publish(&store, &policy(&limits(algorithm))).await?;
        let policy = after_reset(&store, &published).await?;
        let first = reserve(&store, &policy, 11).await?;
        assert_eq!(units(&store, &policy).await?, (900, 100), "{algorithm}");
        for _ in 0..2 {
            check(&store, &policy, &settling(first, 30)).await?;
            assert_eq!(units(&store, &policy).await?, (970, 0), "{algorithm}");
        }
        let second = reserve(&store, &policy, 12).await?;
        let foreign = Reservation {
            secret: 1,
            ..second
        };
        check(&store, &policy, &settling(foreign, 0)).await?;
        assert_eq!(units(&store, &policy).await?, (870, 100), "{algorithm}");
        check(&store, &policy, &settling(second, 9000)).await?;
        assert_eq!(units(&store, &policy).await?, (0, 0), "{algorithm}");
        let denied = check(&store, &policy, &reserving(13)).await?;
        assert_eq!(
            (denied.allowed, denied.limits[0].reservation),
            (false, None)
        );
    }
    Ok(())
}

async fn a_reset_forgets_reservations(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(&limits("token_bucket"))).await?;
    let before = reserve(&store, &policy, 1).await?;
    let policy = after_reset(&store, &policy).await?;
    reserve(&store, &policy, 2).await?;
    check(&store, &policy, &settling(before, 0)).await?;
    assert_eq!(units(&store, &policy).await?, (900, 100));
    Ok(())
}

/// After a reset no reservation has a record.
async fn only_a_reservation_that_was_given_has_an_excess_without_its_record(
    store: Shared,
) -> Result<()> {
    let policy = publish(&store, &policy(&limits("token_bucket"))).await?;
    let given = reserve(&store, &policy, 1).await?;
    let policy = after_reset(&store, &policy).await?;
    let altered = [
        Reservation { secret: 2, ..given },
        Reservation { number: 2, ..given },
        Reservation { units: 0, ..given },
        Reservation { seal: 0, ..given },
    ];
    for made_up in altered {
        check(&store, &policy, &settling(made_up, 5000)).await?;
        assert_eq!(units(&store, &policy).await?, (1000, 0), "{made_up:?}");
    }
    // Nor does a bucket that did not give it charge the excess.
    let elsewhere = Check {
        descriptor: request(&[("user", "bob")]).descriptor,
        ..settling(given, 5000)
    };
    let answer = check(&store, &policy, &elsewhere).await?;
    assert_eq!(units_left(&answer), 1000);
    check(&store, &policy, &settling(given, 300)).await?;
    assert_eq!(units(&store, &policy).await?, (800, 0));
    Ok(())
}

/// A limiter may settle what another reserved, also after the store has lost the key.
#[tokio::test]
#[ignore = "needs a server"]
async fn all_limiters_of_a_store_seal_alike() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let (one, other) = (server.store()?, server.store()?);
    let limits = policy(&limits("token_bucket"));
    let policy = publish(&one, &limits).await?;
    let (first, second) = tokio::join!(reserve(&one, &policy, 1), reserve(&other, &policy, 2));
    let (first, second) = (first?, second?);
    let policy = after_reset(&one, &policy).await?;
    check(&other, &policy, &settling(first, 200)).await?;
    assert_eq!(units(&one, &policy).await?, (900, 0));
    check(&one, &policy, &settling(second, 200)).await?;
    assert_eq!(units(&one, &policy).await?, (800, 0));

    // A store that lost the key gets it back.
    server.command(&["DEL", "rl:r:seal"]).await?;
    until("the key is there", Duration::from_mins(1), async || {
        check(&one, &policy, &settling(first, 100)).await.ok()?;
        let exists: bool = server.ask(&["EXISTS", "rl:r:seal"]).await.ok()?;
        exists.then_some(())
    })
    .await?;
    let new = server.store()?;
    check(&new, &policy, &settling(second, 200)).await?;
    assert_eq!(units(&one, &policy).await?, (700, 0));
    Ok(())
}
