//! Conditions between two characters: `^`, `\b`.

use super::set::is_word;

/// What has to be so between two characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Start,
    End,
    StartLine,
    EndLine,
    /// Of lines that end in `\r\n`, `\r` or `\n`.
    StartLineCr,
    EndLineCr,
    Word,
    NotWord,
    WordStart,
    WordEnd,
    WordStartHalf,
    WordEndHalf,
}

impl Look {
    pub(super) fn holds(self, before: Option<char>, after: Option<char>) -> bool {
        let is_word = |c: Option<char>| c.is_some_and(|c| is_word(&c));
        let (word_before, word_after) = (is_word(before), is_word(after));
        match self {
            Self::Start => before.is_none(),
            Self::End => after.is_none(),
            Self::StartLine => matches!(before, None | Some('\n')),
            Self::EndLine => matches!(after, None | Some('\n')),
            Self::StartLineCr => match before {
                Some('\r') => after != Some('\n'),
                before => matches!(before, None | Some('\n')),
            },
            Self::EndLineCr => match after {
                Some('\n') => before != Some('\r'),
                after => matches!(after, None | Some('\r')),
            },
            Self::Word => word_before != word_after,
            Self::NotWord => word_before == word_after,
            Self::WordStart => !word_before && word_after,
            Self::WordEnd => word_before && !word_after,
            Self::WordStartHalf => !word_before,
            Self::WordEndHalf => !word_after,
        }
    }
}
