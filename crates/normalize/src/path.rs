//! The normal form of paths.
//!
//! A target is decoded once and cut into segments at slashes and backslashes, encoded or not. Each
//! segment loses its parameters (`;…`) and the blanks, control characters and dots that services
//! trim; empty segments are dropped, dot segments resolved, and query and fragment cut. Characters
//! in a segment that would give the result another meaning (`%`, `?` and `#`) are encoded, so that
//! normalizing a normal form does not change it.

use std::borrow::Cow;

use crate::next_byte;

/// The normal form of the path of a request target.
///
/// Most targets are spelled plainly: these cost one look at each byte and no memory.
#[inline]
pub fn path(target: &[u8]) -> Cow<'_, [u8]> {
    match plain(target) {
        Some(path) => Cow::Borrowed(path),
        None => Cow::Owned(fold(target)),
    }
}

/// The kind of a byte, for the decision whether a path is plain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    /// A slash or a dot: plain between letters only.
    Mark,
    /// The path ends before it.
    End,
    Odd,
}

fn kind(byte: u8) -> Kind {
    match byte {
        b'/' | b'.' => Kind::Mark,
        b'?' | b'#' => Kind::End,
        b'%' | b';' | b'\\' | 0..=b' ' | 0x7f => Kind::Odd,
        _ => Kind::Letter,
    }
}

/// The path of a target if it is in normal form, as far as one look at each byte shows.
fn plain(target: &[u8]) -> Option<&[u8]> {
    if target.first() != Some(&b'/') {
        return None;
    }
    let mut end = target.len();
    let mut before = Kind::Mark;
    for (at, byte) in target.iter().enumerate().skip(1) {
        match kind(*byte) {
            Kind::Letter => before = Kind::Letter,
            Kind::Mark if before == Kind::Letter => before = Kind::Mark,
            Kind::Mark | Kind::Odd => return None,
            Kind::End => {
                end = at;
                break;
            }
        }
    }
    if before == Kind::Mark && end > 1 {
        return None;
    }
    target.get(..end)
}

#[cold]
#[inline(never)]
fn fold(target: &[u8]) -> Vec<u8> {
    // The server as a whole (`OPTIONS *`).
    if target == b"*" {
        return target.to_vec();
    }
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let mut rest = end.and_then(|end| target.get(..end)).unwrap_or(target);
    let mut segments = Segments::new(rest.len());
    while let Some((byte, after)) = next_byte(rest) {
        segments.take(byte);
        rest = after;
    }
    segments.finish()
}

/// Closed segments, each after its slash, and an open one.
struct Segments {
    out: Vec<u8>,
    /// Where the open segment starts, with its slash.
    start: usize,
    /// Whether the rest of the open segment is parameters.
    parameters: bool,
}

impl Segments {
    fn new(len: usize) -> Self {
        let mut out = Vec::with_capacity(len + 1);
        out.push(b'/');
        Self {
            out,
            start: 0,
            parameters: false,
        }
    }

    fn take(&mut self, byte: u8) {
        match byte {
            b'/' | b'\\' => {
                self.close();
                self.start = self.out.len();
                self.out.push(b'/');
                self.parameters = false;
            }
            _ if self.parameters => {}
            b';' => self.parameters = true,
            // Blanks before the first letter.
            _ if is_blank(byte) && self.out.len() == self.start + 1 => {}
            b'%' => self.out.extend_from_slice(b"%25"),
            b'?' => self.out.extend_from_slice(b"%3F"),
            b'#' => self.out.extend_from_slice(b"%23"),
            _ => self.out.push(byte),
        }
    }

    /// Trims the open segment, and drops it if nothing is left or it is a dot segment.
    fn close(&mut self) {
        self.trim(is_blank);
        match self.out.get(self.start..) {
            Some(b"/..") => {
                self.out.truncate(self.start);
                let parent = self.out.iter().rposition(|byte| *byte == b'/');
                self.out.truncate(parent.unwrap_or(0));
            }
            _ => self.trim(|byte| is_blank(byte) || byte == b'.'),
        }
        if self.out.len() == self.start + 1 {
            self.out.truncate(self.start);
        }
    }

    fn trim(&mut self, what: impl Fn(u8) -> bool) {
        while self.out.last().is_some_and(|byte| what(*byte)) {
            self.out.pop();
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.close();
        if self.out.is_empty() {
            self.out.push(b'/');
        }
        self.out
    }
}

fn is_blank(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(target: &str) -> String {
        String::from_utf8(path(target.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn every_spelling_of_a_path_has_one_normal_form() {
        for target in [
            "/api/orders",
            "/api/orders/",
            "/api/orders//",
            "//api///orders",
            "/api/orders?a=/../b",
            "/api/orders#top",
            "/./api/./orders/.",
            "/x/../api/orders",
            "/x/%2e%2E/api/orders",
            "/../../api/orders",
            "/api/x/y/../../orders",
            "/x/..;/api/orders",
            "/x;a/..;b/api/orders",
            "/x/..%20/api/orders",
            "/api;x=1/orders",
            "/api/orders;jsessionid=1;v=2",
            "/api/orders%3bv=1",
            "/;/api/orders",
            "/api%20/orders",
            "/%20api/orders",
            "/api/orders%20",
            "/api/orders%09%0a",
            "/api/orders%00",
            "/api/orders%7f",
            "/api./orders.",
            "/api/orders.%20.",
            "/api/.../orders",
            "/%61pi/%6F%72ders",
            "/api%2forders",
            "/api%2Forders",
            "/api\\orders",
            "/api%5corders",
            "/x%2f..%2fapi%2forders",
            "api/orders",
        ] {
            assert_eq!(normal(target), "/api/orders", "{target}");
        }
    }

    #[test]
    fn what_could_be_another_resource_stays_another() {
        for (target, expected) in [
            ("/", "/"),
            ("", "/"),
            ("?a", "/"),
            ("/..", "/"),
            ("/%2f;/", "/"),
            ("*", "*"),
            ("/*", "/*"),
            ("/API/Orders", "/API/Orders"),
            ("/api/orders.json", "/api/orders.json"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a..b/c.d", "/a..b/c.d"),
            ("/a b", "/a b"),
            ("/a%20b", "/a b"),
            ("/a+b", "/a+b"),
            ("/a%3Fb%23c%25d", "/a%3Fb%23c%25d"),
            ("/%", "/%25"),
            ("/%zz", "/%25zz"),
            ("/%252e%252e/a", "/%252e%252e/a"),
            ("/caf%C3%A9", "/café"),
            ("/a%00b", "/a\0b"),
            ("/a,b=c:d@e!$&'()~_-", "/a,b=c:d@e!$&'()~_-"),
        ] {
            assert_eq!(normal(target), expected, "{target}");
        }
        // An overlong slash is two bytes like any others.
        assert_eq!(&*path(b"/a%c0%afb"), b"/a\xc0\xafb");
    }

    #[test]
    fn a_plain_path_is_not_copied() {
        for target in ["/", "/api/orders/4711", "/a.b/c-d?x", "/caf\u{e9}"] {
            assert!(matches!(path(target.as_bytes()), Cow::Borrowed(_)));
        }
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own(target in "[/a.;%?# \\\\2fFeE0\u{7f}5cB*]{0,24}") {
            let once = path(target.as_bytes()).into_owned();
            prop_assert_eq!(&*path(&once), &*once);
            prop_assert_eq!(fold(target.as_bytes()), once.clone());
            prop_assert!(once.len() <= 3 * target.len() + 1);
        }

        #[test]
        fn any_bytes_have_one(target in proptest::collection::vec(any::<u8>(), 0..64)) {
            let once = path(&target).into_owned();
            prop_assert_eq!(&*path(&once), &*once);
            prop_assert_eq!(fold(&target), once);
        }
    }
}
