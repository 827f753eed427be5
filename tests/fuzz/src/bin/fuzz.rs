//! The fuzzer of one reader, which `RL_FUZZ_READER` names; built by `cargo xtask fuzz`.
#![no_main]
#![expect(clippy::panic, reason = "a fuzzer ends so")]

use std::sync::LazyLock;

use fuzz::Reader;

static READER: LazyLock<Reader> = LazyLock::new(|| {
    let name = std::env::var("RL_FUZZ_READER").unwrap_or_default();
    Reader::named(&name).unwrap_or_else(|| panic!("no reader `{name}`: set RL_FUZZ_READER"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (READER.read)(bytes));
