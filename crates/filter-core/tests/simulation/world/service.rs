//! The limiter's side of a call.

use filter_core::Call;
use protocol::{
    ApiError, ErrorCode,
    compact::{Batch, Report},
};

use super::{Gone, World, network::Answer};

/// The tag of the snapshot that a poll names.
fn tag_of(call: &Call) -> Option<String> {
    let mut headers = call.headers.iter();
    let (_, tag) = headers.find(|(name, _)| *name == "if-none-match")?;
    Some(tag.clone())
}

impl World {
    /// Whether a poll already has the newest snapshot.
    pub(super) fn is_current(&self, call: &Call) -> bool {
        match tag_of(call) {
            Some(tag) => self.gone.is_none() && self.limiter.is_current(&tag),
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
        self.poll(call)
    }

    fn poll(&mut self, call: &Call) -> Answer {
        let (ok, api) = ((":status", "200".to_owned()), ("x-rl-api", "1".to_owned()));
        self.limiter.polled.clone_from(&call.path);
        assert!(
            call.path.starts_with("/v1/policy?domain=shop&proxy="),
            "{}",
            call.path
        );
        self.limiter.now_us = self.now_us;
        let replica = self.replica();
        let has = tag_of(call);
        let takes_changes = call.path.contains("&changes=1");
        let (etag, body) = self.limiter.poll(replica, has.as_deref(), takes_changes);
        let etag = ("etag", etag);
        let proxies = ("x-rl-proxies", format!("*={}", self.limiter.proxies));
        let (headers, body) = match body {
            None => (
                vec![(":status", "304".to_owned()), api, etag, proxies],
                Some(Vec::new()),
            ),
            Some((form, body)) => (
                vec![ok, api, etag, proxies, ("content-type", form.to_owned())],
                Some(body),
            ),
        };
        Answer {
            genuine: false,
            headers,
            body,
        }
    }

    /// The replica that a poll reaches.
    fn replica(&mut self) -> usize {
        match self.limiter.replicas() {
            1 => 0,
            replicas => self.chance.index(replicas),
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
