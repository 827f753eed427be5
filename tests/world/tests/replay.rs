//! A seed is the same run each time, and a world in which a rule is broken fails.

#![expect(
    clippy::unwrap_used,
    reason = "only unit tests are exempt by themselves"
)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut world = Command::new(env!("CARGO_BIN_EXE_world"));
    world.args(["run", "--minutes", "1"]).args(arguments);
    world.env("RUST_BACKTRACE", "0").output().unwrap()
}

#[test]
fn a_seed_replays_to_the_byte() {
    let [first, second] = ["9", "9"].map(|seed| run(&["--seed", seed, "--verbose"]));
    assert!(first.status.success(), "{first:?}");
    assert!(first.stderr.len() > 10_000, "nothing happened");
    assert!(first.stderr == second.stderr, "the runs differ");
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn a_rule_that_is_left_out_is_found() {
    let whole = run(&["--seed", "8"]);
    assert!(whole.status.success(), "{whole:?}");
    let mutated = run(&["--seed", "8", "--mutation", "0"]);
    assert!(!mutated.status.success(), "nothing was noticed");
}
