//! The store of a test, and what a test does to it.

use std::{mem, path::Path};

use harness::{Cluster, Pair, Programs, Redis, Sentinel, StoppedRedis, free_port};

use super::{Keeps, Stage};

/// The store of the buckets.
pub enum Store {
    Server(Redis),
    /// A stopped server, until it is started again.
    Stopped(StoppedRedis),
    Cluster(Cluster),
    Sentinel(Sentinel),
    /// No server does.
    Memory,
}

impl Store {
    /// Starts it.
    pub async fn start(keeps: &Keeps, programs: &Programs, dir: &Path) -> Self {
        let server = &programs.redis;
        match keeps {
            Keeps::Server(engine) => {
                let redis = Redis::start(programs.server(*engine), free_port().unwrap(), dir);
                Self::Server(redis.await.unwrap())
            }
            Keeps::Cluster => Self::Cluster(Cluster::start(server, dir).await.unwrap()),
            Keeps::Sentinel => Self::Sentinel(Sentinel::start(server, dir).await.unwrap()),
            Keeps::Memory | Keeps::Nothing => Self::Memory,
        }
    }

    /// Its URL when it was started.
    pub fn url(&self) -> String {
        match self {
            Self::Server(redis) => redis.url(),
            Self::Stopped(_) => panic!("the server is stopped"),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinel(sentinel) => sentinel.url(),
            Self::Memory => "memory".to_owned(),
        }
    }
}

impl Stage {
    /// Redis's process.
    pub fn redis(&self) -> &Redis {
        let Store::Server(redis) = &self.store else {
            panic!("the plan has no Redis, or it is stopped");
        };
        redis
    }

    /// The primary and its replica.
    pub fn pair(&mut self) -> &mut Pair {
        let Store::Sentinel(sentinel) = &mut self.store else {
            panic!("the plan has no replica");
        };
        sentinel.pair()
    }

    /// Stops Redis and starts it empty on the same port.
    pub async fn restart_redis_empty(&mut self) {
        let redis = self.take_redis().restart_empty().await;
        self.store = Store::Server(redis.unwrap());
    }

    /// Stops Redis with its keys saved; connections to it are refused from then on.
    pub async fn stop_redis(&mut self) {
        let redis = self.take_redis().stop_saved().await;
        self.store = Store::Stopped(redis.unwrap());
    }

    /// Starts it again.
    pub async fn start_redis(&mut self) {
        let Store::Stopped(redis) = self.take_store() else {
            panic!("Redis was not stopped");
        };
        self.store = Store::Server(redis.start().await.unwrap());
    }

    fn take_redis(&mut self) -> Redis {
        let Store::Server(redis) = self.take_store() else {
            panic!("the plan has no Redis, or it is stopped");
        };
        redis
    }

    /// Takes the store, to replace it.
    fn take_store(&mut self) -> Store {
        mem::replace(&mut self.store, Store::Memory)
    }
}
