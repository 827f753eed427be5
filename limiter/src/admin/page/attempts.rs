//! Wrong tokens, by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Wrong tokens of one address within [`PERIOD`]; further attempts are refused until it ends.
const WRONG_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_mins(1);

/// Addresses that are counted at once; one more takes the place of the oldest.
const ADDRESSES_MAX: usize = 1024;

/// The addresses that recently sent wrong tokens.
#[derive(Default)]
pub(super) struct Attempts(Mutex<HashMap<IpAddr, Wrong>>);

struct Wrong {
    count: u32,
    since: Instant,
}

impl Attempts {
    /// Whether the address may show another token.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        let table = self.table();
        table
            .get(&network(address))
            .is_none_or(|wrong| wrong.count < WRONG_MAX || wrong.since.elapsed() >= PERIOD)
    }

    /// Records a wrong token of the address.
    pub(super) fn failed(&self, address: IpAddr) {
        let mut table = self.table();
        table.retain(|_, wrong| wrong.since.elapsed() < PERIOD);
        let address = network(address);
        if table.len() >= ADDRESSES_MAX && !table.contains_key(&address) {
            let oldest = table.iter().min_by_key(|(_, wrong)| wrong.since);
            let oldest = oldest.map(|(address, _)| *address);
            oldest.map(|oldest| table.remove(&oldest));
        }
        let wrong = table.entry(address).or_insert_with(|| Wrong {
            count: 0,
            since: Instant::now(),
        });
        wrong.count = wrong.count.saturating_add(1);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Wrong>> {
        // A panic while the lock is held leaves the table usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client has a whole /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            std::net::Ipv6Addr::from(prefix).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_refused_after_ten_wrong_tokens_and_others_are_not() {
        let attempts = Attempts::default();
        let guesser: IpAddr = "2001:db8::1".parse().unwrap();
        for _ in 0..WRONG_MAX {
            assert!(attempts.allows(guesser));
            attempts.failed(guesser);
        }
        assert!(!attempts.allows(guesser));
        assert!(
            !attempts.allows("2001:db8::2".parse().unwrap()),
            "the same network"
        );
        assert!(attempts.allows("2001:db8:0:1::1".parse().unwrap()));
        assert!(attempts.allows("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn the_addresses_are_bounded() {
        let attempts = Attempts::default();
        for number in 0..3000_u32 {
            attempts.failed(std::net::Ipv4Addr::from(number).into());
        }
        assert_eq!(attempts.table().len(), ADDRESSES_MAX);
    }
}
