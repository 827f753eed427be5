//! How fast, how large and how robust it is. They take minutes, so they run only with
//! `cargo xtask test --only kubernetes -- --ignored`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{Gateway, Stage, condition, with_limits};

/// A limit of one path, whose number in answers says which edit it is of.
fn edit(name: &str, number: u64) -> Value {
    let limit = json!({
        "name": "all", "scope": "proxy", "rate": format!("{number}/1d"), "match": {"path": [format!("/{name}")]},
    });
    with_limits("infra", name, "Gateway", "public", &json!([limit]))
}

async fn three_envoys() -> Stage {
    let mut stage = Stage::start().await;
    stage.add_envoy(Gateway::Public, "public-a").await;
    stage.add_envoy(Gateway::Public, "public-b").await;
    stage.add_envoy(Gateway::Public, "public-c").await;
    stage
}

/// The generation of an object if its status says that this very one is enforced.
fn enforced(object: &Value) -> Option<i64> {
    let generation = object["metadata"]["generation"].as_i64()?;
    let enforced = condition(&object["status"], "Enforced");
    let is_true = enforced["status"] == "True" && enforced["observedGeneration"] == generation;
    is_true.then_some(generation)
}

/// The number that an object asks for.
fn number(object: &Value) -> u64 {
    let rate = object["spec"]["limits"][0]["rate"]
        .as_str()
        .unwrap_or("0/1d");
    rate.split('/').next().unwrap().parse().unwrap()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_millis();
    let [p50, p90, p99, max] = [50, 90, 99, 100].map(at);
    eprintln!(
        "{what}: {} times, in ms: p50 {p50}, p90 {p90}, p99 {p99}, most {max}",
        times.len()
    );
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn from_an_edit_to_enforced() {
    let stage = three_envoys().await;
    let (mut answered, mut programmed, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=200 {
        let started = Instant::now();
        let generation = stage.write(&edit("edited", number)).await.unwrap();
        answered.push(started.elapsed());
        stage
            .is_true("infra", "edited", "Programmed", generation)
            .await;
        programmed.push(started.elapsed());
        stage.enforced("infra", "edited", generation).await;
        all.push(started.elapsed());
        for (_, pod, envoy) in &stage.envoys {
            let answer = stage.answered_by(envoy, "/edited").await;
            assert_eq!(answer, Some(number.to_string()), "{pod}");
        }
    }
    report("an edit is answered", answered);
    report("an edit is in the store", programmed);
    report("an edit is enforced by three Envoys", all);
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn a_thousand_policies() {
    const POLICIES: u64 = 1000;
    let stage = three_envoys().await;
    let memory = |stage: &Stage| stage.controller.as_ref().unwrap().memory_bytes().unwrap() >> 20;
    eprintln!("the controller without policies: {} MiB", memory(&stage));
    let started = Instant::now();
    for number in 0..POLICIES {
        stage
            .write(&edit(&format!("many-{number}"), number + 1))
            .await
            .unwrap();
    }
    eprintln!(
        "{POLICIES} created within {} ms",
        started.elapsed().as_millis()
    );
    let all_enforced = async |stage: &Stage| {
        harness::until("all are enforced", Duration::from_mins(5), async || {
            let done = claims(stage).await.len();
            tokio::time::sleep(Duration::from_millis(200)).await;
            (done as u64 == POLICIES).then_some(())
        })
        .await
        .unwrap();
    };
    all_enforced(&stage).await;
    eprintln!("all enforced within {} ms", started.elapsed().as_millis());
    eprintln!("the controller with them: {} MiB", memory(&stage));
    let mut times = Vec::new();
    for number in 5000..5020 {
        let started = Instant::now();
        let generation = stage.write(&edit("many-500", number)).await.unwrap();
        stage.enforced("infra", "many-500", generation).await;
        times.push(started.elapsed());
    }
    report("one edit among them is enforced", times);
    let cpu = stage.controller.as_ref().unwrap().cpu_us().unwrap();
    eprintln!("the controller used {} ms of CPU", cpu / 1000);
}

/// Answered edits that were lost, and statuses that were not true, while each program is killed in turn.
#[tokio::test]
#[ignore = "takes minutes"]
async fn edits_while_everything_is_killed() {
    const EDITS: u64 = 300;
    const OBJECTS: u64 = 60;
    const KILL_EVERY: u64 = 15;
    let mut stage = three_envoys().await;
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    let (mut refused, mut checked, mut wrong) = (0, 0, Vec::new());
    let mut next = Instant::now();
    for n in 1..=EDITS {
        let name = format!("kept-{}", n % OBJECTS);
        match stage.write(&edit(&name, n)).await {
            Ok(_) => drop(wanted.insert(name, n)),
            Err(_) => refused += 1,
        }
        if n % KILL_EVERY == 0 {
            kill_one(&mut stage, n / KILL_EVERY).await;
        }
        // Each proxy answers by what a status says.
        let mut claims = claims(&stage).await;
        if !claims.is_empty() {
            let nth = usize::try_from(n).unwrap() % claims.len();
            wrong.extend(answers_of_older(&stage, &claims.swap_remove(nth)).await);
            checked += 1;
        }
        next += Duration::from_millis(100);
        tokio::time::sleep_until(next.into()).await;
    }
    let started = Instant::now();
    let mut lost = Vec::new();
    for (name, number_of_last) in &wanted {
        let (mut seen, mut is_enforced) = (0, false);
        let found = harness::until(name, Duration::from_secs(90), async || {
            let object = stage.read("infra", name).await;
            (seen, is_enforced) = (number(&object), enforced(&object).is_some());
            (seen >= *number_of_last && is_enforced).then_some(())
        });
        if found.await.is_err() {
            lost.push(format!(
                "{name}: {seen} of {number_of_last}, enforced: {is_enforced}"
            ));
        }
        let object = stage.read("infra", name).await;
        wrong.extend(answers_of_older(&stage, &object).await);
    }
    eprintln!("{} edits answered, {refused} refused", EDITS - refused);
    eprintln!(
        "all enforced {} ms after the last; lost: {lost:?}",
        started.elapsed().as_millis()
    );
    eprintln!("{checked} times a status was true and each proxy was requested; wrong: {wrong:?}");
    assert!(lost.is_empty() && wrong.is_empty());
    assert!(checked > 20, "{checked}");
}

/// Kills one of the programs, in turn, and starts it again.
async fn kill_one(stage: &mut Stage, nth: u64) {
    match nth % 5 {
        0 => stage.api.kill().await.unwrap(),
        1 => stage.api.kill_etcd().await.unwrap(),
        2 => {
            stage.kill_controller().await;
            stage.controller = Some(stage.another_controller(stage.controller_port));
        }
        3 => {
            let plan = stage.limiter.take().unwrap().kill().await.unwrap();
            stage.limiter = Some(plan.start().await.unwrap());
        }
        _ => {
            // Without its data.
            let stopped = stage.redis.take().unwrap().kill().await.unwrap();
            stage.redis = Some(stopped.start().await.unwrap());
        }
    }
}

/// The objects that say that they are enforced.
async fn claims(stage: &Stage) -> Vec<Value> {
    let url = "/apis/rl.example.com/v1alpha1/namespaces/infra/ratelimits";
    let reply = stage.http.get(&stage.api.url(url)).send().await;
    let list = reply.ok().and_then(|reply| reply.json().ok());
    let items = list.and_then(|list| list["items"].as_array().cloned());
    let mut items = items.unwrap_or_default();
    items.retain(|object| enforced(object).is_some());
    items
}

/// Which proxies answer by an older version of an object than the one that it says is enforced.
async fn answers_of_older(stage: &Stage, object: &Value) -> Vec<String> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let least = number(object);
    let mut wrong = Vec::new();
    for (_, pod, envoy) in &stage.envoys {
        let answer = stage.answered_by(envoy, &format!("/{name}")).await;
        let has = answer.and_then(|answer| answer.parse::<u64>().ok());
        if has.is_none_or(|has| has < least) {
            wrong.push(format!("{pod} has {has:?} of {name}, which is {least}"));
        }
    }
    wrong
}
