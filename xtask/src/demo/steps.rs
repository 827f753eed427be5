//! The steps of the demo. Each shows something, checks that it happened, and leaves the system in
//! the state that the next one expects.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use harness::{Reply, until};

use super::printer::Printer;
use super::stage::Stage;

/// The path of the demo's requests.
const PATH: &str = "/api/orders";
/// The limit that applies to it, in limits.yaml.
const LIMIT: &str = "orders";
/// Its burst.
const BURST: usize = 5;
/// An edit is in force everywhere within a second; the rest allows for a busy machine.
pub const EDIT_MAX: Duration = Duration::from_secs(3);
/// Timeout of everything that has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs all steps.
pub async fn run(printer: &Printer, stage: &mut Stage) -> Result<()> {
    load_limits(printer, stage).await?;
    requests_pass(printer, stage).await?;
    reach_the_limit(printer, stage).await?;
    inspect_the_bucket(printer, stage).await?;
    edit_while_requests_flow(printer, stage).await?;
    stop_the_limiters(printer, stage).await?;
    restart_the_limiters(printer, stage).await
}

async fn load_limits(printer: &Printer, stage: &Stage) -> Result<()> {
    printer.heading("Load the limits");
    printer.run(&mut stage.rlctl(&["load-scripts"])).await?;
    printer
        .run(&mut stage.rlctl(&["apply", "-f", "limits.yaml"]))
        .await?;
    let request = stage.post(PATH, "somebody");
    let took = eventually(EDIT_MAX, "Envoy applies the new limits", async || {
        let reply = request.send().await?;
        Ok(reply.header("ratelimit-policy").is_some())
    })
    .await?;
    printer.ok(&format!(
        "Envoy applied them {took} ms later, without a restart."
    ));
    Ok(())
}

async fn requests_pass(printer: &Printer, stage: &Stage) -> Result<()> {
    printer.heading("Requests pass");
    printer.text(
        "Each response shows the client its remaining quota, in the headers of the IETF draft.",
    );
    printer.line("");
    for _ in 0..BURST {
        let reply = order(printer, stage, "alice").await?;
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
    printer.ok(&format!("{BURST} of {BURST} passed."));
    Ok(())
}

async fn reach_the_limit(printer: &Printer, stage: &Stage) -> Result<()> {
    printer.heading("The limit is reached");
    printer.text("The next one is denied, with the time to retry:");
    let reply = denial(stage, "alice").await?;
    printer.whole(&reply);
    ensure!(
        reply.header("retry-after").is_some(),
        "the denial carries no Retry-After"
    );
    printer.text("Others are not affected:");
    printer.line("");
    let reply = order(printer, stage, "bob").await?;
    ensure!(
        reply.status == 200,
        "another user was answered {}",
        reply.status
    );
    printer.ok("Denied for alice before it reached the service; allowed for bob.");
    Ok(())
}

/// The first denial. If the machine is so busy that calls to the limiter time out, the fallback may
/// have admitted a request or two.
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

async fn inspect_the_bucket(printer: &Printer, stage: &Stage) -> Result<()> {
    printer.heading("The bucket in the store");
    let seen = printer
        .run(&mut stage.rlctl(&["inspect", LIMIT, "user=alice"]))
        .await?;
    ensure!(!seen.trim().is_empty(), "rlctl inspect shows nothing");
    Ok(())
}

async fn edit_while_requests_flow(printer: &Printer, stage: &Stage) -> Result<()> {
    printer.heading("Raise the limit while requests flow");
    printer
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
    printer.line("");
    if let Some(reply) = &passed {
        printer.exchange(&request_line("alice"), LIMIT, reply);
    }
    printer.ok(&format!("alice passes again, {took} ms after the edit."));
    Ok(())
}

async fn stop_the_limiters(printer: &Printer, stage: &mut Stage) -> Result<()> {
    printer.heading("Both limiters stop");
    stage.stop_limiters().await?;
    printer.text("Envoy keeps limiting locally, from the last known state:");
    printer.line("");
    let mut passed = 0;
    let mut slowest = Duration::ZERO;
    loop {
        let reply = order(printer, stage, "alice").await?;
        slowest = slowest.max(reply.took);
        match reply.status.as_u16() {
            200 => passed += 1,
            429 => break,
            other => bail!("without limiters a request was answered {other}"),
        }
        ensure!(passed <= 10, "without limiters nothing is limited");
    }
    ensure!(passed > 0, "without limiters nothing passes");
    let slowest = slowest.as_millis();
    printer.ok(&format!(
        "{passed} passed, then 429; no answer took longer than {slowest} ms."
    ));
    Ok(())
}

async fn restart_the_limiters(printer: &Printer, stage: &mut Stage) -> Result<()> {
    printer.heading("The limiters restart");
    stage.start_limiters().await?;
    let mut user = 0_u32;
    // A new user: only an answer of the limiter shows the whole quota.
    let whole = format!("\"{LIMIT}\";r=9");
    let took = eventually(PATIENCE, "Envoy calls the limiters again", async || {
        user += 1;
        let reply = stage.post(PATH, &format!("new-{user}")).send().await?;
        Ok(reply
            .header("ratelimit")
            .is_some_and(|quota| quota.contains(&whole)))
    })
    .await?;
    printer.line("");
    order(printer, stage, "alice").await?;
    printer.ok(&format!(
        "Envoy called them again, {took} ms after they were up."
    ));
    Ok(())
}

/// The closing text.
pub fn end(printer: &Printer) {
    printer.heading("Done");
    printer.text(
        "Every step was checked. Everything is stopped now; `cargo xtask demo --keep` leaves \
         it running.",
    );
}

/// Prints commands to try while everything is running.
pub fn what_to_try(printer: &Printer, stage: &Stage) {
    printer.heading("Running until Ctrl-C");
    printer.text("Try in another terminal, in this directory:");
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
        printer.command(&command);
    }
}

async fn order(printer: &Printer, stage: &Stage, user: &str) -> Result<Reply> {
    let reply = stage.post(PATH, user).send().await?;
    printer.exchange(&request_line(user), LIMIT, &reply);
    Ok(reply)
}

fn request_line(user: &str) -> String {
    format!("POST {PATH}  x-user-id: {user:<6}")
}

/// Repeats until the result is true; returns the milliseconds it took.
pub async fn eventually(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<bool>,
) -> Result<u128> {
    let started = Instant::now();
    until(what, limit, async || match attempt().await {
        Ok(false) => None,
        Ok(true) => Some(Ok(started.elapsed().as_millis())),
        Err(error) => Some(Err(error)),
    })
    .await?
}
