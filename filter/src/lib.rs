//! The proxy-wasm filter: hands requests to filter-core and carries out what it says.
//!
//! Only this crate knows proxy-wasm. It holds no policy and makes no decision;
//! `host` is everything it asks of Envoy, `exports` what Envoy asks of it.

mod answer;
mod contexts;
mod exports;
mod host;
mod plugin;
mod request;
mod response;
mod shared;
mod start;
mod stats;
mod turn;
