//! Costs that are not a fixed number: read from the request, or reserved when it arrives and settled
//! when its response ends.

mod body_reader;
mod json_reader;
mod meter;
mod request_body;

pub(crate) use meter::{Meter, Metered, Settled};
pub use meter::{Metering, Response};
pub use request_body::{Body, BodyNeed};
pub(crate) use request_body::{RequestBodies, RequestBody};
