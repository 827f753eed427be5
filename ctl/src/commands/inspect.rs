//! `rlctl inspect`.

use std::fmt::Write as _;

use algorithms::{DEBT_MAX_CAPACITIES, InFlightSlot, Slot, SlotId};
use anstyle::{AnsiColor, Style};
use clap::Args;
use insight::{
    Window,
    bucket::{adaptive_state, penalty_state, slow_at_minimum},
};
use policy::{
    Algorithm, AmountText, Compiled, Descriptor, Limit, Name, Node, Override, Policy, Scope,
    format_timestamp,
};
use protocol::{Decision, Mode, RetryAfter};
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use store::{Fleet, Inspection, Overrides};

use crate::{
    bucket::{self, BucketArgs, Pair, Values},
    cli::{Global, examples},
    error::{Error, Exit},
    printer::Printer,
    render::{self, Page, View, duration, until},
    session::{self, Session},
};

/// Show how much of a bucket is used, and when it is available again.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl inspect per-user user=alice"
    "rlctl inspect exports                                 # a limit with one bucket"
    "rlctl inspect -d user=alice -d path=/api/orders       # every limit of such a request"
    "rlctl inspect per-user --without user                 # the bucket of requests without a user"
    "rlctl inspect per-user user=alice -o json | jq .remaining"
))]
pub struct Inspect {
    /// The limit.
    #[arg(required_unless_present = "descriptor")]
    limit: Option<String>,

    #[command(flatten)]
    bucket: BucketArgs,

    /// Instead of a limit: show every limit of a request with these entries.
    #[arg(short, long = "descriptor", value_name = "KEY=VALUE",
        conflicts_with_all = ["limit", "values", "without"])]
    descriptor: Vec<Pair>,
}

impl Inspect {
    /// Shows one bucket, or those of a request.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let report = if let Some(name) = &self.limit {
            let policy = session.policy(Overrides::None).await?;
            session.warn_of_pause(&policy, &[name.as_str()]);
            let limit = session::find_limit(&policy, name)?.clone();
            let bucket = session.bucket(&policy.domain, &self.bucket).await?;
            let values = bucket.of(&limit)?;
            Report {
                buckets: vec![one(&session, policy, &limit, values).await?],
                list: false,
            }
        } else {
            let descriptor = session.descriptor(&self.descriptor).await?;
            let policy = session.policy_for_request(&descriptor).await?;
            session.warn_of_pause(&policy, &[]);
            Report {
                buckets: of_request(&session, &Compiled::new(policy), &descriptor).await?,
                list: true,
            }
        };
        printer.data(&report)?;
        Ok(Exit::Done)
    }
}

/// One bucket, as text without colours.
pub(super) async fn card(
    session: &Session<'_>,
    name: &str,
    values: Values,
) -> Result<String, Error> {
    let policy = session.policy(Overrides::None).await?;
    let limit = session::find_limit(&policy, name)?.clone();
    let bucket = one(session, policy, &limit, values).await?;
    let text = bucket.card(session.printer.page());
    Ok(anstream::adapter::strip_str(&text).to_string())
}

async fn one(
    session: &Session<'_>,
    policy: Policy,
    limit: &Limit,
    values: Values,
) -> Result<Bucket, Error> {
    let policy = session
        .policy_for_bucket(policy, &limit.name, &values)
        .await?;
    look(session, &Compiled::new(policy), limit, values).await
}

/// The buckets that a request would charge.
async fn of_request(
    session: &Session<'_>,
    compiled: &Compiled,
    descriptor: &Descriptor,
) -> Result<Vec<Bucket>, Error> {
    let printer = session.printer;
    let mut found = Vec::new();
    for matched in compiled.matching(descriptor, crate::now_ms()) {
        let limit = matched.limit;
        if let Some(name) = matched.missing {
            printer.warn(format_args!(
                "{} denies every request without `{name}`",
                limit.name
            ));
        } else if limit.scope == Scope::Proxy {
            printer.note(format_args!(
                "{} has its buckets in the proxies, not in Redis",
                limit.name
            ));
        } else {
            found.push(look(session, compiled, limit, matched.into_values()).await?);
        }
    }
    if found.is_empty() {
        printer.note("no bucket to show; `rlctl explain` with the same -d says why");
    }
    Ok(found)
}

async fn look(
    session: &Session<'_>,
    compiled: &Compiled,
    limit: &Limit,
    values: Values,
) -> Result<Bucket, Error> {
    if limit.scope == Scope::Proxy {
        return Err(session::buckets_in_proxies(limit));
    }
    let ask = async |cost| -> Result<Inspection, Error> {
        let answer = session
            .store
            .inspect(compiled, &limit.name, &values, cost)
            .await;
        answer.map_err(|error| session.check_failed(&error))
    };
    let now = ask(1).await?;
    // One more unit is there when a request for all remaining units and one more would pass.
    let left = now.answer.verdict.decision.remaining;
    let requests = left.checked_div(limit.cost).unwrap_or(0);
    // Requests in flight end at no known time: their holders are shown instead.
    let next = match now.answer.limit {
        Some(quota) if left < quota && !limit.gives_slots() => {
            ask(requests.saturating_add(1)).await.ok()
        }
        _ => None,
    };
    let next_ms = next.and_then(|next| next.answer.verdict.decision.retry_after.millis());
    let index = compiled.position(limit.name.as_str());
    let found = index.and_then(|index| compiled.override_for(index, &values).cloned());
    let in_force = found.filter(|found| found.until_ms.is_none_or(|until| now.now_ms < until));
    let holders = if limit.gives_slots() {
        Some(of(session, &now).await)
    } else {
        None
    };
    Ok(Bucket {
        holders,
        domain: compiled.domain().clone(),
        limit: limit.clone(),
        values,
        in_force,
        node: now.node.clone().unwrap_or_else(|| session.store.address()),
        inspection: now,
        next_ms,
        paused: index.is_some_and(|index| compiled.pause_of(index, crate::now_ms()).is_some()),
    })
}

// --- Who holds the slots of requests in flight, and since when.

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HeldSlot {
    /// The proxy, by its node name or id; `program` or `rate limit service`.
    holder: String,
    /// When its request came.
    since: String,
    /// When it expires if nobody renews it, in milliseconds.
    expires_in_ms: u64,
}

/// The slots in a bucket as stored, the longest first; the store shows a hundred at most.
async fn of(session: &Session<'_>, inspection: &Inspection) -> Vec<HeldSlot> {
    let Some(state) = &inspection.state else {
        return Vec::new();
    };
    let mut slots = read(state, inspection.now_ms);
    slots.sort_by_key(|(slot, _)| slot.id.stamp);
    let fleet = session.store.fleet().await.ok();
    let holders = slots.into_iter().map(|(slot, expiry)| HeldSlot {
        holder: holder(slot.id, fleet.as_ref(), inspection.now_ms),
        since: format_timestamp(slot.id.at_s().saturating_mul(1000)),
        expires_in_ms: expiry.saturating_sub(inspection.now_ms),
    });
    holders.collect()
}

/// A proxy is listed within about a second of its first call, and until 10 s after its last.
const LISTED_WITHIN_MS: u64 = 10_000;

fn holder(slot: SlotId, fleet: Option<&Fleet>, now_ms: u64) -> String {
    let mark = match slot.mark() {
        SlotId::SERVICE => return "rate limit service".to_owned(),
        SlotId::PROGRAM => return "program".to_owned(),
        mark => mark,
    };
    let Some(fleet) = fleet else {
        return format!("proxy {mark:05x}");
    };
    let mut proxies = fleet.proxies.values().flatten();
    if let Some(proxy) = proxies.find(|proxy| SlotId::mark_of(&proxy.id) == mark) {
        return proxy.node.clone().unwrap_or_else(|| proxy.id.clone());
    }
    let age_ms = now_ms.saturating_sub(slot.at_s().saturating_mul(1000));
    // The limiter that gave the slot knows the proxy, and may not have reported since.
    if age_ms < LISTED_WITHIN_MS {
        format!("new proxy ({mark:05x})")
    } else {
        format!("proxy that reports no more ({mark:05x})")
    }
}

/// The members of the sorted set and their scores, as the store shows them.
fn read(state: &str, now_ms: u64) -> Vec<(InFlightSlot, u64)> {
    // The mark of an adaptive limit may contain spaces.
    let words: Vec<&str> = state.split(' ').collect();
    let mut slots = Vec::new();
    for pair in words.windows(2) {
        let [member, score] = pair else { continue };
        let mut numbers = member.split(':').map(|number| number.parse().ok());
        let name = [numbers.next(), numbers.next(), numbers.next()].map(Option::flatten);
        if let ([Some(start_ms), Some(parts), Some(since_ms)], Ok(expiry)) =
            (name, score.parse::<u64>())
            && expiry > now_ms
        {
            let name = Slot {
                start_ms,
                parts,
                since_ms,
                turn: 0,
            };
            slots.push((name.into(), expiry));
        }
    }
    slots
}

// --- A bucket as text.

const NAME: Style = Style::new().bold();
const FREE: Style = AnsiColor::Green.on_default();
const BUSY: Style = AnsiColor::Yellow.on_default();
const FULL: Style = AnsiColor::Red.on_default();

impl Bucket {
    fn whole_again(&self) -> String {
        match self.decision().reset_after_ms {
            0 => "it is whole".to_owned(),
            ms if self.limit.gives_slots() => {
                format!("as requests end; in {} if none is renewed", duration(ms))
            }
            ms => format!("in {}", duration(ms)),
        }
    }

    fn expires(&self) -> String {
        match (&self.inspection.state, self.inspection.ttl_ms) {
            (None, _) => "nothing is stored: the bucket is unused".to_owned(),
            (Some(_), Some(ms)) => format!("in {}", duration(ms)),
            (Some(_), None) => "never".to_owned(),
        }
    }

    #[expect(clippy::too_many_lines, reason = "a list of all lines")]
    fn card(&self, page: Page) -> String {
        let limit = &self.limit.name;
        let bucket = bucket::display(&self.limit.per, &self.values);
        let mut text = format!("{NAME}{limit}{NAME:#}  {bucket}\n");
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<13} {value}");
        };
        line("quota", self.quota());
        if let (Some(used), Some(quota)) = (self.used(), self.inspection.answer.limit) {
            line("used", self.usage(used, quota, page));
            line("requests", self.requests());
            let verdict = &self.inspection.answer.verdict;
            let (leased, reserved) = (verdict.leased, verdict.reserved.open);
            if leased > 0 {
                line("leased", format!("{leased} of the used, to proxies"));
            }
            if reserved > 0 {
                line(
                    "reserved",
                    format!("{reserved}, until responses say their cost"),
                );
            }
            if let Some((owed, most)) = self.owed() {
                line("owed", format!("{owed} beyond that, of at most {most}"));
            }
            if let Some(ms) = self.next_ms.filter(|_| self.decision().remaining > 0) {
                line("next unit", format!("in {}", duration(ms)));
            }
            line("whole again", self.whole_again());
        }
        if let Some(penalty) = BucketPenalty::new(&self.limit, &self.inspection) {
            line("penalty", penalty.text);
        }
        if let Some(window) = self.window() {
            line("window", format!("{} to {}", window.starts, window.ends));
        }
        if let Some(AdaptiveFields {
            text: [now, window],
            ..
        }) = AdaptiveFields::new(&self.limit, &self.inspection)
        {
            line("adaptive", now);
            line("answers", window);
        }
        for holder in self.holders.iter().flatten() {
            let left = duration(holder.expires_in_ms);
            let HeldSlot { holder, since, .. } = holder;
            line(
                "held",
                format!("by {holder} since {since}, for {left} unless renewed"),
            );
        }
        line(
            "key",
            format!(
                "{} (slot {}, {})",
                self.inspection.key, self.inspection.slot, self.node
            ),
        );
        line("expires", self.expires());
        if let Some(state) = self.inspection.state.as_ref().filter(|_| page.wide) {
            line("state", bucket::visible(state.as_bytes()));
            line("generation", self.inspection.answer.generation.to_string());
        }
        text
    }

    /// The numbers, and where they come from.
    fn quota(&self) -> String {
        let (quota, source) = match &self.in_force {
            None => (self.limit.quota, String::new()),
            Some(found) => {
                let until = until(found.until_ms);
                match found.quota.of(&self.limit.quota) {
                    None => return format!("unlimited by its override{until}"),
                    Some(quota) => (quota, format!(", by its override{until}")),
                }
            }
        };
        let shadow = match self.inspection.answer.mode {
            Mode::Shadow => ", not enforced: only reported",
            Mode::Enforce | Mode::Degrade => "",
        };
        format!("{}{source}{shadow}", numbers(&quota, &self.limit))
    }

    fn usage(&self, used: u64, quota: u64, page: Page) -> String {
        let style = match () {
            () if used >= quota => FULL,
            () if used > quota / 2 => BUSY,
            () => FREE,
        };
        let bar = render::bar(used, quota, page);
        let left = self.decision().remaining;
        format!("{style}{bar}{style:#} {used} of {quota}, {left} left")
    }

    /// What the next request would get.
    fn requests(&self) -> String {
        let decision = self.decision();
        let over = match self.inspection.answer.mode {
            Mode::Enforce => "denied",
            Mode::Degrade => "degraded",
            Mode::Shadow => "over the limit, but let through,",
        };
        match decision.retry_after {
            _ if self.paused => "pass: the limit is paused".to_owned(),
            RetryAfter::Now if decision.delay_ms > 0 => {
                format!("pass after a wait of {}", duration(decision.delay_ms))
            }
            RetryAfter::Now => "pass".to_owned(),
            RetryAfter::Millis(ms) => format!("{over} for {}", duration(ms)),
            RetryAfter::Never => format!("{over} always: one takes more than the whole quota"),
        }
    }
}

/// `10/s, burst 20, token_bucket`.
fn numbers(quota: &Algorithm, limit: &Limit) -> String {
    let parameters = quota.parameters();
    let burst = parameters
        .burst
        .map(|burst| format!(", burst {burst}"))
        .unwrap_or_default();
    let node = limits_file::node_without_overrides(limit);
    let algorithm = node
        .get("algorithm")
        .and_then(Node::as_text)
        .unwrap_or_default();
    format!("{}{burst}, {algorithm}", AmountText(parameters))
}

// --- Buckets as they are shown: as text, and as JSON.

/// A bucket, its limit and its state.
#[derive(Debug)]
struct Bucket {
    domain: Name,
    limit: Limit,
    values: Values,
    /// The override that gives the bucket its numbers, if one does.
    in_force: Option<Override>,
    inspection: Inspection,
    /// The time until one more unit is available.
    next_ms: Option<u64>,
    node: String,
    /// Whether the limit, or its domain, is paused.
    paused: bool,
    /// Of requests in flight, who holds the slots.
    holders: Option<Vec<HeldSlot>>,
}

/// One bucket, or those of a request.
#[derive(Debug)]
struct Report {
    buckets: Vec<Bucket>,
    /// Whether it is a list in JSON, also of one.
    list: bool,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.buckets.as_slice() {
            [only] if !self.list => only.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let cards: Vec<String> = self
            .buckets
            .iter()
            .map(|bucket| bucket.card(page))
            .collect();
        cards.join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.buckets
            .iter()
            .map(|bucket| bucket.inspection.key.clone())
            .collect()
    }
}

impl Bucket {
    fn decision(&self) -> &Decision {
        &self.inspection.answer.verdict.decision
    }

    /// Used units. A bucket whose limit was lowered below them counts as just used up.
    fn used(&self) -> Option<u64> {
        let limit = self.inspection.answer.limit?;
        Some(limit.saturating_sub(self.decision().remaining))
    }

    /// The calendar window that the bucket counts in.
    fn window(&self) -> Option<Window> {
        Window::from_quota(&self.quota_in_force()?, self.inspection.now_ms)
    }

    /// The numbers that the bucket follows; `None`: it is unlimited.
    fn quota_in_force(&self) -> Option<Algorithm> {
        match &self.in_force {
            None => Some(self.limit.quota),
            Some(found) => found.quota.of(&self.limit.quota),
        }
    }

    /// Units that the bucket owes beyond what it holds, by the time that they take to drain, and the most
    /// that it may owe so; `None`: none, or the time depends on leases or a penalty.
    fn owed(&self) -> Option<(u64, u64)> {
        let verdict = &self.inspection.answer.verdict;
        let reset_ms = verdict.decision.reset_after_ms;
        let algorithm = self.quota_in_force()?;
        // What a queue holds is not owed.
        let drains = algorithm.kind().is_bucket() && algorithm.parameters().max_delay_ms.is_none();
        let known = verdict.leased == 0 && verdict.penalty.left_ms < reset_ms;
        if !drains || !known {
            return None;
        }
        let numbers = algorithm.numbers();
        let drained = reset_ms.saturating_mul(numbers.y) / numbers.x.max(1);
        let owed = drained.saturating_sub(numbers.limit);
        let most = numbers.limit.saturating_mul(DEBT_MAX_CAPACITIES - 1);
        (owed > 0).then_some((owed, most))
    }
}

// --- A bucket as JSON.

impl Serialize for Bucket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (found, decision) = (&self.inspection, self.decision());
        let answer = &found.answer;
        let node = limits_file::node_without_overrides(&self.limit);
        // -1 is how the interfaces write "never".
        let retry_after_ms = decision.retry_after.millis();
        let retry_after_ms = retry_after_ms.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("domain", &self.domain)?;
        fields.serialize_entry("limit", &self.limit.name)?;
        fields.serialize_entry("bucket", &bucket::to_node(&self.limit, &self.values))?;
        fields.serialize_entry("algorithm", &node.get("algorithm"))?;
        fields.serialize_entry("used", &self.used())?;
        fields.serialize_entry("remaining", &answer.limit.map(|_| decision.remaining))?;
        fields.serialize_entry("limit_units", &answer.limit)?;
        fields.serialize_entry("reset_after_ms", &decision.reset_after_ms)?;
        fields.serialize_entry("retry_after_ms", &retry_after_ms)?;
        fields.serialize_entry("next_unit_ms", &self.next_ms)?;
        fields.serialize_entry("enforced", &(answer.mode != Mode::Shadow))?;
        fields.serialize_entry("paused", &self.paused)?;
        if let Some(window) = self.window() {
            fields.serialize_entry("window", &window)?;
        }
        fields.serialize_entry("overridden", &self.in_force.is_some())?;
        fields.serialize_entry("leased", &answer.verdict.leased)?;
        if self.limit.settles() {
            fields.serialize_entry("reserved", &answer.verdict.reserved.open)?;
        }
        if let Some((owed, _)) = self.owed() {
            fields.serialize_entry("owed", &owed)?;
        }
        fields.serialize_entry("ttl_ms", &found.ttl_ms)?;
        fields.serialize_entry("redis_key", &found.key)?;
        fields.serialize_entry("slot", &found.slot)?;
        fields.serialize_entry("node", &self.node)?;
        fields.serialize_entry("generation", &answer.generation)?;
        fields.serialize_entry("now_ms", &found.now_ms)?;
        fields.serialize_entry("state", &found.state)?;
        if let Some(penalty) = BucketPenalty::new(&self.limit, found) {
            fields.serialize_entry("penalty", &penalty)?;
        }
        if let Some(holders) = &self.holders {
            fields.serialize_entry("holders", holders)?;
        }
        if let Some(adaptive) = AdaptiveFields::new(&self.limit, found) {
            fields.serialize_entry("adaptive", &adaptive)?;
        }
        fields.end()
    }
}

/// What an adaptive limit is, and how it was found. Shares are per mille.
#[derive(Serialize)]
pub(super) struct AdaptiveFields {
    /// What it is and why, and its window.
    #[serde(skip)]
    pub(super) text: [String; 2],
    limit: u64,
    window_starts: String,
    answers: u64,
    late: u64,
    slow: u64,
    most_in_flight: u64,
    own_late: u64,
    own_slow: u64,
    moved_at: Option<String>,
    moved_from: u64,
    moved_late: u64,
    moved_slow: u64,
    too_slow_at_min: bool,
}

impl AdaptiveFields {
    /// `None`: the limit is not adaptive, or no answer came yet.
    pub(super) fn new(limit: &Limit, inspection: &Inspection) -> Option<Self> {
        let rule = limit.quota.parameters().adaptive.as_ref()?;
        let state = inspection.answer.verdict.adaptive.as_ref()?;
        Some(Self {
            text: adaptive_state(rule, state),
            limit: state.limit_milli / 1000,
            window_starts: format_timestamp(state.start_ms),
            answers: state.answers,
            late: state.late,
            slow: state.slow,
            most_in_flight: state.most,
            own_late: state.own_late,
            own_slow: state.own_slow,
            moved_at: (state.moved_ms > 0).then(|| format_timestamp(state.moved_ms)),
            moved_from: state.moved_from_milli / 1000,
            moved_late: state.moved_late,
            moved_slow: state.moved_slow,
            too_slow_at_min: slow_at_minimum(rule, state).is_some(),
        })
    }
}

// --- The penalty state of a bucket, as `inspect` and `explain` show it.

/// The penalty of a bucket.
#[derive(Debug, Serialize)]
pub struct BucketPenalty {
    left_ms: u64,
    denials: u64,
    next_ms: u64,
    /// Where penalties grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    anew_in_ms: Option<u64>,
    /// The others are 0 because its slot of a Cluster is moving.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unread: bool,
    /// The same as a sentence.
    #[serde(skip)]
    pub text: String,
}

impl BucketPenalty {
    /// `None`: the limit has no penalty.
    pub fn new(limit: &Limit, found: &Inspection) -> Option<Self> {
        let rule = limit.penalty.as_ref()?;
        let status = &found.answer.verdict.penalty;
        let enforced = found.answer.mode != Mode::Shadow;
        Some(Self {
            left_ms: status.left_ms,
            denials: status.denials,
            next_ms: status.next_ms,
            anew_in_ms: (rule.grow > 1).then_some(status.anew_ms),
            unread: status.unread,
            text: penalty_state(rule, status, enforced, found.now_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_has_not_reported_yet_is_not_gone() {
        let slot = SlotId::new(1_763_000_000, SlotId::mark_of("p1"), 7);
        let fleet = Fleet::default();
        let came_ms = slot.at_s() * 1000;
        let at = |now_ms| holder(slot, Some(&fleet), now_ms);
        assert!(at(came_ms + 500).starts_with("new proxy ("));
        assert!(at(came_ms + 10_500).starts_with("proxy that reports no more ("));
        let unread = holder(slot, None, came_ms + 10_500);
        assert!(unread.starts_with("proxy ") && !unread.contains("no more"));
        // As soon as a limiter lists it, it has its name.
        let listed = store::ProxyStatus {
            id: "p1".to_owned(),
            node: Some("edge-1".to_owned()),
            is_module: false,
            revision: None,
            supplies: None,
            ago_ms: 0,
        };
        let proxies = [("shop".parse().unwrap(), vec![listed])].into();
        let fleet = Fleet {
            proxies,
            ..Fleet::default()
        };
        assert_eq!(holder(slot, Some(&fleet), came_ms), "edge-1");
    }

    #[test]
    fn slots_are_read_and_marks_and_what_expired_are_not() {
        let state = "8000:77:10000 2500 8001:78:10000 900 g -18 t -1001";
        let slots = read(state, 1000);
        let marked = "g -18 t -1001 a\u{1} \u{fffd}\0 -1 8000:77:10000 2500";
        assert_eq!(read(marked, 1000), slots);
        let (slot, expiry) = slots.first().unwrap();
        assert_eq!((slots.len(), slot.id.secret, *expiry), (1, 77, 2500));
        assert_eq!(read("TokenBucket(TokenBucketState { debt: 1 })", 0), []);
    }
}
