//! The stories of the demo. Each step shows something, checks that it happened, and leaves the system in
//! the state that the next one expects.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use harness::{EnvoyConfig, HeldRequest, Reply, Signal, flood, free_port, until};
use serde_json::Value;

use super::{Stage, command, exchange, heading, line, ok, text, whole};

/// The path of the demo's requests.
const PATH: &str = "/api/orders";
/// The limit that applies to it, in limits.yaml.
const LIMIT: &str = "orders";
/// Its burst.
const BURST: usize = 5;
/// An edit is in force everywhere within a second; the rest allows for a busy machine.
const EDIT_MAX: Duration = Duration::from_secs(3);
/// Timeout of everything that has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(20);

/// Limits in a file, a burst, an edit, and limiters that stop and start.
pub async fn whole_system(stage: &mut Stage) -> Result<()> {
    start(stage).await?;
    reach_the_limit(stage).await?;
    edit_while_requests_flow(stage).await?;
    restart_the_limiters(stage).await
}

async fn start(stage: &mut Stage) -> Result<()> {
    heading("Everything starts");
    text("A store keeps the limits and what was used of them:");
    command(&stage.redis.typed());
    command(&format!("export RL_STORE={}", stage.redis.url()));
    text(
        "Two limiters decide; neither has a state of its own. (They and Envoy have\n\
         more patience here than by default, so that the story holds on a busy machine.)",
    );
    stage.limiter(&[]).await?;
    stage.limiter(&[]).await?;
    text(
        "Envoy asks them, by the filter; behind it is a service that says hello. The\n\
         configuration is envoy.yaml with these ports and that patience:",
    );
    let ports = stage.ports;
    stage.envoy(stage.config(&ports)?, ports).await?;
    text(&format!("What they log is in {}.", stage.dir.display()));

    heading("Load the limits");
    stage.run_rlctl(&["load-scripts"]).await?;
    stage.run_rlctl(&["apply", "-f", "limits.yaml"]).await?;
    let request = stage.post(PATH, "somebody");
    let took = eventually(EDIT_MAX, "Envoy applies the new limits", async || {
        let reply = request.send().await?;
        Ok(reply.header("ratelimit-policy").is_some())
    });
    let took = took.await?;
    ok(&format!(
        "Envoy applied them {took} ms later, without a restart."
    ));
    Ok(())
}

async fn reach_the_limit(stage: &Stage) -> Result<()> {
    heading("Requests pass");
    text("Each response shows the client its remaining quota, in headers of the IETF draft.\n\n");
    for _ in 0..BURST {
        let reply = order(stage, "alice").await?;
        ensure!(reply.status == 200, "a request within the burst is denied");
        let shown = reply.header("ratelimit").is_some();
        ensure!(shown, "an answer carries no RateLimit header");
    }
    ok(&format!("{BURST} of {BURST} passed."));

    heading("The limit is reached");
    text("The next one is denied, with the time to retry:");
    let reply = denial(stage, "alice").await?;
    whole(&reply);
    let says_when = reply.header("retry-after").is_some();
    ensure!(says_when, "the denial carries no Retry-After");
    text("Others are not affected:\n\n");
    let reply = order(stage, "bob").await?;
    ensure!(reply.status == 200, "another user is denied");
    ok("Denied for alice before it reached the service; allowed for bob.");

    heading("The bucket in the store");
    let seen = stage.run_rlctl(&["inspect", LIMIT, "user=alice"]).await?;
    ensure!(!seen.trim().is_empty(), "rlctl inspect shows nothing");
    Ok(())
}

/// The first denial. If the machine is so busy that calls to the limiter time out, the fallback may
/// have admitted a request or two.
async fn denial(stage: &Stage, user: &str) -> Result<Reply> {
    for _ in 0..3 {
        let served = stage.upstream.requests();
        let reply = stage.post(PATH, user).send().await?;
        if reply.status == 429 {
            let reached = stage.upstream.requests() != served;
            ensure!(!reached, "a denied request reached the service");
            return Ok(reply);
        }
    }
    bail!("requests over the limit pass")
}

async fn edit_while_requests_flow(stage: &Stage) -> Result<()> {
    heading("Raise the limit while requests flow");
    let raise = ["set-limit", LIMIT, "--burst", "10"];
    stage.run_rlctl(&raise).await?;
    let request = stage.post(PATH, "alice");
    let took = eventually(EDIT_MAX, "the raised limit lets alice pass", async || {
        let reply = request.send().await?;
        let passes = reply.status == 200;
        if passes {
            line("");
            exchange(&request_line("alice"), LIMIT, &reply);
        }
        Ok(passes)
    });
    let took = took.await?;
    ok(&format!("alice passes again, {took} ms after the edit."));
    Ok(())
}

async fn restart_the_limiters(stage: &mut Stage) -> Result<()> {
    heading("Both limiters stop");
    let mut stopped = Vec::new();
    for limiter in std::mem::take(&mut stage.limiters) {
        stopped.push(limiter.stop().await?);
    }
    text("Envoy keeps limiting locally, from the last known state:\n\n");
    let (mut passed, mut slowest) = (0, Duration::ZERO);
    loop {
        let reply = order(stage, "alice").await?;
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
    ok(&format!(
        "{passed} passed, then 429; no answer took longer than {slowest} ms."
    ));

    heading("The limiters restart");
    for plan in stopped {
        stage.limiters.push(plan.start().await?);
    }
    let mut user = 0_u32;
    // A new user: only an answer of the limiter shows the whole quota.
    let whole = format!("\"{LIMIT}\";r=9");
    let took = eventually(PATIENCE, "Envoy calls the limiters again", async || {
        user += 1;
        let reply = stage.post(PATH, &format!("new-{user}")).send().await?;
        let quota = reply.header("ratelimit").unwrap_or_default();
        Ok(quota.contains(&whole))
    });
    let took = took.await?;
    line("");
    order(stage, "alice").await?;
    ok(&format!(
        "Envoy called them again, {took} ms after they were up."
    ));
    Ok(())
}

/// Prints commands to try while everything is running.
pub fn what_to_try(stage: &Stage) {
    heading("Running until Ctrl-C");
    text("Try in another terminal, in this directory:");
    let url = stage.url();
    let admin = stage.ports.envoy_admin;
    for typed in [
        format!("export RL_STORE={}", stage.redis.url()),
        format!("curl -i -X POST -H 'x-user-id: carol' {url}{PATH}"),
        "target/debug/rlctl list-limits".to_owned(),
        format!("target/debug/rlctl get-limit {LIMIT}"),
        format!("target/debug/rlctl set-limit {LIMIT} --rate 100/1m --burst 100"),
        format!("target/debug/rlctl reset {LIMIT} user=alice"),
        format!("curl -s 'http://127.0.0.1:{admin}/stats?filter=rl_'"),
    ] {
        command(&typed);
    }
}

async fn order(stage: &Stage, user: &str) -> Result<Reply> {
    let reply = stage.post(PATH, user).send().await?;
    exchange(&request_line(user), LIMIT, &reply);
    Ok(reply)
}

fn request_line(user: &str) -> String {
    format!("POST {PATH}  x-user-id: {user:<6}")
}

/// Repeats until the result is true; returns the milliseconds it took.
async fn eventually(
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

/// The file of the story of Envoy's own rate limit filter.
const RATELIMIT: &str = include_str!("ratelimit.yaml");
const ALLOWED: u64 = 100;
const REQUESTS: u64 = 200;
/// The longest that the requests and the edit may take to fall in one minute of the limit.
const NEEDED: Duration = Duration::from_secs(15);

/// Envoy's own rate limit filter: an unchanged file of envoyproxy/ratelimit, exact under concurrency, and
/// edited live.
pub async fn rate_limit_service(stage: &mut Stage) -> Result<()> {
    heading("A file of envoyproxy/ratelimit, as it is");
    let file = stage.file("ratelimit/shop.yaml", RATELIMIT)?;
    let folder = file.trim_end_matches("/shop.yaml");
    stage.limiter(&["--rls-config", folder]).await?;
    text("Envoy has its own rate limit filter, and no plugin:");
    let ports = stage.ports;
    let config = EnvoyConfig::rate_limit_service(&stage.programs.root, &ports)?;
    stage.envoy(config, ports).await?;
    // The window is a minute of the clock, so the story waits until enough of one is left.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let left = Duration::from_secs(60 - now.as_secs() % 60);
    if left < NEEDED {
        text("The window is a minute of the clock, and this one is almost over: waiting.");
        tokio::time::sleep(left).await;
    }

    heading("200 requests at once");
    let passed = send(stage, REQUESTS).await?;
    let shown = format!("{passed} of {REQUESTS} passed");
    ensure!(
        passed == ALLOWED,
        "{shown}; the limit is {ALLOWED} a minute"
    );
    ok(&format!("{shown}: exactly the limit."));

    heading("Raise the limit");
    let limits = stage.run_rlctl(&["list-limits", "-o", "name"]).await?;
    let name = limits.split_whitespace().next();
    let name = name.context("rlctl list-limits shows no limit")?;
    let raise = ["set-limit", name, "--rate", "120/1m"];
    stage.run_rlctl(&raise).await?;
    let mut more = 0;
    let took = eventually(EDIT_MAX, "the raised limit lets alice pass", async || {
        more += send(stage, 1).await?;
        Ok(more > 0)
    });
    let took = took.await?;
    more += send(stage, REQUESTS).await?;
    ensure!(more == 20, "{more} more passed under a limit of 120");
    ok(&format!(
        "alice passes again, {took} ms after the edit: {more} more, to the unit."
    ));
    Ok(())
}

/// Sends requests, all at once; returns how many passed.
async fn send(stage: &Stage, requests: u64) -> Result<u64> {
    let request = |_| b"GET / HTTP/1.1\r\nhost: demo\r\nx-user-id: alice\r\n\r\n".to_vec();
    flood(stage.ports.envoy, requests, requests, request).await
}

/// The limit of the story of requests in flight.
const IN_FLIGHT: &str = "domain: shop
limits:
  - name: in-flight
    match: {path: \"/reports/**\"}
    per: [user]
    algorithm: concurrency
    limit: 10
    slot_ttl: 3s
";
const IN_FLIGHT_MAX: u64 = 10;
const ENVOYS: u64 = 3;
/// Requests at each Envoy.
const EACH: u64 = 10;

/// Three Envoys, a limit of ten requests in flight, and one Envoy that is killed.
pub async fn in_flight(stage: &mut Stage) -> Result<()> {
    heading("Ten in flight, over three Envoys");
    let file = stage.file("limits.yaml", IN_FLIGHT)?;
    stage.limiter(&[]).await?;
    stage.run_rlctl(&["apply", "-f", &file]).await?;
    let mut ports = stage.ports;
    for _ in 0..ENVOYS {
        let envoy = stage.envoy(stage.config(&ports)?, ports).await?;
        let request = envoy.get("/reports/any").header("x-user-id", "nobody");
        // Until Envoy has the limits, requests pass without a slot.
        eventually(PATIENCE, "Envoy has the limits", async || {
            request.send().await?;
            Ok(envoy.stat("wasmcustom.rl_slots.taken").await? > 0)
        })
        .await?;
        (ports.envoy, ports.envoy_admin) = (free_port()?, free_port()?);
    }
    let held = requests_at_once(stage).await?;
    kill_one(stage, held).await
}

/// Waits until so many requests are in flight, according to the store.
async fn becomes(stage: &Stage, count: u64) -> Result<u128> {
    let what = format!("{count} requests are in flight");
    let inspect = ["inspect", "in-flight", "user=alice", "-o", "json"];
    eventually(PATIENCE, &what, async || {
        let output = stage.rlctl(&inspect).output().await?;
        let bucket: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok(bucket.get("used").and_then(Value::as_u64) == Some(count))
    })
    .await
}

/// Each Envoy's requests that are unanswered while the service waits for the rest of their bodies.
async fn requests_at_once(stage: &Stage) -> Result<Vec<Vec<HeldRequest>>> {
    heading("Thirty uploads at once");
    let mut held = Vec::new();
    for envoy in &stage.envoys {
        let mut own = Vec::new();
        for _ in 0..EACH {
            own.push(HeldRequest::send(envoy.port(), "/reports/x", "alice").await?);
        }
        held.push(own);
    }
    let mut denied = 0;
    for own in &mut held {
        let mut waiting = Vec::new();
        for mut request in std::mem::take(own) {
            match request.status_within(Duration::from_secs(2)).await? {
                None => waiting.push(request),
                Some(429) => denied += 1,
                Some(other) => bail!("a request was answered {other}"),
            }
        }
        *own = waiting;
    }
    let waiting: usize = held.iter().map(Vec::len).sum();
    ensure!(
        denied == EACH * ENVOYS - IN_FLIGHT_MAX && waiting == usize::try_from(IN_FLIGHT_MAX)?,
        "{waiting} are in flight, {denied} were denied"
    );
    stage
        .run_rlctl(&["inspect", "in-flight", "user=alice"])
        .await?;
    ok(&format!("{waiting} are in flight, {denied} were denied."));
    Ok(held)
}

async fn kill_one(stage: &mut Stage, mut held: Vec<Vec<HeldRequest>>) -> Result<()> {
    heading("One Envoy is killed");
    let most = (0..held.len()).max_by_key(|at| held.get(*at).map(Vec::len));
    let at = most.context("there are Envoys")?;
    let lost = u64::try_from(held.remove(at).len())?;
    let envoy = stage.envoys.remove(at);
    envoy.process().signal(Signal::KILL)?;
    let took = becomes(stage, IN_FLIGHT_MAX - lost).await?;
    ok(&format!(
        "Its {lost} slots were free {took} ms later; slot_ttl is 3 s."
    ));
    text("The others keep theirs, and end:");
    line("");
    for request in held.into_iter().flatten() {
        let status = request.finish().await?;
        ensure!(status == 200, "a held request was answered {status}");
    }
    let took = becomes(stage, 0).await?;
    ok(&format!("None is in flight {took} ms later."));
    Ok(())
}
