//! A limiter, and the files of `docs`.

pub use harness::variable;

use std::path::{Path, PathBuf};

use harness::{Client, Limiter, LimiterPlan};
use tempfile::TempDir;

pub const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, per: [user], rate: 5/1h, match: {path: [/api, /api/**]}}
  - {name: tries, per: [user], rate: 4/1s, burst: 2, match: {path: /wait}}
  - {name: exports, match: {path: /export}, algorithm: leaky_bucket, rate: 2/s, burst: 10, over_limit: queue, max_delay: 3s}
  - {name: tokens, match: {path: /chat}, rate: 1000/1d, cost: {from: {response_json: /n}, reserve: 100}}
  - {name: in-flight, match: {path: /held}, algorithm: concurrency, limit: 1}
  - {name: shadow, per: [user], rate: 1/1h, enforce: 0%, match: {path: [/api, /api/**]}}
";

/// A limiter with a store in its own memory, or with another store.
pub struct Service {
    pub limiter: Limiter,
    pub client: Client,
    _dir: TempDir,
}

impl Service {
    pub async fn start(arguments: &[&str]) -> Self {
        Self::before("memory", arguments).await
    }

    pub async fn before(store: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plan = LimiterPlan::under(LIMITS, store, dir.path(), arguments).unwrap();
        let limiter = plan.start().await.unwrap();
        Self {
            limiter,
            client: Client::new(),
            _dir: dir,
        }
    }
}

/// A file of `docs`.
pub fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name)
}
