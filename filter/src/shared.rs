//! Envoy's shared data as the state machine sees it.

use filter_core::{CasMismatch, Host, Version, Versioned};

use crate::host::shared_data;

/// The map that all workers of this process share.
#[derive(Clone, Copy, Debug)]
pub struct SharedData;

impl Host for SharedData {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        let (bytes, cas) = shared_data::get(key).ok()?;
        Some(Versioned {
            bytes,
            version: Version(cas),
        })
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        // Whatever the reason, it was not written.
        shared_data::set(key, value, expected.0).map_err(|_| CasMismatch)
    }
}
