//! Many seeds, each in a process of its own; what fails is made smaller.

use std::{
    fmt::Write as _,
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{mutations::MUTATIONS, plan::Plan, sim::UNCHANGED};

/// A seed that takes longer hangs.
const SEED_MAX: Duration = Duration::from_mins(10);

#[derive(clap::Args)]
pub struct Prove {
    /// Simulated hours, over all seeds
    #[arg(long, default_value_t = 1)]
    hours: u64,
    /// Simulated minutes of a seed
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Processes at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Leave out each rule of the list in turn, or those of these numbers, and find it within these hours
    #[arg(long, num_args = 0.., value_delimiter = ',')]
    mutations: Option<Vec<usize>>,
    /// Write a page with the results
    #[arg(long)]
    page: Option<std::path::PathBuf>,
}

/// What a run printed, or why it failed.
type Outcome = Result<String, String>;

/// Plays a seed in a process of its own.
fn play(seed: u64, minutes: u64, keep: Option<&[usize]>, mutation: Option<usize>) -> Outcome {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["run", "--seed", &seed.to_string()]);
    command.args(["--minutes", &minutes.to_string()]);
    if let Some(keep) = keep {
        command.args(["--keep", &listed(keep)]);
    }
    if let Some(mutation) = mutation {
        command.args(["--mutation", &mutation.to_string()]);
    }
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    let mut child = { command.stdout(Stdio::piped()).stderr(Stdio::piped()) }
        .spawn()
        .unwrap();
    let deadline = Instant::now() + SEED_MAX;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("seed {seed} did not end in {SEED_MAX:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    let lines = said.lines().filter(|line| !line.starts_with("note: "));
    Err(lines.take(6).collect::<Vec<_>>().join("\n"))
}

fn listed(events: &[usize]) -> String {
    match events {
        [] => "none".to_owned(),
        events => { events.iter().map(ToString::to_string) }
            .collect::<Vec<_>>()
            .join(","),
    }
}

/// The fewest events with which a seed still fails, by leaving out ever smaller parts of them.
fn shrink(seed: u64, minutes: u64, mut error: String) -> (Vec<usize>, String) {
    let mut keep: Vec<usize> = (0..Plan::of(seed, minutes).events.len()).collect();
    let mut part = keep.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < keep.len() {
            let mut fewer = keep.clone();
            fewer.drain(at..(at + part).min(keep.len()));
            match play(seed, minutes, Some(&fewer), None) {
                Err(still) => (keep, error) = (fewer, still),
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    (keep, error)
}

impl Prove {
    pub fn run(&self) -> ExitCode {
        let began = Instant::now();
        let (report, fine) = match &self.mutations {
            Some(numbers) => self.leave_out_each(numbers),
            None => self.play_all(),
        };
        let took = began.elapsed().as_secs();
        let report = format!("{report}\nIt took {} min {} s.\n", took / 60, took % 60);
        println!("{report}");
        if let Some(page) = &self.page {
            std::fs::write(page, report).unwrap();
        }
        if fine {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn seeds(&self) -> u64 {
        (self.hours * 60).div_ceil(self.minutes)
    }

    /// Does something with numbers from 0, several at once, until it returns `false`.
    fn at_once(&self, count: u64, act: impl Fn(u64) -> bool + Sync) {
        let (next, go_on) = (AtomicU64::new(0), AtomicBool::new(true));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count || !go_on.load(Ordering::Relaxed) {
                            return;
                        }
                        if !act(number) {
                            go_on.store(false, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    }

    fn play_all(&self) -> (String, bool) {
        let (failed, done) = (Mutex::new(None), Mutex::new(Vec::new()));
        let began = Instant::now();
        self.at_once(self.seeds(), |number| {
            let seed = self.from + number;
            match play(seed, self.minutes, None, None) {
                Ok(line) => done.lock().unwrap().push(line),
                Err(error) => {
                    eprintln!("seed {seed} fails; it is made smaller\n{error}");
                    *failed.lock().unwrap() = Some((seed, error));
                    return false;
                }
            }
            true
        });
        let took_ms = began.elapsed().as_millis().max(1);
        let mut report = self.table(&done.into_inner().unwrap(), took_ms);
        let Some((seed, error)) = failed.into_inner().unwrap() else {
            let last = self.from + self.seeds() - 1;
            let from = self.from;
            writeln!(report, "| seeds that failed | none of {from} to {last} |").unwrap();
            return (report, true);
        };
        let (keep, error) = shrink(seed, self.minutes, error);
        let (keep, minutes) = (listed(&keep), self.minutes);
        let error = error.replace('\n', "\n    ");
        write!(
            report,
            "\nSeed {seed} fails:\n\n    {error}\n\n\
             Again: `cargo xtask prove --seed {seed} --minutes {minutes} --keep {keep}`\n"
        )
        .unwrap();
        (report, false)
    }

    /// What the runs did, from the lines that they printed.
    fn table(&self, done: &[String], took_ms: u128) -> String {
        let minutes = u64::try_from(done.len()).unwrap() * self.minutes;
        let of = |name: &str| -> u64 {
            let value = |line: &String| {
                let (_, rest) = line.split_once(&format!("{name}="))?;
                rest.split(' ').next()?.parse::<u64>().ok()
            };
            done.iter().filter_map(value).sum()
        };
        let per_minute = u128::from(minutes) * 1000 / took_ms;
        let mut table = format!(
            "| simulated hours | {}.{} |\n|---|---|\n| simulated hours a minute | {}.{} |\n",
            minutes / 60,
            minutes % 60 / 6,
            per_minute,
            u128::from(minutes) * 10_000 / took_ms % 10,
        );
        for (name, what) in [
            ("requests", "requests"),
            ("passed", "of these passed"),
            ("undecided", "denied because no limiter answered"),
            ("events", "faults and edits"),
            ("audited", "buckets compared with what passed"),
            ("commands", "commands that Redis ran"),
        ] {
            writeln!(table, "| {what} | {} |", of(name)).unwrap();
        }
        table
    }

    /// Leaves out each rule, or those of these numbers, and plays seeds until one fails.
    fn leave_out_each(&self, numbers: &[usize]) -> (String, bool) {
        let mut report =
            "| rule left out | found after simulated minutes | by |\n|---|---|---|\n".to_owned();
        let mut fine = true;
        let rules = MUTATIONS.iter().enumerate();
        let all = numbers.is_empty();
        for (number, (rule, _)) in rules.filter(|(number, _)| all || numbers.contains(number)) {
            let found = Mutex::new(None);
            self.at_once(self.seeds(), |at| {
                let outcome = play(self.from + at, self.minutes, None, Some(number));
                let Err(error) = outcome else {
                    return true;
                };
                let mut found = found.lock().unwrap();
                if found.as_ref().is_none_or(|(before, _)| *before > at) {
                    *found = Some((at, error));
                }
                false
            });
            let row = if let Some((at, error)) = found.into_inner().unwrap() {
                fine &= !error.contains(UNCHANGED);
                let error = error.lines().nth(1).unwrap_or_default().replace('|', "/");
                format!("| {rule} | {} | {error} |", (at + 1) * self.minutes)
            } else {
                fine = false;
                format!("| {rule} | **not in {} hours** | |", self.hours)
            };
            eprintln!("{row}");
            writeln!(report, "{row}").unwrap();
        }
        (report, fine)
    }
}
