//! Which events are parsed: events are skipped as far as that is certain to be right.

use super::*;

fn parsed(pointers: &[&str]) -> Vec<Pointer> {
    let pointers = pointers.iter();
    pointers.map(|text| Pointer::parse(text).unwrap()).collect()
}

fn searches(pointers: &[&str]) -> Option<usize> {
    let pointers = parsed(pointers);
    let search = EventSearch::new(&pointers.iter().collect::<Vec<_>>());
    search.map(|search| search.ends.len())
}

/// How many bytes can be skipped.
fn left_out(pointers: &[&str], bytes: &str) -> usize {
    let pointers = parsed(pointers);
    let pointers: Vec<&Pointer> = pointers.iter().collect();
    let search = EventSearch::new(&pointers).unwrap();
    let mut next = NextKeys::default();
    search.without(&pointers, bytes.as_bytes(), &mut next).len()
}

#[test]
fn keys_with_a_long_common_suffix_share_one_search() {
    assert_eq!(searches(&["/input_tokens", "/output_tokens"]), Some(1));
    // `age"` is the end of too many words.
    assert_eq!(searches(&["/usage", "/page"]), Some(2));
}

#[test]
fn more_than_four_keys_disable_the_search() {
    assert_eq!(searches(&["/one", "/two", "/three", "/four"]), Some(4));
    assert_eq!(
        searches(&["/one", "/two", "/three", "/four", "/five"]),
        None
    );
}

#[test]
fn the_search_uses_the_last_pointer_part_that_is_surely_a_key() {
    let event = "data: {\"usage\":[7]}\n\n";
    assert_eq!(searches(&["/0/17"]), None, "they may be positions");
    assert_eq!(searches(&["/a\nb"]), None, "two lines may make it");
    assert_eq!(left_out(&["/usage/0"], event), 0);
    // What is above it is in more events.
    assert_eq!(left_out(&["/usage/tokens"], event), event.len());
}

#[test]
fn a_word_with_the_same_suffix_as_a_key_is_not_a_match() {
    let event = "data: {\"my_tokens\":1,\"text\":\"tokens\\\"\"}\n\n";
    assert_eq!(left_out(&["/tokens"], event), event.len());
    let both = ["/input_tokens", "/output_tokens"];
    for other in ["cached_tokens", "throughput_tokens", "my_input_tokens"] {
        let event = format!("data: {{\"{other}\":1}}\n\n");
        assert_eq!(left_out(&both, &event), event.len(), "{other}");
    }
    assert_eq!(left_out(&both, "data: {\"input_tokens\":1}\n\n"), 0);
}

#[test]
fn the_search_stops_at_the_first_match_of_any_key() {
    let (one, other) = ("data: {\"one\":1}\n\n", "data: {\"other\":1}\n\n");
    let events = ["data: x\n\n", one, other].concat();
    assert_eq!(left_out(&["/one", "/other"], &events), 9);
    assert_eq!(left_out(&["/other", "/one"], &events), 9);
}

#[test]
fn a_chunk_is_searched_once() {
    let pointers = parsed(&["/tokens"]);
    let pointers: Vec<&Pointer> = pointers.iter().collect();
    let search = EventSearch::new(&pointers).unwrap();
    let bytes = b"data: x\n\ndata: {\"tokens\":1}\n\ndata: y\n\n";
    let mut next = NextKeys::default();
    assert_eq!(search.without(&pointers, bytes, &mut next).len(), 9);
    // The key is this many bytes before the end, also for a caller that has read further.
    let left = next[0].unwrap();
    assert!(bytes[bytes.len() - left..].starts_with(b"\"tokens"));
    assert_eq!(search.without(&pointers, &bytes[4..], &mut next).len(), 5);
    assert_eq!(next[0], Some(left));
    // After it, the rest is searched again.
    assert_eq!(search.without(&pointers, &bytes[29..], &mut next).len(), 9);
    assert_eq!(next[0], Some(0));
}

#[test]
fn an_event_ends_with_an_empty_line_of_any_kind() {
    for (text, ends) in [
        ("a\n\nb", 3),
        ("a\r\rb", 3),
        ("a\r\n\r\nb", 5),
        ("a\n\r\nb", 4),
        ("a\r\r\nb", 4),
        ("a\r\nb", 0),
        ("a\nb", 0),
        // A line feed may follow that belongs to it.
        ("a\r\r", 0),
        ("a\n\r", 0),
    ] {
        assert_eq!(whole_events(text.as_bytes()), ends, "{text:?}");
    }
    assert_eq!(last_event(b"a\n\nb\nc\n\n"), b"b\nc");
}
