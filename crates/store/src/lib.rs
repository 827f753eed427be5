//! Everything that knows the Redis layout: keys, scripts, limits, buckets; and the memory store.

pub mod script;
