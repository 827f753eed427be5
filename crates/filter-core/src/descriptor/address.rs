//! The client's address as an entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How much of an address tells clients apart, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, at most 32.
    pub v4: u8,
    /// Of an IPv6 address, at most 128. One client usually owns 64 bits.
    pub v6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

/// The address in Envoy's `source.address` (`10.0.0.1:80`, `[::1]:80`), its bits beyond the
/// prefix set to zero. Addresses that are none (a Unix socket) give none.
pub(super) fn client(bytes: Vec<u8>, prefixes: Prefixes) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(&bytes).ok()?;
    let host = match text.strip_prefix('[') {
        Some(v6) => v6.split_once(']')?.0,
        None if text.matches(':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    let address = match host.parse::<IpAddr>().ok()?.to_canonical() {
        IpAddr::V4(v4) if prefixes.v4 >= 32 => {
            // Envoy writes addresses canonically, unless it is one that was mapped into IPv6.
            let plain = host.len();
            if host.contains(':') {
                return Some(v4.to_string().into_bytes());
            }
            let mut bytes = bytes;
            bytes.truncate(plain);
            return Some(bytes);
        }
        IpAddr::V4(v4) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(prefixes.v4))
                .unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let cut = 128 - u32::from(prefixes.v6.min(128));
            let mask = u128::MAX.checked_shl(cut).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    };
    Some(address.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(address: &str, v4: u8, v6: u8) -> Option<String> {
        let value = client(address.as_bytes().to_vec(), Prefixes { v4, v6 })?;
        Some(String::from_utf8(value).unwrap())
    }

    #[test]
    fn addresses_lose_their_port_and_what_is_beyond_the_prefix() {
        for (address, v4, v6, expected) in [
            ("10.1.2.3:41000", 32, 64, "10.1.2.3"),
            ("10.1.2.3:0", 24, 64, "10.1.2.0"),
            ("10.1.2.3", 32, 64, "10.1.2.3"),
            ("10.1.2.3:1", 0, 64, "0.0.0.0"),
            ("[2001:db8:1:2:3:4:5:6]:443", 32, 64, "2001:db8:1:2::"),
            ("[2001:db8::1]:443", 32, 128, "2001:db8::1"),
            ("2001:db8::1", 32, 0, "::"),
            ("[::ffff:10.1.2.3]:1", 32, 64, "10.1.2.3"),
            ("[::ffff:10.1.2.3]:1", 16, 64, "10.1.0.0"),
        ] {
            assert_eq!(cut(address, v4, v6).as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn what_is_no_address_is_no_entry() {
        for address in ["", "/run/envoy.sock", "[::1", "a:b", "\u{fffd}"] {
            assert_eq!(cut(address, 32, 64), None, "{address:?}");
        }
        assert_eq!(client(vec![0xff], Prefixes::default()), None);
    }
}
