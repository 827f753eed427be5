use proptest::prelude::*;

use super::*;

fn serde(bytes: &[u8]) -> Option<Node> {
    serde_json::from_slice(bytes).ok()
}

#[test]
fn all_of_json_is_read() {
    let text = r#" {"a": [1, -0.5e+3, true, false, null, {}, []],
        "b\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00": "é😀", "b": 1, "b": 2} "#;
    let node = Node::from_json(text.as_bytes()).unwrap();
    assert_eq!(node.get("b").unwrap().as_text(), Some("1"));
    let key = "b\"\\/\u{8}\u{c}\n\r\té😀";
    assert_eq!(node.get(key).unwrap().as_text(), Some("é😀"));
    let items = node.get("a").unwrap().items();
    assert_eq!(items[1].as_text(), Some("-0.5e+3"));
    assert_eq!(items.len(), 7);
}

#[test]
fn what_is_not_json_is_told_with_its_place() {
    for (text, expected, column) in [
        ("", "a value", 1),
        ("{a: 1}", "a key in quotes", 2),
        ("{\"a\": 1,}", "a key in quotes", 9),
        ("[1 2]", "`,` or `]`", 4),
        ("[1,]", "a value", 4),
        ("01", "the end", 2),
        ("1.", "a digit", 3),
        ("\"a\nb\"", "the rest of a text", 3),
        ("\"\\x\"", "an escape", 3),
        ("\"\\ud800\"", "the other half of a surrogate pair", 8),
        ("\"\\u12g4\"", "u and four hexadecimal digits", 6),
        ("nul", "a value", 1),
    ] {
        let error = Node::from_json(text.as_bytes()).unwrap_err().to_string();
        let expected = format!("expected {expected} at line 1 column {column}");
        assert_eq!(error, expected, "{text:?}");
    }
    let below = Node::from_json(b"{\n \"a\" 1}").unwrap_err().to_string();
    assert_eq!(below, "expected `:` at line 2 column 6");
    assert!(Node::from_json(b"\"\xff\"").is_err());
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth| ["[".repeat(depth), "]".repeat(depth)].concat();
    assert!(Node::from_json(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(Node::from_json(nested(MAX_DEPTH + 1).as_bytes()).is_err());
    assert!(Node::from_json("[".repeat(1_000_000).as_bytes()).is_err());
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn it_reads_what_serde_json_writes(json in any_json(), pretty: bool) {
        let write = if pretty { serde_json::to_vec_pretty } else { serde_json::to_vec };
        let bytes = write(&json).unwrap();
        prop_assert_eq!(Node::from_json(&bytes).ok(), serde(&bytes));
    }

    #[test]
    fn it_refuses_what_serde_json_refuses(
        json in any_json(), at: prop::sample::Index, byte: u8, cut: bool,
    ) {
        let mut bytes = serde_json::to_vec(&json).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at); } else { bytes[at] = byte; }
        let ours = Node::from_json(&bytes);
        match serde_json::from_slice::<Node>(&bytes) {
            // `serde_json` refuses numbers beyond those of a float; this reader keeps them as text.
            Err(error) if error.to_string().contains("out of range") => {}
            theirs => prop_assert_eq!(
                ours.is_ok(), theirs.is_ok(), "{:?}", String::from_utf8_lossy(&bytes)
            ),
        }
    }
}
