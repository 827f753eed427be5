//! Parameters of a query, parsed as leniently as any service does.

use normalize::percent_decode;

use super::Found;

/// Finds the decoded values of a name in the query of a request target.
///
/// `&` and `;` separate parameters. Names are decoded, and compared without case and surrounding
/// blanks.
#[inline(never)]
pub(super) fn read(target: &[u8], name: &str, found: &mut Found) {
    let end = target.iter().position(|byte| *byte == b'#');
    let target = end.and_then(|end| target.get(..end)).unwrap_or(target);
    let Some(start) = target.iter().position(|byte| *byte == b'?') else {
        return;
    };
    let query = target.get(start + 1..).unwrap_or_default();
    for pair in query.split(|byte| matches!(byte, b'&' | b';')) {
        let at = pair.iter().position(|byte| *byte == b'=');
        if let Some((key, value)) = pair.split_at_checked(at.unwrap_or(pair.len()))
            && is_name(key, name)
        {
            found.add(&decoded(value.get(1..).unwrap_or_default()));
        }
    }
}

fn is_name(key: &[u8], name: &str) -> bool {
    key.eq_ignore_ascii_case(name.as_bytes())
        || key.iter().any(|byte| matches!(byte, b'%' | b'+' | ..=b' '))
            && (decoded(key).trim_ascii()).eq_ignore_ascii_case(name.as_bytes())
}

/// Undoes percent-encoding and `+`. What is not an encoding stays as it is.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut spaced = text.to_vec();
    for byte in &mut spaced {
        if *byte == b'+' {
            *byte = b' ';
        }
    }
    percent_decode(&spaced)
}
