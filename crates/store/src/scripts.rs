//! The scripts that a server needs, by their digests.

use std::sync::LazyLock;

use redis_link::Script;
use store_plan::script::source;

/// `lua/check.lua`: decides checks.
pub static CHECK: LazyLock<Script> = LazyLock::new(|| Script::new(source::CHECK.clone()));

/// `lua/credit.lua`: gives units back to one bucket.
pub static CREDIT: LazyLock<Script> = LazyLock::new(|| Script::new(source::CREDIT.clone()));

/// `lua/refund.lua`: refunds what a denied check has charged.
pub static REFUND: LazyLock<Script> = LazyLock::new(|| Script::new(source::REFUND.clone()));

/// `lua/bucket_reset.lua`: makes buckets unused, except for leased units.
pub static BUCKET_RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new(source::BUCKET_RESET.to_owned()));

/// `lua/policy_write.lua`: one edit of a domain's record.
pub static POLICY_WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new(source::POLICY_WRITE.to_owned()));

/// `lua/policy_proxies.lua`: records which proxies are active for which limits.
pub static POLICY_PROXIES: LazyLock<Script> =
    LazyLock::new(|| Script::new(source::POLICY_PROXIES.to_owned()));

/// `lua/report.lua`: stores one report of a limiter.
pub static REPORT: LazyLock<Script> = LazyLock::new(|| Script::new(source::REPORT.to_owned()));

/// `lua/permissions.lua`: what the user may do. Not among those that are loaded.
pub(crate) static PERMISSIONS: LazyLock<Script> =
    LazyLock::new(|| Script::new(source::PERMISSIONS.to_owned()));

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
