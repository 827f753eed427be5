use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

#[test]
fn durations_are_read_and_written() {
    for (text, ms, written) in [
        ("250ms", 250, "250ms"),
        ("3s", 3000, "3s"),
        ("3000ms", 3000, "3s"),
        ("24h", 86_400_000, "1d"),
        ("0ms", 0, "0ms"),
    ] {
        assert_eq!(parse_duration(text), Ok(ms));
        assert_eq!(Duration(ms).to_string(), written);
    }
    for text in ["", "3", "s", "3 s", "3.5s", "3sec"] {
        assert_eq!(parse_duration(text), Err(UnitError::Duration), "{text}");
    }
}

#[test]
fn common_forms_are_read() {
    for text in [
        "2026-12-01T00:00Z",
        "2026-12-01T00:00:00Z",
        "2026-12-01 01:00:00.000+01:00",
        "2026-11-30T19:00-05:00",
    ] {
        assert_eq!(parse_timestamp(text), Some(1_796_083_200_000), "{text}");
    }
    assert_eq!(format_timestamp(1_796_083_200_000), "2026-12-01T00:00:00Z");
}

#[test]
fn anything_else_is_refused() {
    for text in [
        "",
        "2026-12-01",
        "2026-12-01T00:00",
        "2026-13-01T00:00Z",
        "2026-02-29T00:00Z",
        "2026-12-01T24:00Z",
        "2026-12-01T00:60Z",
        "2026-12-01T00:00:60Z",
        "1969-12-31T23:59Z",
        "2026-12-01T00:00Z ",
        "2026-12-01T00:00:00.Z",
        "tomorrow",
        "１２３４-12-01T00:00Z",
    ] {
        assert_eq!(parse_timestamp(text), None, "{text}");
    }
}

/// A store that could not read what it wrote would lose all limits of a domain.
#[test]
fn a_time_is_written_as_it_can_be_read() {
    for text in ["9999-12-31T23:59:59.999Z", "9999-12-31T22:59:59.999-01:00"] {
        let ms = parse_timestamp(text).unwrap();
        assert_eq!(parse_timestamp(&format_timestamp(ms)), Some(ms), "{text}");
    }
    assert_eq!(parse_timestamp("9999-12-31T23:59:59-01:00"), None);
}

proptest! {
    #[test]
    fn agrees_with_a_calendar_library(ms in 0_u64..253_402_300_799_999) {
        let text = format_timestamp(ms);
        let theirs: Timestamp = text.parse().unwrap();
        prop_assert_eq!(theirs.as_millisecond(), i64::try_from(ms).unwrap());
        prop_assert_eq!(parse_timestamp(&text), Some(ms));
    }

    #[test]
    fn any_text_is_decided(text in "\\PC{0,30}|[0-9TZ:+. -]{0,30}") {
        parse_timestamp(&text);
    }
}

#[test]
fn base64_is_the_usual_one() {
    for (bytes, text) in [
        (&b"\xff"[..], "/w=="),
        (b"\xff\xfe", "//4="),
        (b"Man", "TWFu"),
        (b"", ""),
    ] {
        assert_eq!(to_base64(bytes), text);
        assert_eq!(from_base64(text).as_deref(), Some(bytes));
    }
    for text in ["/w", "/w=", "/x==", "====", "/w==/w==", "a b=", "é==="] {
        assert_eq!(from_base64(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn every_value_comes_back(value: Option<Vec<u8>>) {
        let node = value_to_node(value.as_deref());
        prop_assert_eq!(node_to_value(&node), value);
    }
}
