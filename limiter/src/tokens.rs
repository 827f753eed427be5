//! Authorization: bearer tokens from a file that can be changed while the service runs.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use hyper::header::{AUTHORIZATION, HeaderMap};
use store::read_file;
use subtle::ConstantTimeEq;

use crate::watched_files::WatchedFiles;

/// Shorter ones can be guessed.
const MIN_LEN: usize = 16;

/// The most tokens in a file: every request is compared with all of them.
const MAX_TOKENS: usize = 64;

/// Bound: bytes of a token file, comments included. Beyond it, the file cannot be used.
const FILE_MAX: u64 = 1 << 20;

/// Words that examples use in place of a token, in lower-case letters and digits. Anyone who has
/// read the example knows such a token.
const PLACEHOLDERS: [&str; 4] = ["changeme", "replaceme", "placeholder", "example"];

/// A token with fewer different characters was typed, not generated.
const MIN_DIFFERENT: usize = 5;

/// The tokens in force.
pub(crate) struct Tokens {
    path: PathBuf,
    watched: WatchedFiles,
    accepted: ArcSwap<Vec<Box<[u8]>>>,
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token file {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It has no token, so no request could pass.
    #[error("the token file {} holds no token; write one per line, `#` starts a comment", .0.display())]
    Empty(PathBuf),
    /// A token that is too short, or that a header cannot carry.
    #[error("{}:{line}: a token is at least {MIN_LEN} printable ASCII characters without spaces", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A token that is public.
    #[error("{}:{line}: this token is a placeholder that anybody may have read; make one of your own: openssl rand -hex 24", .path.display())]
    Published {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Too many lines.
    #[error("the token file {} holds more than {MAX_TOKENS} tokens", .0.display())]
    TooMany(PathBuf),
}

impl Tokens {
    /// Reads the file.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenError> {
        let watched = WatchedFiles::new([path]);
        Ok(Self {
            path: path.to_owned(),
            watched,
            accepted: ArcSwap::from_pointee(read(path)?),
        })
    }

    /// Whether the request carries one of the tokens.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(token) = bearer(headers) else {
            return false;
        };
        self.any(|known| known.ct_eq(token).into())
    }

    /// The token of the file that equals this one.
    pub(crate) fn find(&self, token: &[u8]) -> Option<Vec<u8>> {
        let known = self.any(|known| known.ct_eq(token).into());
        known.then(|| token.to_vec())
    }

    /// Whether any token meets a condition. Tests every token, so that the duration does not reveal
    /// which one nearly matched.
    pub(crate) fn any(&self, mut holds: impl FnMut(&[u8]) -> bool) -> bool {
        let tokens = self.accepted.load();
        tokens
            .iter()
            .fold(false, |found, token| found | holds(token))
    }

    /// Follows the file forever. If it becomes unusable, the tokens stay as they were.
    pub(crate) async fn follow(self: Arc<Self>) {
        let again = || {
            let tokens = read(&self.path)?;
            tracing::info!(tokens = tokens.len(), "token file read again");
            self.accepted.store(Arc::new(tokens));
            Ok::<_, TokenError>(())
        };
        self.watched.follow("tokens", again).await;
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn read(path: &Path) -> Result<Vec<Box<[u8]>>, TokenError> {
    let text = read_file(path, FILE_MAX)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|error| TokenError::Read {
        path: path.to_owned(),
        error,
    })?;
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_text = line.trim();
        if line_text.is_empty() || line_text.starts_with('#') {
            continue;
        }
        if line_text.len() < MIN_LEN || !line_text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError::Unusable {
                path: path.to_owned(),
                line: index + 1,
            });
        }
        if is_placeholder(line_text) {
            return Err(TokenError::Published {
                path: path.to_owned(),
                line: index + 1,
            });
        }
        tokens.push(line_text.as_bytes().into());
    }
    match tokens.len() {
        0 => Err(TokenError::Empty(path.to_owned())),
        1..=MAX_TOKENS => Ok(tokens),
        _ => Err(TokenError::TooMany(path.to_owned())),
    }
}

/// Whether a token was copied from an example, or typed to have one.
fn is_placeholder(token: &str) -> bool {
    let mut letters = token.to_ascii_lowercase();
    letters.retain(|c| c.is_ascii_alphanumeric());
    let different: HashSet<u8> = token.bytes().collect();
    different.len() < MIN_DIFFERENT || PLACEHOLDERS.iter().any(|word| letters.contains(word))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn asks(tokens: &Tokens, value: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(
            AUTHORIZATION,
            hyper::header::HeaderValue::from_bytes(value).unwrap(),
        );
        tokens.admit(&headers)
    }

    #[test]
    fn only_tokens_of_the_file_are_accepted() {
        let file = file("# old\n0123456789abcdef\n\n  fedcba9876543210  # not a comment\n");
        assert!(matches!(
            Tokens::load(file.path()),
            Err(TokenError::Unusable { line: 4, .. })
        ));
        fs::write(
            file.path(),
            "# old\n0123456789abcdef\n\n  fedcba9876543210  \n",
        )
        .unwrap();
        let tokens = Tokens::load(file.path()).unwrap();
        assert!(asks(&tokens, b"Bearer 0123456789abcdef"));
        assert!(asks(&tokens, b"bearer fedcba9876543210"));
        for bad in [
            &b"Bearer 0123456789abcdeX"[..],
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdeff",
            b"Bearer ",
            b"Bearer",
            b"Basic 0123456789abcdef",
            b"0123456789abcdef",
            b"Bearer \xff\xfe",
        ] {
            assert!(!asks(&tokens, bad));
        }
        assert!(!tokens.admit(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn a_file_that_was_replaced_after_it_was_read_is_read_again() {
        let file = file("0123456789abcdef\n");
        let tokens = Arc::new(Tokens::load(file.path()).unwrap());
        fs::write(file.path(), "fedcba9876543210\n").unwrap();
        let following = tokio::spawn(Arc::clone(&tokens).follow());
        let replaced = async {
            while !asks(&tokens, b"Bearer fedcba9876543210") {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let patience = std::time::Duration::from_secs(20);
        tokio::time::timeout(patience, replaced).await.unwrap();
        following.abort();
    }

    #[test]
    fn a_token_file_without_tokens_or_with_weak_ones_is_refused() {
        for (text, message) in [
            ("", "holds no token"),
            ("# none\n", "holds no token"),
            ("short\n", ":1: a token is at least 16 printable"),
            ("0123456789abcdef\nwith space in the middle\n", ":2: "),
            ("change-me-change-me\n", ":1: this token is a placeholder"),
            ("0123456789abcdef\nCHANGE_ME_CHANGE_ME\n", ":2: this token"),
            ("your-placeholder-token\n", "this token is a placeholder"),
            ("xxxxxxxxxxxxxxxxxxxx\n", "openssl rand -hex 24"),
        ] {
            let file = file(text);
            let error = Tokens::load(file.path()).err().unwrap().to_string();
            assert!(error.contains(message), "{error}");
        }
        let long = file(&"# comment\n".repeat(1 << 17));
        let error = Tokens::load(long.path()).err().unwrap().to_string();
        assert!(error.contains("larger than 1 MiB"), "{error}");
        let error = Tokens::load(Path::new("/nonexistent/tokens"))
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .starts_with("cannot read the token file /nonexistent/tokens: ")
        );
    }
}
