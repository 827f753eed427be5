//! Buckets and requests as text.

pub mod key;

use policy::Name;
use protocol::Outcome;
use store::BucketActivity;

/// `user=alice tenant=acme`, or `(all)` if the limit has only one bucket. Bytes that are not text,
/// or that could control a terminal, are escaped.
pub fn display<V: AsRef<[u8]>>(per: &[Name], values: &[Option<V>]) -> String {
    if per.is_empty() {
        return "(all)".to_owned();
    }
    let one = |(name, value): (&Name, &Option<V>)| match value {
        Some(value) => format!("{name}={}", visible(value.as_ref())),
        None => format!("{name}: none"),
    };
    per.iter()
        .zip(values)
        .map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Bytes as text that is safe to print on a terminal.
pub fn visible(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::new(), |mut text, chunk| {
        for c in chunk.valid().chars() {
            if policy::is_printable(c) {
                text.push(c);
            } else {
                text.extend(c.escape_default());
            }
        }
        for byte in chunk.invalid() {
            text.extend(std::ascii::escape_default(*byte).map(char::from));
        }
        text
    })
}

/// `user=alice tenant=acme`.
pub fn bucket_text(found: &BucketActivity) -> String {
    let (per, values): (Vec<Name>, Vec<_>) = found.bucket.iter().cloned().unzip();
    display(&per, &values)
}

/// How to order buckets by denials: first by those that were enforced, then by those that would have
/// been. A limit enforces a bucket or does not, so the outcome of the last denial is that of all.
pub fn denial_rank(found: &BucketActivity) -> (u64, u64) {
    let is_enforced = { found.last.as_ref() }.is_none_or(|last| last.outcome == Outcome::Denied);
    (if is_enforced { found.denied } else { 0 }, found.denied)
}

/// `path=/api remote_address=192.0.2.7`.
pub fn request_text(descriptor: &[(Name, Vec<u8>)]) -> String {
    let one = |(name, value): &(Name, Vec<u8>)| format!("{name}={}", visible(value));
    descriptor.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_move_the_cursor() {
        let values = [Some(b"\x1b[2Jal\xffice".to_vec()), None];
        let per: Vec<Name> = vec!["user".parse().unwrap(), "tenant".parse().unwrap()];
        assert_eq!(
            display(&per, &values),
            "user=\\u{1b}[2Jal\\xffice tenant: none"
        );
    }
}
