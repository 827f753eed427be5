//! The bytes of calls of a limiter.

use anyhow::{Context, Result};
use policy::Name;
use protocol::compact::{Batch, BatchCheck};

/// A name of a domain, an entry or a limit.
pub fn name(text: &str) -> Result<Name> {
    text.parse().with_context(|| format!("`{text}` is no name"))
}

/// Checks with values of these keys, as a proxy sends them.
pub fn batch(domain: &str, keys: &[&str], checks: Vec<BatchCheck>) -> Result<Batch> {
    let keys = keys.iter().map(|key| name(key));
    Ok(Batch {
        domain: name(domain)?,
        proxy: "b".repeat(32),
        revision: None,
        keys: keys.collect::<Result<_>>()?,
        checks,
    })
}

/// A check with these values.
pub fn check(values: &[&str], cost: u64) -> BatchCheck {
    let values = values.iter().map(|value| Some(value.as_bytes().to_vec()));
    BatchCheck {
        values: values.collect(),
        cost,
        ..BatchCheck::default()
    }
}

/// A field of protobuf: bytes, text or a message.
pub fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    varint(value.len(), &mut field);
    [field.as_slice(), value].concat()
}

pub fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 127 {
        out.push(u8::try_from(number & 127).unwrap_or(0) | 128);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

/// A message of gRPC.
pub fn grpc(message: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(message.len())?.to_be_bytes();
    Ok([&[0][..], &length, message].concat())
}
