//! Edits take effect while a limiter holds long polls, even if that limiter fails. (The simulation
//! of filter-core tests how soon.)
//!
//! The edited limit has `scope: proxy`, so that no check's answer reveals the edit.

use harness::Signal;

use crate::stage::{Stage, eventually, limits, statuses};

const HERE: &str = "{name: here, scope: proxy, match: {path: /here}, rate: 1/1h}";

/// Waits until one of the limiters holds a poll, and returns its index.
async fn holder(stage: &Stage) -> usize {
    eventually("a limiter holds the poll", async || {
        for n in 0..stage.limiters() {
            if stage.metric_of(n, "rl_held_polls").await > 0 {
                return Some(n);
            }
        }
        None
    })
    .await
}

/// Raises a used-up limit and waits until the edit is in force.
async fn edit_to(stage: &Stage, burst: usize, envoys: usize) {
    let requests = (0..envoys).map(|n| stage.nth_envoy(n).get("/here"));
    let requests: Vec<_> = requests.collect();
    for request in &requests {
        assert_eq!(statuses(request, 1).await, [429]);
    }
    stage.rlctl(&["set-limit", "here", "--burst", &burst.to_string()]);
    for request in &requests {
        eventually("the edit is in force", async || {
            (statuses(request, 1).await == [200]).then_some(())
        })
        .await;
        while statuses(request, 1).await == [200] {}
    }
}

/// Uses up the limit at every Envoy.
async fn used_up(stage: &Stage, envoys: usize) {
    for n in 0..envoys {
        let request = stage.nth_envoy(n).get("/here");
        while statuses(&request, 1).await == [200] {}
    }
}

#[tokio::test]
async fn an_edit_answers_every_long_poll() {
    let stage = limits(&[HERE]).envoys(2).await;
    used_up(&stage, 2).await;
    for burst in 2..5 {
        eventually("both polls are held", async || {
            (stage.limiter_counter("rl_held_polls").await == 2).then_some(())
        })
        .await;
        edit_to(&stage, burst, 2).await;
    }
}

#[tokio::test]
async fn an_edit_is_in_force_while_the_polled_limiter_hangs() {
    let stage = limits(&[HERE]).await;
    used_up(&stage, 1).await;
    for burst in 2..5 {
        let holder = holder(&stage).await;
        stage.limiter(holder).process().pause().unwrap();
        edit_to(&stage, burst, 1).await;
        stage.limiter(holder).process().resume().unwrap();
    }
}

#[tokio::test]
async fn an_edit_is_in_force_after_the_polled_limiter_ends() {
    for signal in [Signal::KILL, Signal::TERM] {
        let stage = limits(&[HERE]).await;
        used_up(&stage, 1).await;
        let holder = holder(&stage).await;
        stage.limiter(holder).process().signal(signal).unwrap();
        edit_to(&stage, 2, 1).await;
    }
}
