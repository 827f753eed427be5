//! Scripts assembled from `lua/`.

use std::sync::LazyLock;

use super::Script;

/// `lua/check.lua` with the algorithms it includes.
pub static CHECK: LazyLock<Script> =
    LazyLock::new(|| assemble(include_str!("../../../../lua/check.lua")));

/// `lua/credit.lua` with the algorithms it includes.
pub static CREDIT: LazyLock<Script> =
    LazyLock::new(|| assemble(include_str!("../../../../lua/credit.lua")));

/// `lua/refund.lua` with the algorithms it includes.
pub static REFUND: LazyLock<Script> =
    LazyLock::new(|| assemble(include_str!("../../../../lua/refund.lua")));

/// What a script may include, by the name it uses.
const LIBRARY: &[(&str, &str)] = &[
    (
        "lib/integers.lua",
        include_str!("../../../../lua/lib/integers.lua"),
    ),
    (
        "lib/state.lua",
        include_str!("../../../../lua/lib/state.lua"),
    ),
    (
        "lib/credit.lua",
        include_str!("../../../../lua/lib/credit.lua"),
    ),
    (
        "lib/bucket.lua",
        include_str!("../../../../lua/lib/bucket.lua"),
    ),
    (
        "lib/token_bucket.lua",
        include_str!("../../../../lua/lib/token_bucket.lua"),
    ),
    (
        "lib/plain.lua",
        include_str!("../../../../lua/lib/plain.lua"),
    ),
    (
        "lib/plain_read.lua",
        include_str!("../../../../lua/lib/plain_read.lua"),
    ),
    (
        "lib/plain_answer.lua",
        include_str!("../../../../lua/lib/plain_answer.lua"),
    ),
    (
        "lib/plain_write.lua",
        include_str!("../../../../lua/lib/plain_write.lua"),
    ),
    ("lib/load.lua", include_str!("../../../../lua/lib/load.lua")),
    ("lib/kept.lua", include_str!("../../../../lua/lib/kept.lua")),
    ("lib/gcra.lua", include_str!("../../../../lua/lib/gcra.lua")),
    (
        "lib/leaky_bucket.lua",
        include_str!("../../../../lua/lib/leaky_bucket.lua"),
    ),
    (
        "lib/slots.lua",
        include_str!("../../../../lua/lib/slots.lua"),
    ),
    (
        "lib/algorithms.lua",
        include_str!("../../../../lua/lib/algorithms.lua"),
    ),
    (
        "lib/lease.lua",
        include_str!("../../../../lua/lib/lease.lua"),
    ),
    (
        "lib/lease_window.lua",
        include_str!("../../../../lua/lib/lease_window.lua"),
    ),
    (
        "lib/granted.lua",
        include_str!("../../../../lua/lib/granted.lua"),
    ),
    (
        "lib/marks.lua",
        include_str!("../../../../lua/lib/marks.lua"),
    ),
    (
        "lib/fixed_window.lua",
        include_str!("../../../../lua/lib/fixed_window.lua"),
    ),
    (
        "lib/sliding_window_log.lua",
        include_str!("../../../../lua/lib/sliding_window_log.lua"),
    ),
    (
        "lib/sliding_window_buckets.lua",
        include_str!("../../../../lua/lib/sliding_window_buckets.lua"),
    ),
    (
        "lib/refund.lua",
        include_str!("../../../../lua/lib/refund.lua"),
    ),
    (
        "lib/sliding_window.lua",
        include_str!("../../../../lua/lib/sliding_window.lua"),
    ),
];

/// Replaces each line `-- include: NAME` by that file.
///
/// An unknown name stays as it is, a comment; the script then fails to run, which the tests of every
/// script show.
fn assemble(source: &str) -> Script {
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
            assert_eq!(script.sha1.len(), 40);
        }
    }
}
