//! Outages of limiters and stores.

use std::time::Duration;

use crate::stage::{Stage, eventually, limits, statuses};

/// The longest that an answer may take during an outage: the callout's 20 ms, and ample time for a
/// machine that is busy with other tests.
const ANSWER_MAX: Duration = Duration::from_millis(500);

#[tokio::test]
async fn local_limiting_goes_on_with_what_was_left() {
    let mut stage = limits(&["{name: per-user, per: [user], rate: 10/1h}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 4).await, [200; 4]);

    stage.stop_limiters().await;
    let answers = statuses(&alice, 12).await;

    let allowed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(allowed, 6, "6 were left: {answers:?}");
    assert!(
        answers.iter().all(|status| [200, 429].contains(status)),
        "{answers:?}"
    );
}

/// A limiter without its store reports that nothing was charged, so every local admission is charged
/// later: the limit admits no unit too many.
#[tokio::test]
async fn admissions_without_redis_are_charged_when_it_is_back() {
    for away in [Away::Stopped, Away::Full] {
        let mut stage = limits(&["{name: per-user, per: [user], rate: 40/1d}"]).await;
        let alice = stage.get("/", "alice");
        assert_eq!(statuses(&alice, 3).await, [200; 3]);

        away.begin(&mut stage).await;
        assert_eq!(statuses(&alice, 20).await, [200; 20]);
        away.end(&mut stage).await;

        let mut admitted = 3 + 20;
        eventually("the limiter denies", async || {
            let status = alice.send().await.unwrap().status;
            admitted += u64::from(status == 200);
            let used = stage.inspect("per-user", &["user=alice"])["used"].as_u64();
            assert!(used <= Some(admitted), "{used:?} of {admitted}, {away:?}");
            (status == 429 && used == Some(40)).then_some(())
        })
        .await;
        assert_eq!(admitted, 40, "{away:?}");
    }
}

/// How Redis fails.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// It refuses connections.
    Stopped,
    /// It is out of memory.
    Full,
}

impl Away {
    async fn begin(self, stage: &mut Stage) {
        match self {
            Self::Stopped => stage.stop_redis().await,
            Self::Full => maxmemory(stage, "1").await,
        }
    }

    async fn end(self, stage: &mut Stage) {
        match self {
            Self::Stopped => stage.start_redis().await,
            Self::Full => maxmemory(stage, "0").await,
        }
    }
}

async fn maxmemory(stage: &Stage, bytes: &str) {
    let set = ["CONFIG", "SET", "maxmemory", bytes];
    stage.redis().command(&set).await.unwrap();
}

/// Redis loses everything, and restarted limiters have no limits.
#[tokio::test]
async fn limits_outlive_a_store_and_limiters_that_lost_them() {
    let mut stage = limits(&["{name: per-user, per: [user], rate: 30/1d}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 5).await, [200; 5]);
    stage.stop_limiters().await;
    stage.restart_redis_empty().await;
    stage.start_limiters().await;
    eventually("Envoy has met them", async || {
        let log = stage.envoy().process().log();
        log.contains("which nobody deleted").then_some(())
    })
    .await;

    let answers = statuses(&alice, 60).await;
    let allowed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(allowed, 25, "what was left: {answers:?}");

    // The limits are written again, and Envoys use the new ones.
    stage.rlctl(&[
        "set-limit",
        "per-user",
        "--domain",
        "shop",
        "--per",
        "user",
        "--rate",
        "50/1d",
    ]);
    eventually("alice has fifty", async || {
        let reply = alice.send().await.unwrap();
        let policy = reply.header("ratelimit-policy")?.to_owned();
        policy.contains("q=50").then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_limit_follows_its_on_failure_setting() {
    let mut stage = limits(&[
        "{name: open, match: {path: /open}, rate: 1/1h, on_failure: allow}",
        "{name: closed, match: {path: /closed}, rate: 1000/1h, on_failure: deny}",
    ])
    .await;
    assert_eq!(statuses(&stage.get("/open", "alice"), 1).await, [200]);
    assert_eq!(statuses(&stage.get("/closed", "alice"), 1).await, [200]);

    stage.stop_limiters().await;

    assert_eq!(statuses(&stage.get("/open", "alice"), 5).await, [200; 5]);
    assert_eq!(statuses(&stage.get("/closed", "alice"), 5).await, [503; 5]);
    assert_eq!(
        statuses(&stage.get("/unmatched", "alice"), 5).await,
        [200; 5]
    );
}

#[tokio::test]
async fn one_replica_is_enough() {
    let mut stage = limits(&["{name: per-user, per: [user], rate: 20/1h}"]).await;
    stage.stop_one_limiter().await;

    let answers = statuses(&stage.get("/", "alice"), 60).await;

    let allowed = answers.iter().filter(|&&status| status == 200).count();
    // Requests that the fallback admitted until Envoy ejected the dead replica are charged by the
    // next check.
    assert!(
        (20..=22).contains(&allowed),
        "{allowed} of a limit of 20: {answers:?}"
    );
}

#[tokio::test]
async fn a_redis_that_hangs_delays_no_request() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1000/1h}"])
        .shipped_timeouts()
        .await;
    let alice = stage.get("/", "alice");
    eventually("a limiter has said how much alice has left", async || {
        let reply = alice.send().await.unwrap();
        reply
            .header("x-ratelimit-remaining")?
            .parse::<u32>()
            .ok()
            .filter(|left| *left > 900)
    })
    .await;

    stage.redis().process().pause().unwrap();
    for _ in 0..30 {
        let reply = alice.send().await.unwrap();
        assert!(
            [200, 429].contains(&reply.status.as_u16()),
            "{}",
            reply.status
        );
        assert!(
            reply.took < ANSWER_MAX,
            "an answer took {} ms",
            reply.took.as_millis()
        );
    }
    stage.redis().process().resume().unwrap();

    let before = stage.limiter_counter("rl_checks_total").await;
    eventually("the limiter decides again", async || {
        alice.send().await.unwrap();
        (stage.limiter_counter("rl_checks_total").await > before + 3).then_some(())
    })
    .await;
}
