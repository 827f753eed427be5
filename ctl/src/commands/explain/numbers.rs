//! The numbers of the bucket that a limit has for a request.

use insight::Window;
use policy::{Compiled, Descriptor, Match, Pricing, RequestPlace, Resolved};

use crate::{
    clock,
    render::{changes::format_map, counted},
};

fn in_force(compiled: &Compiled, of: &Match<'_, '_>) -> Option<Resolved> {
    compiled.quota_for(of.index, &of.values, clock::now_ms())
}

/// The numbers of the bucket, if they differ from the limit's own.
pub(super) fn quota(compiled: &Compiled, of: &Match<'_, '_>) -> Option<String> {
    let found = compiled.override_for(of.index, &of.values)?;
    match in_force(compiled, of)? {
        Resolved::Unlimited => Some("unlimited, by its override".to_owned()),
        Resolved::Quota(quota) if quota != of.limit.quota => {
            let mut node = found.to_node(&of.limit.per);
            node.unset("values");
            Some(format!("by its override: {}", format_map(&node, " ", ", ")))
        }
        Resolved::Quota(_) => None,
    }
}

/// The window that the bucket counts in now.
pub(super) fn window(compiled: &Compiled, of: &Match<'_, '_>) -> Option<Window> {
    match in_force(compiled, of)? {
        Resolved::Quota(quota) => Window::of(&quota, clock::now_ms()),
        Resolved::Unlimited => None,
    }
}

/// The request's cost, if the request or its response says it.
pub(super) fn cost(
    compiled: &Compiled,
    of: &Match<'_, '_>,
    descriptor: &Descriptor,
) -> Option<String> {
    let pricing = of.limit.pricing.as_deref()?;
    let capacity = match in_force(compiled, of)? {
        Resolved::Quota(quota) => quota.algorithm().limit(),
        Resolved::Unlimited => return None,
    };
    let units = counted(of.limit.units_of(descriptor, capacity), "unit");
    Some(match pricing {
        Pricing::Response(price) if price.reserve.pointers().next().is_some() => {
            format!("{units}, or what the request's body says, reserved until the response says it")
        }
        Pricing::Response(_) => format!("{units}, reserved until the response says it"),
        Pricing::Request(price) => match price.from.first().map(|value| &value.place) {
            Some(RequestPlace::Header(name)) => {
                format!("{units}, unless the header {name} says it")
            }
            Some(RequestPlace::Json(_)) | None => units,
        },
    })
}
