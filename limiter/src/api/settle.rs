//! `POST /v1/settle`: the true cost of what a program reserved.

use std::sync::Arc;

use hyper::body::Incoming;
use protocol::json;
use tokio::time::Instant;

use super::{Answered, Api, body::Received, check::single_response, refusal};
use crate::serve::Peer;

impl Api {
    /// Settles reservations; the answer is that of a check which charges nothing. It may be repeated.
    pub(super) async fn settle(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let _place = self
            .bounds
            .inflight
            .enter()
            .ok_or_else(refusal::overloaded)?;
        let Received { bytes, mut room } = self.receive(body, peer).await?;
        room.decode().ok_or_else(refusal::no_room)?;
        let bodies = &self.bounds.bodies;
        let request = bodies.decode(bytes, json::parse_settle).await?;
        room.hold(&request.checks).ok_or_else(refusal::no_room)?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&request.domain, request.checks, deadline, None)
            .await?;
        single_response(&decided, None, hyper::StatusCode::OK, None)
    }
}
