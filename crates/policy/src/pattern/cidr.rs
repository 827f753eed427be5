//! Networks: an address and a prefix length.

use std::net::IpAddr;

use super::PatternError;

/// An IP network. IPv4 addresses inside IPv6 (`::ffff:10.0.0.1`) are taken as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    bits: u128,
    mask: u128,
    v4: bool,
}

impl Network {
    pub(super) fn parse(text: &str) -> Result<Self, PatternError> {
        let (address, length) = text.split_once('/').ok_or(PatternError::Cidr)?;
        let address: IpAddr = address.parse().map_err(|_| PatternError::Cidr)?;
        let length = crate::units::parse_digits(length).and_then(|n| u32::try_from(n).ok());
        let width = width(address);
        let length = length.filter(|n| *n <= width).ok_or(PatternError::Cidr)?;
        let bits = to_bits(address);
        let mask = mask(length, width);
        if bits & !mask != 0 {
            let base = from_bits(bits & mask, address.is_ipv4());
            return Err(PatternError::HostBits(format!("{base}/{length}")));
        }
        Ok(Self {
            bits,
            mask,
            v4: address.is_ipv4(),
        })
    }

    /// Whether a value, an address or a network, lies within this one.
    pub(super) fn contains(&self, value: &[u8]) -> bool {
        let Some((address, length)) = parse_value(value) else {
            return false;
        };
        let narrow_enough = mask(length, width(address)) & self.mask == self.mask;
        narrow_enough && address.is_ipv4() == self.v4 && to_bits(address) & self.mask == self.bits
    }
}

/// An address, or a network and its prefix length.
fn parse_value(value: &[u8]) -> Option<(IpAddr, u32)> {
    // The longest there is: an IPv6 address with an embedded IPv4 one, and /128.
    if value.len() > 49 {
        return None;
    }
    let text = std::str::from_utf8(value).ok()?;
    let (text, length) = match text.split_once('/') {
        None => (text, None),
        Some((text, length)) => (text, Some(crate::units::parse_digits(length)?)),
    };
    let address: IpAddr = text.parse().ok()?;
    let length = match length {
        None => width(address),
        Some(length) => u32::try_from(length)
            .ok()
            .filter(|n| *n <= width(address))?,
    };
    let canonical = address.to_canonical();
    let length = if canonical == address {
        length
    } else {
        length.saturating_sub(96)
    };
    Some((canonical, length))
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(length: u32, width: u32) -> u128 {
    let all = u128::MAX >> (128 - width);
    // Shifting by the whole width would overflow for /0.
    all & all.checked_shl(width - length).unwrap_or(0)
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn from_bits(bits: u128, v4: bool) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if v4 => IpAddr::V4(bits.into()),
        _ => IpAddr::V6(bits.into()),
    }
}
