//! What limiters and `filter-core` alone decide, from what either host gives them: played with the module only, with
//! which Envoy starts without compiling anything. All other modules have hooks, calls, bodies, streams, metrics or
//! configurations of a host's own, and are played with both.

pub mod cookbook;
mod exemptions;
mod kill_switch;
mod leases_over_a_failover;
mod long_polls;
mod nginx_delays;
mod outages;
mod oversized;
pub mod replica_failure;
pub mod settled_costs;
mod spellings;
mod stores;
mod traffic_logs;
pub mod untrusted_answers;
