//! Traffic that lasts for a part of a simulation.

use std::str::FromStr;

use policy::{Descriptor, parse_duration};

use super::{Request, Step, Traffic, TrafficError, traffic::bounded};

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
        let Some((traffic, span)) = text.split_once(',') else {
            return Ok(Self {
                traffic: text.parse()?,
                from_ms: 0,
                until_ms: None,
            });
        };
        let (from, until) = span.split_once("..").ok_or(TrafficError::Span)?;
        let time = |text| parse_duration(text).map_err(|_| TrafficError::Span);
        let phase = Self {
            traffic: traffic.parse()?,
            from_ms: time(from)?,
            until_ms: if until.is_empty() {
                None
            } else {
                Some(time(until)?)
            },
        };
        let backwards = phase.until_ms.is_some_and(|until| until < phase.from_ms);
        if backwards {
            Err(TrafficError::Span)
        } else {
            Ok(phase)
        }
    }
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

#[cfg(test)]
mod tests {
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
    fn what_is_no_stretch_of_time_says_so() {
        for text in ["1s", "1s-2s", "..2s", "2s..1s", "1..2", ""] {
            let phase = format!("constant:1/s,{text}").parse::<Phase>();
            assert_eq!(phase, Err(TrafficError::Span), "{text}");
        }
    }
}
