//! A domain's limits as they are stored: one JSON document. Overrides and generations are stored
//! separately, so that changing them does not rewrite the document.

use std::collections::BTreeMap;

use policy::{Exemption, Limit, Name, Node, Override, Policy, Revision, Value, node_to_value};

use crate::InvalidRecord;

/// The document of a policy: what its author wrote, without overrides.
pub fn limits_json(policy: &Policy) -> String {
    let domain = json(&Node::text(policy.domain.as_str()));
    let mut text = format!(
        r#"{{"domain":{domain},"limits":{}"#,
        limits_list(&policy.limits)
    );
    if let Some(paused) = policy.paused {
        text.push_str(r#","paused":"#);
        text.push_str(&json(&paused.to_node()));
    }
    if !policy.exempt.is_empty() {
        text.push_str(r#","exempt":"#);
        text.push_str(&json(&Exemption::list_node(&policy.exempt)));
    }
    text.push('}');
    text
}

/// Limits without overrides as a list, written one by one: the trees of 10,000 limits take some ten
/// megabytes.
pub(crate) fn limits_list<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> String {
    let mut text = String::from("[");
    for limit in limits {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&json(&limit.to_node_without_overrides()));
    }
    text.push(']');
    text
}

/// One override as JSON.
pub fn override_json(per: &[Name], found: &Override) -> String {
    json(&found.to_node(per))
}

/// An override as it is stored.
pub fn read_override(limit: &Limit, json: &str) -> Result<Override, InvalidRecord> {
    let name = &limit.name;
    let node: Node = serde_json::from_str(json)
        .map_err(|e| InvalidRecord(format!("an override of {name} is not JSON: {e}")))?;
    let invalid = |problems| InvalidRecord(format!("an override of {name}: {problems}"));
    limit.read_override(&node).map_err(invalid)
}

/// The bucket that an override is for, its values in the order of `per`; `None` if it is not an
/// override of a limit with these entries, and no others.
pub fn override_values(node: &Node, per: &[Name]) -> Option<Vec<Option<Vec<u8>>>> {
    let Value::Map(values) = &node.get("values")?.value else {
        return None;
    };
    let value = |name: &Name| {
        let entry = values.iter().find(|entry| entry.key == name.as_str())?;
        match entry.value.value {
            Value::Null => Some(None),
            _ => node_to_value(&entry.value).map(Some),
        }
    };
    (values.len() == per.len()).then(|| per.iter().map(value).collect())?
}

/// A document as JSON, which cannot fail: its keys are texts.
pub fn json(node: &Node) -> String {
    serde_json::to_string(node).unwrap_or_default()
}

/// A stored document that has not been validated yet.
#[derive(Default)]
pub struct Document {
    domain: Option<Node>,
    paused: Option<Node>,
    exempt: Option<Node>,
    limits: Vec<Node>,
}

impl Document {
    /// Reads a stored document.
    pub fn parse(text: &str) -> Result<Self, InvalidRecord> {
        let node: Node = serde_json::from_str(text)
            .map_err(|e| InvalidRecord(format!("limits that are not JSON: {e}")))?;
        let mut document = Self::default();
        let Value::Map(entries) = node.value else {
            return Ok(document);
        };
        for entry in entries {
            match (entry.key.as_str(), entry.value.value) {
                // Moved: the trees of 10,000 limits take some ten megabytes.
                ("limits", Value::List(limits)) => document.limits = limits,
                ("domain", value) => document.domain = Some(value.into()),
                ("paused", value) => document.paused = Some(value.into()),
                ("exempt", value) => document.exempt = Some(value.into()),
                _ => {}
            }
        }
        Ok(document)
    }

    /// Validates the whole. `generations` are the last edit that changed all limits, 0 if none is known,
    /// and those of single ones. A limit without a generation gets the record's revision, the newest
    /// edit that can have made it; one without a reset was never reset.
    pub fn into_policy(
        mut self,
        domain: &Name,
        revision: Revision,
        (base, generations): (u64, &BTreeMap<String, u64>),
        resets: &BTreeMap<String, u64>,
    ) -> Result<Policy, InvalidRecord> {
        for limit in &mut self.limits {
            let name = limit
                .get("name")
                .and_then(Node::as_text)
                .unwrap_or_default();
            let generation = match generations.get(name) {
                Some(own) => base.max(*own),
                None if base > 0 => base,
                None => revision.number,
            };
            limit.set("generation", Node::number(generation));
        }
        let mut node = Node::map([
            ("domain", self.domain.unwrap_or_else(|| Node::text(""))),
            ("limits", Node::list(self.limits)),
        ]);
        if let Some(paused) = self.paused {
            node.set("paused", paused);
        }
        if let Some(exempt) = self.exempt {
            node.set("exempt", exempt);
        }
        let invalid = |problems| InvalidRecord(format!("the limits of {domain}: {problems}"));
        let mut policy = Policy::from_record_node(&node).map_err(invalid)?;
        if policy.domain != *domain {
            return Err(InvalidRecord(format!(
                "the record of {domain} holds the limits of {}",
                policy.domain
            )));
        }
        for limit in &mut policy.limits {
            let reset = resets.get(limit.name.as_str());
            limit.reset_generation = reset.copied().unwrap_or(0);
        }
        policy.revision = revision;
        Ok(policy)
    }
}
