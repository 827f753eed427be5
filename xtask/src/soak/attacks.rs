//! The attacks on the limiter, and the thread that runs them.

mod management;
mod strikes;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use tokio::task::{JoinSet, LocalSet};

use strikes::Count;

/// The priority of the attackers' thread: the lowest.
const NICE: i32 = 19;

/// The limiter's ports.
#[derive(Clone, Copy)]
pub struct To {
    /// Checks.
    pub data: u16,
    /// Health and metrics.
    pub admin: u16,
    /// Where the second limiter expects its management server.
    pub management: u16,
    /// The folder of the first limiter's `--rls-config`.
    pub files: &'static Path,
}

type Strikes = Pin<Box<dyn Future<Output = ()>>>;

/// One attack: its name, the number of its attackers, and what each repeats without end.
struct Attack {
    name: &'static str,
    attackers: u64,
    strikes: fn(To, u64, Count) -> Strikes,
}

const ATTACKS: [Attack; 17] = [
    Attack {
        name: "requests without a token, answers unread",
        attackers: 4,
        strikes: |to, _, count| Box::pin(strikes::unread_responses(to.data, "/v1/health", count)),
    },
    Attack {
        name: "metrics unread on the admin port",
        attackers: 2,
        strikes: |to, _, count| Box::pin(strikes::unread_responses(to.admin, "/metrics", count)),
    },
    Attack {
        name: "streams without a window",
        attackers: 50,
        strikes: |to, _, count| Box::pin(strikes::without_window(to.data, count)),
    },
    Attack {
        name: "bodies of 43,000 names",
        attackers: 2,
        strikes: |to, _, count| Box::pin(strikes::many_names(to.data, count)),
    },
    Attack {
        name: "bodies announced and not sent",
        attackers: 256,
        strikes: |to, _, count| Box::pin(strikes::unsent_bodies(to.data, count)),
    },
    Attack {
        name: "checks that wait with 60 KB each",
        attackers: 100,
        strikes: |to, _, count| Box::pin(strikes::large_waits(to.data, count)),
    },
    Attack {
        name: "check streams, answers unread",
        attackers: 8,
        strikes: |to, nth, count| Box::pin(strikes::check_streams(to.data, nth, count)),
    },
    Attack {
        name: "silent connections",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::silent_connections(to.data, 1500, count)),
    },
    Attack {
        name: "silent connections to the admin port",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::silent_connections(to.admin, 150, count)),
    },
    Attack {
        name: "reports of invented proxies",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::invented_proxies(to.data, count)),
    },
    Attack {
        name: "batches of 64 buckets of sub-windows",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::sub_windows(to.data, count)),
    },
    Attack {
        name: "checks from a web page",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::web_page(to.data, count)),
    },
    Attack {
        name: "calls of many descriptors",
        attackers: 3,
        strikes: |to, nth, count| Box::pin(strikes::many_descriptors(to.data, nth, count)),
    },
    Attack {
        name: "a management server that sends much",
        attackers: 1,
        strikes: |to, _, count| Box::pin(management::serve(to.management, count)),
    },
    Attack {
        name: "files that are large, wrong or none",
        attackers: 1,
        strikes: |to, _, count| Box::pin(strikes::rls_files(to.files, count)),
    },
    Attack {
        name: "forged settlements, costs and slots",
        attackers: 3,
        strikes: |to, nth, count| Box::pin(strikes::forged(to.data, nth, count)),
    },
    Attack {
        name: "streams reset at once, PING and SETTINGS",
        attackers: 2,
        strikes: |to, nth, count| Box::pin(strikes::frames(to.data, nth, count)),
    },
];

/// Attackers, running on a thread of their own until the program ends.
pub struct Attackers(Vec<(&'static str, Count)>);

impl Attackers {
    /// Starts the attacks whose names contain `only`.
    pub fn start(to: To, only: &str) -> Result<Self> {
        let attacks = ATTACKS.iter().filter(|attack| attack.name.contains(only));
        let chosen: Vec<_> = attacks.map(|attack| (attack, Count::default())).collect();
        let counts = { chosen.iter() }.map(|(attack, count)| (attack.name, Arc::clone(count)));
        let attackers = Self(counts.collect());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || {
            // On Linux this sets the priority of the calling thread. If it fails, honest clients wait longer.
            let _ = rustix::process::setpriority_process(None, NICE);
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async {
                let mut all = JoinSet::new();
                for (attack, count) in chosen {
                    for nth in 0..attack.attackers {
                        all.spawn_local((attack.strikes)(to, nth, Arc::clone(&count)));
                    }
                }
                all.join_all().await;
            });
        });
        Ok(attackers)
    }

    /// A line for each attack: how often it struck.
    pub fn counts(&self) -> impl Iterator<Item = String> {
        let lines = self.0.iter();
        lines.map(|(name, count)| format!("{name}: {}", count.load(Ordering::Relaxed)))
    }
}
