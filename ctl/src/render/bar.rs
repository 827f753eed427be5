//! A quota as a bar.

use super::Page;

const CELLS: u64 = 24;

/// `used` of `quota`, as a bar of fixed length. A quota of 0 is full.
pub fn bar(used: u64, quota: u64, page: Page) -> String {
    let full = match quota {
        0 => CELLS,
        // Any usage fills a cell; only a used-up quota fills all.
        _ if used >= quota => CELLS,
        _ => (u128::from(used) * u128::from(CELLS) / u128::from(quota))
            .try_into()
            .unwrap_or(CELLS)
            .max(u64::from(used > 0)),
    };
    let (on, off) = if page.unicode {
        ("█", "░")
    } else {
        ("#", "-")
    };
    let cells = |n: u64, cell: &str| (0..n).map(|_| cell).collect::<String>();
    format!("{}{}", cells(full, on), cells(CELLS - full, off))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page {
        width: None,
        wide: false,
        unicode: false,
    };

    #[test]
    fn a_bar_is_full_only_when_the_quota_is_used_up() {
        assert_eq!(bar(0, 10, PAGE), "-".repeat(24));
        assert_eq!(
            bar(5, 10, PAGE),
            format!("{}{}", "#".repeat(12), "-".repeat(12))
        );
        assert_eq!(bar(1, 1_000_000, PAGE), format!("#{}", "-".repeat(23)));
        assert_eq!(
            bar(999_999, 1_000_000, PAGE),
            format!("{}-", "#".repeat(23))
        );
        assert_eq!(bar(10, 10, PAGE), "#".repeat(24));
        assert_eq!(bar(25, 10, PAGE), "#".repeat(24));
        assert_eq!(bar(0, 0, PAGE), "#".repeat(24));
        assert_eq!(
            bar(u64::MAX - 1, u64::MAX, PAGE),
            format!("{}-", "#".repeat(23))
        );
    }
}
