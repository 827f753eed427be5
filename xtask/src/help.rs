//! Errors with remedies.

use std::fmt;

/// A problem that a person can solve, and how.
#[derive(Debug)]
pub struct Help {
    problem: String,
    remedies: Vec<String>,
}

impl Help {
    /// States the problem; add at least one remedy.
    pub fn new(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            remedies: Vec::new(),
        }
    }

    /// Adds a remedy.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    /// The remedies, best first.
    pub fn remedies(&self) -> &[String] {
        &self.remedies
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Help {}
