//! Cookies, parsed as leniently as any service does: what some service accepts as the cookie is found
//! here, and all its spellings become one value.

use normalize::percent_decode;

use super::Found;

/// Finds the values of a name in a `cookie` header.
///
/// Names are compared without case and decoded. Blanks around names and values, quotes,
/// backslashes within quotes and percent-encoding are undone.
#[inline(never)]
pub(super) fn read(line: &[u8], name: &str, found: &mut Found) {
    for pair in line.split(|byte| *byte == b';') {
        if let Some(at) = pair.iter().position(|byte| *byte == b'=')
            && let Some((key, [_, value @ ..])) = pair.split_at_checked(at)
            && is_name(key.trim_ascii(), name)
        {
            found.add(&decoded(value));
        }
    }
}

fn is_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.contains(&b'%') && percent_decode(key).eq_ignore_ascii_case(name.as_bytes())
}

fn decoded(value: &[u8]) -> Vec<u8> {
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
