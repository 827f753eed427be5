//! What ends a command early: a message, what to do about it, and an exit code.

use std::process::ExitCode;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    exit: Exit,
    message: String,
    hints: Vec<String>,
}

impl Error {
    /// An error that ends the program with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hints: Vec::new(),
        }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Something that was named does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds a hint if there is one.
    #[must_use]
    pub fn maybe_hint(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// The message without colours, for what is no terminal: a page, a status.
    pub fn plain(&self) -> String {
        anstream::adapter::strip_str(&self.message).to_string()
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// What to do about it, most useful first.
    pub fn hints(&self) -> impl Iterator<Item = &str> {
        self.hints.iter().map(String::as_str)
    }
}

// --- Exit codes, which scripts rely on.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or: yes.
    Done = 0,
    /// The answer is no: a difference found, a check denied, an invalid file, scripts missing.
    No = 1,
    /// The command line or the environment makes no sense.
    Usage = 2,
    /// Redis did not answer.
    Unreachable = 3,
    /// Redis refused the credentials.
    Auth = 4,
    /// No such domain, limit, bucket or revision.
    NotFound = 5,
    /// Somebody else wrote in the meantime, or what should be created is there already.
    Conflict = 6,
    /// Not confirmed.
    Declined = 7,
    /// Redis answered, and did not do it.
    Refused = 8,
    /// Written, but not every limiter and proxy has the revision yet (`--wait`).
    Behind = 9,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminants are the codes.
        Self::from(exit as u8)
    }
}

// --- "Did you mean": the most similar name.

/// "Did you mean", if one of these is similar enough.
pub fn meant<'c>(typed: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    let meant = closest(typed, candidates)?;
    Some(format!("did you mean `{meant}`?"))
}

/// The candidate closest to `typed`, if one is close enough to be worth naming.
pub fn closest<'c>(typed: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    documents::similar(typed, &candidates.into_iter().collect::<Vec<_>>())
}

/// A hint for a name that does not exist: the one that was meant, else all there are.
pub fn hint<'c>(typed: &str, what: &str, known: impl IntoIterator<Item = &'c str>) -> String {
    const SHOWN: usize = 12;
    let known: Vec<&str> = known.into_iter().collect();
    if let Some(meant) = meant(typed, known.iter().copied()) {
        return meant;
    }
    let shown: Vec<&str> = known.iter().copied().take(SHOWN).collect();
    match known.len() {
        0 => format!("there are no {what} yet"),
        n if n > SHOWN => format!("there are {n} {what}: {}, …", shown.join(", ")),
        _ => format!("there are: {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["per-user", "per-tenant", "exports"];

    #[test]
    fn typos_find_the_name_that_was_meant() {
        assert_eq!(closest("per-usr", NAMES), Some("per-user"));
        assert_eq!(closest("pre-user", NAMES), Some("per-user"));
        assert_eq!(closest("export", NAMES), Some("exports"));
        assert_eq!(closest("logins", NAMES), None);
    }

    #[test]
    fn another_word_gets_the_list() {
        assert_eq!(
            hint("logins", "limits", NAMES),
            "there are: per-user, per-tenant, exports"
        );
        assert_eq!(hint("logins", "limits", []), "there are no limits yet");
    }
}
