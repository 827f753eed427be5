//! What an expression is compiled to, and how a value is run through it.
//!
//! Every step that leads elsewhere says how far, so that a piece of a program
//! may be moved and repeated as it is.

use super::{
    look::Look,
    set::{Set, lower},
};

/// The most that a program may test per character of a value: its steps, where a step that takes a
/// character of a set counts as often as the set has items. With the longest value that is searched
/// it bounds what a match takes.
const MAX_TESTS: usize = 4096;
const TOO_LARGE: &str = "it is too large: its steps, times the items of their sets, are more than \
     4096; repeat less, or write shorter sets";

#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    steps: Vec<Step>,
    sets: Vec<Set>,
    /// What all steps test, at most [`MAX_TESTS`].
    tests: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Takes this character.
    Char(char),
    /// Takes this one, which is lower case, in either case.
    AnyCase(char),
    /// Takes a character of the set at this position.
    Set(usize),
    /// Goes on where this is so.
    Look(Look),
    /// Goes on, and so many steps ahead as well.
    Fork(usize),
    /// Goes on, and so many steps back as well.
    Again(usize),
    /// Goes on so many steps ahead.
    Jump(usize),
}

impl Program {
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn take(&mut self, c: char, any_case: bool) -> Result<(), &'static str> {
        self.push(if any_case && c.is_ascii_alphabetic() {
            Step::AnyCase(lower(c))
        } else {
            Step::Char(c)
        })
    }

    pub(super) fn take_of(&mut self, set: Set) -> Result<(), &'static str> {
        self.sets.push(set);
        self.push(Step::Set(self.sets.len() - 1))
    }

    pub(super) fn look(&mut self, look: Look) -> Result<(), &'static str> {
        self.push(Step::Look(look))
    }

    fn push(&mut self, step: Step) -> Result<(), &'static str> {
        self.tests = self.tests.saturating_add(self.tests_of(step));
        if self.tests > MAX_TESTS {
            return Err(TOO_LARGE);
        }
        self.steps.push(step);
        Ok(())
    }

    fn tests_of(&self, step: Step) -> usize {
        match step {
            Step::Set(set) => self.sets.get(set).map_or(1, |set| set.tests().max(1)),
            _ => 1,
        }
    }

    /// Makes what begins at a step one of several branches. Returns the step that has to
    /// [`Program::land`] behind the last of them.
    pub(super) fn branch(&mut self, start: usize) -> Result<usize, &'static str> {
        let len = self.steps.len().saturating_sub(start);
        self.push(Step::Jump(1))?;
        // It makes room for one more.
        self.push(Step::Jump(1))?;
        if let Some(branch) = self.steps.get_mut(start..) {
            branch.rotate_right(1);
        }
        self.replace(start, Step::Fork(len + 2));
        Ok(start + len + 1)
    }

    /// Ends the branches.
    pub(super) fn land(&mut self, jumps: &[usize]) {
        for jump in jumps {
            self.replace(*jump, Step::Jump(self.steps.len() - jump));
        }
    }

    fn replace(&mut self, at: usize, step: Step) {
        if let Some(place) = self.steps.get_mut(at) {
            *place = step;
        }
    }

    /// Repeats what begins at a step; `None` is without an end.
    pub(super) fn repeat(
        &mut self,
        start: usize,
        min: usize,
        max: Option<usize>,
    ) -> Result<(), &'static str> {
        let piece = self.steps.split_off(start.min(self.steps.len()));
        let len = piece.len();
        // However often, nothing is nothing.
        if len == 0 {
            return Ok(());
        }
        let tests: usize = piece.iter().map(|step| self.tests_of(*step)).sum();
        self.tests = self.tests.saturating_sub(tests);
        let most = max.unwrap_or_else(|| min.max(1));
        for done in 0..most {
            if done >= min {
                // Each of these may be the last.
                let left = (most - done).saturating_mul(len + 1);
                self.push(Step::Fork(left.saturating_add(usize::from(max.is_none()))))?;
            }
            for step in &piece {
                self.push(*step)?;
            }
        }
        match max {
            None => self.push(Step::Again(len)),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let mut chars = text.chars();
        let mut places = Places::new(self.steps.len() + 1);
        let mut here = Vec::new();
        let mut next = chars.next();
        self.enter(0, None, next, &mut places);
        while let Some(c) = next {
            std::mem::swap(&mut here, &mut places.taking);
            if here.is_empty() {
                return false;
            }
            next = chars.next();
            places.clear();
            for at in here.drain(..) {
                if self.takes(at, c) {
                    self.enter(at + 1, Some(c), next, &mut places);
                }
            }
        }
        places.at_end
    }

    fn takes(&self, at: usize, c: char) -> bool {
        match self.steps.get(at) {
            Some(Step::Char(one)) => *one == c,
            Some(Step::AnyCase(one)) => *one == lower(c),
            Some(Step::Set(set)) => self.sets.get(*set).is_some_and(|set| set.holds(c)),
            _ => false,
        }
    }

    /// Goes on from a step until characters have to be taken.
    fn enter(&self, at: usize, before: Option<char>, after: Option<char>, places: &mut Places) {
        places.open.push(at);
        while let Some(at) = places.open.pop() {
            if !places.is_new(at) {
                continue;
            }
            match self.steps.get(at) {
                None => places.at_end = true,
                Some(Step::Char(_) | Step::AnyCase(_) | Step::Set(_)) => places.taking.push(at),
                Some(Step::Look(look)) if look.holds(before, after) => places.open.push(at + 1),
                Some(Step::Look(_)) => {}
                Some(Step::Fork(ahead)) => places.open.extend([at + ahead, at + 1]),
                Some(Step::Again(back)) => places.open.extend([at.saturating_sub(*back), at + 1]),
                Some(Step::Jump(ahead)) => places.open.push(at + ahead),
            }
        }
    }
}

/// Where in a program a value may be, between two of its characters.
struct Places {
    /// The round in which each step was last entered.
    entered: Vec<usize>,
    round: usize,
    /// Steps entered that take a character.
    taking: Vec<usize>,
    /// The end was entered.
    at_end: bool,
    /// Steps still to enter.
    open: Vec<usize>,
}

impl Places {
    fn new(steps: usize) -> Self {
        Self {
            entered: vec![0; steps],
            round: 1,
            taking: Vec::new(),
            at_end: false,
            open: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.round += 1;
        self.at_end = false;
    }

    fn is_new(&mut self, at: usize) -> bool {
        let entered = self.entered.get_mut(at);
        entered.is_some_and(|round| std::mem::replace(round, self.round) != self.round)
    }
}
