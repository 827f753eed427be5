//! What was admitted and denied, over time.

use std::{fmt::Write as _, ops::Range};

use anstyle::{AnsiColor, Style};

use crate::{
    render::{Page, duration},
    simulate::{Answer, Run},
};

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
    pub fn of(run: &Run, during: Option<&Range<u64>>, slots_max: u64) -> Self {
        let events = events(run);
        let times = || events.iter().map(|event| event.at_ms);
        let first = during.map_or_else(|| times().min().unwrap_or(0), |during| during.start);
        let end = times().max().map_or(first, |last| last.saturating_add(1));
        let end = during.map_or(end, |during| during.end.max(end));
        let length = end.saturating_sub(first);
        let slot_ms = round_up(length.div_ceil(slots_max));
        let count = usize::try_from(length.div_ceil(slot_ms)).unwrap_or(0);
        let mut slots = vec![Slot::default(); count];
        for event in &events {
            let index = usize::try_from((event.at_ms - first) / slot_ms).unwrap_or(usize::MAX);
            if let Some(slot) = slots.get_mut(index) {
                let units = match (event.allowed, event.held) {
                    (false, _) => &mut slot.denied,
                    (true, true) => &mut slot.held,
                    (true, false) => &mut slot.admitted,
                };
                *units = units.saturating_add(event.units);
            }
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
            } = *slot;
            let (on, late, off) = (cells(admitted), cells(held), cells(denied));
            let queued = if self.holds() {
                format!(", {held} held")
            } else {
                String::new()
            };
            let _ = writeln!(
                text,
                "{at:>11}  {ADMITTED}{}{ADMITTED:#}{HELD}{}{HELD:#}{DENIED}{}{DENIED:#}{}  \
                 {admitted} admitted{queued}, {denied} denied",
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
    fn stretches_have_a_round_length_and_start_with_the_first_request() {
        for (ms, round) in [(0, 1), (1, 1), (3, 5), (6, 10), (11, 20), (2500, 5000)] {
            assert_eq!(round_up(ms), round, "{ms}");
        }
        let timeline = Timeline::of(
            &run(&[(1000, 2, true), (1003, 1, false), (1019, 5, true)]),
            None,
            10,
        );
        assert_eq!(timeline.slot_ms, 2);
        let slot = |admitted, denied| Slot {
            admitted,
            held: 0,
            denied,
        };
        assert_eq!(timeline.slots.len(), 10);
        assert_eq!(timeline.slots[0], slot(2, 0));
        assert_eq!(timeline.slots[1], slot(0, 1));
        assert_eq!(timeline.slots[9], slot(5, 0));
        assert_eq!(timeline.highest(), 5);
    }

    #[test]
    fn no_requests_make_no_stretches() {
        assert_eq!(Timeline::of(&run(&[]), None, 10).slots, []);
    }

    #[test]
    fn traffic_is_shown_from_its_start_to_its_end() {
        let timeline = Timeline::of(&run(&[(1500, 1, true)]), Some(&(1000..2000)), 10);
        assert_eq!((timeline.slot_ms, timeline.slots.len()), (100, 10));
        assert_eq!(timeline.slots[5].admitted, 1);
    }

    #[test]
    fn what_a_queue_holds_is_shown_when_it_goes_on() {
        let mut run = run(&[(0, 1, true), (0, 1, true)]);
        run.steps[1].as_mut().unwrap().delay_ms = Some(3000);
        let timeline = Timeline::of(&run, Some(&(0..2000)), 10);
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
        assert_eq!(Timeline::of(&run(&requests), None, 10).busiest, 6);
        // A whole second later is another second.
        assert_eq!(
            Timeline::of(&run(&[(0, 1, true), (1000, 1, true)]), None, 10).busiest,
            1
        );
    }
}
