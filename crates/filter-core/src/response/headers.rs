//! Rate limit headers of responses.

use filter_config::Styles;

use super::{
    QuotaStatus,
    text::{push_item, push_number, push_parameter},
};

/// The headers of a response that is about to leave for the client.
pub trait ResponseHeaders {
    /// The first value of a header.
    fn get(&self, name: &str) -> Option<Vec<u8>>;
    /// Sets a header, replacing its values.
    fn set(&mut self, name: &'static str, value: &str);
    /// Adds a value to a header and keeps its other values.
    fn add(&mut self, name: &'static str, value: &str);
}

/// The quotas that a response shows: of limits that are neither hidden nor in shadow mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaHeaders {
    pub(crate) quota_statuses: Vec<QuotaStatus>,
}

impl QuotaHeaders {
    /// The limit with the least units left; of several, the one that takes longest to reset.
    fn tightest(&self) -> Option<&QuotaStatus> {
        let key = |s: &&QuotaStatus| (s.remaining, std::cmp::Reverse(s.reset_after_ms));
        self.quota_statuses.iter().min_by_key(key)
    }
}

/// Adds the rate limit headers. The upstream's own headers stay if they are tighter.
pub(crate) fn write_headers(
    quotas: &QuotaHeaders,
    styles: Styles,
    headers: &mut impl ResponseHeaders,
) {
    let Some(tightest) = quotas.tightest() else {
        return;
    };
    // One buffer for all values.
    let mut value = String::with_capacity(40 * quotas.quota_statuses.len());
    // Headers that are read come first: a read makes Envoy build an index.
    if styles.x_ratelimit || styles.spring {
        write_tightest(tightest, styles, &mut value, headers);
    }
    if styles.ratelimit {
        write_lists(&quotas.quota_statuses, &mut value, headers);
    }
}

/// Headers with one number each, from the tightest limit.
fn write_tightest(
    tightest: &QuotaStatus,
    styles: Styles,
    value: &mut String,
    headers: &mut impl ResponseHeaders,
) {
    const REMAINING: &str = "x-ratelimit-remaining";
    let theirs = headers.get(REMAINING);
    let number = |value: &[u8]| std::str::from_utf8(value).ok()?.trim().parse::<u64>().ok();
    let upstream = theirs.as_deref().and_then(number);
    if upstream.is_some_and(|remaining| remaining <= tightest.remaining) {
        return;
    }
    value.clear();
    push_number(value, tightest.remaining);
    // An absent header is added, which saves another search.
    match theirs {
        Some(_) => headers.set(REMAINING, value),
        None => headers.add(REMAINING, value),
    }
    // An upstream may set these without `x-ratelimit-remaining`.
    let mut set = |name, number| {
        value.clear();
        push_number(value, number);
        headers.set(name, value);
    };
    if styles.x_ratelimit {
        set("x-ratelimit-limit", tightest.quota);
        set("x-ratelimit-reset", seconds(tightest.reset_after_ms));
    }
    if styles.spring {
        set("x-ratelimit-replenish-rate", per_second(tightest));
        set("x-ratelimit-burst-capacity", tightest.quota);
        set("x-ratelimit-requested-tokens", tightest.cost);
    }
}

/// Headers with lists: the items of several rate limiters on the path are listed together.
fn write_lists(
    quota_statuses: &[QuotaStatus],
    value: &mut String,
    headers: &mut impl ResponseHeaders,
) {
    value.clear();
    push_list(value, quota_statuses, |out, quota_status| {
        push_parameter(out, 'q', quota_status.quota);
        push_parameter(out, 'w', seconds(quota_status.window_ms));
    });
    headers.add("ratelimit-policy", value);
    value.clear();
    push_list(value, quota_statuses, |out, quota_status| {
        push_parameter(out, 'r', quota_status.remaining);
        push_parameter(out, 't', seconds(quota_status.reset_after_ms));
    });
    headers.add("ratelimit", value);
}

/// An item for each limit, like `"per-user";q=20;w=2` or `"per-user";r=19;t=1`.
fn push_list(
    out: &mut String,
    quota_statuses: &[QuotaStatus],
    parameters: fn(&mut String, &QuotaStatus),
) {
    for (at, quota_status) in quota_statuses.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        push_item(out, quota_status.limit.as_str());
        parameters(out, quota_status);
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

/// The rate in whole units per second, rounded down.
fn per_second(quota_status: &QuotaStatus) -> u64 {
    let per_window = u128::from(quota_status.quota) * 1000;
    u64::try_from(per_window / u128::from(quota_status.window_ms.max(1))).unwrap_or(u64::MAX)
}

/// `Retry-After` for a wait.
pub(super) fn retry_after(wait_ms: u64) -> String {
    let mut value = String::with_capacity(8);
    push_number(&mut value, seconds(wait_ms).max(1));
    value
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    pub(crate) struct Recorded(pub(crate) BTreeMap<String, Vec<String>>);

    impl Recorded {
        pub(crate) fn with(headers: &[(&str, &str)]) -> Self {
            let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), vec![(*v).to_owned()]);
            Self(headers.iter().map(owned).collect())
        }

        pub(crate) fn all(&self) -> String {
            let line = |(k, v): (&String, &Vec<String>)| format!("{k}: {}\n", v.join(" | "));
            self.0.iter().map(line).collect()
        }
    }

    impl ResponseHeaders for Recorded {
        fn get(&self, name: &str) -> Option<Vec<u8>> {
            Some(self.0.get(name)?.first()?.clone().into_bytes())
        }
        fn set(&mut self, name: &'static str, value: &str) {
            self.0.insert(name.to_owned(), vec![value.to_owned()]);
        }
        fn add(&mut self, name: &'static str, value: &str) {
            self.0
                .entry(name.to_owned())
                .or_default()
                .push(value.to_owned());
        }
    }

    pub(crate) fn quota_status(limit: &str, remaining: u64, reset_after_ms: u64) -> QuotaStatus {
        QuotaStatus {
            limit: limit.parse().unwrap(),
            quota: 20,
            window_ms: 2000,
            remaining,
            reset_after_ms,
            cost: 1,
        }
    }

    const EVERY: Styles = Styles {
        ratelimit: true,
        x_ratelimit: true,
        retry_after: true,
        spring: true,
    };

    #[test]
    fn all_limits_are_listed_and_the_tightest_is_shown() {
        let quota_statuses = vec![
            quota_status("per-user", 7, 1300),
            quota_status("per-tenant", 3, 100),
            quota_status("per-path", 3, 1701),
        ];
        let mut headers = Recorded::default();
        write_headers(&QuotaHeaders { quota_statuses }, EVERY, &mut headers);
        insta::assert_snapshot!(headers.all(), @r#"
        ratelimit: "per-user";r=7;t=2, "per-tenant";r=3;t=1, "per-path";r=3;t=2
        ratelimit-policy: "per-user";q=20;w=2, "per-tenant";q=20;w=2, "per-path";q=20;w=2
        x-ratelimit-burst-capacity: 20
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 3
        x-ratelimit-replenish-rate: 10
        x-ratelimit-requested-tokens: 1
        x-ratelimit-reset: 2
        "#);
    }

    #[test]
    fn an_upstream_that_is_tighter_keeps_its_headers() {
        let quotas = QuotaHeaders {
            quota_statuses: vec![quota_status("per-user", 7, 1300)],
        };
        for (theirs, kept) in [("5", true), ("7", true), ("8", false), ("many", false)] {
            let mut headers = Recorded::with(&[
                ("x-ratelimit-limit", "9"),
                ("x-ratelimit-remaining", theirs),
                ("ratelimit", "\"theirs\";r=5;t=9"),
            ]);
            write_headers(&quotas, Styles::default(), &mut headers);
            let limit = &headers.0["x-ratelimit-limit"];
            assert_eq!(limit, &[if kept { "9" } else { "20" }], "{theirs}");
            assert_eq!(
                headers.0["ratelimit"],
                ["\"theirs\";r=5;t=9", "\"per-user\";r=7;t=2"]
            );
        }
    }

    #[test]
    fn incomplete_upstream_headers_are_replaced() {
        let quotas = QuotaHeaders {
            quota_statuses: vec![quota_status("per-user", 7, 1300)],
        };
        let mut headers = Recorded::with(&[("x-ratelimit-limit", "9"), ("x-ratelimit-reset", "1")]);
        write_headers(&quotas, Styles::default(), &mut headers);
        assert_eq!(headers.0["x-ratelimit-limit"], ["20"]);
        assert_eq!(headers.0["x-ratelimit-remaining"], ["7"]);
        assert_eq!(headers.0["x-ratelimit-reset"], ["2"]);
    }

    #[test]
    fn no_quotas_add_no_headers() {
        let mut headers = Recorded::default();
        write_headers(&QuotaHeaders::default(), EVERY, &mut headers);
        assert_eq!(headers.all(), "");
    }

    #[test]
    fn a_wait_is_rounded_up_to_whole_seconds() {
        assert_eq!([1, 999, 1000, 1001].map(retry_after), ["1", "1", "1", "2"]);
    }
}
