//! One world of proxies, limiters and Redis, in one thread, by one seed, on one clock.
//!
//! `world run` plays one seed in this process; `world prove` plays many, each in a process of its own, because the
//! standard library and tokio count what they drew at random a process at a time.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a simulation may fail loudly"
)]

mod book;
mod calls;
mod cluster;
mod host;
mod mutations;
mod plan;
mod prove;
mod proxy;
mod redis;
mod service;
mod sim;
mod world;

use std::process::ExitCode;

use clap::Parser;
use tokio::{runtime::Builder, task::LocalSet};

use plan::Plan;
use sim::Sim;
use world::World;

/// Half of what a run does is small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
enum Cli {
    /// Play one seed
    Run(Run),
    /// Play many seeds, each in a process of its own
    Prove(prove::Prove),
}

#[derive(clap::Args)]
struct Run {
    #[arg(long)]
    seed: u64,
    /// Simulated minutes
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Only these events of the seed, by their numbers; `none`: none of them
    #[arg(long)]
    keep: Option<String>,
    /// Leave a rule out, by its number in the list of mutations
    #[arg(long)]
    mutation: Option<usize>,
    /// Print the events and what proxies log
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match Cli::parse() {
        Cli::Run(run) => {
            play(&run);
            ExitCode::SUCCESS
        }
        Cli::Prove(prove) => prove.run(),
    }
}

fn play(run: &Run) {
    let mut plan = Plan::of(run.seed, run.minutes);
    if let Some(keep) = &run.keep {
        let keep: Vec<usize> = keep.split(',').filter_map(|at| at.parse().ok()).collect();
        let events = std::mem::take(&mut plan.events).into_iter().enumerate();
        let kept = events.filter(|(at, _)| keep.contains(at));
        plan.events = kept.map(|(_, event)| event).collect();
    }
    // A panic of any task is a failure of the run.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
    fastrand::seed(run.seed);
    host::set_clocks(i64::try_from(sim::EPOCH_MS).unwrap(), 0);
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let mutation = run.mutation.map(|number| mutations::MUTATIONS[number].1);
    LocalSet::new().block_on(&runtime, async {
        let sim = Sim::new(run.seed, mutation);
        let world = World::start(sim, plan, run.verbose).await;
        std::rc::Rc::clone(&world).run().await;
        println!("seed={} {}", run.seed, world.summary());
        // Its parts refer to each other; the process ends anyway.
        std::process::exit(0);
    });
}
