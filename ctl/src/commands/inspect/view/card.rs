//! A bucket as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use policy::{AmountText, Limit, Node, Quota, format_timestamp};
use protocol::Mode;

use super::{Bucket, HeldSlot};
use crate::{
    bucket,
    penalty::BucketPenalty,
    render::{self, Page, duration},
};

const NAME: Style = Style::new().bold();
const FREE: Style = AnsiColor::Green.on_default();
const BUSY: Style = AnsiColor::Yellow.on_default();
const FULL: Style = AnsiColor::Red.on_default();

impl Bucket {
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

    pub(super) fn card(&self, page: Page) -> String {
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
            if let Some((owed, most)) = self.owed() {
                line("owed", format!("{owed} beyond that, of at most {most}"));
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
