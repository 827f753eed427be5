//! Fixed windows that begin with a request, and those of the calendar: one window with its count, and what of that is
//! leased to proxies.

use algorithms::check::{Options, Part, Stored};
use algorithms::{
    Algorithm, Align, CalendarUnit, Debits, Edges, Kind, Lease, LeaseRequest, Parameters, Rate,
    Settlement,
};

use super::{
    Random, START_MS, STEPS_PER_WALK, ask, assert_decides, count, lease_request, part, settlements,
    walks,
};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    unit: usize,
    /// The number of its date, or its start: what grants of it are known by.
    label: u64,
    start_ms: u64,
    ends_ms: u64,
    used: u64,
    leased: u64,
    /// The proxies that lease, one bit each.
    proxies: u64,
}

/// A limit, as it finds the window of a time: the stored one, or one that begins.
trait Find {
    /// Also returns whether the window was moved to a clock that stepped back far.
    fn find(&self, stored: Option<&Window>, now_ms: u64) -> (Window, bool);
}

struct FirstRequest {
    period_ms: u64,
}

impl Find for FirstRequest {
    fn find(&self, stored: Option<&Window>, now_ms: u64) -> (Window, bool) {
        let at = |start_ms| Window {
            label: start_ms,
            start_ms,
            ends_ms: start_ms + self.period_ms,
            ..stored.copied().unwrap_or_default()
        };
        match stored.map(|stored| stored.start_ms) {
            Some(start_ms) if start_ms > now_ms + self.period_ms => (at(now_ms), true),
            Some(start_ms) if now_ms < start_ms + self.period_ms => (at(start_ms), false),
            _ => (
                Window {
                    used: 0,
                    leased: 0,
                    proxies: 0,
                    ..at(now_ms)
                },
                false,
            ),
        }
    }
}

const UNITS: [CalendarUnit; 4] = CalendarUnit::ALL;

/// Local dates of a zone: so far ahead of UTC, with another hour in every other part of a year.
#[derive(Clone, Copy, PartialEq)]
struct Calendar {
    unit: usize,
    ahead_h: i64,
    summer: bool,
}

impl Calendar {
    fn start_ms(&self, label: u64) -> u64 {
        // Months and years that differ in length by a day.
        let day = [
            label,
            7 * label + 4,
            30 * label + label % 2,
            365 * label + label % 4,
        ][self.unit];
        let hour = i64::from(self.summer && day % 200 < 100);
        (day * DAY_MS).strict_sub_signed((self.ahead_h + hour) * HOUR_MS.cast_signed())
    }

    fn label(&self, now_ms: u64) -> u64 {
        let days = [1, 7, 30, 365][self.unit];
        let near = now_ms / DAY_MS / days;
        let mut labels = (near - 2..near + 3).rev();
        labels
            .find(|label| self.start_ms(*label) <= now_ms)
            .unwrap()
    }

    fn at(&self, label: u64) -> Window {
        let (start_ms, ends_ms) = (self.start_ms(label), self.start_ms(label + 1));
        Window {
            unit: self.unit,
            label,
            start_ms,
            ends_ms,
            ..Window::default()
        }
    }
}

impl Find for Calendar {
    fn find(&self, stored: Option<&Window>, now_ms: u64) -> (Window, bool) {
        let new = self.at(self.label(now_ms));
        let Some(stored) = stored else {
            return (new, false);
        };
        let counting = |window: Window| Window {
            used: stored.used,
            leased: stored.leased,
            proxies: stored.proxies,
            ..window
        };
        if stored.unit != self.unit {
            // An edit of the unit keeps the count of what began within the window.
            let within = (new.start_ms..new.ends_ms).contains(&stored.start_ms);
            return (if within { counting(new) } else { new }, false);
        }
        match stored.label.checked_sub(new.label) {
            None => (new, false),
            // For another zone or clock it is already the next date: up to two days.
            Some(ahead @ 0..=2) => (counting(self.at(new.label + ahead)), false),
            Some(_) => (counting(new), true),
        }
    }
}

/// A check.
struct Asked<'a> {
    limit: u64,
    cost: u64,
    debit: u64,
    options: Options,
    lease: LeaseRequest<'a>,
}

impl<'s> Asked<'s> {
    fn any(random: &mut Random, limit: u64, settle: &'s [Settlement]) -> Self {
        let ttl_ms = random.pick(&[0, 10, 100]);
        let debits = random.pick(&[Debits::Admitted, Debits::Reported, Debits::Refunded]);
        Self {
            limit,
            cost: random.pick(&[0, 1, 1, 1, 2, 5, 30]),
            debit: (1 + random.below(limit + 3)) * u64::from(random.one_in(15)),
            options: Options {
                peek: random.one_in(8),
                debits,
                ..Options::default()
            },
            lease: lease_request(random, ttl_ms, settle),
        }
    }

    fn part(&self, algorithm: &Algorithm) -> Part<'_> {
        Part {
            debit: self.debit,
            lease: Some(self.lease),
            ..part(algorithm, self.cost)
        }
    }

    /// Decides by the window that was found; returns whether the check is allowed and whether anything changed.
    fn decide(&self, window: &mut Window, now_ms: u64) -> (bool, bool, Option<Lease>) {
        let before = window.leased;
        // A settlement names the window that its units are of. A return is at most what is outstanding.
        for of in self
            .lease
            .settle
            .iter()
            .filter(|of| of.epoch == window.label)
        {
            window.leased -= of.spent.min(window.leased);
            let returned = of.returned.min(window.leased);
            (window.leased, window.used) = (window.leased - returned, window.used - returned);
        }
        let settled = *window;
        match self.options.debits {
            Debits::Admitted => {
                window.used = window.used.max(self.limit.min(window.used + self.debit));
            }
            Debits::Reported => window.used += self.debit,
            // Not what proxies may still use.
            Debits::Refunded => {
                window.used = window.used.saturating_sub(self.debit).max(window.leased);
            }
        }
        let gives_back = self.options.debits == Debits::Refunded && self.debit > 0;
        let mut changed = settled.leased < before || window.used != settled.used;
        // It is stored also where nothing could be given back.
        changed |= gives_back && settled.used > 0;
        let allowed = window.used + self.cost <= self.limit;
        if !allowed || self.options.peek {
            return (allowed, changed, None);
        }
        let lease = self.take(window, now_ms);
        (allowed, changed || self.cost > 0 || lease.is_some(), lease)
    }

    fn take(&self, window: &mut Window, now_ms: u64) -> Option<Lease> {
        window.used += self.cost;
        // A grant ends a millisecond before its window. It is an eighth of what is left, divided by the proxies that lease.
        let ttl_ms = self.lease.ttl_ms.min(window.ends_ms - now_ms - 1);
        if ttl_ms == 0 || self.lease.want == 0 {
            return None;
        }
        window.proxies |= 1 << self.lease.proxy;
        let left = self.limit - window.used;
        let units = self
            .lease
            .want
            .min(left / (8 * u64::from(window.proxies.count_ones())));
        window.used += units;
        window.leased += units;
        let epoch = window.label;
        (units > 0).then_some(Lease {
            units,
            epoch,
            ttl_ms,
        })
    }
}

/// What a walk keeps: the algorithm's bucket, the model's, and the grants.
#[derive(Default)]
struct Both {
    stored: Option<Stored>,
    model: Option<Window>,
    leases: Vec<Lease>,
}

impl Both {
    fn step(
        &mut self,
        asked: &Asked<'_>,
        algorithm: &Algorithm,
        find: &impl Find,
        now_ms: u64,
    ) -> [bool; 4] {
        let (verdict, write) = ask(
            (&asked.part(algorithm), self.stored.as_ref(), None),
            now_ms,
            asked.options,
        );
        let (found, moved) = find.find(self.model.as_ref(), now_ms);
        let mut window = found;
        let goes_on = self.model.is_some_and(|model| model.label == window.label);
        let (allowed, changed, lease) = asked.decide(&mut window, now_ms);
        assert_eq!((verdict.lease, verdict.leased), (lease, window.leased));
        let fits = |ms| {
            let later = find.find(Some(&window), ms).0;
            later.used + asked.cost <= asked.limit
        };
        let unused = |ms| find.find(Some(&window), ms).0.used == 0;
        let left = asked.limit.saturating_sub(window.used);
        let expected = (allowed, left, asked.cost > asked.limit);
        assert_decides(verdict.decision, now_ms, expected, fits, unused);
        assert_eq!(write.is_some(), changed || moved);
        if changed {
            // Without units outstanding, it is forgotten who asked for some.
            window.proxies *= u64::from(window.leased > 0);
            self.model = Some(window);
        } else if moved {
            self.model = Some(found);
        }
        self.stored = write.or(self.stored.take());
        self.leases.extend(lease);
        let ahead = window.start_ms > now_ms;
        [!allowed && goes_on, moved, lease.is_some(), ahead]
    }
}

fn first_request(mut random: Random) -> [u64; 4] {
    let (mut seen, mut now_ms, mut both) = ([0; 4], START_MS, Both::default());
    let (mut limit, mut period_ms) = (random.below(60), random.pick(&[50, 1000]));
    for _ in 0..STEPS_PER_WALK {
        if random.one_in(60) {
            (limit, period_ms) = (random.below(60), random.pick(&[50, 400, 1000]));
        }
        now_ms = random.tick(now_ms, period_ms);
        let align = Some(Align::FirstRequest);
        let parameters = Parameters {
            align,
            ..Parameters::new(Kind::FixedWindow, limit, period_ms)
        };
        let algorithm = Algorithm::new(&parameters).unwrap();
        let settle = settlements(&mut random, &both.leases);
        let asked = Asked::any(&mut random, limit, &settle);
        let cases = both.step(&asked, &algorithm, &FirstRequest { period_ms }, now_ms);
        count(&mut seen, cases);
    }
    seen
}

fn calendar(mut random: Random) -> [u64; 4] {
    let (mut seen, mut now_ms, mut both) = ([0; 4], START_MS, Both::default());
    let (mut limit, mut unit) = (random.below(60), random.below(4));
    for _ in 0..STEPS_PER_WALK {
        if random.one_in(60) {
            (limit, unit) = (random.below(60), random.below(4));
        }
        let zone = Calendar {
            unit: usize::try_from(unit).unwrap(),
            ahead_h: random.pick(&[0, 0, 0, -11, 1, 14]),
            summer: random.one_in(2),
        };
        let length_ms = UNITS[zone.unit].nominal_ms();
        let years_ms = 20 * 365 * DAY_MS;
        now_ms = random
            .tick(now_ms, length_ms)
            .clamp(START_MS - years_ms, START_MS + years_ms);
        if random.one_in(10) {
            now_ms = zone.start_ms(zone.label(now_ms) + 1) - random.below(2);
        }
        // A store decides in any of the first three windows that a caller knows.
        let first = zone.label(now_ms) - random.pick(&[0, 1, 1, 2]);
        let starts_ms = [0, 1, 2, 3, 4, 5].map(|nth| zone.start_ms(first + nth));
        let parameters = Parameters {
            rate: Rate::in_each(limit, UNITS[zone.unit]),
            ..Parameters::new(Kind::FixedWindow, limit, 1)
        };
        let edges = Edges::new(u32::try_from(first).unwrap(), starts_ms);
        let algorithm = Algorithm::new(&parameters).unwrap().with_edges(edges);
        let settle = settlements(&mut random, &both.leases);
        let asked = Asked::any(&mut random, limit, &settle);
        count(&mut seen, both.step(&asked, &algorithm, &zone, now_ms));
    }
    seen
}

#[test]
fn windows_that_begin_with_a_request_count_as_a_model_of_one_window_does() {
    walks(first_request);
}

#[test]
fn calendar_windows_count_as_a_model_of_local_dates_does() {
    walks(calendar);
}
