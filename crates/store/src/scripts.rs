//! The scripts that a server needs, besides the check itself.

use std::sync::LazyLock;

use redis_link::Script;

use crate::script::{CHECK, CREDIT, REFUND};

/// `lua/bucket_reset.lua`: buckets become unused, but for what is leased out of them.
pub(crate) static BUCKET_RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/bucket_reset.lua").to_owned()));

/// `lua/policy_write.lua`: one edit of a domain's record.
pub(crate) static POLICY_WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/policy_write.lua").to_owned()));

/// `lua/policy_proxies.lua`: which proxies are active for which limits.
pub(crate) static POLICY_PROXIES: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/policy_proxies.lua").to_owned()));

/// `lua/report.lua`: stores one report of a limiter.
pub(crate) static REPORT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/report.lua").to_owned()));

/// `lua/permissions.lua`: what the user may do. Not among those that are loaded.
pub(crate) static PERMISSIONS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/permissions.lua").to_owned()));

/// Every script that checks and edits need, by the name of its file.
pub(crate) fn all() -> [(&'static str, &'static Script); 7] {
    [
        ("check", &CHECK),
        ("credit", &CREDIT),
        ("bucket_reset", &BUCKET_RESET),
        ("refund", &REFUND),
        ("policy_write", &POLICY_WRITE),
        ("policy_proxies", &POLICY_PROXIES),
        ("report", &REPORT),
    ]
}
