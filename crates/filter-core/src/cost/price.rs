//! The cost of a request when it arrives.

use policy::{Pricing, RequestPlace, whole_number};

use super::RequestBody;
use crate::request::{Extracted, LimitCheck, Request};

impl LimitCheck {
    /// Sets the cost of a request if the limit's is not a fixed number: units, or the units that it
    /// reserves until its response ends. `body`: its body, if it was read.
    pub(crate) fn price(
        &mut self,
        request: &impl Request,
        entries: &Extracted,
        body: Option<&RequestBody>,
    ) {
        let number = |place: &RequestPlace| match place {
            RequestPlace::Header(name) => whole_number(request.header(name)?),
            RequestPlace::Json(pointer) => body?.number(pointer),
        };
        let units = match self.limit.pricing.as_deref() {
            None => return,
            Some(Pricing::Request(price)) => price.units(number, entries),
            Some(Pricing::Response(price)) => {
                let most = self.limit.quota.algorithm().limit();
                price.reserve.units(most, number)
            }
        };
        self.cost = units;
    }
}
