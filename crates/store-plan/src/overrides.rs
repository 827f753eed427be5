//! Overrides apart from the limits they belong to: there may be a hundred thousand.

use std::collections::BTreeMap;

use policy::{Limit, Name, Node, Override};

use crate::record;

/// An override that does not fit its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOverride {
    /// As stored.
    pub json: String,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

impl InvalidOverride {
    /// The bucket it is for, if that much can be read.
    pub fn values(&self, per: &[Name]) -> Option<Vec<Option<Vec<u8>>>> {
        record::override_values(&serde_json::from_str(&self.json).ok()?, per)
    }

    /// Reads an override of a limit as it is stored.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(limit: &Limit, json: String) -> Result<Override, Self> {
        let node: Node = match serde_json::from_str(&json) {
            Ok(node) => node,
            Err(error) => {
                let problems = vec![format!("not JSON: {error}")];
                return Err(Self { json, problems });
            }
        };
        limit.read_override(&node).map_err(|problems| {
            let problems = problems.iter();
            let problems = problems.map(|problem| match problem.path.as_str() {
                "" => problem.message.clone(),
                path => format!("{path}: {}", problem.message),
            });
            Self {
                json,
                problems: problems.collect(),
            }
        })
    }
}

/// What an edit does to overrides, limit by limit. Limits that are not in it keep theirs.
pub type OverrideEdits = BTreeMap<Name, OverrideEdit>;

/// What an edit does to the overrides of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideEdit {
    /// The overrides that change or go, as they are. `None`: too many to list; the history then
    /// lists none either, and the edit cannot be rolled back.
    pub before: Option<Vec<Override>>,
    /// The overrides that change or come, as they will be.
    pub after: Vec<Override>,
    /// Whether the limit lists all overrides that it will have. If not, those in neither list above
    /// stay.
    pub listed: bool,
}

impl OverrideEdit {
    /// Deletes all of them.
    pub fn clear(before: Option<Vec<Override>>) -> Self {
        Self {
            before,
            after: Vec::new(),
            listed: true,
        }
    }
}
