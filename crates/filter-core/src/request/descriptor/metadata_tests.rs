use proptest::prelude::*;

use super::*;

/// A field of bytes, in protobuf encoding.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut len = bytes.len();
    let mut out = vec![number << 3 | 2];
    while len > 127 {
        out.push(u8::try_from(len & 127).unwrap() | 128);
        len >>= 7;
    }
    out.push(u8::try_from(len).unwrap());
    [out, bytes.to_vec()].concat()
}

fn text(text: &[u8]) -> Vec<u8> {
    field(3, text)
}

fn number(number: f64) -> Vec<u8> {
    [vec![2 << 3 | 1], number.to_le_bytes().to_vec()].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entry = |(key, value): &(&str, Vec<u8>)| {
        field(1, &[field(1, key.as_bytes()), field(2, value)].concat())
    };
    entries.iter().flat_map(entry).collect()
}

/// A host with these bytes as the claim `sub`, and all metadata as a message.
struct Host {
    bytes: Result<Vec<u8>, NoProperty>,
    whole: Vec<u8>,
}

impl Host {
    fn new(bytes: Result<&[u8], NoProperty>, value: Vec<u8>) -> Self {
        let payload = field(5, &map(&[("other", text(b"x")), ("sub", value)]));
        let claims = map(&[("payload", payload)]);
        Self {
            bytes: bytes.map(<[u8]>::to_vec),
            whole: map(&[("lua", Vec::new()), ("jwt", claims)]),
        }
    }

    fn claim(&self) -> Option<String> {
        let path = b"metadata\0filter_metadata\0jwt\0payload\0sub";
        let value = value(path, self)?;
        Some(String::from_utf8_lossy(&value).into_owned())
    }
}

impl Request for Host {
    fn headers<'r>(&'r self, _: &str) -> impl Iterator<Item = &'r [u8]> {
        std::iter::empty()
    }

    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        if path == WHOLE {
            Ok(self.whole.clone())
        } else {
            self.bytes.clone()
        }
    }
}

#[test]
fn text_of_eight_bytes_is_not_read_as_a_number() {
    for claim in [
        &b"abcdefg\n"[..],
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        "\u{85}abcdef".as_bytes(),
        b"\0\0\0\0\0\0Y@",
        b"alice123",
        b"",
        b"\x01",
        b"a\tb",
    ] {
        let host = Host::new(Ok(claim), text(claim));
        assert_eq!(host.claim().unwrap(), String::from_utf8_lossy(claim));
    }
}

#[test]
fn values_of_every_kind_have_a_text() {
    let bits = 100_f64.to_le_bytes();
    assert_eq!(Host::new(Ok(&bits), number(100.0)).claim().unwrap(), "100");
    let items = [text(b"a\"b"), number(2.0), vec![1 << 3, 0], vec![4 << 3, 1]];
    let list = field(6, &items.map(|item| field(1, &item)).concat());
    let host = Host::new(Err(NoProperty::Unreadable), list);
    assert_eq!(host.claim().unwrap(), "[\"a\\\"b\",2,null,true]");
    for (flag, expected) in [(0, "false"), (1, "true")] {
        let host = Host::new(Ok(&[flag]), vec![4 << 3, flag]);
        assert_eq!(host.claim().unwrap(), expected);
    }
    // The order of a map is random.
    let (a, b) = (("a", text(b"1")), ("b", number(2.0)));
    for entries in [[a.clone(), b.clone()], [b, a]] {
        let host = Host::new(Ok(b"\x02\0\0\0"), field(5, &map(&entries)));
        assert_eq!(host.claim().unwrap(), "{\"a\":\"1\",\"b\":2}");
    }
}

#[test]
fn only_a_null_value_counts_as_an_absent_claim() {
    let null = vec![1 << 3, 0];
    assert_eq!(Host::new(Err(NoProperty::Unreadable), null).claim(), None);
    let absent = Host::new(Err(NoProperty::Absent), text(b"x"));
    assert_eq!(absent.claim(), None);
    // A host that does not return the whole metadata: bytes stay as they are.
    for (bytes, expected) in [
        (Ok(&b"abcdefg\n"[..]), "abcdefg\n"),
        (Err(NoProperty::Unreadable), ""),
    ] {
        let host = Host {
            whole: Vec::new(),
            ..Host::new(bytes, Vec::new())
        };
        assert_eq!(host.claim().unwrap(), expected);
    }
}

#[test]
fn values_nested_too_deep_become_null() {
    let mut value = text(b"x");
    for _ in 0..1000 {
        value = field(6, &field(1, &value));
    }
    let claim = Host::new(Err(NoProperty::Unreadable), value).claim();
    assert_eq!(
        claim.unwrap(),
        format!("{}null{}", "[".repeat(64), "]".repeat(64))
    );
}

proptest! {
    #[test]
    fn reading_arbitrary_metadata_does_not_panic(whole in proptest::collection::vec(any::<u8>(), 0..64)) {
        let host = Host { bytes: Ok(vec![0; 8]), whole };
        let _ = value(b"metadata\0filter_metadata\0jwt", &host);
    }
}
