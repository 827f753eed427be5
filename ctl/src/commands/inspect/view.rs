//! A bucket as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use insight::Window;
use policy::{AmountText, Limit, Name, Node, Override, OverrideQuota, Quota, format_timestamp};
use protocol::Mode;
use serde::{Serialize, Serializer};
use store::Inspection;

use super::holders::HeldSlot;
use crate::{
    bucket::{self, Values},
    penalty::BucketPenalty,
    render::{self, Page, View, duration},
};

const NAME: Style = Style::new().bold();
const FREE: Style = AnsiColor::Green.on_default();
const BUSY: Style = AnsiColor::Yellow.on_default();
const FULL: Style = AnsiColor::Red.on_default();

/// A bucket, its limit and its state.
#[derive(Debug)]
pub struct Bucket {
    pub domain: Name,
    pub limit: Limit,
    pub values: Values,
    /// The override that gives the bucket its numbers, if one does.
    pub in_force: Option<Override>,
    pub inspection: Inspection,
    /// Until one more unit is there than now.
    pub next_ms: Option<u64>,
    pub node: String,
    /// Whether the limit, or its domain, is paused.
    pub paused: bool,
    /// Of requests in flight, who holds the slots.
    pub holders: Option<Vec<HeldSlot>>,
}

/// The JSON of a bucket.
#[derive(Serialize)]
struct Fields<'b> {
    domain: &'b str,
    limit: &'b str,
    bucket: Node,
    algorithm: Option<Node>,
    used: Option<u64>,
    remaining: Option<u64>,
    limit_units: Option<u64>,
    reset_after_ms: u64,
    retry_after_ms: i64,
    next_unit_ms: Option<u64>,
    enforced: bool,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
    overridden: bool,
    leased: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<u64>,
    ttl_ms: Option<u64>,
    redis_key: &'b str,
    slot: u16,
    node: &'b str,
    generation: u64,
    now_ms: u64,
    state: Option<&'b str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<BucketPenalty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<&'b [HeldSlot]>,
}

/// One bucket, or those of a request.
#[derive(Debug)]
pub struct Report {
    buckets: Vec<Bucket>,
    list: bool,
}

impl Report {
    /// One bucket; in JSON an object.
    pub fn one(bucket: Bucket) -> Self {
        Self {
            buckets: vec![bucket],
            list: false,
        }
    }

    /// Any number of buckets; in JSON a list.
    pub fn many(buckets: Vec<Bucket>) -> Self {
        Self {
            buckets,
            list: true,
        }
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.buckets.as_slice() {
            [only] if !self.list => only.fields().serialize(serializer),
            many => serializer.collect_seq(many.iter().map(Bucket::fields)),
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
    /// Used units. A bucket whose limit was lowered below them counts as just used up.
    fn used(&self) -> Option<u64> {
        let answer = &self.inspection.answer;
        answer
            .limit
            .map(|limit| limit.saturating_sub(answer.remaining))
    }

    fn fields(&self) -> Fields<'_> {
        let answer = &self.inspection.answer;
        let values = self.limit.per.iter().zip(&self.values);
        let values = values.map(|(key, v)| (key.as_str(), policy::value_to_node(v.as_deref())));
        Fields {
            domain: self.domain.as_str(),
            limit: self.limit.name.as_str(),
            bucket: Node::map(values),
            algorithm: self
                .limit
                .to_node_without_overrides()
                .get("algorithm")
                .cloned(),
            used: self.used(),
            remaining: answer.limit.map(|_| answer.remaining),
            limit_units: answer.limit,
            reset_after_ms: answer.reset_after_ms,
            // -1 is how the interfaces write "never".
            retry_after_ms: answer
                .retry_after_ms
                .map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX)),
            next_unit_ms: self.next_ms,
            enforced: answer.mode != Mode::Shadow,
            paused: self.paused,
            window: self.window(),
            overridden: self.in_force.is_some(),
            leased: self.inspection.leased,
            reserved: self.limit.settles().then_some(self.inspection.reserved),
            ttl_ms: self.inspection.ttl_ms,
            redis_key: &self.inspection.key,
            slot: self.inspection.slot,
            node: &self.node,
            generation: answer.generation,
            now_ms: self.inspection.now_ms,
            state: self.inspection.state.as_deref(),
            penalty: BucketPenalty::of(&self.limit, &self.inspection),
            holders: self.holders.as_deref(),
        }
    }

    /// The calendar window that the bucket counts in.
    fn window(&self) -> Option<Window> {
        let quota = match &self.in_force {
            None => &self.limit.quota,
            Some(found) => match &found.quota {
                OverrideQuota::Quota { quota, .. } => quota,
                OverrideQuota::Unlimited => return None,
            },
        };
        Window::of(quota, self.inspection.now_ms)
    }

    fn whole_again(&self) -> String {
        match self.inspection.answer.reset_after_ms {
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
            if self.inspection.leased > 0 {
                let leased = self.inspection.leased;
                line("leased", format!("{leased} of the used, to proxies"));
            }
            if self.inspection.reserved > 0 {
                let reserved = self.inspection.reserved;
                line(
                    "reserved",
                    format!("{reserved}, until responses say their cost"),
                );
            }
            if let Some(ms) = self
                .next_ms
                .filter(|_| self.inspection.answer.remaining > 0)
            {
                line("next unit", format!("in {}", duration(ms)));
            }
            line("whole again", self.whole_again());
        }
        if let Some(penalty) = BucketPenalty::of(&self.limit, &self.inspection) {
            line("penalty", penalty.text);
        }
        if let Some(window) = self.window() {
            line("window", format!("{} to {}", window.starts, window.ends));
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
            None => (&self.limit.quota, String::new()),
            Some(Override {
                quota: OverrideQuota::Unlimited,
                until_ms,
                ..
            }) => {
                return format!("unlimited by its override{}", until(*until_ms));
            }
            Some(Override {
                quota: OverrideQuota::Quota { quota, .. },
                until_ms,
                ..
            }) => (quota, format!(", by its override{}", until(*until_ms))),
        };
        let shadow = match self.inspection.answer.mode {
            Mode::Shadow => ", not enforced: only reported",
            Mode::Enforce | Mode::Degrade => "",
        };
        format!("{}{source}{shadow}", numbers(quota, &self.limit))
    }

    fn usage(&self, used: u64, quota: u64, page: Page) -> String {
        let style = match () {
            () if used >= quota => FULL,
            () if used > quota / 2 => BUSY,
            () => FREE,
        };
        let bar = render::bar(used, quota, page);
        let left = self.inspection.answer.remaining;
        format!("{style}{bar}{style:#} {used} of {quota}, {left} left")
    }

    /// What the next request would get.
    fn requests(&self) -> String {
        let answer = &self.inspection.answer;
        let over = match answer.mode {
            Mode::Enforce => "denied",
            Mode::Degrade => "degraded",
            Mode::Shadow => "over the limit, but let through,",
        };
        match answer.retry_after_ms {
            _ if self.paused => "pass: the limit is paused".to_owned(),
            _ if answer.allowed && answer.delay_ms > 0 => {
                format!("pass after a wait of {}", duration(answer.delay_ms))
            }
            _ if answer.allowed => "pass".to_owned(),
            Some(ms) => format!("{over} for {}", duration(ms)),
            None => format!("{over} always: one takes more than the whole quota"),
        }
    }
}

fn until(until_ms: Option<u64>) -> String {
    until_ms.map_or_else(String::new, |ms| format!(" until {}", format_timestamp(ms)))
}

/// `10/s, burst 20, token_bucket`.
fn numbers(quota: &Quota, limit: &Limit) -> String {
    let parameters = quota.parameters();
    let burst = parameters
        .burst
        .map(|burst| format!(", burst {burst}"))
        .unwrap_or_default();
    let node = limit.to_node_without_overrides();
    let algorithm = node
        .get("algorithm")
        .and_then(Node::as_text)
        .unwrap_or_default();
    format!("{}{burst}, {algorithm}", AmountText(parameters))
}
