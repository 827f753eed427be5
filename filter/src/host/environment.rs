//! Random bytes, and the environment variables that the VM's configuration grants. The SDK has
//! neither.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live buffers and locals"
)]

use super::{
    raw,
    status::{HostError, check},
};

/// Fills a buffer with random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], HostError> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is valid for writes of its length.
    check(unsafe { raw::random_get(bytes.as_mut_ptr(), N) })?;
    Ok(bytes)
}

/// The value of an environment variable, if the VM was given it.
pub fn variable(name: &str) -> Option<Vec<u8>> {
    let (mut count, mut total_len) = (0_usize, 0_usize);
    // SAFETY: both out pointers are valid for writes.
    check(unsafe { raw::environ_sizes_get(&raw mut count, &raw mut total_len) }).ok()?;
    let mut pointers = vec![std::ptr::null_mut(); count];
    let mut buffer = vec![0_u8; total_len];
    // SAFETY: the buffers have the sizes that the host just asked for.
    check(unsafe { raw::environ_get(pointers.as_mut_ptr(), buffer.as_mut_ptr()) }).ok()?;
    // The buffer holds `NAME=value` texts, each ended by a zero: no need for the pointers.
    buffer.split(|byte| *byte == 0).find_map(|pair| {
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value.to_vec())
    })
}
