//! The manual's examples, run as they stand, from the folder that a reader is in.

mod support;

use std::path::Path;

use anyhow::{Result, ensure};
use support::{Server, VALKEY, cases};

/// What is never twice the same, as the manual has it and as it is compared.
const VOLATILE: [(&str, &str); 9] = [
    (
        "redis://127.0.0.1:6379 answers in 0.21 ms (valkey 9.1.2, master)",
        "[REDIS] answers in [..]",
    ),
    (", redis://127.0.0.1:6379)", ", [REDIS])"),
    ("redis://127.0.0.1:6379: ", "[REDIS]: "),
    ("-u redis://127.0.0.1:6379 ", "-u [REDIS] "),
    ("12 s          1 min\n", "[..]\n"),
    ("12 s\n", "[..]\n"),
    ("in 1 min\n", "in [..]\n"),
    ("in 1 min 1 s\n", "in [..]\n"),
    ("just now", "[..]"),
];

#[test]
fn the_manual_is_true() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut manual = std::fs::read_to_string(root.join("docs/rlctl.md"))?;
    for (written, compared) in VOLATILE {
        ensure!(
            manual.contains(written),
            "the manual does not say {written:?} any more"
        );
        manual = manual.replace(written, compared);
    }
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rlctl.md");
    std::fs::write(&copy, manual)?;
    std::env::set_current_dir(root)?;
    let server = Server::start(VALKEY, &[])?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.insert_var("[REDIS]", server.url())?;
    cases.case(copy);
    Ok(())
}
