//! A limiter's answer to `GET /v1/policy`, read as a limits file. It restores limits that Redis has
//! lost.

use policy::{Node, Value};

/// The fields that a limiter adds to each limit.
const ADDED: [&str; 3] = ["generation", "level", "has_overrides"];

/// The limits in a snapshot, as a limits file has them; `None` if the bytes are no snapshot.
pub(super) fn limits(bytes: &[u8]) -> Option<Node> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let node: Node = serde_json::from_slice(bytes).ok()?;
    // No limits file has either of these.
    node.get("revision").and(node.get("keys"))?;
    let Value::List(limits) = &node.get("limits")?.value else {
        return None;
    };
    let limits = limits.iter().map(|limit| {
        let mut limit = limit.clone();
        for field in ADDED {
            limit.unset(field);
        }
        limit
    });
    Some(Node::map([
        ("domain", node.get("domain")?.clone()),
        ("limits", Node::list(limits)),
    ]))
}

#[cfg(test)]
mod tests {
    use policy::{Compiled, Policy};

    use super::*;

    #[test]
    fn a_snapshot_is_read_as_the_limits_it_was_made_of() {
        let file = "domain: shop\nlimits:\n  - {name: a, per: [user], rate: 1/s, \
                    overrides: [{values: {user: x}, unlimited: true}]}\n";
        let policy = Policy::from_yaml("test", file.as_bytes()).unwrap();
        let snapshot = serde_json::to_vec(&Compiled::new(policy.clone()).to_snapshot(0)).unwrap();
        let read = Policy::from_node(&limits(&snapshot).unwrap()).unwrap();
        let mut without = policy;
        without.limits[0].overrides.clear();
        assert_eq!(read, without);
        assert!(limits(file.as_bytes()).is_none());
        assert!(limits(br#"{"domain":"shop","limits":[]}"#).is_none());
    }
}
