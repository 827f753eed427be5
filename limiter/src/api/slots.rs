//! `POST /v1/release` and `POST /v1/renew`: slots of requests in flight that programs hold.

use std::sync::Arc;

use hyper::{StatusCode, body::Incoming};
use protocol::{CHECK_JSON, json};
use tokio::time::Instant;

use super::{Answered, Api, refusal};
use crate::serve::{self, Peer};

impl Api {
    /// Frees slots or, with `renew`, keeps them. Both may be repeated.
    pub(super) async fn slots(&self, body: Incoming, peer: Arc<Peer>, renew: bool) -> Answered {
        let parse = move |bytes: &[u8]| json::parse_slots(bytes, renew);
        let (request, _held) = self.receive_uncharged(body, peer, parse).await?;
        if renew {
            self.are_in_flight(&request)?;
        }
        let deadline = Instant::now() + self.bounds.store_timeout;
        let decided = self
            .decide(&request.domain, request.checks, deadline, None)
            .await?;
        if let Some(error) = decided.all_failed() {
            return Err(error);
        }
        let results = decided
            .decisions
            .iter()
            .map(|decision| decision.as_ref().map_err(refusal::of_check));
        let reply = json::renewed_reply(request.batch, results)?;
        Ok(serve::answer(StatusCode::OK, CHECK_JSON, reply))
    }

    /// Refuses the slot of a queue: it is a start time, and cannot be renewed.
    fn are_in_flight(&self, request: &json::Request) -> Result<(), protocol::ApiError> {
        let policy = self.active(&request.domain)?;
        let compiled = &policy.compiled;
        for slot in request.checks.iter().flat_map(|check| &check.free) {
            let limit = compiled.position(slot.limit.as_str());
            let limit = limit.and_then(|at| compiled.limit(at));
            if limit.is_some_and(|limit| !limit.gives_slots()) {
                let message = format!("{} is no limit on requests in flight", slot.limit);
                return Err(refusal::invalid("slots", message));
            }
        }
        Ok(())
    }
}
