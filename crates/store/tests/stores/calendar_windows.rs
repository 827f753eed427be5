//! Calendar limits: an answer names the true edge.

use std::sync::Arc;

use anyhow::Result;
use protocol::{Check, Debit, LimitRequest};
use store::Store;

use crate::given::{check, name, policy, publish, request, units_left};
use crate::on_every_store;

type Shared = Arc<dyn Store>;

on_every_store!(
    an_answer_reports_the_end_of_the_calendar_window,
    an_override_uses_the_customers_time_zone,
    a_debit_names_its_window,
);

const LIMITS: &str = "  - {name: per-user, per: [user], rate: 3/day, time_zone: Asia/Kathmandu,
     overrides: [{values: {user: tokyo}, time_zone: Asia/Tokyo}, {values: {user: months}, rate: 999999999999999/month}]}\n";

fn of(user: &str) -> Check {
    request(&[("user", user)])
}

async fn an_answer_reports_the_end_of_the_calendar_window(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(LIMITS)).await?;
    for left in [2, 1, 0] {
        let answer = check(&store, &policy, &of("alice")).await?;
        assert!(answer.allowed);
        assert_eq!(units_left(&answer), left);
    }
    let denied = check(&store, &policy, &of("alice")).await?;
    let quota = policy.limit(0).expect("a limit").quota;
    let (window, _) = calendar::window_of(&quota, denied.now_ms).expect("a window");
    let limit = &denied.limits[0];
    let decision = limit.verdict.decision;
    assert!(!denied.allowed);
    let left_ms = window.end_ms - denied.now_ms;
    assert_eq!(decision.retry_after.millis(), Some(left_ms));
    assert_eq!(decision.reset_after_ms, left_ms);
    assert_eq!(limit.window_ms, window.end_ms - window.start_ms);
    let values = [Some(b"alice".to_vec())];
    let shown = store
        .inspect(&policy, &name("per-user"), &values, 1)
        .await?;
    assert_eq!(shown.answer.verdict.decision.remaining, 0);
    assert_eq!(
        shown.now_ms + shown.answer.verdict.decision.reset_after_ms,
        window.end_ms
    );
    Ok(())
}

async fn an_override_uses_the_customers_time_zone(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(LIMITS)).await?;
    let tokyo = check(&store, &policy, &of("tokyo")).await?;
    // Nine hours ahead of UTC, without daylight saving time.
    let into_ms = (tokyo.now_ms + 9 * 3_600_000) % 86_400_000;
    assert_eq!(
        tokyo.limits[0].verdict.decision.reset_after_ms,
        86_400_000 - into_ms
    );
    let most = Check {
        cost: 999_999_999_999_998,
        ..of("months")
    };
    let months = check(&store, &policy, &most).await?;
    assert_eq!((months.allowed, units_left(&months)), (true, 1));
    let days = months.limits[0].window_ms / 86_400_000;
    assert!((28..=31).contains(&days), "{days}");
    Ok(())
}

async fn a_debit_names_its_window(store: Shared) -> Result<()> {
    let policy = publish(&store, &policy(LIMITS)).await?;
    let now_ms = check(&store, &policy, &of("alice")).await?.now_ms;
    let quota = policy.limit(0).expect("a limit").quota;
    let (window, _) = calendar::window_of(&quota, now_ms).expect("a window");
    let debited = async |serial: u64| {
        let debit = Debit {
            units: 1,
            serial: Some(serial),
        };
        let entry = LimitRequest {
            debit: Some(debit),
            ..LimitRequest::new(name("per-user"))
        };
        let asked = Check {
            limits: vec![entry],
            cost: 0,
            ..of("alice")
        };
        let answer = check(&store, &policy, &asked).await?;
        anyhow::Ok((
            units_left(&answer),
            answer.limits[0].verdict.decision.reset_after_ms,
        ))
    };
    assert_eq!(
        debited(window.serial - 1).await?.0,
        2,
        "yesterday's are past"
    );
    assert_eq!(debited(window.serial).await?.0, 1, "today's count");
    assert_eq!(
        debited(window.serial + 9).await?.0,
        0,
        "a clock that is off"
    );
    let (left, reset_ms) = debited(window.serial + 1).await?;
    assert_eq!(left, 2, "tomorrow has begun somewhere");
    assert!(reset_ms > 86_400_000, "{reset_ms}: it ends tomorrow");
    Ok(())
}
