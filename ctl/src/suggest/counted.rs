//! A first number from what limiters count: requests by limit in time slots, and in each slot the busiest
//! buckets. A limit in shadow mode has these counts, and often nobody has a log of its entries.
//!
//! A bucket that a limiter does not list had there at most as many requests as the last one on its list. So the counts
//! bound what a limit of at least that many units, for all lists together, would have denied; of smaller ones they say
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use insight::bucket::bucket_text;
use policy::{Name, format_timestamp};
use protocol::Outcome;
use serde::Serialize;
use store::{ActivitySummary, LimitActivity, Resolution};

use crate::{
    render::{Page, Table, duration, text},
    replay::{millionths, percent},
};

use super::{DAY_MS, is_burst, least, most_in, reach_percent, times};

/// What a listed bucket used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    listed: u64,
    /// With the most that it can have used where it is not listed.
    at_most: u64,
}

/// What was counted of a limit in one time slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    requests: u64,
    /// The listed buckets, by their names.
    buckets: BTreeMap<String, Used>,
    /// A bucket that is not listed had no more.
    unlisted_max: u64,
}

impl Slot {
    /// What a limit of so many units denies at most.
    fn over(&self, units: u64) -> u64 {
        let used = self.buckets.values();
        let over = used.map(|used| used.at_most.saturating_sub(units));
        total(over)
    }
}

/// A sum of counts, which are whatever the store has.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// What was counted of a limit, by the length of slots.
#[derive(Debug)]
pub(crate) struct Counted {
    /// In milliseconds.
    slot_ms: u64,
    /// The earliest first. The last one still fills.
    slots: Vec<Slot>,
    /// What became of the requests.
    outcomes: LimitActivity,
    now_ms: u64,
    /// Whether buckets that are listed in some slot had no more than is listed.
    is_exact: bool,
}

impl Counted {
    pub(crate) fn new(limit: &Name, resolution: Resolution, summary: ActivitySummary) -> Self {
        let outcomes = summary.activity.limits.get(limit);
        let slots = summary.slots.into_iter().map(|slot| {
            let own = slot.limits.get(limit);
            let buckets = { slot.buckets.iter() }.zip(slot.buckets_unlisted);
            let buckets = buckets.filter(|(bucket, _)| bucket.limit == *limit);
            let used = |listed: u64, more| Used {
                listed,
                at_most: listed.saturating_add(more),
            };
            Slot {
                requests: own.map_or(0, |own| total(own.counts.values().copied())),
                buckets: buckets
                    .map(|(bucket, more)| (bucket_text(bucket), used(bucket.requests, more)))
                    .collect(),
                unlisted_max: slot.unlisted_max,
            }
        });
        let slots: Vec<Slot> = slots.collect();
        let mut used = slots.iter().flat_map(|slot| slot.buckets.values());
        Self {
            slot_ms: resolution.millis(),
            is_exact: used.all(|used| used.listed == used.at_most),
            slots,
            outcomes: outcomes.cloned().unwrap_or_default(),
            now_ms: summary.now_ms,
        }
    }

    /// The same as one slot of a day. A bucket has at least what is listed of it, and at most that with the most that it
    /// can have had in slots that do not list it.
    fn day(&self) -> Self {
        let slots = || self.slots.iter();
        let names: BTreeSet<&String> = slots().flat_map(|slot| slot.buckets.keys()).collect();
        let in_slot = |name: &String, slot: &Slot| {
            let unlisted = Used {
                listed: 0,
                at_most: slot.unlisted_max,
            };
            slot.buckets.get(name).copied().unwrap_or(unlisted)
        };
        let buckets = names.into_iter().map(|name| {
            let of = slots().map(|slot| in_slot(name, slot));
            let used = of.fold(Used::default(), |sum, used| Used {
                listed: sum.listed.saturating_add(used.listed),
                at_most: sum.at_most.saturating_add(used.at_most),
            });
            (name.clone(), used)
        });
        let unlisted_max = total(slots().map(|slot| slot.unlisted_max));
        let day = Slot {
            requests: self.requests(),
            buckets: buckets.collect(),
            unlisted_max,
        };
        Self {
            slot_ms: DAY_MS,
            slots: vec![day],
            outcomes: self.outcomes.clone(),
            now_ms: self.now_ms,
            is_exact: unlisted_max == 0,
        }
    }

    fn requests(&self) -> u64 {
        total(self.slots.iter().map(|slot| slot.requests))
    }

    /// The first slots and the rest, each with about half of the requests. Without a second slot there is no rest.
    fn parts(&self) -> (&[Slot], &[Slot]) {
        let used = |slot: &Slot| slot.requests > 0;
        let (Some(from), Some(to)) = (
            self.slots.iter().position(used),
            self.slots.iter().rposition(used),
        ) else {
            return (&[], &[]);
        };
        let half = self.requests() / 2;
        let mut before = 0_u64;
        let reaches_half = |slot: &Slot| {
            before = slot.requests.saturating_add(before);
            before >= half
        };
        let at = { self.slots.iter() }.position(reaches_half).unwrap_or(to);
        let cut = (at + 1).min(to).max(from + 1);
        self.slots.split_at(cut.min(self.slots.len()))
    }

    /// The most that each bucket had in one slot, the largest first.
    fn largest(&self) -> Vec<(&str, u64)> {
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for (bucket, used) in self.slots.iter().flat_map(|slot| &slot.buckets) {
            let known = most.entry(bucket).or_default();
            *known = (*known).max(used.listed);
        }
        let mut most: Vec<(&str, u64)> = most.into_iter().collect();
        most.sort_by_key(|(_, requests)| std::cmp::Reverse(*requests));
        most
    }

    fn unlisted_max(&self) -> u64 {
        let of = self.slots.iter().map(|slot| slot.unlisted_max);
        of.max().unwrap_or(0)
    }

    fn spread(&self) -> Spread {
        let (largest, unlisted_max) = (self.largest(), self.unlisted_max());
        let nth = |n: usize| {
            let of = largest.get(n - 1).map(|(_, requests)| *requests);
            of.filter(|requests| *requests >= unlisted_max)
        };
        Spread {
            slot_ms: self.slot_ms,
            requests: self.requests(),
            largest: largest.first().map_or(0, |(_, requests)| *requests),
            bucket: largest.first().map(|(bucket, _)| (*bucket).to_owned()),
            tenth: nth(10),
            fiftieth: nth(50),
            unlisted_max,
        }
    }

    /// The smallest limit that keeps the share in the first part, judged by the rest.
    fn row(&self, deny_ppm: u64, reach: &Reach) -> Option<CountedRow> {
        let (first, rest) = self.parts();
        let requests = |part: &[Slot]| total(part.iter().map(|slot| slot.requests));
        let unlisted = |part: &[Slot]| part.iter().map(|slot| slot.unlisted_max).max();
        let over = |part: &[Slot], units| total(part.iter().map(|slot| slot.over(units)));
        let of_first = requests(first);
        if of_first == 0 {
            return None;
        }
        let allowed = u128::from(of_first) * u128::from(deny_ppm) / 1_000_000;
        let used = first.iter().flat_map(|slot| slot.buckets.values());
        let most = used.map(|used| used.at_most).max();
        // With that many units nothing is denied.
        let lowest = unlisted(first).unwrap_or(0).max(1);
        let units = least(lowest, most.unwrap_or(0).max(lowest), |units| {
            u128::from(over(first, units)) <= allowed
        });
        // A rest without requests, or whose unlisted buckets may have had more, does not show what is denied.
        let is_judged = requests(rest) > 0 && unlisted(rest).unwrap_or(0) <= units;
        let denied_rest_ppm = is_judged.then(|| millionths(over(rest, units), requests(rest)));
        let [five_minutes, day] = reach.of(units, self.slot_ms);
        Some(CountedRow {
            period_ms: self.slot_ms,
            units,
            is_smallest: units == 1 || units > lowest && self.is_exact,
            denied_first_ppm: millionths(over(first, units), of_first),
            denied_rest_ppm,
            holds: denied_rest_ppm.map(|denied| denied <= deny_ppm),
            reach_five_minutes_percent: five_minutes,
            reach_day_percent: day,
        })
    }
}

const FIVE_MINUTES_MS: u64 = 300_000;

/// What the largest bucket took in five minutes and a day.
struct Reach([u64; 2]);

impl Reach {
    /// What a bucket gets that takes all it can, in percent of that; `None`: it is not known what one took.
    fn of(&self, units: u64, period_ms: u64) -> [Option<u64>; 2] {
        let [five_minutes, day] = self.0;
        [(FIVE_MINUTES_MS, five_minutes), (DAY_MS, day)].map(|(ms, took)| {
            (took > 0).then(|| reach_percent(most_in(units, period_ms, ms), took))
        })
    }
}

// --- What is suggested.

/// What buckets used at most in one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Spread {
    /// The length of a slot, in milliseconds.
    slot_ms: u64,
    /// Requests of the limit in all slots.
    requests: u64,
    /// The most.
    largest: u64,
    /// The bucket that used it; `None`: none is listed.
    bucket: Option<String>,
    /// What the tenth largest used; `None`: it is not listed.
    tenth: Option<u64>,
    /// What the fiftieth used.
    fiftieth: Option<u64>,
    /// Buckets that no limiter lists used at most so much.
    unlisted_max: u64,
}

/// The smallest limit of a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CountedRow {
    /// The period, in milliseconds.
    pub(crate) period_ms: u64,
    /// Units in a period.
    pub(crate) units: u64,
    /// Whether one less would have denied more than the share. Otherwise the counts do not say: buckets that may have
    /// used less are not listed.
    is_smallest: bool,
    /// What it denies at most of the first part, in millionths.
    denied_first_ppm: u64,
    /// What it denies of the rest; `None`: the counts do not say.
    denied_rest_ppm: Option<u64>,
    /// Whether that is within the share; `None`: the counts do not say.
    holds: Option<bool>,
    /// What a bucket that takes all it can gets in five minutes, in percent of what the largest took; `None`: the
    /// last hour had no requests.
    reach_five_minutes_percent: Option<u64>,
    /// The same in a day.
    reach_day_percent: Option<u64>,
}

/// What counts suggest for a limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FromCounts {
    /// The share that may be denied, in millionths.
    deny_ppm: u64,
    /// The store's clock, in milliseconds since the epoch.
    now_ms: u64,
    /// The limit's requests in the last 24 hours.
    requests: u64,
    /// How many of them were over the limit as it is, whether it denies or not.
    over: u64,
    usage: Vec<Spread>,
    /// Whether requests come in bursts: then a token bucket fits, else GCRA.
    pub(crate) bursts: bool,
    rows: Vec<CountedRow>,
    /// The row that is proposed; `None`: none is known to keep the share.
    pub(crate) proposed: Option<CountedRow>,
    notes: Vec<String>,
}

/// What the counts of the last minute, hour and day suggest; `None`: there are no requests.
pub(crate) fn suggest_from_counts(counted: [Counted; 3], deny_ppm: u64) -> Option<FromCounts> {
    let [minute, hour, hours] = counted;
    let requests = hours.requests();
    if requests == 0 {
        return None;
    }
    let day = hours.day();
    let took = |counted: &Counted| counted.largest().first().map_or(0, |(_, most)| *most);
    let reach = Reach([took(&hour), took(&day)]);
    let rows = [&minute, &hour, &hours, &day]
        .into_iter()
        .filter_map(|counted| counted.row(deny_ppm, &reach));
    let rows: Vec<CountedRow> = rows.collect();
    let holding = rows.iter().filter(|row| row.holds == Some(true));
    let proposed = holding
        .min_by_key(|row| (row.reach_five_minutes_percent, row.reach_day_percent))
        .cloned();
    let bursts = is_burst(took(&minute), took(&hour), hour.slot_ms / minute.slot_ms);
    let mut found = FromCounts {
        deny_ppm,
        now_ms: hours.now_ms,
        requests,
        over: total(
            [Outcome::Denied, Outcome::WouldDeny, Outcome::Degraded]
                .map(|outcome| hours.outcomes.total(outcome))
                .into_iter(),
        ),
        usage: [&minute, &hour, &hours, &day].map(Counted::spread).into(),
        bursts,
        rows,
        proposed,
        notes: Vec::new(),
    };
    found.notes = notes(&found, &hours);
    Some(found)
}

fn notes(found: &FromCounts, hours: &Counted) -> Vec<String> {
    let mut notes = vec![
        "limiters count by 5 s, 5 min and hours, list the 50 busiest buckets of each, and keep a day: the number of \
         a bucket may be up to 4% too small, and what most buckets use is not known; a log says both"
            .to_owned(),
    ];
    if found.rows.iter().any(|row| !row.is_smallest) {
        notes.push(
            "a number with `<=` is the smallest that the lists can judge: buckets that used less are not on them"
                .to_owned(),
        );
    }
    if found.proposed.is_none() {
        notes.push(
            "no number is known to keep the share: there are counts of one time slot only, or its later slots were \
             busier than those before"
                .to_owned(),
        );
    }
    let used: Vec<u64> = { hours.slots.iter() }
        .map(|slot| slot.requests)
        .skip_while(|requests| *requests == 0)
        .collect();
    let hours_used = u64::try_from(used.len()).unwrap_or(u64::MAX);
    if hours_used < 24 {
        notes.push(format!(
            "the counts begin {} ago: what a busy day looks like is not in them",
            duration(hours_used.saturating_mul(hours.slot_ms))
        ));
    } else if let Some(most) = used.iter().max() {
        let mean = (found.requests / hours_used).max(1);
        if *most > mean.saturating_mul(2) {
            notes.push(format!(
                "traffic has the shape of a day: its busiest hour has {} times the mean",
                times(*most, mean)
            ));
        }
    }
    notes
}

impl FromCounts {
    /// As people read it, without the limit.
    pub(crate) fn text(&self, limit: &str, page: Page) -> String {
        let Self {
            requests,
            over,
            now_ms,
            ..
        } = self;
        let share = percent(millionths(*over, *requests));
        let until = format_timestamp(*now_ms / 1000 * 1000);
        format!(
            "{limit}: {requests} requests that limiters counted in the 24 h until {until}; {over} over the limit as it \
             is, {share}\n\nrequests of a bucket\n{}\nthe smallest limits that deny at most {} of the requests\n{}",
            self.usage_text(page),
            percent(self.deny_ppm),
            self.rows_text(page)
        )
    }

    fn usage_text(&self, page: Page) -> String {
        let usage = self.usage.iter().filter(|spread| spread.requests > 0);
        let usage: Vec<&Spread> = usage.collect();
        let others = |spread: &&Spread| match spread.unlisted_max {
            0 => "none".to_owned(),
            most => format!("<={most}"),
        };
        Table::of(&usage)
            .column("IN", |spread| duration(spread.slot_ms))
            .column("REQUESTS", |spread| spread.requests)
            .column("LARGEST", |spread| spread.largest)
            .column("BUCKET", |spread| {
                spread.bucket.as_deref().unwrap_or_default()
            })
            .column("10TH", |spread| text(spread.tenth))
            .column("50TH", |spread| text(spread.fiftieth))
            .column("OTHERS", others)
            .draw(page)
    }

    fn rows_text(&self, page: Page) -> String {
        let rate = |row: &CountedRow| {
            let sign = if row.is_smallest { "" } else { "<=" };
            format!("{sign}{}/{}", row.units, policy::Duration(row.period_ms))
        };
        let kept = |row: &CountedRow| match row.holds {
            Some(true) => "kept",
            Some(false) => "missed",
            None => "unknown",
        };
        let reach =
            |percent: Option<u64>| percent.map(|percent| format!("{}x", times(percent, 100)));
        let proposed = |row: &CountedRow| match &self.proposed {
            Some(proposed) if proposed == row => "proposed",
            _ => "",
        };
        Table::of(&self.rows)
            .column("RATE", rate)
            .column("DENIES", |row| percent(row.denied_first_ppm))
            .column("ON THE REST", |row| {
                row.denied_rest_ppm.map(percent).unwrap_or_default()
            })
            .column("TARGET", kept)
            .column("REACH IN 5 MIN", |row| {
                text(reach(row.reach_five_minutes_percent))
            })
            .column("IN A DAY", |row| text(reach(row.reach_day_percent)))
            .column("", proposed)
            .draw(page)
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(used: u64) -> Used {
        Used {
            listed: used,
            at_most: used,
        }
    }

    fn slot(requests: u64, unlisted_max: u64, buckets: &[(&str, u64)]) -> Slot {
        Slot {
            requests,
            buckets: { buckets.iter() }
                .map(|(bucket, used)| ((*bucket).to_owned(), exactly(*used)))
                .collect(),
            unlisted_max,
        }
    }

    fn counted(resolution: Resolution, slots: Vec<Slot>) -> Counted {
        Counted {
            slot_ms: resolution.millis(),
            slots,
            outcomes: LimitActivity::default(),
            now_ms: 1_795_650_437_000,
            is_exact: true,
        }
    }

    const PAGE: Page = Page {
        width: None,
        wide: false,
        unicode: true,
    };

    fn suggested(hours: Vec<Slot>, deny_ppm: u64) -> FromCounts {
        let none = |resolution| counted(resolution, Vec::new());
        let of = [
            none(Resolution::Fine),
            none(Resolution::Coarse),
            counted(Resolution::Hourly, hours),
        ];
        suggest_from_counts(of, deny_ppm).unwrap()
    }

    #[test]
    fn the_number_is_the_smallest_that_keeps_the_share_on_the_first_part() {
        let hours = vec![
            slot(0, 0, &[]),
            slot(1000, 5, &[("a", 40), ("b", 20), ("c", 6)]),
            slot(1000, 8, &[("a", 30), ("d", 25)]),
        ];
        // 20 of 1000 are 2%: a has 20 more than 20.
        let found = suggested(hours.clone(), 20_000);
        let [hour, day] = found.rows.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((hour.units, hour.is_smallest), (20, true));
        assert_eq!(hour.denied_first_ppm, 20_000);
        // 10 and 5 of the rest.
        assert_eq!(
            (hour.denied_rest_ppm, hour.holds),
            (Some(15_000), Some(true))
        );
        assert_eq!(found.proposed.as_ref(), Some(hour));
        // A day is one slot: of a's 70 requests 40 may be denied, and of d's at most 25 + 5 none.
        assert_eq!((day.units, day.is_smallest, day.holds), (30, false, None));
        assert_eq!(found.usage[3].largest, 70);
        assert_eq!(found.usage[2].bucket.as_deref(), Some("a"));
        // Nothing is denied by as many units as the largest has.
        let [hour, _] = &suggested(hours, 0).rows[..] else {
            panic!();
        };
        assert_eq!((hour.units, hour.denied_first_ppm), (40, 0));
    }

    #[test]
    fn what_the_lists_do_not_say_is_not_claimed() {
        let busy = [("a", 40), ("b", 38)];
        // Any number of buckets may have had 37.
        let found = suggested(vec![slot(5000, 37, &busy), slot(5000, 39, &busy)], 100_000);
        let hour = &found.rows[0];
        assert_eq!((hour.units, hour.is_smallest), (37, false));
        // On the rest a bucket that is not listed may have had 39, so two of each.
        assert_eq!((hour.denied_rest_ppm, hour.holds), (None, None));
        assert_eq!(found.proposed, None);
        let text = found.text("per-user", PAGE);
        assert!(text.contains("<=37/1h"), "{text}");
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("no number is known"))
        );
        // Of another limit's buckets the lists say nothing but that this one's have less.
        let hidden = suggested(vec![slot(50, 37, &[]), slot(50, 37, &[])], 0);
        assert_eq!(
            (hidden.rows[0].units, hidden.rows[0].is_smallest),
            (37, false)
        );
        assert_eq!(hidden.rows[0].holds, Some(true));
    }

    /// One limiter lists it with 40; at the other it had no more than the last on that one's list.
    #[test]
    fn a_bucket_may_have_had_more_at_a_limiter_that_does_not_list_it() {
        let of = |name: &str, requests| store::BucketActivity {
            limit: "a".parse().unwrap(),
            bucket: vec![("user".parse().unwrap(), Some(name.as_bytes().to_vec()))],
            requests,
            denied: 0,
            over: 0,
            last: None,
        };
        let slot = store::SlotActivity {
            buckets: vec![of("x", 40), of("y", 30)],
            buckets_unlisted: vec![25, 0],
            unlisted_max: 25,
            ..store::SlotActivity::default()
        };
        let summary = ActivitySummary {
            slots: vec![slot],
            ..ActivitySummary::default()
        };
        let limit = "a".parse().unwrap();
        let counted = Counted::new(&limit, Resolution::Hourly, summary);
        assert!(!counted.is_exact);
        let slot = &counted.slots[0];
        assert_eq!((slot.over(30), slot.over(65)), (35, 0));
        assert_eq!(counted.largest()[0].1, 40);
    }

    #[test]
    fn a_rest_that_is_busier_misses_the_share() {
        let hours = vec![slot(100, 0, &[("a", 5)]), slot(100, 0, &[("a", 50)])];
        let found = suggested(hours, 1000);
        assert_eq!((found.rows[0].units, found.rows[0].holds), (5, Some(false)));
        assert_eq!(found.proposed, None);
    }

    #[test]
    fn counts_beyond_all_numbers_are_added_up_to_the_largest() {
        let busy = slot(u64::MAX, u64::MAX, &[("a", u64::MAX)]);
        let found = suggested(vec![busy.clone(), busy], 1000);
        assert_eq!(
            (found.requests, found.usage[3].largest),
            (u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn requests_of_one_slot_are_judged_by_nothing() {
        let found = suggested(vec![slot(0, 0, &[]), slot(100, 0, &[("a", 5)])], 1000);
        assert_eq!((found.rows[0].units, found.rows[0].holds), (5, None));
        let none = [Resolution::Fine, Resolution::Coarse, Resolution::Hourly];
        let none = none.map(|resolution| counted(resolution, Vec::new()));
        assert!(suggest_from_counts(none, 1000).is_none());
    }
}
