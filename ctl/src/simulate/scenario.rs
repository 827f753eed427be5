//! Scenarios as documents.

use policy::{
    Descriptor, Limit, Name, Node, Policy, Problems, Value,
    edit::merge,
    read::{Field, Fields, Form, Path, Report, Take},
};

/// The domain that a scenario's limits are read in.
const DOMAIN: &str = "simulation";

/// A queue that names no `max_delay` is bounded by its capacity alone, as the worked scenarios
/// expect; the default of a limits file would cut it.
const UNBOUNDED_DELAY: &str = "2251799813685248ms";

const FILE_FIELDS: [&str; 2] = ["note", "scenarios"];
const SCENARIO_FIELDS: [&str; 5] = ["id", "group", "note", "limits", "steps"];
const STEP_FIELDS: [&str; 7] = [
    "t_ms",
    "cost",
    "peek",
    "descriptor",
    "expect",
    "note",
    "set",
];
const EXPECT_FIELDS: [&str; 6] = [
    "allowed",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "denied_by",
    "delay_ms",
];

const LEAVE_FIELDS: [&str; 3] = ["t_ms", "leave", "note"];

/// Limits, and what happens to them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What reports call it.
    pub id: String,
    /// The limits as they are at first.
    pub policy: Policy,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// A request is checked.
    Check(Request),
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
    /// When, in milliseconds; may be before the step before.
    pub t_ms: u64,
    /// How many requests it stands for.
    pub cost: u64,
    /// Whether it only asks.
    pub peek: bool,
    /// What limits match on.
    pub descriptor: Descriptor,
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
    let mut report = Report::new(Form::File);
    let root = Field {
        node: document,
        path: Path::Root,
    };
    let scenarios = read_document(root, &mut report);
    report.finish(Some(scenarios))
}

fn read_document(root: Field<'_>, report: &mut Report) -> Vec<Scenario> {
    if root.node.get("scenarios").is_none() {
        return match root.node.value {
            Value::List(_) => read_list(root, report),
            _ => read_scenario(root, report).into_iter().collect(),
        };
    }
    let Some(mut fields) = Fields::of(root, report) else {
        return Vec::new();
    };
    let take = &mut Take {
        fields: &mut fields,
        path: &Path::Root,
        report,
    };
    take.field("note");
    let list = take.field("scenarios");
    fields.finish(&Path::Root, &FILE_FIELDS, report);
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
fn items<'n>(list: &'n Field<'n>, what: &str, report: &mut Report) -> Vec<Field<'n>> {
    let Value::List(nodes) = &list.node.value else {
        list.expected(what, report);
        return Vec::new();
    };
    let item = |(index, node)| Field {
        node,
        path: Path::Item(&list.path, index),
    };
    nodes.iter().enumerate().map(item).collect()
}

fn read_scenario(scenario: Field<'_>, report: &mut Report) -> Option<Scenario> {
    let path = scenario.path;
    let mut fields = Fields::of(scenario, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &path,
        report,
    };
    let id = take
        .field("id")
        .and_then(|field| field.text("a name", take.report));
    take.field("group");
    take.field("note");
    let limits = take.field("limits");
    let steps = take.field("steps");
    fields.finish(&path, &SCENARIO_FIELDS, report);
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
    })
}

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
    step.node.get("set").is_none() && step.node.get("leave").is_none()
}

/// Reads `{"t_ms": …, "leave": step}`; `before` says which of the steps before are requests.
fn read_leave(step: Field<'_>, before: &[bool], report: &mut Report) -> Option<Step> {
    let path = step.path;
    let mut fields = Fields::of(step, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &path,
        report,
    };
    let t_ms = take.integer("t_ms", 0);
    let left = take.integer("leave", 0);
    take.field("note");
    fields.finish(&path, &LEAVE_FIELDS, report);
    if step.node.get("t_ms").is_none() {
        step.report(report, "a `leave` has `t_ms`");
    }
    let left = usize::try_from(left?).ok();
    let left = left.filter(|at| before.get(*at) == Some(&true));
    if left.is_none() {
        step.report(
            report,
            "`leave` names the step of an earlier request, counted from 0",
        );
    }
    Some(Step::Leave {
        t_ms: t_ms?,
        step: left?,
    })
}

/// The limits as they are after `{"set": {"name": …, changed fields}}`.
fn read_set(
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

/// Reads limits as a limits file would be; what is wrong with them is reported where they come
/// from.
fn read_policy(from: &Field<'_>, limits: &[Node], report: &mut Report) -> Option<Policy> {
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

fn read_request(step: Field<'_>, report: &mut Report) -> Option<Request> {
    let path = step.path;
    let mut fields = Fields::of(step, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &path,
        report,
    };
    let t_ms = take.integer("t_ms", 0);
    let cost = take.integer("cost", 0);
    let peek = take.boolean("peek").unwrap_or(false);
    let descriptor = take.field("descriptor");
    let expect = take.field("expect");
    take.field("note");
    fields.finish(&path, &STEP_FIELDS, report);
    let descriptor = descriptor
        .map(|field| read_descriptor(field, report))
        .unwrap_or_default();
    let expect = expect
        .map(|field| read_expect(field, report))
        .unwrap_or_default();
    if step.node.get("t_ms").is_none() {
        step.report(report, "a step has `t_ms`, or is a `set`");
    }
    let cost = if step.node.get("cost").is_none() {
        Some(1)
    } else {
        cost
    };
    Some(Request {
        t_ms: t_ms?,
        cost: cost?,
        peek,
        descriptor,
        expect,
    })
}

fn read_descriptor(field: Field<'_>, report: &mut Report) -> Descriptor {
    let entries = field.entries("a map of entries, like {\"user\": \"alice\"}", report);
    let mut descriptor = Descriptor::new();
    for entry in entries.unwrap_or_default() {
        let path = Path::Field(&field.path, &entry.key);
        let value = Field {
            node: &entry.value,
            path,
        };
        match entry.key.parse::<Name>() {
            Ok(name) => {
                if let Some(text) = value.text("text", report) {
                    descriptor.insert(name, text.as_bytes());
                }
            }
            Err(error) => {
                value.report(report, error.to_string());
            }
        }
    }
    descriptor
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
