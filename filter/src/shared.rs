//! Envoy's shared data as the state machine sees it.

use filter_core::{CasMismatch, Host, Version, Versioned};
use proxy_wasm::hostcalls;

/// The map that all workers of this process share.
#[derive(Clone, Copy, Debug)]
pub struct SharedData;

impl Host for SharedData {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        // The SDK takes keys as text; all keys of filter-core are text.
        let key = str::from_utf8(key).ok()?;
        let (bytes, cas) = hostcalls::get_shared_data(key).ok()?;
        // The SDK has no bytes for an empty value, and no CAS for an absent one.
        Some(Versioned {
            bytes: bytes.unwrap_or_default(),
            version: Version(cas?),
        })
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        let key = str::from_utf8(key).map_err(|_| CasMismatch)?;
        let Version(cas) = expected;
        // Whatever the reason, it was not written.
        hostcalls::set_shared_data(key, Some(value), Some(cas)).map_err(|_| CasMismatch)
    }
}
