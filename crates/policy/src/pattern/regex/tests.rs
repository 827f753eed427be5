use proptest::{prelude::*, sample::select};

use super::*;

/// What `regex-lite` makes of an expression for whole values; `None` where it refuses it.
fn judge(expression: &str) -> Result<Option<regex_lite::Regex>, TestCaseError> {
    match regex_lite::Regex::new(expression) {
        // A comment at its end would take the closing parenthesis along.
        Ok(_) => match regex_lite::Regex::new(&format!(r"\A(?:{expression})\z")) {
            Ok(judge) => Ok(Some(judge)),
            Err(_) => Err(TestCaseError::reject("no judge")),
        },
        Err(error) => {
            // Ours bears with these.
            let harmless = [
                "duplicate capture group name",
                "duplicate inline flag is not allowed",
                "inline flag negation cannot be repeated",
                "pattern has too much nesting",
            ];
            if harmless.contains(&error.to_string().as_str()) {
                return Err(TestCaseError::reject("no judge"));
            }
            Ok(None)
        }
    }
}

fn compare(expression: &str, values: &[String]) -> Result<(), TestCaseError> {
    let judge = judge(expression)?;
    let ours = Regex::parse(expression);
    prop_assert_eq!(
        ours.is_ok(),
        judge.is_some(),
        "{:?}: {:?}",
        expression,
        ours.err()
    );
    let (Some(judge), Ok(ours)) = (judge, ours) else {
        return Ok(());
    };
    for value in values {
        prop_assert_eq!(
            ours.matches(value),
            judge.is_match(value),
            "{:?} on {:?}",
            expression,
            value
        );
    }
    Ok(())
}

/// Pieces that are expressions by themselves.
const WHOLE: [&str; 50] = [
    "a",
    "b",
    "B",
    "1",
    "_",
    "é",
    "-",
    " ",
    ".",
    "^",
    "$",
    "]",
    "}",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\b",
    r"\B",
    r"\A",
    r"\z",
    r"\<",
    r"\>",
    r"\b{start}",
    r"\b{end}",
    r"\b{start-half}",
    r"\b{end-half}",
    r"\.",
    r"\x41",
    r"\x{e9}",
    r"\u0062",
    r"\U00000041",
    r"\n",
    r"\r",
    "[ab]",
    "[^a]",
    "[a-b1-]",
    "[]a]",
    "[^]a]",
    "[-a]",
    r"[^\W1]",
    r"[\D\s]",
    "[[:alpha:]_]",
    "[[:^lower:]é]",
    "[B-é]",
    r"[\t-\x40]",
    "",
    "|",
];

/// Pieces that begin, end or change something, or are wrong.
const LOOSE: [&str; 42] = [
    "(",
    ")",
    "(?:",
    "(?i)",
    "(?i:",
    "(?-i)",
    "(?m)",
    "(?mR)",
    "(?s)",
    "(?x)",
    "(?x-i:",
    "(?U)",
    "(?u)",
    "(?)",
    "(?i-)",
    "(?=",
    "(?<!",
    "(?P<n>",
    "(?<n1>",
    "(?<1>",
    "*",
    "+",
    "?",
    "*?",
    "{2}",
    "{1,}",
    "{0,2}",
    "{ 1 , 2 }",
    "{2,1}",
    "{,2}",
    "{",
    "[",
    "[a",
    "[z-a]",
    "[a&&b]",
    "[a--b]",
    "[[:no:]]",
    r"\",
    r"\1",
    r"\pL",
    "# b\n",
    r"\y",
];

fn expression() -> impl Strategy<Value = String> {
    let whole = select(&WHOLE[..]).prop_map(str::to_owned);
    whole.prop_recursive(4, 24, 4, |inner| {
        let times = select(&["*", "+", "?", "*?", "{2}", "{0}", "{1,}", "{0,2}", "{2,3}?"][..]);
        let open = select(
            &[
                "(", "(?:", "(?i:", "(?m:", "(?mR:", "(?s:", "(?x:", "(?sR-i:",
            ][..],
        );
        prop_oneof![
            (inner.clone(), times.clone()).prop_map(|(sub, times)| format!("(?:{sub}){times}")),
            (inner.clone(), times).prop_map(|(sub, times)| format!("{sub}{times}")),
            (open, inner.clone()).prop_map(|(open, sub)| format!("{open}{sub})")),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("{left}|{right}")),
            prop::collection::vec(inner, 1..4).prop_map(|subs| subs.concat()),
        ]
    })
}

fn values() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[abAB1_é \n\r-]{0,6}", 8)
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_global_rejects: 100_000,
        ..ProptestConfig::with_cases(4000)
    })]

    #[test]
    fn expressions_mean_what_they_mean_to_regex_lite(
        expression in expression(),
        values in values(),
    ) {
        compare(&expression, &values)?;
    }

    #[test]
    fn what_is_wrong_is_refused_as_regex_lite_refuses_it(
        pieces in prop::collection::vec(
            prop_oneof![select(&WHOLE[..]), select(&LOOSE[..])],
            0..8,
        ),
        values in values(),
    ) {
        compare(&pieces.concat(), &values)?;
    }

    #[test]
    fn no_text_is_read_otherwise_than_by_regex_lite(
        expression in r"[ab1(){}\[\]*+?|^$.\\,:=<>!imsxdwbpP#& -]{0,12}",
        values in values(),
    ) {
        compare(&expression, &values)?;
    }
}

#[test]
fn an_expression_is_bounded() {
    let most = Regex::parse("[a-z]{1,2000}").unwrap();
    assert!(most.matches(&"x".repeat(2000)) && !most.matches(&"x".repeat(2001)));
    for large in [
        "a{5000}",
        "(a{100}){100}",
        "((a{0,99}){0,99}){0,99}",
        "a{1,99999999999}",
        // Few steps, each of a large set.
        "[a-cd-fg-ij-lm-op-rs-u]{1000}",
        "(?i)[a-cx-z]{700}",
        "(?:[a-cd-fg-ij-l]{2}){600}",
    ] {
        Regex::parse(large).unwrap_err();
    }
    // Nothing, however often.
    assert!(Regex::parse("(?:){4000000000}").unwrap().matches(""));
    Regex::parse(&"(".repeat(1000)).unwrap_err();
    let alternatives = vec!["a"; 500].join("|");
    assert!(Regex::parse(&alternatives).unwrap().matches("a"));
}

#[test]
fn nothing_is_unicode_but_the_characters() {
    let matches = |expression, value| Regex::parse(expression).unwrap().matches(value);
    assert!(matches("..", "é漢") && matches("[^a]", "漢") && matches("[à-ü]", "é"));
    assert!(!matches(r"\w", "é") && !matches(r"\d", "٣") && !matches("(?i)é", "É"));
}
