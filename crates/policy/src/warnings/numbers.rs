//! Numbers that do less than they say: costs beyond what a bucket owes, and zones whose sign misleads.

use algorithms::{DEBT_MAX_CAPACITIES, Kind};

use super::{Found, cost::overrides};
use crate::{Limit, Quota};

/// A bucket owes [`DEBT_MAX_CAPACITIES`] at most: what a response costs beyond that is charged to nobody.
pub(super) fn of_debt(limit: &Limit, found: &mut Found<'_>) {
    let Some(price) = limit.response_price().filter(|price| price.has_max()) else {
        return;
    };
    let owes = |quota: &Quota| {
        let capacity = quota.algorithm().limit();
        capacity.saturating_mul(DEBT_MAX_CAPACITIES)
    };
    let max = price.max;
    let exceeds = |quota: &Quota| {
        // A window counts everything, until it ends.
        let kind = quota.parameters().kind;
        let is_bounded = matches!(kind, Kind::TokenBucket | Kind::Gcra | Kind::LeakyBucket);
        // A quota of nothing is meant to deny everything.
        is_bounded && (1..max).contains(&owes(quota))
    };
    if exceeds(&limit.quota) {
        let most = owes(&limit.quota);
        let message = format!(
            "a bucket owes {DEBT_MAX_CAPACITIES} times what it holds at most, {most}: what a response costs \
             beyond that is not counted"
        );
        let hint = format!("lower `max` to {most}, or raise `burst` or the `rate`");
        return found.warn("cost.max", message, Some(hint));
    }
    for (n, quota) in overrides(limit).filter(|(_, quota)| exceeds(quota)) {
        let most = owes(&quota);
        let message = format!(
            "such a bucket owes {most} at most, and a response may cost {max}: the rest is not counted"
        );
        let hint = format!("the limit's `max` is {max}");
        found.warn(&format!("overrides[{n}]"), message, Some(hint));
    }
}

/// `Etc/GMT+5` is behind UTC, as POSIX has it, and not ahead as everywhere else.
pub(super) fn of_zone(limit: &Limit, found: &mut Found<'_>) {
    let zone_of = |quota: &Quota| quota.parameters().time_zone;
    let own = [("time_zone".to_owned(), zone_of(&limit.quota))];
    // An override without a zone of its own has the limit's.
    let more =
        overrides(limit).map(|(n, quota)| (format!("overrides[{n}].time_zone"), zone_of(&quota)));
    let more = more.filter(|(_, zone)| *zone != zone_of(&limit.quota));
    for (field, zone) in own.into_iter().chain(more) {
        let Some(offset) = zone.and_then(|zone| zone.strip_prefix("Etc/GMT")) else {
            continue;
        };
        let (way, opposite, other) = match offset.as_bytes().first() {
            Some(b'+') => ("behind", '-', "ahead of"),
            Some(b'-') => ("ahead of", '+', "behind"),
            _ => continue,
        };
        let Some(hours) = offset.get(1..).filter(|hours| *hours != "0") else {
            continue;
        };
        let message = format!(
            "`Etc/GMT{offset}` is {hours} h {way} UTC: the sign is the opposite of the usual"
        );
        let hint = format!(
            "`Etc/GMT{opposite}{hours}` is {hours} h {other} UTC; a region, like Europe/Berlin, says it without a sign"
        );
        found.warn(&field, message, Some(hint));
    }
}
