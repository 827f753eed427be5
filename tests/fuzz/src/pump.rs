//! What a reader costs when a part of its input is repeated: it must grow as the input does.

use std::time::Duration;

use crate::{Reader, of};

/// The lengths that are compared, and how many times as much the longer one may cost: a quadratic
/// reader costs 64 times as much.
const SHORT: usize = 1 << 14;
const LONG: usize = 1 << 17;
const MOST: u32 = 24;
/// What costs less than this is too short to compare.
const LEAST: Duration = Duration::from_micros(200);

/// An input that costs more than its length explains.
#[derive(Clone, Debug)]
pub struct Growth {
    /// What is around the repeated part, and that part.
    pub parts: [Vec<u8>; 3],
    /// The costs.
    pub times: [Duration; 2],
}

/// Repeats parts of a reader's corpus, of `most` inputs at most; returns those whose cost grew faster
/// than their length.
///
/// # Errors
/// The corpus cannot be read.
pub fn grow(reader: Reader, most: usize) -> std::io::Result<Vec<Growth>> {
    let mut found = Vec::new();
    let corpus = of(reader)?;
    for input in corpus.iter().rev().take(most) {
        for (from, to) in parts(input.len()) {
            let (Some(before), Some(part), Some(after)) =
                (input.get(..from), input.get(from..to), input.get(to..))
            else {
                continue;
            };
            let cost = |length: usize| {
                let times = length / part.len().max(1);
                let pumped = [before, &part.repeat(times), after].concat();
                let once = || {
                    let started = cpu_time();
                    (reader.read)(&pumped);
                    cpu_time().saturating_sub(started)
                };
                (0..3).map(|_| once()).min().unwrap_or_default()
            };
            let short = cost(SHORT);
            let long = cost(LONG);
            if long > LEAST && long > short.max(Duration::from_micros(5)) * MOST {
                found.push(Growth {
                    parts: [before, part, after].map(<[u8]>::to_vec),
                    times: [short, long],
                });
            }
        }
    }
    Ok(found)
}

/// Some parts of an input: all of it, and pieces of several lengths.
fn parts(length: usize) -> impl Iterator<Item = (usize, usize)> {
    let pieces = [1, 2, 3, 5, 9, 17, 33, 65].into_iter();
    let pieces = pieces.take_while(move |piece| *piece < length);
    let step = (length / 12).max(1);
    let all = std::iter::once((0, length)).filter(|(_, to)| *to > 0);
    all.chain(pieces.flat_map(move |piece| {
        let starts = (0..length - piece).step_by(step);
        starts.map(move |from| (from, from + piece))
    }))
}

/// The CPU time of this thread: other work on the machine does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}
