//! Exact integer arithmetic shared by the algorithms.
//!
//! Every number fits a double's 53 bits, because the twin, `lua/lib/integers.lua`, has nothing else.

/// The largest product an algorithm may build from its parameters: C·p or N·W.
pub(crate) const PRODUCT_MAX: u64 = 1 << 51;

/// The largest count: a structured field of HTTP has 15 digits.
pub(crate) const COUNT_MAX: u64 = 999_999_999_999_999;

/// The latest time accepted, in milliseconds; later ones count as this one.
pub(crate) const TIME_MAX_MS: u64 = (1 << 52) - 1;

/// The greatest common divisor; `gcd(0, b) = b`.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// `a·b/c` rounded up, saturating; `c` must not be 0.
pub(crate) fn scale_up(a: u64, b: u64, c: u64) -> u64 {
    let scaled = (u128::from(a) * u128::from(b)).div_ceil(u128::from(c));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gcd_of_zero_is_the_other() {
        assert_eq!(gcd(0, 7), 7);
        assert_eq!(gcd(12, 18), 6);
    }

    #[test]
    fn scaling_rounds_up_and_does_not_overflow() {
        assert_eq!(scale_up(1, 2, 3), 1);
        assert_eq!(scale_up(PRODUCT_MAX, PRODUCT_MAX, PRODUCT_MAX), PRODUCT_MAX);
        assert_eq!(scale_up(u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
