//! `rlctl simulate`.

use std::{fmt::Write as _, ops::Range};

use anstyle::{AnsiColor, Style};
use clap::Args;
use policy::{Compiled, DESCRIPTOR, Descriptor, Node, Problems, parse_duration};
use serde::Serialize;

use crate::{
    bucket::{Pair, descriptor, insert_as_proxies, note_unused, parse_whole_number, visible},
    cli::{Global, examples},
    commands::{check::again, replay::judge_as_written},
    error::{Error, Exit},
    input::{FilesArg, Source},
    printer::Printer,
    render::{self, Page, Table, counted, duration, text},
    simulate::{self, Answer, Backend, EngineKind, Engines, Phase, Report, Run, Scenario, Service},
};

/// The start of generated traffic: the midnight before 2023-11-14, so that windows start there too.
const START_MS: u64 = 1_699_920_000_000;

/// Simulate requests to limits, on a simulated clock.
///
/// A scenario is {"id", "limits": [...], "steps": [...]}, in JSON or YAML; a file holds one, a list
/// of them, or {"scenarios": [...]}. A step is {"t_ms", "cost", "descriptor", "peek", "expect"} or
/// {"set": {"name", changed fields}} or {"t_ms", "leave": N}: the client of the request at step N,
/// counted from 0, gives up, so that a queue frees its slot; or {"t_ms", "settle": N, "cost"}: that
/// request has ended, and its true cost replaces what it reserved. Where a step has `expect`, another
/// answer is a difference, and the exit code is 1.
///
/// With --traffic the steps are generated, and a chart shows what was admitted and denied over time.
/// The file may then be a limits file. Several scenarios get the same traffic, each with buckets of
/// its own, and have one chart each.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl simulate -f scenarios.json"
    "rlctl simulate -f scenarios.json --engine redis"
    "rlctl simulate -f limits.yaml --traffic burst:200@10s --for 1m -d user=alice -d path=/api/x"
    "rlctl simulate -f limits.yaml --traffic poisson:5/s --traffic burst:50@1h,10s.. --for 20s"
    "rlctl export | rlctl simulate -f - --traffic poisson:50/s --for 60s"
    "rlctl simulate -f limits.yaml --traffic poisson:300/s --for 3m --service 20x50ms --service 7x50ms,1m..2m"
))]
pub struct Simulate {
    #[command(flatten)]
    file: FilesArg,

    /// The engine that decides: local, the algorithms in this program; or redis, the scripts that
    /// limiters use, on a real server, with keys of their own that are removed in the end.
    #[arg(
        long,
        value_name = "ENGINE",
        default_value = "local",
        hide_possible_values = true
    )]
    engine: EngineKind,

    /// Run only this scenario of the file.
    #[arg(long, value_name = "ID")]
    scenario: Option<String>,

    /// Generated requests: burst:200@10s, constant:50/s or poisson:50/s, all the time or only from one
    /// time to another: constant:50/s,3s..5s. May be given several times.
    #[arg(long, value_name = "TRAFFIC", requires = "duration")]
    traffic: Vec<Phase>,

    /// How long the traffic lasts, as in 60s.
    #[arg(
        long = "for",
        id = "duration",
        value_name = "TIME",
        requires = "traffic"
    )]
    duration: Option<String>,

    /// What answers the requests that pass, so that limits on requests in flight have their slots back, and
    /// adaptive ones follow it: workers, and how long each needs for a request in the mean. May be given several
    /// times; where two hold, the later one does.
    #[arg(long, value_name = "WORKERSxTIME", requires = "traffic")]
    service: Vec<Service>,

    /// An entry of every request of the traffic.
    #[arg(
        short,
        long = "descriptor",
        value_name = "KEY=VALUE",
        requires = "traffic"
    )]
    descriptor: Vec<Pair>,

    /// The seed of the times of `poisson` and of the service.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_whole_number,
        allow_negative_numbers = true)]
    seed: u64,
}

impl Simulate {
    /// The one file.
    async fn source(&self) -> Result<Source, Error> {
        let mut sources = self.file.read().await?;
        match (sources.pop(), sources.pop()) {
            (Some(source), None) => Ok(source),
            _ => Err(Error::usage("simulate takes one file at a time")),
        }
    }

    /// Runs every scenario; the answer is no if one is not as expected.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let source = self.source().await?;
        let mut scenarios = scenarios(&source, !self.traffic.is_empty())?;
        if let Some(id) = &self.scenario {
            only(&mut scenarios, id)?;
        }
        let traffic_ms = if self.traffic.is_empty() {
            None
        } else {
            Some(self.replace_steps(&mut scenarios)?)
        };
        if traffic_ms.is_some() {
            for scenario in &mut scenarios {
                judge_as_written(&mut scenario.policy, &scenario.id, printer);
            }
            let policies = scenarios
                .iter()
                .map(|found| Compiled::new(found.policy.clone()));
            let policies: Vec<Compiled> = policies.collect();
            note_unused(&self.descriptor, &policies, printer);
        }
        let mut engines = Engines::open(self.engine, global, printer)?;
        let report = simulate::run(&scenarios, &mut engines).await?;
        let limits = || scenarios.iter().flat_map(|found| &found.policy.limits);
        if let Some(leased) = limits().find(|limit| limit.lease_ttl_ms.is_some()) {
            printer.note(format_args!(
                "`{}` is leased: here every request is checked, as if it were not",
                leased.name
            ));
        }
        if let Some(limit) = limits().find(|limit| limit.descriptor.is_some())
            && !self.traffic.is_empty()
            && { self.descriptor.iter() }.all(|pair| pair.key != DESCRIPTOR)
        {
            printer.note(format_args!(
                "`{}` applies to requests with `-d {DESCRIPTOR}=key=value,...`, the descriptor as Envoy sends it",
                limit.name
            ));
        }
        let as_expected = report.as_expected();
        printer.data(&View { report, traffic_ms })?;
        Ok(if as_expected { Exit::Done } else { Exit::No })
    }

    /// Generates the steps; returns the time range that they cover, in milliseconds.
    fn replace_steps(&self, scenarios: &mut [Scenario]) -> Result<Range<u64>, Error> {
        let mut sent = Descriptor::new();
        for (key, value) in descriptor(&self.descriptor)?.iter() {
            insert_as_proxies(&mut sent, key.clone(), value)
                .map_err(|why| Error::usage(format!("-d {key}: {why}")))?;
        }
        let for_ms = parse_duration(self.duration.as_deref().unwrap_or_default())
            .map_err(|error| Error::usage(format!("--for: {error}")))?;
        let steps = simulate::steps(&self.traffic, START_MS, for_ms, self.seed, &sent)
            .map_err(|error| Error::usage(format!("--traffic: {error}")))?;
        for scenario in scenarios {
            scenario.steps.clone_from(&steps);
            scenario.backend = Backend::new(self.service.clone(), START_MS, self.seed);
        }
        Ok(START_MS..START_MS.saturating_add(for_ms))
    }
}

/// Keeps only the scenario of that name.
fn only(scenarios: &mut Vec<Scenario>, id: &str) -> Result<(), Error> {
    let known: Vec<String> = scenarios.iter().map(|found| found.id.clone()).collect();
    scenarios.retain(|found| found.id == id);
    if scenarios.is_empty() {
        let error = Error::new(Exit::NotFound, format!("no scenario `{id}` in the file"));
        return Err(error.maybe_hint(Some(format!("it has {}", known.join(", ")))));
    }
    Ok(())
}

/// The scenarios of a file; if the steps are generated, its limits are enough.
fn scenarios(source: &Source, limits_are_enough: bool) -> Result<Vec<Scenario>, Error> {
    let read = |node: &Node| read(node, limits_are_enough);
    // Most scenario files are JSON, and a JSON parser is ten times as fast. Only messages about
    // problems need positions in the file.
    let json = serde_json::from_slice(source.bytes()).ok();
    if let Some(Ok(found)) = json.as_ref().map(read) {
        return Ok(found);
    }
    let text = || String::from_utf8_lossy(source.bytes()).into_owned();
    let located = limits_file::yaml::read(&source.name, source.bytes())
        .and_then(|node| read(&node).map_err(|found| found.in_file(source.name.clone(), text())));
    located.map_err(|problems| {
        let is_limits_file = source.policy(|_| None).is_ok();
        source
            .invalid(&problems)
            .maybe_hint(is_limits_file.then_some("a limits file needs --traffic: it has no steps"))
    })
}

fn read(node: &Node, limits_are_enough: bool) -> Result<Vec<Scenario>, Problems> {
    if !(limits_are_enough && node.get("domain").is_some()) {
        return simulate::read(node);
    }
    let mut policy = limits_file::policy_from_node(node)?;
    for limit in &mut policy.limits {
        limit.generation = 1;
    }
    Ok(vec![Scenario {
        id: policy.domain.to_string(),
        policy,
        steps: Vec::new(),
        backend: Backend::default(),
    }])
}

// --- What a simulation found, as tables and charts.

const SAME: Style = AnsiColor::Green.on_default();
const DIFFERENT: Style = AnsiColor::Red.on_default().bold();
/// The most time slots of a chart in text.
const SLOTS_MAX: u64 = 25;
/// Differences of one scenario that are listed.
const DIFFERENCES_SHOWN: usize = 10;

/// A report, and how it is shown.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct View {
    report: Report,
    /// The span of generated steps, in milliseconds: these are charted, not listed.
    #[serde(skip)]
    traffic_ms: Option<Range<u64>>,
}

impl render::View for View {
    fn text(&self, page: Page) -> String {
        if let Some(during) = &self.traffic_ms {
            return self
                .report
                .scenarios
                .iter()
                .map(|run| chart(run, during, page))
                .collect();
        }
        let tables = page.wide || self.report.scenarios.len() == 1;
        let mut text = String::new();
        for run in &self.report.scenarios {
            text.push_str(&heading(run));
            if tables {
                text.push_str(&table(run, page));
            }
            text.push_str(&differences(run));
        }
        let count = counted(self.report.scenarios.len(), "scenario");
        let _ = match render::View::names(self).len() {
            0 => writeln!(text, "{count}: as expected"),
            n => writeln!(text, "{count}: {n} not as expected"),
        };
        text
    }

    /// The scenarios with differences.
    fn names(&self) -> Vec<String> {
        let different = self
            .report
            .scenarios
            .iter()
            .filter(|run| !run.differences.is_empty());
        different.map(|run| run.id.clone()).collect()
    }
}

fn heading(run: &Run) -> String {
    let (style, word) = if run.differences.is_empty() {
        (SAME, "ok")
    } else {
        (DIFFERENT, "different")
    };
    let steps = counted(run.steps.len(), "step");
    format!(
        "{style}{word}{style:#}  {}  ({steps})\n",
        visible(run.id.as_bytes())
    )
}

fn differences(run: &Run) -> String {
    let mut text = String::new();
    for found in run.differences.iter().take(DIFFERENCES_SHOWN) {
        let (step, field) = (found.step, &found.field);
        let (expected, actual) = (found.expected.to_yaml_line(), found.actual.to_yaml_line());
        let _ = writeln!(
            text,
            "    step {step}: {field}: expected {expected}, got {actual}"
        );
    }
    let more = run.differences.len().saturating_sub(DIFFERENCES_SHOWN);
    if more > 0 {
        let _ = writeln!(text, "    and {}", counted(more, "more difference"));
    }
    text
}

fn table(run: &Run, page: Page) -> String {
    let first = run
        .requests
        .iter()
        .flatten()
        .map(|(at, _)| *at)
        .min()
        .unwrap_or(0);
    let steps = run.steps.iter().zip(&run.requests).enumerate();
    let steps = steps.map(|(n, (answer, request))| (n, answer.as_ref(), *request));
    let steps: Vec<_> = steps.collect();
    let time = |request: Option<(u64, u64)>| request.map(|(at, _)| duration(at - first));
    let cost = |answer: Option<&Answer>, request: Option<(u64, u64)>| answer.and(request);
    let done = |answer: Option<&Answer>, request| match (answer, request) {
        (Some(answer), _) => decision(answer),
        (None, Some(_)) => "client left".to_owned(),
        (None, None) => "limits edited".to_owned(),
    };
    let wait = |answer: &Answer| answer.delay_ms.filter(|ms| *ms > 0).map(duration);
    Table::of(&steps)
        .column("STEP", |(n, ..)| n)
        .column("TIME", |(.., request)| {
            text(time(*request).map(|since| format!("+{since}")))
        })
        .column("COST", |(_, answer, request)| {
            text(cost(*answer, *request).map(|(_, cost)| cost))
        })
        .column("DECISION", |(_, answer, request)| done(*answer, *request))
        .column("LEFT", |(_, answer, _)| {
            text(answer.and_then(|answer| answer.remaining))
        })
        .column("WAIT", |(_, answer, _)| text(answer.and_then(wait)))
        .column("RETRY IN", |(_, answer, _)| {
            text(answer.map(|answer| again(answer.allowed, answer.retry_after_ms)))
        })
        .column("FULL IN", |(_, answer, _)| {
            text(answer.map(|answer| duration(answer.reset_after_ms)))
        })
        .draw(page)
}

fn decision(answer: &Answer) -> String {
    if answer.given_back.is_some() {
        settled(answer)
    } else if answer.allowed {
        "allowed".to_owned()
    } else {
        format!("denied by {}", answer.denied_by.join(", "))
    }
}

/// What a settlement did.
fn settled(answer: &Answer) -> String {
    let units = |count: Option<u64>, what: &str| {
        let count = count.filter(|count| *count > 0)?;
        Some(format!("{count} {what}"))
    };
    let (back, excess) = (
        units(answer.given_back, "given back"),
        units(answer.excess, "beyond the reserve"),
    );
    let done: Vec<String> = [back, excess].into_iter().flatten().collect();
    if done.is_empty() {
        return "settled".to_owned();
    }
    format!("settled: {}", done.join(", "))
}

fn chart(run: &Run, during: &Range<u64>, page: Page) -> String {
    let timeline = Timeline::new(run, Some(during), SLOTS_MAX);
    let id = visible(run.id.as_bytes());
    format!("{id}: {}\n{}", timeline.summary(), timeline.text(page))
}

// --- What was admitted and denied, over time.

const ADMITTED: Style = AnsiColor::Green.on_default();
const HELD: Style = AnsiColor::Blue.on_default();
const DENIED: Style = AnsiColor::Red.on_default();
/// Cells of the longest bar, on a page that is wide enough.
const CELLS_MAX: u64 = 48;
/// Columns beside the bar: the time, the numbers.
const BESIDE: u64 = 44;
/// The interval in which the busiest one is searched.
const BUSY_MS: u64 = 1000;

/// Units of requests in one time slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Units of requests that passed at once.
    pub admitted: u64,
    /// Units of requests that a queue held until now.
    pub held: u64,
    /// Units of requests that were denied.
    pub denied: u64,
    /// The time within which the service answered 95 % of the requests that ended, in milliseconds.
    pub p95_ms: Option<u64>,
    /// The number of an adaptive limit at the end.
    pub limit: Option<u64>,
}

impl Slot {
    /// Units of all of them.
    pub fn units(&self) -> u64 {
        self.admitted
            .saturating_add(self.held)
            .saturating_add(self.denied)
    }
}

/// A request in a timeline.
struct Event {
    /// When the request is denied or passes, in milliseconds; a queue holds it until then.
    at_ms: u64,
    units: u64,
    allowed: bool,
    held: bool,
    took_ms: Option<u64>,
    limit: Option<u64>,
}

/// Time slots of equal length, from the first request or the start of the traffic on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The length of each, in milliseconds.
    pub slot_ms: u64,
    /// In order.
    pub slots: Vec<Slot>,
    /// The most units that passed in any second, wherever that second starts.
    pub busiest: u64,
}

impl Timeline {
    /// At most `slots_max` time slots of a round length, which cover at least `during`
    /// (milliseconds); none if there are no requests and nothing to cover.
    pub fn new(run: &Run, during: Option<&Range<u64>>, slots_max: u64) -> Self {
        let events = events(run);
        let times = || events.iter().map(|event| event.at_ms);
        let first = during.map_or_else(|| times().min().unwrap_or(0), |during| during.start);
        let end = times().max().map_or(first, |last| last.saturating_add(1));
        let end = during.map_or(end, |during| during.end.max(end));
        let length = end.saturating_sub(first);
        let slot_ms = round_up(length.div_ceil(slots_max));
        let count = usize::try_from(length.div_ceil(slot_ms)).unwrap_or(0);
        let mut slots = vec![Slot::default(); count];
        let index = |at_ms: u64| {
            let nth = at_ms.saturating_sub(first) / slot_ms;
            usize::try_from(nth).unwrap_or(usize::MAX)
        };
        let mut took: Vec<Vec<u64>> = vec![Vec::new(); count];
        for event in &events {
            if let Some(ms) = event.took_ms
                && let Some(took) = took.get_mut(index(event.at_ms.saturating_add(ms)))
            {
                took.push(ms);
            }
            if let Some(slot) = slots.get_mut(index(event.at_ms)) {
                let units = match (event.allowed, event.held) {
                    (false, _) => &mut slot.denied,
                    (true, true) => &mut slot.held,
                    (true, false) => &mut slot.admitted,
                };
                *units = units.saturating_add(event.units);
                slot.limit = event.limit.or(slot.limit);
            }
        }
        for (slot, took) in slots.iter_mut().zip(&mut took) {
            took.sort_unstable();
            slot.p95_ms = took.get(took.len() * 95 / 100).copied();
        }
        Self {
            slot_ms,
            slots,
            busiest: busiest(&events),
        }
    }

    /// The most units of any slot, whether admitted or denied.
    pub fn highest(&self) -> u64 {
        self.slots.iter().map(Slot::units).max().unwrap_or(0)
    }

    /// Whether a queue held any.
    pub fn holds(&self) -> bool {
        self.slots.iter().any(|slot| slot.held > 0)
    }

    /// The totals in one line.
    pub fn summary(&self) -> String {
        let sum =
            |units: fn(&Slot) -> u64| self.slots.iter().map(units).fold(0, u64::saturating_add);
        let (admitted, held) = (sum(|slot| slot.admitted), sum(|slot| slot.held));
        let denied = sum(|slot| slot.denied);
        let held = if self.holds() {
            format!("{held} held, ")
        } else {
            String::new()
        };
        let busiest = self.busiest;
        format!("{admitted} admitted, {held}{denied} denied; at most {busiest} in any second")
    }

    /// A bar for each slot.
    pub fn text(&self, page: Page) -> String {
        let (full, half, light) = if page.unicode {
            ("█", "▒", "░")
        } else {
            ("#", "=", ".")
        };
        let longest = page.width.map_or(CELLS_MAX, |width| {
            u64::from(width).saturating_sub(BESIDE).clamp(8, CELLS_MAX)
        });
        let highest = self.highest().max(1);
        let cells = |units: u64| {
            let cells = u128::from(units) * u128::from(longest) / u128::from(highest);
            // A count above 0 gets at least one cell.
            u64::try_from(cells)
                .unwrap_or(longest)
                .max(u64::from(units > 0))
        };
        let row = |count: u64, cell: &str| (0..count).map(|_| cell).collect::<String>();
        let mut text = String::new();
        for (n, slot) in (0_u64..).zip(&self.slots) {
            let at = duration(n.saturating_mul(self.slot_ms));
            let Slot {
                admitted,
                held,
                denied,
                ..
            } = *slot;
            let p95 =
                { slot.p95_ms }.map_or_else(String::new, |ms| format!(", p95 {}", duration(ms)));
            let limit = { slot.limit }.map_or_else(String::new, |of| format!(", limit {of}"));
            let (on, late, off) = (cells(admitted), cells(held), cells(denied));
            let queued = if self.holds() {
                format!(", {held} held")
            } else {
                String::new()
            };
            let _ = writeln!(
                text,
                "{at:>11}  {ADMITTED}{}{ADMITTED:#}{HELD}{}{HELD:#}{DENIED}{}{DENIED:#}{}  \
                 {admitted} admitted{queued}, {denied} denied{p95}{limit}",
                row(on, full),
                row(late, half),
                row(off, light),
                row(longest.saturating_sub(on + late + off), " "),
            );
        }
        text
    }
}

fn events(run: &Run) -> Vec<Event> {
    let requests = run.requests.iter().zip(&run.steps);
    let event = |(request, answer): (&Option<(u64, u64)>, &Option<Answer>)| {
        let ((came_ms, units), answer) = request.zip(answer.as_ref())?;
        if answer.given_back.is_some() {
            return None; // a settlement is no request
        }
        let delay_ms = answer.delay_ms.unwrap_or(0);
        Some(Event {
            at_ms: came_ms.saturating_add(delay_ms),
            units,
            allowed: answer.allowed,
            held: delay_ms > 0,
            took_ms: answer.took_ms,
            limit: answer.adaptive_limit,
        })
    };
    requests.filter_map(event).collect()
}

/// The most units that passed within less than [`BUSY_MS`].
fn busiest(events: &[Event]) -> u64 {
    let passed = events.iter().filter(|event| event.allowed);
    let mut passed: Vec<(u64, u64)> = passed.map(|event| (event.at_ms, event.units)).collect();
    passed.sort_unstable();
    let mut leaving = passed.iter().peekable();
    let (mut units, mut most) = (0_u64, 0);
    for (at_ms, more) in &passed {
        units = units.saturating_add(*more);
        while let Some((_, gone)) = leaving.next_if(|(left, _)| at_ms - left >= BUSY_MS) {
            units = units.saturating_sub(*gone);
        }
        most = most.max(units);
    }
    most
}

/// The next 1, 2 or 5 times a power of ten.
pub fn round_up(ms: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for step in [1, 2, 5] {
            let round = power.saturating_mul(step);
            if round >= ms {
                return round;
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(requests: &[(u64, u64, bool)]) -> Run {
        let answer = |allowed| Answer {
            allowed,
            remaining: None,
            retry_after_ms: None,
            reset_after_ms: 0,
            denied_by: Vec::new(),
            delay_ms: None,
            given_back: None,
            excess: None,
            took_ms: None,
            adaptive_limit: None,
        };
        Run {
            id: "test".to_owned(),
            steps: requests
                .iter()
                .map(|(.., allowed)| Some(answer(*allowed)))
                .chain([None])
                .collect(),
            requests: requests
                .iter()
                .map(|(at, cost, _)| Some((*at, *cost)))
                .chain([None])
                .collect(),
            differences: Vec::new(),
        }
    }

    #[test]
    fn slots_have_a_round_length_and_start_with_the_first_request() {
        for (ms, round) in [(0, 1), (1, 1), (3, 5), (6, 10), (11, 20), (2500, 5000)] {
            assert_eq!(round_up(ms), round, "{ms}");
        }
        let timeline = Timeline::new(
            &run(&[(1000, 2, true), (1003, 1, false), (1019, 5, true)]),
            None,
            10,
        );
        assert_eq!(timeline.slot_ms, 2);
        let slot = |admitted, denied| Slot {
            admitted,
            held: 0,
            denied,
            ..Slot::default()
        };
        assert_eq!(timeline.slots.len(), 10);
        assert_eq!(timeline.slots[0], slot(2, 0));
        assert_eq!(timeline.slots[1], slot(0, 1));
        assert_eq!(timeline.slots[9], slot(5, 0));
        assert_eq!(timeline.highest(), 5);
    }

    #[test]
    fn no_requests_make_no_slots() {
        assert_eq!(Timeline::new(&run(&[]), None, 10).slots, []);
    }

    #[test]
    fn traffic_is_shown_from_its_start_to_its_end() {
        let timeline = Timeline::new(&run(&[(1500, 1, true)]), Some(&(1000..2000)), 10);
        assert_eq!((timeline.slot_ms, timeline.slots.len()), (100, 10));
        assert_eq!(timeline.slots[5].admitted, 1);
    }

    #[test]
    fn what_a_queue_holds_is_shown_when_it_goes_on() {
        let mut run = run(&[(0, 1, true), (0, 1, true)]);
        run.steps[1].as_mut().unwrap().delay_ms = Some(3000);
        let timeline = Timeline::new(&run, Some(&(0..2000)), 10);
        // It lasts longer than the traffic.
        assert_eq!((timeline.slot_ms, timeline.slots.len()), (500, 7));
        assert_eq!((timeline.slots[0].admitted, timeline.slots[6].held), (1, 1));
        assert_eq!(
            timeline.summary(),
            "1 admitted, 1 held, 0 denied; at most 1 in any second"
        );
    }

    #[test]
    fn the_busiest_second_starts_anywhere_and_counts_what_passed() {
        let requests = [
            (950, 3, true),
            (1050, 2, true),
            (1900, 9, false),
            (1949, 1, true),
        ];
        assert_eq!(Timeline::new(&run(&requests), None, 10).busiest, 6);
        // A whole second later is another second.
        assert_eq!(
            Timeline::new(&run(&[(0, 1, true), (1000, 1, true)]), None, 10).busiest,
            1
        );
    }
}
