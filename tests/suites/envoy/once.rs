//! What limiters and `filter-core` alone decide, from what either host gives them: played with the module only, with
//! which Envoy starts without compiling anything. All other modules have hooks, calls, bodies, streams, metrics or
//! configurations of a host's own, and are played with both.

mod calendar_windows;
mod deny_cache;
mod edits;
mod kill_switch;
mod leases;
mod leases_over_a_failover;
mod nginx_delays;
mod oversized;
mod penalties;
mod requests_in_flight_over_a_failover;
pub mod settled_costs;
mod spellings;
mod stores;
mod traffic_logs;
pub mod untrusted_answers;
