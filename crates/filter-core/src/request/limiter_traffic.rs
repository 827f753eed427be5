//! Recognizes the filter's own calls to a limiter, which are not limited.

use protocol::CHECK_STREAM;

use crate::{
    call::{CHECK_PATH, POLICY_PATH, REPORT_PATH},
    request::Request,
    worker::Worker,
};

impl Worker {
    /// Whether a request is a filter's call to the limiter that passes through another Envoy (the
    /// sidecar of a limiter). Checking it would cause another call, and so on. The limiter's token
    /// proves it. The `:authority` alone does not, unless the configuration says that clients cannot
    /// reach that host.
    pub(crate) fn is_limiter_traffic(&self, request: &impl Request) -> bool {
        let bearer = self.calls.bearer.as_deref();
        if bearer.is_none() && !self.config.limiter.trust_host {
            return false;
        }
        let Some(path) = request.header(":path") else {
            return false;
        };
        // Only these paths: otherwise every path of that host would be unlimited.
        let polls = path.strip_prefix(POLICY_PATH.as_bytes());
        let polls = polls.is_some_and(|rest| matches!(rest, [] | [b'?', ..]));
        let posts = [CHECK_PATH, REPORT_PATH, CHECK_STREAM];
        if !posts.iter().any(|known| *path == *known.as_bytes()) && !polls {
            return false;
        }
        let authority = self.config.limiter.authority.as_bytes();
        let to_limiter = request
            .header(":authority")
            .is_some_and(|host| *host == *authority);
        let given = || request.header("authorization");
        to_limiter
            && bearer.is_none_or(|own| given().is_some_and(|token| *token == *own.as_bytes()))
    }
}
