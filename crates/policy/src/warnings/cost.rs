//! Costs with which a request never passes, rates that a bucket does not reach, and reserves from bodies that no
//! proxy reads.

use algorithms::{Kind, Numbers};

use super::{Found, REQUEST_BODY, REQUEST_BODY_PASSES, Surroundings};
use crate::{IfAbsent, Limit, Pricing, Quota};

/// Warns if the reserve comes from bodies that no proxy reads.
pub(super) fn of_reserve(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let price = limit.response_price();
    let in_body = price.is_some_and(|price| price.reserve.pointers().next().is_some());
    let Some(supply) = around.supply.filter(|_| in_body) else {
        return;
    };
    let supplies = |entry| supply.entries.iter().any(|name| name.as_str() == entry);
    let (what, hint) = if supplies(REQUEST_BODY_PASSES) {
        let file = supply.source.unwrap_or("Envoy's configuration");
        let what = format!(
            "a plugin with `{REQUEST_BODY}` in {file} lacks `allow_on_headers_stop_iteration: true`: such \
             requests wait a second in vain"
        );
        (
            what,
            "set it beside the plugin's `configuration`; Istio's WasmPlugin cannot",
        )
    } else if supplies(REQUEST_BODY) {
        return;
    } else {
        let what = match supply.source {
            Some(file) => format!("{file} has no `{REQUEST_BODY}`"),
            None => "no live proxy reads bodies of requests".to_owned(),
        };
        let hint = "set it in the filter's configuration, and `allow_on_headers_stop_iteration` in \
                    Envoy's; Istio's WasmPlugin cannot";
        (what, hint)
    };
    let message = format!("{what}, so `request_json` never says what is reserved");
    found.warn("cost.reserve.from", message, Some(hint.to_owned()));
}

/// Warns if nothing bounds what a response costs whose cost cannot be read, or if the bound is below
/// what is reserved for each.
pub(super) fn of_max(limit: &Limit, found: &mut Found<'_>) {
    let Some(price) = limit.response_price() else {
        return;
    };
    let (max, reserve) = (price.max, price.reserve.default);
    if max < reserve {
        let message = format!(
            "no response costs more than {max}, and {reserve} are reserved for each: some is always given back"
        );
        let hint = "raise `max`, or lower `reserve`".to_owned();
        return found.warn("cost.max", message, Some(hint));
    }
    let unbounded = !price.has_max() && !price.has_status();
    let why = match price.if_absent {
        IfAbsent::Estimate if unbounded => {
            "whose body cannot be read (it is compressed, for instance)"
        }
        IfAbsent::Max if unbounded => "that does not say its cost",
        _ => return,
    };
    let message = format!("without `max`, a response {why} costs what a whole bucket holds");
    let hint = "set `max` to the most that a response can cost".to_owned();
    found.warn("cost", message, Some(hint));
}

/// A request that costs more than a bucket ever holds never passes. A quota of nothing is meant
/// to deny everything.
pub(super) fn of_cost(limit: &Limit, found: &mut Found<'_>) {
    let units = limit.cost;
    let hint = match limit.quota.parameters().burst {
        Some(_) => "give it a `burst` of at least its `cost`",
        None => "raise `burst` or the `rate`, or lower the `cost`",
    };
    let price = Price {
        field: "cost",
        units,
        hint,
        of_override: format!("the limit's `cost` is {units}"),
    };
    price.check(limit, found, |most| {
        format!(
            "a request costs {units} and a bucket holds {most}: every request is over the limit"
        )
    });
}

/// As [`of_cost`], for each price that a request can have at a limit.
pub(super) fn of_prices(limit: &Limit, found: &mut Found<'_>) {
    let Some(Pricing::Request(price)) = limit.pricing.as_deref() else {
        return;
    };
    let from = price.from.iter().map(|value| value.min).enumerate();
    let from = from.map(|(n, units)| (format!("cost.from[{n}].min"), units));
    let table = price.table.iter().map(|row| row.units).enumerate();
    let table = table.map(|(n, units)| (format!("cost.table[{n}].units"), units));
    let default = [("cost.default".to_owned(), price.default)];
    for (field, units) in from.chain(table).chain(default) {
        let price = Price {
            field: &field,
            units,
            hint: "raise `burst` or the `rate`, or lower what it costs",
            of_override: format!("`{field}` is {units}"),
        };
        price.check(limit, found, |most| {
            format!(
                "such a request costs {units} and a bucket holds {most}: each is over the limit"
            )
        });
    }
}

/// A bucket refills up to its burst in each millisecond: what a higher rate would add is lost, and so is what
/// refills while less than a request's cost is missing.
pub(super) fn of_burst(limit: &Limit, found: &mut Found<'_>) {
    let own = [("burst".to_owned(), limit.quota)];
    let more = overrides(limit).map(|(n, quota)| (format!("overrides[{n}]"), quota));
    for (field, quota) in own.into_iter().chain(more) {
        let Some(reached) = reached_percent(&quota, limit.cost.max(1)) else {
            continue;
        };
        let Numbers {
            limit: burst, x, y, ..
        } = quota.algorithm().numbers();
        let message = format!(
            "time counts in milliseconds, so requests that come evenly get about {reached} % of the rate from a \
             bucket that holds {burst}"
        );
        let enough = limit.cost.max(1).saturating_add(y.div_ceil(x));
        let hint = format!("a `burst` of {enough} reaches the rate");
        found.warn(&field, message, Some(hint));
    }
}

/// How much of its rate a used-up bucket admits, if that is less than 90 %.
fn reached_percent(quota: &Quota, cost: u64) -> Option<u64> {
    /// A request that refills for longer loses less than a fiftieth to rounding.
    const LONG_MS: u64 = 50;
    const STEPS: u64 = 1000;
    let bucket = matches!(
        quota.parameters().kind,
        Kind::TokenBucket | Kind::Gcra | Kind::LeakyBucket
    );
    // In parts of a unit.
    let Numbers { limit, x, y, .. } = quota.algorithm().numbers();
    let (full, one) = (limit.checked_mul(x)?, cost.checked_mul(x)?);
    let enough = one.checked_add(y).is_none_or(|enough| full >= enough);
    if !bucket || one > full || enough || one / y >= LONG_MS {
        return None;
    }
    let (mut debt, mut admitted) = (full, 0_u128);
    for _ in 0..STEPS {
        debt = debt.saturating_sub(y);
        let fit = (full - debt) / one * one;
        debt += fit;
        admitted += u128::from(fit);
    }
    let percent = admitted * 100 / (u128::from(y) * u128::from(STEPS));
    u64::try_from(percent).ok().filter(|percent| *percent < 90)
}

/// What a request costs, and what to report if no bucket can hold that.
struct Price<'p> {
    field: &'p str,
    units: u64,
    hint: &'p str,
    /// The hint if only a bucket with an override cannot.
    of_override: String,
}

impl Price<'_> {
    fn check(&self, limit: &Limit, found: &mut Found<'_>, message: impl Fn(u64) -> String) {
        let too_dear = |quota: &Quota| most(quota) > 0 && self.units > most(quota);
        if too_dear(&limit.quota) {
            let message = message(most(&limit.quota));
            return found.warn(self.field, message, Some(self.hint.to_owned()));
        }
        for (n, quota) in overrides(limit).filter(|(_, quota)| too_dear(quota)) {
            let (field, hint) = (format!("overrides[{n}]"), self.of_override.clone());
            found.warn(&field, message(most(&quota)), Some(hint));
        }
    }
}

/// The most units that a bucket holds.
fn most(quota: &Quota) -> u64 {
    quota.algorithm().limit()
}

/// The quotas of overrides, by their places.
pub(super) fn overrides(limit: &Limit) -> impl Iterator<Item = (usize, Quota)> {
    let overrides = limit.overrides.iter().enumerate();
    overrides.filter_map(|(n, one)| Some((n, one.quota.of(&limit.quota)?)))
}
