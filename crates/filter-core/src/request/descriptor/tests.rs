//! What a client can spell in many ways has one value, and a claim is never absent.

use filter_config::Prefixes;
use proptest::prelude::*;

use super::*;

/// Header lines, and the client's address.
struct Sent<'l>(&'l [(&'l str, &'l str)], &'l str);

impl Request for Sent<'_> {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        let lines = self.0.iter().filter(move |(known, _)| *known == name);
        lines.map(|(_, value)| value.as_bytes())
    }

    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        match path {
            b"source\0address" => Ok(self.1.as_bytes().to_vec()),
            b"eight" => Ok(7_i64.to_le_bytes().to_vec()),
            b"text" => Ok(b"seven".to_vec()),
            _ => Err(NoProperty::Absent),
        }
    }
}

fn value(source: &Source, lines: &[(&str, &str)]) -> Option<String> {
    let value = value_of(source, &Sent(lines, "192.0.2.1:80"))?;
    Some(String::from_utf8_lossy(&value).into_owned())
}

fn cookie(several: IfSeveral) -> Source {
    Source::Cookie("sid".to_owned(), several)
}

#[test]
fn a_request_is_described_in_normal_form() {
    let lines = [
        (":method", "post"),
        (":path", "/Api/./orders;v=1/?q=1"),
        (":authority", "Shop.Example.:80"),
    ];
    assert_eq!(value(&Source::Method, &lines).unwrap(), "POST");
    assert_eq!(value(&Source::Path, &lines).unwrap(), "/Api/orders");
    assert_eq!(value(&Source::Host, &lines).unwrap(), "shop.example");
    let target = Source::Header(":path".to_owned(), IfSeveral::Share);
    let raw = value(&target, &lines).unwrap();
    assert_eq!(raw, "/Api/./orders;v=1/?q=1");
    let address = Source::RemoteAddress(Prefixes::default());
    assert_eq!(value(&address, &lines).unwrap(), "192.0.2.1");
}

#[test]
fn every_spelling_of_a_cookie_is_one_value() {
    for line in [
        "sid=a=b",
        "xsid=1; sid=a=b;  theme=dark",
        "sid =a=b",
        " sid= a=b ;",
        "\tsid\t=\ta=b\t",
        "sid=\"a=b\"",
        "sid=\"a=b",
        "sid=\"a=b\\",
        "sid=\"\\141\\=b\"",
        "sid=%61%3Db",
        "SID=a=b",
        "s%69d=a=b",
        "sid=a=b; sid=a=b",
        "sid; sid=a=b",
    ] {
        // Services that drop the last byte as the quote read `a=b` without its last letter.
        let expected = if line == "sid=\"a=b" { "a=" } else { "a=b" };
        let lines = [("cookie", line)];
        let found = value(&cookie(IfSeveral::Share), &lines);
        assert_eq!(found.as_deref(), Some(expected), "{line}");
    }
    for line in ["sid", "xsid=1", "id=1", "", ";;", "="] {
        assert_eq!(value(&cookie(IfSeveral::Share), &[("cookie", line)]), None);
    }
    for line in ["sid=", "sid=\"\"", "sid=\""] {
        let found = value(&cookie(IfSeveral::Share), &[("cookie", line)]);
        assert!(found.is_some_and(|found| found.len() < 2), "{line}");
    }
}

#[test]
fn several_values_are_resolved_as_configured() {
    let lines = [("cookie", "a=1; sid=x"), ("cookie", "sid=y; sid=z")];
    let of = |several| value(&cookie(several), &lines).unwrap();
    assert_eq!(of(IfSeveral::Share), "(several)");
    assert_eq!(of(IfSeveral::First), "x");
    assert_eq!(of(IfSeveral::Last), "z");
    let header = Source::Header("x-user-id".to_owned(), IfSeveral::Share);
    let (a, b) = (("x-user-id", "a"), ("x-user-id", "b"));
    assert_eq!(value(&header, &[a]).unwrap(), "a");
    assert_eq!(value(&header, &[a, a]).unwrap(), "a");
    assert_eq!(value(&header, &[a, b]).unwrap(), "(several)");
    assert_eq!(value(&header, &[]), None);
    assert_eq!(value(&header, &[("x-user-id", "")]).unwrap(), "");
}

#[test]
fn every_spelling_of_a_parameter_is_one_value() {
    let key = Source::Query("key".to_owned(), IfSeveral::Share);
    let of = |target: &str| value(&key, &[(":path", target)]);
    for target in [
        "/?key=a%20b",
        "/?x=1&key=a+b#f",
        "/?k%65y=%61 b&keys=other",
        "/?KEY=a b",
        "/?+key+=a b",
        "/?%20Key=a b",
        "/?x=1;key=a b",
        "/?key=a b&key=%61+b",
        "/?key=a b;x",
    ] {
        assert_eq!(of(target).as_deref(), Some("a b"), "{target}");
    }
    assert_eq!(of("/?key").as_deref(), Some(""));
    assert_eq!(of("/?key=%f").as_deref(), Some("%f"));
    assert_eq!(of("/?key=a?b=c").as_deref(), Some("a?b=c"));
    assert_eq!(of("/?key=a&KEY=b").as_deref(), Some("(several)"));
    for target in ["/key=1", "/", "/#?key=1", "/?keys=1"] {
        assert_eq!(of(target), None, "{target}");
    }
}

#[test]
fn a_property_of_unexpected_length_is_read_as_text() {
    let of = |path: &[u8], format| value(&Source::Property(path.to_vec(), format), &[]);
    assert_eq!(of(b"eight", Format::Integer).unwrap(), "7");
    assert_eq!(of(b"text", Format::Integer).unwrap(), "seven");
    assert_eq!(of(b"text", Format::Text).unwrap(), "seven");
    assert_eq!(of(b"none", Format::Text), None);
}

proptest! {
    #[test]
    fn parsing_arbitrary_cookies_and_queries_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut found = Found::new(IfSeveral::Share);
        read_cookie(&bytes, "a", &mut found);
        parameters(&bytes, "a").for_each(|value| found.add(&value));
    }
}

#[test]
fn only_a_single_value_is_hashed() {
    let source = Source::Hashed(Box::new(cookie(IfSeveral::Share)));
    let found = |line| value(&source, &[("cookie", line)]);
    let hash = "ba7816bf8f01cfea414140de5dae2223";
    assert_eq!(found("sid=abc; theme=dark").as_deref(), Some(hash));
    assert_eq!(
        found("sid=abc; sid=xyz"),
        value(&cookie(IfSeveral::Share), &[("cookie", "sid=a; sid=b")])
    );
    assert_eq!(found("theme=dark"), None);
}
