//! The descriptor entries that the filters of one Envoy process supply, and what they do to values
//! ([`policy::Alterations`]), as polls report them.
//!
//! One worker polls for all filters of a domain, and their configurations may differ. So each worker
//! adds its own entries to a value in shared data, and the poll reports that value. An entry stays
//! there until the process ends, even if a filter without it replaces the one that had it.

use policy::{BUILT_IN, Name};

use crate::host::{self, Change, Contended, Host};

/// Bound: entries that an Envoy reports that it supplies. Beyond it, none are reported, and `rlctl`
/// warns of none that are missing.
///
/// The entries that a configuration may have, each hashed, and marks for the whole filter.
const ENTRIES_MAX: usize = 2 * 64 + 8;

/// The longest list that is reported, in bytes.
const BYTES_MAX: usize = 2048;

/// Marks a list that is too long. It is no valid list.
const TOO_LONG: &str = "*";

/// Adds a configuration's entries to the shared list; returns the list, as `user,tenant`, without
/// the built-in entries. `None`: it is too long to be reported.
pub(super) fn share<'n>(
    host: &impl Host,
    key: &[u8],
    own: &(impl Iterator<Item = &'n str> + Clone),
) -> Result<Option<String>, Contended> {
    host::update(host, key, |bytes| {
        let Some(mut text) = read(bytes) else {
            return Change::Keep(None);
        };
        for name in own.clone() {
            let mut listed = text.split(',');
            if !BUILT_IN.contains(&name) && !listed.any(|listed| listed == name) {
                if !text.is_empty() {
                    text.push(',');
                }
                text.push_str(name);
            }
        }
        if text.len() == bytes.len() {
            Change::Keep(Some(text))
        } else if text.split(',').count() > ENTRIES_MAX || text.len() > BYTES_MAX {
            Change::Write(TOO_LONG.into(), None)
        } else {
            Change::Write(text.clone().into_bytes(), Some(text))
        }
    })
}

/// `None`: too long, or not written by a filter.
fn read(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_name = |name: &str| name.parse::<Name>().is_ok();
    (text.is_empty() || text.split(',').all(is_name)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::SharedData;

    fn shared(host: &SharedData, own: &[&str]) -> Option<String> {
        share(host, b"entries", &own.iter().copied()).unwrap()
    }

    #[test]
    fn the_entries_of_all_filters_are_reported_without_the_built_in_ones() {
        let host = SharedData::default();
        assert_eq!(shared(&host, &["path", "host"]).as_deref(), Some(""));
        assert_eq!(shared(&host, &["user", "path"]).as_deref(), Some("user"));
        assert_eq!(shared(&host, &["tenant"]).as_deref(), Some("user,tenant"));
        assert_eq!(shared(&host, &["user"]).as_deref(), Some("user,tenant"));
    }

    #[test]
    fn an_entry_list_that_is_too_long_or_invalid_is_not_reported() {
        let many: Vec<String> = (0..=ENTRIES_MAX).map(|n| format!("e{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let host = SharedData::default();
        assert!(shared(&host, &many[1..]).is_some());
        assert_eq!(shared(&host, &many[..1]), None);
        assert_eq!(shared(&host, &["user"]), None, "some would be missing");

        let long: Vec<String> = (10..50).map(|n| format!("{}{n}", "e".repeat(60))).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert_eq!(shared(&SharedData::default(), &long), None);

        let host = SharedData::default();
        host.overwrite(b"entries", b"a, b\xff");
        assert_eq!(shared(&host, &["user"]), None);
    }
}
