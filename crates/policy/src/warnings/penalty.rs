//! Penalties that change nothing.

use algorithms::Kind;
use documents::Duration;

use super::Found;
use crate::Limit;

/// A full window denies the rest of its time with or without a penalty, unless that ends later.
pub(super) fn of_penalty(limit: &Limit, found: &mut Found<'_>) {
    let parameters = limit.quota.parameters();
    let (Some(penalty), Kind::FixedWindow) = (limit.penalty, parameters.kind) else {
        return;
    };
    let window_ms = parameters.rate.period_ms;
    if penalty.for_ms < window_ms {
        let (lasts, window) = (Duration(penalty.for_ms), Duration(window_ms));
        let message = format!(
            "a penalty of {lasts} is shorter than the window of {window}, and a full window denies its \
             rest anyway"
        );
        let hint = "most penalties would end before their window: use a longer `for`, or another algorithm";
        found.warn("penalty.for", message, Some(hint.to_owned()));
    }
}
