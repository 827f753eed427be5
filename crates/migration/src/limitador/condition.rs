//! The expressions of conditions and variables that patterns can express: comparisons of entries
//! with texts, joined by `&&`.

use documents::{Name, Node};

use super::{
    expression::{Operand, Token, operand, tokens},
    unsupported::{MAX_ENTRIES, Unsupported},
};
use crate::names::literal;

/// What a condition requires of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    key: Name,
    /// Patterns of which one must match; `None`: any value.
    any_of: Option<Vec<String>>,
    /// Patterns of which none may match.
    none_of: Vec<String>,
}

/// The requirements of all conditions of a limit, by entry.
#[derive(Default)]
pub(super) struct Matchers(Vec<Test>);

impl Matchers {
    pub(super) fn add(&mut self, test: Test) -> Result<(), Unsupported> {
        let Some(held) = self.0.iter_mut().find(|held| held.key == test.key) else {
            if self.0.len() == MAX_ENTRIES {
                return Err(Unsupported::TooMany);
            }
            self.0.push(test);
            return Ok(());
        };
        // One list of patterns can only express "one of these and none of those".
        if let Some(any_of) = test.any_of {
            if held.any_of.as_ref().is_some_and(|held| *held != any_of) {
                return Err(Unsupported::Twice(test.key));
            }
            held.any_of = Some(any_of);
        }
        held.none_of.extend(test.none_of);
        Ok(())
    }

    pub(super) fn to_node(&self) -> Option<Node> {
        if self.0.is_empty() {
            return None;
        }
        let entries = self.0.iter().map(|test| {
            // Limitador applies no limit to a request that lacks an entry of its conditions.
            let present = vec!["**".to_owned()];
            let positive = test.any_of.as_ref().unwrap_or(&present);
            let negative = test.none_of.iter().map(|pattern| format!("!{pattern}"));
            let mut all: Vec<Node> = positive.iter().map(Node::text).collect();
            all.extend(negative.map(Node::text));
            let patterns = match <[Node; 1]>::try_from(all) {
                Ok([only]) => only,
                Err(many) => Node::list(many),
            };
            (test.key.as_str(), patterns)
        });
        Some(Node::map(entries))
    }
}

/// A condition as requirements of entries.
pub(super) fn parse_condition(text: &str) -> Result<Vec<Test>, Unsupported> {
    let tokens = tokens(text).ok_or(Unsupported::Expression)?;
    tokens
        .split(|token| *token == Token::Sign("&&"))
        .map(test)
        .collect()
}

/// The entry that a variable stands for.
pub(super) fn parse_variable(text: &str) -> Result<Name, Unsupported> {
    match operand(&tokens(text).ok_or(Unsupported::Expression)?)? {
        Operand::Entry(name) => Ok(name),
        Operand::Text(_) | Operand::Texts(_) => Err(Unsupported::Expression),
    }
}

fn test(tokens: &[Token]) -> Result<Test, Unsupported> {
    if let [Token::Sign("("), inside @ .., Token::Sign(")")] = tokens {
        return test(inside);
    }
    if let [
        of @ ..,
        Token::Sign("."),
        Token::Word(function),
        Token::Sign("("),
        Token::Text(text),
        Token::Sign(")"),
    ] = tokens
    {
        return call(of, function, text);
    }
    let comparison = |token: &Token| match token {
        Token::Sign(sign @ ("==" | "!=")) => Some(*sign),
        Token::Word(word) if word == "in" => Some("in"),
        _ => None,
    };
    let at = tokens.iter().position(|token| comparison(token).is_some());
    let at = at.ok_or(Unsupported::Expression)?;
    let sign = tokens.get(at).and_then(comparison);
    let (left, right) = tokens.split_at_checked(at).ok_or(Unsupported::Expression)?;
    let left = operand(left)?;
    let right = operand(right.get(1..).unwrap_or_default())?;
    match (left, sign, right) {
        (Operand::Entry(key), Some("=="), Operand::Text(text))
        | (Operand::Text(text), Some("=="), Operand::Entry(key)) => {
            Ok(one_of(key, vec![literal(&text)]))
        }
        (Operand::Entry(key), Some("!="), Operand::Text(text))
        | (Operand::Text(text), Some("!="), Operand::Entry(key)) => Ok(Test {
            key,
            any_of: None,
            none_of: vec![literal(&text)],
        }),
        (Operand::Entry(key), Some("in"), Operand::Texts(texts)) if !texts.is_empty() => Ok(
            one_of(key, texts.iter().map(|text| literal(text)).collect()),
        ),
        (Operand::Entry(_), Some("==" | "!="), Operand::Entry(key)) => {
            Err(Unsupported::Unquoted(key.to_string()))
        }
        _ => Err(Unsupported::Expression),
    }
}

fn call(of: &[Token], function: &str, text: &str) -> Result<Test, Unsupported> {
    let Operand::Entry(key) = operand(of)? else {
        return Err(Unsupported::Expression);
    };
    let escaped = regex_lite::escape(text);
    let expression = match function {
        "startsWith" => format!("re:(?s){escaped}.*"),
        "endsWith" => format!("re:(?s).*{escaped}"),
        "contains" => format!("re:(?s).*{escaped}.*"),
        _ => return Err(Unsupported::Expression),
    };
    Ok(one_of(key, vec![expression]))
}

fn one_of(key: Name, any_of: Vec<String>) -> Test {
    Test {
        key,
        any_of: Some(any_of),
        none_of: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use patterns::Pattern;

    use super::*;

    fn yaml(conditions: &[&str]) -> Result<String, Unsupported> {
        let mut matchers = Matchers::default();
        for condition in conditions {
            for test in parse_condition(condition)? {
                matchers.add(test)?;
            }
        }
        Ok(matchers.to_node().unwrap().to_yaml_line())
    }

    #[test]
    fn comparisons_are_patterns() {
        for (condition, expected) in [
            ("req.method == 'GET'", r"{req.method: GET}"),
            ("'GET' == method", r"{method: GET}"),
            (
                r#"descriptors[0]["limit.toy__1b3"] == "1""#,
                r#"{limit.toy__1b3: "1"}"#,
            ),
            (
                "descriptors[0].path != '/json'",
                r#"{path: ["**", "!/json"]}"#,
            ),
            ("limit.toy__1b3 == '1'", r#"{limit.toy__1b3: "1"}"#),
            ("a == 'x*'", r#"{a: "exact:x*"}"#),
            ("a in ['x', 'z']", r"{a: [x, z]}"),
            (
                "(a == 'x') && b != 'y' && a != 'z'",
                r#"{a: [x, "!z"], b: ["**", "!y"]}"#,
            ),
            ("path.startsWith('/v1.')", r#"{path: "re:(?s)/v1\\..*"}"#),
        ] {
            assert_eq!(yaml(&[condition]).as_deref(), Ok(expected), "{condition}");
        }
    }

    #[test]
    fn the_rest_is_named() {
        for (condition, why) in [
            ("a == 'x' || a == 'y'", Unsupported::Expression),
            ("a.matches('x+')", Unsupported::Expression),
            ("size(a) > 3", Unsupported::Expression),
            ("a == 'it\\'s'", Unsupported::Expression),
            ("a == x", Unsupported::Unquoted("x".to_owned())),
            ("descriptors[1].a == 'x'", Unsupported::Position),
            ("limit.name == 'x'", Unsupported::Expression),
            ("limit['a'] == 'x'", Unsupported::Expression),
            ("keyA == 'x'", Unsupported::Key("keyA".to_owned())),
            (
                "a == 'x' && a == 'y'",
                Unsupported::Twice("a".parse().unwrap()),
            ),
            ("", Unsupported::Expression),
            ("a ==", Unsupported::Expression),
        ] {
            assert_eq!(yaml(&[condition]), Err(why), "{condition}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decided(text in "[a-z.'\\[\\]0-9 =!&()\"]{0,40}|.{0,40}") {
            let _ = parse_condition(&text);
            let _ = parse_variable(&text);
        }

        #[test]
        fn a_literal_matches_itself(text in ".{0,60}") {
            let pattern = Pattern::parse(&literal(&text)).unwrap();
            proptest::prop_assert_eq!(pattern.exact(), Some(text.as_bytes()));
            let expression = Pattern::parse(&format!("re:{}", regex_lite::escape(&text))).unwrap();
            proptest::prop_assert!(expression.finds(text.as_bytes()));
        }
    }
}
