//! What every store guarantees, tested on the memory store, a real Redis, a real Valkey, one found
//! by Sentinel, and a Cluster; and faults that only servers have.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod calendar_windows;
mod cluster;
mod concurrency;
mod decisions;
mod edits;
mod faults;
mod given;
mod in_flight;
mod leases;
mod live;
mod login;
mod penalties;
mod refusals;
mod reported_units;
mod reservations;
mod scale;
mod sentinel;
mod servers;
mod simulations;
mod telemetry;

/// Makes a test of each function for each kind of store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() -> anyhow::Result<()> {
                super::$test(crate::servers::memory()?).await
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                let server = crate::servers::Server::start(harness::Engine::Redis).await?;
                super::$test(server.store()?).await
            })*
        }
        mod valkey {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                let server = crate::servers::Server::start(harness::Engine::Valkey).await?;
                super::$test(server.store()?).await
            })*
        }
        mod sentinel {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                let primary = crate::sentinel::Primary::start(harness::Engine::Valkey).await?;
                super::$test(primary.store()?).await
            })*
        }
        mod cluster {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                let cluster = crate::cluster::Cluster::start(harness::Engine::Redis).await?;
                super::$test(cluster.store()?).await
            })*
        }
    };
}
use on_every_store;

/// Makes two tests of each function, which get a server of their own: Redis and Valkey.
macro_rules! on_both_servers {
    ($($test:ident),* $(,)?) => {
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                super::$test(crate::servers::Server::start(harness::Engine::Redis).await?).await
            })*
        }
        mod on_valkey {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                super::$test(crate::servers::Server::start(harness::Engine::Valkey).await?).await
            })*
        }
    };
}
use on_both_servers;
