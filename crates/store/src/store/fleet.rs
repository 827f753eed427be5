//! The proxies that share limits.

use std::collections::BTreeMap;

use policy::Name;

/// Proxies by the limit that they are active for; `None`: for anything in the domain.
pub type ActiveProxies = BTreeMap<Option<Name>, Vec<String>>;

/// How many proxies are active for each limit; `None`: for anything in the domain.
pub type ProxyCounts = BTreeMap<Option<Name>, u64>;
