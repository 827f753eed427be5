use policy::Pointer;
use proptest::prelude::*;

use super::*;

fn read(pointers: &[&str], events: bool, chunks: &[&[u8]]) -> (Vec<Option<u64>>, bool) {
    let pointers: Vec<Pointer> = pointers
        .iter()
        .map(|p| Pointer::parse(p).unwrap())
        .collect();
    let refs: Vec<&Pointer> = pointers.iter().collect();
    let mut reader = JsonReader::new(refs.len());
    let targets = Targets::new(&refs, events);
    for chunk in chunks {
        reader.read(targets, chunk);
    }
    let found = (0..refs.len()).map(|at| reader.found(at)).collect();
    (found, reader.is_whole())
}

fn one(pointer: &str, text: &str) -> Option<u64> {
    read(&[pointer], false, &[text.as_bytes()]).0[0]
}

#[test]
fn numbers_are_found_where_pointers_say() {
    for (pointer, text, number) in [
        ("/a", r#"{"a":7}"#, Some(7)),
        (
            "/a/b",
            r#"{"x":{"a":{"b":1}},"a":{"c":[{"b":2}],"b":3}}"#,
            Some(3),
        ),
        ("/a/b", r#"{"a":{"b":{"b":1}},"b":2}"#, None),
        ("/a/b", r#"{"a":{"x":1},"y":{"b":2}}"#, None),
        ("/a/1/b", r#"{"a":[{"b":1},{"b":2},{"b":3}]}"#, Some(2)),
        ("/a/1", r#"{"a":[[9,8],5]}"#, Some(5)),
        ("/a/01", r#"{"a":[1,2]}"#, None),
        ("/a", r#"{"a" : 12.0 }"#, Some(12)),
        ("/a", r#"{"a":12.01}"#, Some(13)),
        ("/a", r#"{"a":-1}"#, None),
        ("/a", r#"{"a":1e3}"#, None),
        ("/a", r#"{"a":"7"}"#, None),
        ("/a", r#"{"a":null}"#, None),
        ("/a", r#"{"a":99999999999999999999999}"#, Some(u64::MAX)),
        ("/a", r#"{"s":"\"a\":1,{[","a":2}"#, Some(2)),
        ("/a", r#"{"\u0061":1}"#, None),
        ("/a", r#"{"a\\":1,"ab":2,"":3}"#, None),
        ("/a", "{\"a\":1}\n{\"a\":2}\n{\"b\":3}", Some(2)),
        ("/u/t", r#"[{"u":{"t":1}},{"u":{"t":2}}]"#, Some(2)),
        ("/a", r#"{"a":1"#, None),
        ("/a", r#"{"a":1]"#, None),
        ("/a", "<html>a</html>", None),
        ("/a", r#"{"a":{"b":1},"a":4}"#, Some(4)),
    ] {
        assert_eq!(one(pointer, text), number, "{pointer} {text}");
    }
}

#[test]
fn an_event_has_its_numbers_in_a_wrapper_too() {
    for (pointer, text, number) in [
        ("/usage/t", r#"{"message":{"usage":{"t":1}}}"#, Some(1)),
        (
            "/usage/t",
            r#"{"type":"x","response":{"a":{},"usage":{"t":2}}}"#,
            Some(2),
        ),
        (
            "/usage/t",
            r#"{"message":{"x":1},"usage":{"t":3}}"#,
            Some(3),
        ),
        (
            "/response/usage/t",
            r#"{"response":{"usage":{"t":4}}}"#,
            Some(4),
        ),
        ("/usage/t", r#"{"other":{"usage":{"t":5}}}"#, None),
        (
            "/usage/t",
            r#"{"message":{"message":{"usage":{"t":6}}}}"#,
            None,
        ),
        ("/usage/t", r#"{"message":[{"usage":{"t":6}}]}"#, None),
    ] {
        let (found, _) = read(&[pointer], true, &[text.as_bytes()]);
        assert_eq!(found[0], number, "{pointer} {text}");
    }
    assert_eq!(one("/usage/t", r#"{"message":{"usage":{"t":1}}}"#), None);
}

#[test]
fn a_document_that_is_cut_short_is_not_whole() {
    let text = br#"{"a":{"b":[1,"x\"",{}]},"c":2}"#;
    for end in 1..text.len() {
        assert!(!read(&["/c"], false, &[&text[..end]]).1, "{end}");
    }
    assert!(read(&["/c"], false, &[text]).1);
    assert!(!read(&["/c"], false, &[b"{}}"]).1);
}

#[test]
fn deeply_nested_values_are_skipped() {
    let text = format!(
        "{}1{},\"a\":5}}",
        "{\"x\":".repeat(100_000),
        "}".repeat(99_999)
    );
    assert_eq!(one("/a", &text), Some(5));
}

/// JSON with the wanted keys in many places.
fn json(depth: u32) -> BoxedStrategy<serde_json::Value> {
    let key = prop::sample::select(vec!["a", "b", "usage", "message", "response", "é\"\\"]);
    let leaf = prop_oneof![
        any::<u32>().prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
        "[a-z\"\\\\{}\\[\\],: é]{0,6}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(depth, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::vec((key.clone(), inner), 0..4).prop_map(|fields| {
                let fields = fields.into_iter().map(|(k, v)| (k.to_owned(), v));
                serde_json::Value::Object(fields.collect())
            }),
        ]
    })
    .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_reader_finds_the_same_numbers_as_serde_json(value in json(5), pretty: bool) {
        let pointers = ["/a", "/a/b", "/usage/a", "/a/0", "/b/1/a", "/a/a/a"];
        let text = if pretty {
            serde_json::to_string_pretty(&value).unwrap()
        } else {
            value.to_string()
        };
        let (found, whole) = read(&pointers, false, &[text.as_bytes()]);
        prop_assert!(whole);
        for (pointer, found) in pointers.iter().zip(found) {
            let number = match &value {
                serde_json::Value::Array(items) => {
                    items.iter().filter_map(|item| item.pointer(pointer)?.as_u64()).next_back()
                }
                value => value.pointer(pointer).and_then(serde_json::Value::as_u64),
            };
            prop_assert_eq!(found, number, "{} {}", pointer, text);
        }
    }

    #[test]
    fn chunks_make_no_difference(value in json(4), cuts in prop::collection::vec(0_usize..200, 0..8)) {
        let text = value.to_string().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            chunks.push(&text[from..cut]);
            from = cut;
        }
        let pointers = ["/a", "/a/b", "/usage/a", "/b/1/a"];
        for events in [false, true] {
            prop_assert_eq!(read(&pointers, events, &chunks), read(&pointers, events, &[&text]));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(
        prop_oneof![3 => prop::sample::select(b"{}[]\",:\\ae1-.0 \n\r".to_vec()), 1 => any::<u8>()], 0..300)) {
        for events in [false, true] {
            let whole = read(&["/a", "/a/0", "/a/e"], events, &[&bytes]);
            let each: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read(&["/a", "/a/0", "/a/e"], events, &each), whole);
        }
    }
}
