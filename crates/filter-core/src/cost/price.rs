//! The cost of a request when it arrives.

use policy::{Pricing, RequestPlace, whole_number};

use super::RequestBody;
use crate::{
    active_policy::ActivePolicy,
    request::{Extracted, LimitCheck, Request},
};

impl ActivePolicy {
    /// Sets the cost of a request at limits where it is not a fixed number: units, or the units that it
    /// reserves until its response ends. `body`: its body, if it was read.
    pub(crate) fn price(
        &self,
        request: &impl Request,
        entries: &Extracted,
        limit_checks: &mut [LimitCheck],
        body: Option<&RequestBody>,
    ) {
        let number = |place: &RequestPlace| match place {
            RequestPlace::Header(name) => whole_number(request.header(name)?),
            RequestPlace::Json(pointer) => body?.number(pointer),
        };
        for limit_check in limit_checks {
            let limit = self.compiled.limit(limit_check.at);
            let Some((limit, pricing)) =
                limit.and_then(|limit| Some((limit, limit.pricing.as_deref()?)))
            else {
                continue;
            };
            limit_check.cost = match pricing {
                Pricing::Request(price) => price.units(number, entries),
                Pricing::Response(price) => {
                    price.reserve.units(limit.quota.algorithm().limit(), number)
                }
            };
        }
    }
}
