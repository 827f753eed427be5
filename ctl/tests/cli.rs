//! What rlctl prints and returns, word for word, without a server.
//!
//! `TRYCMD=overwrite cargo test -p ctl` accepts what changed; read the diff.

mod support;

#[test]
fn without_a_server() {
    support::cases().case("tests/offline/*.trycmd");
}
