//! Cases: requests at given times, and the decision that each expects of a limits file.
//!
//! [`read`] turns a `*.test.yaml` into [`Case`]s, or reports everything that is wrong with it;
//! [`Case::run`] decides the requests of one and returns the first [`Difference`].

use std::{collections::BTreeSet, sync::Arc};

use access_log::END_MS;
use documents::{Choice, Field, Path, Report, Take};
use policy::{
    BUILT_IN, Compiled, DESCRIPTOR, Descriptor, Duration, Name, Node, Place, Problem, Problems,
    Value, value_to_node,
};
use protocol::{Answer, LimitAnswer, Mode};
use store::{CheckError, Decision, Engine};

use crate::{
    bucket, error,
    simulate::{YIELD_EVERY, insert, items},
};

/// Bound: bytes of a file of cases. Beyond it, it is refused.
pub const FILE_MAX: usize = 1 << 20;
/// Bound: requests of a file of cases, with their repetitions. Beyond it, it is refused.
const REQUESTS_MAX: u64 = 1_000_000;
/// When a case starts that does not say so: 2024-01-01T00:00Z, a Monday.
const START_MS: u64 = 1_704_067_200_000;

const FILE_FIELDS: [&str; 4] = ["limits", "start", "note", "cases"];
const CASE_FIELDS: [&str; 5] = ["name", "note", "domain", "start", "requests"];
/// The fields of a request that are not entries of its descriptor.
const REQUEST_FIELDS: [&str; 9] = [
    "repeat", "every", "after", "at", "cost", "took", "used", "expect", "note",
];
const EXPECT_FIELDS: [&str; 10] = [
    "allow",
    "exempt",
    "deny",
    "degrade",
    "queue",
    "retry_after",
    "reset_after",
    "delay",
    "remaining",
    "would_deny",
];

/// A case.
#[derive(Debug)]
pub struct Case {
    /// Its name, which no other case of the file has.
    pub name: String,
    /// Where it stands.
    pub place: Option<Place>,
    /// Which of the file's limits files it is about, counted from 0.
    pub limits: usize,
    requests: Vec<Request>,
}

/// One request, or several alike.
#[derive(Debug)]
struct Request {
    at_ms: u64,
    repeat: u64,
    every_ms: u64,
    descriptor: Descriptor,
    /// Units that the request states as its cost.
    cost: Option<u64>,
    took_ms: Option<u64>,
    /// Units that its response states as its true cost.
    used: Option<u64>,
    expect: Option<Expect>,
}

impl Request {
    /// The time of its last repetition.
    fn last_ms(&self) -> u64 {
        let more_ms = self.every_ms.saturating_mul(self.repeat.saturating_sub(1));
        self.at_ms.saturating_add(more_ms)
    }
}

/// What is expected of a decision.
#[derive(Debug)]
struct Expect {
    place: Option<Place>,
    /// As written.
    node: Node,
    outcome: Option<Outcome>,
    /// The limits or the exemption of the outcome.
    names: Option<Vec<Name>>,
    /// Other fields, each as a decision shows it.
    fields: Vec<(&'static str, Node)>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Allow,
    Exempt,
    Deny,
    Degrade,
    Queue,
}

impl Choice for Outcome {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("allow", Self::Allow),
        ("exempt", Self::Exempt),
        ("deny", Self::Deny),
        ("degrade", Self::Degrade),
        ("queue", Self::Queue),
    ];
    const MEANT: &'static [(&'static str, &'static str)] = &[
        ("allowed", "allow"),
        ("200", "allow"),
        ("ok", "allow"),
        ("pass", "allow"),
        ("denied", "deny"),
        ("denies", "deny"),
        ("429", "deny"),
        ("reject", "deny"),
        ("wait", "queue"),
    ];
}

/// A limits file that cases are about.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Its path, for messages.
    pub file: String,
    /// What is in it.
    pub policy: Arc<Compiled>,
}

// --- Reading cases.

/// Paths, and where they stand.
type Paths = Vec<(String, Option<Place>)>;

/// The paths of the limits files that a document names; `None`: it names none.
///
/// # Errors
/// `limits` is neither a path nor a list of paths.
pub fn limits_of(document: &Node) -> Result<Option<Paths>, Problems> {
    let Some(node) = document.get("limits") else {
        return Ok(None);
    };
    let mut report = Report::default();
    let field = Field {
        node,
        path: Path::Field(&Path::Root, "limits"),
    };
    let what = "the path of a limits file, or a list of paths";
    let listed = match &node.value {
        Value::List(_) => items(&field, what, &mut report),
        _ => vec![field],
    };
    let one = |field: &Field<'_>| {
        let path = field.text(what, &mut report)?;
        Some((path.to_owned(), field.node.place))
    };
    let paths: Paths = listed.iter().filter_map(one).collect();
    if paths.is_empty() && report.problems.is_empty() {
        field.expected(what, &mut report);
    }
    report.finish(Some(Some(paths)))
}

/// Reads a document whose cases are about these limits; they are in its order.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read(document: &Node, limits: &[Limits]) -> Result<Vec<Case>, Problems> {
    let mut report = Report::default();
    let mut reader = Reader {
        limits,
        report: &mut report,
        start_ms: START_MS,
        count: 0,
    };
    let cases = reader.file(Field::root(document));
    report.finish(cases)
}

/// What a case looks like, for hints.
pub const EXAMPLE: &str = "a case is {name: …, requests: [{path: /api/x, user: alice, expect: allow}, …]} in a list `cases`";

struct Reader<'r> {
    limits: &'r [Limits],
    report: &'r mut Report,
    start_ms: u64,
    /// Requests so far.
    count: u64,
}

impl Reader<'_> {
    fn file(&mut self, root: Field<'_>) -> Option<Vec<Case>> {
        let mut take = Take::new(&root, self.report)?;
        take.field("limits");
        take.field("note");
        let start = take.field("start");
        let cases = take.field("cases");
        take.finish(&FILE_FIELDS);
        self.start_ms = self.time(start).unwrap_or(START_MS);
        let Some(cases) = cases else {
            if root.node.get("cases").is_none() {
                root.report(self.report, "the file has no `cases`")
                    .push_hint(EXAMPLE);
            }
            return None;
        };
        let list = items(&cases, "a list of cases", self.report);
        if list.is_empty() && matches!(cases.node.value, Value::List(_)) {
            cases
                .report(self.report, "there is no case")
                .push_hint(EXAMPLE);
        }
        let mut read: Vec<Case> = Vec::with_capacity(list.len());
        for item in list {
            let Some(case) = self.case(item) else {
                continue;
            };
            if read.iter().any(|other| other.name == case.name) {
                let message = format!("another case is named `{}`", case.name);
                item.report(self.report, message);
            }
            read.push(case);
        }
        Some(read)
    }

    fn time(&mut self, field: Option<Field<'_>>) -> Option<u64> {
        let field = field?;
        let time = field.time(self.report);
        if time.is_none()
            && let Some(problem) = self.report.problems.last_mut()
        {
            problem.push_hint("with its offset: `Z`, or as in 2026-03-29T00:59:00+01:00");
        }
        time
    }

    fn case(&mut self, case: Field<'_>) -> Option<Case> {
        let mut take = Take::new(&case, self.report)?;
        take.field("note");
        let name = take.field("name");
        let (domain, start) = (take.field("domain"), take.field("start"));
        let requests = take.field("requests");
        take.finish(&CASE_FIELDS);
        let name = name.and_then(|field| field.text("a name", self.report));
        for field in ["name", "requests"] {
            if case.node.get(field).is_none() {
                case.report(self.report, format!("a case needs `{field}`"));
            }
        }
        let start_ms = self.time(start).unwrap_or(self.start_ms);
        let limits = self.limits_in(&case, domain)?;
        let requests = self.requests(&requests?, start_ms, limits);
        Some(Case {
            name: name?.to_owned(),
            place: case.node.place,
            limits,
            requests,
        })
    }

    /// The limits of the case's domain.
    fn limits_in(&mut self, case: &Field<'_>, domain: Option<Field<'_>>) -> Option<usize> {
        let domains = || self.limits.iter().map(|of| of.policy.domain().as_str());
        let Some(field) = domain else {
            if self.limits.len() > 1 {
                let hint = format!(
                    "`domain:` is one of {}",
                    domains().collect::<Vec<_>>().join(", ")
                );
                case.report(self.report, "which limits? the file names several")
                    .push_hint(hint);
                return None;
            }
            return Some(0);
        };
        let named = field.text("a domain", self.report)?;
        let at = domains().position(|domain| domain == named);
        if at.is_none() {
            let known: Vec<&str> = domains().collect();
            let hint = format!("the limits are of {}", known.join(", "));
            field
                .report(self.report, format!("no limits of the domain `{named}`"))
                .push_hint(hint);
        }
        at
    }

    fn requests(&mut self, requests: &Field<'_>, start_ms: u64, limits: usize) -> Vec<Request> {
        let list = items(requests, "a list of requests", self.report);
        let problems = self.report.problems.len();
        let mut now_ms = start_ms;
        let mut read = Vec::with_capacity(list.len());
        for item in &list {
            if let Some(request) = self.request(*item, now_ms, limits) {
                now_ms = request.last_ms();
                read.push(request);
            }
        }
        let expects = read.iter().any(|request| request.expect.is_some());
        if !expects && self.report.problems.len() == problems {
            requests
                .report(
                    self.report,
                    "no request has `expect`, so the case cannot fail",
                )
                .push_hint("as in {path: /api/x, user: alice, expect: allow}");
        }
        read
    }

    fn request(&mut self, request: Field<'_>, now_ms: u64, limits: usize) -> Option<Request> {
        let mut take = Take::new(&request, self.report)?;
        take.field("note");
        let (repeat, cost) = (take.integer("repeat", 1), take.integer("cost", 1));
        let used = take.integer("used", 0);
        let [every, after, took] = ["every", "after", "took"].map(|name| take.field(name));
        let (at, expect) = (take.field("at"), take.field("expect"));
        let mut duration =
            |field: Option<Field<'_>>| field.and_then(|field| field.duration(self.report));
        let [every_ms, after_ms, took_ms] = [every, after, took].map(&mut duration);
        let descriptor = self.descriptor(&request, limits);
        let expect = expect.and_then(|field| self.expect(&field, limits));
        let repeat = repeat.unwrap_or(1);
        self.count = self.count.saturating_add(repeat);
        if self.count > REQUESTS_MAX && self.count - repeat <= REQUESTS_MAX {
            let message = format!("more than {REQUESTS_MAX} requests in one file");
            request.report(self.report, message);
        }
        if let (Some(_), Some(at)) = (after, at) {
            at.report(self.report, "a request has `at` or `after`");
        }
        let at_ms = match self.time(at) {
            Some(at_ms) if at_ms < now_ms => {
                let message = format!(
                    "before the request before it, at {}",
                    policy::format_timestamp(now_ms)
                );
                at?.report(self.report, message);
                now_ms
            }
            Some(at_ms) => at_ms,
            None => now_ms.saturating_add(after_ms.unwrap_or(0)),
        };
        let every_ms = every_ms.unwrap_or(0);
        let read = Request {
            at_ms,
            repeat,
            every_ms,
            descriptor,
            cost,
            took_ms,
            used,
            expect,
        };
        if read.last_ms().saturating_add(took_ms.unwrap_or(0)) >= END_MS {
            request.report(self.report, "it comes or ends after the year 9998");
        }
        Some(read)
    }

    /// The entries of a request: what is none of its fields.
    fn descriptor(&mut self, request: &Field<'_>, limits: usize) -> Descriptor {
        let mut descriptor = Descriptor::new();
        let Value::Map(entries) = &request.node.value else {
            return descriptor;
        };
        let own = |entry: &&policy::Entry| !REQUEST_FIELDS.contains(&entry.key.as_str());
        for entry in entries.iter().filter(own) {
            let value = request.below(entry);
            if let (DESCRIPTOR, Value::Map(_)) = (entry.key.as_str(), &entry.value.value) {
                let inner = value.entries("a map of entries", self.report);
                for entry in inner.unwrap_or_default() {
                    self.entry(&mut descriptor, &value.below(entry), entry, limits);
                }
            } else {
                self.entry(&mut descriptor, &value, entry, limits);
            }
        }
        descriptor
    }

    /// Adds an entry as the proxies of a domain send it.
    fn entry(
        &mut self,
        descriptor: &mut Descriptor,
        field: &Field<'_>,
        entry: &policy::Entry,
        limits: usize,
    ) {
        let Some(Limits { policy, .. }) = self.limits.get(limits) else {
            return;
        };
        let key = entry.key.as_str();
        let service = || {
            policy
                .limits()
                .iter()
                .any(|limit| limit.descriptor.is_some())
        };
        let needed = || policy.needed_keys().iter().map(Name::as_str);
        if !(needed().any(|known| known == key)
            || BUILT_IN.contains(&key)
            || key == DESCRIPTOR && service())
        {
            let message = format!(
                "no limit or exemption uses an entry `{}`",
                bucket::visible(key.as_bytes())
            );
            let problem = self.report.add(&field.path, entry.place, message);
            let known = REQUEST_FIELDS.into_iter().chain(needed());
            problem.push_hint(error::meant(key, known).unwrap_or_else(|| {
                format!(
                    "limits use {}; a request's other fields are {}",
                    needed().collect::<Vec<_>>().join(", "),
                    REQUEST_FIELDS.join(", ")
                )
            }));
            return;
        }
        insert(descriptor, key, field, self.report);
    }
}

// --- Reading what is expected.

impl Reader<'_> {
    fn expect(&mut self, field: &Field<'_>, limits: usize) -> Option<Expect> {
        let policy = Arc::clone(&self.limits.get(limits)?.policy);
        let mut expect = Expect {
            place: field.node.place,
            node: field.node.clone(),
            outcome: None,
            names: None,
            fields: Vec::new(),
        };
        match &field.node.value {
            Value::Map(entries) if entries.is_empty() => {
                let fields = EXPECT_FIELDS.join(", ");
                let problem = field.report(self.report, "it expects nothing");
                problem.push_hint(format!("known fields: {fields}"));
            }
            Value::Map(_) => self.expect_fields(field, &mut expect, &policy)?,
            _ => expect.outcome = Some(field.choice(self.report)?),
        }
        Some(expect)
    }

    fn expect_fields(
        &mut self,
        field: &Field<'_>,
        expect: &mut Expect,
        policy: &Compiled,
    ) -> Option<()> {
        let mut take = Take::new(field, self.report)?;
        let outcomes = Outcome::CHOICES.iter();
        let outcomes: Vec<_> = outcomes
            .filter_map(|(word, outcome)| Some((*outcome, take.field(word)?)))
            .collect();
        let would_deny = take.field("would_deny");
        let remaining = take.field("remaining");
        let times = ["retry_after", "reset_after", "delay"].map(|name| (name, take.field(name)));
        take.finish(&EXPECT_FIELDS);
        if let [_, (_, second), ..] = outcomes.as_slice() {
            second.report(self.report, "a request has one outcome, not two");
        }
        if let Some((outcome, named)) = outcomes.first() {
            expect.outcome = Some(*outcome);
            // `allow: true` names nothing, nor need the others.
            if named.node.value != Value::Bool(true) {
                expect.names = self.names(*outcome, named, policy);
            }
        }
        if let Some(field) = would_deny {
            let names = self.limits_named(&field, policy).unwrap_or_default();
            expect.fields.push(("would_deny", names_node(&names)));
        }
        if let Some(number) = remaining.and_then(|field| field.integer(0, self.report)) {
            expect.fields.push(("remaining", Node::number(number)));
        }
        expect
            .fields
            .extend(times.into_iter().filter_map(|(name, field)| {
                let field = field?;
                if name == "retry_after" && field.node.as_text() == Some(NEVER) {
                    return Some((name, Node::text(NEVER)));
                }
                Some((name, duration_node(field.duration(self.report)?)))
            }));
        if field.node.get("retry_after").is_some()
            && !matches!(expect.outcome, Some(Outcome::Deny) | None)
        {
            field.report(self.report, "only a denial has `retry_after`");
        }
        Some(())
    }

    /// The limits or the exemption that make an outcome.
    fn names(
        &mut self,
        outcome: Outcome,
        field: &Field<'_>,
        policy: &Compiled,
    ) -> Option<Vec<Name>> {
        match outcome {
            Outcome::Allow => {
                field.expected("true", self.report);
                None
            }
            Outcome::Exempt => {
                let name = field.name("the name of an exemption", self.report)?;
                let known = || policy.exemptions().iter().map(|of| of.name.as_str());
                self.known(field, "exemption", &name, known().collect());
                Some(vec![name])
            }
            Outcome::Deny | Outcome::Degrade | Outcome::Queue => self.limits_named(field, policy),
        }
    }

    fn limits_named(&mut self, field: &Field<'_>, policy: &Compiled) -> Option<Vec<Name>> {
        let mut names = field.names("the name of a limit, or a list of names", self.report)?;
        for name in &names {
            let known = policy.limits().iter().map(|limit| limit.name.as_str());
            self.known(field, "limit", name, known.collect());
        }
        names.sort_unstable();
        Some(names)
    }

    fn known(&mut self, field: &Field<'_>, what: &str, name: &Name, known: Vec<&str>) {
        if known.contains(&name.as_str()) {
            return;
        }
        let hint = error::hint(name.as_str(), &format!("{what}s"), known);
        field
            .report(self.report, format!("no {what} is named `{name}`"))
            .push_hint(hint);
    }
}

// --- Running a case.

/// The first decision of a case that is not as expected.
#[derive(Debug)]
pub struct Difference {
    /// Where the expectation stands.
    pub place: Option<Place>,
    /// The request, counted from 1 with all repetitions.
    pub request: usize,
    /// Its time, in milliseconds since the epoch.
    pub at_ms: u64,
    /// As written.
    pub expected: Node,
    /// The decision, in the same form.
    pub actual: Node,
    /// What each limit that matches says.
    pub limits: String,
}

/// What the requests of cases have touched of a limits file.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// Limits, by position.
    pub limits: BTreeSet<usize>,
    /// Overrides: the limit's position, and the bucket.
    pub overrides: BTreeSet<(usize, Vec<Option<Vec<u8>>>)>,
    /// Exemptions.
    pub exemptions: BTreeSet<Name>,
}

impl Case {
    /// How many requests it has, with all repetitions.
    pub fn request_count(&self) -> u64 {
        self.requests.iter().map(|request| request.repeat).sum()
    }

    /// Decides its requests until a decision is not as expected: what comes after follows from it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn run(
        &self,
        engine: &mut Engine,
        touched: &mut Touched,
    ) -> Result<Option<Difference>, CheckError> {
        let mut count: usize = 0;
        for request in &self.requests {
            for repetition in 0..request.repeat {
                count += 1;
                if count.is_multiple_of(YIELD_EVERY) {
                    tokio::task::yield_now().await;
                }
                let at_ms = request.every_ms.saturating_mul(repetition);
                let at_ms = request.at_ms.saturating_add(at_ms);
                let mut check = engine.request(request.descriptor.clone());
                if let Some(units) = request.cost {
                    engine.price(&mut check, |_| Some(units));
                }
                let decision = engine.decide(at_ms, &check).await?;
                touched.add(&decision, engine.policy());
                let expect = request.expect.as_ref();
                if let Some((expect, actual)) =
                    expect.and_then(|expect| Some((expect, expect.differs(&decision)?)))
                {
                    return Ok(Some(Difference {
                        place: expect.place,
                        request: count,
                        at_ms,
                        expected: expect.node.clone(),
                        actual,
                        limits: by_limit(&decision),
                    }));
                }
                // A queue lets it start later.
                let start_ms = at_ms.saturating_add(decision.answer.summary().delay_ms);
                let used = request.used.into_iter().flat_map(|units| {
                    let limits = decision.answer.limits.iter();
                    limits.map(move |limit| (limit.name.clone(), units))
                });
                let used = used.collect();
                engine.end_at((start_ms, request.took_ms), check, decision, used);
            }
        }
        Ok(None)
    }
}

impl Touched {
    fn add(&mut self, decision: &Decision, policy: &Compiled) {
        self.exemptions.extend(decision.exempt.clone());
        for limit in &decision.answer.limits {
            let Some(at) = policy.position(limit.name.as_str()) else {
                continue;
            };
            self.limits.insert(at);
            if policy.has_overrides(at) {
                let values = limit.bucket.iter().map(|(_, value)| value.clone());
                let values: Vec<_> = values.collect();
                if policy.override_for(at, &values).is_some() {
                    self.overrides.insert((at, values));
                }
            }
        }
    }

    /// Adds what another has.
    pub fn merge(&mut self, other: Self) {
        self.limits.extend(other.limits);
        self.overrides.extend(other.overrides);
        self.exemptions.extend(other.exemptions);
    }
}

// --- A decision in the words of `expect`.

const NEVER: &str = "never";

fn duration_node(ms: u64) -> Node {
    Node::text(Duration(ms).to_string())
}

/// One name, or a list.
fn names_node(names: &[Name]) -> Node {
    match names {
        [one] => Node::text(one.as_str()),
        more => Node::list(more.iter().map(|name| Node::text(name.as_str()))),
    }
}

impl Expect {
    /// The decision, if it is not as expected.
    fn differs(&self, decision: &Decision) -> Option<Node> {
        let (outcome, names) = outcome_of(decision);
        let as_expected = self.outcome.is_none_or(|expected| expected == outcome)
            && self
                .names
                .as_ref()
                .is_none_or(|expected| *expected == names)
            && { self.fields.iter() }
                .all(|(name, expected)| field_of(&decision.answer, name) == *expected);
        if as_expected {
            return None;
        }
        let mut actual = vec![(outcome.word(), names_node(&names))];
        let mut shown: Vec<&str> = self.fields.iter().map(|(name, _)| *name).collect();
        let own = match outcome {
            Outcome::Deny => Some("retry_after"),
            Outcome::Queue => Some("delay"),
            _ => None,
        };
        shown.extend(own.filter(|own| !shown.contains(own)));
        for name in shown {
            actual.push((name, field_of(&decision.answer, name)));
        }
        if let ([_], true) = (actual.as_slice(), names.is_empty()) {
            return Some(Node::text(outcome.word()));
        }
        if names.is_empty()
            && let Some((_, value)) = actual.first_mut()
        {
            *value = Value::Bool(true).into();
        }
        Some(Node::map(actual))
    }
}

/// What became of a request, and the limits or the exemption that decided so.
fn outcome_of(decision: &Decision) -> (Outcome, Vec<Name>) {
    if let Some(exemption) = &decision.exempt {
        return (Outcome::Exempt, vec![exemption.clone()]);
    }
    let summary = decision.answer.summary();
    let sorted = |names: &[&Name]| {
        let mut names: Vec<Name> = names.iter().map(|name| (*name).clone()).collect();
        names.sort_unstable();
        names
    };
    if !decision.answer.allowed {
        return (Outcome::Deny, sorted(&summary.denied_by));
    }
    if !summary.degraded_by.is_empty() {
        return (Outcome::Degrade, sorted(&summary.degraded_by));
    }
    let holds =
        |limit: &&LimitAnswer| limit.mode == Mode::Enforce && limit.verdict.decision.delay_ms > 0;
    let queues = decision.answer.limits.iter().filter(holds);
    let queues: Vec<&Name> = queues.map(|limit| &limit.name).collect();
    if queues.is_empty() {
        (Outcome::Allow, Vec::new())
    } else {
        (Outcome::Queue, sorted(&queues))
    }
}

/// What each limit that matches says, in one line.
fn by_limit(decision: &Decision) -> String {
    if decision.exempt.is_some() {
        return "no limit applies to a request that is exempt".to_owned();
    }
    let one = |of: &LimitAnswer| {
        let (names, values): (Vec<_>, Vec<_>) = of.bucket.iter().cloned().unzip();
        let bucket = bucket::display(&names, &values);
        let left = match of.limit {
            None => "unlimited".to_owned(),
            // No bucket decides it, and none has windows.
            Some(0) if of.window_ms == 0 => "denies requests without it".to_owned(),
            Some(all) => format!("{} of {all} left", of.verdict.decision.remaining),
        };
        let mode = match of.mode {
            Mode::Enforce => "",
            Mode::Shadow => ", only reported",
            Mode::Degrade => ", marks requests",
        };
        format!("{} {bucket}: {left}{mode}", of.name)
    };
    let limits: Vec<String> = decision.answer.limits.iter().map(one).collect();
    if limits.is_empty() {
        return "no limit matches the request".to_owned();
    }
    limits.join("; ")
}

/// A field of the answer that `expect` may have.
fn field_of(answer: &Answer, name: &str) -> Node {
    let summary = answer.summary();
    match name {
        "retry_after" => summary
            .retry_after_ms
            .map_or_else(|| Node::text(NEVER), duration_node),
        "reset_after" => duration_node(summary.reset_after_ms),
        "delay" => duration_node(summary.delay_ms),
        "remaining" => summary
            .remaining
            .map_or_else(|| Value::Null.into(), Node::number),
        "would_deny" => {
            let mut names: Vec<Name> = summary.would_deny.into_iter().cloned().collect();
            names.sort_unstable();
            names_node(&names)
        }
        _ => Value::Null.into(),
    }
}

// --- What no case has touched.

/// What no case has touched of a limits file.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Untouched {
    /// Limits that match no request of a case.
    pub limits: Vec<String>,
    /// Overrides whose bucket no request is in.
    pub overrides: Vec<UntouchedOverride>,
    /// Exemptions of which no request is.
    pub exemptions: Vec<String>,
}

/// An override whose bucket no request is in.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct UntouchedOverride {
    /// The limit.
    pub limit: String,
    /// The bucket: the values of the limit's `per`.
    pub values: Node,
    /// The bucket as text.
    #[serde(skip)]
    pub bucket: String,
}

impl Untouched {
    /// What is left of a limits file.
    pub fn of(policy: &Compiled, touched: &Touched) -> Self {
        let mut left = Self::default();
        for (at, limit) in policy.limits().iter().enumerate() {
            if !touched.limits.contains(&at) {
                left.limits.push(limit.name.to_string());
            }
            let overrides = policy.overrides(at).map(|of| &of.values);
            let mut overrides: Vec<_> = overrides
                .filter(|values| !touched.overrides.contains(&(at, (*values).clone())))
                .collect();
            overrides.sort_unstable();
            left.overrides.extend(overrides.into_iter().map(|values| {
                let pairs = limit.per.iter().zip(values);
                let shown: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
                UntouchedOverride {
                    limit: limit.name.to_string(),
                    values: Node::map(
                        pairs.map(|(key, value)| (key.as_str(), value_to_node(value.as_deref()))),
                    ),
                    bucket: bucket::display(&limit.per, &shown),
                }
            }));
        }
        let exemptions = policy.exemptions().iter().map(|of| &of.name);
        let exemptions = exemptions.filter(|name| !touched.exemptions.contains(*name));
        left.exemptions.extend(exemptions.map(ToString::to_string));
        left
    }
}

/// A problem without a place, for a file as a whole.
pub fn problem(message: impl Into<String>, hint: Option<&str>) -> Problems {
    let mut problem = Problem::new("", None, message);
    if let Some(hint) = hint {
        problem.push_hint(hint.to_owned());
    }
    Problems::one(problem)
}
