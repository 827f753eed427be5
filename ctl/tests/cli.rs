//! What rlctl prints and returns, word for word, without a server.
//!
//! `TRYCMD=overwrite cargo test -p ctl` accepts what changed; read the diff.

mod support;

#[test]
fn without_a_server() {
    support::cases().case("tests/offline/*.trycmd");
}

/// Users copy them, and they are an example of cases.
#[test]
fn the_cases_beside_the_shipped_limits_pass_and_leave_nothing_out() -> anyhow::Result<()> {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/../limits.test.yaml");
    let output = support::rlctl(&["test", cases, "--coverage"]).output()?;
    let printed = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("touch every limit, override and exemption"),
        "{printed}"
    );
    Ok(())
}
