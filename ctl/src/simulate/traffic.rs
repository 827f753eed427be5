//! Times of requests, made from a description of traffic, and the service that answers them.

use std::{cmp::Reverse, collections::BinaryHeap, str::FromStr};

use policy::{Descriptor, UnitError, parse_duration, parse_rate};

use super::{Request, Step};

/// `burst:200@10s`, `constant:50/s` or `poisson:50/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// That many requests at once, every so often.
    Burst {
        /// Requests.
        requests: u64,
        /// Milliseconds between the bursts.
        every_ms: u64,
    },
    /// Evenly spaced requests.
    Constant {
        /// Requests per period.
        requests: u64,
        /// The period, in milliseconds.
        period_ms: u64,
    },
    /// As many requests, at times drawn independently; the same for the same seed.
    Poisson {
        /// Requests per period.
        requests: u64,
        /// The period, in milliseconds.
        period_ms: u64,
    },
}

/// Why a text does not describe traffic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// Not one of the three forms.
    #[error(
        "expected burst:REQUESTS@TIME, constant:REQUESTS/TIME or poisson:REQUESTS/TIME, as in burst:200@10s or \
         constant:50/s"
    )]
    Form,
    /// What follows the comma is not a span of time.
    #[error("after the comma: expected when it comes, FROM..TO or FROM.., as in 3s..5s")]
    Span,
    /// A rate or duration in it is wrong.
    #[error(transparent)]
    Unit(UnitError),
    /// More requests than a simulation takes.
    #[error("more than {most} requests")]
    TooMany {
        /// The most there can be.
        most: u64,
    },
}

/// The most requests of one simulation.
const REQUESTS_MAX: u64 = 1_000_000;

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let (form, numbers) = text.split_once(':').ok_or(TrafficError::Form)?;
        if form == "burst" {
            let (requests, every) = numbers.split_once('@').ok_or(TrafficError::Form)?;
            let requests = requests.parse().map_err(|_| TrafficError::Form)?;
            return match parse_duration(every).map_err(TrafficError::Unit)? {
                0 => Err(TrafficError::Form),
                every_ms => Ok(Self::Burst { requests, every_ms }),
            };
        }
        let rate = parse_rate(numbers).map_err(TrafficError::Unit)?;
        let (requests, period_ms) = (rate.units, rate.period_ms);
        match form {
            "constant" => Ok(Self::Constant {
                requests,
                period_ms,
            }),
            "poisson" => Ok(Self::Poisson {
                requests,
                period_ms,
            }),
            _ => Err(TrafficError::Form),
        }
    }
}

impl Traffic {
    /// When requests come in `for_ms` milliseconds: milliseconds from the start, in order.
    ///
    /// # Errors
    /// More than a million requests.
    pub(super) fn times(&self, for_ms: u64, seed: u64) -> Result<Vec<u64>, TrafficError> {
        match *self {
            Self::Burst { requests, every_ms } => {
                let bursts = for_ms.div_ceil(every_ms);
                bounded(u128::from(requests) * u128::from(bursts))?;
                let burst = |index| (0..requests).map(move |_| index * every_ms);
                Ok((0..bursts).flat_map(burst).collect())
            }
            Self::Constant {
                requests,
                period_ms,
            } => {
                let count = bounded(count(requests, period_ms, for_ms))?;
                let at = |index| u128::from(index) * u128::from(period_ms) / u128::from(requests);
                Ok((0..count)
                    .map(|index| u64::try_from(at(index)).unwrap_or(for_ms))
                    .collect())
            }
            Self::Poisson {
                requests,
                period_ms,
            } => {
                let count = bounded(count(requests, period_ms, for_ms))?;
                let mut random = seed;
                let mut draw = || split_mix(&mut random).checked_rem(for_ms).unwrap_or(0);
                let mut times: Vec<u64> = (0..count).map(|_| draw()).collect();
                times.sort_unstable();
                Ok(times)
            }
        }
    }
}

/// Requests of a rate in a time.
fn count(requests: u64, period_ms: u64, for_ms: u64) -> u128 {
    u128::from(requests) * u128::from(for_ms) / u128::from(period_ms.max(1))
}

pub(super) fn bounded(count: u128) -> Result<u64, TrafficError> {
    let count = u64::try_from(count)
        .ok()
        .filter(|count| *count <= REQUESTS_MAX);
    count.ok_or(TrafficError::TooMany { most: REQUESTS_MAX })
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

// --- Traffic that lasts for a part of a simulation.

/// Traffic and when it comes: `constant:20/s,3s..5s`, `burst:10@1s,500ms..` or all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The requests.
    pub traffic: Traffic,
    /// When it begins, in milliseconds from the start.
    pub from_ms: u64,
    /// When it ends; `None`: with the simulation.
    pub until_ms: Option<u64>,
}

impl FromStr for Phase {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let (traffic, (from_ms, until_ms)) = with_span(text)?;
        Ok(Self {
            traffic: traffic.parse()?,
            from_ms,
            until_ms,
        })
    }
}

/// What stands before the comma, and from when until when it holds, in milliseconds; without a comma always.
fn with_span(text: &str) -> Result<(&str, (u64, Option<u64>)), TrafficError> {
    let Some((what, span)) = text.split_once(',') else {
        return Ok((text, (0, None)));
    };
    let (from, until) = span.split_once("..").ok_or(TrafficError::Span)?;
    let time = |text| parse_duration(text).map_err(|_| TrafficError::Span);
    let from_ms = time(from)?;
    let until_ms = match until {
        "" => None,
        until => Some(time(until)?),
    };
    if until_ms.is_some_and(|until| until < from_ms) {
        return Err(TrafficError::Span);
    }
    Ok((what, (from_ms, until_ms)))
}

impl Phase {
    /// When requests come, in milliseconds from the start of a simulation of `for_ms`.
    fn times(&self, for_ms: u64, seed: u64) -> Result<Vec<u64>, TrafficError> {
        let until_ms = self.until_ms.unwrap_or(for_ms).min(for_ms);
        let lasts_ms = until_ms.saturating_sub(self.from_ms);
        let mut times = self.traffic.times(lasts_ms, seed)?;
        for at in &mut times {
            *at = at.saturating_add(self.from_ms);
        }
        Ok(times)
    }
}

/// The steps of all phases together, `for_ms` milliseconds from `start_ms` on, each of cost 1.
///
/// # Errors
/// More than a million requests.
pub fn steps(
    phases: &[Phase],
    start_ms: u64,
    for_ms: u64,
    seed: u64,
    descriptor: &Descriptor,
) -> Result<Vec<Step>, TrafficError> {
    let mut times = Vec::new();
    // Two equal phases must not draw the same times.
    for (nth, phase) in (0_u64..).zip(phases) {
        times.extend(phase.times(for_ms, seed.wrapping_add(nth))?);
        bounded(u128::try_from(times.len()).unwrap_or(u128::MAX))?;
    }
    times.sort_unstable();
    let step = |at: u64| {
        Step::Check(Request {
            t_ms: start_ms.saturating_add(at),
            cost: 1,
            peek: false,
            descriptor: descriptor.clone(),
            expect: Vec::new(),
        })
    };
    Ok(times.into_iter().map(step).collect())
}

// --- The service behind the limits.

/// `20x50ms`: what answers requests, all the time or, as in `7x50ms,60s..120s`, for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Requests that it works on at once; further ones wait in their order.
    workers: u64,
    /// How long it works on one, in the mean; times are distributed exponentially.
    mean_ms: u64,
    from_ms: u64,
    until_ms: Option<u64>,
}

/// Bound: workers of a simulated service. Beyond it, `--service` is refused.
const WORKERS_MAX: u64 = 10_000;

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (service, (from_ms, until_ms)) = with_span(text).map_err(|error| error.to_string())?;
        let parts = service.split_once('x');
        let read = parts.and_then(|(workers, mean)| {
            let workers = workers.parse().ok().filter(|of| *of <= WORKERS_MAX)?;
            Some((workers, parse_duration(mean).ok()?))
        });
        let (workers, mean_ms) = read.ok_or_else(|| {
            format!("expected WORKERSxTIME, as in 20x50ms, with at most {WORKERS_MAX} workers")
        })?;
        Ok(Self {
            workers,
            mean_ms,
            from_ms,
            until_ms,
        })
    }
}

/// A service at work on the requests that were admitted. Without any, requests never end.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    /// Of those that hold at a time, the last decides.
    services: Vec<Service>,
    start_ms: u64,
    random: u64,
    /// When each worker has nothing to do.
    free_at: BinaryHeap<Reverse<u64>>,
}

impl Backend {
    /// At work from a time on, in milliseconds; the same for the same seed.
    pub const fn new(services: Vec<Service>, start_ms: u64, seed: u64) -> Self {
        Self {
            services,
            start_ms,
            random: seed,
            free_at: BinaryHeap::new(),
        }
    }

    /// How long a request takes that arrives now, with the time that it waits for a worker, in milliseconds; `None`:
    /// there is no service. Requests arrive in order.
    pub(super) fn took_ms(&mut self, now_ms: u64) -> Option<u64> {
        let at_ms = now_ms.saturating_sub(self.start_ms);
        let holds = |of: &&Service| {
            of.from_ms <= at_ms && of.until_ms.is_none_or(|until_ms| at_ms < until_ms)
        };
        let service = self.services.iter().rfind(holds)?;
        let workers = usize::try_from(service.workers).unwrap_or(usize::MAX);
        // Those that leave end what they work on.
        while self.free_at.len() > workers {
            self.free_at.pop();
        }
        while self.free_at.len() < workers {
            self.free_at.push(Reverse(now_ms));
        }
        let work_ms = exponential(&mut self.random, service.mean_ms);
        // Without a worker nobody answers before the service changes, if it does.
        let Some(Reverse(free_ms)) = self.free_at.pop() else {
            let until_ms = service.until_ms.unwrap_or(u64::MAX);
            return Some(until_ms.saturating_sub(at_ms).saturating_add(work_ms));
        };
        let end_ms = free_ms.max(now_ms).saturating_add(work_ms);
        self.free_at.push(Reverse(end_ms));
        Some(end_ms - now_ms)
    }
}

/// A number from the exponential distribution of a mean, by comparisons alone (von Neumann 1951): the first of
/// numbers that fall until one rises is the fraction, if they are odd in number; else the whole part grows.
fn exponential(random: &mut u64, mean: u64) -> u64 {
    let mut whole: u64 = 0;
    loop {
        let first = split_mix(random);
        let (mut last, mut odd) = (first, true);
        loop {
            let next = split_mix(random);
            if next > last {
                break;
            }
            (last, odd) = (next, !odd);
        }
        if odd {
            let fraction = (u128::from(mean) * u128::from(first)) >> 64;
            let fraction = u64::try_from(fraction).unwrap_or(mean);
            return mean.saturating_mul(whole).saturating_add(fraction);
        }
        whole += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_works_on_so_many_at_once_and_takes_the_mean_time() {
        let mut random = 1;
        let drawn: Vec<u64> = (0..100_000)
            .map(|_| exponential(&mut random, 1000))
            .collect();
        let mean = drawn.iter().sum::<u64>() / 100_000;
        let beyond = drawn.iter().filter(|ms| **ms > 3000).count();
        // e^-3 of them.
        assert!(
            mean.abs_diff(1000) < 20 && beyond.abs_diff(4979) < 300,
            "{mean}, {beyond}"
        );
        let of = |texts: &[&str]| -> Vec<Service> {
            let services = texts.iter().map(|text| text.parse().unwrap());
            services.collect()
        };
        let services = of(&["2x0ms", "0x0ms,1s..2s"]);
        let mut backend = Backend::new(services, 500, 1);
        let took = [500, 1499, 1500, 2400, 2500].map(|at_ms| backend.took_ms(at_ms));
        assert_eq!(
            took,
            [0, 0, 1000, 100, 0].map(Some),
            "it stalls for a second"
        );
        let services = of(&["3x100ms"]);
        let mut backend = Backend::new(services, 0, 1);
        let took: Vec<u64> = (0..300).filter_map(|_| backend.took_ms(0)).collect();
        let last = took.iter().max().unwrap();
        assert!(
            last.abs_diff(10_000) < 2000,
            "{last}: 300 requests of 100 ms on 3 workers"
        );
        assert!("20x".parse::<Service>().is_err() && "10001x1ms".parse::<Service>().is_err());
        assert_eq!(Backend::default().took_ms(0), None);
    }

    fn times(text: &str, for_ms: u64) -> Vec<u64> {
        text.parse::<Traffic>().unwrap().times(for_ms, 1).unwrap()
    }

    #[test]
    fn bursts_come_at_once_and_again() {
        assert_eq!(times("burst:2@10s", 20_000), [0, 0, 10_000, 10_000]);
    }

    #[test]
    fn constant_traffic_is_even() {
        assert_eq!(times("constant:3/s", 2000), [0, 333, 666, 1000, 1333, 1666]);
    }

    #[test]
    fn poisson_traffic_is_as_much_and_the_same_again() {
        let once = times("poisson:50/s", 60_000);
        assert_eq!(once.len(), 3000);
        assert!(once.is_sorted());
        assert_eq!(once, times("poisson:50/s", 60_000));
        assert_ne!(once, times("constant:50/s", 60_000));
    }

    #[test]
    fn what_is_not_traffic_says_so() {
        for text in [
            "",
            "burst",
            "burst:5",
            "burst:x@1s",
            "burst:1@0s",
            "constant:5",
            "wave:1/s",
        ] {
            assert!(text.parse::<Traffic>().is_err(), "{text}");
        }
        let flood: Traffic = "constant:1000000/ms".parse().unwrap();
        assert!(matches!(
            flood.times(60_000, 1),
            Err(TrafficError::TooMany { .. })
        ));
        let nothing: Traffic = "constant:0/s".parse().unwrap();
        assert_eq!(nothing.times(1000, 1), Ok(Vec::new()));
    }
}

#[cfg(test)]
mod phase_tests {
    use super::*;

    fn phase(text: &str) -> Phase {
        text.parse().unwrap()
    }

    #[test]
    fn a_phase_comes_at_its_time() {
        assert_eq!(
            phase("burst:1@1s,500ms..").times(3000, 1).unwrap(),
            [500, 1500, 2500]
        );
        assert_eq!(
            phase("constant:2/s,1s..2s").times(9000, 1).unwrap(),
            [1000, 1500]
        );
        assert_eq!(phase("constant:2/s").times(1000, 1).unwrap(), [0, 500]);
        // Later than the end: nothing.
        assert!(
            phase("constant:2/s,5s..9s")
                .times(4000, 1)
                .unwrap()
                .is_empty()
        );
        assert_eq!(phase("constant:1/s,5s..9s").times(6000, 1).unwrap(), [5000]);
    }

    #[test]
    fn phases_come_together_in_order() {
        let phases = ["burst:2@1s,1s..2s", "constant:1/s"].map(phase);
        let steps = steps(&phases, 100, 3000, 1, &Descriptor::new()).unwrap();
        let times: Vec<u64> = steps
            .iter()
            .map(|step| match step {
                Step::Check(request) => request.t_ms,
                Step::Edit(_) | Step::Leave { .. } | Step::Settle(_) => panic!("requests only"),
            })
            .collect();
        assert_eq!(times, [100, 1100, 1100, 1100, 2100]);
    }

    #[test]
    fn phases_are_bounded_together() {
        let phases = ["constant:600000/s", "constant:600000/s"].map(phase);
        let error = steps(&phases, 0, 1000, 1, &Descriptor::new()).unwrap_err();
        assert!(matches!(error, TrafficError::TooMany { .. }));
    }

    #[test]
    fn what_is_no_span_of_time_says_so() {
        for text in ["1s", "1s-2s", "..2s", "2s..1s", "1..2", ""] {
            let phase = format!("constant:1/s,{text}").parse::<Phase>();
            assert_eq!(phase, Err(TrafficError::Span), "{text}");
        }
    }
}
