//! Orphans: keys of deleted limits, which nothing reads unless a limit of that name is created.

use std::collections::BTreeMap;

use insight::{Finding, Severity};
use policy::{Name, Policy};
use serde::Serialize;
use store::{Cursor, LimitKey, LimitKeyKind, StoreError};

use crate::{error::Error, render::counted, session::Session};

/// Limits whose orphans are listed one by one.
const LIMITS_MAX: usize = 10;
/// Orphans of one limit whose TTL is read.
const ASKED_MAX: usize = 20;

/// How much was scanned.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Looked {
    /// The number of keys, approximately.
    pub at: u64,
    /// Whether all keys were scanned.
    pub all: bool,
}

/// The orphans of one limit.
#[derive(Default)]
struct Left {
    buckets: usize,
    /// Some of them.
    keys: Vec<String>,
    overrides: Option<String>,
    /// The limit exists, and its `per` has changed.
    split_otherwise: bool,
}

/// The domains there are, and the client command that deletes orphans.
pub struct Known<'a> {
    /// The limits of all domains that can be read.
    pub policies: &'a [Policy],
    /// Domains that cannot be read; their keys are not reported.
    pub unreadable: &'a [Name],
    /// The command line of Redis's own client for this server.
    pub client: String,
}

/// Scans `max` keys (0: all) for keys that belong to no limit.
pub async fn look(
    session: &Session<'_>,
    known: &Known<'_>,
    max: u64,
) -> Result<(Vec<Finding>, Looked), Error> {
    let mut left: BTreeMap<(Name, Name), Left> = BTreeMap::new();
    let (mut looked, mut cursor) = (Looked::default(), Some(Cursor::default()));
    while let Some(from) = cursor
        && (max == 0 || looked.at < max)
    {
        let page = match session.store.scan_keys(from).await {
            Err(StoreError::Refused(refusal)) if refusal.code == "NOPERM" => {
                return Ok((vec![not_permitted(session)], looked));
            }
            page => page.map_err(|error| session.failed(&error))?,
        };
        looked.at += page.scanned;
        cursor = page.next;
        for held in page.keys {
            let (domain, limit) = held.of();
            if !known.unreadable.contains(domain) {
                let key = (domain.clone(), limit.clone());
                note(known.policies, held, || left.entry(key).or_default());
            }
        }
    }
    looked.all = cursor.is_none();
    let mut findings = Vec::new();
    for ((domain, limit), left) in left.into_iter().take(LIMITS_MAX) {
        findings.extend(
            left.findings(session, &known.client, (&domain, &limit))
                .await?,
        );
    }
    Ok((findings, looked))
}

fn not_permitted(session: &Session<'_>) -> Finding {
    Finding::new(
        Severity::Info,
        "orphans",
        session.store.address(),
        "this user may not list keys (SCAN)",
        "so leftovers of deleted limits were not searched for",
    )
}

fn note<'l>(policies: &[Policy], held: LimitKey, left: impl FnOnce() -> &'l mut Left) {
    let (domain, limit) = held.of();
    let policy = policies.iter().find(|policy| policy.domain == *domain);
    let known = policy.and_then(|policy| policy.limit(limit.as_str()));
    match (held.what, known) {
        (LimitKeyKind::Overrides { .. }, None) => left().overrides = Some(held.key),
        (LimitKeyKind::Overrides { .. }, Some(_)) => {}
        (LimitKeyKind::Bucket(bucket), known) => {
            let fits = known.map(|limit| bucket.arrange(&limit.per, &limit.partition).is_some());
            if fits != Some(true) {
                let left = left();
                left.split_otherwise = fits.is_some();
                left.buckets += 1;
                if left.keys.len() < ASKED_MAX {
                    left.keys.push(held.key);
                }
            }
        }
    }
}

impl Left {
    async fn findings(
        self,
        session: &Session<'_>,
        client: &str,
        (domain, limit): (&Name, &Name),
    ) -> Result<Vec<Finding>, Error> {
        let place = format!("{domain}/{limit}");
        let mut findings = Vec::new();
        if let Some(key) = &self.overrides {
            let finding = Finding::new(
                Severity::Warning,
                "orphans",
                &place,
                "there is no such limit, but overrides of it are stored",
                "a limit created with this name would have them at once",
            );
            findings.push(finding.mend(format!("{client} unlink '{key}'")));
        }
        if self.buckets > 0 {
            let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
            let ttls = session.store.ttls_ms(&keys).await;
            let ttls = ttls.map_err(|error| session.failed(&error))?;
            let stay = ttls.iter().any(Option::is_none);
            let glob = session.keys().buckets_of(domain, limit);
            let unlink = format!("{client} --scan --pattern '{glob}' | xargs {client} unlink");
            findings.push(self.buckets_of((domain, limit), stay.then_some(unlink)));
        }
        Ok(findings)
    }

    /// `unlink`: the command that deletes them, if they do not expire.
    fn buckets_of(&self, (domain, limit): (&Name, &Name), unlink: Option<String>) -> Finding {
        let place = format!("{domain}/{limit}");
        let buckets = counted(self.buckets, "bucket");
        let what = if self.split_otherwise {
            format!("{buckets} of another `per` or `partition`")
        } else {
            format!("{buckets} of a limit that does not exist")
        };
        let Some(unlink) = unlink else {
            let why = "nothing reads them; they expire when they would have been unused";
            return Finding::new(Severity::Info, "orphans", place, what, why);
        };
        let why = "nothing reads them, and not all of them expire: another program wrote or persisted them";
        let finding = Finding::new(Severity::Warning, "orphans", place, what, why);
        if self.split_otherwise {
            return finding.mend(format!(
                "rlctl list-keys --domain {domain} --limit {limit} -o wide    # then unlink them"
            ));
        }
        finding.mend(unlink)
    }
}
