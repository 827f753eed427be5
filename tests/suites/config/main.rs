//! Checks that need no server: the shipped files are consistent.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

mod envoy_yaml;
mod generated_docs;
mod named_files;
