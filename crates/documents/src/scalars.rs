//! Reading single values, each with a message that says what was expected.

use std::collections::HashSet;

use crate::{
    Field, Name, NameError, Path, Report, Value, quoted, similar,
    timestamp::parse_timestamp,
    units::{parse_digits, parse_duration},
};

/// A field with a fixed set of values.
pub trait Choice: Copy + PartialEq + 'static {
    /// The values as written.
    const CHOICES: &'static [(&'static str, Self)];

    /// Words that other programs use, each with the one that is meant.
    const MEANT: &'static [(&'static str, &'static str)] = &[];

    /// The value as written.
    fn word(self) -> &'static str {
        Self::CHOICES
            .iter()
            .find(|(_, choice)| *choice == self)
            .map_or("", |(word, _)| word)
    }
}

impl<'n> Field<'n> {
    /// Text; an unquoted number or boolean counts as text, too.
    pub fn text(&self, what: &str, report: &mut Report) -> Option<&'n str> {
        let text = self.node.as_text();
        if text.is_none() {
            self.expected(what, report);
        }
        text
    }

    /// `true` or `false`.
    pub fn boolean(&self, report: &mut Report) -> Option<bool> {
        if let Value::Bool(value) = self.node.value {
            return Some(value);
        }
        self.expected("true or false", report);
        None
    }

    /// A whole number of at least `least`.
    pub fn integer(&self, least: u64, report: &mut Report) -> Option<u64> {
        let number = self.node.as_text().and_then(|text| text.parse().ok());
        if let Some(number) = number
            && number >= least
        {
            return Some(number);
        }
        self.expected(&format!("a whole number of at least {least}"), report);
        None
    }

    /// One of a fixed set of words.
    pub fn choice<T: Choice>(&self, report: &mut Report) -> Option<T> {
        let word_at = |at| T::CHOICES.get(at).map(|(word, _)| *word);
        let at = self.word_of(word_at, T::MEANT, report)?;
        T::CHOICES.get(at).map(|(_, choice)| *choice)
    }

    fn word_of(
        &self,
        word_at: fn(usize) -> Option<&'static str>,
        meant: &[(&str, &str)],
        report: &mut Report,
    ) -> Option<usize> {
        let words: Vec<&str> = (0..).map_while(word_at).collect();
        let text = self.node.as_text().unwrap_or_default();
        if let Some(at) = words.iter().position(|word| *word == text) {
            return Some(at);
        }
        let problem = self.expected(&format!("one of {}", words.join(", ")), report);
        let other = meant.iter().find(|(other, _)| *other == text);
        if let Some(meant) = other
            .map(|(_, word)| *word)
            .or_else(|| similar(text, &words))
        {
            problem.push_hint(format!("did you mean `{meant}`?"));
        }
        None
    }

    /// A name.
    pub fn name(&self, what: &str, report: &mut Report) -> Option<Name> {
        let text = self.text(what, report)?;
        match text.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("{} is not a name", quoted(text));
                self.report(report, message)
                    .push_hint(name_hint(text, &error));
                None
            }
        }
    }

    /// A [domain](Name::domain).
    pub fn domain(&self, report: &mut Report) -> Option<Name> {
        let text = self.text("the name of a domain", report)?;
        let domain = Name::domain(text);
        if domain.is_err() {
            self.expected("1 to 512 bytes of text, without control characters", report);
        }
        domain.ok()
    }

    /// A list of different names; a single one may stand for a list of one.
    pub fn names(&self, what: &str, report: &mut Report) -> Option<Vec<Name>> {
        let Value::List(items) = &self.node.value else {
            return self.name(what, report).map(|name| vec![name]);
        };
        let mut names: Vec<Name> = Vec::new();
        let mut known = HashSet::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            let item = Field {
                node,
                path: Path::Item(&self.path, index),
            };
            let Some(name) = item.name(what, report) else {
                continue;
            };
            if known.insert(name.clone()) {
                names.push(name);
            } else {
                item.report(report, format!("`{name}` is listed twice"));
            }
        }
        Some(names)
    }

    /// Text that `parse` accepts.
    pub fn parsed<T, E: std::error::Error>(
        &self,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
        report: &mut Report,
    ) -> Option<T> {
        let text = self.text(what, report)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.expected(what, report).push_hint(error_text(&error));
                None
            }
        }
    }

    /// A duration, in milliseconds.
    pub fn duration(&self, report: &mut Report) -> Option<u64> {
        self.parsed("a duration like 250ms or 3s", parse_duration, report)
    }

    /// A point in time, in milliseconds since the epoch.
    pub fn time(&self, report: &mut Report) -> Option<u64> {
        let time = self.text("a time", report).and_then(parse_timestamp);
        if time.is_none() {
            self.expected("a time like 2026-12-01T00:00Z", report);
        }
        time
    }

    /// A whole percentage.
    pub fn percent(&self, least: u32, most: u32, report: &mut Report) -> Option<u32> {
        let what = format!("a whole percentage from {least}% to {most}%");
        let text = self.text(&what, report)?;
        let within = |digits: &str| {
            let value = u32::try_from(parse_digits(digits)?).ok()?;
            (least..=most).contains(&value).then_some(value)
        };
        let value = text.strip_suffix('%').and_then(within);
        if value.is_some() {
            return value;
        }
        let problem = self.expected(&what, report);
        match text {
            "true" => problem.push_hint(format!("did you mean `{most}%`?")),
            "false" => problem.push_hint(format!("did you mean `{least}%`?")),
            _ if within(text).is_some() => problem.push_hint(format!("did you mean `{text}%`?")),
            _ => {}
        }
        None
    }
}

/// What a name has to be, or the name that was probably meant.
pub fn name_hint(text: &str, error: &NameError) -> String {
    let lower = text.to_ascii_lowercase().replace(' ', "-");
    match lower.parse::<Name>() {
        Ok(name) => format!("did you mean `{name}`? {error}"),
        Err(_) => error.to_string(),
    }
}

fn error_text(error: &dyn std::error::Error) -> String {
    error.to_string()
}
