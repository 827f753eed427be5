//! The sources of scripts, from `lua/`.

use std::sync::LazyLock;

/// A file of `lua/`.
macro_rules! lua {
    ($name:expr) => {
        include_str!(concat!("../../../../lua/", $name))
    };
}

macro_rules! library {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("lib/", $name), lua!(concat!("lib/", $name)))),*]
    };
}

/// `lua/check.lua` with the algorithms it includes.
pub static CHECK: LazyLock<String> = LazyLock::new(|| assemble(lua!("check.lua")));

/// `lua/credit.lua` with the algorithms it includes.
pub static CREDIT: LazyLock<String> = LazyLock::new(|| assemble(lua!("credit.lua")));

/// `lua/refund.lua` with the algorithms it includes.
pub static REFUND: LazyLock<String> = LazyLock::new(|| assemble(lua!("refund.lua")));

/// Makes buckets unused, except for leased units.
pub const BUCKET_RESET: &str = lua!("bucket_reset.lua");

/// One edit of a domain's record.
pub const POLICY_WRITE: &str = lua!("policy_write.lua");

/// Records which proxies are active for which limits.
pub const POLICY_PROXIES: &str = lua!("policy_proxies.lua");

/// Stores one report of a limiter.
pub const REPORT: &str = lua!("report.lua");

/// What the user may do.
pub const PERMISSIONS: &str = lua!("permissions.lua");

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
    "slots.lua",
    "algorithms.lua",
    "lease.lua",
    "lease_window.lua",
    "granted.lua",
    "marks.lua",
    "fixed_window.lua",
    "calendar_window.lua",
    "counted_window.lua",
    "edges.lua",
    "sliding_window_log.lua",
    "sliding_window_buckets.lua",
    "refund.lua",
    "sliding_window.lua",
    "concurrency.lua",
    "reservations.lua",
    "penalty.lua",
];

/// Replaces each line `-- include: NAME` by that file.
///
/// An unknown name stays as it is, a comment; the script then fails to run, which the tests of every
/// script show.
fn assemble(source: &str) -> String {
    let mut assembled = String::with_capacity(48 * 1024);
    include(source, &mut assembled);
    assembled
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
            assert!(!script.contains("-- include:"), "an include was left");
        }
    }
}
