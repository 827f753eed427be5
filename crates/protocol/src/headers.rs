//! Headers and content types of the limiter's API.

use std::fmt::Write;

use policy::Name;

/// The header that every answer of a limiter carries. One without it is not from a limiter.
pub const API_HEADER: &str = "x-rl-api";
/// The value of [`API_HEADER`].
pub const API_VERSION: &str = "1";
/// The header with the number of the domain's revision.
pub const REVISION_HEADER: &str = "x-rl-revision";
/// The key for the whole domain in [`PROXIES_HEADER`]; no limit has this name. Its count applies to
/// limits that are not listed.
pub const ALL_LIMITS: &str = "*";
/// The header with the live proxies of each limit: see [`format_proxies`].
pub const PROXIES_HEADER: &str = "x-rl-proxies";
/// The content type of [`crate::json`].
pub const CHECK_JSON: &str = "application/json";
/// The content type of [`crate::compact`].
pub const CHECK_CBOR: &str = "application/vnd.rl.check+cbor";

/// The content type of a snapshot of limits as filters read it. Without it in `accept`, it is JSON.
pub const LIMITS_CBOR: &str = "application/vnd.rl.limits+cbor";

/// The content type of a [`crate::compact::Report`].
pub const REPORT_CBOR: &str = "application/vnd.rl.report+cbor";

/// The longest [`PROXIES_HEADER`], in bytes: well within what HTTP clients accept. Limits that do not
/// fit are left out; the count of [`ALL_LIMITS`] applies to them until the answer to a check has
/// theirs.
const MAX_PROXIES: usize = 16_384;

/// `*=4, per-user=3, exports=1`: how many proxies recently sent checks, in all and for each limit.
pub fn format_proxies<'n>(all: u64, limits: impl IntoIterator<Item = (&'n Name, u64)>) -> String {
    let mut text = format!("{ALL_LIMITS}={all}");
    for (limit, count) in limits {
        let before = text.len();
        // Writing to a string cannot fail.
        write!(text, ", {limit}={count}").unwrap_or_default();
        if text.len() > MAX_PROXIES {
            text.truncate(before);
            break;
        }
    }
    text
}

/// Whether this may be the id of a filter: 128 random bits, in hex.
pub fn is_proxy_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads what [`format_proxies`] wrote; invalid items are left out.
pub fn parse_proxies(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split(',').filter_map(|item| {
        let (limit, count) = item.trim().split_once('=')?;
        Some((limit, count.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn live_proxies_round_trip() {
        let limits = [(name("per-user"), 3), (name("exports"), 1)];
        let text = format_proxies(4, limits.iter().map(|(limit, count)| (limit, *count)));
        assert_eq!(text, "*=4, per-user=3, exports=1");
        assert!(parse_proxies(&text).eq([("*", 4), ("per-user", 3), ("exports", 1)]));
        assert!(parse_proxies("").next().is_none());
        assert!(parse_proxies("a, b=, =,c=x,d=-1, e=5").eq([("e", 5)]));
    }

    #[test]
    fn the_header_is_bounded() {
        let limits: Vec<Name> = (0..10_000).map(|n| name(&format!("limit-{n}"))).collect();
        let text = format_proxies(3, limits.iter().map(|limit| (limit, 3)));
        assert!(text.len() <= MAX_PROXIES);
        assert!(parse_proxies(&text).count() > 1000);
        assert!(parse_proxies(&text).all(|(_, count)| count == 3));
    }
}
