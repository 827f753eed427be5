//! The domains in the store, and which revision of each has an object's limits.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kubernetes::{Key, Translation};
use policy::{Limit, Name, Policy};
use store::{Head, HeadState, OverrideEdits, Overrides, Stored};
use tokio::time::Instant;

use super::enforced::Revisions;
use crate::{
    commands::apply::writer::{Holder, NotWritten, Turn, Wanted, Writer, object_of},
    edit::{Planned, PlannedWrite},
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
    /// What the objects say.
    policy: Policy,
    /// What of that is to be written: all but the limits of refused objects.
    wanted: Wanted,
    /// Whether no object has it any more.
    is_abandoned: bool,
    pub(super) revisions: Revisions,
    /// The newest of them.
    pub(super) revision: Option<u64>,
    /// The newest that had a pause of the whole domain, or the first without it.
    paused_until: u64,
    /// Whether the one before had such a pause.
    was_paused: bool,
    /// What of each object is in the store.
    programmed: BTreeMap<Key, Programmed>,
    /// What is about to be.
    owned: BTreeMap<Key, (i64, Vec<Limit>)>,
    /// Objects whose limits do not fit into the domain. What the store has of them stays.
    refused: BTreeMap<Key, Refused>,
    /// Why it could not be written.
    pub(super) error: Option<String>,
    /// Whether that is because the objects of another cluster have it.
    is_foreign: bool,
    /// When that is tried again.
    again: Option<Again>,
}

/// The time until a domain, or an object of it, or a status, that was refused is tried again: it doubles, and begins anew
/// when an object, or this one, changes.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Edits that are tried in a turn to find which objects do not fit. Others of the domain wait meanwhile, so what is not
/// separated by then is refused together, until it is tried again.
const TRIES: usize = 16;
/// Refused objects that one message names.
const NAMED_MAX: usize = 5;

/// When something is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    pub(super) at: Instant,
    waited: Duration,
}

impl Again {
    pub(super) fn after(before: Option<Self>, now: Instant) -> Self {
        let waited = before.map_or(AGAIN, |before| (before.waited * 2).min(AGAIN_MAX));
        let at = now + waited;
        Self { at, waited }
    }
}

/// An object whose limits do not fit.
struct Refused {
    why: String,
    again: Again,
}

/// The limits of an object, as a revision has them.
struct Programmed {
    generation: i64,
    limits: Vec<Limit>,
    revision: u64,
}

impl Domain {
    fn new(policy: Policy) -> Self {
        Self {
            wanted: Wanted::new(policy.clone()),
            policy,
            is_abandoned: false,
            revisions: Revisions::default(),
            revision: None,
            paused_until: 0,
            was_paused: false,
            programmed: BTreeMap::new(),
            owned: BTreeMap::new(),
            refused: BTreeMap::new(),
            error: None,
            is_foreign: false,
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
        self.again.filter(|again| now < again.at)?;
        let why = self.error.as_deref().unwrap_or("it was refused");
        Some(Error::new(Exit::Refused, why.to_owned()))
    }

    /// Takes that it was written.
    fn succeeded(&mut self) {
        (self.error, self.is_foreign, self.again) = (None, false, None);
        self.note();
    }

    /// Takes why it could not be written. Without a store there is nothing to wait for but the store.
    fn failed(&mut self, error: &Error, is_foreign: bool, now: Instant) {
        if is_foreign {
            // What another cluster makes of the limits is not known.
            self.programmed.clear();
        }
        (self.error, self.is_foreign) = (Some(error.plain()), is_foreign);
        let again = Again::after(self.again, now);
        self.again = (error.exit() != Exit::Unreachable).then_some(again);
    }

    /// Wants all but the limits of these objects, of which the store keeps what it has.
    fn leave_out(&mut self, objects: &BTreeSet<Key>) {
        let object = |key: &Key| format!("{}.{}", key.namespace, key.name);
        let (mut left_out, mut of) = (BTreeSet::new(), BTreeMap::new());
        for (key, (_, limits)) in &self.owned {
            let names = limits.iter().map(|limit| &limit.name);
            if objects.contains(key) {
                left_out.extend(names);
                continue;
            }
            let object = object(key);
            let unsaid = names.filter(|name| object_of(name.as_str()) != object);
            of.extend(unsaid.map(|name| (name.to_string(), object.clone())));
        }
        let mut policy = self.policy.clone();
        policy
            .limits
            .retain(|limit| !left_out.contains(&limit.name));
        let stays = objects.iter().map(object).collect();
        self.wanted = Wanted::beside(policy, of, stays);
    }

    /// The reason of the condition that it, or an object of it, is not written.
    pub(super) fn reason(&self) -> &'static str {
        if self.is_foreign {
            "Conflicted"
        } else {
            "NotWritten"
        }
    }

    /// Why an object's limits are not in the store.
    pub(super) fn why_not(&self, object: &Key) -> String {
        let Some(refused) = self.refused.get(object) else {
            let why = self.error.as_deref();
            return why.unwrap_or("it is not written yet").to_owned();
        };
        match self.programmed.get(object) {
            None => refused.why.clone(),
            Some(before) => format!(
                "{}; generation {} stays in the store",
                refused.why, before.generation
            ),
        }
    }

    /// Why not all of the domain could be written.
    pub(super) fn why_not_all(&self) -> Option<String> {
        if self.error.is_some() || self.refused.is_empty() {
            return self.error.clone();
        }
        let one = |(key, refused): (&Key, &Refused)| format!("RateLimit {key}: {}", refused.why);
        let mut all: Vec<String> = self.refused.iter().take(NAMED_MAX).map(one).collect();
        if let Some(more @ 1..) = self.refused.len().checked_sub(NAMED_MAX) {
            all.push(format!("{more} more"));
        }
        Some(format!("not written: {}", all.join("; ")))
    }

    /// The first revision that has an object's limits of a generation as they are now. One before a pause, or an edit by
    /// others that was undone, had them too, but proxies may have one in between.
    pub(super) fn programmed(&self, object: &Key, generation: i64) -> Option<u64> {
        let known = self.programmed.get(object)?;
        // Its limits also change with its routes.
        let (wanted, limits) = self.owned.get(object)?;
        let has_it =
            known.generation == generation && *wanted == generation && known.limits == *limits;
        has_it.then_some(known.revision.max(self.paused_until))
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
            self.paused_until = 0;
        }
        self.revision = Some(revision.number);
        self.revisions.add(&revision);
        let is_paused = self.is_paused(&[]);
        if is_paused || self.was_paused {
            self.paused_until = revision.number;
        }
        self.was_paused = is_paused;
        let written = { self.owned.iter() }.filter(|(key, _)| !self.refused.contains_key(*key));
        for (key, (generation, limits)) in written {
            let known = self.programmed.get_mut(key);
            let known =
                known.filter(|known| known.generation == *generation && known.limits == *limits);
            if let Some(known) = known {
                let compared = self.wanted.compared.as_ref();
                let changed = compared.and_then(|compared| compared.changed_last(limits));
                known.revision = known.revision.max(changed.unwrap_or(0));
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
                domain.policy = nothing(name);
                domain.wanted = Wanted::new(nothing(name));
                domain.again = None;
                domain.owned.clear();
                domain.refused.clear();
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
            if domain.policy != result.policy || domain.owned != owned {
                let before = std::mem::replace(&mut domain.owned, owned);
                let is_same = |key: &Key| before.get(key) == domain.owned.get(key);
                domain.refused.retain(|key, _| is_same(key));
                domain.policy = result.policy.clone();
                domain.leave_out(&domain.refused.keys().cloned().collect());
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
            // Those of other clusters, and those of which nobody knows whose they are, stay.
            let is_own = self.writer.holder(&head.domain).await? == Some(Holder::Own);
            if is_own && !self.by_name.contains_key(&head.domain) {
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
                    (domain.error, domain.is_foreign) = (Some(error.plain()), false);
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
                match self.writer.disown(name).await {
                    Ok(()) => gone.push(name.clone()),
                    Err(error) => failed = Err(error),
                }
                continue;
            }
            if let Some(error) = domain.waits(Instant::now()) {
                failed = Err(error);
                continue;
            }
            match domain.bring(&self.writer, state).await {
                Ok(turn) => {
                    domain.succeeded();
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
                Err(NotWritten::Foreign(_)) if domain.is_abandoned => gone.push(name.clone()),
                Err(error) => {
                    let is_foreign = matches!(error, NotWritten::Foreign(_));
                    let error = error.into_error();
                    domain.failed(&error, is_foreign, Instant::now());
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

// --- Which objects do not fit.
//
// Each object is valid, and all of them together are within a domain's bounds. Still an edit may not fit: with the limits
// that files and people have in the domain, or with an override that somebody made of a limit that becomes another. Then all
// others are written without those that are new, and these by halves.

impl Domain {
    /// Writes what fits.
    async fn bring(&mut self, writer: &Writer<'_>, state: &HeadState) -> Result<Turn, NotWritten> {
        let now = Instant::now();
        let is_due = |refused: &Refused| refused.again.at <= now;
        let (due, mut out): (Vec<_>, Vec<_>) =
            { self.refused.iter() }.partition(|(_, refused)| is_due(refused));
        let mut out: BTreeSet<Key> = out.drain(..).map(|(key, _)| key.clone()).collect();
        if !due.is_empty() {
            self.leave_out(&out);
        }
        let brought = match writer.bring(&mut self.wanted, state).await {
            Err(NotWritten::DoesNotFit(error)) => {
                self.find_refused(writer, state, &error, &mut out).await
            }
            brought => brought.map(|turn| (turn, BTreeMap::new())),
        };
        let (turn, found) = match brought {
            Ok(found) => found,
            Err(error) => {
                // Nothing was found out.
                self.leave_out(&self.refused.keys().cloned().collect());
                return Err(error);
            }
        };
        self.refused
            .retain(|key, refused| !is_due(refused) || found.contains_key(key));
        for (key, why) in found {
            let known = self.refused.get(&key);
            if known.is_none_or(|known| known.why != why) {
                let domain = &self.policy.domain;
                let text = format_args!("{domain}: RateLimit {key} is not written: {why}");
                writer.session.printer.warn(text);
            }
            let again = Again::after(known.map(|known| known.again), now);
            self.refused.insert(key, Refused { why, again });
        }
        Ok(turn)
    }

    /// Writes the domain without the objects that do not fit, which are added to those that are left `out`. Returns why
    /// each does not. `error` is why all of them together do not.
    async fn find_refused(
        &mut self,
        writer: &Writer<'_>,
        state: &HeadState,
        error: &Error,
        out: &mut BTreeSet<Key>,
    ) -> Result<(Turn, BTreeMap<Key, String>), NotWritten> {
        let is_new = |(key, (generation, _)): &(&Key, &(i64, Vec<Limit>))| {
            self.programmed(key, *generation).is_none() && !out.contains(*key)
        };
        let new: Vec<Key> = self
            .owned
            .iter()
            .filter(is_new)
            .map(|(key, _)| key.clone())
            .collect();
        out.extend(new.iter().cloned());
        self.leave_out(out);
        // If this does not fit either, it is no object's fault.
        let mut turn = writer.bring(&mut self.wanted, state).await?;
        let mut found = BTreeMap::new();
        let mut open = vec![(new, error.plain())];
        let mut tries = 0;
        while let Some((mut left, why)) = open.pop() {
            if left.len() < 2 || tries >= TRIES {
                found.extend(left.into_iter().map(|key| (key, why.clone())));
                continue;
            }
            let right = left.split_off(left.len() / 2);
            let mut last_fits = false;
            for half in [left, right] {
                if last_fits {
                    // Both halves together are known not to fit.
                    open.push((half, why.clone()));
                    continue;
                }
                tries += 1;
                out.retain(|key| !half.contains(key));
                self.leave_out(out);
                match writer.bring(&mut self.wanted, state).await {
                    Ok(brought) => {
                        last_fits = true;
                        turn = turn.max(brought);
                    }
                    Err(NotWritten::DoesNotFit(error)) => {
                        out.extend(half.iter().cloned());
                        open.push((half, error.plain()));
                    }
                    Err(failed) => return Err(failed),
                }
            }
        }
        // What was tried last may not have fitted.
        self.leave_out(out);
        let brought = writer.bring(&mut self.wanted, state).await?;
        Ok((turn.max(brought), found))
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
                write: PlannedWrite::Delete(OverrideEdits::default()),
                changes: Vec::new(),
            };
            let written = session.write(writer.edit, domain, base, planned).await;
            written.map_err(|error| session.edit_failed(&error))?;
        }
    }
    writer.forget(domain).await
}

/// Deletes what the objects of the writer's cluster have in the store, and what nobody knows the cluster of, or leaves it
/// there as nobody's. A domain that was claimed and never written is known by its name alone: `--domain`. Returns the domains,
/// and those whose record cannot be read and whose limits are not deleted.
pub(super) async fn release_all(
    writer: &Writer<'_>,
    delete: bool,
) -> Result<[Vec<Name>; 2], Error> {
    let session = writer.session;
    let mut heads = session.call(session.store.heads()).await?;
    let is_listed = |named: &&Name| heads.iter().any(|head| head.domain == **named);
    let named = session.named_domain().filter(|named| !is_listed(named));
    let named = named.cloned().map(|domain| Head {
        domain,
        state: HeadState::Missing,
    });
    heads.extend(named);
    let (mut released, mut unreadable) = (Vec::new(), Vec::new());
    for head in heads {
        if let None | Some(Holder::Other) = writer.holder(&head.domain).await? {
            continue;
        }
        match &head.state {
            HeadState::Unreadable(_) if delete => {
                unreadable.push(head.domain);
                continue;
            }
            HeadState::Live(_) if delete => {
                writer
                    .bring(&mut Wanted::new(nothing(&head.domain)), &head.state)
                    .await
                    .map_err(NotWritten::into_error)?;
                release(writer, &head.domain).await?;
            }
            _ => {}
        }
        writer.forget(&head.domain).await?;
        released.push(head.domain);
    }
    Ok([released, unreadable])
}

#[cfg(test)]
mod tests {
    use policy::{Pause, Revision};

    use super::*;
    use crate::commands::apply::writer::Compared;

    /// A proxy that hangs at a revision in which the limit was paused, or another, denies nothing of it, although it has
    /// one after the first that had the limit.
    #[test]
    fn after_a_pause_or_an_edit_that_was_undone_proxies_need_the_revision_that_ended_it() {
        let policy = b"domain: shop\nlimits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]";
        let policy = limits_file::read("test", policy).unwrap();
        let mut domain = Domain::new(policy.clone());
        let [a, b] = ["a", "b"].map(|name| Key::new("shop", name));
        for (key, limit) in [&a, &b].into_iter().zip(&policy.limits) {
            domain.owned.insert(key.clone(), (1, vec![limit.clone()]));
        }
        // What a comparison finds at a revision: which revision last changed each limit, and a pause of the domain.
        let mut look = |number, changed: [u64; 2], paused| {
            let names = policy.limits.iter().map(|limit| limit.name.clone());
            domain.wanted.compared = Some(Compared {
                revision: Some(Revision {
                    number,
                    digest: number,
                }),
                drift: Vec::new(),
                paused,
                limits_paused: BTreeMap::new(),
                changed: names.zip(changed).collect(),
            });
            domain.note();
            [&a, &b].map(|key| domain.programmed(key, 1))
        };
        let pause = |until_ms| Some(Pause { until_ms });
        assert_eq!(look(5, [4, 5], None), [Some(5), Some(5)]);
        // Edits of others, and of the domain's other limits, move nothing.
        assert_eq!(look(6, [4, 5], None), [Some(5), Some(5)]);
        // A pause of `a`, or another rate, and its end, both between two looks.
        assert_eq!(look(8, [8, 5], None), [Some(8), Some(5)]);
        // The whole domain, whose pause may also end by itself: who has the revision knows when.
        assert_eq!(look(9, [8, 5], pause(None)), [Some(9), Some(9)]);
        assert_eq!(
            look(10, [8, 5], pause(Some(u64::MAX))),
            [Some(10), Some(10)]
        );
        assert_eq!(look(11, [8, 5], pause(Some(1))), [Some(11), Some(11)]);
        assert_eq!(look(12, [8, 5], None), [Some(11), Some(11)]);
        // A store that lost its data begins again.
        assert_eq!(look(2, [2, 2], None), [Some(2), Some(2)]);
    }

    #[test]
    fn a_domain_that_is_refused_is_tried_less_and_less_often() {
        let mut domain = Domain::new(nothing(&"shop".parse().unwrap()));
        let refused = Error::new(Exit::No, "too many limits".to_owned());
        let mut now = Instant::now();
        let waits = [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs);
        for wait in waits {
            assert!(domain.waits(now).is_none());
            domain.failed(&refused, false, now);
            now += wait;
            let just_before = domain.waits(now - Duration::from_millis(1));
            assert!(just_before.is_some_and(|why| why.plain().contains("too many limits")));
        }
        // What every domain waits for is not this one's fault.
        domain.failed(
            &Error::new(Exit::Unreachable, "no store".to_owned()),
            false,
            now,
        );
        assert!(domain.waits(now).is_none());
    }
}
