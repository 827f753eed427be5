//! `penalty`: how many denials deny a bucket altogether, and for how long.

use algorithms::{Kind, Penalty};
use documents::{Field, Report, Take, Value};

use crate::{
    OverLimit, Scope,
    read::{pricing::Around, together::refuse},
};

pub(super) const PENALTY_FIELDS: [&str; 3] = ["after", "within", "for"];

/// The largest `after` of a penalty.
const AFTER_MAX: u64 = 1_000_000;
const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 86_400_000;
const WEEK_MS: u64 = 7 * DAY_MS;

const EXAMPLE: &str = "like `penalty: {after: 10, within: 1m, for: 15m}`";

/// The penalty; `None` without one, or with problems. Messages are constant texts, because the
/// filter contains them, too.
pub(super) fn read_penalty(take: &mut Take<'_, '_>) -> Option<Penalty> {
    let field = take.field("penalty")?;
    let report = &mut *take.report;
    if !matches!(field.node.value, Value::Map(_)) {
        field.expected("a map of fields", report).push_hint(EXAMPLE);
        return None;
    }
    let (mut after, mut within_ms, mut for_ms) = (None, None, None);
    field.read_map(&PENALTY_FIELDS, report, &mut |take| {
        after = read_after(take);
        within_ms = read_time(take, "within", DAY_MS, "a duration from 1s to 1d");
        for_ms = read_time(take, "for", WEEK_MS, "a duration from 1s to 7d");
    })?;
    let missing = |name: &&str| field.node.get(name).is_none();
    if PENALTY_FIELDS.iter().any(missing) {
        field
            .report(report, "a penalty needs `after`, `within` and `for`")
            .push_hint(EXAMPLE);
    }
    Some(Penalty {
        after: after?,
        within_ms: within_ms?,
        for_ms: for_ms?,
    })
}

fn read_after(take: &mut Take<'_, '_>) -> Option<u64> {
    let field = take.field("after")?;
    let denials = field.integer(1, take.report)?;
    if denials > AFTER_MAX {
        field.expected("at most 1000000 denials", take.report);
    }
    Some(denials)
}

/// A time of at least a second, in milliseconds.
fn read_time<'p>(take: &mut Take<'_, 'p>, name: &'p str, most_ms: u64, what: &str) -> Option<u64> {
    let field = take.field(name)?;
    let ms = field.duration(take.report)?;
    if !(SECOND_MS..=most_ms).contains(&ms) {
        field.expected(what, take.report);
    }
    Some(ms)
}

/// Refuses a penalty if the store does not count every denial, or if a denial does not last for a time.
pub(super) fn check_penalty(limit: &Field<'_>, around: &Around, report: &mut Report) {
    if limit.node.get("penalty").is_none() {
        return;
    }
    let mut refuse = |given: bool, message: &'static str, hint: &'static str| {
        if given {
            refuse(limit, "penalty", message, report).push_hint(hint);
        }
    };
    refuse(
        around.over_limit == OverLimit::Degrade,
        "`penalty` on a limit that denies nothing",
        "requests over it pass, marked: remove `penalty`, or use `over_limit: reject`",
    );
    refuse(
        around.scope == Scope::Proxy,
        "`penalty` on a limit that is checked in the proxy",
        "the store counts the denials of all proxies: remove `penalty`, or use `scope: global`",
    );
    refuse(
        limit.node.get("lease").is_some(),
        "`penalty` on a limit that is leased",
        "proxies use leased units until they expire, penalty or not: remove `penalty` or `lease`",
    );
    refuse(
        around.kind == Some(Kind::Concurrency),
        "`penalty` on a limit on requests in flight",
        "it denies until a request ends: remove `penalty`, or put it on a limit with a `rate`",
    );
}
