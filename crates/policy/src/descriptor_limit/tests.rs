use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_descriptor_round_trips_through_text(
        entries in prop::collection::vec(("[a=,*\\\\é]{1,6}", "[a=,*\\\\é]{0,6}"), 1..5)
    ) {
        let mut text = Vec::new();
        for (key, value) in &entries {
            push_entry(&mut text, key.as_bytes(), value.as_bytes());
        }
        let read = SentDescriptor::read(&text).unwrap();
        let expected = entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
        prop_assert!(read.entries().eq(expected), "{text:?}");
    }
}

#[test]
fn an_invalid_descriptor_text_is_refused() {
    for text in ["", "a", "=b", "a=b,", "a=b,c", "a=\\", "a\\", ",a=b"] {
        assert_eq!(SentDescriptor::read(text.as_bytes()), None, "{text}");
    }
    let long = vec!["a=b"; MAX_SENT_ENTRIES].join(",");
    assert!(SentDescriptor::read(long.as_bytes()).is_some());
    let longer = format!("{long},a=b");
    assert_eq!(SentDescriptor::read(longer.as_bytes()), None);
}

#[test]
fn entries_are_read_and_written() {
    for (text, expected) in [
        ("to_number", EntryPattern::any("to_number")),
        ("a=b", EntryPattern::exact("a", "b")),
        ("a=", EntryPattern::exact("a", "")),
        ("a=b=c,d", EntryPattern::exact("a", "b=c,d")),
        (r"a\=b=\*c\\", EntryPattern::exact("a=b", r"*c\")),
        (
            "path=/export/*",
            EntryPattern::wildcard("path", "/export/*"),
        ),
        ("A B=*x*", EntryPattern::wildcard("A B", "*x*")),
    ] {
        let read = EntryPattern::parse(text).unwrap();
        assert_eq!(read, expected, "{text}");
        assert_eq!(EntryPattern::parse(&read.to_string()).unwrap(), expected);
    }
    assert_eq!(EntryPattern::parse("=a"), Err(DescriptorError::Key));
    assert_eq!(EntryPattern::parse("a*"), Err(DescriptorError::StarInKey));
    assert_eq!(EntryPattern::parse(r"a=\b"), Err(DescriptorError::Escape));
    assert_eq!(EntryPattern::parse(r"a=\"), Err(DescriptorError::Escape));
    let stars = format!("a={}", "*".repeat(MAX_STARS + 1));
    assert_eq!(EntryPattern::parse(&stars), Err(DescriptorError::Stars));
    let long = "k".repeat(MAX_DESCRIPTOR_KEY + 1);
    assert_eq!(EntryPattern::parse(&long), Err(DescriptorError::Key));
}

proptest! {
    #[test]
    fn wildcard_matching_agrees_with_a_naive_search(
        pattern in "[ab*]{0,5}",
        value in "[ab]{0,6}",
    ) {
        fn tries(pattern: &[u8], value: &[u8]) -> bool {
            match pattern.split_first() {
                None => value.is_empty(),
                Some((b'*', rest)) => (0..=value.len()).any(|at| tries(rest, &value[at..])),
                Some((c, rest)) => value.first() == Some(c) && tries(rest, &value[1..]),
            }
        }
        let entry = EntryPattern::wildcard("k", &pattern);
        prop_assert_eq!(
            entry.matches_value(value.as_bytes()),
            tries(pattern.as_bytes(), value.as_bytes())
        );
    }
}
