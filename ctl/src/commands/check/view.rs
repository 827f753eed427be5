//! A decision, limit by limit.

use anstyle::{AnsiColor, Style};
use policy::{Compiled, IfMissing, Name};
use protocol::{Answer, LimitAnswer, Mode, json};
use serde::{Serialize, Serializer};

use crate::{
    bucket,
    render::{Page, Table, View, duration},
};

const ALLOWED: Style = AnsiColor::Green.on_default().bold();
const DENIED: Style = AnsiColor::Red.on_default().bold();
const HEADERS: [&str; 8] = [
    "LIMIT", "BUCKET", "DECISION", "LEFT", "CHARGED", "WAIT", "RETRY IN", "FULL IN",
];

/// An answer, and the limits that gave it.
#[derive(Debug)]
pub struct Report {
    pub answer: Answer,
    pub policy: Compiled,
    /// Whether the check could not have charged anything.
    pub peek: bool,
}

/// In the form of the limiter's HTTP API.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::Reply::new(&self.answer, &self.policy).serialize(serializer)
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut text = self.verdict();
        if self.answer.limits.is_empty() {
            return text;
        }
        let mut table = Table::new(HEADERS);
        for limit in &self.answer.limits {
            table.row(self.row(limit));
        }
        text.push_str(&table.draw(page));
        text
    }

    /// The limits that deny it.
    fn names(&self) -> Vec<String> {
        self.answer
            .summary()
            .denied_by
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

impl Report {
    fn verdict(&self) -> String {
        let would = if self.peek { "would be " } else { "" };
        let summary = self.answer.summary();
        if self.answer.allowed {
            let how = match (self.answer.limits.is_empty(), summary.delay_ms) {
                (true, _) => ": no limit matches".to_owned(),
                (false, 0) => String::new(),
                (false, ms) => format!(" after a wait of {}", duration(ms)),
            };
            return format!("{would}{ALLOWED}allowed{ALLOWED:#}{how}\n");
        }
        let denied = self
            .answer
            .limits
            .iter()
            .filter(|limit| summary.denied_by.contains(&&limit.name));
        let by: Vec<String> = denied
            .map(|limit| match self.missing(limit) {
                Some(key) => format!("{} (the request has no {key})", limit.name),
                None => limit.name.to_string(),
            })
            .collect();
        let again = match summary.retry_after_ms {
            Some(ms) => format!("try again in {}", duration(ms)),
            None => "it can never pass".to_owned(),
        };
        format!(
            "{would}{DENIED}denied{DENIED:#} by {}; {again}\n",
            by.join(", ")
        )
    }

    fn row(&self, limit: &LimitAnswer) -> [String; HEADERS.len()] {
        let (names, values): (Vec<_>, Vec<_>) = limit.bucket.iter().cloned().unzip();
        let missing = self.missing(limit).is_some();
        let decision = match (limit.allowed, limit.mode) {
            (true, _) if limit.limit.is_none() => "unlimited",
            (true, _) => "allows",
            (false, Mode::Shadow) => "would deny",
            (false, Mode::Degrade) => "degrades",
            (false, Mode::Enforce) => "denies",
        };
        let again = match (limit.allowed, limit.retry_after_ms) {
            (true, _) => String::new(),
            (false, Some(ms)) => duration(ms),
            (false, None) => "never".to_owned(),
        };
        let wait = Some(limit.delay_ms).filter(|ms| *ms > 0);
        let quota = limit.limit.filter(|_| !missing);
        [
            limit.name.to_string(),
            bucket::display(&names, &values),
            decision.to_owned(),
            quota
                .map(|quota| format!("{} of {quota}", limit.remaining))
                .unwrap_or_default(),
            if self.peek {
                String::new()
            } else {
                limit.charged.to_string()
            },
            wait.map(duration).unwrap_or_default(),
            again,
            quota
                .map(|_| duration(limit.reset_after_ms))
                .unwrap_or_default(),
        ]
    }

    /// The entry that the request lacks and without which the limit denies.
    fn missing<'a>(&self, limit: &'a LimitAnswer) -> Option<&'a Name> {
        let index = self.policy.position(limit.name.as_str())?;
        let denies = self.policy.limit(index)?.if_missing == IfMissing::Deny;
        let missing = limit.bucket.iter().find(|(_, value)| value.is_none())?;
        denies.then_some(&missing.0)
    }
}
