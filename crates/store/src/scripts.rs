//! The scripts that a server needs, besides the check itself.

use std::sync::LazyLock;

use redis_link::Script;

use crate::script::{CHECK, CREDIT, TAKE_BACK};

/// `lua/bucket_reset.lua`: buckets become unused, but for what is leased out of them.
pub(crate) static BUCKET_RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/bucket_reset.lua").to_owned()));

/// `lua/policy_write.lua`: one edit of a domain's record.
pub(crate) static POLICY_WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/policy_write.lua").to_owned()));

/// `lua/policy_proxies.lua`: who asked for which limit lately.
pub(crate) static POLICY_PROXIES: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/policy_proxies.lua").to_owned()));

/// `lua/note.lua`: what one limiter saw lately.
pub(crate) static NOTE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/note.lua").to_owned()));

/// `lua/permissions.lua`: what the user may do. Not among those that are loaded.
pub(crate) static PERMISSIONS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/permissions.lua").to_owned()));

/// Every script that checks and edits need, by the name of its file.
pub(crate) fn all() -> [(&'static str, &'static Script); 7] {
    [
        ("check", &CHECK),
        ("credit", &CREDIT),
        ("bucket_reset", &BUCKET_RESET),
        ("take_back", &TAKE_BACK),
        ("policy_write", &POLICY_WRITE),
        ("policy_proxies", &POLICY_PROXIES),
        ("note", &NOTE),
    ]
}
