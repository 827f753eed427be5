//! Costs that are not a fixed number: read from the request, or reserved when it arrives and settled
//! when its response ends.

mod body_reader;
mod event_lines;
mod event_search;
mod json_reader;
mod meter;
mod metered;
mod price;
mod request_body;

pub use meter::Response;
pub(crate) use meter::{Meter, Settled};
pub(crate) use metered::Metered;
pub use metered::Metering;
pub use request_body::{Body, BodyNeed};
pub(crate) use request_body::{RequestBodies, RequestBody};
