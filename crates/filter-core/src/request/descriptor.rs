//! The descriptor of a request: the entries that the policy needs.
//!
//! The configuration says where entries come from, and the policy which of them it needs. The filter
//! reads only those from the host, as bytes, and assumes nothing about what a client put in them. A
//! value that a client can spell in many ways has one normal form, and no spelling makes a value seem
//! absent.

use std::sync::Arc;

use address::Address;
use filter_config::{Format, IfSeveral, Prefixes, Source};
use normalize::{parameters, percent_decode};
use policy::{Entries, MULTIPLE_VALUES, Name};
use protocol::MAX_VALUE;

/// A request at the host.
pub trait Request {
    /// The values of a header in their order; names are lower case.
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]>;
    /// A property by its path, whose parts are separated by zero bytes.
    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty>;

    /// A value of dynamic metadata as a message `google.protobuf.Value`, which is empty where there is
    /// none, from a host that knows its type. `None`: its property, and that of all metadata, tell.
    fn metadata(&self, _path: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Whether a body follows.
    fn has_body(&self) -> bool {
        false
    }

    /// The first value of a header.
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers(name).next()
    }
}

/// Why the host gives no value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProperty {
    /// The property does not exist.
    Absent,
    /// It exists, but the host cannot encode it as bytes.
    Unreadable,
}

/// A request without headers and properties.
#[cfg(test)]
pub(crate) struct Bare;

#[cfg(test)]
impl Request for Bare {
    fn headers<'r>(&'r self, _: &str) -> impl Iterator<Item = &'r [u8]> {
        std::iter::empty()
    }
    fn property(&self, _: &[u8]) -> Result<Vec<u8>, NoProperty> {
        Err(NoProperty::Absent)
    }
}

/// The keys that a policy needs, in its order, and their sources. A policy may name entries for which
/// this proxy has no source; requests then lack them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    keys: Arc<[Name]>,
    sources: Vec<Option<Source>>,
}

/// The entries of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extracted {
    keys: Arc<[Name]>,
    /// In the order of the keys.
    values: Vec<Option<Vec<u8>>>,
}

impl Plan {
    /// A plan for the keys of a policy.
    pub(crate) fn new(keys: &[Name], sources: &[(Name, Source)]) -> Self {
        let find = |key: &Name| sources.iter().find(|(name, _)| name == key);
        let source = |key: &Name| find(key).map(|(_, source)| source.clone());
        Self {
            keys: keys.into(),
            sources: keys.iter().map(source).collect(),
        }
    }

    /// Whether it is for these keys.
    pub(crate) fn is_for(&self, keys: &[Name]) -> bool {
        *self.keys == *keys
    }

    /// Reads the entries from the host.
    pub(crate) fn extract(&self, request: &impl Request) -> Extracted {
        let value = |source: &Option<Source>| {
            let mut value = value_of(source.as_ref()?, request)?;
            // A call carries the checks of many requests, so a longer value could not be sent.
            value.truncate(MAX_VALUE);
            Some(value)
        };
        Extracted {
            keys: Arc::clone(&self.keys),
            values: self.sources.iter().map(value).collect(),
        }
    }
}

fn value_of(source: &Source, request: &impl Request) -> Option<Vec<u8>> {
    match source {
        Source::Method => request.header(":method").map(normalize::method),
        Source::Path => {
            let target = request.header(":path")?;
            Some(normalize::path(target).into_owned())
        }
        Source::Host => request.header(":authority").map(normalize::host),
        Source::RemoteAddress(prefixes) => {
            client(request.property(b"source\0address").ok()?, *prefixes)
        }
        Source::Header(name, several) => {
            let mut found = Found::new(*several);
            request.headers(name).for_each(|value| found.add(value));
            found.value
        }
        Source::Cookie(name, several) => {
            let mut found = Found::new(*several);
            for line in request.headers("cookie") {
                read_cookie(line, name, &mut found);
            }
            found.value
        }
        Source::Query(name, several) => {
            let mut found = Found::new(*several);
            for value in parameters(request.header(":path")?, name) {
                found.add(&value);
            }
            found.value
        }
        Source::Property(path, Format::Metadata) => value(path, request),
        Source::Property(path, format) => {
            let bytes = request.property(path).ok()?;
            Some(match (format, <[u8; 8]>::try_from(bytes.as_slice())) {
                (Format::Integer, Ok(number)) => {
                    i64::from_le_bytes(number).to_string().into_bytes()
                }
                _ => bytes,
            })
        }
        Source::Constant(value) => Some(value.clone()),
        Source::Hashed(source) => {
            let value = value_of(source, request)?;
            Some(if value == MULTIPLE_VALUES {
                value
            } else {
                normalize::hashed(&value)
            })
        }
    }
}

/// The value of an entry that a client may give several times.
struct Found {
    value: Option<Vec<u8>>,
    several: IfSeveral,
}

impl Found {
    fn new(several: IfSeveral) -> Self {
        Self {
            value: None,
            several,
        }
    }

    fn add(&mut self, value: &[u8]) {
        match (&mut self.value, self.several) {
            (Some(known), IfSeveral::Share) if known != value => *known = MULTIPLE_VALUES.to_vec(),
            (Some(_), IfSeveral::Share | IfSeveral::First) => {}
            (found, _) => *found = Some(value.to_vec()),
        }
    }
}

impl Entries for Extracted {
    fn get(&self, key: &str) -> Option<&[u8]> {
        let at = self.keys.iter().position(|known| known.as_str() == key)?;
        self.values.get(at)?.as_deref()
    }
}

impl Extracted {
    /// The keys, including those without a value.
    pub(crate) fn keys(&self) -> &Arc<[Name]> {
        &self.keys
    }

    /// The value of the key at a position.
    pub(crate) fn at(&self, key: usize) -> Option<&[u8]> {
        self.values.get(key)?.as_deref()
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &Name) -> Option<&[u8]> {
        self.get(key.as_str())
    }

    /// A copy without the values of other keys.
    pub(crate) fn only(&self, is_kept: impl Fn(&Name) -> bool) -> Self {
        let values = self.keys.iter().zip(&self.values);
        Self {
            keys: Arc::clone(&self.keys),
            values: values
                .map(|(key, value)| value.as_ref().filter(|_| is_kept(key)).cloned())
                .collect(),
        }
    }

    /// The size of all values, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.values.iter().flatten().map(Vec::len).sum()
    }

    /// The values in the order of `keys`, moved out if possible, until [`Extracted::give_back`].
    pub(crate) fn lend(&mut self, keys: &Arc<[Name]>) -> Vec<Option<Vec<u8>>> {
        if Arc::ptr_eq(keys, &self.keys) {
            return std::mem::take(&mut self.values);
        }
        // The limits changed while the check waited, so its keys differ from those of the batch.
        let value = |key: &Name| self.value(key).map(<[u8]>::to_vec);
        keys.iter().map(value).collect()
    }

    /// Puts back the values that [`Extracted::lend`] returned for the same keys.
    pub(crate) fn give_back(&mut self, keys: &Arc<[Name]>, values: Vec<Option<Vec<u8>>>) {
        if Arc::ptr_eq(keys, &self.keys) {
            self.values = values;
        }
    }
}

// --- The client's address as an entry.

/// The address in Envoy's `source.address` (`10.0.0.1:80`, `[::1]:80`), its bits beyond the prefix set
/// to zero; `None` for a source that is no IP address (a Unix socket).
fn client(mut bytes: Vec<u8>, prefixes: Prefixes) -> Option<Vec<u8>> {
    let host = host(&bytes)?;
    // The zone of a link-local address (`fe80::1%eth0`) does not distinguish clients.
    let host = before(host, b'%').unwrap_or(host);
    let address = Address::parse(host)?;
    // Envoy writes addresses in canonical form, except IPv4 addresses mapped into IPv6.
    if address.is_v4() && prefixes.v4 >= 32 {
        let plain = host.len();
        bytes.truncate(plain);
        return Some(bytes);
    }
    let address = address.canonical();
    let prefix = if address.is_v4() {
        prefixes.v4
    } else {
        prefixes.v6
    };
    Some(address.cut(prefix).to_text())
}

/// An address without its port.
fn host(address: &[u8]) -> Option<&[u8]> {
    if let Some(v6) = address.strip_prefix(b"[") {
        return before(v6, b']');
    }
    let mut colons = address.iter().filter(|byte| **byte == b':');
    match (colons.next(), colons.next()) {
        (Some(_), None) => before(address, b':'),
        _ => Some(address),
    }
}

fn before(text: &[u8], end: u8) -> Option<&[u8]> {
    text.get(..text.iter().position(|byte| *byte == end)?)
}

// --- Cookies, parsed as leniently as any service does: what some service accepts as the cookie is found
// here, and all its spellings become one value.

/// Finds the values of a name in a `cookie` header.
///
/// Names are compared without case and decoded. Blanks around names and values, quotes,
/// backslashes within quotes and percent-encoding are undone.
#[inline(never)]
fn read_cookie(line: &[u8], name: &str, found: &mut Found) {
    for pair in line.split(|byte| *byte == b';') {
        if let Some(at) = pair.iter().position(|byte| *byte == b'=')
            && let Some((key, [_, value @ ..])) = pair.split_at_checked(at)
            && is_cookie_name(key.trim_ascii(), name)
        {
            found.add(&decoded_cookie(value));
        }
    }
}

fn is_cookie_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.contains(&b'%') && percent_decode(key).eq_ignore_ascii_case(name.as_bytes())
}

fn decoded_cookie(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    match value {
        // Some services drop the last byte as the closing quote, whatever it is.
        [b'"', quoted @ .., _] => percent_decode(&unescaped(quoted)),
        _ => percent_decode(value),
    }
}

/// Undoes `\"` and `\101`.
fn unescaped(quoted: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    loop {
        rest = match rest {
            [] => return out,
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

// --- Dynamic metadata: values that other filters set for a request, such as the claims of its token.
//
// The host returns a value as bytes without its type, which may be text, a number or a list, and a
// client may choose text that looks like a number. Where the bytes are ambiguous, the filter reads the
// whole metadata, a protobuf message that contains the types.

/// The property with all metadata, and the prefix of values that filters set.
const WHOLE: &[u8] = b"metadata";
const FILTERS: &[u8] = b"metadata\0filter_metadata\0";

/// The value at a path, as text; `None` if it is absent or null.
fn value(path: &[u8], request: &impl Request) -> Option<Vec<u8>> {
    if let Some(message) = request.metadata(path) {
        return text(&Value::read(&message));
    }
    let bytes = match request.property(path) {
        Ok(bytes) if is_text(&bytes) => return Some(bytes),
        Ok(bytes) => bytes,
        Err(NoProperty::Unreadable) => Vec::new(),
        Err(NoProperty::Absent) => return None,
    };
    let whole = request.property(WHOLE).unwrap_or_default();
    distinguish(bytes, &whole, path)
}

/// A value whose type is unclear counts as its bytes.
#[cold]
#[inline(never)]
fn distinguish(bytes: Vec<u8>, whole: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_prefix(FILTERS);
    match path.and_then(|path| Value::of_metadata(whole, path)) {
        Some(value) => text(&value),
        None => Some(bytes),
    }
}

/// Whether bytes are certainly text: a number has eight bytes, a boolean is a byte below the blank, and
/// a list or a map begins with its length, which contains a zero byte.
fn is_text(bytes: &[u8]) -> bool {
    bytes.len() != 8 && !bytes.iter().any(|byte| *byte < b' ')
}

// --- Converts values to text: text stays as it is, whole numbers are decimal, and lists and maps are JSON
// with sorted keys, so that one value has one text.

/// Bound: levels of lists and maps in a claim. Beyond it, what lies deeper is left out.
const MAX_DEPTH: usize = 64;

/// The text of a value; null is as absent.
fn text(value: &Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::Text(text) => Some(text.to_vec()),
        _ => {
            let mut out = Vec::new();
            write(&mut out, value, 0);
            Some(out)
        }
    }
}

fn write(out: &mut Vec<u8>, value: &Value<'_>, depth: usize) {
    match value {
        Value::Text(text) => write_text(out, text),
        Value::Number(bits) => write_number(out, *bits),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::List(list) if depth < MAX_DEPTH => {
            out.push(b'[');
            for (at, item) in items(list).enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(out, &Value::read(item), depth + 1);
            }
            out.push(b']');
        }
        Value::Map(map) if depth < MAX_DEPTH => {
            // A claim has few entries, and another sort would add 3 KB to the module.
            let mut sorted: Vec<(&[u8], &[u8])> = Vec::new();
            for entry in entries(map) {
                let at = sorted.partition_point(|other| *other < entry);
                sorted.insert(at, entry);
            }
            out.push(b'{');
            for (at, (key, value)) in sorted.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(out, key);
                out.push(b':');
                write(out, &Value::read(value), depth + 1);
            }
            out.push(b'}');
        }
        Value::Null | Value::List(_) | Value::Map(_) => out.extend_from_slice(b"null"),
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            0..=0x1f => {
                out.extend_from_slice(b"\\u");
                write_digits(out, u64::from(*byte), 4);
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// Writes whole numbers below 2^64 in decimal, and all others as their bits, because rounding would
/// merge buckets. (Printing floats would add 11 KB to the module.)
fn write_number(out: &mut Vec<u8>, bits: u64) {
    const INFINITE: u64 = 0x7ff << 52;
    if let Some((magnitude, true)) = magnitude(bits) {
        if bits >> 63 == 1 && magnitude > 0 {
            out.push(b'-');
        }
        out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
    } else if bits << 1 > INFINITE << 1 {
        out.extend_from_slice(b"NaN");
    } else {
        out.extend_from_slice(b"0x");
        write_digits(out, bits, 16);
    }
}

/// The last hexadecimal digits of a number.
fn write_digits(out: &mut Vec<u8>, number: u64, count: u32) {
    for at in (0..count).rev() {
        let digit = u32::try_from(number >> (4 * at) & 0xf).unwrap_or(0);
        let digit = char::from_digit(digit, 16).unwrap_or('0');
        out.extend(u8::try_from(digit));
    }
}

/// The magnitude of a float of these bits, rounded down, and whether it is exact; `None`: it is none below 2^64.
pub(crate) fn magnitude(bits: u64) -> Option<(u64, bool)> {
    const FRACTION_BITS: u32 = 52;
    if bits << 1 == 0 {
        return Some((0, true));
    }
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let exponent = u32::try_from(bits >> FRACTION_BITS & 0x7ff).ok()?;
    let significand = fraction | 1 << FRACTION_BITS;
    // The value is significand * 2^(exponent - 1075).
    if let Some(left) = exponent.checked_sub(1075) {
        return (left <= 11).then(|| (significand << left, true));
    }
    let right = 1075 - exponent;
    let shifted = significand.checked_shr(right).unwrap_or(0);
    Some((shifted, shifted.checked_shl(right) == Some(significand)))
}

// --- Parses Envoy's metadata in protobuf encoding: `envoy.config.core.v3.Metadata`, which has a
// `google.protobuf.Struct` for each filter.

/// A `google.protobuf.Value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'b> {
    Null,
    /// The bits of a float.
    Number(u64),
    Text(&'b [u8]),
    Bool(bool),
    /// A message `Struct`: see [`entries`].
    Map(&'b [u8]),
    /// A message `ListValue`: see [`items`].
    List(&'b [u8]),
}

impl<'b> Value<'b> {
    /// The value at a path, whose parts are separated by zero bytes; the first part is the filter's
    /// name.
    fn of_metadata(metadata: &'b [u8], path: &[u8]) -> Option<Self> {
        let mut parts = path.split(|byte| *byte == 0);
        let mut value = Self::Map(entry(metadata, parts.next()?)?);
        for part in parts {
            let Self::Map(map) = value else {
                return None;
            };
            value = Self::read(entry(map, part)?);
        }
        Some(value)
    }

    /// Reads a message `Value`. One without a kind is null.
    fn read(message: &'b [u8]) -> Self {
        match Fields(message).last() {
            Some((2, Field::Number(bits))) => Self::Number(bits),
            Some((3, Field::Bytes(text))) => Self::Text(text),
            Some((4, Field::Number(bit))) => Self::Bool(bit != 0),
            Some((5, Field::Bytes(map))) => Self::Map(map),
            Some((6, Field::Bytes(list))) => Self::List(list),
            _ => Self::Null,
        }
    }
}

/// The value of a key of a map.
#[inline(never)]
fn entry<'b>(map: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    entries(map)
        .find(|(known, _)| *known == key)
        .map(|(_, value)| value)
}

/// The keys and values of a message whose first field is a map.
fn entries(message: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    items(message).map(|entry| {
        let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
        for (number, field) in Fields(entry) {
            match (number, field) {
                (1, Field::Bytes(bytes)) => key = bytes,
                (2, Field::Bytes(bytes)) => value = bytes,
                _ => {}
            }
        }
        (key, value)
    })
}

/// The messages in the first field of a message, which is repeated.
fn items(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(|field| match field {
        (1, Field::Bytes(item)) => Some(item),
        _ => None,
    })
}

/// The fields of a message with their numbers, up to the first that cannot be read.
struct Fields<'b>(&'b [u8]);

enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

impl<'b> Iterator for Fields<'b> {
    type Item = (u64, Field<'b>);

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let len = self.varint()?;
                Field::Bytes(self.take(usize::try_from(len).ok()?)?)
            }
            5 => Field::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'b> Fields<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take(1)? else { return None };
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod metadata_tests;

#[cfg(test)]
mod address_tests {
    use super::*;

    fn cut(address: &str, v4: u8, v6: u8) -> Option<String> {
        let value = client(address.as_bytes().to_vec(), Prefixes { v4, v6 })?;
        Some(String::from_utf8(value).unwrap())
    }

    #[test]
    fn addresses_lose_their_port_and_the_bits_after_the_prefix() {
        for (address, v4, v6, expected) in [
            ("10.1.2.3:41000", 32, 64, "10.1.2.3"),
            ("10.1.2.3:0", 24, 64, "10.1.2.0"),
            ("10.1.2.3", 32, 64, "10.1.2.3"),
            ("10.1.2.3:1", 0, 64, "0.0.0.0"),
            ("[2001:db8:1:2:3:4:5:6]:443", 32, 64, "2001:db8:1:2::"),
            ("[2001:db8::1]:443", 32, 128, "2001:db8::1"),
            ("2001:db8::1", 32, 0, "::"),
            ("[::ffff:10.1.2.3]:1", 32, 64, "10.1.2.3"),
            ("[::ffff:10.1.2.3]:1", 16, 64, "10.1.0.0"),
            ("[fe80::1%eth0]:80", 32, 128, "fe80::1"),
            ("fe80::1%2", 32, 128, "fe80::1"),
        ] {
            assert_eq!(cut(address, v4, v6).as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_invalid_address_yields_no_entry() {
        for address in ["", "/run/envoy.sock", "[::1", "a:b", "\u{fffd}"] {
            assert_eq!(cut(address, 32, 64), None, "{address:?}");
        }
        assert_eq!(client(vec![0xff], Prefixes::default()), None);
    }
}

#[cfg(test)]
mod json_tests {
    use super::*;

    fn number(value: f64) -> String {
        let text = text(&Value::Number(value.to_bits())).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn whole_numbers_are_written_in_decimal() {
        for (value, expected) in [
            (42.0, "42"),
            (0.0, "0"),
            (-0.0, "0"),
            (-7.0, "-7"),
            (1.0, "1"),
            (1_763_000_000_000.0, "1763000000000"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (9_223_372_036_854_775_808.0, "9223372036854775808"),
            (-9_223_372_036_854_775_808.0, "-9223372036854775808"),
            (18_446_744_073_709_549_568.0, "18446744073709549568"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn other_numbers_are_written_as_distinct_bit_patterns() {
        for (value, expected) in [
            (1.5, "0x3ff8000000000000"),
            (-0.5, "0xbfe0000000000000"),
            (5e-324, "0x0000000000000001"),
            (1e300, "0x7e37e43c8800759c"),
            (18_446_744_073_709_551_616.0, "0x43f0000000000000"),
            (f64::INFINITY, "0x7ff0000000000000"),
            (f64::NEG_INFINITY, "0xfff0000000000000"),
            (f64::NAN, "NaN"),
            (-f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), expected);
        }
        let odd = Value::Number(u64::MAX);
        assert_eq!(text(&odd).unwrap(), b"NaN");
    }
}
