//! IP addresses: parse, cut to a prefix, format.
//!
//! This crate accepts and writes addresses exactly as the standard library does (`tests/`), whose
//! code would take 8 KB of the filter; this takes 2. It is a separate crate because most requests
//! have an address: unlike `policy`, it is not optimized for size alone.

use std::ops::Range;

/// The longest text that is written: eight groups of four digits.
const MAX_WRITTEN: usize = 39;

/// An IPv4 or IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// An IPv4 address has its bytes in the first four, then zeros.
    bytes: [u8; 16],
    v4: bool,
}

impl Address {
    /// Reads an address as RFC 4291 and RFC 6943 define it: four decimal numbers without leading
    /// zeros, or up to eight hexadecimal ones, the last two perhaps as an IPv4 address.
    #[inline(never)]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; 16];
        if let Some(v4) = read_v4(text) {
            [bytes[0], bytes[1], bytes[2], bytes[3]] = v4;
            return Some(Self { bytes, v4: true });
        }
        read_v6(text, &mut bytes)?;
        Some(Self { bytes, v4: false })
    }

    /// Whether it is an IPv4 address, not an IPv6 address that holds one.
    pub fn is_v4(&self) -> bool {
        self.v4
    }

    /// How many bits such an address has: 32 or 128.
    pub fn width(&self) -> u8 {
        if self.v4 { 32 } else { 128 }
    }

    /// The IPv4 address that was mapped into IPv6 (`::ffff:10.0.0.1`), or else the same address.
    #[must_use]
    pub fn canonical(self) -> Self {
        let [.., a, b, c, d] = self.bytes;
        if !self.is_mapped() {
            return self;
        }
        let mut bytes = [0; 16];
        [bytes[0], bytes[1], bytes[2], bytes[3]] = [a, b, c, d];
        Self { bytes, v4: true }
    }

    /// The address with its bits beyond the first `length` set to zero.
    #[must_use]
    pub fn cut(mut self, length: u8) -> Self {
        let mut left = length;
        for byte in &mut self.bytes {
            *byte &= !0xff_u8.checked_shr(left.into()).unwrap_or(0);
            left = left.saturating_sub(8);
        }
        self
    }

    /// Its text, as RFC 5952 requires.
    #[inline(never)]
    pub fn to_text(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_WRITTEN);
        if self.v4 {
            write_v4(&mut out, self.bytes.iter().take(4));
        } else if self.is_mapped() {
            out.extend_from_slice(b"::ffff:");
            write_v4(&mut out, self.bytes.iter().skip(12));
        } else {
            self.write_v6(&mut out);
        }
        out
    }

    fn write_v6(&self, out: &mut Vec<u8>) {
        let (groups, _) = self.bytes.as_chunks();
        let gap = longest_gap(groups);
        for (at, group) in groups.iter().enumerate() {
            if at == gap.start && !gap.is_empty() {
                out.extend_from_slice(b"::");
            }
            if gap.contains(&at) {
                continue;
            }
            if at > 0 && at != gap.end {
                out.push(b':');
            }
            write_hexadecimal(out, u16::from_be_bytes(*group));
        }
    }

    fn is_mapped(&self) -> bool {
        !self.v4
            && self
                .bytes
                .starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
    }
}

fn read_v4(text: &[u8]) -> Option<[u8; 4]> {
    let mut bytes = [0; 4];
    let mut rest = text;
    for (at, byte) in bytes.iter_mut().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix(b".")?;
        }
        let mut number = 0_u16;
        let before = rest.len();
        while let [digit @ b'0'..=b'9', after @ ..] = rest {
            // Some readers take a number with a leading zero as octal.
            if number == 0 && rest.len() < before {
                return None;
            }
            number = number * 10 + u16::from(digit - b'0');
            if number > 255 {
                return None;
            }
            rest = after;
        }
        if rest.len() == before {
            return None;
        }
        *byte = number.try_into().ok()?;
    }
    rest.is_empty().then_some(bytes)
}

fn read_v6(text: &[u8], out: &mut [u8; 16]) -> Option<()> {
    let (mut groups, mut len, mut gap) = ([[0; 2]; 8], 0, None);
    let mut rest = text;
    if let Some(after) = rest.strip_prefix(b"::") {
        (gap, rest) = (Some(0), after);
    }
    while !rest.is_empty() {
        let (number, after) = read_group(rest)?;
        if after.starts_with(b".") {
            let [a, b, c, d] = read_v4(rest)?;
            *groups.get_mut(len)? = [a, b];
            *groups.get_mut(len + 1)? = [c, d];
            len += 2;
            break;
        }
        *groups.get_mut(len)? = number.to_be_bytes();
        len += 1;
        rest = after;
        if rest.is_empty() {
            break;
        }
        rest = rest.strip_prefix(b":")?;
        if let Some(after) = rest.strip_prefix(b":") {
            if gap.replace(len).is_some() {
                return None;
            }
            rest = after;
        } else if rest.is_empty() {
            return None;
        }
    }
    // The gap stands for at least one group.
    if len > 7 && gap.is_some() || len < 8 && gap.is_none() {
        return None;
    }
    let (head, tail) = groups.get(..len)?.split_at_checked(gap.unwrap_or(len))?;
    let (pairs, _) = out.as_chunks_mut();
    for (pair, group) in pairs.iter_mut().zip(head) {
        *pair = *group;
    }
    for (pair, group) in pairs.iter_mut().rev().zip(tail.iter().rev()) {
        *pair = *group;
    }
    Some(())
}

/// One to four hexadecimal digits, and what comes after them.
fn read_group(text: &[u8]) -> Option<(u16, &[u8])> {
    let (mut number, mut rest) = (0, text);
    while let [digit, after @ ..] = rest
        && let Some(digit) = char::from(*digit).to_digit(16)
        && text.len() - rest.len() < 4
    {
        number = number << 4 | u16::try_from(digit).ok()?;
        rest = after;
    }
    (rest.len() < text.len()).then_some((number, rest))
}

/// The groups that `::` stands for: the first of the longest runs of zeros, if longer than one.
fn longest_gap(groups: &[[u8; 2]]) -> Range<usize> {
    let (mut longest, mut run) = (0..0, 0..0);
    for (at, group) in groups.iter().enumerate() {
        if *group != [0, 0] {
            run = at + 1..at + 1;
            continue;
        }
        run.end = at + 1;
        if run.len() > longest.len().max(1) {
            longest = run.clone();
        }
    }
    longest
}

fn write_v4<'b>(out: &mut Vec<u8>, bytes: impl Iterator<Item = &'b u8>) {
    for (at, byte) in bytes.enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        write_decimal(out, *byte);
    }
}

fn write_decimal(out: &mut Vec<u8>, number: u8) {
    if number > 9 {
        write_decimal(out, number / 10);
    }
    out.push(b'0' + number % 10);
}

fn write_hexadecimal(out: &mut Vec<u8>, number: u16) {
    let [high, low] = number.to_be_bytes();
    let digits = [high >> 4, high & 0xf, low >> 4, low & 0xf];
    let digits = digits.map(|digit| digit + if digit > 9 { b'a' - 10 } else { b'0' });
    let zeros = (number | 1).leading_zeros() / 4;
    let (_, digits) = digits.split_at(zeros.min(3) as usize);
    out.extend_from_slice(digits);
}
