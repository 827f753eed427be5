//! Formats text from other components as one log line.

/// Characters that are kept.
const MAX_CHARS: usize = 400;

/// The text on one line. Control characters, and those that change the direction of text or have no
/// width, are written as escapes.
pub(crate) fn log_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_CHARS));
    for c in text.chars().take(MAX_CHARS) {
        if is_plain(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

fn is_plain(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_are_escaped_and_the_length_bounded() {
        let text = "store: \u{1b}[31mé\r\n\0\u{85}\u{202e}gnorts\u{2066}\u{2028}\u{200b}!";
        assert_eq!(
            log_line(text),
            "store: \\u{1b}[31mé\\u{d}\\u{a}\\u{0}\\u{85}\\u{202e}gnorts\\u{2066}\\u{2028}\\u{200b}!"
        );
        assert!(log_line(&"\n".repeat(1 << 20)).len() <= 10 * MAX_CHARS);
    }
}
