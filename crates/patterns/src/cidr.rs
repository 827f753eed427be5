//! Networks: an address and a prefix length.

use address::Address;

use crate::PatternError;

/// An IP network. IPv4 addresses inside IPv6 (`::ffff:10.0.0.1`) count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// The first of its addresses.
    pub(crate) base: Address,
    pub(crate) length: u8,
}

impl Network {
    /// The network of a first address in its canonical form, and a length.
    pub(crate) fn new(base: &[u8], length: u64) -> Option<Self> {
        let base = Address::parse(base)?;
        let length = u8::try_from(length).ok()?;
        (length <= base.width()).then_some(Self { base, length })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let (address, length) = parse(text.as_bytes()).ok_or(PatternError::Cidr)?;
        let length = length.ok_or(PatternError::Cidr)?;
        let base = address.cut(length);
        if base != address {
            let meant = base.to_text();
            let meant = String::from_utf8_lossy(&meant);
            return Err(PatternError::HostBits(format!("{meant}/{length}")));
        }
        // `::ffff:10.0.0.0/104` is `10.0.0.0/8`: values count as IPv4 as well.
        let canonical = base.canonical();
        let embedded = if canonical == base { 0 } else { 96 };
        Ok(Self {
            base: canonical,
            length: length.saturating_sub(embedded),
        })
    }

    /// Whether a value, an address or a network, lies within this one.
    pub(crate) fn contains(&self, value: &[u8]) -> bool {
        // The longest network: an IPv6 address with an embedded IPv4 one, and /128.
        if value.len() > 49 {
            return false;
        }
        let Some((address, length)) = parse(value) else {
            return false;
        };
        let length = length.unwrap_or(address.width());
        let canonical = address.canonical();
        let length = if canonical == address {
            length
        } else {
            length.saturating_sub(96)
        };
        length >= self.length && canonical.cut(self.length) == self.base
    }
}

/// An address, and the length of its prefix if one is given.
fn parse(text: &[u8]) -> Option<(Address, Option<u8>)> {
    let Some(at) = text.iter().position(|byte| *byte == b'/') else {
        return Some((Address::parse(text)?, None));
    };
    let (address, length) = text.split_at_checked(at)?;
    let address = Address::parse(address)?;
    let digits = str::from_utf8(length.get(1..)?).ok()?;
    // The standard library would accept a sign.
    let digits = digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then_some(digits)?;
    let length: u8 = digits.parse().ok()?;
    (length <= address.width()).then_some((address, Some(length)))
}
