//! The limiter's side of a call.

use filter_core::Call;
use protocol::{
    ApiError, ErrorCode,
    compact::{Batch, Report},
};

use super::{Gone, World, network::Answer};

impl World {
    /// Whether a poll already has the newest snapshot.
    pub(super) fn is_current(&self, call: &Call) -> bool {
        let tag = |(name, tag): &(&str, String)| (*name == "if-none-match").then(|| tag.clone());
        match call.headers.iter().find_map(tag) {
            Some(tag) => self.gone.is_none() && tag == self.limiter.etag(),
            None => self.gone.is_some(),
        }
    }

    pub(super) fn execute(&mut self, envoy: usize, call: &Call) -> Answer {
        let api = ("x-rl-api", "1".to_owned());
        if let Some(gone) = self.gone
            && call.path != "/v1/report"
        {
            let mut headers = vec![(":status", "404".to_owned()), api];
            if gone == Gone::Deleted && call.path != "/v1/check" {
                headers.push(("x-rl-revision", "7".to_owned()));
            }
            let error = ApiError::new(ErrorCode::UnknownDomain, "no limits");
            let body = Some(error.to_json().into_bytes());
            return Answer {
                genuine: false,
                headers,
                body,
            };
        }
        let ok = (":status", "200".to_owned());
        if call.path == "/v1/check" {
            self.checks_executed += 1;
            let now_ms = self.limiter_ms();
            self.limiter.now_us = self.now_us;
            self.limiter.envoy = envoy;
            let body = self.limiter.check(call.body.as_deref().unwrap(), now_ms);
            return Answer {
                genuine: false,
                headers: vec![ok, api],
                body: Some(body),
            };
        }
        if call.path == "/v1/report" {
            self.reports
                .push(Report::decode(call.body.as_deref().unwrap()).unwrap());
            return Answer {
                genuine: false,
                headers: vec![(":status", "204".to_owned()), api],
                body: None,
            };
        }
        self.limiter.polled.clone_from(&call.path);
        assert!(
            call.path.starts_with("/v1/policy?domain=shop&proxy="),
            "{}",
            call.path
        );
        let etag = self.limiter.etag();
        if call.headers.contains(&("if-none-match", etag.clone())) {
            let headers = vec![(":status", "304".to_owned()), api, ("etag", etag)];
            return Answer {
                genuine: false,
                headers,
                body: Some(Vec::new()),
            };
        }
        let body = self.limiter.snapshot();
        Answer {
            genuine: false,
            headers: vec![ok, api, ("etag", etag)],
            body: Some(body),
        }
    }

    /// The answer of a limiter whose store refuses: for the whole batch, or for each check (as if one
    /// of several shards refused).
    pub(super) fn untouched(&mut self, call: &Call) -> Answer {
        let api = ("x-rl-api", "1".to_owned());
        let untouched = ErrorCode::StoreUntouched;
        // One that has lost its store decides none of a call's checks.
        if self.one_of_two.is_some() || self.chance.percent(50) {
            let error = ApiError::new(untouched, "the store refused");
            return Answer {
                genuine: false,
                headers: vec![(":status", "503".to_owned()), api],
                body: Some(error.to_json().into_bytes()),
            };
        }
        let batch = Batch::decode(call.body.as_deref().unwrap()).unwrap();
        let body = self.limiter.refuse(batch.checks.len(), untouched);
        Answer {
            genuine: false,
            headers: vec![(":status", "200".to_owned()), api],
            body: Some(body),
        }
    }
}
