//! Sessions: a cookie with an expiry and a signature keyed with the token used to sign in.
//!
//! The limiter stores no sessions. So unauthorized clients cannot fill a table, every replica with
//! the same token file accepts the cookie, and removing a token from the file ends its sessions.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;

use crate::tokens::Tokens;

/// The cookie's name.
const NAME: &str = "rl_page";

/// How long a session lasts, in seconds.
const LIFE_S: u64 = 12 * 3600;

/// Seconds since the epoch, by this machine's clock.
pub(super) fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The header that begins a session.
pub(super) fn cookie(token: &[u8], now_s: u64, secure: bool) -> String {
    let ends_s = now_s.saturating_add(LIFE_S);
    let signature = hmac::sign(&key(token), &message(ends_s));
    let signature = hex(signature.as_ref());
    let secure = if secure { "; Secure" } else { "" };
    format!(
        "{NAME}={ends_s}.{signature}; Path=/; Max-Age={LIFE_S}; HttpOnly; SameSite=Strict{secure}"
    )
}

/// The header that ends a session.
pub(super) fn no_cookie() -> String {
    format!("{NAME}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict")
}

/// Whether a `cookie` header has a session that has not ended and was begun with a token in force.
pub(super) fn is_valid(tokens: &Tokens, cookies: &str, now_s: u64) -> bool {
    let mut values = cookies.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == NAME).then_some(value)
    });
    values.any(|value| {
        let Some((ends, signature)) = value.split_once('.') else {
            return false;
        };
        let Ok(ends_s) = ends.parse::<u64>() else {
            return false;
        };
        let Some(signature) = unhex(signature) else {
            return false;
        };
        // A cookie that lasts longer than one of ours was not made here.
        let current = ends_s > now_s && ends_s <= now_s.saturating_add(LIFE_S);
        current
            && tokens.any(|token| hmac::verify(&key(token), &message(ends_s), &signature).is_ok())
    })
}

fn key(token: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token)
}

fn message(ends_s: u64) -> Vec<u8> {
    format!("rate limiter page session until {ends_s}").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    (text.len() == 64).then(|| pairs.map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TOKEN: &[u8] = b"0123456789abcdef";

    fn tokens(text: &str) -> Tokens {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Tokens::load(file.path()).unwrap()
    }

    #[test]
    fn a_session_lasts_until_its_end_and_as_long_as_its_token() {
        let ours = tokens("0123456789abcdef\nfedcba9876543210\n");
        let begun = cookie(TOKEN, 1000, false);
        let (pair, _) = begun.split_once(';').unwrap();
        assert!(is_valid(&ours, pair, 1000));
        assert!(is_valid(
            &ours,
            &format!("a=b; {pair}; c=d"),
            1000 + LIFE_S - 1
        ));
        assert!(!is_valid(&ours, pair, 1000 + LIFE_S));
        assert!(!is_valid(&ours, pair, 999), "it would last too long");
        assert!(!is_valid(&tokens("fedcba9876543210\n"), pair, 1000));
    }

    #[test]
    fn a_modified_session_cookie_is_rejected() {
        let ours = tokens("0123456789abcdef\n");
        let begun = cookie(TOKEN, 1000, false);
        let (pair, _) = begun.split_once(';').unwrap();
        let later = pair.replacen("44200", "44201", 1);
        assert_ne!(later, pair);
        for bad in [
            later.as_str(),
            "rl_page=",
            "rl_page=44200.",
            "rl_page=44200.zz",
            "",
            "=;;=",
            &pair[..pair.len() - 1],
        ] {
            assert!(!is_valid(&ours, bad, 1000), "{bad}");
        }
        assert!(begun.contains("; HttpOnly; SameSite=Strict"));
    }
}
