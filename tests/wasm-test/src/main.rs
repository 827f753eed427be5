//! `wasm-test PROGRAM [FILTER]`: runs the tests in a program for wasm32-unknown-unknown under Node.
//! cargo calls it as the target's runner. `wasm-bindgen-test-runner` does the same, but brings a
//! web server and drivers of browsers, and takes twice as long to compile.

#[cfg(not(target_arch = "wasm32"))]
mod runner;

#[cfg(not(target_arch = "wasm32"))]
fn main() -> anyhow::Result<std::process::ExitCode> {
    runner::run(std::env::args_os().skip(1))
}

#[cfg(target_arch = "wasm32")]
fn main() {}
