//! What rlctl prints and returns, word for word, against real servers.
//!
//! `cargo xtask test` says where the servers are; by hand, the environment does (`support`), or
//! `PATH`. `TRYCMD=overwrite` accepts what changed; read the diff.

mod support;

use support::{REDIS, Server, VALKEY, cases};

use anyhow::Result;

/// Every file gets a server of its own, of both kinds.
macro_rules! transcripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                for kind in [VALKEY, REDIS] {
                    let server = Server::start(kind, &[])?;
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

transcripts! { setup limits overrides files history buckets decisions formats }
