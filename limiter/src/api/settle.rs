//! `POST /v1/settle`: the true cost of what a program reserved.

use std::sync::Arc;

use hyper::body::Incoming;
use protocol::json;
use tokio::time::Instant;

use super::{Answered, Api, check::single_response};
use crate::serve::Peer;

impl Api {
    /// Settles reservations; the answer is that of a check which charges nothing. It may be repeated.
    pub(super) async fn settle(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let received = self.receive_uncharged(body, peer, json::parse_settle);
        let (request, _held) = received.await?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&request.domain, request.checks, deadline, None)
            .await?;
        single_response(&decided, None, hyper::StatusCode::OK, None)
    }
}
