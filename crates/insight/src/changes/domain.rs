//! The changes of the domain's own fields: its pause and its exemptions.

use policy::{Exemption, Name, Pause, Policy};

use super::FieldChange;

/// How two policies differ in the domain's own fields.
pub fn of_domain(before: Option<&Policy>, after: &Policy) -> Vec<FieldChange> {
    let exempt = before.map_or(&[][..], |before| &before.exempt);
    let before = before.and_then(|before| before.paused);
    let paused = (before != after.paused).then_some([before, after.paused]);
    domain_fields(paused, exempt, &after.exempt)
}

/// The changes of a pause, before and after, and of each exemption.
pub(crate) fn domain_fields(
    paused: Option<[Option<Pause>; 2]>,
    before: &[Exemption],
    after: &[Exemption],
) -> Vec<FieldChange> {
    let paused = paused.map(|[before, after]| FieldChange {
        field: "paused".to_owned(),
        before: before.map(Pause::to_node),
        after: after.map(Pause::to_node),
    });
    let of = |list: &[Exemption], name: &Name| {
        let found = list.iter().find(|exemption| exemption.name == *name);
        found.and_then(|exemption| exemption.to_node().get("match").cloned())
    };
    let gone = before.iter().map(|exemption| &exemption.name);
    let gone = gone.filter(|name| of(after, name).is_none());
    let names = after.iter().map(|exemption| &exemption.name).chain(gone);
    let exempt = names.map(|name| FieldChange {
        field: format!("{EXEMPT}{name}"),
        before: of(before, name),
        after: of(after, name),
    });
    let exempt = exempt.filter(|change| change.before != change.after);
    paused.into_iter().chain(exempt).collect()
}

/// The prefix of an exemption's field in a domain; its name follows.
pub(crate) const EXEMPT: &str = "exempt.";
