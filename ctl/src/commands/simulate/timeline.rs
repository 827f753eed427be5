//! What was admitted and denied, over time.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::{
    render::{Page, duration},
    simulate::Run,
};

const ADMITTED: Style = AnsiColor::Green.on_default();
const DENIED: Style = AnsiColor::Red.on_default();
/// Cells of the longest bar, on a page that is wide enough.
const CELLS_MAX: u64 = 48;
/// Columns beside the bar: the time, the numbers.
const BESIDE: u64 = 44;

/// Units of requests in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Units of those that passed.
    pub admitted: u64,
    /// Units of those that did not.
    pub denied: u64,
}

/// Stretches of equal length, from the first request on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The length of each, in milliseconds.
    pub slot_ms: u64,
    /// In order.
    pub slots: Vec<Slot>,
}

impl Timeline {
    /// At most `slots_max` stretches of a round length; none if there are no requests.
    pub fn of(run: &Run, slots_max: u64) -> Self {
        let requests = run.requests.iter().zip(&run.steps);
        let requests: Vec<(u64, u64, bool)> = requests
            .filter_map(|(request, answer)| Some((*request, answer.as_ref()?)))
            .filter_map(|(request, answer)| request.map(|(at, cost)| (at, cost, answer.allowed)))
            .collect();
        let first = requests.iter().map(|(at, ..)| *at).min().unwrap_or(0);
        let last = requests.iter().map(|(at, ..)| *at).max().unwrap_or(0);
        let slot_ms = round_up((last - first + 1).div_ceil(slots_max));
        let mut slots = Vec::new();
        for (at, cost, allowed) in requests {
            let index = usize::try_from((at - first) / slot_ms).unwrap_or(usize::MAX);
            if slots.len() <= index {
                slots.resize(index + 1, Slot::default());
            }
            if let Some(slot) = slots.get_mut(index) {
                let units = if allowed {
                    &mut slot.admitted
                } else {
                    &mut slot.denied
                };
                *units = units.saturating_add(cost);
            }
        }
        Self { slot_ms, slots }
    }

    /// The most units of any stretch, admitted and denied together.
    pub fn highest(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.admitted.saturating_add(slot.denied))
            .max()
            .unwrap_or(0)
    }

    /// A bar for each stretch.
    pub fn text(&self, page: Page) -> String {
        let (full, light) = if page.unicode {
            ("█", "░")
        } else {
            ("#", ".")
        };
        let longest = page.width.map_or(CELLS_MAX, |width| {
            u64::from(width).saturating_sub(BESIDE).clamp(8, CELLS_MAX)
        });
        let highest = self.highest().max(1);
        let cells = |units: u64| {
            let cells = u128::from(units) * u128::from(longest) / u128::from(highest);
            // Something is never nothing.
            u64::try_from(cells)
                .unwrap_or(longest)
                .max(u64::from(units > 0))
        };
        let row = |count: u64, cell: &str| (0..count).map(|_| cell).collect::<String>();
        let mut text = String::new();
        for (n, slot) in (0_u64..).zip(&self.slots) {
            let at = duration(n.saturating_mul(self.slot_ms));
            let (admitted, denied) = (slot.admitted, slot.denied);
            let (on, off) = (cells(admitted), cells(denied));
            let _ = writeln!(
                text,
                "{at:>11}  {ADMITTED}{}{ADMITTED:#}{DENIED}{}{DENIED:#}{}  {admitted} admitted, {denied} denied",
                row(on, full),
                row(off, light),
                row(longest.saturating_sub(on + off), " "),
            );
        }
        text
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_up(ms: u64) -> u64 {
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
    use crate::simulate::Answer;

    fn run(requests: &[(u64, u64, bool)]) -> Run {
        let answer = |allowed| Answer {
            allowed,
            remaining: None,
            retry_after_ms: None,
            reset_after_ms: 0,
            denied_by: Vec::new(),
            delay_ms: None,
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
            10,
        );
        assert_eq!(timeline.slot_ms, 2);
        let slot = |admitted, denied| Slot { admitted, denied };
        assert_eq!(timeline.slots.len(), 10);
        assert_eq!(timeline.slots[0], slot(2, 0));
        assert_eq!(timeline.slots[1], slot(0, 1));
        assert_eq!(timeline.slots[9], slot(5, 0));
        assert_eq!(timeline.highest(), 5);
    }

    #[test]
    fn no_requests_make_no_stretches() {
        assert_eq!(Timeline::of(&run(&[]), 10).slots, []);
    }
}
