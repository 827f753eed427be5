//! Single values as people write them (names, durations, times, bytes), and reading them from fields, each
//! with a message that says what was expected.

use std::{borrow::Borrow, collections::HashSet, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{Field, Node, Report, Value, quoted, similar};

/// A name that fits keys, metrics and headers unescaped: `^[a-z0-9][a-z0-9._-]{0,62}$`. Only a
/// domain may be any [text](Name::domain): Envoy's rate limit service has such domains.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
)]
pub struct NameError;

/// Why a text is not a [domain](Name::domain).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a domain is 1 to 512 bytes of text without control characters")]
pub struct DomainError;

impl Name {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 63;

    /// The longest domain, in bytes.
    pub const MAX_DOMAIN_LEN: usize = 512;

    /// A domain, which need not be a name: `namespace/gateway/listener`.
    ///
    /// # Errors
    /// It is empty, too long or has control characters.
    pub fn domain(text: &str) -> Result<Self, DomainError> {
        let fits = (1..=Self::MAX_DOMAIN_LEN).contains(&text.len());
        if fits && !text.chars().any(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(DomainError)
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A name; a domain that is none is refused.
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let first = text.as_bytes().first().ok_or(NameError)?;
        let rest_fits = text
            .bytes()
            .all(|b| plain(&b) || matches!(b, b'.' | b'_' | b'-'));
        if plain(first) && rest_fits && text.len() <= Self::MAX_LEN {
            Ok(Self(text.into()))
        } else {
            Err(NameError)
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Units with their length in milliseconds, longest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Why a text is not a rate or a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not of the form N/P.
    #[error("a rate is units per period, like 10/s, 100/1m, 5/1500ms or 10000/day")]
    Rate,
    /// Of that form, with another word for a unit; what was meant.
    #[error(
        "did you mean `{0}`? a period is ms, s, m, h or d, a number of them, or day, week, month or year"
    )]
    RateUnit(String),
    /// A number without a unit, or with an unknown one.
    #[error("a duration is a whole number and one of ms, s, m, h, d: 250ms, 3s, 1m")]
    Duration,
    /// Zero, or more than can be counted.
    #[error("a period is at least 1ms, and short enough to be counted in milliseconds")]
    Period,
}

/// Digits only: no sign, no blanks, no separators.
pub fn parse_digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Milliseconds of a duration like `1500ms` or `3s`.
pub fn parse_duration(text: &str) -> Result<u64, UnitError> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or(UnitError::Duration)?;
    let (digits, unit) = text.split_at_checked(at).ok_or(UnitError::Duration)?;
    let number = parse_digits(digits).ok_or(UnitError::Duration)?;
    number
        .checked_mul(unit_ms(unit).ok_or(UnitError::Duration)?)
        .ok_or(UnitError::Period)
}

/// Milliseconds of a unit: `ms`, `s`, `m`, `h` or `d`.
pub fn unit_ms(text: &str) -> Option<u64> {
    UNITS
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, ms)| *ms)
}

/// A duration in its largest whole unit: `90s`, `1m`, `0ms`.
#[derive(Clone, Copy, Debug)]
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, ms) = UNITS
            .into_iter()
            .find(|(_, ms)| self.0 > 0 && self.0.is_multiple_of(*ms))
            .unwrap_or(("ms", 1));
        write!(f, "{}{unit}", self.0 / ms)
    }
}

/// The last millisecond that a time of four digits for the year can name.
const LAST_MS: u64 = 253_402_300_799_999;

/// Milliseconds since the epoch of `2026-12-01T00:00Z`, `2026-12-01T00:00:00.5+01:00`, ...
///
/// That is RFC 3339, but seconds may be left out; an offset may not. `None` if it is anything else, or
/// before 1970 or after 9999 in UTC, in which it is written.
///
/// Written by hand, because the filter reads them, too: this adds 2.6 KB to a wasm module built for size,
/// `jiff` 149 KB, and no smaller crate reads times without seconds. The tests compare with `jiff`.
pub fn parse_timestamp(text: &str) -> Option<u64> {
    let mut reader = Reader { rest: text };
    let year = reader.digits(4)?;
    let month = reader.after(b'-')?.digits(2)?;
    let day = reader.after(b'-')?.digits(2)?;
    if !(reader.skip(b'T') || reader.skip(b't') || reader.skip(b' ')) {
        return None;
    }
    let hour = reader.digits(2)?;
    let minute = reader.after(b':')?.digits(2)?;
    let (mut second, mut millis) = (0, 0);
    if reader.skip(b':') {
        second = reader.digits(2)?;
        if reader.skip(b'.') {
            millis = reader.fraction()?;
        }
    }
    let offset_minutes = reader.offset()?;
    let valid = reader.rest.is_empty()
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !valid {
        return None;
    }
    let minutes = (days_since_epoch(year, month, day)? * 24 + hour) * 60 + minute - offset_minutes;
    let ms = u64::try_from((minutes * 60 + second) * 1000 + millis).ok()?;
    (ms <= LAST_MS).then_some(ms)
}

/// `2026-12-01T00:00:00Z`, with milliseconds only where there are some.
pub fn format_timestamp(ms: u64) -> String {
    let millis = ms % 1000;
    let seconds = ms / 1000;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(seconds / 86_400);
    let fraction = if millis == 0 {
        String::new()
    } else {
        format!(".{millis:03}")
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.rest.split_at_checked(count)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        self.rest = rest;
        i64::try_from(digits.parse::<u64>().ok()?).ok()
    }

    fn skip(&mut self, byte: u8) -> bool {
        match self.rest.strip_prefix(char::from(byte)) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn after(&mut self, byte: u8) -> Option<&mut Self> {
        self.skip(byte).then_some(self)
    }

    /// Milliseconds of a decimal fraction of a second; finer digits are dropped.
    fn fraction(&mut self) -> Option<i64> {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        if digits.is_empty() {
            return None;
        }
        let places = [100, 10, 1].into_iter().zip(digits.bytes());
        Some(
            places
                .map(|(worth, digit)| worth * i64::from(digit - b'0'))
                .sum(),
        )
    }

    fn offset(&mut self) -> Option<i64> {
        if self.skip(b'Z') || self.skip(b'z') {
            return Some(0);
        }
        let sign = if self.skip(b'+') {
            1
        } else {
            self.after(b'-')?;
            -1
        };
        let hours = self.digits(2)?;
        let minutes = self.after(b':')?.digits(2)?;
        (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap(year)),
        1..=12 => 31,
        _ => 0,
    }
}

/// Days from 1970-01-01. After Howard Hinnant's `days_from_civil`: years start in March,
/// so that the leap day is the last of its year.
fn days_since_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    if year < 1970 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Year, month and day; the inverse of [`days_since_epoch`].
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = (shifted + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Standard Base64 with padding. Written by hand, because the filter reads it, too: this adds 1.3 KB to a
/// wasm module built for size, `base64ct` 4.5 KB, `data-encoding` 6.6 KB and `base64` 11.8 KB.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// An entry's value, which is bytes, as a document shows it: text where it is UTF-8, else `{base64: …}`,
/// so that no two values look alike; `null` where it is absent.
pub fn value_to_node(value: Option<&[u8]>) -> Node {
    match value.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null.into(),
        Some((_, Ok(text))) => Node::text(text),
        Some((bytes, Err(_))) => Node::map([("base64", Node::text(to_base64(bytes)))]),
    }
}

/// The value that a document shows: text, number or boolean, or `{base64: …}`; `None` for
/// anything else, `null` included.
pub fn node_to_value(node: &Node) -> Option<Vec<u8>> {
    match &node.value {
        Value::Map(entries) => match entries.as_slice() {
            [entry] if entry.key == "base64" => from_base64(entry.value.as_text()?),
            _ => None,
        },
        _ => node.as_text().map(|text| text.as_bytes().to_vec()),
    }
}

/// Bytes as Base64, with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_u32, |group, byte| (group << 8) | u32::from(*byte));
        for position in 0..4_u32 {
            let sextet = usize::try_from((group >> (18 - 6 * position)) & 63).unwrap_or(0);
            let padding = usize::try_from(position).is_ok_and(|p| p > chunk.len());
            let letter = ALPHABET.get(sextet).filter(|_| !padding);
            text.push(letter.map_or('=', |byte| char::from(*byte)));
        }
    }
    text
}

/// Decodes Base64 with padding; `None` if the text is not that.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    if text.len() - letters.len() > 2 {
        return None;
    }
    for chunk in letters.as_bytes().chunks(4) {
        let mut group = 0_u32;
        for letter in chunk {
            let sextet = ALPHABET.iter().position(|byte| byte == letter)?;
            group = (group << 6) | u32::try_from(sextet).ok()?;
        }
        group <<= 6 * u32::try_from(4 - chunk.len()).ok()?;
        let [_, decoded @ ..] = group.to_be_bytes();
        let (decoded, rest) = decoded.split_at_checked(chunk.len().checked_sub(1)?)?;
        // Unused bits must be zero, so that each value has one text.
        if chunk.len() < 2 || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(decoded);
    }
    Some(bytes)
}

/// A field with a fixed set of values.
pub trait Choice: Copy + PartialEq + 'static {
    /// The values as written.
    const CHOICES: &'static [(&'static str, Self)];

    /// Words that other programs use, each with the one that is meant.
    const MEANT: &'static [(&'static str, &'static str)] = &[];

    /// The value as written.
    fn word(self) -> &'static str {
        Self::CHOICES
            .iter()
            .find(|(_, choice)| *choice == self)
            .map_or("", |(word, _)| word)
    }
}

impl<'n> Field<'n> {
    /// Text; an unquoted number or boolean counts as text, too.
    pub fn text(&self, what: &str, report: &mut Report) -> Option<&'n str> {
        let text = self.node.as_text();
        if text.is_none() {
            self.expected(what, report);
        }
        text
    }

    /// `true` or `false`.
    pub fn boolean(&self, report: &mut Report) -> Option<bool> {
        if let Value::Bool(value) = self.node.value {
            return Some(value);
        }
        self.expected("true or false", report);
        None
    }

    /// A whole number of at least `least`.
    pub fn integer(&self, least: u64, report: &mut Report) -> Option<u64> {
        let number = self.node.as_text().and_then(|text| text.parse().ok());
        if let Some(number) = number
            && number >= least
        {
            return Some(number);
        }
        self.expected(&format!("a whole number of at least {least}"), report);
        None
    }

    /// One of a fixed set of words.
    pub fn choice<T: Choice>(&self, report: &mut Report) -> Option<T> {
        let word_at = |at| T::CHOICES.get(at).map(|(word, _)| *word);
        let at = self.word_of(word_at, T::MEANT, report)?;
        T::CHOICES.get(at).map(|(_, choice)| *choice)
    }

    fn word_of(
        &self,
        word_at: fn(usize) -> Option<&'static str>,
        meant: &[(&str, &str)],
        report: &mut Report,
    ) -> Option<usize> {
        let words: Vec<&str> = (0..).map_while(word_at).collect();
        let text = self.node.as_text().unwrap_or_default();
        if let Some(at) = words.iter().position(|word| *word == text) {
            return Some(at);
        }
        let problem = self.expected(&format!("one of {}", words.join(", ")), report);
        let other = meant.iter().find(|(other, _)| *other == text);
        if let Some(meant) = other
            .map(|(_, word)| *word)
            .or_else(|| similar(text, &words))
        {
            problem.push_hint(format!("did you mean `{meant}`?"));
        }
        None
    }

    /// A name.
    pub fn name(&self, what: &str, report: &mut Report) -> Option<Name> {
        let text = self.text(what, report)?;
        match text.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("{} is not a name", quoted(text));
                self.report(report, message)
                    .push_hint(name_hint(text, &error));
                None
            }
        }
    }

    /// A [domain](Name::domain).
    pub fn domain(&self, report: &mut Report) -> Option<Name> {
        let text = self.text("the name of a domain", report)?;
        let domain = Name::domain(text);
        if domain.is_err() {
            self.expected("1 to 512 bytes of text, without control characters", report);
        }
        domain.ok()
    }

    /// A list of different names; a single one may stand for a list of one.
    pub fn names(&self, what: &str, report: &mut Report) -> Option<Vec<Name>> {
        let Value::List(items) = &self.node.value else {
            return self.name(what, report).map(|name| vec![name]);
        };
        let mut names: Vec<Name> = Vec::new();
        let mut known = HashSet::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            let item = self.item(index, node);
            let Some(name) = item.name(what, report) else {
                continue;
            };
            if known.insert(name.clone()) {
                names.push(name);
            } else {
                item.report(report, format!("`{name}` is listed twice"));
            }
        }
        Some(names)
    }

    /// Text that `parse` accepts.
    pub fn parsed<T, E: std::error::Error>(
        &self,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
        report: &mut Report,
    ) -> Option<T> {
        let text = self.text(what, report)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.expected(what, report).push_hint(error_text(&error));
                None
            }
        }
    }

    /// A duration, in milliseconds.
    pub fn duration(&self, report: &mut Report) -> Option<u64> {
        self.parsed("a duration like 250ms or 3s", parse_duration, report)
    }

    /// A point in time, in milliseconds since the epoch.
    pub fn time(&self, report: &mut Report) -> Option<u64> {
        let time = self.text("a time", report).and_then(parse_timestamp);
        if time.is_none() {
            self.expected("a time like 2026-12-01T00:00Z", report);
        }
        time
    }

    /// A whole percentage.
    pub fn percent(&self, least: u32, most: u32, report: &mut Report) -> Option<u32> {
        let what = format!("a whole percentage from {least}% to {most}%");
        let text = self.text(&what, report)?;
        let within = |digits: &str| {
            let value = u32::try_from(parse_digits(digits)?).ok()?;
            (least..=most).contains(&value).then_some(value)
        };
        let value = text.strip_suffix('%').and_then(within);
        if value.is_some() {
            return value;
        }
        let problem = self.expected(&what, report);
        match text {
            "true" => problem.push_hint(format!("did you mean `{most}%`?")),
            "false" => problem.push_hint(format!("did you mean `{least}%`?")),
            _ if within(text).is_some() => problem.push_hint(format!("did you mean `{text}%`?")),
            _ => {}
        }
        None
    }
}

/// What a name has to be, or the name that was probably meant.
pub fn name_hint(text: &str, error: &NameError) -> String {
    let lower = text.to_ascii_lowercase().replace(' ', "-");
    match lower.parse::<Name>() {
        Ok(name) => format!("did you mean `{name}`? {error}"),
        Err(_) => error.to_string(),
    }
}

fn error_text(error: &dyn std::error::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests;
