//! A first number for a limit: what buckets used in a log, and the smallest limits that would have denied at
//! most a share of it.
//!
//! [`Usage`] keeps when each bucket had its requests; [`suggest`] tries limits on that. A limit is found on the
//! first part of the log and judged by the rest. Decisions are those of the algorithms themselves.

pub(crate) mod counted;

use std::collections::HashMap;

use algorithms::{
    Algorithm, CalendarUnit, Kind, Parameters, Rate, State,
    check::{Options, Part, Stored, StoredPart, check},
};
use serde::Serialize;

use crate::{
    render::{counted, duration},
    replay::millionths,
};

/// Bound: bytes that hold when buckets had their requests, some three for each request. Beyond it, half of the
/// buckets are left out, chosen by their hash.
const BYTES_MAX: usize = 384 << 20;

/// What a bucket takes beside its requests and its name.
const BUCKET_BYTES: usize = 96;

/// When each bucket had its requests.
#[derive(Debug, Default)]
pub struct Usage {
    buckets: HashMap<u64, Times>,
    bytes: usize,
    /// How often half of the buckets were left out.
    halvings: u32,
    /// All requests, also of buckets that were left out.
    pub requests: u64,
    first_ms: Option<u64>,
    last_ms: u64,
}

/// The times of one bucket's requests.
#[derive(Debug, Default)]
struct Times {
    name: Box<str>,
    /// Each as the time since the one before, seven bits a byte, the lowest first.
    deltas: Vec<u8>,
    first_ms: u64,
    last_ms: u64,
    requests: u64,
    /// Requests that something else refused.
    refused: u64,
}

/// Whether a status says that something other than a limit to come refused the request.
fn is_refused(status: Option<u16>) -> bool {
    matches!(status, Some(401 | 403 | 429))
}

impl Usage {
    /// Adds a request of a bucket. Times do not step back.
    pub fn add(
        &mut self,
        hash: u64,
        name: impl FnOnce() -> String,
        at_ms: u64,
        status: Option<u16>,
    ) {
        self.requests += 1;
        self.first_ms.get_or_insert(at_ms);
        self.last_ms = at_ms;
        if !self.is_kept(hash) {
            return;
        }
        let times = self.buckets.entry(hash).or_insert_with(|| {
            let name = name().into_boxed_str();
            self.bytes += BUCKET_BYTES + name.len();
            Times {
                name,
                first_ms: at_ms,
                last_ms: at_ms,
                ..Times::default()
            }
        });
        if times.requests > 0 {
            let before = times.deltas.capacity();
            write(&mut times.deltas, at_ms.saturating_sub(times.last_ms));
            self.bytes += times.deltas.capacity() - before;
        }
        times.last_ms = at_ms;
        times.requests += 1;
        times.refused += u64::from(is_refused(status));
        while self.bytes > BYTES_MAX && self.buckets.len() > 1 {
            self.halve();
        }
    }

    fn is_kept(&self, hash: u64) -> bool {
        // The bits that a hash map uses least.
        hash.checked_shr(16).unwrap_or(0).trailing_zeros() >= self.halvings
    }

    fn halve(&mut self) {
        self.halvings += 1;
        let mut buckets = std::mem::take(&mut self.buckets);
        buckets.retain(|hash, _| self.is_kept(*hash));
        let bytes = buckets
            .values()
            .map(|times| BUCKET_BYTES + times.name.len() + times.deltas.capacity());
        self.bytes = bytes.sum();
        self.buckets = buckets;
    }
}

fn write(to: &mut Vec<u8>, mut number: u64) {
    while let Some(low) = u8::try_from(number & 0x7f).ok().filter(|_| number > 0x7f) {
        to.push(low | 0x80);
        number >>= 7;
    }
    to.extend(u8::try_from(number));
}

impl Times {
    /// The times of all requests, in order.
    fn all(&self) -> impl Iterator<Item = u64> {
        let mut deltas = self.deltas.iter();
        let mut at_ms = self.first_ms;
        let next = move || {
            let (mut number, mut shift) = (0_u64, 0_u32);
            for byte in deltas.by_ref() {
                number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
                shift += 7;
                if byte & 0x80 == 0 {
                    at_ms = at_ms.saturating_add(number);
                    return Some(at_ms);
                }
            }
            None
        };
        std::iter::once(self.first_ms).chain(std::iter::from_fn(next))
    }
}

// --- Limits that are tried.

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The share that may be denied, in millionths.
    pub deny: u64,
    /// Of what.
    pub of: Of,
}

/// What a share is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// Of the requests.
    Requests,
    /// Of the buckets that have some: those with a denial count.
    Buckets,
}

/// The periods that are tried, in milliseconds.
const PERIODS_MS: [u64; 4] = [1000, 60_000, 3_600_000, DAY_MS];
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
/// A day in milliseconds; as a period, it is one of the calendar.
pub const DAY_MS: u64 = 86_400_000;

/// Buckets below which a part of a log says little.
const FEW_BUCKETS: u64 = 100;

/// A bucket with its times, and the most requests that it had within each period.
struct Bucket<'u> {
    times: &'u Times,
    peaks: [u64; PERIODS_MS.len()],
}

/// A limit of some units in a period.
#[derive(Clone, Copy, Debug)]
struct Try {
    units: u64,
    /// Its position in [`PERIODS_MS`].
    period: usize,
    period_ms: u64,
    algorithm: Algorithm,
}

impl Try {
    /// `None`: the algorithm does not take these numbers.
    fn new(units: u64, period: usize) -> Option<Self> {
        let period_ms = *PERIODS_MS.get(period)?;
        let parameters = match period_ms {
            DAY_MS => Parameters {
                rate: Rate::in_each(units, CalendarUnit::Day),
                ..Parameters::new(Kind::FixedWindow, units, DAY_MS)
            },
            _ => Parameters::new(Kind::TokenBucket, units, period_ms),
        };
        let algorithm = Algorithm::new(&parameters).ok()?;
        Some(Self {
            units,
            period,
            period_ms,
            algorithm,
        })
    }

    /// The numbers at a time: those before, unless another day has begun.
    fn at(&mut self, at_ms: u64) {
        if !self.algorithm.covers(at_ms) {
            self.algorithm = calendar::at(&self.algorithm, at_ms);
        }
    }
}

/// The most that a bucket of a limit of so many units in a period gets within a time of that length, wherever it
/// begins.
fn most_in(units: u64, period_ms: u64, ms: u64) -> u128 {
    let (units, ms) = (u128::from(units), u128::from(ms));
    match period_ms {
        // Before midnight and after it.
        DAY_MS => units * (1 + ms.div_ceil(u128::from(DAY_MS))),
        _ => units + units * ms / u128::from(period_ms),
    }
}

/// That in percent of what a bucket took.
fn reach_percent(most: u128, took: u64) -> u64 {
    let percent = most * 100 / u128::from(took.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// How many times one number is the other, with one decimal.
pub fn times(number: u64, other: u64) -> String {
    let tenths = u128::from(number) * 10 / u128::from(other.max(1));
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Buckets, and where the log is cut in two.
struct Trial<'u> {
    buckets: Vec<Bucket<'u>>,
    /// The first part ends before it.
    cut_ms: u64,
    /// Requests and buckets of each part.
    size: [PartSize; 2],
    target: Target,
}

impl Trial<'_> {
    /// What one or two limits together deny, in each part. Stops where the first part has more than `enough`
    /// of what is asked for.
    fn denied(&self, limits: &[Try], enough: Option<u64>) -> [PartSize; 2] {
        let mut sum = [PartSize::default(); 2];
        for bucket in &self.buckets {
            let fits = |limit: &Try| {
                let peak = bucket.peaks.get(limit.period);
                peak.is_some_and(|peak| *peak <= limit.units)
            };
            // Never more than N within any period: nothing is denied.
            if limits.iter().all(fits) {
                continue;
            }
            let denied = self.denied_of(bucket, limits, enough.is_some());
            for (sum, denied) in sum.iter_mut().zip(denied) {
                sum.requests += denied;
                sum.buckets += u64::from(denied > 0);
            }
            let [first, _] = sum;
            if enough.is_some_and(|enough| first.of(self.target.of) > enough) {
                break;
            }
        }
        sum
    }

    fn denied_of(&self, bucket: &Bucket<'_>, limits: &[Try], only_first: bool) -> [u64; 2] {
        let mut limits = limits.to_vec();
        let mut denied = [0, 0];
        match limits.as_mut_slice() {
            [limit] => {
                let mut state: Option<State> = None;
                for at_ms in bucket.times.all() {
                    let rest = usize::from(at_ms >= self.cut_ms);
                    if only_first && rest == 1 {
                        break;
                    }
                    limit.at(at_ms);
                    let evaluation = limit.algorithm.evaluate(state.as_ref(), at_ms, 1);
                    if evaluation.fits() {
                        let written = evaluation.charge().write;
                        state = written.or(state);
                    } else if let Some(count) = denied.get_mut(rest) {
                        *count += 1;
                    }
                }
            }
            limits => {
                let mut stored: Vec<Option<Stored>> = vec![None; limits.len()];
                let parts = limits.iter().map(|limit| Part::new(&limit.algorithm, 1));
                let mut parts: Vec<Part<'_>> = parts.collect();
                for at_ms in bucket.times.all() {
                    let rest = usize::from(at_ms >= self.cut_ms);
                    if only_first && rest == 1 {
                        break;
                    }
                    for (limit, part) in limits.iter_mut().zip(&mut parts) {
                        limit.at(at_ms);
                        part.algorithm = limit.algorithm;
                    }
                    let stored_parts = parts.iter().zip(&stored);
                    let stored_parts = stored_parts.map(|(part, of)| (part, of.as_ref(), None));
                    let stored_parts: Vec<StoredPart<'_>> = stored_parts.collect();
                    let verdict = check(&stored_parts, at_ms, Options::default());
                    let Ok((verdict, writes)) = verdict else {
                        continue;
                    };
                    for (stored, (write, _)) in stored.iter_mut().zip(writes) {
                        if write.is_some() {
                            *stored = write;
                        }
                    }
                    if let Some(count) = denied.get_mut(rest).filter(|_| !verdict.allowed) {
                        *count += 1;
                    }
                }
            }
        }
        denied
    }

    /// The most that may be denied in a part for a share of it.
    fn allowance(&self, part: usize, share: u64) -> u64 {
        let size = self.size.get(part).copied().unwrap_or_default();
        let most = u128::from(size.of(self.target.of)) * u128::from(share) / 1_000_000;
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// The smallest limit of a period that denies at most a share of the first part.
    fn smallest(&self, period: usize, share: u64) -> Option<Try> {
        let enough = self.allowance(0, share);
        let keeps = |limit: &Try| {
            let [first, _] = self.denied(&[*limit], Some(enough));
            first.of(self.target.of) <= enough
        };
        self.search(period, keeps)
    }

    /// The smallest limit of a period that denies at most the share of each part.
    fn smallest_for_both(&self, period: usize) -> Option<Try> {
        let keeps = |limit: &Try| {
            let denied = self.denied(&[*limit], None).into_iter().enumerate();
            let mut within = denied.map(|(part, denied)| {
                denied.of(self.target.of) <= self.allowance(part, self.target.deny)
            });
            within.all(|within| within)
        };
        self.search(period, keeps)
    }

    /// The smallest limit that keeps something that every larger one keeps.
    fn search(&self, period: usize, keeps: impl Fn(&Try) -> bool) -> Option<Try> {
        let peaks = self
            .buckets
            .iter()
            .filter_map(|bucket| bucket.peaks.get(period));
        // With the most that a bucket ever had, nothing is denied.
        let keeps = |units| Try::new(units, period).is_some_and(|limit| keeps(&limit));
        Try::new(least(1, *peaks.max()?, keeps), period)
    }
}

/// The least number from `low` on that keeps something that every larger one keeps, as `high` does.
fn least(mut low: u64, mut high: u64, keeps: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if keeps(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

// --- What is suggested.

/// What a log suggests for a limit.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// The share that may be denied, in millionths.
    pub deny_ppm: u64,
    /// What that is a share of.
    pub of: Of,
    /// When the first request was, in milliseconds since the epoch.
    pub first_ms: u64,
    /// When the last one was.
    pub last_ms: u64,
    /// When the rest of the log begins.
    pub cut_ms: u64,
    /// The parts: the first, in which numbers are found, and the rest, by which they are judged.
    pub parts: [PartSize; 2],
    /// Buckets and requests of clients whose every request was answered 401, 403 or 429.
    pub refused: PartSize,
    /// One in so many buckets was looked at.
    pub sampled: u64,
    /// What buckets used.
    pub usage: Vec<Spread>,
    /// Whether requests come in bursts: then a token bucket fits, else GCRA.
    pub bursts: bool,
    /// A row for each period.
    pub rows: Vec<Row>,
    /// What is proposed: one limit, or two together; none if no row keeps the target.
    pub proposed: Vec<Proposed>,
    /// What the proposed limits deny of the rest together, in millionths.
    pub proposed_denied_ppm: Option<u64>,
    /// What else should be known.
    pub notes: Vec<String>,
}

impl Suggestion {
    /// Whether a row is what is proposed. Each of two limits may be larger than the smallest of its period.
    pub fn proposes(&self, row: &Row) -> bool {
        let mut proposed = self.proposed.iter();
        proposed.any(|one| row.units == Some(one.units) && row.period_ms == one.period_ms)
    }
}

/// Requests and their buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartSize {
    /// Requests.
    pub requests: u64,
    /// Buckets that had some.
    pub buckets: u64,
}

impl PartSize {
    fn of(self, of: Of) -> u64 {
        match of {
            Of::Requests => self.requests,
            Of::Buckets => self.buckets,
        }
    }
}

/// What buckets used at most within a time.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// The time in milliseconds; `None`: the whole log.
    pub period_ms: Option<u64>,
    /// Half of the buckets used no more.
    pub p50: u64,
    /// 99 of 100 used no more.
    pub p99: u64,
    /// 999 of 1000 used no more.
    pub p999: u64,
    /// The most.
    pub largest: u64,
    /// The bucket that used it.
    pub bucket: String,
}

/// The smallest limit of a period.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The period, in milliseconds.
    pub period_ms: u64,
    /// Units in a period; `None`: no limit of this period denies so little.
    pub units: Option<u64>,
    /// What it denies of the first part, in millionths.
    pub denied_first_ppm: u64,
    /// What it denies of the rest, in millionths.
    pub denied_rest_ppm: u64,
    /// Whether that is within the target. Of a rest without requests nobody knows: then it is not.
    pub holds: bool,
    /// Whether the first part is at least as long as the period: otherwise nobody knows.
    pub is_long_enough: bool,
    /// What a bucket that takes all it can gets in a minute, in hundredths of what the p99.9 bucket took.
    pub reach_minute_percent: u64,
    /// The same in a day.
    pub reach_day_percent: u64,
}

/// A limit that is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Proposed {
    /// Units in a period.
    pub units: u64,
    /// The period, in milliseconds.
    pub period_ms: u64,
}

/// What a log suggests; `None`: there are no requests to go by.
pub fn suggest(usage: &Usage, target: Target) -> Option<Suggestion> {
    let (first_ms, last_ms) = (usage.first_ms?, usage.last_ms);
    let (refused, kept): (Vec<&Times>, Vec<&Times>) =
        { usage.buckets.values() }.partition(|times| times.refused == times.requests);
    let refused = PartSize {
        requests: refused.iter().map(|times| times.requests).sum(),
        buckets: count(refused.len()),
    };
    let mut buckets: Vec<Bucket<'_>> = kept.into_iter().map(Bucket::new).collect();
    if buckets.is_empty() {
        return None;
    }
    // The heaviest first: then a limit that is too small is known for that soon.
    buckets.sort_unstable_by(|a, b| {
        (b.times.requests, &b.times.name).cmp(&(a.times.requests, &a.times.name))
    });
    let cut_ms = middle_ms(&buckets, first_ms, last_ms);
    let size = sizes(&buckets, cut_ms);
    let usage_of = spreads(&buckets);
    let bursts = comes_in_bursts(&buckets);
    let trial = Trial {
        buckets,
        cut_ms,
        size,
        target,
    };
    let reach = Reach::new(&usage_of);
    let long_ms = cut_ms.saturating_sub(first_ms);
    let rows: Vec<Row> = (0..PERIODS_MS.len())
        .map(|period| trial.row(period, &reach, long_ms))
        .collect();
    let (proposed, denied) = trial.propose(&rows, &reach);
    let mut found = Suggestion {
        deny_ppm: target.deny,
        of: target.of,
        first_ms,
        last_ms,
        cut_ms,
        parts: trial.size,
        refused,
        sampled: 1_u64.checked_shl(usage.halvings).unwrap_or(u64::MAX),
        usage: usage_of,
        bursts,
        rows,
        proposed,
        proposed_denied_ppm: denied,
        notes: Vec::new(),
    };
    found.notes = notes(&found, &trial);
    Some(found)
}

/// Requests and buckets before and after a time.
fn sizes(buckets: &[Bucket<'_>], cut_ms: u64) -> [PartSize; 2] {
    let mut size = [PartSize::default(); 2];
    for bucket in buckets {
        let mut own = [0_u64; 2];
        for at_ms in bucket.times.all() {
            let [first, rest] = &mut own;
            *(if at_ms < cut_ms { first } else { rest }) += 1;
        }
        for (sum, own) in size.iter_mut().zip(own) {
            sum.requests += own;
            sum.buckets += u64::from(own > 0);
        }
    }
    size
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl<'u> Bucket<'u> {
    fn new(times: &'u Times) -> Self {
        let peaks = PERIODS_MS.map(|period_ms| {
            let mut oldest = times.all();
            let mut from = oldest.next();
            let (mut within, mut most) = (0_u64, 0);
            for at_ms in times.all() {
                within += 1;
                while from.is_some_and(|from| at_ms.saturating_sub(from) >= period_ms) {
                    within -= 1;
                    from = oldest.next();
                }
                most = most.max(within);
            }
            most
        });
        Self { times, peaks }
    }
}

/// A time before which about half of the requests are.
fn middle_ms(buckets: &[Bucket<'_>], first_ms: u64, last_ms: u64) -> u64 {
    const SLOTS: u64 = 4096;
    let slot_ms = (last_ms - first_ms) / SLOTS + 1;
    let mut slots = vec![0_u64; usize::try_from(SLOTS).unwrap_or(0) + 1];
    for at_ms in buckets.iter().flat_map(|bucket| bucket.times.all()) {
        let slot = usize::try_from((at_ms - first_ms) / slot_ms).ok();
        if let Some(count) = slot.and_then(|slot| slots.get_mut(slot)) {
            *count += 1;
        }
    }
    let half = slots.iter().sum::<u64>() / 2;
    let mut before = 0;
    for (n, count) in (1..).zip(slots) {
        before += count;
        if before >= half {
            return first_ms.saturating_add(slot_ms.saturating_mul(n));
        }
    }
    last_ms
}

/// The value that so many in a thousand do not exceed, of sorted ones.
fn quantile(sorted: &[u64], per_mille: u64) -> u64 {
    let at = (count(sorted.len()) * per_mille).div_ceil(1000).max(1) - 1;
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    sorted.get(at).copied().unwrap_or(0)
}

fn spreads(buckets: &[Bucket<'_>]) -> Vec<Spread> {
    let of = |period_ms, value: &dyn Fn(&Bucket<'_>) -> u64| {
        let mut sorted: Vec<u64> = buckets.iter().map(value).collect();
        sorted.sort_unstable();
        let largest = buckets.iter().max_by_key(|bucket| value(bucket));
        Spread {
            period_ms,
            p50: quantile(&sorted, 500),
            p99: quantile(&sorted, 990),
            p999: quantile(&sorted, 999),
            largest: sorted.last().copied().unwrap_or(0),
            bucket: largest
                .map(|bucket| bucket.times.name.to_string())
                .unwrap_or_default(),
        }
    };
    let within = PERIODS_MS.iter().enumerate().map(|(at, period_ms)| {
        of(Some(*period_ms), &|bucket: &Bucket<'_>| {
            bucket.peaks.get(at).copied().unwrap_or(0)
        })
    });
    let within: Vec<Spread> = within.collect();
    let all = of(None, &|bucket: &Bucket<'_>| bucket.times.requests);
    within.into_iter().chain([all]).collect()
}

/// Requests from which on it shows whether they come in bursts.
const BUSY: u64 = 10;

/// Whether one part of a time has a burst, of the requests of all its parts: more than three times its share, and three
/// requests more.
fn is_burst(within: u64, all: u64, parts: u64) -> bool {
    within.saturating_mul(parts) > all.saturating_add(parts).saturating_mul(3)
}

/// Whether most buckets that are busy had a burst in a second of their busiest minute; or in a minute of their busiest
/// hour, or an hour of their busiest day, if they were not busy before.
fn comes_in_bursts(buckets: &[Bucket<'_>]) -> bool {
    let is_bursty = |bucket: &Bucket<'_>| {
        let periods = PERIODS_MS.iter().zip(&bucket.peaks);
        let mut longer = periods.clone().skip(1).zip(periods);
        let ((long_ms, most), (short_ms, within)) = longer.find(|((_, most), _)| **most >= BUSY)?;
        let ratio = long_ms / short_ms;
        Some(is_burst(*within, *most, ratio))
    };
    let busy: Vec<bool> = buckets.iter().filter_map(is_bursty).collect();
    let bursty = busy.iter().filter(|bursty| **bursty).count();
    2 * bursty > busy.len()
}

/// What the p99.9 bucket took within a minute and a day.
struct Reach {
    minute: u64,
    day: u64,
}

impl Reach {
    fn new(usage: &[Spread]) -> Self {
        let within = |period_ms| {
            let mut of = usage
                .iter()
                .filter(|spread| spread.period_ms == Some(period_ms));
            of.next().map_or(1, |spread| spread.p999)
        };
        Self {
            minute: within(MINUTE_MS),
            day: within(DAY_MS),
        }
    }

    /// What limits give to a bucket that takes all it can, in percent of that.
    fn of(&self, limits: &[Try]) -> [u64; 2] {
        [(MINUTE_MS, self.minute), (DAY_MS, self.day)].map(|(ms, took)| {
            let limits = limits.iter();
            let most = limits.map(|limit| most_in(limit.units, limit.period_ms, ms));
            reach_percent(most.min().unwrap_or(0), took)
        })
    }
}

impl Trial<'_> {
    fn row(&self, period: usize, reach: &Reach, long_ms: u64) -> Row {
        let period_ms = PERIODS_MS.get(period).copied().unwrap_or(0);
        let found = self.smallest(period, self.target.deny);
        let shares = found.map_or([0, 0], |limit| self.shares(&[limit]));
        let [first, rest] = shares;
        let [minute, day] = found.map_or([0, 0], |limit| reach.of(&[limit]));
        Row {
            period_ms,
            units: found.map(|limit| limit.units),
            denied_first_ppm: first,
            denied_rest_ppm: rest,
            holds: found.is_some() && self.holds(rest),
            is_long_enough: long_ms >= period_ms,
            reach_minute_percent: minute,
            reach_day_percent: day,
        }
    }

    /// What limits deny of each part, in millionths.
    fn shares(&self, limits: &[Try]) -> [u64; 2] {
        let [first, rest] = self.denied(limits, None);
        let [first_size, rest_size] = self.size;
        let of = self.target.of;
        [
            millionths(first.of(of), first_size.of(of)),
            millionths(rest.of(of), rest_size.of(of)),
        ]
    }

    /// Whether what is denied of the rest keeps the target. On an empty rest nothing does.
    fn holds(&self, rest_ppm: u64) -> bool {
        let [_, rest] = self.size;
        rest.requests > 0 && rest_ppm <= self.target.deny
    }

    /// The row that reaches least in a minute, or two limits that together reach less than half of what each
    /// does alone; and what they deny of the rest.
    fn propose(&self, rows: &[Row], reach: &Reach) -> (Vec<Proposed>, Option<u64>) {
        let holding = rows.iter().filter(|row| row.is_long_enough && row.holds);
        let single = holding.min_by_key(|row| (row.reach_minute_percent, row.reach_day_percent));
        let mut best: Option<([u64; 2], [Try; 2], u64)> = None;
        // Each of two denies at most half of the share.
        let halves: Vec<(&Row, Try)> = { rows.iter().enumerate() }
            .filter(|(_, row)| row.is_long_enough)
            .filter_map(|(period, row)| Some((row, self.smallest(period, self.target.deny / 2)?)))
            .collect();
        let pairs = halves.iter().enumerate();
        for ((short, a), (long, b)) in
            pairs.flat_map(|(n, short)| halves.iter().skip(n + 1).map(move |long| (short, long)))
        {
            let pair = [*a, *b];
            let [minute, day] = reach.of(&pair);
            let narrows =
                day < short.reach_day_percent / 2 && minute < long.reach_minute_percent / 2;
            let better = best
                .as_ref()
                .is_none_or(|(least, ..)| [minute, day] < *least);
            if narrows && better {
                let [_, rest] = self.shares(&pair);
                if self.holds(rest) {
                    best = Some(([minute, day], pair, rest));
                }
            }
        }
        let proposed = |limit: &Try| Proposed {
            units: limit.units,
            period_ms: limit.period_ms,
        };
        if let Some((_, pair, rest)) = best {
            return (pair.iter().map(proposed).collect(), Some(rest));
        }
        let single = single.and_then(|row| {
            let (units, period_ms) = (row.units?, row.period_ms);
            Some((Proposed { units, period_ms }, row.denied_rest_ppm))
        });
        let (proposed, rest) = single.unzip();
        (proposed.into_iter().collect(), rest)
    }
}

// --- What else should be known.

fn notes(found: &Suggestion, trial: &Trial<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let long_ms = found.last_ms - found.first_ms;
    if found.sampled > 1 {
        let n = found.sampled;
        notes.push(format!(
            "the log has too many requests to hold: one in {n} buckets was looked at"
        ));
    }
    if found.proposed.is_empty() {
        notes.push(nothing_holds(trial, found));
    }
    for (part, size) in ["first part", "rest"].into_iter().zip(found.parts) {
        if size.buckets < FEW_BUCKETS {
            let n = counted(size.buckets, "bucket");
            notes.push(format!(
                "the {part} of the log has {n}: the numbers rest on a few clients; a longer log says more"
            ));
        }
    }
    notes.extend(shape(trial, found.first_ms, long_ms));
    notes
}

fn nothing_holds(trial: &Trial<'_>, found: &Suggestion) -> String {
    if found.parts[1].requests == 0 {
        return "the last moment of the log has half of the requests, and none are left to judge a number by: take a \
                longer log"
            .to_owned();
    }
    let usable = found
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.is_long_enough);
    let would = usable.filter_map(|(period, _)| trial.smallest_for_both(period));
    let would: Vec<String> = would
        .map(|limit| format!("{}/{}", limit.units, policy::Duration(limit.period_ms)))
        .collect();
    if would.is_empty() {
        return "no number keeps the target: the log is too short".to_owned();
    }
    format!(
        "no number from the first part keeps the target on the rest; these would have: {}",
        would.join(", ")
    )
}

/// Hours that are counted to see the shape of a day or week: some ten years.
const HOURS_MAX: usize = 100_000;

/// Whether traffic has a shape of days or weeks, and what follows.
fn shape(trial: &Trial<'_>, first_ms: u64, long_ms: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if long_ms < 2 * DAY_MS {
        notes.push(format!(
            "the log covers {}: its parts are other times of a day, and what a busy day looks like is not in it; \
             take whole days, best a week",
            duration(long_ms)
        ));
        return notes;
    }
    let start_hour = first_ms / HOUR_MS;
    let mut hours =
        vec![0_u64; HOURS_MAX.min(usize::try_from(long_ms / HOUR_MS).unwrap_or(HOURS_MAX) + 2)];
    for at_ms in trial.buckets.iter().flat_map(|bucket| bucket.times.all()) {
        let hour = usize::try_from(at_ms / HOUR_MS - start_hour).ok();
        if let Some(count) = hour.and_then(|hour| hours.get_mut(hour)) {
            *count += 1;
        }
    }
    let total: u64 = hours.iter().sum();
    let by = |slots: u64, slot_of: fn(u64) -> u64| {
        let mut sums = vec![(0_u64, 0_u64); usize::try_from(slots).unwrap_or(0)];
        for (hour, count) in (start_hour..).zip(&hours) {
            let at = usize::try_from(slot_of(hour) % slots).unwrap_or(0);
            if let Some((sum, n)) = sums.get_mut(at) {
                (*sum, *n) = (*sum + count, *n + 1);
            }
        }
        sums
    };
    let mean = total / count(hours.len()).max(1);
    let of_day = by(24, |hour| hour);
    let busiest = (0_u64..)
        .zip(&of_day)
        .map(|(at, (sum, n))| (sum / (*n).max(1), at))
        .max();
    if let Some((most, at)) = busiest.filter(|(most, _)| *most > mean.saturating_mul(2)) {
        notes.push(format!(
            "traffic has the shape of a day: at {at}:00 UTC {} times the mean; a limit of a day fits it, and one of an \
             hour is used up at that time only",
            times(most, mean)
        ));
    }
    if long_ms >= 14 * DAY_MS {
        // 1970 began on a Thursday.
        let of_week = by(7, |hour| (hour / 24 + 3) % 7);
        let means = of_week.iter().map(|(sum, n)| sum / (*n).max(1));
        let (least, most) = (means.clone().min().unwrap_or(0), means.max().unwrap_or(0));
        if most > least.saturating_mul(2) {
            notes.push(
                "traffic has the shape of a week: the busiest day has more than twice the requests of the quietest; \
                 judge a limit by whole weeks"
                    .to_owned(),
            );
        }
    } else {
        notes.push("whether weeks have a shape shows in a log of at least two".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests;
