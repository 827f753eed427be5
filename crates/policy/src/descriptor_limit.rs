//! Limits of Envoy's rate limit service: the descriptors that they apply to.
//!
//! That service describes a request by ordered lists of entries, with keys of any text. Here such a
//! list is one text, `message_type=marketing,to_number=206`: the value of the entry [`DESCRIPTOR`],
//! so that buckets, overrides and every command name a descriptor as it was sent.

mod pattern;
mod text;

pub use pattern::{DescriptorError, DescriptorPattern, EntryPattern};
pub use text::{SentDescriptor, push_entry};

use documents::{Choice, Name};

/// The entry that holds a descriptor of the rate limit service.
pub const DESCRIPTOR: &str = "descriptor";

/// The longest key of a descriptor's entry, in bytes.
pub const MAX_DESCRIPTOR_KEY: usize = 512;

/// The name of a limit that a descriptor brings itself. No other limit can have this name.
pub const REQUEST_LIMIT: &str = "@request";

/// What only a limit of the rate limit service has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The descriptors that it applies to.
    pub pattern: DescriptorPattern,
    /// It limits nothing; a descriptor that it applies to is subject to no other.
    pub unlimited: bool,
    /// Such limits deny a request only if it is over all of them that apply to its descriptors.
    pub quota_mode: bool,
    /// How units that a descriptor brings itself are charged.
    pub charge: ChargeMode,
}

/// Of units that are reported once they are used (a descriptor's own `hits_addend`) ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargeMode {
    /// ... all are charged, also beyond the limit.
    #[default]
    All,
    /// ... are charged if they fit, whole.
    Fitting,
}

impl Choice for ChargeMode {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("all", Self::All), ("fitting", Self::Fitting)];
}

/// The `per` of every limit of the rate limit service.
pub(crate) fn per() -> Vec<Name> {
    DESCRIPTOR.parse().into_iter().collect()
}

/// Whether a key is [`DESCRIPTOR`].
pub(crate) fn is_descriptor(key: &Name) -> bool {
    key.as_str() == DESCRIPTOR
}
