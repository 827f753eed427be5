//! `POST /v1/report`: decisions that proxies made without a call.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Response, StatusCode, body::Incoming};
use protocol::{ApiError, ErrorCode, compact::Report};

use super::{Answered, Api, refusal};
use crate::serve::Peer;

impl Api {
    /// Counts a report; the answer is empty.
    pub(super) async fn report(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let _place = self
            .bounds
            .inflight
            .enter()
            .ok_or_else(refusal::overloaded)?;
        let address = peer.address;
        let body = self.receive(body, peer).await?;
        let mut report = Report::decode(&body.bytes)
            .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))?;
        let policy = self.active(&report.domain)?;
        let known = |limit: &policy::Name| policy.compiled.position(limit.as_str()).is_some();
        report.tallies.retain(|tally| known(&tally.limit));
        report.denied.retain(|denied| known(&denied.limit));
        if let Some(proxy) = self.fleet.admit(address, &report.proxy) {
            // A proxy that decides by a limit gets a share of it, with or without a call.
            let limits = report.tallies.iter().map(|tally| &tally.limit);
            self.fleet.checked(&report.domain, &proxy, limits);
        } else {
            report.proxy.clear();
        }
        for tally in &report.tallies {
            policy.counters.reported(tally);
        }
        self.telemetry.reported(report);
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}
