//! `cargo xtask faults`: what fails against what is promised, with real programs. In each row two Envoys with two
//! limiters and a store of their own get a steady load; then something fails, and returns. The columns are what docs
//! promise of any such time, each figure beside its bound. The table goes to `target/faults.md`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use harness::{Envoy, Process, Programs, Upstream, until};
use hyper::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use crate::bench::{Goal, Unit};
use crate::command::Workspace;
use crate::fleet::{
    Fleet, Loads, Sent, Store, decisions, interruptible, limits_are_known, millis, programs,
    quantile, shows,
};
use crate::tools::{Tool, Tools};
use crate::ui::Ui;

/// How long all is well, something fails, and all is well again.
const BEFORE: Duration = Duration::from_secs(3);
const FAULT: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(6);

/// Units of a second, and the capacity, of the limits that are counted.
const UNITS_CHECKED: u64 = 20;
const UNITS_LEASED: u64 = 200;

const LIMITS: &str = "\
domain: shop
limits:
  - {name: checked, match: {path: /checked}, rate: 20/s, burst: 20}
  - {name: leased, match: {path: /leased}, rate: 200/s, burst: 200, lease: {ttl: 250ms}}
  - {name: denied, match: {path: /denied}, rate: 100000/s, on_failure: deny}
  - {name: edited, match: {path: /edited}, rate: 99999/s}
";
const CHECKED: &str = "/checked";
const LEASED: &str = "/leased";
/// Of a limit that refuses while nobody decides.
const DENIED: &str = "/denied";
/// No limit matches: a neighbour.
const UNLIMITED: &str = "/unlimited";
const EDITED: &str = "/edited";

/// What is asked of each Envoy, and how often in a second.
const LOADS: [(&str, u64); 4] = [
    (CHECKED, 2 * UNITS_CHECKED),
    (LEASED, UNITS_LEASED),
    (DENIED, 20),
    (UNLIMITED, 50),
];

/// Arguments of `cargo xtask faults`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the rows whose names contain one of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',', default_value = "")]
    only: Vec<String>,
    /// Programs as the tests have them, which are built sooner
    #[arg(long)]
    debug: bool,
}

/// What fails.
#[derive(Clone, Copy)]
enum Fault {
    Nothing,
    Killed(Part),
    Hangs(Part),
    /// Redis gets this value of a setting, and then this one again.
    Set(&'static str, [&'static str; 2]),
    Busy,
    ScriptsFlushed,
    /// The primary is replaced by Sentinel.
    Replaced(Primary),
}

#[derive(Clone, Copy)]
enum Part {
    /// All from this one on.
    Limiters(usize),
    Store,
    /// The second.
    Envoy,
}

#[derive(Clone, Copy)]
enum Primary {
    Killed,
    Deposed,
    /// Killed a second after its replica was cut off.
    Diverged,
}

/// A row: its name, what fails, and by how many capacities more than the limit all that passes may exceed it.
struct Row(&'static str, Fault, u64);

/// While some limiter answers, a proxy that got no decision, as for calls that timed out while it hung, starts with all
/// that was last reported as left: one capacity more. What the store loses can be used again: another one.
#[rustfmt::skip]
const ROWS: [Row; 16] = [
    Row("nothing", Fault::Nothing, 0),
    Row("one limiter of two is killed", Fault::Killed(Part::Limiters(1)), 1),
    Row("one limiter of two hangs", Fault::Hangs(Part::Limiters(1)), 1),
    Row("both limiters are killed", Fault::Killed(Part::Limiters(0)), 1),
    Row("both limiters hang", Fault::Hangs(Part::Limiters(0)), 1),
    Row("Redis is killed, and returns empty", Fault::Killed(Part::Store), 2),
    Row("Redis hangs", Fault::Hangs(Part::Store), 1),
    Row("Redis is full (`noeviction`)", Fault::Set("maxmemory", ["1", "0"]), 1),
    Row("Redis misses its replicas (`NOREPLICAS`)", Fault::Set("min-replicas-to-write", ["1", "0"]), 1),
    Row("Redis runs a stranger's script of 5 s (`BUSY`)", Fault::Busy, 1),
    Row("Redis loses its scripts 20 times a second", Fault::ScriptsFlushed, 1),
    Row("Sentinel: the primary is killed", Fault::Replaced(Primary::Killed), 2),
    Row("Sentinel: the primary is deposed, and lives", Fault::Replaced(Primary::Deposed), 2),
    Row("Sentinel: killed 1 s after its replica was cut off", Fault::Replaced(Primary::Diverged), 2),
    Row("one Envoy of two is killed", Fault::Killed(Part::Envoy), 0),
    Row("one Envoy of two hangs", Fault::Hangs(Part::Envoy), 1),
];

impl Fault {
    fn part(self) -> Option<Part> {
        match self {
            Self::Killed(part) | Self::Hangs(part) => Some(part),
            Self::Set(..) | Self::Busy => Some(Part::Store),
            Self::Nothing | Self::ScriptsFlushed | Self::Replaced(_) => None,
        }
    }

    fn stops_envoy(self) -> bool {
        matches!(self.part(), Some(Part::Envoy))
    }
}

/// Runs the rows and writes their table; an error if a bound was exceeded.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let redis = Tools::new(workspace, ui).get(Tool::Redis)?;
    let programs = programs(workspace, ui, redis, args.debug)?;
    let wanted = |row: &&Row| args.only.iter().any(|words| row.0.contains(words.as_str()));
    let mut table = heading(workspace)?;
    let mut exceeded = Vec::new();
    interruptible(async {
        for Row(name, fault, more) in ROWS.iter().filter(wanted) {
            ui.heading(name);
            let cells = match play(&programs, *fault, *more).await {
                Ok(cells) => cells,
                Err(error) => {
                    ui.line(&format!("{error:#}"));
                    exceeded.push(format!("{name}: {error:#}"));
                    writeln!(table, "| {name} | ✗ {error} |")?;
                    continue;
                }
            };
            for (promise, cell) in PROMISES.iter().zip(&cells) {
                ui.line(&format!("{promise}: {cell}"));
                if cell.ends_with('✗') {
                    exceeded.push(format!("{name}: {promise}: {cell}"));
                }
            }
            writeln!(table, "| {name} | {} |", cells.join(" | "))?;
        }
        Ok(())
    })?;
    let path = workspace.target.join("faults.md");
    std::fs::write(&path, table)?;
    ui.line(&format!("the table: {}", workspace.short(&path).display()));
    let exceeded = exceeded.join("\n");
    ensure!(exceeded.is_empty(), "beyond their bounds:\n{exceeded}");
    Ok(())
}

fn heading(workspace: &Workspace) -> Result<String> {
    let commit = workspace.git("describe --always --dirty")?;
    let cpus = std::thread::available_parallelism()?;
    let rule = "|---".repeat(PROMISES.len() + 1);
    Ok(format!(
        "# Faults and promises\n\n`cargo xtask faults` at {commit}, {cpus} CPUs. A cell has a figure and its bound; ✗ exceeds it.\n\n\
         | what fails | {} |\n{rule}|\n",
        PROMISES.join(" | "),
    ))
}

/// Plays a row, and judges it.
async fn play(programs: &Programs, fault: Fault, more: u64) -> Result<Vec<String>> {
    let mut stage = Stage::start(programs, fault).await?;
    let mut loads = Loads::default();
    for envoy in stage.envoys.iter().enumerate() {
        for (path, per_second) in LOADS {
            let pause = Duration::from_micros(1_000_000 / per_second);
            loads.add(envoy, path, move || pause);
        }
    }
    let started = Instant::now();
    sleep(BEFORE).await;
    stage.begin(fault).await?;
    let begun = Instant::now();
    sleep(FAULT / 2).await;
    let edited = match fault.part() {
        // Nothing can be written meanwhile.
        Some(Part::Store) => None,
        None if matches!(fault, Fault::Replaced(_)) => None,
        _ => Some(stage.edit(fault).await?),
    };
    sleep_until((begun + FAULT).into()).await;
    stage.end(fault).await?;
    let ended = Instant::now();
    let in_force = async {
        let edited = match edited {
            Some(edited) => edited,
            None => stage.edit_when_possible(fault).await?,
        };
        stage.in_force(edited.max(ended)).await
    };
    let (recovered, in_force) = tokio::try_join!(stage.recovered(ended), in_force)?;
    sleep_until((ended + AFTER).into()).await;
    let times = Times {
        lasted: started.elapsed(),
        begun,
        recovered,
        in_force,
    };
    Ok(judge(fault, more, &times, &loads.end().await))
}

// --- The stage.

struct Stage {
    fleet: Fleet,
    envoys: Vec<Envoy>,
    /// What disturbs Redis until it is dropped.
    nuisance: JoinSet<()>,
    _service: Upstream,
}

impl Stage {
    async fn start(programs: &Programs, fault: Fault) -> Result<Self> {
        let sentinel = matches!(fault, Fault::Replaced(_));
        let fleet = Fleet::with(programs, sentinel, LIMITS, 2, &[]).await?;
        let service = Upstream::start(0).await?;
        let mut envoys = Vec::new();
        for _ in 0..2 {
            let envoy = fleet.envoy(fleet.config()?, service.port(), 1).await?;
            limits_are_known(&envoy, EDITED).await?;
            envoys.push(envoy);
        }
        Ok(Self {
            fleet,
            envoys,
            nuisance: JoinSet::new(),
            _service: service,
        })
    }

    async fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Nothing => {}
            Fault::Killed(Part::Limiters(from)) => self.fleet.kill_limiters(from).await?,
            Fault::Killed(Part::Store) => self.fleet.kill_redis().await?,
            Fault::Killed(Part::Envoy) => drop(self.envoys.pop()),
            Fault::Hangs(part) => self.each(part, Process::pause)?,
            Fault::Set(setting, [value, _]) => self.set(setting, value).await?,
            Fault::Busy => {
                self.set("busy-reply-threshold", "10").await?;
                let script = format!(
                    "local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                     local ends = ms() + {} while ms() < ends do end",
                    FAULT.as_millis()
                );
                self.pester(format!("EVAL \"{script}\" 0\r\n"), FAULT)?;
            }
            Fault::ScriptsFlushed => {
                let pause = Duration::from_millis(50);
                self.pester("SCRIPT FLUSH\r\n".to_owned(), pause)?;
            }
            Fault::Replaced(how) => self.replace(how).await?,
        }
        Ok(())
    }

    async fn end(&mut self, fault: Fault) -> Result<()> {
        self.nuisance.shutdown().await;
        match fault {
            Fault::Hangs(part) => self.each(part, Process::resume)?,
            Fault::Set(setting, [_, value]) => self.set(setting, value).await?,
            _ => {}
        }
        self.fleet.restart().await
    }

    fn each(&self, part: Part, act: fn(&Process) -> Result<()>) -> Result<()> {
        match part {
            Part::Limiters(from) => {
                let mut limiters = self.fleet.limiters.iter().skip(from);
                limiters.try_for_each(|limiter| act(limiter.process()))
            }
            Part::Store => act(self.fleet.redis()?.process()),
            Part::Envoy => {
                let mut envoys = self.envoys.iter().skip(1);
                envoys.try_for_each(|envoy| act(envoy.process()))
            }
        }
    }

    async fn set(&self, setting: &str, value: &str) -> Result<()> {
        let set = ["CONFIG", "SET", setting, value];
        self.fleet.redis()?.command(&set).await.map(drop)
    }

    /// Sends Redis a line again and again, so long after each answer.
    fn pester(&mut self, line: String, pause: Duration) -> Result<()> {
        let port = self.fleet.redis()?.port();
        self.nuisance.spawn(async move {
            loop {
                if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ = stream.write_all(line.as_bytes()).await;
                    let _ = stream.read_u8().await;
                }
                sleep(pause).await;
            }
        });
        Ok(())
    }

    async fn replace(&mut self, how: Primary) -> Result<()> {
        let Store::Sentinel(sentinel) = &mut self.fleet.store else {
            bail!("there is no sentinel");
        };
        if matches!(how, Primary::Diverged) {
            // What is lost is written in that second. Sentinel promotes no replica that was cut off for long.
            sentinel.pair().cut().await?;
            sleep(Duration::from_secs(1)).await;
        } else {
            sentinel.pair().in_sync().await?;
        }
        match how {
            Primary::Deposed => sentinel.fail_over().await,
            Primary::Killed | Primary::Diverged => sentinel.pair().kill_primary(),
        }
    }

    /// The time until each Envoy has a decision of a limiter.
    async fn recovered(&self, ended: Instant) -> Result<Duration> {
        for envoy in &self.envoys {
            // An Envoy adds to them once a second.
            let before = decisions(envoy, "limiter").await?;
            until("limiters decide", 2 * AFTER, async || {
                let now = decisions(envoy, "limiter").await.ok()?;
                (now > before).then_some(())
            })
            .await?;
        }
        Ok(ended.elapsed())
    }

    /// Edits a limit; returns when that was done. A store that lost the limits gets them again.
    async fn edit(&self, fault: Fault) -> Result<Instant> {
        if matches!(fault, Fault::Killed(Part::Store)) {
            let edited = LIMITS.replace("rate: 99999/s", "rate: 77777/s");
            self.fleet.apply(&edited).await?;
        } else {
            let set = ["set-limit", "edited", "--rate", "77777/s", "--yes"];
            self.fleet.rlctl(&set).await?;
        }
        Ok(Instant::now())
    }

    async fn edit_when_possible(&self, fault: Fault) -> Result<Instant> {
        let started = Instant::now();
        loop {
            match self.edit(fault).await {
                Err(_) if started.elapsed() < 2 * AFTER => sleep(Duration::from_millis(100)).await,
                edited => return edited,
            }
        }
    }

    /// The time from then until each Envoy shows the edit.
    async fn in_force(&self, since: Instant) -> Result<Duration> {
        for envoy in &self.envoys {
            shows(&envoy.get(EDITED), "ratelimit-policy", "77777", 4 * FAULT).await?;
        }
        Ok(since.elapsed())
    }
}

// --- What is judged.

/// The columns.
const PROMISES: [&str; 8] = [
    "requests without an answer",
    "checked: passed, of what it may",
    "leased: passed, of what it may",
    "checked: passed in the fault, at least",
    "`deny`: passed while nobody decides, by its share (10 s)",
    "p99 of an unlimited request, ms",
    "ms from its end until limiters decide, as counted each second",
    "ms until an edit is in force at all proxies",
];

/// When a row did what.
struct Times {
    lasted: Duration,
    begun: Instant,
    recovered: Duration,
    in_force: Duration,
}

fn judge(fault: Fault, more: u64, times: &Times, sent: &[Sent]) -> Vec<String> {
    // What was sent to a dead Envoy is nobody's to answer.
    let alive = || { sent.iter() }.filter(|sent| !fault.stops_envoy() || sent.envoy == 0);
    let passed = |path: &'static str| {
        let of = sent.iter().filter(move |sent| sent.path == path);
        of.filter(|sent| sent.status == Some(StatusCode::OK))
    };
    let passed_in_fault = |path, from_s| {
        let time = times.begun + Duration::from_secs(from_s)..times.begun + FAULT;
        count(passed(path).filter(move |sent| time.contains(&sent.at)))
    };
    let may = |per_second: u64| {
        let refilled = per_second * millis(times.lasted) / 1000;
        Goal::AtMost(per_second * (1 + more) + refilled + 1)
    };
    let lost = alive().filter(|sent| sent.status.is_none());
    // A proxy whose neighbour is gone has its own share.
    let share = if fault.stops_envoy() { 2 } else { 1 };
    let least = UNITS_CHECKED * FAULT.as_secs().saturating_sub(1) / share * 8 / 10;
    // Whether nobody decides for as long as it lasts, but for a first second until that is noticed.
    let alone = matches!(fault.part(), Some(Part::Store | Part::Limiters(0)));
    let unattended = alone.then(|| passed_in_fault(DENIED, 1));
    let unlimited = alive().filter(|sent| sent.path == UNLIMITED);
    let p99 = quantile(unlimited.map(|sent| sent.took).collect(), 990);
    let cells = [
        (Some(count(lost)), Goal::AtMost(0)),
        (Some(count(passed(CHECKED))), may(UNITS_CHECKED)),
        (Some(count(passed(LEASED))), may(UNITS_LEASED)),
        (Some(passed_in_fault(CHECKED, 0)), Goal::AtLeast(least)),
        (unattended, Goal::None),
        (Some(millis(p99)), Goal::AtMost(20)),
        (Some(millis(times.recovered)), Goal::AtMost(3000)),
        (Some(millis(times.in_force)), Goal::AtMost(2000)),
    ];
    let shown = |(figure, goal): (Option<u64>, Goal)| match figure {
        None => "–".to_owned(),
        Some(figure) if goal.verdict(figure) == "missed" => {
            format!("{figure} {} ✗", goal.text(Unit::Count))
        }
        Some(figure) => format!("{figure} {}", goal.text(Unit::Count))
            .trim_end()
            .to_owned(),
    };
    cells.map(shown).into()
}

fn count<'s>(sent: impl Iterator<Item = &'s Sent>) -> u64 {
    u64::try_from(sent.count()).unwrap_or(u64::MAX)
}
