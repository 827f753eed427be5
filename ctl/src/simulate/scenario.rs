//! Scenarios, and reading them from documents.

use documents::{Field, Path, Report, Take};
use limits_file::edit::merge;
use policy::{Descriptor, Limit, Name, Node, Policy, Problems, Value, node_to_value};

use super::Backend;
use crate::bucket::insert_as_proxies;

const FILE_FIELDS: [&str; 2] = ["note", "scenarios"];
const SCENARIO_FIELDS: [&str; 5] = ["id", "group", "note", "limits", "steps"];

/// Limits, and what happens to them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What reports call it.
    pub id: String,
    /// The limits as they are at first.
    pub policy: Policy,
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// What answers the requests that pass.
    pub backend: Backend,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// A request is checked.
    Check(Request),
    /// A request has ended.
    Settle(Settle),
    /// From here on the limits are these.
    Edit(Policy),
    /// The client of an admitted request gives up; a queue that still holds it frees its slot.
    Leave {
        /// When, in milliseconds.
        t_ms: u64,
        /// The step of the request, counted from 0.
        step: usize,
    },
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// When, in milliseconds; may be earlier than the previous step.
    pub t_ms: u64,
    /// How many requests it stands for.
    pub cost: u64,
    /// Whether it is decided without a charge.
    pub peek: bool,
    /// What limits match on.
    pub descriptor: Descriptor,
    /// What its author expects of the answer.
    pub expect: Vec<Expected>,
}

/// The actual cost of a request, which replaces its reservation.
#[derive(Clone, Debug)]
pub struct Settle {
    /// When, in milliseconds.
    pub t_ms: u64,
    /// The step of the request, counted from 0.
    pub step: usize,
    /// What it cost, in units.
    pub cost: u64,
    /// What its author expects of the answer.
    pub expect: Vec<Expected>,
}

/// One field of an answer as its author expects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The field.
    pub field: String,
    /// Its value.
    pub value: Node,
}

/// Reads a scenario, a list of them, or `{"scenarios": […]}`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read(document: &Node) -> Result<Vec<Scenario>, Problems> {
    let mut report = Report::default();
    let scenarios = read_document(Field::root(document), &mut report);
    report.finish(Some(scenarios))
}

fn read_document(root: Field<'_>, report: &mut Report) -> Vec<Scenario> {
    if root.node.get("scenarios").is_none() {
        return match root.node.value {
            Value::List(_) => read_list(root, report),
            _ => read_scenario(root, report).into_iter().collect(),
        };
    }
    let Some(mut take) = Take::new(&root, report) else {
        return Vec::new();
    };
    take.field("note");
    let list = take.field("scenarios");
    take.finish(&FILE_FIELDS);
    list.map_or_else(Vec::new, |list| read_list(list, report))
}

fn read_list(list: Field<'_>, report: &mut Report) -> Vec<Scenario> {
    let items = items(&list, "a list of scenarios", report);
    items
        .into_iter()
        .filter_map(|item| read_scenario(item, report))
        .collect()
}

/// The items of a list, each with its path.
pub(crate) fn items<'n>(list: &'n Field<'n>, what: &str, report: &mut Report) -> Vec<Field<'n>> {
    let Value::List(nodes) = &list.node.value else {
        list.expected(what, report);
        return Vec::new();
    };
    let item = |(index, node)| list.item(index, node);
    nodes.iter().enumerate().map(item).collect()
}

fn read_scenario(scenario: Field<'_>, report: &mut Report) -> Option<Scenario> {
    let take = &mut Take::new(&scenario, report)?;
    let id = take
        .field("id")
        .and_then(|field| field.text("a name", take.report));
    take.field("group");
    take.field("note");
    let limits = take.field("limits");
    let steps = take.field("steps");
    take.finish(&SCENARIO_FIELDS);
    let (Some(limits), Some(steps)) = (limits, steps) else {
        scenario.report(report, "a scenario has `limits` and `steps`");
        return None;
    };
    let mut current: Vec<Node> = items(&limits, "a list of limits", report)
        .iter()
        .map(|f| f.node.clone())
        .collect();
    let policy = read_policy(&limits, &current, report)?;
    let steps = read_steps(&steps, policy.clone(), &mut current, report);
    Some(Scenario {
        id: id.unwrap_or("scenario").to_owned(),
        policy,
        steps,
        backend: Backend::default(),
    })
}

// --- The limits of a scenario, and edits of them.

/// The domain that a scenario's limits are read in.
const DOMAIN: &str = "simulation";

/// A leaky bucket's queue that names no `max_delay` is bounded by its capacity alone, as the worked scenarios
/// expect; the default of a limits file would cut it.
const UNBOUNDED_DELAY: &str = "2251799813685248ms";

/// The limits as they are after `{"set": {"name": …, changed fields}}`.
fn read_set(
    step: Field<'_>,
    before: &Policy,
    limits: &mut [Node],
    report: &mut Report,
) -> Option<Policy> {
    let mut take = Take::new(&step, report)?;
    let set = take.field("set");
    take.finish(&["set"]);
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
fn read_policy(from: &Field<'_>, limits: &[Node], report: &mut Report) -> Option<Policy> {
    let limits = limits.iter().map(|limit| {
        let mut limit = limit.clone();
        let queue = limit.get("over_limit").and_then(Node::as_text) == Some("queue");
        let holds_capacity = limit.get("algorithm").and_then(Node::as_text) == Some("leaky_bucket");
        if queue && holds_capacity && limit.get("max_delay").is_none() {
            limit.set("max_delay", Node::text(UNBOUNDED_DELAY));
        }
        limit
    });
    let document = Node::map([
        ("domain", Node::text(DOMAIN)),
        ("limits", Node::list(limits)),
    ]);
    match limits_file::policy_from_node(&document) {
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

// --- The steps of a scenario.

const STEP_FIELDS: [&str; 7] = [
    "t_ms",
    "cost",
    "peek",
    "descriptor",
    "expect",
    "note",
    "set",
];
const EXPECT_FIELDS: [&str; 8] = [
    "allowed",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "denied_by",
    "delay_ms",
    "given_back",
    "excess",
];

const LEAVE_FIELDS: [&str; 3] = ["t_ms", "leave", "note"];
const SETTLE_FIELDS: [&str; 5] = ["t_ms", "settle", "cost", "expect", "note"];

fn read_steps(
    steps: &Field<'_>,
    mut policy: Policy,
    limits: &mut [Node],
    report: &mut Report,
) -> Vec<Step> {
    let mut read = Vec::new();
    let all = items(steps, "a list of steps", report);
    let requests: Vec<bool> = all.iter().map(is_request).collect();
    for (at, step) in all.into_iter().enumerate() {
        if step.node.get("leave").is_some() {
            let before = requests.get(..at).unwrap_or_default();
            read.extend(read_leave(step, before, report));
        } else if step.node.get("settle").is_some() {
            let before = requests.get(..at).unwrap_or_default();
            read.extend(read_settle(step, before, report));
        } else if step.node.get("set").is_none() {
            read.extend(read_request(step, report).map(Step::Check));
        } else if let Some(edited) = read_set(step, &policy, limits, report) {
            policy = edited;
            read.push(Step::Edit(policy.clone()));
        }
    }
    read
}

fn is_request(step: &Field<'_>) -> bool {
    let other = ["set", "leave", "settle"];
    other.iter().all(|field| step.node.get(field).is_none())
}

/// Reads the fields of a step; those that are not `known` are reported.
fn read_fields<'p, T>(
    step: &'p Field<'p>,
    known: &[&str],
    report: &mut Report,
    read: impl FnOnce(&mut Take<'_, 'p>) -> T,
) -> Option<T> {
    let mut take = Take::new(step, report)?;
    let read = read(&mut take);
    take.finish(known);
    Some(read)
}

/// Reads `{"t_ms": …, "leave": step}`; `before` says which of the steps before are requests.
fn read_leave(step: Field<'_>, before: &[bool], report: &mut Report) -> Option<Step> {
    let (t_ms, left) = read_fields(&step, &LEAVE_FIELDS, report, |take| {
        let read = (take.integer("t_ms", 0), take.integer("leave", 0));
        take.field("note");
        read
    })?;
    if step.node.get("t_ms").is_none() {
        step.report(report, "a `leave` has `t_ms`");
    }
    let left = earlier("leave", left, &step, before, report);
    Some(Step::Leave {
        t_ms: t_ms?,
        step: left?,
    })
}

/// Reads `{"t_ms": …, "settle": step, "cost": units}`; `before` as of [`read_leave`].
fn read_settle(step: Field<'_>, before: &[bool], report: &mut Report) -> Option<Step> {
    let (t_ms, settled, cost, expect) = read_fields(&step, &SETTLE_FIELDS, report, |take| {
        take.field("note");
        (
            take.integer("t_ms", 0),
            take.integer("settle", 0),
            take.integer("cost", 0),
            take.field("expect"),
        )
    })?;
    for field in ["t_ms", "cost"] {
        if step.node.get(field).is_none() {
            step.report(report, format!("a `settle` has `{field}`"));
        }
    }
    let settled = earlier("settle", settled, &step, before, report);
    let expect = expect.map(|field| read_expect(field, report));
    Some(Step::Settle(Settle {
        t_ms: t_ms?,
        step: settled?,
        cost: cost?,
        expect: expect.unwrap_or_default(),
    }))
}

/// The step that a field names, if it is an earlier request.
fn earlier(
    name: &str,
    at: Option<u64>,
    step: &Field<'_>,
    before: &[bool],
    report: &mut Report,
) -> Option<usize> {
    let at = usize::try_from(at?).ok();
    let at = at.filter(|at| before.get(*at) == Some(&true));
    if at.is_none() {
        let message = format!("`{name}` names the step of an earlier request, counted from 0");
        step.report(report, message);
    }
    at
}

fn read_request(step: Field<'_>, report: &mut Report) -> Option<Request> {
    let mut peek = false;
    let (t_ms, cost, descriptor, expect) = read_fields(&step, &STEP_FIELDS, report, |take| {
        peek = take.boolean("peek").unwrap_or(false);
        take.field("note");
        (
            take.integer("t_ms", 0),
            take.integer("cost", 0),
            take.field("descriptor"),
            take.field("expect"),
        )
    })?;
    let descriptor = descriptor
        .map(|field| read_descriptor(field, report))
        .unwrap_or_default();
    let expect = expect
        .map(|field| read_expect(field, report))
        .unwrap_or_default();
    if step.node.get("t_ms").is_none() {
        step.report(report, "a step has `t_ms`, or is a `set`");
    }
    let cost_is_given = step.node.get("cost").is_some();
    Some(Request {
        t_ms: t_ms?,
        cost: cost.or((!cost_is_given).then_some(1))?,
        peek,
        descriptor,
        expect,
    })
}

fn read_descriptor(field: Field<'_>, report: &mut Report) -> Descriptor {
    let entries = field.entries("a map of entries, like {\"user\": \"alice\"}", report);
    let mut descriptor = Descriptor::new();
    for entry in entries.unwrap_or_default() {
        insert(&mut descriptor, &entry.key, &field.below(entry), report);
    }
    descriptor
}

/// Sets an entry of a request as its proxy sends it.
pub(crate) fn insert(
    descriptor: &mut Descriptor,
    key: &str,
    field: &Field<'_>,
    report: &mut Report,
) {
    let Some(value) = node_to_value(field.node) else {
        let problem = field.expected("the value of an entry", report);
        problem.push_hint("text, or {base64: …}; leave the entry out where a request has none");
        return;
    };
    let name = { key.parse::<Name>() }.map_err(|error| error.to_string());
    if let Err(why) = name.and_then(|name| insert_as_proxies(descriptor, name, &value)) {
        field.report(report, why);
    }
}

fn read_expect(field: Field<'_>, report: &mut Report) -> Vec<Expected> {
    let entries = field.entries("a map of fields of the answer", report);
    let mut expected = Vec::new();
    for entry in entries.unwrap_or_default() {
        if !EXPECT_FIELDS.contains(&entry.key.as_str()) {
            let path = Path::Field(&field.path, &entry.key);
            let problem = report.add(&path, entry.place, "no such field in an answer");
            problem.push_hint(format!("known fields: {}", EXPECT_FIELDS.join(", ")));
        }
        expected.push(Expected {
            field: entry.key.clone(),
            value: entry.value.clone(),
        });
    }
    expected
}
