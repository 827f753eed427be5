//! The scripts that a server needs: from `lua/`, with what they include, by their digests.

use std::sync::LazyLock;

use redis_link::Script;

/// A file of `lua/`.
macro_rules! lua {
    ($name:expr) => {
        include_str!(concat!("../../../lua/", $name))
    };
}

macro_rules! library {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("lib/", $name), lua!(concat!("lib/", $name)))),*]
    };
}

/// `lua/check.lua`: decides checks.
pub static CHECK: LazyLock<Script> = LazyLock::new(|| script(lua!("check.lua")));

/// `lua/credit.lua`: gives units back to one bucket.
pub static CREDIT: LazyLock<Script> = LazyLock::new(|| script(lua!("credit.lua")));

/// `lua/refund.lua`: refunds what a denied check has charged.
pub static REFUND: LazyLock<Script> = LazyLock::new(|| script(lua!("refund.lua")));

/// `lua/bucket_reset.lua`: makes buckets unused, except for leased units.
pub static BUCKET_RESET: LazyLock<Script> = LazyLock::new(|| script(lua!("bucket_reset.lua")));

/// `lua/policy_write.lua`: one edit of a domain's record.
pub static POLICY_WRITE: LazyLock<Script> = LazyLock::new(|| script(lua!("policy_write.lua")));

/// `lua/policy_proxies.lua`: records which proxies are active for which limits.
pub static POLICY_PROXIES: LazyLock<Script> = LazyLock::new(|| script(lua!("policy_proxies.lua")));

/// `lua/report.lua`: stores one report of a limiter.
pub static REPORT: LazyLock<Script> = LazyLock::new(|| script(lua!("report.lua")));

/// `lua/permissions.lua`: what the user may do. Not among those that are loaded.
pub(crate) static PERMISSIONS: LazyLock<Script> = LazyLock::new(|| script(lua!("permissions.lua")));

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

/// What a script may include, by the name it uses.
const LIBRARY: &[(&str, &str)] = library![
    "integers.lua",
    "state.lua",
    "credit.lua",
    "bucket.lua",
    "token_bucket.lua",
    "plain.lua",
    "plain_limit.lua",
    "plain_read.lua",
    "plain_answer.lua",
    "plain_write.lua",
    "load.lua",
    "kept.lua",
    "gcra.lua",
    "leaky_bucket.lua",
    "algorithms.lua",
    "lease.lua",
    "lease_window.lua",
    "granted.lua",
    "marks.lua",
    "fixed_window.lua",
    "calendar_window.lua",
    "counted_window.lua",
    "parameters.lua",
    "sliding_window_log.lua",
    "sliding_window_buckets.lua",
    "refund.lua",
    "sliding_window.lua",
    "concurrency.lua",
    "adaptive.lua",
    "reservations.lua",
    "penalty.lua",
];

/// Replaces each line `-- include: NAME` by that file.
///
/// An unknown name stays as it is, a comment; the script then fails to run, which the tests of every
/// script show.
fn script(source: &str) -> Script {
    let mut assembled = String::with_capacity(48 * 1024);
    include(source, &mut assembled);
    Script::new(assembled)
}

fn include(source: &str, assembled: &mut String) {
    for line in source.lines() {
        let included = line
            .trim_start()
            .strip_prefix("-- include: ")
            .and_then(|name| LIBRARY.iter().find(|(known, _)| *known == name));
        if let Some((_, text)) = included {
            include(text, assembled);
        } else {
            assembled.push_str(line);
            assembled.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_found() {
        for script in [&CHECK, &CREDIT, &REFUND] {
            assert!(
                !script.source.contains("-- include:"),
                "an include was left"
            );
        }
    }
}
