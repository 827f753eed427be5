//! Header maps, as bytes: neither a value nor a name need be UTF-8. Envoy may have no such map, for instance once a
//! response has begun.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use super::{HostError, check, receive};

/// A header map, by its number.
#[derive(Clone, Copy, Debug)]
pub enum Map {
    /// The headers of the request.
    Request = 0,
    /// The headers of the response.
    Response = 2,
    /// The trailers of the response.
    ResponseTrailers = 3,
    /// The headers of the answer to a call.
    CallResponse = 6,
}

/// The first value of a header; `None` also where the host has no such map.
pub fn get(map: Map, name: &str) -> Option<Vec<u8>> {
    receive(|value, value_len| {
        // SAFETY: `name` outlives the call, and the out pointers are valid for writes.
        unsafe {
            super::proxy_get_header_map_value(
                map as u32,
                name.as_ptr(),
                name.len(),
                value,
                value_len,
            )
        }
    })
    .ok()
}

/// A whole map in the host's encoding: a count, the lengths, then each text followed by a zero byte.
#[derive(Clone, Debug, Default)]
pub struct Pairs(Vec<u8>);

/// All headers; none where the host has no such map.
pub fn all(map: Map) -> Pairs {
    let pairs = receive(|pairs, pairs_len| {
        // SAFETY: the out pointers are valid for writes.
        unsafe { super::proxy_get_header_map_pairs(map as u32, pairs, pairs_len) }
    });
    Pairs(pairs.unwrap_or_default())
}

impl Pairs {
    /// The first value of a header.
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// The values of a header in order, up to the first entry that cannot be read.
    pub fn values<'p>(&'p self, name: &str) -> impl Iterator<Item = &'p [u8]> {
        let (lengths, texts) = self.parts().unwrap_or_default();
        let mut at = 0_usize;
        let mut lengths = lengths.as_chunks().0.as_chunks().0.iter();
        std::iter::from_fn(move || {
            loop {
                let [key_len, value_len] = lengths.next()?;
                let (key_len, value_len) = (size(*key_len)?, size(*value_len)?);
                let start = at;
                // A zero byte follows each text.
                at = at.checked_add(key_len)?.checked_add(value_len)?;
                at = at.checked_add(2)?;
                // The length rules out most names.
                if key_len == name.len() {
                    let (key, value) = texts.get(start..)?.split_at_checked(key_len)?;
                    if key == name.as_bytes() {
                        return value.get(1..)?.get(..value_len);
                    }
                }
            }
        })
    }

    /// The lengths of all texts, and the texts.
    fn parts(&self) -> Option<(&[u8], &[u8])> {
        let (count, rest) = self.0.split_first_chunk()?;
        rest.split_at_checked(size(*count)?.checked_mul(8)?)
    }
}

fn size(word: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(word)).ok()
}

/// Sets a header, dropping its other values.
pub fn set(map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe {
        super::proxy_replace_header_map_value(
            map as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    })
}

/// Adds a value to a header and keeps its other values.
pub fn add(map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe {
        super::proxy_add_header_map_value(
            map as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    })
}

/// Removes a header.
pub fn remove(map: Map, name: &str) -> Result<(), HostError> {
    // SAFETY: `name` outlives the call.
    check(unsafe { super::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) })
}

/// Header pairs in the host's encoding: see [`Pairs`].
pub fn encode(pairs: &[(&str, &str)]) -> Vec<u8> {
    fn word(bytes: &mut Vec<u8>, n: usize) {
        bytes.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
    }
    let text_len: usize = pairs.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
    let mut bytes = Vec::with_capacity(4 + pairs.len() * 8 + text_len);
    word(&mut bytes, pairs.len());
    for (name, value) in pairs {
        word(&mut bytes, name.len());
        word(&mut bytes, value.len());
    }
    for (name, value) in pairs {
        for text in [name, value] {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
    }
    bytes
}
