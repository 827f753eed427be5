//! What this limiter tells of itself and of the proxies that ask it, for `rlctl` to read: who
//! follows the limits, what was decided, and who was denied.
//!
//! Once a second everything goes to the store in one pipelined call, on the connection that checks
//! do not use. Nothing waits for it, and nothing is decided by it.

mod busiest;
mod heard;
mod ledger;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Compiled, Name};
use protocol::{Check, DecidedBy, Outcome, compact};
use store::{Denial, Note, Sighting, Store};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{batch::Decisions, domains::Domains};

pub(crate) use heard::Asker;
use heard::Heard;
use ledger::{Due, Ledger};

/// How often the store is told.
const EVERY: Duration = Duration::from_secs(1);

/// Domains whose decisions are told.
const DOMAINS_MAX: usize = 1000;

/// Notes in one call.
const NOTES_MAX: usize = 64;

/// What is told, and what it is gathered in.
pub(crate) struct Telemetry {
    store: Arc<dyn Store>,
    /// What this limiter is called.
    limiter: String,
    heard: Heard,
    ledgers: Mutex<HashMap<Name, Ledger>>,
}

impl Telemetry {
    pub(crate) fn new(store: Arc<dyn Store>, limiter: String) -> Self {
        Self {
            store,
            limiter,
            heard: Heard::default(),
            ledgers: Mutex::default(),
        }
    }

    /// A proxy asked for a domain, of which there need be nothing.
    pub(crate) fn heard(&self, domain: &Name, asker: Asker<'_>) {
        self.heard.hear(domain, asker, Instant::now());
    }

    /// A proxy polled for a domain, and listed the entries that it supplies.
    pub(crate) fn polled(&self, domain: &Name, asker: Asker<'_>, entries: Option<&str>) {
        let now = Instant::now();
        self.heard.hear(domain, asker, now);
        if let Some(list) = entries {
            self.heard.list_entries(domain, asker.id, list, now);
        }
    }

    /// Checks were decided, each asked by a proxy or by none; the decisions are in their order.
    pub(crate) fn decided<'c>(
        &self,
        policy: &Compiled,
        checks: impl Iterator<Item = (&'c Check, Option<&'c str>)>,
        decisions: &Decisions,
    ) {
        let mut ledgers = self.ledgers();
        let Some(ledger) = self.ledger(&mut ledgers, policy.domain()) else {
            return;
        };
        for ((check, proxy), decision) in checks.zip(decisions) {
            let Ok(answer) = decision else {
                continue;
            };
            if check.cost == 0 || check.peek {
                continue;
            }
            for limit in &answer.limits {
                ledger.watch(limit, |outcome| {
                    denial(check, proxy, answer.now_ms, outcome)
                });
            }
        }
    }

    /// A proxy told what it decided by itself.
    pub(crate) fn reported(&self, report: compact::Report) {
        let mut ledgers = self.ledgers();
        if let Some(ledger) = self.ledger(&mut ledgers, &report.domain) {
            ledger.report(report, self.store.about_now_ms());
        }
    }

    /// Tells the store for ever.
    pub(crate) async fn tell(&self, domains: &Domains) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tell_once(domains).await;
        }
    }

    async fn tell_once(&self, domains: &Domains) {
        let sighting = self.sighting(domains);
        let fleet = [Note::Fleet(&sighting)];
        if let Err(error) = self.store.note(&self.limiter, &fleet).await {
            tracing::debug!(%error, "cannot tell who follows the limits");
            return;
        }
        let due = self.close(domains);
        let notes: Vec<Note<'_>> = due
            .iter()
            .flat_map(|(domain, due)| due.iter().map(move |due| (domain, due)))
            .map(|(domain, due)| Note::Activity {
                domain,
                slot: due.slot,
                noted: &due.noted,
            })
            .collect();
        for notes in notes.chunks(NOTES_MAX) {
            if let Err(error) = self.store.note(&self.limiter, notes).await {
                // What was counted stays, and is told when the store is back.
                tracing::debug!(%error, "cannot tell what was decided");
                return;
            }
        }
        let now_ms = self.store.about_now_ms();
        let mut ledgers = self.ledgers();
        for (domain, due) in &due {
            if let Some(ledger) = ledgers.get_mut(domain) {
                ledger.told(due, now_ms);
            }
        }
    }

    fn sighting(&self, domains: &Domains) -> Sighting {
        let all = domains.all();
        let in_force = all.iter().filter_map(|(name, domain)| {
            let revision = domain.active.as_ref()?.compiled.revision();
            Some((name.clone(), revision.clone()))
        });
        let alive = self.heard.alive(Instant::now());
        Sighting {
            revisions: in_force.collect(),
            proxies: alive.proxies,
            entries: alive.entries,
        }
    }

    /// What is due, by domain. Domains that are gone are forgotten.
    fn close(&self, domains: &Domains) -> Vec<(Name, Vec<Due>)> {
        let all = domains.all();
        let now_ms = self.store.about_now_ms();
        let mut ledgers = self.ledgers();
        ledgers.retain(|name, _| all.contains_key(name));
        let mut due = Vec::new();
        for (name, domain) in &*all {
            if let Some(active) = &domain.active
                && let Some(ledger) = self.ledger(&mut ledgers, name)
            {
                due.push((name.clone(), ledger.close(&active.counters, now_ms)));
            }
        }
        due
    }

    /// A domain's ledger, unless there are too many.
    fn ledger<'l>(
        &self,
        ledgers: &'l mut HashMap<Name, Ledger>,
        domain: &Name,
    ) -> Option<&'l mut Ledger> {
        if !ledgers.contains_key(domain) && ledgers.len() < DOMAINS_MAX {
            let ledger = Ledger::new(self.store.about_now_ms());
            ledgers.insert(domain.clone(), ledger);
        }
        ledgers.get_mut(domain)
    }

    fn ledgers(&self) -> MutexGuard<'_, HashMap<Name, Ledger>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was over a limit, as far as people need to know it.
fn denial(check: &Check, proxy: Option<&str>, at_ms: u64, outcome: Outcome) -> Denial {
    let entries = check.descriptor.iter();
    let descriptor = entries.map(|(name, value)| (name.clone(), busiest::cut(value).to_vec()));
    Denial {
        at_ms,
        outcome,
        by: DecidedBy::Limiter,
        proxy: proxy.map(str::to_owned),
        descriptor: descriptor.collect(),
    }
}
