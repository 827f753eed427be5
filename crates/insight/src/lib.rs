//! What `rlctl` and the limiter's page show operators: problems, changes of edits, rates of limits
//! and buckets. This crate reads what the store returns and does no I/O of its own.

pub mod bucket;
pub mod changes;
pub mod findings;
pub mod history;
mod live_entries;

use std::{
    error::Error,
    fmt::{self, Display, Write as _},
};

use policy::{Algorithm, Pause, format_timestamp};
use serde::{Serialize, Serializer};
use store::ProxyStatus;

pub use findings::{Finding, Severity};
pub use limits_file::truncated_list;
pub use live_entries::{Altered, LiveEntries};

/// `1 limit`, `2 limits`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it has ended.
pub fn pause_state(pause: Option<Pause>, now_ms: u64) -> Option<String> {
    let pause = pause.filter(|pause| pause.holds(now_ms))?;
    Some(match pause.until_ms {
        None => "paused".to_owned(),
        Some(ms) => format!("paused until {}", format_timestamp(ms)),
    })
}

/// The display name of a limiter: host and port.
pub fn limiter_name(id: &str) -> &str {
    id.rsplit_once('/').map_or(id, |(name, _)| name)
}

/// The display name of a proxy: its node, or the start of its id.
pub fn proxy_name(proxy: &ProxyStatus) -> String {
    match &proxy.node {
        Some(node) => node.clone(),
        None => proxy.id.chars().take(12).collect(),
    }
}

// --- Durations as text.

/// Whole seconds, rounded up, so that a retry is never too early.
pub fn ceil_seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// `85 ms`, `1.3 s`, `42 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; rounded up.
pub fn duration(ms: u64) -> String {
    const MIN: u64 = 60;
    const HOUR: u64 = 60 * MIN;
    const DAY: u64 = 24 * HOUR;
    match ms {
        0..1000 => return format!("{ms} ms"),
        1000..=9900 => {
            let tenths = ms.div_ceil(100);
            return match tenths % 10 {
                0 => format!("{} s", tenths / 10),
                rest => format!("{}.{rest} s", tenths / 10),
            };
        }
        _ => {}
    }
    let seconds = ceil_seconds(ms);
    let (unit, name, smaller, smaller_name) = match seconds {
        0..MIN => return format!("{seconds} s"),
        MIN..HOUR => (MIN, "min", 1, "s"),
        HOUR..DAY => (HOUR, "h", MIN, "min"),
        _ => (DAY, "d", HOUR, "h"),
    };
    let in_smaller = seconds.div_ceil(smaller);
    let (whole, rest) = (in_smaller / (unit / smaller), in_smaller % (unit / smaller));
    if rest == 0 {
        format!("{whole} {name}")
    } else {
        format!("{whole} {name} {rest} {smaller_name}")
    }
}

/// How long ago, in one unit: `just now`, `42 s ago`, `5 min ago`, `3 d ago`.
pub fn age(ms: u64) -> String {
    match ms / 1000 {
        0..5 => "just now".to_owned(),
        s @ 5..60 => format!("{s} s ago"),
        s @ 60..3600 => format!("{} min ago", s / 60),
        s @ 3600..86_400 => format!("{} h ago", s / 3600),
        s => format!("{} d ago", s / 86_400),
    }
}

// --- Rates.

/// A rate per second, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// The rate of `count` in `covered_ms`.
    pub fn new(count: u64, covered_ms: u64) -> Self {
        let thousandths = u128::from(count) * 1_000_000 / u128::from(covered_ms.max(1));
        let rate = if covered_ms == 0 { 0 } else { thousandths };
        Self(rate.try_into().unwrap_or(u64::MAX))
    }

    /// `0`, `0.3`, `12`, `4.2k`: three digits at most; only a rate of 0 is `0`.
    pub fn text(self) -> String {
        const K: u64 = 1_000_000;
        const M: u64 = 1000 * K;
        let tenths = |n: u64, unit: u64| (n / unit, n % unit * 10 / unit);
        let short = |(whole, tenth): (u64, u64), unit: &str| match (whole, tenth) {
            (10.., _) | (_, 0) => format!("{whole}{unit}"),
            _ => format!("{whole}.{tenth}{unit}"),
        };
        match self.0 {
            0 => "0".to_owned(),
            1..100 => "<0.1".to_owned(),
            n @ 100..10_000 => short(tenths(n, 1000), ""),
            n @ 10_000..K => (n / 1000).to_string(),
            n @ K..M => short(tenths(n, K), "k"),
            n => short(tenths(n, M), "M"),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        serializer.serialize_f64(text.parse().unwrap_or_default())
    }
}

// --- Errors with what caused them.

/// An error's text and those of its causes, `connection failed: certificate expired`; a text that is in what comes before
/// is left out.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

// --- The calendar window of a time, as people read it: in the limit's own time zone.

/// A window between local midnights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// What it is: day, week, month or year.
    pub unit: &'static str,
    /// The zone, as the time zone database spells it.
    pub time_zone: &'static str,
    /// Its first instant, by the clocks there: `2026-03-29T00:00:00+01:00[Europe/Berlin]`.
    pub starts: String,
    /// The first instant of the next one.
    pub ends: String,
}

impl Window {
    /// The window of a limit's numbers at a time; `None` if it is not a calendar window.
    pub fn from_quota(quota: &Algorithm, now_ms: u64) -> Option<Self> {
        let (window, time_zone) = calendar::window_of(quota, now_ms)?;
        Some(Self {
            unit: quota.parameters().rate.calendar?.name(),
            time_zone,
            starts: calendar::local(time_zone, window.start_ms),
            ends: calendar::local(time_zone, window.end_ms),
        })
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            unit, starts, ends, ..
        } = self;
        write!(f, "the {unit} from {starts} to {ends}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_and_short() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1 s"),
            (1001, "1.1 s"),
            (9901, "10 s"),
            (9900, "9.9 s"),
            (59_001, "1 min"),
            (60_000, "1 min"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (7_500_000, "2 h 5 min"),
            (7_199_999, "2 h"),
            (273_600_000, "3 d 4 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration(ms), text, "{ms}");
        }
    }

    #[test]
    fn ages_take_one_unit() {
        let cases = [
            (4999, "just now"),
            (59_999, "59 s ago"),
            (300_000, "5 min ago"),
            (7_200_000, "2 h ago"),
            (259_200_000, "3 d ago"),
        ];
        for (ms, text) in cases {
            assert_eq!(age(ms), text, "{ms}");
        }
    }
}

#[cfg(test)]
mod rate_tests {
    use super::*;

    #[test]
    fn rates_are_short_and_never_nothing_for_something() {
        let cases = [
            ((0, 1000), "0"),
            ((5, 0), "0"),
            ((1, 60_000), "<0.1"),
            ((1, 10_000), "0.1"),
            ((25, 10_000), "2.5"),
            ((120, 10_000), "12"),
            ((999_999, 1000), "999k"),
            ((42_000, 10_000), "4.2k"),
            ((30_000_000, 10_000), "3M"),
            ((u64::MAX, 1), "18446744073M"),
        ];
        for ((count, ms), text) in cases {
            assert_eq!(Rate::new(count, ms).text(), text, "{count} in {ms} ms");
        }
        assert_eq!(
            serde_json::to_string(&Rate::new(25, 10_000)).unwrap(),
            "2.5"
        );
    }
}
