//! The domains in the store, and which revision of each has an object's limits.

use std::{collections::BTreeMap, time::Duration};

use kubernetes::{Key, Translation};
use policy::{Limit, Name, Policy};
use store::{Head, HeadState, OverrideEdits, Overrides, Stored};
use tokio::time::Instant;

use super::enforced::Revisions;
use crate::{
    commands::apply::writer::{Turn, Wanted, Writer},
    edit::{Planned, Written},
    error::{Error, Exit},
};

/// All domains that objects have, or had.
pub(super) struct Domains<'w> {
    writer: Writer<'w>,
    by_name: BTreeMap<Name, Domain>,
    /// Whether the objects were translated. Before, nothing is known to be abandoned.
    is_wanted: bool,
    /// Whether the store was asked for domains whose objects went while no controller ran.
    found_abandoned: bool,
}

/// One domain.
pub(super) struct Domain {
    wanted: Wanted,
    /// Whether no object has it any more.
    is_abandoned: bool,
    pub(super) revisions: Revisions,
    /// The newest of them.
    pub(super) revision: Option<u64>,
    /// What of each object is in the store.
    programmed: BTreeMap<Key, Programmed>,
    /// What is about to be.
    owned: BTreeMap<Key, (i64, Vec<Limit>)>,
    /// Why it could not be written.
    pub(super) error: Option<String>,
    /// When that is tried again, and how long was waited for it.
    again: Option<(Instant, Duration)>,
}

/// The time until a domain that was refused is tried again: it doubles, and begins anew when an object changes.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// The limits of an object, as a revision has them.
struct Programmed {
    generation: i64,
    limits: Vec<Limit>,
    revision: u64,
}

impl Domain {
    fn new(policy: Policy) -> Self {
        Self {
            wanted: Wanted::new(policy),
            is_abandoned: false,
            revisions: Revisions::default(),
            revision: None,
            programmed: BTreeMap::new(),
            owned: BTreeMap::new(),
            error: None,
            again: None,
        }
    }

    /// Whether one of these limits is paused now, by whatever.
    pub(super) fn is_paused(&self, limits: &[Name]) -> bool {
        let compared = self.wanted.compared.as_ref();
        compared.is_some_and(|compared| compared.is_paused(limits, crate::now_ms()))
    }

    /// Why it is not tried yet, if it was refused a moment ago.
    fn waits(&self, now: Instant) -> Option<Error> {
        self.again.filter(|(at, _)| now < *at)?;
        let why = self.error.as_deref().unwrap_or("it was refused");
        Some(Error::new(Exit::Refused, why.to_owned()))
    }

    /// Takes why it could not be written. Without a store there is nothing to wait for but the store.
    fn failed(&mut self, error: &Error, now: Instant) {
        self.error = Some(error.plain());
        let doubled = self
            .again
            .map_or(AGAIN, |(_, waited)| (waited * 2).min(AGAIN_MAX));
        self.again = (error.exit() != Exit::Unreachable).then_some((now + doubled, doubled));
    }

    /// The first revision that has an object's limits of a generation.
    pub(super) fn programmed(&self, object: &Key, generation: i64) -> Option<u64> {
        let known = self.programmed.get(object)?;
        // Its limits also change with its routes.
        let (wanted, limits) = self.owned.get(object)?;
        let has_it =
            known.generation == generation && *wanted == generation && known.limits == *limits;
        has_it.then_some(known.revision)
    }

    /// What differs from the objects by edits of others.
    pub(super) fn drift(&self) -> &[String] {
        self.wanted
            .compared
            .as_ref()
            .map_or(&[], |compared| &compared.drift)
    }

    /// Adds what was just compared.
    fn note(&mut self) {
        let compared = self.wanted.compared.as_ref();
        let Some(revision) = compared.and_then(|compared| compared.revision.clone()) else {
            return;
        };
        if self.revision.is_some_and(|before| revision.number < before) {
            // The store lost its data, and numbers began again.
            self.programmed.clear();
        }
        self.revision = Some(revision.number);
        self.revisions.add(&revision);
        for (key, (generation, limits)) in &self.owned {
            let known = self.programmed.get(key);
            if known.is_some_and(|known| known.generation == *generation && known.limits == *limits)
            {
                continue;
            }
            let programmed = Programmed {
                generation: *generation,
                limits: limits.clone(),
                revision: revision.number,
            };
            self.programmed.insert(key.clone(), programmed);
        }
        self.programmed
            .retain(|key, _| self.owned.contains_key(key));
    }
}

impl<'w> Domains<'w> {
    pub(super) fn new(writer: Writer<'w>) -> Self {
        Self {
            writer,
            by_name: BTreeMap::new(),
            is_wanted: false,
            found_abandoned: false,
        }
    }

    pub(super) fn get(&self, domain: &Name) -> Option<&Domain> {
        self.by_name.get(domain)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Domain)> {
        self.by_name.iter()
    }

    /// Takes what the objects say now.
    pub(super) fn want(&mut self, translation: &Translation) {
        self.is_wanted = true;
        for (name, domain) in &mut self.by_name {
            if !translation.domains.contains_key(name) && !domain.is_abandoned {
                domain.wanted = Wanted::new(nothing(name));
                domain.again = None;
                domain.owned.clear();
                domain.is_abandoned = true;
            }
        }
        for (name, result) in &translation.domains {
            let known = self.by_name.entry(name.clone());
            let domain = known.or_insert_with(|| Domain::new(result.policy.clone()));
            domain.is_abandoned = false;
            let mut owned: BTreeMap<Key, (i64, Vec<Limit>)> = BTreeMap::new();
            for limit in &result.policy.limits {
                let Some(key) = result.owners.get(&limit.name) else {
                    continue;
                };
                let in_force = translation
                    .objects
                    .get(key)
                    .and_then(|object| object.in_force.as_ref());
                let generation = in_force.map_or(0, |in_force| in_force.generation);
                let limits = owned.entry(key.clone()).or_insert((generation, Vec::new()));
                limits.1.push(limit.clone());
            }
            let is_same = domain.wanted.policy == result.policy && domain.owned == owned;
            domain.owned = owned;
            if !is_same {
                domain.wanted = Wanted::new(result.policy.clone());
                domain.again = None;
            }
        }
    }

    /// Finds, once, the domains whose objects went while no controller ran.
    async fn find_abandoned(&mut self, heads: &[Head]) -> Result<(), Error> {
        if self.found_abandoned || !self.is_wanted {
            return Ok(());
        }
        for head in heads {
            let has_applied = self.writer.has_applied(&head.domain).await?;
            if has_applied && !self.by_name.contains_key(&head.domain) {
                let mut domain = Domain::new(nothing(&head.domain));
                domain.is_abandoned = true;
                self.by_name.insert(head.domain.clone(), domain);
            }
        }
        self.found_abandoned = true;
        Ok(())
    }

    /// Compares each domain with its objects if either changed, and writes it. Returns which were edited. An error in one
    /// domain does not stop others; the last is returned.
    pub(super) async fn bring_all(&mut self) -> (Vec<Name>, Result<(), Error>) {
        let session = self.writer.session;
        let mut edited = Vec::new();
        let heads = match session.call(session.store.heads()).await {
            Ok(heads) => heads,
            Err(error) => {
                for domain in self.by_name.values_mut() {
                    domain.error = Some(error.plain());
                }
                return (edited, Err(error));
            }
        };
        if let Err(error) = self.find_abandoned(&heads).await {
            return (edited, Err(error));
        }
        let mut failed = Ok(());
        let mut gone = Vec::new();
        for (name, domain) in &mut self.by_name {
            let head = heads.iter().find(|head| head.domain == *name);
            let state = head.map_or(&HeadState::Missing, |head| &head.state);
            if domain.is_abandoned && matches!(state, HeadState::Missing | HeadState::Deleted(_)) {
                gone.push(name.clone());
                continue;
            }
            if let Some(error) = domain.waits(Instant::now()) {
                failed = Err(error);
                continue;
            }
            match self.writer.bring(&mut domain.wanted, state).await {
                Ok(turn) => {
                    (domain.error, domain.again) = (None, None);
                    domain.note();
                    if turn == Turn::Edited {
                        edited.push(name.clone());
                    }
                    if domain.is_abandoned {
                        match release(&self.writer, name).await {
                            Ok(()) => gone.push(name.clone()),
                            Err(error) => failed = Err(error),
                        }
                    }
                }
                Err(error) => {
                    domain.failed(&error, Instant::now());
                    failed = Err(error);
                }
            }
        }
        for name in gone {
            self.by_name.remove(&name);
        }
        (edited, failed)
    }
}

/// A domain without limits.
fn nothing(domain: &Name) -> Policy {
    Policy::empty(domain.clone())
}

/// Ends the ownership of a domain that has no limits of objects any more, and deletes it if it has nothing else.
async fn release(writer: &Writer<'_>, domain: &Name) -> Result<(), Error> {
    let session = writer.session;
    let base = session.read(domain, Overrides::None).await?;
    if let Stored::Live(record) = &base {
        let policy = &record.policy;
        if policy.limits.is_empty() && policy.exempt.is_empty() && policy.paused.is_none() {
            let planned = Planned {
                write: Written::Delete(OverrideEdits::default()),
                changes: Vec::new(),
            };
            let written = session.write(writer.edit, domain, base, planned).await;
            written.map_err(|error| session.edit_failed(&error))?;
        }
    }
    writer.forget(domain).await
}

/// Deletes what objects have in the store, or leaves it there as nobody's. Returns the domains.
pub(super) async fn release_all(writer: &Writer<'_>, delete: bool) -> Result<Vec<Name>, Error> {
    let session = writer.session;
    let heads = session.call(session.store.heads()).await?;
    let mut released = Vec::new();
    for head in heads {
        if !writer.has_applied(&head.domain).await? {
            continue;
        }
        if delete && matches!(head.state, HeadState::Live(_)) {
            writer
                .bring(&mut Wanted::new(nothing(&head.domain)), &head.state)
                .await?;
            release(writer, &head.domain).await?;
        }
        writer.forget(&head.domain).await?;
        released.push(head.domain);
    }
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_is_refused_is_tried_less_and_less_often() {
        let mut domain = Domain::new(nothing(&"shop".parse().unwrap()));
        let refused = Error::new(Exit::No, "too many limits".to_owned());
        let mut now = Instant::now();
        let waits = [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs);
        for wait in waits {
            assert!(domain.waits(now).is_none());
            domain.failed(&refused, now);
            now += wait;
            let just_before = domain.waits(now - Duration::from_millis(1));
            assert!(just_before.is_some_and(|why| why.plain().contains("too many limits")));
        }
        // What every domain waits for is not this one's fault.
        domain.failed(&Error::new(Exit::Unreachable, "no store".to_owned()), now);
        assert!(domain.waits(now).is_none());
    }
}
