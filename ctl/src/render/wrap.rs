//! Line breaks for a narrow page.

use super::Page;

/// Breaks text at the page's width. The first line starts at column `at`; later lines are indented
/// by `indent` columns.
pub fn wrapped(text: &str, indent: usize, at: usize, page: Page) -> String {
    let Some(width) = page.width.map(usize::from) else {
        return text.to_owned();
    };
    let mut lines = String::with_capacity(text.len() + 16);
    let mut column = at;
    for (n, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if n > 0 && column + 1 + length > width && column > indent {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if n > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(width: Option<u16>) -> Page {
        Page {
            width,
            wide: false,
            unicode: true,
        }
    }

    #[test]
    fn words_stay_whole_and_lines_within_the_page() {
        let text = "one two three four-and-a-half five";
        assert_eq!(wrapped(text, 2, 0, page(None)), text);
        assert_eq!(
            wrapped(text, 2, 4, page(Some(12))),
            "one two\n  three\n  four-and-a-half\n  five"
        );
    }
}
