//! Editing: a limit as a document, changed field by field, then read again as a whole.

use algorithms::{Align, Kind, WeekStart};
use documents::{Choice, Node, Path, Problems, Report, Value};

use policy::{ChoiceOf, Exemption, IfMissing, Limit, Names, OnFailure, OverLimit, Policy, Scope};

use crate::read::{IndexedLimit, LIMITS_MAX, MAX_EXEMPTIONS, check_references};

/// The words that a field of a limit takes; empty if it takes something else.
pub fn words_of(field: &str) -> Vec<&'static str> {
    fn all<T: Choice>() -> Vec<&'static str> {
        T::CHOICES.iter().map(|(word, _)| *word).collect()
    }
    match field {
        "algorithm" => all::<ChoiceOf<Kind>>(),
        "align" => all::<ChoiceOf<Align>>(),
        "if_missing" => all::<IfMissing>(),
        "on_failure" => all::<OnFailure>(),
        "over_limit" => all::<OverLimit>(),
        "scope" => all::<Scope>(),
        "week_start" => all::<ChoiceOf<WeekStart>>(),
        _ => Vec::new(),
    }
}

/// Applies `changes`, a map of fields, to a limit: given fields replace, `null` unsets.
pub fn merge(limit: &mut Node, changes: &Node) {
    let Value::Map(entries) = &changes.value else {
        return;
    };
    for entry in entries {
        if entry.value.value == Value::Null {
            limit.unset(&entry.key);
        } else {
            limit.set(&entry.key, entry.value.clone());
        }
    }
}

/// The policy with a limit added, or put in the place of the one of its name.
///
/// # Errors
/// What is wrong with the resulting policy as a whole, such as a cycle of `replaces`.
pub fn with_limit(policy: &Policy, limit: Limit) -> Result<Policy, Problems> {
    let mut changed = policy.clone();
    match changed.limits.iter_mut().find(|l| l.name == limit.name) {
        Some(old) => *old = limit,
        None => changed.limits.push(limit),
    }
    checked(changed)
}

/// The policy without the limit of that name, if there was one.
///
/// # Errors
/// What is wrong with the resulting policy as a whole: another limit `replaces` it.
pub fn without_limit(policy: &Policy, name: &str) -> Result<Policy, Problems> {
    let mut changed = policy.clone();
    changed.limits.retain(|limit| limit.name.as_str() != name);
    checked(changed)
}

/// Whether a limit that takes another's place leaves what limits say about each other as it is: the policy is
/// valid with one if it is with the other.
pub fn refers_alike(old: &Limit, new: &Limit) -> bool {
    old.name == new.name
        && old.replaces == new.replaces
        && old.descriptor == new.descriptor
        && old.keys().eq(new.keys())
}

/// The policy with an exemption added, or put in the place of the one of its name.
///
/// # Errors
/// What is wrong with the resulting policy as a whole, such as too many descriptor entries.
pub fn with_exemption(policy: &Policy, exemption: Exemption) -> Result<Policy, Problems> {
    let mut changed = policy.clone();
    let exempt = &mut changed.exempt;
    match exempt.iter_mut().find(|old| old.name == exemption.name) {
        Some(old) => *old = exemption,
        None => exempt.push(exemption),
    }
    checked(changed)
}

/// The policy, if its limits and exemptions, each valid on its own, are so together.
///
/// # Errors
/// Too many of them, and what is wrong with what they say about each other.
pub fn checked(policy: Policy) -> Result<Policy, Problems> {
    let mut report = Report::default();
    let limits = Path::Field(&Path::Root, "limits");
    if policy.limits.len() > LIMITS_MAX {
        report.add(&limits, None, format!("more than {LIMITS_MAX} limits"));
    }
    if policy.exempt.len() > MAX_EXEMPTIONS {
        let exempt = Path::Field(&Path::Root, "exempt");
        report.add(
            &exempt,
            None,
            format!("more than {MAX_EXEMPTIONS} exemptions"),
        );
    }
    let placed: Vec<IndexedLimit<'_>> = policy
        .limits
        .iter()
        .enumerate()
        .map(|(index, limit)| IndexedLimit {
            index,
            node: None,
            limit,
        })
        .collect();
    let mut names = Names::default();
    for limit in &policy.limits {
        names.add(limit.name.as_str());
    }
    check_references((&placed, &policy.exempt), &names, &limits, &mut report);
    report.finish(Some(policy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit_from_node;

    fn limit(json: &str) -> Node {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn changes_are_merged() {
        let mut node = limit(r#"{"name":"a","rate":"1/s","burst":5}"#);
        merge(
            &mut node,
            &limit(r#"{"name":"a","rate":"2/s","burst":null}"#),
        );
        assert_eq!(node, limit(r#"{"name":"a","rate":"2/s"}"#));
    }

    #[test]
    fn a_policy_is_checked_after_every_edit() {
        let policy = Policy::empty("shop".parse().unwrap());
        let read = |json| limit_from_node(&limit(json)).unwrap();
        let policy = with_limit(&policy, read(r#"{"name":"a","rate":"1/s"}"#)).unwrap();
        let b = read(r#"{"name":"b","rate":"1/s","replaces":["a"]}"#);
        let policy = with_limit(&policy, b).unwrap();
        let cycle = read(r#"{"name":"a","rate":"1/s","replaces":["b"]}"#);
        let problems = with_limit(&policy, cycle).unwrap_err().to_string();
        assert!(problems.contains("a cycle: a → b → a"), "{problems}");
        let problems = without_limit(&policy, "a").unwrap_err().to_string();
        assert!(problems.contains("there is no limit `a`"), "{problems}");
        assert_eq!(without_limit(&policy, "b").unwrap().limits.len(), 1);
    }
}
