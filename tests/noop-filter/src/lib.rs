//! A filter by the proxy-wasm SDK that lets everything pass. Its cost is that of any filter with the
//! SDK; `lean-filter` costs less.
//!
//! Configured with `"headers"` it still lets everything pass, but makes the host calls that any rate
//! limiter with these headers must make: it reads the request's headers and the time, and writes five
//! response headers. No faster decision can save that cost.
#![expect(
    missing_docs,
    reason = "proxy_wasm::main exports a function without documentation"
)]

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}

#[derive(Default)]
struct Root {
    config: Option<Vec<u8>>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        self.config = self.get_plugin_configuration();
        true
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(match self.config.as_deref() {
            Some(b"\"headers\"") => Box::new(Headers),
            _ => Box::new(Stream),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Stream;

impl Context for Stream {}

impl HttpContext for Stream {}

struct Headers;

impl Context for Headers {}

impl HttpContext for Headers {
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
