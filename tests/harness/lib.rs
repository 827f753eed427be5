//! Starts and stops the real programs (Redis, Valkey, limiter, Envoy) on free ports of 127.0.0.1,
//! each in a folder of its own, for the end-to-end suites, `cargo xtask demo`, `bench` and `soak`.

mod api_server;
mod chromium;
mod client;
mod cluster;
mod envoy;
mod envoy_config;
mod failover;
mod fake_limiter;
mod flood;
mod gate;
mod held_request;
mod limiter;
mod nginx;
mod ports;
mod process;
mod programs;
mod random;
mod raw;
mod redis;
mod serve;
mod upstream;
mod wait;

pub use api_server::ApiServer;
pub use chromium::Chromium;
pub use client::{Client, Reply, Request};
pub use cluster::{CLUSTER_SLOTS, Cluster, cluster_arguments, join_cluster};
pub use envoy::Envoy;
pub use envoy_config::{EnvoyConfig, put_host, put_listeners};
pub use failover::{Pair, Sentinel};
pub use fake_limiter::{FakeLimiter, Misbehaviour, answer};
pub use flood::{
    control_frames, crowd, flood, open_streams_without_window, rapid_resets, streams_without_window,
};
pub use gate::Gate;
pub use held_request::HeldRequest;
pub use hyper::body::Bytes;
pub use limiter::{Limiter, LimiterPlan};
pub use nginx::Nginx;
pub use ports::{Ports, free_port};
pub use process::{Process, Signal, cpu_us, shown};
pub use programs::{Engine, Host, Programs, on_path, variable};
pub use random::Random;
pub use raw::{RawClient, RawReply, get};
pub use redis::{Redis, StoppedRedis, redis_answers};
pub use serve::{serve, serve_each};
pub use upstream::Upstream;
pub use wait::until;
