//! Addresses are what the standard library takes for addresses, and are written as it writes them.

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use address::Address;
use proptest::{prelude::*, strategy::Union};

fn ours(text: &str) -> Option<Address> {
    Address::parse(text.as_bytes())
}

fn written(address: Address) -> String {
    String::from_utf8_lossy(&address.to_text()).into_owned()
}

/// Addresses in which the special is frequent: zeros, ones, IPv4 inside IPv6.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let group = || prop_oneof![4 => Just(0_u16), 1 => Just(0xffff), 2 => any::<u16>()];
    let octets = || any::<[u8; 4]>().prop_map(Ipv4Addr::from);
    prop_oneof![
        octets().prop_map(IpAddr::V4),
        prop::array::uniform8(group()).prop_map(|groups| Ipv6Addr::from(groups).into()),
        octets().prop_map(|v4| v4.to_ipv6_mapped().into()),
        octets().prop_map(|v4| v4.to_ipv6_compatible().into()),
    ]
}

/// What could be an address, more often than not is none, and never by much.
fn texts() -> impl Strategy<Value = String> {
    let pieces = [
        ":", "::", ".", "0", "00", "1", "01", "7f", "255", "256", "ffff", "00000", "F", "g", "/",
        "1.2.3.4", "%1", " ", "-", "é",
    ];
    let piece = Union::new(pieces.map(Just));
    let pieces = prop::collection::vec(piece, 0..18).prop_map(|pieces| pieces.concat());
    let groups = prop::collection::vec(prop_oneof![Just("0"), Just("abc"), Just("")], 1..10);
    let groups = groups.prop_map(|groups| groups.join(":"));
    let embedded = (
        groups.clone(),
        prop_oneof![Just(":1.2.3.4"), Just(":1.2.3.4:5")],
    );
    let octets = prop::collection::vec(0..300_u16, 3..6);
    prop_oneof![
        pieces,
        groups,
        embedded.prop_map(|(groups, v4)| groups + v4),
        octets.prop_map(|octets| octets
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(".")),
        "[0-9a-fA-F:.]{0,45}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn an_address_is_what_the_standard_library_takes_for_one(text in texts()) {
        let theirs = text.parse::<IpAddr>().ok();
        let found = ours(&text).map(written);
        prop_assert_eq!(found, theirs.map(|address| address.to_string()));
    }

    #[test]
    fn every_address_is_read_written_and_recognised(theirs in addresses()) {
        let text = theirs.to_string();
        let address = ours(&text).unwrap();
        prop_assert_eq!(address.is_v4(), theirs.is_ipv4());
        prop_assert_eq!(written(address), text);
        prop_assert_eq!(written(address.canonical()), theirs.to_canonical().to_string());
    }

    #[test]
    fn what_is_cut_are_the_bits_beyond(theirs in addresses(), length in 0..=128_u8) {
        let address = ours(&theirs.to_string()).unwrap();
        let length = length.min(address.width());
        let cut: IpAddr = match theirs {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(u32::from(32 - length)).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(u32::from(128 - length)).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        };
        prop_assert_eq!(written(address.cut(length)), cut.to_string());
    }
}

#[test]
fn bytes_that_are_no_text_are_no_address() {
    for bytes in [&b"\xff"[..], b"::\xff", b"10.0.0.\xb9", b"\0::"] {
        assert_eq!(Address::parse(bytes), None);
    }
}
