//! `#[test]` on wasm32-unknown-unknown, the filter's target, which has no test runner of its own.
//!
//! A crate whose tests run there, too, has at its root
//!
//! ```ignore
//! #[cfg(all(test, target_arch = "wasm32"))]
//! #[macro_use]
//! extern crate wasm_test;
//! ```
//!
//! and in an integration test the same without `test`; and it depends on `wasm-bindgen-test`, which the
//! attribute names. The binary of this package is the runner.

#[cfg(target_arch = "wasm32")]
pub use wasm_bindgen_test::wasm_bindgen_test as test;
