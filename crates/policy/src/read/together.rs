//! Fields of a limit that are valid on their own, but not together with others.

use std::borrow::Cow;

use algorithms::Kind;
use documents::{Choice, Field, Name, Path, Report};

use crate::{OverLimit, Scope, quota::Written};

const MAX_PER: usize = 16;

/// A problem with a field that is valid on its own, but not together with others.
pub(super) fn refuse<'r>(
    limit: &Field<'_>,
    name: &str,
    message: impl Into<Cow<'static, str>>,
    report: &'r mut Report,
) -> &'r mut crate::Problem {
    let place = limit.node.get(name).and_then(|node| node.place);
    let path = Path::Field(&limit.path, name);
    report.add(&path, place.or(limit.node.place), message)
}

pub(super) fn check_per(limit: &Field<'_>, per: &[Name], partition: &[Name], report: &mut Report) {
    if per.len() > MAX_PER {
        refuse(limit, "per", format!("more than {MAX_PER} entries"), report);
        return;
    }
    for name in partition {
        if !per.contains(name) {
            let message = format!("`{name}` is not in `per`");
            refuse(limit, "partition", message, report)
                .push_hint("`partition` names the entries of `per` that share a cluster slot");
        }
    }
}

/// The rate limit service answers at once, and only limiters serve it.
pub(super) fn check_service(
    limit: &Field<'_>,
    service: bool,
    over_limit: OverLimit,
    scope: Scope,
    report: &mut Report,
) {
    if !service {
        return;
    }
    let mut refuse = |name, given: bool, hint: &'static str| {
        if given {
            let message = format!("`{name}` on a limit that has a `descriptor`");
            refuse(limit, name, message, report).push_hint(hint);
        }
    };
    let other = over_limit != OverLimit::Reject;
    refuse(
        "over_limit",
        other,
        "the service answers yes or no, at once",
    );
    refuse(
        "scope",
        scope == Scope::Proxy,
        "only limiters decide about it",
    );
}

pub(super) fn check_kind(
    limit: &Field<'_>,
    kind: Option<Kind>,
    over_limit: OverLimit,
    scope: Scope,
    report: &mut Report,
) {
    let Some(kind) = kind else { return };
    if over_limit == OverLimit::Queue && kind != Kind::LeakyBucket {
        let message = format!("a {} cannot queue", Written(kind).word());
        refuse(limit, "over_limit", message, report).push_hint("use `algorithm: leaky_bucket`");
    }
    let unbounded = matches!(
        kind,
        Kind::SlidingWindowLog | Kind::SlidingWindowBuckets | Kind::Concurrency
    );
    if scope == Scope::Proxy && unbounded {
        let message = format!("a {} cannot be kept in a proxy", Written(kind).word());
        refuse(limit, "scope", message, report)
            .push_hint("its state has no small fixed size; `sliding_window` has");
    }
}

/// A request has one slot, which cannot be divided, nor given by a proxy without the store.
pub(super) fn check_slots(limit: &Field<'_>, kind: Option<Kind>, report: &mut Report) {
    if kind != Some(Kind::Concurrency) {
        return;
    }
    for (name, hint) in [
        ("cost", "each request has one slot: remove `cost`"),
        (
            "precheck",
            "the store counts what is in flight: remove `precheck`",
        ),
    ] {
        if limit.node.get(name).is_some() {
            let message = format!("`{name}` on a limit on requests in flight");
            refuse(limit, name, message, report).push_hint(hint);
        }
    }
}
