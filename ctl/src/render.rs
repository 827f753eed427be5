//! How results look, apart from how they were fetched.

mod bar;
mod table;
mod words;

use serde::Serialize;

pub use bar::bar;
pub use table::Table;
pub use words::{age, ceil_seconds, duration};

use crate::{error::Error, exit::Exit};

/// What text is drawn on.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Columns; `None`: as many as it takes.
    pub width: Option<u16>,
    /// Whether more columns were asked for.
    pub wide: bool,
    /// Whether more than ASCII can be shown.
    pub unicode: bool,
}

/// A result: for programs what its serialization says, for people what `text` says.
pub trait View: Serialize {
    /// For people; ends with a newline unless empty.
    fn text(&self, page: Page) -> String;

    /// The names of what is shown, for `-o name`.
    fn names(&self) -> Vec<String>;
}

/// A result in YAML, in the same order as in JSON.
pub fn yaml(_view: &impl View) -> Result<String, Error> {
    Err(Error::new(Exit::Usage, "todo"))
}
