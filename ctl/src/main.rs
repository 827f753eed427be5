//! `rlctl`. Everything is in the library; see [`ctl::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ctl::run(std::env::args_os()).into()
}
