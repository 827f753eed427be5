//! The proxy-wasm filter: hands requests to filter-core and carries out what it says.
//!
//! Only this crate knows proxy-wasm. It holds no policy and makes no decision;
//! `host` is everything it asks of Envoy, and cannot panic.

mod host;
mod plugin;
mod request;
mod response;
mod root;
mod shared;
mod stats;
mod stream;

mod start {
    use crate::root::Root;

    proxy_wasm::main! {{
        proxy_wasm::set_root_context(|root_id| Box::new(Root::new(root_id)));
    }}
}
