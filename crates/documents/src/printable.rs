//! Makes text from elsewhere safe for terminals and logs: nothing in it moves the cursor, hides
//! what comes after it, or reorders what a reader sees.

use std::{borrow::Cow, fmt::Write};

const ESCAPE: char = '\u{1b}';

/// Whether a terminal just shows a character: it is not a control character, nor one that changes
/// the direction of text or ends a line.
pub fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// The text with unprintable characters written as in JSON, `\u001b`. Line breaks and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    rewrite(text, |_| 0)
}

/// The same, but colours and weights stay, for text that was styled by us.
pub fn printable_styled(text: &str) -> Cow<'_, str> {
    rewrite(text, style)
}

/// `keep` returns how many bytes stay as they are at an escape character.
fn rewrite(text: &str, keep: fn(&str) -> usize) -> Cow<'_, str> {
    let stays = |c: char| is_printable(c) || matches!(c, '\n' | '\t');
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let kept = if stays(c) { c.len_utf8() } else { keep(rest) };
        if kept == 0 {
            // Writing to a string cannot fail; all of them are in the first plane.
            write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default();
        }
        let (same, after) = rest.split_at_checked(kept).unwrap_or((rest, ""));
        out.push_str(same);
        rest = if kept == 0 {
            after.get(c.len_utf8()..).unwrap_or_default()
        } else {
            after
        };
    }
    Cow::Owned(out)
}

/// The length of a sequence that sets a colour or weight with which text can still be read.
fn style(text: &str) -> usize {
    let parameters = text
        .strip_prefix(ESCAPE)
        .and_then(|text| text.strip_prefix('['))
        .and_then(|text| text.split_once('m'));
    let readable = |parameter: &str| {
        let number: Option<u8> = parameter.parse().ok();
        parameter.is_empty() || matches!(number, Some(0..=4 | 31..=36 | 91..=96))
    };
    match parameters {
        Some((parameters, _)) if parameters.split(';').all(readable) => parameters.len() + 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(printable("plain é漢\n\tx"), "plain é漢\n\tx");
        assert_eq!(
            printable("a\u{1b}[2J\u{9b}1m\r\u{202e}b\u{2066}\u{7f}"),
            r"a\u001b[2J\u009b1m\u000d\u202eb\u2066\u007f"
        );
        assert_eq!(printable("\u{1b}[31mred"), r"\u001b[31mred");
    }

    #[test]
    fn of_styles_only_colours_and_weights_stay() {
        let ours = "\u{1b}[1m\u{1b}[31merror\u{1b}[0m: \u{1b}[1;36mx\u{1b}[m";
        assert_eq!(printable_styled(ours), ours);
        for (text, shown) in [
            ("\u{1b}[8mhidden", r"\u001b[8mhidden"),
            ("\u{1b}[30;40mblack", r"\u001b[30;40mblack"),
            ("\u{1b}[2J", r"\u001b[2J"),
            ("\u{1b}]0;title\u{7}", r"\u001b]0;title\u0007"),
            ("\u{1b}", r"\u001b"),
            ("\u{1b}[999999999999m", r"\u001b[999999999999m"),
        ] {
            assert_eq!(printable_styled(text), shown);
        }
    }

    proptest! {
        #[test]
        fn nothing_but_lines_and_tabs_is_left(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert!(shown.chars().all(|c| is_printable(c) || matches!(c, '\n' | '\t')));
            let json = serde_json::to_string(&text).unwrap();
            let shown = printable(&json);
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }
}
