//! Limitador's limits file: a list of limits, each with a namespace, conditions and variables.

use std::collections::HashMap;

use documents::{Entry, Field, Name, Node, Path, Problems, Value, similar};

use crate::{
    Conversion, File,
    assemble::{DomainDraft, Draft, Fields, Unique, assemble, literal},
    report::{Reading, load_all, yaml},
};

const LIMIT: [&str; 7] = [
    "namespace",
    "max_value",
    "seconds",
    "conditions",
    "variables",
    "name",
    "id",
];

/// The most entries in the `per` of one limit.
const MAX_PER: usize = 16;

pub(crate) fn convert(files: &[File<'_>]) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, yaml)?;
    let mut domains = Domains::default();
    for (file, reading) in readings.iter_mut().enumerate() {
        for node in std::mem::take(&mut reading.nodes) {
            limits(file, &node, reading, &mut domains);
        }
    }
    assemble(domains.list, readings)
}

/// The limits by namespace, in the order in which the namespaces appear.
#[derive(Default)]
struct Domains {
    list: Vec<DomainDraft>,
    names: HashMap<String, (usize, Unique)>,
}

impl Domains {
    fn add(&mut self, found: &Found, file: usize) {
        let next = self.list.len();
        let (at, names) = { self.names.entry(found.namespace.clone()) }
            .or_insert_with(|| (next, Unique::default()));
        if *at == next {
            self.list.push(DomainDraft {
                name: found.namespace.clone(),
                limits: Vec::new(),
            });
        }
        let node = found.to_node(names);
        if let Some(domain) = self.list.get_mut(*at) {
            domain.limits.push(Draft {
                node,
                file,
                place: found.place,
            });
        }
    }
}

/// One limit of Limitador's.
#[derive(Default)]
struct Found {
    namespace: String,
    name: Option<String>,
    max_value: u64,
    seconds: u64,
    matchers: Matchers,
    per: Vec<Name>,
    /// The conditions and variables as written.
    written: Vec<String>,
    place: Option<documents::Place>,
}

fn limits(file: usize, node: &Node, reading: &mut Reading, domains: &mut Domains) {
    let root = Field::root(node);
    let spec = node.get("spec").map(|node| Field {
        node,
        path: Path::Field(&root.path, "spec"),
    });
    let holder = spec.unwrap_or(root);
    let list = match holder.node.get("limits") {
        Some(node) => Field {
            node,
            path: Path::Field(&holder.path, "limits"),
        },
        None => root,
    };
    let Value::List(items) = &list.node.value else {
        list.expected("a list of limits", &mut reading.errors)
            .push_hint("Limitador's LIMITS_FILE, or a `Limitador` resource with `spec.limits`");
        return;
    };
    for (index, node) in items.iter().enumerate() {
        let item = list.item(index, node);
        if let Some(found) = limit(&item, reading) {
            domains.add(&found, file);
        }
    }
}

/// One limit; `None` if it is invalid or any part of it cannot be expressed: without one of its
/// conditions it would apply to more requests.
fn limit(item: &Field<'_>, reading: &mut Reading) -> Option<Found> {
    let entries = item.entries("a limit", &mut reading.errors)?;
    let (wrong, lost) = (reading.errors.problems.len(), reading.lost.problems.len());
    let mut found = Found {
        place: entries.first().and_then(|entry| entry.place),
        ..Found::default()
    };
    for entry in &entries {
        read_field(&mut found, item, entry, reading);
    }
    for needed in ["namespace", "max_value", "seconds"] {
        if !entries.iter().any(|entry| snake_case(&entry.key) == needed) {
            let message = format!("a limit needs `{needed}`");
            reading.errors.add(&item.path, found.place, message);
        }
    }
    reading.errors.has_only(wrong)?;
    if reading.lost.has_only(lost).is_none() {
        let message = "this limit is left out, because part of it cannot be expressed";
        reading.lost.add(&item.path, found.place, message);
        return None;
    }
    Some(found)
}

fn read_field(found: &mut Found, item: &Field<'_>, entry: &Entry, reading: &mut Reading) {
    let field = item.below(entry);
    let errors = &mut reading.errors;
    match snake_case(&entry.key).as_str() {
        "namespace" => {
            let text = field.text("the name of a namespace", errors);
            text.unwrap_or_default().clone_into(&mut found.namespace);
        }
        "max_value" => found.max_value = field.integer(0, errors).unwrap_or(0),
        "seconds" => found.seconds = field.integer(1, errors).unwrap_or(1),
        // The name says more than the identifier.
        "name" => found.name = field.text("a name", errors).map(str::to_owned),
        "id" => {
            let id = field.text("an identifier", errors);
            found.name = found.name.take().or(id.map(str::to_owned));
        }
        "conditions" => conditions(found, &field, reading),
        "variables" => variables(found, &field, reading),
        _ => {
            let problem = errors.add(&field.path, entry.place, "unknown field");
            match similar(&snake_case(&entry.key), &LIMIT) {
                Some(meant) => problem.push_hint(format!("did you mean `{meant}`?")),
                None => problem.push_hint(format!("known fields: {}", LIMIT.join(", "))),
            }
        }
    }
}

/// Kuadrant's resources have fields in camelCase, `maxValue`.
fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 2);
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

fn conditions(found: &mut Found, list: &Field<'_>, reading: &mut Reading) {
    for_each_text(list, reading, |text, field, reading| {
        let parsed = parse_condition(text).and_then(|tests| {
            tests.into_iter().try_for_each(|test| {
                note_renamed(&test.key, field, reading);
                found.matchers.add(test)
            })
        });
        match parsed {
            Ok(()) => found.written.push(text.to_owned()),
            Err(why) => {
                field.report(&mut reading.lost, why.to_string());
            }
        }
    });
}

fn variables(found: &mut Found, list: &Field<'_>, reading: &mut Reading) {
    for_each_text(list, reading, |text, field, reading| {
        match parse_variable(text) {
            Ok(_) if found.per.len() == MAX_PER => {
                field.report(&mut reading.lost, format!("more than {MAX_PER} variables"));
            }
            Ok(key) => {
                note_renamed(&key, field, reading);
                found.written.push(text.to_owned());
                if !found.per.contains(&key.name) {
                    found.per.push(key.name);
                }
            }
            Err(why) => {
                field.report(&mut reading.lost, why.to_string());
            }
        }
    });
}

/// Until Envoy sends the entry by its new key, the limit applies to no request.
fn note_renamed(key: &Key, field: &Field<'_>, reading: &mut Reading) {
    let Some(written) = &key.written else { return };
    let name = &key.name;
    let message = format!("`{written}` is `{name}` here: names have no upper case");
    field
        .report(&mut reading.changed, message)
        .push_hint(format!(
            "rename it to `{name}` in Envoy's rate limit actions"
        ));
}

fn for_each_text(
    list: &Field<'_>,
    reading: &mut Reading,
    mut each: impl FnMut(&str, &Field<'_>, &mut Reading),
) {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of expressions", &mut reading.errors);
        return;
    };
    for (index, node) in items.iter().enumerate() {
        let item = list.item(index, node);
        if let Some(text) = item.text("an expression", &mut reading.errors) {
            each(text, &item, reading);
        }
    }
}

impl Found {
    fn to_node(&self, names: &mut Unique) -> Node {
        let written = self.written.join(" ");
        let name = self.name.clone().unwrap_or_else(|| match written.as_str() {
            "" => format!("all.{}s", self.seconds),
            // The index of the descriptor no longer matters.
            written => format!(
                "{} {}s",
                written.replace("descriptors[0]", ""),
                self.seconds
            ),
        });
        let mut fields = Fields::default();
        fields.text("name", names.name(&name));
        if !written.is_empty() {
            fields.description(&written);
        }
        if let Some(matchers) = self.matchers.to_node() {
            fields.set("match", matchers);
        }
        fields.names("per", &self.per);
        if !self.per.is_empty() {
            fields.text("if_missing", "skip");
        }
        fields.text("algorithm", "fixed_window");
        fields.text(
            "rate",
            format!("{}/{}", self.max_value, period(self.seconds)),
        );
        // Limitador's windows start at the first request that they count.
        fields.text("align", "first_request");
        fields.finish()
    }
}

/// `60` is `m`, `90` is `90s`.
fn period(seconds: u64) -> String {
    let period = policy::Duration(seconds.saturating_mul(1000)).to_string();
    match period.strip_prefix('1') {
        Some(unit) if unit.starts_with(|c: char| c.is_ascii_alphabetic()) => unit.to_owned(),
        _ => period,
    }
}

// --- The parts of expressions.

/// Longer expressions are not converted, because the parser is recursive.
const MAX_TOKENS: usize = 256;

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(&'static str),
}

/// The words, texts and signs of an expression; `None` if it contains anything else.
fn tokens(text: &str) -> Option<Vec<Token>> {
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

/// An entry, and its key in Limitador where that is no name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    pub(super) name: Name,
    pub(super) written: Option<String>,
}

/// A side of a comparison.
enum Operand {
    Entry(Key),
    Text(String),
    Texts(Vec<String>),
}

/// `key`, `req.method`, `descriptors[0]['key']`, `descriptors[0].key`, `'text'` or `['a', 'b']`.
fn operand(tokens: &[Token]) -> Result<Operand, Unsupported> {
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

fn entry(first: &str, rest: &[Token]) -> Result<Key, Unsupported> {
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
    if let Ok(name) = key.parse() {
        return Ok(Key {
            name,
            written: None,
        });
    }
    // Kuadrant derives keys from the names in its policies, which may be in camelCase.
    match key.to_ascii_lowercase().parse() {
        Ok(name) => Ok(Key {
            name,
            written: Some(key),
        }),
        Err(_) => Err(Unsupported::Key(key)),
    }
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

// --- Why an expression has no counterpart.

/// The most entries in the `match` of one limit.
const MAX_ENTRIES: usize = 32;

/// Why an expression has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unsupported {
    Expression,
    Unquoted(String),
    Position,
    Key(String),
    Twice(Name),
    TooMany,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expression => f.write_str(
                "only comparisons of an entry with texts, joined by `&&`, can be converted: ==, \
                 !=, in, startsWith, endsWith and contains",
            ),
            Self::Unquoted(text) => write!(
                f,
                "`{text}` without quotes is an entry for Limitador, not a text; put it in quotes"
            ),
            Self::Position => f.write_str(
                "a limit applies to each descriptor by itself, so only `descriptors[0]` has a \
                 counterpart",
            ),
            Self::Key(key) => write!(
                f,
                "`{key}` cannot be an entry: {}; rename it in Envoy's rate limit actions",
                documents::NameError
            ),
            Self::TooMany => write!(f, "conditions on more than {MAX_ENTRIES} entries"),
            Self::Twice(key) => write!(f, "two conditions for the value of `{key}`"),
        }
    }
}

// --- The expressions of conditions and variables that patterns can express: comparisons of entries
// with texts, joined by `&&`.

/// What a condition requires of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    pub(super) key: Key,
    /// Patterns of which one must match; `None`: any value.
    any_of: Option<Vec<String>>,
    /// Patterns of which none may match.
    none_of: Vec<String>,
}

/// The requirements of all conditions of a limit, by entry.
#[derive(Default)]
struct Matchers(Vec<Test>);

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
                return Err(Unsupported::Twice(test.key.name));
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
            (test.key.name.as_str(), patterns)
        });
        Some(Node::map(entries))
    }
}

/// A condition as requirements of entries.
fn parse_condition(text: &str) -> Result<Vec<Test>, Unsupported> {
    let tokens = tokens(text).ok_or(Unsupported::Expression)?;
    tokens
        .split(|token| *token == Token::Sign("&&"))
        .map(test)
        .collect()
}

/// The entry that a variable stands for.
fn parse_variable(text: &str) -> Result<Key, Unsupported> {
    match operand(&tokens(text).ok_or(Unsupported::Expression)?)? {
        Operand::Entry(key) => Ok(key),
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
        (Operand::Entry(_), Some("==" | "!="), Operand::Entry(key)) => Err(Unsupported::Unquoted(
            key.written.unwrap_or_else(|| key.name.to_string()),
        )),
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

fn one_of(key: Key, any_of: Vec<String>) -> Test {
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
            ("limit.perUser__1b3 == '1'", r#"{limit.peruser__1b3: "1"}"#),
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
            ("key/A == 'x'", Unsupported::Key("key/A".to_owned())),
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
