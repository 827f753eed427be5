//! Results as text, in each output format.

mod bar;
pub mod changes;
pub mod limits;
mod pause;
mod table;
mod wrap;

use anstyle::{AnsiColor, Style};
use policy::{Node, Problems};
use serde::{Serialize, Serializer};

pub use bar::bar;
pub use insight::{age, ceil_seconds, counted, duration, truncated_list};
pub use pause::pause_state;
pub use table::Table;
pub use wrap::wrapped;

use crate::{error::Error, exit::Exit};

/// The page that text is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Columns; `None`: no limit.
    pub width: Option<u16>,
    /// Whether more columns were asked for.
    pub wide: bool,
    /// Whether more than ASCII can be shown.
    pub unicode: bool,
}

/// A result: serialized for programs, as `text` for people.
pub trait View: Serialize {
    /// For people; ends with a newline unless empty.
    fn text(&self, page: Page) -> String;

    /// The names of what is shown, for `-o name`.
    fn names(&self) -> Vec<String>;
}

/// Results of the same kind: one as it is, several as a list.
#[derive(Debug)]
pub struct OneOrMore<V>(pub Vec<V>);

impl<V> Default for OneOrMore<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Serialize> Serialize for OneOrMore<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            more => more.serialize(serializer),
        }
    }
}

impl<V: View> View for OneOrMore<V> {
    fn text(&self, page: Page) -> String {
        self.0.iter().map(|one| one.text(page)).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().flat_map(View::names).collect()
    }
}

/// A result in YAML, its fields in the same order as in JSON.
pub fn yaml_of(view: &impl View) -> Result<String, Error> {
    let unwritable =
        |error: serde_json::Error| Error::new(Exit::Refused, format!("cannot write YAML: {error}"));
    let json = serde_json::to_string(view).map_err(unwritable)?;
    let node: Node = serde_json::from_str(&json).map_err(unwritable)?;
    Ok(node.to_yaml())
}

/// The problems of a document, in the style of a compiler.
pub fn diagnostics(problems: &Problems) -> String {
    const ERROR: Style = AnsiColor::Red.on_default().bold();
    const WARNING: Style = AnsiColor::Yellow.on_default().bold();
    let colored = |line: &str| match line.split_once(": ") {
        Some(("error", message)) => format!("{ERROR}error{ERROR:#}: {message}\n"),
        Some(("warning", message)) => format!("{WARNING}warning{WARNING:#}: {message}\n"),
        _ => format!("{line}\n"),
    };
    problems.to_string().lines().map(colored).collect()
}
