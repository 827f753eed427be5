use prost::Message as _;

use super::*;

/// A later version of the messages.
#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "9")]
    new: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, repeated, tag = "4")]
    descriptors: Vec<Self>,
    #[prost(bool, tag = "7")]
    quota_mode: bool,
    #[prost(string, tag = "8")]
    new: String,
}

/// A response of one resource.
fn response(config: &[u8]) -> Bytes {
    let field = |number: u8, value: &[u8]| {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(u64::try_from(value.len()).unwrap(), &mut out);
        out.extend(value);
        out
    };
    field(2, &field(2, config)).into()
}

fn names(config: &[u8]) -> Vec<String> {
    let content = Content::new(&response(config), "").unwrap();
    content.unknown.iter().map(ToString::to_string).collect()
}

#[test]
fn messages_are_counted_wherever_they_are() {
    // Of two bytes each: a descriptor at the top, and one below another.
    let flat = |count: usize| [0x1a, 0].repeat(count);
    let nested = |count: usize| {
        let below = [0x22, 0].repeat(count);
        let mut above = vec![0x1a];
        prost::encoding::encode_varint(u64::try_from(below.len()).unwrap(), &mut above);
        [above, below].concat()
    };
    // Beside the resource, its configuration and the descriptor above.
    for fitting in [flat(MAX_MESSAGES - 2), nested(MAX_MESSAGES - 3)] {
        let counted = Content::new(&response(&fitting), "").map(|content| content.messages);
        assert_eq!(counted, Ok(MAX_MESSAGES));
    }
    for too_many in [flat(MAX_MESSAGES - 1), nested(MAX_MESSAGES - 2)] {
        let error = Content::new(&response(&too_many), "").unwrap_err();
        assert!(error.starts_with("more than 25000"), "{error}");
    }
    let resources = Bytes::from([0x12, 0].repeat(MAX_MESSAGES + 1));
    assert!(Content::new(&resources, "").is_err());
}

#[test]
fn unknown_fields_are_named_at_any_depth_and_known_ones_are_not() {
    let mut inner = Descriptor {
        key: "user".to_owned(),
        quota_mode: true,
        ..Descriptor::default()
    };
    let config = |inner: &Descriptor, new| {
        let outer = Descriptor {
            key: "plan".to_owned(),
            descriptors: vec![inner.clone()],
            ..Descriptor::default()
        };
        Config {
            domain: "shop".to_owned(),
            descriptors: vec![outer],
            new,
        }
        .encode_to_vec()
    };
    assert_eq!(names(&config(&inner, 0)), [] as [&str; 0]);
    inner.new = "x".to_owned();
    assert_eq!(
        names(&config(&inner, 5)),
        ["RateLimitConfig field 9", "RateLimitDescriptor field 8"]
    );
    // Cut anywhere, or filled with any byte: no panic.
    let whole = config(&inner, 5);
    for at in 0..whole.len() {
        names(&whole[..at]);
        let mut wrong = whole.clone();
        wrong[at] = 0xff;
        names(&wrong);
    }
}
