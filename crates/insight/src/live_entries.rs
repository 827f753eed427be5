//! The descriptor entries that live proxies supply, which limits are checked against, and the values
//! that proxies give to them, by which buckets are named.

use std::{collections::BTreeMap, net::SocketAddr};

use limits_file::Supply;
use policy::{
    Address, Alterations, BUILT_IN, MULTIPLE_VALUES, Name, REMOTE_ADDRESS, hashed, is_hash,
    normal_value,
};
use store::Fleet;

/// What the proxies of each domain supply; unknown for domains that are not in it.
#[derive(Debug, Default)]
pub struct LiveEntries(BTreeMap<Name, Supplied>);

/// What the proxies of one domain supply.
#[derive(Debug, Default)]
struct Supplied {
    /// The built-in entries included.
    entries: Vec<Name>,
    alterations: Alterations,
}

/// A value as proxies have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    /// The value by which buckets are split.
    pub value: Vec<u8>,
    /// The value that patterns test, if that is another.
    pub matched: Option<Vec<u8>>,
    /// What an operator may not expect.
    pub note: Option<String>,
}

impl LiveEntries {
    /// The entries that proxies have reported.
    pub fn from_fleet(fleet: &Fleet) -> Self {
        let domains = fleet.entries.iter().map(|(domain, listed)| {
            let mut supplied = Supplied::default();
            let built_in = BUILT_IN.iter().filter_map(|name| name.parse().ok());
            supplied.entries.extend(built_in);
            for name in listed {
                let alterations = &mut supplied.alterations;
                if !alterations.read_mark(name, |entry| listed.contains(entry)) {
                    supplied.entries.push(name.clone());
                }
            }
            (domain.clone(), supplied)
        });
        Self(domains.collect())
    }

    /// What a domain's limits are checked against; `None` if unknown.
    pub fn supply(&self, domain: &Name) -> Option<Supply<'_>> {
        self.0.get(domain).map(|supplied| Supply {
            entries: &supplied.entries,
            domains: &[],
            alterations: &supplied.alterations,
            source: None,
        })
    }

    /// The value of an entry that a person wrote, as the proxies of a domain alter it.
    ///
    /// # Errors
    /// No bucket is of the value.
    pub fn alter(&self, domain: &Name, key: &str, value: &[u8]) -> Result<Altered, String> {
        let unknown = Alterations::default();
        let supplied = self.0.get(domain);
        let alterations = supplied.map_or(&unknown, |supplied| &supplied.alterations);
        if key == REMOTE_ADDRESS {
            return cut(alterations, value);
        }
        let mut altered = Altered {
            value: normal_value(key, value.to_vec()),
            matched: None,
            note: None,
        };
        let hashes = { alterations.hashed.iter() }.any(|name| name.as_str() == key);
        if hashes && altered.value != MULTIPLE_VALUES && !is_hash(&altered.value) {
            altered.value = hashed(&altered.value);
            altered.note = Some(format!(
                "the proxies hash `{key}`: its value is {}",
                String::from_utf8_lossy(&altered.value)
            ));
        }
        Ok(altered)
    }
}

/// An address, or the network that proxies cut addresses to, as `remote_address` has it.
fn cut(alterations: &Alterations, value: &[u8]) -> Result<Altered, String> {
    let written = String::from_utf8_lossy(value);
    // Logs have addresses with ports and zones, and proxies leave out both.
    let with_port = written.parse().map(|at: SocketAddr| at.ip().to_string());
    let host = with_port.as_deref().unwrap_or(&written);
    let (host, length) = match host.split_once('/') {
        Some((host, length)) => (host, Some(length)),
        None => (host.split('%').next().unwrap_or(host), None),
    };
    let Some(address) = Address::parse(host.as_bytes()).map(Address::canonical) else {
        // Programs may send anything.
        return Ok(Altered {
            value: value.to_vec(),
            matched: None,
            note: Some(format!("`{written}` is no address, so no proxy sends it")),
        });
    };
    let [v4, v6] = alterations.longest_prefixes();
    let bits = if address.is_v4() { v4 } else { v6 };
    let bucket = address.cut(bits);
    if let Some(length) = length {
        // Whoever names the network of a bucket by its length means the bucket.
        if bucket != address || length != bits.to_string() {
            let what = if bits == address.width() {
                "an address".to_owned()
            } else {
                format!("a /{bits}")
            };
            return Err(format!(
                "`{written}` is a network, and each bucket is of {what}; a limit of its own covers \
                 a network: `match: {{remote_address: \"cidr:{written}\"}}`"
            ));
        }
    }
    let whole = address.to_text();
    if bucket == address {
        return Ok(Altered {
            value: whole,
            matched: None,
            note: None,
        });
    }
    let why = match alterations.prefixes.len() {
        0 => "no live proxy reports its prefix length, so this is the default",
        1 => "so the proxies are configured",
        _ => "the proxies are configured differently; this is the longest",
    };
    let value = bucket.to_text();
    let network = String::from_utf8_lossy(&value);
    Ok(Altered {
        note: Some(format!(
            "all addresses in {network}/{bits} share the bucket remote_address={network} ({why})"
        )),
        matched: Some(whole),
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(listed: &[&str]) -> (LiveEntries, Name) {
        let shop: Name = "shop".parse().unwrap();
        let names = listed.iter().map(|name| name.parse().unwrap()).collect();
        let mut fleet = Fleet::default();
        fleet.entries.insert(shop.clone(), names);
        (LiveEntries::from_fleet(&fleet), shop)
    }

    fn altered(
        listed: &[&str],
        key: &str,
        value: &str,
    ) -> Result<(String, Option<String>), String> {
        let (live, shop) = live(listed);
        let altered = live.alter(&shop, key, value.as_bytes())?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ok((text(altered.value), altered.note))
    }

    #[test]
    fn an_address_is_cut_as_the_proxies_do() {
        let one = "2001:db8:1:2:3::9";
        for (listed, bucket, why) in [
            (&[][..], "2001:db8:1:2::", "the default"),
            (&["remote_address.32.48"], "2001:db8:1::", "are configured)"),
            (
                &["remote_address.32.48", "remote_address.24.56"],
                "2001:db8:1::",
                "the longest",
            ),
        ] {
            let (value, note) = altered(listed, "remote_address", one).unwrap();
            assert_eq!(value, bucket);
            assert!(note.unwrap().contains(why));
        }
        let whole = ["remote_address.32.128", "user"];
        let of = |value: &str| altered(&whole, "remote_address", value);
        assert_eq!(of(one).unwrap(), (one.to_owned(), None));
        assert_eq!(
            of("::ffff:10.0.0.1").unwrap(),
            ("10.0.0.1".to_owned(), None)
        );
        for logged in ["10.0.0.1:5555", "[::ffff:10.0.0.1]:443"] {
            assert_eq!(of(logged).unwrap(), ("10.0.0.1".to_owned(), None));
        }
        assert_eq!(of("fe80::1%eth0").unwrap(), ("fe80::1".to_owned(), None));
        let (value, note) = of("10.1").unwrap();
        assert_eq!(value, "10.1");
        assert!(note.unwrap().contains("no address"));
        // A bucket may be named by its network; another network is none.
        let of = |value: &str| altered(&[], "remote_address", value);
        let bucket = ("2001:db8:1:2::".to_owned(), None);
        assert_eq!(of("2001:db8:1:2::/64").unwrap(), bucket);
        for network in ["2001:db8::/32", "2001:db8::1/64", "10.0.0.0/8"] {
            let error = of(network).unwrap_err();
            assert!(error.contains(&format!("cidr:{network}")), "{error}");
        }
    }

    #[test]
    fn a_value_that_proxies_hash_is_hashed_once() {
        let listed = ["api_key", "api_key.hashed", "other.hashed"];
        let hash = "ba7816bf8f01cfea414140de5dae2223";
        let (value, note) = altered(&listed, "api_key", "abc").unwrap();
        assert_eq!(value, hash);
        assert!(note.unwrap().contains("hash `api_key`"));
        let same = |key, value: &str| {
            assert_eq!(
                altered(&listed, key, value).unwrap(),
                (value.to_owned(), None)
            );
        };
        same("api_key", hash);
        same("api_key", "(several)");
        same("other", "abc");
        let (live, shop) = live(&listed);
        let entries = live.supply(&shop).unwrap().entries;
        assert!(entries.iter().any(|name| name.as_str() == "other.hashed"));
        assert!(entries.iter().all(|name| name.as_str() != "api_key.hashed"));
    }
}
