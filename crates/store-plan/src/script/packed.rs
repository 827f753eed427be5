//! Numbers as `lua/check.lua` receives and returns them: one string of Lua's own numbers.
//!
//! Redis makes a string of each argument and examines each item of a reply; in a check of one limit, that was
//! a third of the work. Every number is an integer below 2^53, so a double holds it exactly.

use super::MalformedReply;

/// Eight bytes per number, little-endian, whatever the server's byte order.
pub(super) fn pack(numbers: &[i64]) -> Vec<u8> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "exact: what is encoded is below 2^53"
    )]
    let bytes = |number: &i64| (*number as f64).to_le_bytes();
    numbers.iter().flat_map(bytes).collect()
}

/// The numbers of a reply.
///
/// # Errors
/// [`MalformedReply`] where it does not consist of integers.
pub fn unpack(bytes: &[u8]) -> Result<Vec<i64>, MalformedReply> {
    let (numbers, []) = bytes.as_chunks() else {
        return Err(MalformedReply);
    };
    numbers.iter().map(|number| integer(*number)).collect()
}

fn integer(bytes: [u8; 8]) -> Result<i64, MalformedReply> {
    let number = f64::from_le_bytes(bytes);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what it cuts off is seen by packing the integer again"
    )]
    let integer = number as i64;
    if pack(&[integer]) == bytes && integer.unsigned_abs() < 1 << 53 {
        Ok(integer)
    } else {
        Err(MalformedReply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_nothing_else_does() {
        let edges = [0, 1, -1, 1 << 52, (1 << 53) - 1, 1 - (1 << 53)];
        assert_eq!(unpack(&pack(&edges)), Ok(edges.to_vec()));
        assert_eq!(unpack(&[]), Ok(Vec::new()));
        for other in [
            0.5,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            9_007_199_254_740_992.0,
            1e300,
        ] {
            assert_eq!(unpack(&other.to_le_bytes()), Err(MalformedReply), "{other}");
        }
        assert_eq!(unpack(&[0; 9]), Err(MalformedReply));
    }
}
