//! The story. Each chapter shows something, checks that it came true, and
//! leaves the stage as the next one expects it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use harness::{Reply, until};

use super::stage::Stage;
use super::teller::Teller;

/// The path that the limit of the story matches.
const PATH: &str = "/api/orders";
/// That limit, as limits.yaml defines it.
const LIMIT: &str = "orders";
/// Its burst there.
const BURST: usize = 5;
/// An edit is in force everywhere within a second; the rest is for a machine
/// that is busy.
const EDIT_MAX: Duration = Duration::from_secs(3);
/// Patience with what has no promise of its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells all of it.
pub async fn tell(teller: &Teller, stage: &mut Stage) -> Result<()> {
    limits_arrive(teller, stage).await?;
    requests_pass(teller, stage).await?;
    then_they_do_not(teller, stage).await?;
    the_bucket(teller, stage).await?;
    a_live_edit(teller, stage).await?;
    an_outage(teller, stage).await?;
    and_back(teller, stage).await
}

async fn limits_arrive(teller: &Teller, stage: &Stage) -> Result<()> {
    teller.chapter("Limits arrive");
    teller.run(&mut stage.rlctl(&["load-scripts"])).await?;
    teller
        .run(&mut stage.rlctl(&["apply", "-f", "limits.yaml"]))
        .await?;
    let request = stage.post(PATH, "somebody");
    let took = eventually(EDIT_MAX, "Envoy follows the new limits", async || {
        let reply = request.send().await?;
        Ok(reply.header("ratelimit-policy").is_some())
    })
    .await?;
    teller.held(&format!(
        "Envoy follows them, {took} ms later; nothing was restarted."
    ));
    Ok(())
}

async fn requests_pass(teller: &Teller, stage: &Stage) -> Result<()> {
    teller.chapter("Requests pass");
    teller.say("Each answer tells the client where it stands, in the headers of the IETF draft.");
    teller.line("");
    for _ in 0..BURST {
        let reply = order(teller, stage, "alice").await?;
        ensure!(
            reply.status == 200,
            "a request within the burst was answered {}",
            reply.status
        );
        ensure!(
            reply.header("ratelimit").is_some(),
            "an answer carries no RateLimit header"
        );
    }
    teller.held(&format!("{BURST} of {BURST} passed."));
    Ok(())
}

async fn then_they_do_not(teller: &Teller, stage: &Stage) -> Result<()> {
    teller.chapter("Until the limit");
    teller.say("The next one is told so, and when to come back:");
    let reply = denial(stage, "alice").await?;
    teller.whole(&reply);
    ensure!(
        reply.header("retry-after").is_some(),
        "the denial carries no Retry-After"
    );
    teller.say("Others are not affected:");
    teller.line("");
    let reply = order(teller, stage, "bob").await?;
    ensure!(
        reply.status == 200,
        "another user was answered {}",
        reply.status
    );
    teller.held("Denied for alice before it reached the service; allowed for bob.");
    Ok(())
}

/// The first denial. On a machine so busy that a limiter's answer takes longer
/// than Envoy waits for it, Envoy may have admitted a request or two by itself.
async fn denial(stage: &Stage, user: &str) -> Result<Reply> {
    for _ in 0..3 {
        let served = stage.served();
        let reply = stage.post(PATH, user).send().await?;
        if reply.status == 429 {
            ensure!(
                stage.served() == served,
                "a denied request reached the service"
            );
            return Ok(reply);
        }
    }
    bail!("requests over the limit pass")
}

async fn the_bucket(teller: &Teller, stage: &Stage) -> Result<()> {
    teller.chapter("What the limiter sees");
    let seen = teller
        .run(&mut stage.rlctl(&["inspect", LIMIT, "user=alice"]))
        .await?;
    ensure!(!seen.trim().is_empty(), "rlctl inspect shows nothing");
    Ok(())
}

async fn a_live_edit(teller: &Teller, stage: &Stage) -> Result<()> {
    teller.chapter("The limit is raised while requests flow");
    teller
        .run(&mut stage.rlctl(&["set-limit", LIMIT, "--burst", "10"]))
        .await?;
    let request = stage.post(PATH, "alice");
    let mut passed = None;
    let took = eventually(EDIT_MAX, "the raised limit lets alice pass", async || {
        let reply = request.send().await?;
        let allowed = reply.status == 200;
        passed = Some(reply);
        Ok(allowed)
    })
    .await?;
    teller.line("");
    if let Some(reply) = &passed {
        teller.exchange(&asked("alice"), LIMIT, reply);
    }
    teller.held(&format!("alice passes again, {took} ms after the edit."));
    Ok(())
}

async fn an_outage(teller: &Teller, stage: &mut Stage) -> Result<()> {
    teller.chapter("Both limiters stop");
    stage.stop_limiters().await?;
    teller.say("Envoy goes on by itself with what it knew, and still limits:");
    teller.line("");
    let mut passed = 0;
    let mut slowest = Duration::ZERO;
    loop {
        let reply = order(teller, stage, "alice").await?;
        slowest = slowest.max(reply.took);
        match reply.status.as_u16() {
            200 => passed += 1,
            429 => break,
            other => bail!("with the limiters away a request was answered {other}"),
        }
        ensure!(passed <= 10, "with the limiters away nothing is limited");
    }
    ensure!(passed > 0, "with the limiters away nothing passes");
    let slowest = slowest.as_millis();
    teller.held(&format!(
        "{passed} passed, then 429; no answer took longer than {slowest} ms."
    ));
    Ok(())
}

async fn and_back(teller: &Teller, stage: &mut Stage) -> Result<()> {
    teller.chapter("They come back");
    stage.start_limiters().await?;
    let mut user = 0_u32;
    // A user that Envoy knows nothing of: only a limiter knows the whole quota.
    let whole = format!("\"{LIMIT}\";r=9");
    let took = eventually(PATIENCE, "Envoy asks the limiters again", async || {
        user += 1;
        let reply = stage.post(PATH, &format!("new-{user}")).send().await?;
        Ok(reply
            .header("ratelimit")
            .is_some_and(|quota| quota.contains(&whole)))
    })
    .await?;
    teller.line("");
    order(teller, stage, "alice").await?;
    teller.held(&format!(
        "Envoy asks them again, {took} ms after they were up."
    ));
    Ok(())
}

/// How it ended.
pub fn end(teller: &Teller) {
    teller.chapter("The end");
    teller.say(
        "Every step came true, else the demo would have failed. Everything is stopped now; \
         `cargo xtask demo --keep` leaves it running for you to try.",
    );
}

/// What to do with a demo that was left running.
pub fn what_to_try(teller: &Teller, stage: &Stage) {
    teller.chapter("Yours until Ctrl-C");
    teller.say("In another terminal, here in the checkout:");
    let url = stage.url();
    let admin = stage.ports().envoy.envoy_admin;
    for command in [
        format!("export RL_STORE={}", stage.store()),
        format!("curl -i -X POST -H 'x-user-id: carol' {url}{PATH}"),
        "target/debug/rlctl list-limits".to_owned(),
        format!("target/debug/rlctl get-limit {LIMIT}"),
        format!("target/debug/rlctl set-limit {LIMIT} --rate 100/1m --burst 100"),
        format!("target/debug/rlctl reset {LIMIT} user=alice"),
        format!("curl -s 'http://127.0.0.1:{admin}/stats?filter=rl_'"),
    ] {
        teller.command(&command);
    }
}

async fn order(teller: &Teller, stage: &Stage, user: &str) -> Result<Reply> {
    let reply = stage.post(PATH, user).send().await?;
    teller.exchange(&asked(user), LIMIT, &reply);
    Ok(reply)
}

fn asked(user: &str) -> String {
    format!("POST {PATH}  x-user-id: {user:<6}")
}

/// Asks until the answer is yes; the milliseconds it took.
async fn eventually(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<bool>,
) -> Result<u128> {
    let started = Instant::now();
    until(what, limit, async || match ask().await {
        Ok(false) => None,
        Ok(true) => Some(Ok(started.elapsed().as_millis())),
        Err(error) => Some(Err(error)),
    })
    .await?
}
