use policy::Pointer;
use proptest::prelude::*;

use super::*;

fn read(pointers: &[&str], events: bool, chunks: &[&[u8]]) -> (Vec<Option<u64>>, bool) {
    let pointers = pointers.iter().map(|p| Pointer::parse(p).unwrap());
    let pointers: Vec<Pointer> = pointers.collect();
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

/// Each line has a pointer, a text, and behind `=>` the number that is found.
fn assert_found(table: &str, found: impl Fn(&str, &str) -> Option<u64>) {
    for line in table.trim().lines() {
        let (asked, expected) = line.rsplit_once(" => ").unwrap();
        let (pointer, text) = asked.split_once(' ').unwrap();
        assert_eq!(found(pointer, text), expected.parse().ok(), "{line}");
    }
}

#[test]
fn numbers_are_found_where_pointers_say() {
    let table = r#"
/a {"a":7} => 7
/a/b {"x":{"a":{"b":1}},"a":{"c":[{"b":2}],"b":3}} => 3
/a/b {"a":{"b":{"b":1}},"b":2} => none
/a/b {"a":{"x":1},"y":{"b":2}} => none
/a/1/b {"a":[{"b":1},{"b":2},{"b":3}]} => 2
/a/1 {"a":[[9,8],5]} => 5
/a/01 {"a":[1,2]} => none
/a {"a" : 12.0 } => 12
/a {"a":12.01} => 13
/a {"a":-1} => none
/a {"a":1e3} => none
/a {"a":"7"} => none
/a {"a":null} => none
/a {"a":99999999999999999999999} => 18446744073709551615
/a {"s":"\"a\":1,{[","a":2} => 2
/a {"\u0061":1} => none
/a {"a\\":1,"ab":2,"":3} => none
/u/t [{"u":{"t":1}},{"u":{"t":2}}] => 2
/a {"a":1 => none
/a {"a":1] => none
/a <html>a</html> => none
/a {"a":{"b":1},"a":4} => 4
"#;
    assert_found(table, one);
    assert_eq!(one("/a", "{\"a\":1}\n{\"a\":2}\n{\"b\":3}"), Some(2));
}

#[test]
fn an_event_has_its_numbers_in_a_wrapper_too() {
    let table = r#"
/usage/t {"message":{"usage":{"t":1}}} => 1
/usage/t {"type":"x","response":{"a":{},"usage":{"t":2}}} => 2
/usage/t {"message":{"x":1},"usage":{"t":3}} => 3
/response/usage/t {"response":{"usage":{"t":4}}} => 4
/usage/t {"other":{"usage":{"t":5}}} => none
/usage/t {"message":{"message":{"usage":{"t":6}}}} => none
/usage/t {"message":[{"usage":{"t":6}}]} => none
"#;
    assert_found(table, |pointer, text| {
        read(&[pointer], true, &[text.as_bytes()]).0[0]
    });
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
    let (open, close) = ("{\"x\":".repeat(100_000), "}".repeat(99_999));
    let text = format!("{open}1{close},\"a\":5}}");
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
