//! Passwords from a variable, a command or the file.

use std::process::Command;

use crate::error::Error;

/// Where a password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// An environment variable.
    Variable(String),
    /// What a command prints; a shell runs it.
    Command(String),
}

impl Password {
    /// The password. No message contains it.
    pub fn fetch(
        &self,
        context: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<String, Error> {
        match self {
            Self::Variable(name) => environment(name).ok_or_else(|| {
                Error::usage(format!(
                    "context {context} takes its password from {name}, which is not set"
                ))
            }),
            Self::Command(words) => {
                let failed = |why: String| {
                    Error::usage(format!(
                        "context {context}: the command for its password {why}"
                    ))
                    .hint(format!("it is: {words}"))
                };
                let output = Command::new("sh").args(["-c", words]).output();
                let output = output.map_err(|error| failed(format!("does not start: {error}")))?;
                if !output.status.success() {
                    return Err(failed(format!("failed: {}", output.status)));
                }
                let text = String::from_utf8(output.stdout);
                let text = text.map_err(|_| failed("printed what is not text".to_owned()))?;
                match text.trim_end_matches(['\n', '\r']) {
                    "" => Err(failed("printed nothing".to_owned())),
                    password => Ok(password.to_owned()),
                }
            }
        }
    }
}

/// The URL with this password, which replaces its own password if it has one.
pub fn with_password(url: &str, password: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (user, host) = match rest.rsplit_once('@') {
        Some((user, host)) => (user.split(':').next().unwrap_or_default(), host),
        None => ("", rest),
    };
    let mut escaped = String::new();
    for byte in password.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => {
                use std::fmt::Write as _;
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    format!("{scheme}://{user}:{escaped}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_goes_into_the_url_whatever_is_in_it() {
        for (url, expected) in [
            ("redis://host:1/2", "redis://:p%40%3A%25@host:1/2"),
            ("rediss://ann@host", "rediss://ann:p%40%3A%25@host"),
            ("redis://ann:old@host", "redis://ann:p%40%3A%25@host"),
        ] {
            assert_eq!(with_password(url, "p@:%"), expected);
        }
    }

    #[test]
    fn a_password_comes_from_where_it_is_said_to_be() {
        let environment = |name: &str| (name == "PW").then(|| "s3cret".to_owned());
        let variable = |name: &str| Password::Variable(name.to_owned()).fetch("prod", environment);
        assert_eq!(variable("PW").unwrap(), "s3cret");
        assert!(variable("NONE").unwrap_err().to_string().contains("NONE"));
        let command = |words: &str| Password::Command(words.to_owned()).fetch("prod", environment);
        assert_eq!(command("echo s3cret").unwrap(), "s3cret");
        for wrong in ["echo s3cret; exit 3", "true"] {
            let error = command(wrong).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
