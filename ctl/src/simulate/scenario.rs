//! Scenarios, and reading them from documents.

mod limits;
mod steps;

use documents::{Field, Fields, Form, Path, Report, Take};
use policy::{Descriptor, Node, Policy, Problems, Value};

use limits::read_policy;
use steps::read_steps;

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
