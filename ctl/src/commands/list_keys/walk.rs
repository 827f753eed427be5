//! Walking over the keys of a server, a page at a time.

use std::fmt::Write as _;

use policy::{Name, Policy};
use store::Cursor;

use super::{ListKeys, Row};
use crate::{
    args::Format,
    dedup::KeyDedup,
    error::Error,
    exit::Exit,
    render::{Page, counted},
    session::Session,
};

/// One scan, and what it looks for.
pub struct Walk<'w> {
    pub wanted: &'w ListKeys,
    pub session: &'w Session<'w>,
    pub policy: &'w Policy,
    pub limit: Option<&'w Name>,
}

impl Walk<'_> {
    /// Passes every page to `each` until that returns false.
    pub async fn pages(
        &self,
        mut each: impl FnMut(Vec<Row>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self
                .session
                .store
                .list(&self.policy.domain, self.limit, from)
                .await;
            let page = page.map_err(|error| self.session.failed(&error))?;
            let rows = page
                .buckets
                .into_iter()
                .map(|bucket| Row::new(self.policy, bucket));
            if !each(rows.filter(|row| self.wanted.wanted(row)).collect())? {
                break;
            }
            cursor = page.next;
        }
        Ok(())
    }

    /// Prints every bucket as it is found, so that a million of them need no memory.
    pub async fn stream(&self) -> Result<Exit, Error> {
        let printer = self.session.printer;
        let format = printer.format();
        let mut lines = Lines::new(format, self.policy, printer.page());
        let mut seen = KeyDedup::default();
        printer.raw(&lines.head())?;
        let walk = self.pages(|page| {
            let new: Vec<Row> = page
                .into_iter()
                .filter(|row| seen.insert(&row.redis_key))
                .collect();
            printer.raw(&lines.page(&new)?)?;
            Ok(!printer.is_closed())
        });
        self.session.with_progress(walk).await?;
        printer.raw(&lines.end())?;
        let count = usize::try_from(seen.distinct()).unwrap_or(usize::MAX);
        printer.note(counted(count, "bucket"));
        Ok(Exit::Done)
    }
}

/// The parts of a long list, as each format writes them.
struct Lines {
    format: Format,
    /// The length of the longest limit name.
    width: usize,
    wide: bool,
    first: bool,
}

impl Lines {
    fn new(format: Format, policy: &Policy, page: Page) -> Self {
        let names = policy.limits.iter().map(|limit| limit.name.as_str().len());
        Self {
            format,
            width: names.max().unwrap_or(0).max("LIMIT".len()),
            wide: page.wide,
            first: true,
        }
    }

    fn head(&self) -> String {
        match self.format {
            Format::Json => "{\n  \"truncated\": false,\n  \"keys\": [".to_owned(),
            Format::Yaml => "truncated: false\n".to_owned(),
            Format::Name => String::new(),
            _ if self.wide => format!("{:1$}  BUCKET  KEY\n", "LIMIT", self.width),
            _ => format!("{:1$}  BUCKET\n", "LIMIT", self.width),
        }
    }

    fn page(&mut self, rows: &[Row]) -> Result<String, Error> {
        let mut text = String::new();
        for row in rows {
            let first = std::mem::replace(&mut self.first, false);
            match self.format {
                Format::Json | Format::Yaml => {
                    let json = serde_json::to_string(row).map_err(|error| {
                        Error::new(Exit::Refused, format!("cannot write JSON: {error}"))
                    })?;
                    let _ = match (self.format, first) {
                        // JSON is YAML.
                        (Format::Yaml, true) => writeln!(text, "keys:\n  - {json}"),
                        (Format::Yaml, false) => writeln!(text, "  - {json}"),
                        (_, true) => write!(text, "\n    {json}"),
                        (_, false) => write!(text, ",\n    {json}"),
                    };
                }
                Format::Name => {
                    let _ = writeln!(text, "{}", row.redis_key);
                }
                _ => {
                    let (limit, shown) = (&row.limit, &row.shown);
                    let _ = write!(text, "{limit:0$}  {shown}", self.width);
                    let _ = if self.wide {
                        writeln!(text, "  {}", row.redis_key)
                    } else {
                        writeln!(text)
                    };
                }
            }
        }
        Ok(text)
    }

    fn end(&self) -> String {
        match (self.format, self.first) {
            (Format::Json, true) => "]\n}\n".to_owned(),
            (Format::Yaml, true) => "keys: []\n".to_owned(),
            (Format::Json, false) => "\n  ]\n}\n".to_owned(),
            _ => String::new(),
        }
    }
}
