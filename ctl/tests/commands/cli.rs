//! What rlctl prints and returns, word for word, without a server.
//!
//! `TRYCMD=overwrite cargo test -p ctl` accepts what changed; read the diff.

use std::{io::Write as _, process::Stdio};

use anyhow::Context as _;

use crate::support::{cases, ran, rlctl};

#[test]
fn without_a_server() {
    cases().case("tests/offline/*.trycmd");
}

/// A shell's <(zcat access.log.gz) is a path too.
#[test]
fn a_pipe_with_a_path_is_read_from_its_start() -> anyhow::Result<()> {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/offline/replay.in");
    let mut command = rlctl(&["replay", "/dev/stdin", "-f", "limits.yaml"]);
    let mut child = { command.current_dir(tests) }
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let log = std::fs::read(format!("{tests}/envoy.log"))?;
    child.stdin.take().context("piped")?.write_all(&log)?;
    let printed = String::from_utf8(child.wait_with_output()?.stdout)?;
    assert!(printed.starts_with("/dev/stdin: 5 requests"), "{printed}");
    Ok(())
}

#[test]
fn a_log_that_is_named_again_counts_once() -> anyhow::Result<()> {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/offline/replay.in");
    let folder = tempfile::TempDir::new()?;
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(format!("{tests}/envoy.log"), at("a.log"))?;
    std::os::unix::fs::symlink("a.log", at("current.log"))?;
    std::fs::hard_link(at("a.log"), at("hard.log"))?;
    let limits = format!("{tests}/limits.yaml");
    let logs = ["a.log", "a.log", "./a.log", "current.log", "hard.log"];
    for command in [
        &["replay", "-f", &limits][..],
        &["suggest", "--per", "remote_address"],
    ] {
        let ran = ran(rlctl(command).args(logs).current_dir(folder.path()))?.with(0);
        assert!(ran.out.contains("5 requests"), "{ran:?}");
        assert!(!ran.out.contains(" files"), "{ran:?}");
        let twice = "warning: a.log is named twice: it is read once";
        assert!(ran.err.contains(twice), "{ran:?}");
        for again in ["./a.log", "current.log", "hard.log"] {
            let same = format!("{again} is the same file as a.log: it is read once");
            assert!(ran.err.contains(&same), "{ran:?}");
        }
    }
    Ok(())
}

/// Users copy them, and they are an example of cases.
#[test]
fn the_cases_beside_the_shipped_limits_pass_and_leave_nothing_out() -> anyhow::Result<()> {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/../limits.test.yaml");
    let output = rlctl(&["test", cases, "--coverage"]).output()?;
    let printed = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("touch every limit, override and exemption"),
        "{printed}"
    );
    Ok(())
}
