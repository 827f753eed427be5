//! Simulations on a real server: its script, our clock.

use algorithms::{
    Algorithm, Kind, Parameters,
    check::{Options, Part},
};
use anyhow::Result;
use harness::Engine;
use redis::Value;
use store::script::{Bucket, ScriptCheck};

use crate::{servers::Server, with_both_engines};

with_both_engines!(a_simulation_has_a_clock_and_buckets_of_its_own);

const DAY_MS: u64 = 86_400_000;

async fn a_simulation_has_a_clock_and_buckets_of_its_own(engine: Engine) -> Result<()> {
    let server = Server::start(engine).await?;
    let store = server.store()?;
    let algorithm = Algorithm::new(&Parameters::new(Kind::FixedWindow, 1, DAY_MS))?;
    let check = ScriptCheck {
        limits: vec![Bucket::new(
            "a bucket: {any} name",
            Part::new(&algorithm, 1),
        )],
        options: Options::default(),
    };
    let mut allowed = Vec::new();
    for (run, now_ms) in [(1, 0), (1, DAY_MS - 1), (1, DAY_MS), (2, DAY_MS)] {
        allowed.push(store.simulate(run, &check, now_ms).await?.allowed);
    }
    assert_eq!(allowed, [true, false, true, true]);
    let keys = async || server.command(&["KEYS", "*"]).await;
    let Value::Array(found) = keys().await? else {
        anyhow::bail!("KEYS answers with a list");
    };
    assert_eq!(found.len(), 2);
    for run in [1, 2] {
        store.end_simulation(run, &["a bucket: {any} name"]).await?;
    }
    assert_eq!(keys().await?, Value::Array(Vec::new()));
    Ok(())
}
