//! The proxy-wasm filter: hands requests to filter-core and carries out what it says.
