//! A batch of checks.

use minicbor::{Decode, Encode, bytes::ByteSlice};
use policy::{Name, Revision};

use super::{DecodeError, Table, WireRevision, encode, look_up, name};
use crate::{Check, Debit, MAX_CHECKS, MAX_ENTRIES, MAX_VALUE};

/// Checks of one domain that a proxy sends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The domain.
    pub domain: Name,
    /// The proxy: one Envoy process, by a random word of its own.
    pub proxy: String,
    /// The policy that the proxy has; `None`: none yet.
    pub revision: Option<Revision>,
    /// The descriptor entries, in the order of the checks' values.
    pub keys: Vec<Name>,
    /// The checks.
    pub checks: Vec<BatchCheck>,
}

/// One check of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchCheck {
    /// The values of the batch's keys, `None` where the request has none. May be shorter than
    /// the keys: the rest is absent.
    pub values: Vec<Option<Vec<u8>>>,
    /// How many requests this stands for; 0 is a peek.
    pub cost: u64,
    /// Limits that the proxy has settled already.
    pub skip: Vec<Name>,
    /// What the proxy admitted by itself, to be charged now.
    pub debits: Vec<Debit>,
}

impl BatchCheck {
    /// The check, given the batch's keys.
    pub fn into_check(self, keys: &[Name]) -> Check {
        let entries = keys.iter().zip(self.values);
        let entries = entries.filter_map(|(key, value)| Some((key.clone(), value?)));
        Check {
            descriptor: entries.collect(),
            cost: self.cost,
            skip: self.skip,
            debits: self.debits,
            ..Check::default()
        }
    }
}

/// Limits that one check refers to, at most.
const MAX_LIMITS: usize = 1024;
/// The longest name of a proxy, in bytes.
const MAX_PROXY: usize = 64;

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireBatch<'b> {
    #[b(0)]
    domain: &'b str,
    #[b(1)]
    proxy: &'b str,
    #[n(2)]
    revision: Option<WireRevision>,
    #[b(3)]
    keys: Vec<&'b str>,
    /// Limits that checks refer to.
    #[b(4)]
    limits: Vec<&'b str>,
    #[b(5)]
    checks: Vec<WireCheck<'b>>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireCheck<'b> {
    #[b(0)]
    values: Vec<Option<&'b ByteSlice>>,
    #[n(1)]
    cost: u64,
    /// Indexes of limits.
    #[n(2)]
    skip: Vec<u32>,
    #[n(3)]
    debits: Vec<WireDebit>,
}

#[derive(Encode, Decode)]
#[cbor(array)]
struct WireDebit {
    #[n(0)]
    limit: u32,
    #[n(1)]
    units: u64,
}

impl Batch {
    /// The batch as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut table = Table::default();
        let checks = self.checks.iter().map(|check| WireCheck {
            values: check
                .values
                .iter()
                .map(|value| value.as_deref().map(Into::into))
                .collect(),
            cost: check.cost,
            skip: check.skip.iter().map(|limit| table.index(limit)).collect(),
            debits: check
                .debits
                .iter()
                .map(|debit| WireDebit {
                    limit: table.index(&debit.limit),
                    units: debit.units,
                })
                .collect(),
        });
        let checks = checks.collect();
        encode(&WireBatch {
            domain: self.domain.as_str(),
            proxy: &self.proxy,
            revision: self.revision.as_ref().map(WireRevision::from),
            keys: self.keys.iter().map(Name::as_str).collect(),
            limits: table.names,
            checks,
        })
    }

    /// Reads a batch.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let wire: WireBatch<'_> = minicbor::decode(bytes)?;
        if wire.checks.len() > MAX_CHECKS {
            return Err(DecodeError::Bounds("checks"));
        }
        if wire.keys.len() > MAX_ENTRIES {
            return Err(DecodeError::Bounds("keys"));
        }
        if wire.proxy.len() > MAX_PROXY {
            return Err(DecodeError::Bounds("proxy"));
        }
        let limits = wire.limits.into_iter().map(name);
        let limits: Vec<Name> = limits.collect::<Result<_, _>>()?;
        let keys = wire.keys.into_iter().map(name);
        let keys: Vec<Name> = keys.collect::<Result<_, _>>()?;
        let checks = wire.checks.into_iter();
        let checks = checks.map(|check| check.read(keys.len(), &limits));
        Ok(Self {
            domain: name(wire.domain)?,
            proxy: wire.proxy.to_owned(),
            revision: wire.revision.map(Revision::from),
            checks: checks.collect::<Result<_, _>>()?,
            keys,
        })
    }
}

impl WireCheck<'_> {
    fn read(self, keys: usize, limits: &[Name]) -> Result<BatchCheck, DecodeError> {
        if self.values.len() > keys {
            return Err(DecodeError::Index);
        }
        if self.skip.len().max(self.debits.len()) > MAX_LIMITS {
            return Err(DecodeError::Bounds("limits"));
        }
        let values = self.values.into_iter().map(|value| match value {
            Some(value) if value.len() > MAX_VALUE => Err(DecodeError::Bounds("value")),
            value => Ok(value.map(|value| value.to_vec())),
        });
        let skip = self.skip.into_iter().map(|index| look_up(limits, index));
        let debits = self.debits.into_iter().map(|debit| {
            Ok(Debit {
                limit: look_up(limits, debit.limit)?,
                units: debit.units,
            })
        });
        Ok(BatchCheck {
            values: values.collect::<Result<_, _>>()?,
            cost: self.cost,
            skip: skip.collect::<Result<_, _>>()?,
            debits: debits.collect::<Result<_, DecodeError>>()?,
        })
    }
}
