use proptest::prelude::*;

use super::*;
use crate::{Field, Node, Report};

#[test]
fn a_typo_finds_the_word_that_was_meant() {
    let fields = ["rate", "burst", "over_limit", "on_failure"];
    assert_eq!(similar("brust", &fields), Some("burst"));
    assert_eq!(similar("overlimit", &fields), Some("over_limit"));
    assert_eq!(similar("over-limit", &fields), Some("over_limit"));
    assert_eq!(similar("colour", &fields), None);
}

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

/// A client of a limiter may send tens of thousands, and each is compared with every field.
#[test]
fn what_was_meant_is_looked_for_only_of_problems_that_are_kept() {
    let map = Node::map((0..1000).map(|n| (format!("rat{n}"), Node::number(n))));
    let mut report = Report::default();
    Field::root(&map).read_map(&["rate"], &mut report, &mut |_| {});
    let hints = report
        .problems
        .iter()
        .filter(|problem| problem.hint.is_some());
    assert_eq!((report.problems.len(), hints.count()), (1000, MAX_KEPT));
}
