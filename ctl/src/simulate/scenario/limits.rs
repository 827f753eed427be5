//! The limits of a scenario, and edits of them.

use documents::{Field, Fields, Report, Take};
use policy::{Limit, Node, Policy, edit::merge};

/// The domain that a scenario's limits are read in.
const DOMAIN: &str = "simulation";

/// A queue that names no `max_delay` is bounded by its capacity alone, as the worked scenarios
/// expect; the default of a limits file would cut it.
const UNBOUNDED_DELAY: &str = "2251799813685248ms";

/// The limits as they are after `{"set": {"name": …, changed fields}}`.
pub(super) fn read_set(
    step: Field<'_>,
    before: &Policy,
    limits: &mut [Node],
    report: &mut Report,
) -> Option<Policy> {
    let path = step.path;
    let mut fields = Fields::of(step, report)?;
    let set = Take {
        fields: &mut fields,
        path: &path,
        report,
    }
    .field("set");
    fields.finish(&path, &["set"], report);
    let set = set?;
    let name = set.node.get("name").and_then(Node::as_text);
    let named = |limit: &&mut Node| limit.get("name").and_then(Node::as_text) == name;
    let Some(limit) = limits.iter_mut().find(named) else {
        set.report(
            report,
            "`set` names a limit of the scenario, like {\"name\": …, \"rate\": …}",
        );
        return None;
    };
    merge(limit, set.node);
    let mut after = read_policy(&set, limits, report)?;
    for (limit, old) in after.limits.iter_mut().zip(&before.limits) {
        let edited = Some(limit.name.as_str()) == name;
        limit.generation = old.generation + u64::from(edited);
    }
    Some(after)
}

/// Reads limits as a limits file would be read; problems are reported at `from`.
pub(super) fn read_policy(
    from: &Field<'_>,
    limits: &[Node],
    report: &mut Report,
) -> Option<Policy> {
    let limits = limits.iter().map(|limit| {
        let mut limit = limit.clone();
        let queue = limit.get("over_limit").and_then(Node::as_text) == Some("queue");
        if queue && limit.get("max_delay").is_none() {
            limit.set("max_delay", Node::text(UNBOUNDED_DELAY));
        }
        limit
    });
    let document = Node::map([
        ("domain", Node::text(DOMAIN)),
        ("limits", Node::list(limits)),
    ]);
    match Policy::from_node(&document) {
        Ok(mut policy) => {
            policy
                .limits
                .iter_mut()
                .for_each(|limit: &mut Limit| limit.generation = 1);
            Some(policy)
        }
        Err(problems) => {
            for problem in problems.iter() {
                let noted = from.report(report, problem.message.clone());
                noted.path = format!("{} ({})", noted.path, problem.path);
                noted.limit.clone_from(&problem.limit);
                noted.hint.clone_from(&problem.hint);
            }
            None
        }
    }
}
