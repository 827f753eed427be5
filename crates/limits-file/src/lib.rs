//! Limits files and stored records: what limits are read from, edited as, and written to.
//!
//! Each is a document ([`Node`](documents::Node)), read as a whole, so that every problem is reported at once with
//! its place ([`Problems`](documents::Problems)). The result is valid by construction. What Envoy loads links
//! nothing of this: filters get compiled limits ([`Compiled::to_snapshot`](policy::Compiled::to_snapshot)).

pub mod edit;
mod read;
mod snapshot;
mod warnings;
mod write;
pub mod yaml;

pub use read::{
    DOCUMENT_MAX, ENTRIES_MAX, FILE_MAX, LIMIT_BYTES_MAX, LIMITS_MAX, MATCHERS_MAX, PATTERNS_MAX,
    exemption_from_node, limit_from_node, override_from_node, pause_from_node, policy_from_node,
    read, read_with_warnings,
};
pub use snapshot::{snapshot_after, snapshot_at, snapshot_text, snapshot_until_ms};
pub use warnings::{Dear, Supply, Surroundings, truncated_list, unread_number, warnings};
pub use write::{ToNode, domain_node, exemptions_node, node_without_overrides, override_node};
