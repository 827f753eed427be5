//! Globs: `*` stays within a path segment, `**` does not.
//!
//! A glob is a literal head and, after it, an automaton that reads every byte
//! of the value once, keeping the set of places in the pattern where it may be
//! as bits of a few words (Shift-And). There is no backtracking, so no value
//! takes longer than its length.

use crate::{BREAK, PatternError};

/// A parsed glob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    /// Every match starts with it.
    head: Vec<u8>,
    /// What follows the head; `None` if nothing does.
    tail: Option<Tail>,
    /// Every match is this, or ends with it behind a slash or a dot; empty if there is no such text.
    end: Vec<u8>,
    /// Whether to ignore the case of a value's ASCII letters; those of the glob are in lower case.
    any_case: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tail {
    /// `**`: anything.
    Anything,
    /// `/**` at the end: nothing at all, or a slash and anything.
    Below,
    /// Anything else.
    Automaton(Automaton),
}

/// One step of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Byte(u8),
    /// `*`
    Segment,
    /// `**` that is not a whole path segment.
    Anything,
    /// `**/`: nothing, or anything that ends in a slash.
    Above,
    /// `/**` at the end.
    Below,
}

impl Glob {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let steps = steps(text.as_bytes())?;
        let literal = steps
            .iter()
            .take_while(|step| matches!(step, Step::Byte(_)))
            .count();
        let (head, rest) = steps.split_at(literal);
        let head = head.iter().copied().filter_map(Step::byte);
        let tail = match rest {
            [] => None,
            [Step::Anything] => Some(Tail::Anything),
            [Step::Below] => Some(Tail::Below),
            _ => Some(Tail::Automaton(Automaton::new(rest))),
        };
        Ok(Self {
            end: end(rest),
            head: head.collect(),
            tail,
            any_case: false,
        })
    }

    /// The glob, written in lower case, for values in any case.
    pub(crate) fn ignoring_case(self) -> Self {
        Self {
            any_case: true,
            ..self
        }
    }

    pub(crate) fn any_case(&self) -> bool {
        self.any_case
    }

    /// The text itself, if there is no wildcard in it.
    pub(crate) fn literal(&self) -> Option<Vec<u8>> {
        match self.tail {
            None => Some(self.head.clone()),
            Some(_) => None,
        }
    }

    /// The whole path segments at its start: every match is this, or continues it with a
    /// slash. `None` where there are none.
    pub(crate) fn head(&self) -> Option<&[u8]> {
        if let Some(Tail::Below) = self.tail {
            return Some(&self.head);
        }
        let end = self.head.iter().rposition(|byte| *byte == b'/')?;
        self.head.get(..end).filter(|head| !head.is_empty())
    }

    /// What every match is, or ends with behind a slash or a dot. `None` where there is no such text.
    pub(crate) fn end(&self) -> Option<&[u8]> {
        Some(&*self.end).filter(|end| !end.is_empty())
    }

    pub(crate) fn matches(&self, value: &[u8]) -> bool {
        let Some((head, rest)) = value.split_at_checked(self.head.len()) else {
            return false;
        };
        if self.head != head && !(self.any_case && self.head.eq_ignore_ascii_case(head)) {
            return false;
        }
        match &self.tail {
            None => rest.is_empty(),
            Some(Tail::Anything) => true,
            Some(Tail::Below) => rest.is_empty() || rest.starts_with(b"/"),
            Some(Tail::Automaton(automaton)) => automaton.matches(rest, self.any_case),
        }
    }
}

impl Step {
    fn byte(self) -> Option<u8> {
        match self {
            Self::Byte(byte) => Some(byte),
            _ => None,
        }
    }
}

/// The literal end of a glob behind its last wildcard, from where a segment or a label begins.
fn end(steps: &[Step]) -> Vec<u8> {
    let Some(last) = steps.iter().rposition(|step| step.byte().is_none()) else {
        return Vec::new();
    };
    let (wild, literal) = steps.split_at(last + 1);
    let literal: Vec<u8> = literal.iter().copied().filter_map(Step::byte).collect();
    if wild.last() == Some(&Step::Above) {
        return literal;
    }
    let mut parts = literal.splitn(2, |byte| matches!(byte, b'/' | b'.'));
    parts.nth(1).unwrap_or_default().to_vec()
}

/// A glob with a break for each wildcard.
pub(crate) fn literals(text: &str) -> Vec<u8> {
    let steps = steps(text.as_bytes()).unwrap_or_default();
    let bytes = steps.iter().map(|step| step.byte().unwrap_or(BREAK));
    bytes.collect()
}

fn steps(text: &[u8]) -> Result<Vec<Step>, PatternError> {
    let mut steps: Vec<Step> = Vec::new();
    let mut rest = text;
    loop {
        let at_start_of_segment =
            matches!(steps.last(), None | Some(Step::Byte(b'/') | Step::Above));
        rest = match rest {
            [] => return Ok(steps),
            [b'\\', escaped @ (b'*' | b'!' | b'\\'), after @ ..] => {
                steps.push(Step::Byte(*escaped));
                after
            }
            [b'\\', ..] => return Err(PatternError::Escape),
            // A repeated `**/` means the same as one.
            [b'*', b'*', b'/', after @ ..] if at_start_of_segment => {
                if steps.last() != Some(&Step::Above) {
                    steps.push(Step::Above);
                }
                after
            }
            [b'*', b'*'] if steps.last() == Some(&Step::Byte(b'/')) => {
                steps.pop();
                steps.push(Step::Below);
                &[]
            }
            [b'*', b'*'] if at_start_of_segment && steps.last() == Some(&Step::Above) => {
                // `/**/**` is `/**`, and `**/**` is `**`.
                steps.pop();
                let below = steps.last() == Some(&Step::Byte(b'/'));
                if below {
                    steps.pop();
                }
                steps.push(if below { Step::Below } else { Step::Anything });
                &[]
            }
            [b'*', b'*', after @ ..] => {
                steps.push(Step::Anything);
                let stars = after.iter().take_while(|b| **b == b'*').count();
                after.get(stars..).unwrap_or_default()
            }
            [b'*', after @ ..] => {
                steps.push(Step::Segment);
                after
            }
            [byte, after @ ..] => {
                steps.push(Step::Byte(*byte));
                after
            }
        };
    }
}

/// State `i` is reached once `i` of the pattern's bytes were seen. A wildcard is
/// a state that stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Automaton {
    /// Per byte of the pattern: the states that are entered by it.
    entered_by: Vec<(u8, Box<[u64]>)>,
    /// States that stay on any byte but a slash.
    stay_in_segment: Box<[u64]>,
    /// States that stay on any byte.
    stay: Box<[u64]>,
    /// States whose entry enters the next as well: the start of `**/`, which may be nothing.
    skip: Box<[u64]>,
    /// States in which the value may end.
    last: Box<[u64]>,
}

/// A set of states while the automaton is built.
#[derive(Default)]
struct States(Vec<usize>);

impl States {
    fn bits(&self, words: usize) -> Box<[u64]> {
        let mut bits = vec![0; words];
        for state in &self.0 {
            if let Some(word) = bits.get_mut(state / 64) {
                *word |= 1_u64 << (state % 64);
            }
        }
        bits.into()
    }
}

impl Automaton {
    fn new(steps: &[Step]) -> Self {
        let mut bytes: Vec<u8> = Vec::new();
        let (mut in_segment, mut stay) = (States::default(), States::default());
        let (mut skip, mut last) = (States::default(), States::default());
        for step in steps {
            match step {
                Step::Byte(byte) => bytes.push(*byte),
                Step::Segment => in_segment.0.push(bytes.len()),
                Step::Anything => stay.0.push(bytes.len()),
                Step::Above => {
                    stay.0.push(bytes.len());
                    skip.0.push(bytes.len());
                    bytes.push(b'/');
                }
                Step::Below => {
                    last.0.push(bytes.len());
                    bytes.push(b'/');
                    stay.0.push(bytes.len());
                }
            }
        }
        last.0.push(bytes.len());
        let words = bytes.len() / 64 + 1;
        let distinct = (0..=u8::MAX).filter(|byte| bytes.contains(byte));
        let entered_by = distinct.map(|byte| {
            let states = bytes.iter().enumerate().filter(|(_, b)| **b == byte);
            let states = States(states.map(|(at, _)| at + 1).collect());
            (byte, states.bits(words))
        });
        Self {
            entered_by: entered_by.collect(),
            stay_in_segment: in_segment.bits(words),
            stay: stay.bits(words),
            skip: skip.bits(words),
            last: last.bits(words),
        }
    }

    fn matches(&self, value: &[u8], any_case: bool) -> bool {
        let mut states: Vec<u64> = vec![0; self.last.len()];
        if let Some(first) = states.first_mut() {
            *first = 1;
        }
        let start = states.clone();
        self.add_skips(&start, &mut states);
        let mut entered = start;
        for byte in value {
            let byte = if any_case {
                byte.to_ascii_lowercase()
            } else {
                *byte
            };
            self.step(byte, &mut states, &mut entered);
            if states.iter().all(|word| *word == 0) {
                return false;
            }
        }
        states.iter().zip(&self.last).any(|(s, last)| s & last != 0)
    }

    fn step(&self, byte: u8, states: &mut [u64], entered: &mut [u64]) {
        let by_byte = self
            .entered_by
            .binary_search_by_key(&byte, |(b, _)| *b)
            .ok()
            .and_then(|at| self.entered_by.get(at));
        let mut carry = 0;
        match by_byte {
            Some((_, mask)) => {
                for ((out, state), mask) in entered.iter_mut().zip(states.iter()).zip(mask) {
                    *out = ((state << 1) | carry) & mask;
                    carry = state >> 63;
                }
            }
            None => entered.fill(0),
        }
        let in_segment = if byte == b'/' { 0 } else { u64::MAX };
        let staying = self.stay.iter().zip(&self.stay_in_segment);
        for ((state, entered), (stay, segment)) in
            states.iter_mut().zip(entered.iter()).zip(staying)
        {
            *state = (*state & (stay | (segment & in_segment))) | entered;
        }
        self.add_skips(entered, states);
    }

    /// Adds the states after those in `entered` that may match nothing.
    fn add_skips(&self, entered: &[u64], states: &mut [u64]) {
        let mut carry = 0;
        for ((state, entered), skip) in states.iter_mut().zip(entered).zip(&self.skip) {
            let skipping = entered & skip;
            *state |= (skipping << 1) | carry;
            carry = skipping >> 63;
        }
    }
}
