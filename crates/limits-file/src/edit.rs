//! Editing: a limit as a document, changed field by field, then read again as a whole.

use algorithms::{Align, Kind, WeekStart};
use documents::{Choice, Form, Node, Path, Problems, Report, Value, similar};

use policy::{Exemption, IfMissing, Limit, Names, OnFailure, OverLimit, Policy, Scope, Written};

use crate::{
    read::{IndexedLimit, LIMIT_FIELDS, LIMITS_MAX, check_references, policy_from_record_node},
    write::policy_record,
};

/// The words that a field of a limit takes; empty if it takes something else.
pub fn words_of(field: &str) -> Vec<&'static str> {
    fn all<T: Choice>() -> Vec<&'static str> {
        T::CHOICES.iter().map(|(word, _)| *word).collect()
    }
    match field {
        "algorithm" => all::<Written<Kind>>(),
        "align" => all::<Written<Align>>(),
        "if_missing" => all::<IfMissing>(),
        "on_failure" => all::<OnFailure>(),
        "over_limit" => all::<OverLimit>(),
        "scope" => all::<Scope>(),
        "week_start" => all::<Written<WeekStart>>(),
        _ => Vec::new(),
    }
}

/// Why a field cannot be edited in this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No such field.
    #[error("unknown field `{field}`{}", meant.as_ref().map_or(String::new(), |m| format!(", did you mean `{m}`?")))]
    UnknownField {
        /// The requested path.
        field: String,
        /// What was probably meant.
        meant: Option<&'static str>,
    },
    /// A field that is more than one value.
    #[error("`{field}` is not set as one text")]
    NotOneText {
        /// The field.
        field: String,
    },
}

/// Sets a field of a limit from text, as a command line gives it: `("rate", "10/s")`,
/// `("per", "user,path")`, `("hidden", "true")`, `("lease.ttl", "100ms")`,
/// `("match.path", "/api/**")`.
///
/// The text itself is validated when the limit is read.
///
/// # Errors
/// A field that does not exist, or that is not one text (`overrides`, `penalty`).
pub fn set_field(limit: &mut Node, field: &str, text: &str) -> Result<(), EditError> {
    let (outer, inner) = split(field)?;
    let value = match (outer, inner) {
        ("match", Some(_))
        | ("lease", Some("ttl"))
        | ("penalty", Some("after" | "within" | "for" | "grow" | "max")) => Node::text(text),
        ("lease", None) => Node::map([("ttl", Node::text(text))]),
        ("per" | "replaces" | "partition", None) => {
            let items = text.split(',').filter(|item| !item.is_empty());
            Node::list(items.map(|item| Node::text(item.trim())))
        }
        ("hidden" | "strict", None) => match text {
            "true" => true.into(),
            "false" => false.into(),
            other => Node::text(other),
        },
        ("match" | "overrides" | "penalty", None) | (_, Some(_)) => {
            return Err(EditError::NotOneText {
                field: field.to_owned(),
            });
        }
        _ => Node::text(text),
    };
    set(limit, outer, inner, value);
    Ok(())
}

/// Sets the patterns of one descriptor entry in a limit's `match`.
pub fn set_match(limit: &mut Node, key: &str, patterns: &[String]) {
    let value = match patterns {
        [only] => Node::text(only),
        many => Node::list(many.iter().map(Node::text)),
    };
    set(limit, "match", Some(key), value);
}

/// Resets a field of a limit to its default; returns whether it was set. Fields as in [`set_field`].
///
/// # Errors
/// A field that does not exist.
pub fn unset_field(limit: &mut Node, field: &str) -> Result<bool, EditError> {
    let (outer, inner) = split(field)?;
    let Some(inner) = inner else {
        return Ok(limit.unset(outer));
    };
    let Some(mut map) = limit.get(outer).cloned() else {
        return Ok(false);
    };
    let was_set = map.unset(inner);
    if map.value == Value::Map(Vec::new()) {
        limit.unset(outer);
    } else {
        limit.set(outer, map);
    }
    Ok(was_set)
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

fn split(field: &str) -> Result<(&str, Option<&str>), EditError> {
    let (outer, inner) = match field.split_once('.') {
        Some((outer, inner)) => (outer, Some(inner)),
        None => (field, None),
    };
    if LIMIT_FIELDS.contains(&outer) {
        return Ok((outer, inner));
    }
    Err(EditError::UnknownField {
        field: field.to_owned(),
        meant: similar(outer, &LIMIT_FIELDS),
    })
}

fn set(limit: &mut Node, outer: &str, inner: Option<&str>, value: Node) {
    match inner {
        None => limit.set(outer, value),
        Some(inner) => {
            let old = limit.get(outer).cloned();
            let mut map = old.unwrap_or_else(|| Node::map::<String>([]));
            map.set(inner, value);
            limit.set(outer, map);
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
    // Reads the list again, to check its bounds.
    policy_from_record_node(&policy_record(&changed))?;
    Ok(changed)
}

/// The policy, if its limits, each valid on its own, are so together.
///
/// # Errors
/// Too many of them, and what is wrong with what they say about each other.
pub fn checked(policy: Policy) -> Result<Policy, Problems> {
    let mut report = Report::new(Form::Record);
    let limits = Path::Field(&Path::Root, "limits");
    if policy.limits.len() > LIMITS_MAX {
        report.add(&limits, None, format!("more than {LIMITS_MAX} limits"));
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
    use crate::{ToNode as _, limit_from_node};

    fn limit(json: &str) -> Node {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn fields_are_set_and_unset_by_name() {
        let mut node = limit(r#"{"name":"a","rate":"1/s"}"#);
        for (field, text) in [
            ("rate", "10/s"),
            ("burst", "20"),
            ("per", "user,path"),
            ("hidden", "true"),
            ("match.path", "/api/**"),
            ("enforce", "5%"),
            ("penalty.after", "10"),
            ("penalty.within", "1m"),
            ("penalty.for", "15m"),
        ] {
            set_field(&mut node, field, text).unwrap();
        }
        set_match(&mut node, "method", &["GET".to_owned(), "PUT".to_owned()]);
        let read = limit_from_node(&node).unwrap();
        insta::assert_snapshot!(read.to_node().to_yaml(), @r#"
        name: a
        match: {path: "/api/**", method: [GET, PUT]}
        per: [user, path]
        algorithm: token_bucket
        rate: 10/s
        burst: 20
        penalty: {after: 10, within: 1m, for: 15m}
        enforce: 5%
        hidden: true
        "#);
        assert_eq!(unset_field(&mut node, "match.path"), Ok(true));
        assert_eq!(unset_field(&mut node, "match.method"), Ok(true));
        assert_eq!(unset_field(&mut node, "penalty"), Ok(true));
        assert_eq!(unset_field(&mut node, "burst"), Ok(true));
        assert_eq!(unset_field(&mut node, "burst"), Ok(false));
        assert_eq!(node.get("match"), None);
    }

    #[test]
    fn an_unknown_field_error_suggests_the_right_field() {
        let mut node = limit(r#"{"name":"a","rate":"1/s"}"#);
        let error = set_field(&mut node, "brust", "1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown field `brust`, did you mean `burst`?"
        );
        set_field(&mut node, "burst", "many").unwrap();
        let problems = limit_from_node(&node).unwrap_err();
        insta::assert_snapshot!(problems, @"error: limit `a`: burst: expected a whole number of at least 0, found `many`");
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
