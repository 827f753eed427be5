use proptest::prelude::*;

use super::*;

/// Any document that YAML and JSON can both hold.
pub(crate) fn any_node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        Just(Node::from(Value::Null)),
        any::<bool>().prop_map(Node::from),
        any::<u64>().prop_map(Node::number),
        ".*".prop_map(Node::text),
        "[a-z0-9/%:#~!&*, .-]{0,12}".prop_map(Node::text),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let key = prop_oneof!["[a-z]{1,6}", ".{0,6}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Node::list),
            prop::collection::vec((key, inner), 0..6).prop_map(Node::map),
        ]
    })
}
