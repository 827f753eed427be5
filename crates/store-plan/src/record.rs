//! A domain's limits as they are stored: one JSON document. Overrides and generations are stored
//! separately, so that changing them does not rewrite the document.

use std::collections::BTreeMap;

use policy::{Exemption, Limit, Name, Node, Override, Policy, Revision, Value, node_to_value};

use crate::InvalidRecord;

/// The document of a policy: what its author wrote, without overrides.
pub fn limits_json(policy: &Policy) -> String {
    let limits = policy.limits.iter().map(Limit::to_node_without_overrides);
    let mut document = Node::map([
        ("domain", Node::text(policy.domain.as_str())),
        ("limits", Node::list(limits)),
    ]);
    if let Some(paused) = policy.paused {
        document.set("paused", paused.to_node());
    }
    if !policy.exempt.is_empty() {
        document.set("exempt", Exemption::list_node(&policy.exempt));
    }
    json(&document)
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
        let limits = node.get("limits").map(|limits| limits.items().to_vec());
        Ok(Self {
            domain: node.get("domain").cloned(),
            paused: node.get("paused").cloned(),
            exempt: node.get("exempt").cloned(),
            limits: limits.unwrap_or_default(),
        })
    }

    /// Validates the whole. A limit without a generation gets the record's revision, the newest
    /// edit that can have made it; one without a reset was never reset.
    pub fn into_policy(
        mut self,
        domain: &Name,
        revision: Revision,
        generations: &BTreeMap<String, u64>,
        resets: &BTreeMap<String, u64>,
    ) -> Result<Policy, InvalidRecord> {
        for limit in &mut self.limits {
            let name = limit
                .get("name")
                .and_then(Node::as_text)
                .unwrap_or_default();
            let generation = generations.get(name).copied().unwrap_or(revision.number);
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
