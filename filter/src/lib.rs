//! The proxy-wasm filter: passes requests to filter-core and carries out its steps.
//!
//! Only this crate depends on proxy-wasm. It holds no policy and makes no decision. `context` has the
//! callbacks that Envoy makes through the SDK, `plugin` carries out what filter-core decides, and
//! `host` has the few host calls that the SDK cannot make safely.

#![expect(
    missing_docs,
    reason = "proxy_wasm::main exports a function without documentation"
)]

#[cfg(target_family = "wasm")]
mod allocator;
mod context;
mod exports;
mod host;
mod http;
mod plugin;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|root_id| Box::new(context::Root::new(root_id)));
}}
