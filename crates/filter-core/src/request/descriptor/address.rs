//! The client's address as an entry.

use address::Address;
use filter_config::Prefixes;

/// The address in Envoy's `source.address` (`10.0.0.1:80`, `[::1]:80`), its bits beyond the prefix set
/// to zero; `None` for a source that is no IP address (a Unix socket).
pub(super) fn client(mut bytes: Vec<u8>, prefixes: Prefixes) -> Option<Vec<u8>> {
    let host = host(&bytes)?;
    // The zone of a link-local address (`fe80::1%eth0`) does not distinguish clients.
    let host = before(host, b'%').unwrap_or(host);
    let address = Address::parse(host)?;
    // Envoy writes addresses in canonical form, except IPv4 addresses mapped into IPv6.
    if address.is_v4() && prefixes.v4 >= 32 {
        let plain = host.len();
        bytes.truncate(plain);
        return Some(bytes);
    }
    let address = address.canonical();
    let prefix = if address.is_v4() {
        prefixes.v4
    } else {
        prefixes.v6
    };
    Some(address.cut(prefix).to_text())
}

/// An address without its port.
fn host(address: &[u8]) -> Option<&[u8]> {
    if let Some(v6) = address.strip_prefix(b"[") {
        return before(v6, b']');
    }
    let mut colons = address.iter().filter(|byte| **byte == b':');
    match (colons.next(), colons.next()) {
        (Some(_), None) => before(address, b':'),
        _ => Some(address),
    }
}

fn before(text: &[u8], end: u8) -> Option<&[u8]> {
    text.get(..text.iter().position(|byte| *byte == end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(address: &str, v4: u8, v6: u8) -> Option<String> {
        let value = client(address.as_bytes().to_vec(), Prefixes { v4, v6 })?;
        Some(String::from_utf8(value).unwrap())
    }

    #[test]
    fn addresses_lose_their_port_and_the_bits_after_the_prefix() {
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
            ("[fe80::1%eth0]:80", 32, 128, "fe80::1"),
            ("fe80::1%2", 32, 128, "fe80::1"),
        ] {
            assert_eq!(cut(address, v4, v6).as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_invalid_address_yields_no_entry() {
        for address in ["", "/run/envoy.sock", "[::1", "a:b", "\u{fffd}"] {
            assert_eq!(cut(address, 32, 64), None, "{address:?}");
        }
        assert_eq!(client(vec![0xff], Prefixes::default()), None);
    }
}
