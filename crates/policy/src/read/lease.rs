//! `lease`: whether units may be taken in advance, and for how long.

use algorithms::{Kind, LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS};
use documents::{Choice, Duration, Field, Path, Report, Take, Value};

use crate::{OverLimit, Quota, Scope, quota::Written, read::numbers::Numbers};

const LEASE_FIELDS: [&str; 1] = ["ttl"];

/// The other settings of the limit that a lease has to fit.
pub(super) struct Beside {
    pub(super) kind: Option<Kind>,
    /// `None` if the limit's own numbers are wrong.
    pub(super) quota: Option<Quota>,
    pub(super) over_limit: OverLimit,
    pub(super) scope: Scope,
}

impl Beside {
    pub(super) fn new(numbers: &Numbers, over_limit: OverLimit, scope: Scope) -> Self {
        Self {
            kind: numbers.kind,
            quota: numbers.quota,
            over_limit,
            scope,
        }
    }
}

/// The ttl, in milliseconds; `None` without a lease, or with problems.
pub(super) fn read_lease(take: &mut Take<'_, '_>, beside: &Beside) -> Option<u64> {
    let lease = take.field("lease")?;
    let report = &mut *take.report;
    let ttl_ms = read_ttl(lease, report);
    if !beside.may_lease(&lease, report) {
        return None;
    }
    let ttl = Field {
        node: lease.node.get("ttl")?,
        path: Path::Field(&lease.path, "ttl"),
    };
    beside.check_ttl(&ttl, ttl_ms?, report)
}

fn read_ttl(lease: Field<'_>, report: &mut Report) -> Option<u64> {
    if let Value::Text(_) = &lease.node.value {
        lease
            .expected("a map of fields", report)
            .push_hint("like `lease: {ttl: 100ms}`");
        return None;
    }
    let mut ttl_ms = None;
    lease.read_map(&LEASE_FIELDS, report, &mut |take| {
        ttl_ms = take.field("ttl").and_then(|ttl| ttl.duration(take.report));
    })?;
    if lease.node.get("ttl").is_none() {
        lease
            .report(report, "a lease needs a `ttl`")
            .push_hint("how long leased units may be used, like `lease: {ttl: 100ms}`");
    }
    ttl_ms
}

impl Beside {
    /// Whether such a limit can lease units at all, whatever its numbers are.
    fn may_lease(&self, field: &Field<'_>, report: &mut Report) -> bool {
        let (what, hint) = match self.kind {
            _ if self.scope == Scope::Proxy => (
                "`lease` on a limit that is checked in the proxy anyway".to_owned(),
                "remove `lease`, or use `scope: global`",
            ),
            _ if self.over_limit == OverLimit::Queue => (
                "`lease` on a queue".to_owned(),
                "a queue gives each request its turn when it comes: remove `lease`, or use \
                 `over_limit: reject`",
            ),
            Some(kind @ Kind::SlidingWindowLog) => (
                format!("`lease` on a {}", Written(kind).word()),
                "it stores when each unit was used: remove `lease`, or use another algorithm, \
                 such as sliding_window",
            ),
            Some(Kind::Concurrency) => (
                "`lease` on a limit on requests in flight".to_owned(),
                "a slot is taken when its request comes: remove `lease`",
            ),
            _ => return true,
        };
        field.report(report, what).push_hint(hint);
        false
    }

    /// Whether the bucket's numbers allow the ttl.
    fn check_ttl(&self, ttl: &Field<'_>, ttl_ms: u64, report: &mut Report) -> Option<u64> {
        let quota = self.quota.as_ref()?;
        let (least, counted) = (Duration(LEASE_TTL_MIN_MS), self.counted());
        let Some(longest_ms) = quota.algorithm().lease_max_ms() else {
            ttl.report(report, format!("{counted} is too short for leases"))
                .push_hint(format!(
                    "a ttl is at most a quarter of it and at least {least}: remove `lease`"
                ));
            return None;
        };
        let longest = Duration(longest_ms);
        if ttl_ms < LEASE_TTL_MIN_MS {
            ttl.report(report, format!("a ttl is at least {least}"))
                .push_hint(format!("for this limit {least} to {longest} would do"));
        } else if ttl_ms > longest_ms {
            let why = if longest_ms == LEASE_TTL_MAX_MS {
                "what is leased to a proxy that dies is missed until its end".to_owned()
            } else {
                format!("that is a quarter of {counted}")
            };
            let at_most = format!("a ttl of at most {longest} would do");
            ttl.report(report, at_most).push_hint(why);
        }
        (LEASE_TTL_MIN_MS..=longest_ms)
            .contains(&ttl_ms)
            .then_some(ttl_ms)
    }

    /// The time that bounds a ttl, in words.
    fn counted(&self) -> &'static str {
        match self.kind {
            Some(Kind::SlidingWindowBuckets) => "the length of a sub-window",
            Some(Kind::FixedWindow | Kind::SlidingWindow) => "the length of the window",
            _ => "the time in which an empty bucket fills",
        }
    }
}
