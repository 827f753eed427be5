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

#[test]
fn neither_anchors_nor_aliases_multiply_a_document() {
    let list = format!("[{}]", "a,".repeat(50_000));
    let nested = (0..30).fold(list, |inner, n| format!("&a{n} [{inner}]"));
    let long = format!("[&x {}, {}]", "t".repeat(10_000), "*x,".repeat(20_000));
    for (text, message) in [
        (nested, "anchors name too much"),
        (long, "aliases unfold into too much"),
    ] {
        let problems = Node::from_yaml("test", text.as_bytes()).unwrap_err();
        let found = problems
            .iter()
            .next()
            .map(|problem| problem.message.clone());
        assert_eq!(found.as_deref(), Some(message));
    }
    assert!(Node::from_yaml("test", b"{a: &x [1, &y two], b: *x, c: *y}").is_ok());
}
