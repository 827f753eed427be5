//! Normal forms of what a request can spell in many ways: its path, host and method; and the hash that
//! stands for a value in normal form.
//!
//! Services accept many spellings of one resource; whichever a client chooses must count against
//! the same limits. So filters and limiters bring values to a normal form before they match them or
//! name a bucket. `docs/limits.md` lists what is folded and what is not. Everything here takes any
//! bytes, in time and memory proportional to their number, and leaves a normal form as it is. It is
//! a separate crate because nearly every request has a path: unlike `policy`, it is not optimized
//! for size alone.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod hashed;
mod path;
mod percent;

pub use hashed::{hashed, is_hash};
pub use path::path;
pub use percent::{hex, percent_decode};

/// The host of an authority: in lower case, without user, port or trailing dots.
pub fn host(authority: &[u8]) -> Vec<u8> {
    let user = authority.iter().rposition(|byte| *byte == b'@');
    let host = user.and_then(|at| authority.get(at + 1..));
    let host = host.unwrap_or(authority);
    let bracket = host.iter().rposition(|byte| *byte == b']').unwrap_or(0);
    let colon = host.iter().rposition(|byte| *byte == b':');
    let port = colon.filter(|colon| *colon >= bracket);
    let mut host = port.and_then(|at| host.get(..at)).unwrap_or(host);
    while let Some(shorter) = host.strip_suffix(b".") {
        host = shorter;
    }
    host.to_ascii_lowercase()
}

/// A method: in upper case.
pub fn method(method: &[u8]) -> Vec<u8> {
    method.to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (authority, expected) in [
            ("Shop.Example:8080", "shop.example"),
            ("shop.example", "shop.example"),
            ("shop.example.", "shop.example"),
            ("shop.example..:80", "shop.example"),
            ("me:secret@shop.example:80", "shop.example"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host(authority.as_bytes()), expected.as_bytes());
        }
        assert_eq!(host(b"\xff:1"), b"\xff");
    }

    #[test]
    fn a_method_has_one_spelling() {
        assert_eq!(method(b"post"), b"POST");
        assert_eq!(method(b"PoST\xff"), b"POST\xff");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_host(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            let _ = (host(&bytes), method(&bytes));
        }
    }
}
