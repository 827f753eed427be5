//! What holds without any server: the shipped files fit together.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

mod envoy_yaml;
mod named_files;
