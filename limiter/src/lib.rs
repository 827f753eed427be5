//! The limiter service: checks over HTTP, decided in Redis, Valkey or memory.
