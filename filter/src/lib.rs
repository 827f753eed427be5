//! The proxy-wasm filter: passes requests to filter-core and carries out its steps.
//!
//! It holds no policy and makes no decision. `context` has the callbacks that Envoy makes, `plugin` carries out what
//! filter-core decides, and `host` has the calls that Envoy answers.

#[cfg(target_family = "wasm")]
mod allocator;
mod context;
mod host;
mod http;
mod plugin;
