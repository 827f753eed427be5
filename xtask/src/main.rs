//! Project tasks: demo, test, wasm, bench, ci.

fn main() {}
