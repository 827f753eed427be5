//! The parts of expressions.

use documents::Name;

use super::unsupported::Unsupported;

/// Longer expressions are not converted, because the parser is recursive.
const MAX_TOKENS: usize = 256;

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(String),
    Text(String),
    Sign(&'static str),
}

/// The words, texts and signs of an expression; `None` if it contains anything else.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    const SIGNS: [&str; 11] = ["==", "!=", "&&", "[", "]", "(", ")", ",", ".", "||", "!"];
    let mut rest = text.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next().filter(|_| tokens.len() <= MAX_TOKENS) {
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            rest = rest.get(sign.len()..)?;
        } else if matches!(first, '\'' | '"') {
            let (inside, after) = rest.get(1..)?.split_once(first)?;
            // Escapes differ between versions of Limitador.
            if inside.contains('\\') {
                return None;
            }
            tokens.push(Token::Text(inside.to_owned()));
            rest = after;
        } else {
            let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/');
            let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
            if end == 0 {
                return None;
            }
            let (found, after) = rest.split_at_checked(end)?;
            tokens.push(Token::Word(found.to_owned()));
            rest = after;
        }
        rest = rest.trim_start();
    }
    (tokens.len() <= MAX_TOKENS).then_some(tokens)
}

/// A side of a comparison.
pub(super) enum Operand {
    Entry(Name),
    Text(String),
    Texts(Vec<String>),
}

/// `key`, `req.method`, `descriptors[0]['key']`, `descriptors[0].key`, `'text'` or `['a', 'b']`.
pub(super) fn operand(tokens: &[Token]) -> Result<Operand, Unsupported> {
    match tokens {
        [Token::Text(text)] => Ok(Operand::Text(text.clone())),
        [Token::Sign("["), inside @ .., Token::Sign("]")] => {
            let texts = inside.split(|token| *token == Token::Sign(","));
            let texts = texts.map(|item| match item {
                [Token::Text(text)] => Ok(text.clone()),
                _ => Err(Unsupported::Expression),
            });
            texts.collect::<Result<_, _>>().map(Operand::Texts)
        }
        [Token::Word(word), rest @ ..] => entry(word, rest).map(Operand::Entry),
        _ => Err(Unsupported::Expression),
    }
}

fn entry(first: &str, rest: &[Token]) -> Result<Name, Unsupported> {
    let key = match (first, rest) {
        (
            "descriptors",
            [
                Token::Sign("["),
                Token::Word(nth),
                Token::Sign("]"),
                key @ ..,
            ],
        ) => {
            if nth != "0" {
                return Err(Unsupported::Position);
            }
            match key {
                [Token::Sign("["), Token::Text(key), Token::Sign("]")]
                | [Token::Sign("."), Token::Word(key)] => key.clone(),
                _ => return Err(Unsupported::Expression),
            }
        }
        // Limitador's own `limit`. Kuadrant's entries begin alike: `limit.toystore__1b3b3a5a`.
        ("limit", [Token::Sign("."), Token::Word(field)])
            if matches!(field.as_str(), "name" | "id") =>
        {
            return Err(Unsupported::Expression);
        }
        ("descriptors", _) => return Err(Unsupported::Expression),
        _ => dotted(first, rest)?,
    };
    key.parse().map_err(|_| Unsupported::Key(key))
}

/// The old syntax: `req.method`.
fn dotted(first: &str, rest: &[Token]) -> Result<String, Unsupported> {
    let mut key = first.to_owned();
    for pair in rest.chunks(2) {
        match pair {
            [Token::Sign("."), Token::Word(word)] => {
                key.push('.');
                key.push_str(word);
            }
            _ => return Err(Unsupported::Expression),
        }
    }
    Ok(key)
}
