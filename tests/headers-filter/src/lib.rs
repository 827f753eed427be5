//! A filter that limits nothing, but asks Envoy for what any rate limiter of these headers has to:
//! a request's headers, the time, and five headers on the response. What it costs is what no speed
//! of a decision can save; the benchmarks show it beside our leased requests, which need no more.
#![expect(
    missing_docs,
    reason = "proxy_wasm::main exports a function without documentation"
)]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Stream;

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, _end: bool) -> Action {
        let _ = self.get_http_request_headers_bytes();
        let _ = self.get_current_time();
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, _end: bool) -> Action {
        const REMAINING: &str = "x-ratelimit-remaining";
        let theirs = self.get_http_response_header_bytes(REMAINING);
        if theirs.is_none() {
            self.add_http_response_header(REMAINING, "999999");
            self.set_http_response_header("x-ratelimit-limit", Some("1000000"));
            self.set_http_response_header("x-ratelimit-reset", Some("1"));
            self.add_http_response_header("ratelimit-policy", "\"leased\";q=1000000;w=1");
            self.add_http_response_header("ratelimit", "\"leased\";r=999999;t=1");
        }
        Action::Continue
    }
}
