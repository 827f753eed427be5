//! Which limiters and proxies have an edit, and waiting until all of them do.

use std::time::{Duration, Instant};

pub use insight::{findings::fleet::is_current, limiter_name, proxy_name};
use policy::Name;
use store::{Fleet, LimiterStatus, ProxyStatus, StoreError};
use tokio::time::sleep;

use crate::{
    edit::{EditArgs, EditReport},
    error::Error,
    exit::Exit,
    render::{self, counted, duration},
    session::Session,
    suggest,
};

/// The time between two reads of the fleet while an edit spreads. Limiters report once a second.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A proxy contacts its limiter several times a second. One without a call for this long has most
/// likely stopped, and `--wait` does not wait for it.
pub const SILENT_AFTER_MS: u64 = 3000;

/// The most names in one message.
const NAMED_MAX: usize = 5;

/// A limiter or proxy that does not have an edit yet.
#[derive(Debug)]
struct Behind {
    name: String,
    revision: Option<u64>,
    ago_ms: u64,
}

impl Session<'_> {
    /// Shows an edit and follows it up.
    pub async fn finish(&self, report: &EditReport, args: &EditArgs) -> Result<Exit, Error> {
        self.printer.data(report)?;
        self.follow_up_edit(report, args).await
    }

    /// See [`Session::follow_up`].
    pub async fn follow_up_edit(
        &self,
        report: &EditReport,
        args: &EditArgs,
    ) -> Result<Exit, Error> {
        let domain: Name = Name::domain(&report.domain).map_err(|error| {
            Error::new(
                Exit::Refused,
                format!("domain `{}`: {error}", report.domain),
            )
        })?;
        let revision = report.revision.filter(|_| !args.dry_run);
        self.follow_up(&domain, revision, args).await
    }

    /// Follows up an edit: warns if no proxy polls the domain, and waits for the fleet if `args`
    /// ask for that. `revision` is `None` if there was nothing to write.
    pub async fn follow_up(
        &self,
        domain: &Name,
        revision: Option<u64>,
        args: &EditArgs,
    ) -> Result<Exit, Error> {
        let wait_ms = args.wait;
        let fleet = match self.store.fleet().await {
            Ok(fleet) => fleet,
            // The edit is made; the fleet is needed for warnings only.
            Err(_) if wait_ms.is_none() || revision.is_none() => return Ok(Exit::Done),
            Err(_) => Fleet::default(),
        };
        self.warn_if_unused(domain, &fleet);
        match (wait_ms, revision) {
            (Some(wait_ms), Some(revision)) => self.wait(domain, revision, wait_ms).await,
            _ => Ok(Exit::Done),
        }
    }

    /// Warns if no proxy polls the domain: its name is probably a typo.
    fn warn_if_unused(&self, domain: &Name, fleet: &Fleet) {
        if fleet.proxies.contains_key(domain) || fleet.proxies.is_empty() {
            return;
        }
        let polled = render::truncated_list(fleet.proxies.keys(), NAMED_MAX);
        self.printer.warn(format_args!(
            "no proxy polls domain {domain}; proxies poll {polled}"
        ));
        let known = fleet.proxies.keys().map(Name::as_str);
        if let Some(meant) = suggest::closest(domain.as_str(), known) {
            self.printer
                .hint(format_args!("did you mean --domain {meant}?"));
        }
    }

    async fn wait(&self, domain: &Name, revision: u64, wait_ms: u64) -> Result<Exit, Error> {
        let started = Instant::now();
        let elapsed_ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        loop {
            let fleet = match self.store.fleet().await {
                Ok(fleet) => fleet,
                Err(_) if elapsed_ms() < wait_ms => {
                    sleep(POLL_INTERVAL).await;
                    continue;
                }
                Err(error) => return Err(self.fleet_unreadable(revision, &error)),
            };
            let (behind, silent) = behind(&fleet, domain, revision);
            if behind.is_empty() {
                self.note_rollout(domain, revision, &fleet, elapsed_ms());
                if !silent.is_empty() {
                    let names = describe(&silent);
                    self.printer.warn(format_args!(
                        "not waited for, no report in the last 3 s: {names}"
                    ));
                }
                return Ok(Exit::Done);
            }
            if elapsed_ms() >= wait_ms {
                let message = format!(
                    "revision {revision} is written, but after {} not every limiter and proxy has it",
                    duration(wait_ms)
                );
                return Err(Error::new(Exit::Behind, message)
                    .hint(describe(&behind))
                    .hint("`rlctl list-proxies` shows the revision of each limiter and proxy"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The edit is written, but the fleet cannot be read.
    fn fleet_unreadable(&self, revision: u64, error: &StoreError) -> Error {
        let message = format!(
            "revision {revision} is written; which limiters and proxies have it cannot be read"
        );
        Error::new(Exit::Behind, message)
            .hint(self.failed(error).to_string())
            .hint("`rlctl list-proxies` shows the revision of each limiter and proxy")
    }

    /// Notes that a read for warnings failed after an edit. The edit itself succeeded.
    pub fn note_read_failure(&self, read: Result<(), Error>) {
        if let Err(error) = read {
            self.printer.note(format_args!(
                "the edit above is made; a read after it failed: {error}"
            ));
        }
    }

    fn note_rollout(&self, domain: &Name, revision: u64, fleet: &Fleet, took_ms: u64) {
        let alive = |ago_ms: u64| ago_ms <= SILENT_AFTER_MS;
        let proxies = fleet.proxies.get(domain).into_iter().flatten();
        let proxies = proxies.filter(|proxy| alive(proxy.ago_ms)).count();
        let limiters = fleet.limiters.iter().filter(|l| alive(l.ago_ms)).count();
        if proxies + limiters == 0 {
            let nobody = "no limiter or proxy has reported in the last 3 s: nothing to wait for";
            return self.printer.warn(nobody);
        }
        let plural = if proxies == 1 { "proxy" } else { "proxies" };
        self.printer.note(format_args!(
            "{} and {proxies} {plural} have revision {revision}, after {}",
            counted(limiters, "limiter"),
            duration(took_ms)
        ));
    }
}

/// Limiters and proxies that lack a revision: those that report, and those that are silent.
fn behind(fleet: &Fleet, domain: &Name, revision: u64) -> (Vec<Behind>, Vec<Behind>) {
    let limiter = |limiter: &LimiterStatus| Behind {
        name: format!("limiter {}", limiter_name(&limiter.id)),
        revision: limiter.revisions.get(domain).map(|r| r.number),
        ago_ms: limiter.ago_ms,
    };
    let proxy = |proxy: &ProxyStatus| Behind {
        name: format!("proxy {}", proxy_name(proxy)),
        revision: proxy.revision.as_ref().map(|r| r.number),
        ago_ms: proxy.ago_ms,
    };
    let proxies = fleet.proxies.get(domain).into_iter().flatten().map(proxy);
    let all = fleet.limiters.iter().map(limiter).chain(proxies);
    // One that has a later edit has this one too.
    let lack = all.filter(|who| who.revision.is_none_or(|has| has < revision));
    lack.partition(|who| who.ago_ms <= SILENT_AFTER_MS)
}

fn describe(all: &[Behind]) -> String {
    let one = |who: &Behind| match who.revision {
        Some(revision) => format!("{} has revision {revision}", who.name),
        None => format!("{} has none", who.name),
    };
    let mut names: Vec<String> = all.iter().take(NAMED_MAX).map(one).collect();
    if all.len() > NAMED_MAX {
        names.push(format!("{} more", all.len() - NAMED_MAX));
    }
    names.join(", ")
}
