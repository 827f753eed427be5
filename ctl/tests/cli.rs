//! What rlctl prints and returns, word for word, without a server.
//!
//! `TRYCMD=overwrite cargo test -p ctl` accepts what changed; read the diff.

/// The environment of whoever runs the tests must not show.
fn cases() -> trycmd::TestCases {
    let cases = trycmd::TestCases::new();
    cases.default_bin_name("rlctl");
    for name in [
        "RLCTL_REDIS",
        "RL_STORE",
        "REDIS_URL",
        "RLCTL_DOMAIN",
        "RL_KEY_PREFIX",
    ] {
        cases.env(name, "");
    }
    cases
        .env("LC_ALL", "C.UTF-8")
        .env("USER", "ada")
        .env("NO_COLOR", "")
        .env("COLUMNS", "");
    cases
}

#[test]
fn without_a_server() {
    cases().case("tests/offline/*.trycmd");
}
