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
mod reservations;
mod scale;
mod sentinel;
mod servers;
mod simulations;
mod telemetry;

/// Makes a test of each function, given something that is made with servers.
macro_rules! with_servers {
    ($variant:ident, $given:expr; $($test:ident),*) => {
        mod $variant {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn $test() -> anyhow::Result<()> {
                super::$test($given).await
            })*
        }
    };
}
use with_servers;

/// Makes a test of each function for each kind of store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() -> anyhow::Result<()> {
                super::$test(crate::servers::memory()?).await
            })*
        }
        crate::with_servers!(redis, crate::servers::redis().await?.store()?; $($test),*);
        crate::with_servers!(valkey, crate::servers::valkey().await?.store()?; $($test),*);
        crate::with_servers!(sentinel, crate::sentinel::Primary::valkey().await?.store()?; $($test),*);
        mod cluster {
            /// One Cluster for all: it serves only two seconds after it started.
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs a server"]
            async fn one_after_the_other() -> anyhow::Result<()> {
                let cluster = crate::cluster::Cluster::redis().await?;
                $(cluster.run(stringify!($test), super::$test).await?;)*
                Ok(())
            }
        }
    };
}
use on_every_store;

/// Makes two tests of each function, which get a server of their own: Redis and Valkey.
macro_rules! on_both_servers {
    ($($test:ident),* $(,)?) => {
        crate::with_servers!(on_redis, crate::servers::redis().await?; $($test),*);
        crate::with_servers!(on_valkey, crate::servers::valkey().await?; $($test),*);
    };
}
use on_both_servers;

/// As [`on_both_servers`], of functions that start servers themselves.
macro_rules! with_both_engines {
    ($($test:ident),* $(,)?) => {
        crate::with_servers!(on_redis, harness::Engine::Redis; $($test),*);
        crate::with_servers!(on_valkey, harness::Engine::Valkey; $($test),*);
    };
}
use with_both_engines;
