//! What rlctl prints and returns, word for word, against real servers.
//!
//! `cargo xtask test` says where the servers are and runs what needs one; by hand, the environment does
//! (`harness::Engine`), or `PATH`, and `-- --ignored`. `TRYCMD=overwrite` accepts what changed; read the diff.

mod support;

use anyhow::Result;
use harness::Engine;
use support::{Server, cases};

/// Every file gets a server of its own, of both kinds.
macro_rules! transcripts {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "needs a server"]
            fn $name() -> Result<()> {
                for engine in [Engine::Valkey, Engine::Redis] {
                    let server = Server::start(engine, &[])?;
                    let cases = cases();
                    cases.env("RLCTL_REDIS", server.url());
                    cases.insert_var("[REDIS]", server.url())?;
                    cases.case(format!("tests/redis/{}.trycmd", stringify!($name)));
                    cases.run();
                }
                Ok(())
            }
        )*
    };
}

transcripts! { domains pauses credits setup limits overrides files history buckets decisions formats simulations mistakes }

/// The worked scenarios of the whole project, by the scripts on both servers.
#[test]
#[ignore = "needs a server"]
fn the_worked_scenarios_come_out_as_written_on_a_server() -> Result<()> {
    let examples = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/examples.json"
    );
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        let arguments = [
            "simulate", "-f", examples, "--engine", "redis", "-o", "name",
        ];
        let output = support::rlctl(&arguments)
            .env("RLCTL_REDIS", server.url())
            .output()?;
        assert_eq!(
            String::from_utf8(output.stdout)?,
            "",
            "scenarios that came out otherwise"
        );
        assert_eq!(output.status.code(), Some(0));
    }
    Ok(())
}
