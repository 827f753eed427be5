//! What a cost with fields cannot be combined with.

use algorithms::Kind;
use documents::{Field, Report};

use crate::{OverLimit, Pricing, Scope, read::together::refuse};

/// The other settings of the limit that a cost has to fit.
pub(in crate::read) struct Around {
    pub(in crate::read) kind: Option<Kind>,
    pub(in crate::read) over_limit: OverLimit,
    pub(in crate::read) scope: Scope,
    pub(in crate::read) service: bool,
}

impl Around {
    pub(in crate::read) fn new(
        kind: Option<Kind>,
        over_limit: OverLimit,
        scope: Scope,
        service: bool,
    ) -> Self {
        Self {
            kind,
            over_limit,
            scope,
            service,
        }
    }
}

/// Refuses what a cost with fields cannot be combined with.
pub(in crate::read) fn check_pricing(
    limit: &Field<'_>,
    pricing: Option<&Pricing>,
    around: &Around,
    report: &mut Report,
) {
    let Some(pricing) = pricing else { return };
    let mut refuse = |name: &str, message: &'static str, hint: &'static str| {
        refuse(limit, name, message, report).push_hint(hint);
    };
    if around.service {
        refuse(
            "cost",
            "a cost with fields on a limit that has a `descriptor`",
            "calls of the rate limit service say what they cost: `hits_addend`",
        );
    }
    if limit.node.get("lease").is_some() {
        refuse(
            "lease",
            "`lease` on a limit whose cost is not one number",
            "units in advance are for requests that all cost the same: remove `lease`",
        );
    }
    if matches!(pricing, Pricing::Request(_)) {
        return;
    }
    if around.over_limit == OverLimit::Queue {
        refuse(
            "over_limit",
            "a queue with a cost from the response",
            "a turn in a queue is as long as its request costs: use `over_limit: reject`",
        );
    }
    if around.scope == Scope::Proxy {
        refuse(
            "scope",
            "a cost from the response on a limit that is kept in a proxy",
            "only the store settles: use `scope: global`",
        );
    }
    if limit.node.get("precheck").is_some() {
        refuse(
            "precheck",
            "`precheck` with a cost from the response",
            "the bucket in front would never get back what is not used: remove `precheck`",
        );
    }
}
