//! Snapshots: the limits as limiters send them to filters, some of which are of another version.
//!
//! A snapshot is compact (see `cbor`): the domain, its revision, the descriptor entries to extract,
//! and the limits without their overrides. Each limit is bytes of its own with a hash of them, so
//! that it can be read alone, and later be named by its hash instead of sent again.
//!
//! Everything is an array. A later version adds fields at the end, which earlier ones skip. If an
//! earlier version must not decide a limit that has one, the limit gets a higher [`LEVEL`]. A limit
//! that a filter cannot read is [`Opaque`]: the filter does not decide it, but sends every request to
//! which it may apply to the limiter, which can read it.
//!
//! A word with a fixed set of values is sent as its position in [`Choice::CHOICES`].
//!
//! A filter that has a snapshot gets *changes* instead where they are short: the limits that are new, other
//! or elsewhere in the order, the names of those that went, and a sum over all limits, by which the filter
//! is sure that it has the limits of that revision and no mixture. So changes may also be sent to a filter
//! whose revision the limiter never had: if they do not fit, it asks for the whole.

use std::{collections::HashMap, ops::Range, slice, sync::Arc};

use algorithms::{Adaptive, CalendarUnit, Edges, Parameters, Penalty, Rate, UTC, WINDOWS_KNOWN};
use cbor::{DecodeError, Reader, Writer};
use documents::{Choice, Name};
use patterns::Pattern;

use crate::{
    Algorithm, BucketEdit, BucketEdits, Compiled, Entries, Exemption, IfAbsent, Limit, MAX_COST,
    Matcher, OnFailure, Override, OverrideQuota, Pause, Pointer, Pricing, RequestPlace,
    RequestPrice, RequestValue, Reserve, ResponsePrice, ResponseValue, Revision, Row, Scope,
    Source, Term,
    compiled::{Change, Changed, check_of},
    digest,
    limit::ChoiceOf,
    wire::{Wire, write_list},
};

/// The version of the snapshot as a whole. A filter refuses any other, and keeps the limits that it has.
const FORMAT: u64 = 1;
/// In the place of [`FORMAT`], for changes.
const CHANGES: u64 = 2;
/// The version of the meaning of a limit's fields. Raise it, for the limits concerned only, when a
/// known field or value gets another meaning, or when a new field must not be ignored.
const LEVEL: u64 = 1;

const SNAPSHOT_FIELDS: usize = 6;
const CHANGES_FIELDS: usize = 7;
/// The fields that limits and exemptions start with.
const HEADER_FIELDS: usize = 4;

// Bounds of lists. Those of limits files are lower or equal: a filter relies on none of them but to
// bound its memory.
const MAX_KEYS: usize = 4096;
const MAX_LIMITS: usize = 10_000;
const MAX_EXEMPTIONS: usize = 1000;
const MAX_OVERRIDES: usize = 1000;
const MAX_PATTERNS: usize = 1000;
const MAX_NAMES: usize = 256;
const MAX_SLOTS: usize = 256;

/// Why bytes are no snapshot that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Another version's.
    #[error("format {0}, and this version reads {FORMAT}")]
    Format(u64),
    /// More than so many bytes. The limiter should not have such limits.
    #[error("it has more than {0} bytes; split its limits over several domains")]
    TooLarge(usize),
    /// No snapshot at all, or a damaged one.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// A limit that this version cannot interpret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opaque {
    /// Its name, if it has one that this version can read.
    pub name: Option<Name>,
    /// When it applies, as far as that can be read; without a condition, to every request.
    pub matchers: Vec<Matcher>,
    /// What to do while no limiter answers; `None` if that cannot be read either.
    pub on_failure: Option<OnFailure>,
}

impl Opaque {
    /// Whether it may apply to a request.
    pub fn may_match(&self, entries: &(impl Entries + ?Sized)) -> bool {
        let mut matchers = self.matchers.iter();
        matchers.all(|matcher| matcher.holds(entries.get(matcher.entry.as_str())))
    }
}

impl Compiled {
    /// The snapshot of this policy. `edges` returns those of calendar windows around the time for
    /// which it is made.
    pub fn to_snapshot(&self, edges: &dyn Fn(&Parameters) -> Option<Edges>) -> Vec<u8> {
        self.encoded(edges).bytes
    }

    fn encoded(&self, edges: &dyn Fn(&Parameters) -> Option<Edges>) -> Encoded {
        let (mut writer, mut parts) = (Writer::default(), Vec::new());
        let revision = self.revision();
        writer.array(SNAPSHOT_FIELDS);
        writer.unsigned(FORMAT);
        writer.text(self.domain().as_str());
        revision.write(&mut writer);
        write_list(&mut writer, self.needed_keys());
        // Only limiters decide limits of the rate limit service.
        let limits = self.limits().iter().enumerate();
        let limits = limits.filter(|(_, limit)| limit.descriptor.is_none());
        let limits: Vec<_> = limits.collect();
        writer.list(limits.into_iter(), |writer, (at, limit)| {
            // Only the proxy decides these limits, so it needs their overrides.
            let overrides = self.overrides(at).filter(|_| limit.scope == Scope::Proxy);
            let overrides: Vec<&Override> = overrides.collect();
            let elsewhere = limit.scope == Scope::Global && self.has_overrides(at);
            // On each limit, so that a filter has one place to look.
            let paused = Pause::later(limit.paused, self.paused());
            let (hash, bytes) = write_alone(writer, |writer| {
                write_limit(writer, limit, paused, (elsewhere, &overrides), edges);
            });
            let name = limit.name.clone();
            parts.push((name, hash, bytes));
        });
        let mut exemptions = Vec::new();
        writer.list(self.exemptions().iter(), |writer, exemption| {
            let (hash, _) = write_alone(writer, |writer| {
                writer.array(HEADER_FIELDS);
                let on_failure = OnFailure::default();
                write_header(writer, &exemption.name, on_failure, &exemption.matchers);
            });
            exemptions.push(hash);
        });
        Encoded {
            exemptions: check_of(exemptions, 0),
            bytes: writer.0,
            parts,
        }
    }

    /// Reads and compiles a snapshot.
    ///
    /// # Errors
    /// What is wrong with it as a whole; a limit that cannot be read is [`Opaque`].
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, SnapshotError> {
        // Of another format nothing is certain but that its number comes first.
        let format = Reader::new(bytes).fields(1, Reader::unsigned)?;
        if format != FORMAT {
            return Err(SnapshotError::Format(format));
        }
        Ok(Reader::new(bytes).fields(SNAPSHOT_FIELDS, read_snapshot)?)
    }

    /// These limits after the changes that [`Snapshot::since`] wrote; `None` if that are no changes of these
    /// limits, or one of them cannot be read: only the whole says what to do with such a limit.
    pub fn with_changes(&self, bytes: &[u8]) -> Option<Self> {
        let read = Reader::new(bytes).fields(CHANGES_FIELDS, |reader| self.read_change(reader));
        let (change, check) = read.ok()?;
        self.changed(change, check).filter(|next| {
            next.limits().len() <= MAX_LIMITS && next.needed_keys().len() <= MAX_KEYS
        })
    }

    /// Changes, and the [`check_of`] what they lead to.
    fn read_change(&self, reader: &mut Reader<'_>) -> Result<(Change, u64), DecodeError> {
        if reader.unsigned()? != CHANGES || Name::read(reader)? != *self.domain() {
            return Err(DecodeError::Type);
        }
        let (revision, check) = (Revision::read(reader)?, reader.unsigned()?);
        let change = Change {
            revision,
            keys: reader.list(MAX_KEYS, "keys", Name::read)?,
            gone: reader.list(MAX_LIMITS, "names", Name::read)?,
            limits: reader.list(MAX_LIMITS, "limits", |reader| {
                reader.fields(2, |reader| {
                    let rank = small(reader.unsigned()?)?;
                    read_changed(reader, rank)?.map_err(|_| DecodeError::Type)
                })
            })?,
        };
        Ok((change, check))
    }
}

/// Writes a limit, with the overrides that proxies get; `elsewhere`: there are some that only limiters have.
fn write_limit(
    writer: &mut Writer,
    limit: &Limit,
    paused: Option<Pause>,
    (elsewhere, overrides): (bool, &[&Override]),
    edges: &dyn Fn(&Parameters) -> Option<Edges>,
) {
    let parameters = limit.quota.parameters();
    writer.array(24);
    write_header(writer, &limit.name, limit.on_failure, &limit.matchers);
    write_list(writer, &limit.per);
    write_choice(writer, limit.if_missing);
    write_quota(writer, parameters, edges(parameters));
    writer.unsigned(limit.cost);
    writer.optional(limit.pricing.as_deref(), |writer, pricing| {
        pricing.write(writer);
    });
    write_choice(writer, limit.over_limit);
    limit.penalty.write(writer);
    writer.unsigned(limit.enforce_percent.into());
    write_choice(writer, limit.scope);
    writer.optional(limit.precheck_percent.map(u64::from), Writer::unsigned);
    limit.lease_ttl_ms.write(writer);
    writer.boolean(limit.hidden);
    write_list(writer, &limit.replaces);
    paused.write(writer);
    limit.fleet_size.write(writer);
    writer.unsigned(limit.generation);
    writer.boolean(elsewhere);
    writer.list(overrides.iter(), |writer, found| {
        write_override(writer, found, &limit.quota, edges);
    });
    writer.optional(limit.deny_status.map(u64::from), Writer::unsigned);
    write_bucket_edits(writer, limit);
}

fn write_bucket_edits(writer: &mut Writer, limit: &Limit) {
    let edits = limit.bucket_edits.iter();
    let edits: Vec<&BucketEdit> = edits
        .filter(|edit| edit.generation > limit.generation)
        .collect();
    writer.list(edits.into_iter(), |writer, edit| {
        writer.array(2);
        writer.unsigned(edit.slot.into());
        writer.unsigned(edit.generation);
    });
}

/// The most bytes that a limit takes of a snapshot, without overrides: of what changes by itself (edges of
/// calendar windows, its generation) and of pauses the longest form. Edits of its buckets beyond the
/// [few of each limit](BucketEdits::most) take 12 bytes each besides: of all limits together at most 60 KB,
/// since the n-th limit of a domain gets 512 / n more.
pub fn snapshot_bytes(limit: &Limit) -> usize {
    const PAUSE: Pause = Pause {
        until_ms: Some(u64::MAX),
    };
    const GENERATION: usize = 9;
    /// The hash of its bytes, and how many these are.
    const ALONE: usize = 1 + 9 + 5;
    const EDITS: usize = 3 + BucketEdits::OF_EACH * (1 + 2 + GENERATION);
    // Limiters alone decide those of the rate limit service.
    if limit.descriptor.is_some() {
        return 0;
    }
    let edges = |parameters: &Parameters| {
        let calendar = parameters.rate.calendar;
        calendar.map(|_| Edges::new(u32::MAX, [u64::MAX; WINDOWS_KNOWN + 1]))
    };
    let mut writer = Writer::default();
    write_limit(&mut writer, limit, Some(PAUSE), (false, &[]), &edges);
    // Whichever edits were made so far: an edit of the limit is the difference of two such sums.
    let mut so_far = Writer::default();
    so_far.unsigned(limit.generation);
    write_bucket_edits(&mut so_far, limit);
    writer.0.len() - so_far.0.len() + GENERATION + EDITS + ALONE
}

fn read_snapshot(reader: &mut Reader<'_>) -> Result<Compiled, DecodeError> {
    let _format = reader.unsigned()?;
    let domain = Name::read(reader)?;
    let revision = Revision::read(reader)?;
    let keys: Vec<Name> = reader.list(MAX_KEYS, "keys", Name::read)?;
    let (mut limits, mut opaque) = (Vec::new(), Vec::new());
    let mut rank = 0;
    reader.list(MAX_LIMITS, "limits", |reader| {
        match read_changed(reader, rank)? {
            Ok(limit) => limits.push(limit),
            Err(limit) => opaque.push(limit),
        }
        rank += 1;
        Ok(())
    })?;
    let mut exemptions = Vec::new();
    let mut hashes = Vec::new();
    reader.list(MAX_EXEMPTIONS, "exemptions", |reader| {
        let (hash, read) = read_alone(reader, read_exemption)?;
        hashes.push(hash);
        match read {
            Ok(exemption) => exemptions.push(exemption),
            // The limiter decides requests that it may exempt.
            Err(limit) => opaque.push(limit),
        }
        Ok(())
    })?;
    let change = Change {
        revision,
        keys,
        gone: Vec::new(),
        limits,
    };
    let exemptions = (exemptions, check_of(hashes, 0));
    Compiled::of_snapshot(domain, change, exemptions, opaque).ok_or(DecodeError::Index)
}

/// Reads a limit with its hash.
#[inline(never)]
fn read_changed(
    reader: &mut Reader<'_>,
    rank: usize,
) -> Result<Result<Changed, Opaque>, DecodeError> {
    let (hash, read) = read_alone(reader, read_limit)?;
    Ok(read.map(|(limit, elsewhere)| Changed {
        rank,
        hash,
        limit,
        elsewhere,
    }))
}

/// Writes what can be read alone: the hash of its bytes, and these. Returns the hash, and where both are.
fn write_alone(writer: &mut Writer, write: impl FnOnce(&mut Writer)) -> (u64, Range<usize>) {
    let mut alone = Writer::default();
    write(&mut alone);
    let (hash, start) = (digest(&alone.0), writer.0.len());
    writer.array(2);
    writer.unsigned(hash);
    writer.bytes(&alone.0);
    (hash, start..writer.0.len())
}

/// Reads what [`write_alone`] wrote; the inner error is what could be read of it nevertheless.
fn read_alone<T>(
    reader: &mut Reader<'_>,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<(u64, Result<T, Opaque>), DecodeError> {
    let (hash, bytes) = reader.fields(2, |reader| Ok((reader.unsigned()?, reader.bytes()?)))?;
    if digest(bytes) != hash {
        // Nothing in it is certain, so it may apply to every request.
        return Ok((hash, Err(Opaque::default())));
    }
    let read = read(&mut Reader::new(bytes));
    Ok((hash, read.map_err(|_| read_opaque(bytes))))
}

/// What is certain of a limit or an exemption of another version: the fields that each starts with.
fn read_opaque(bytes: &[u8]) -> Opaque {
    let mut opaque = Opaque::default();
    let mut read = |reader: &mut Reader<'_>| {
        let _level = reader.unsigned()?;
        opaque.name = Name::read(&mut Reader::new(reader.item()?)).ok();
        opaque.on_failure = choice(&mut Reader::new(reader.item()?)).ok();
        // A condition that cannot be read counts as one that holds.
        reader.list(MAX_NAMES, "matchers", |reader| {
            opaque
                .matchers
                .extend(Matcher::read(&mut Reader::new(reader.item()?)));
            Ok(())
        })
    };
    // Bytes of no limit at all are a limit of which nothing is known.
    let _ = Reader::new(bytes).fields(HEADER_FIELDS, &mut read);
    opaque
}

fn read_exemption(reader: &mut Reader<'_>) -> Result<Exemption, DecodeError> {
    reader.fields(HEADER_FIELDS, |reader| {
        let (name, _, matchers) = read_header(reader)?;
        if matchers.is_empty() {
            return Err(DecodeError::Bounds("matchers"));
        }
        Ok(Exemption { name, matchers })
    })
}

/// What limits and exemptions start with, in every version.
fn write_header(writer: &mut Writer, name: &Name, on_failure: OnFailure, matchers: &[Matcher]) {
    writer.unsigned(LEVEL);
    name.write(writer);
    write_choice(writer, on_failure);
    write_list(writer, matchers);
}

fn read_header(reader: &mut Reader<'_>) -> Result<(Name, OnFailure, Vec<Matcher>), DecodeError> {
    if reader.unsigned()? != LEVEL {
        return Err(DecodeError::Bounds("level"));
    }
    let (name, on_failure) = (Name::read(reader)?, choice(reader)?);
    Ok((
        name,
        on_failure,
        reader.list(MAX_NAMES, "matchers", Matcher::read)?,
    ))
}

fn read_bucket_edits(reader: &mut Reader<'_>) -> Result<BucketEdits, DecodeError> {
    let mut edits = BucketEdits::default();
    reader.list(MAX_SLOTS, "edits", |reader| {
        let read = |reader: &mut Reader<'_>| Ok((small(reader.unsigned()?)?, reader.unsigned()?));
        let (slot, generation) = reader.fields(2, read)?;
        edits.add(BucketEdit {
            slot,
            generation,
            reset_generation: 0,
        });
        Ok(())
    })?;
    Ok(edits)
}

/// A limit, and whether it has overrides that only limiters have.
fn read_limit(reader: &mut Reader<'_>) -> Result<(Limit, bool), DecodeError> {
    reader.fields_and(22, 2, |reader, more| {
        let (name, on_failure, matchers) = read_header(reader)?;
        let per = reader.list(MAX_NAMES, "per", Name::read)?;
        let (per_len, if_missing, quota) = (per.len(), choice(reader)?, read_quota(reader)?);
        let longest_ms = quota.lease_max_ms().unwrap_or(0);
        let has_overrides;
        // What is read is in the order in which it was written.
        let limit = Limit {
            name,
            description: None,
            descriptor: None,
            on_failure,
            matchers,
            per,
            if_missing,
            quota,
            cost: within(reader, 1, MAX_COST)?,
            pricing: reader.optional(Pricing::read)?.map(Box::new),
            over_limit: choice(reader)?,
            penalty: reader.optional(Penalty::read)?,
            enforce_percent: small(within(reader, 0, 100)?)?,
            scope: choice(reader)?,
            precheck_percent: reader.optional(|reader| small(within(reader, 100, 10_000)?))?,
            lease_ttl_ms: reader.optional(|reader| within(reader, 1, longest_ms))?,
            hidden: reader.boolean()?,
            replaces: reader.list(MAX_LIMITS, "replaces", Name::read)?,
            partition: Vec::new(),
            paused: reader.optional(Pause::read)?,
            fleet_size: reader.optional(|reader| within(reader, 1, u64::MAX))?,
            generation: reader.unsigned()?,
            reset_generation: 0,
            overrides: {
                has_overrides = reader.boolean()?;
                reader.list(MAX_OVERRIDES, "overrides", |reader| {
                    read_override(reader, per_len, &quota)
                })?
            },
            deny_status: match more {
                0 => None,
                _ => reader.optional(|reader| small(within(reader, 400, 599)?))?,
            },
            bucket_edits: match more {
                0 | 1 => BucketEdits::default(),
                _ => read_bucket_edits(reader)?,
            },
            place: 0,
        };
        Ok((limit, has_overrides))
    })
}

// ---- The record that a limiter keeps of the snapshots that it sent, to send changes instead.

/// A snapshot as it is written.
struct Encoded {
    bytes: Vec<u8>,
    /// The limits in their order: name, hash, and where both are in `bytes`.
    parts: Vec<(Name, u64, Range<usize>)>,
    /// A digest of the exemptions.
    exemptions: u64,
}

/// Bound: earlier snapshots of a domain that a limiter sends changes of. Beyond it, a proxy gets the whole.
const SNAPSHOTS_KNOWN: usize = 256;

/// Bound: limits that went, whose names a limiter sends to proxies. Beyond it, a proxy that had them gets
/// the whole.
const GONE_MAX: usize = 1000;

/// Changes that take more than this part of the whole are not sent: the whole is as fast to apply.
const CHANGES_PART: usize = 4;

/// Bound: bytes of changes in one answer. Beyond it, the whole is sent.
const CHANGES_MAX: usize = 64 << 10;

/// A snapshot for proxies, and what changed on the way to it.
#[derive(Debug)]
pub struct Snapshot {
    domain: Name,
    revision: Revision,
    bytes: Arc<[u8]>,
    tag: String,
    /// Counts the snapshots of this process.
    step: u64,
    parts: Vec<Part>,
    check: u64,
    keys: Vec<Name>,
    /// The step that last changed the keys.
    keys_step: u64,
    exemptions: u64,
    /// The first step of which changes can be sent.
    first_step: u64,
    gone: Vec<(Name, u64)>,
    /// This one and the ones before, the newest last.
    known: Vec<Known>,
}

#[derive(Debug)]
struct Part {
    name: Name,
    hash: u64,
    bytes: Range<usize>,
    /// The step that last changed it, or its place in the order.
    step: u64,
}

#[derive(Clone, Debug)]
struct Known {
    tag: String,
    /// The revision's number.
    number: u64,
    step: u64,
}

impl Snapshot {
    /// A snapshot, after those that this process made `before`. `timed`: others of the same revision may
    /// have other edges.
    pub fn new(
        compiled: &Compiled,
        edges: &dyn Fn(&Parameters) -> Option<Edges>,
        timed: bool,
        before: Option<&Self>,
    ) -> Self {
        let Encoded {
            bytes,
            parts,
            exemptions,
        } = compiled.encoded(edges);
        let revision = compiled.revision().clone();
        let (number, of) = (revision.number, revision.digest);
        let tag = if timed {
            format!("{number}-{of:016x}-{:016x}", digest(&bytes))
        } else {
            format!("{number}-{of:016x}")
        };
        let step = before.map_or(0, |before| before.step + 1);
        let hashes = parts.iter().map(|(_, hash, _)| *hash);
        let part = |(name, hash, bytes)| Part {
            name,
            hash,
            bytes,
            step,
        };
        let mut snapshot = Self {
            domain: compiled.domain().clone(),
            revision,
            bytes: bytes.into(),
            tag,
            step,
            check: check_of(hashes, exemptions),
            parts: parts.into_iter().map(part).collect(),
            keys: compiled.needed_keys().to_vec(),
            keys_step: step,
            exemptions,
            first_step: step,
            gone: Vec::new(),
            known: Vec::new(),
        };
        if let Some(before) = before {
            snapshot.follow(before);
        }
        snapshot.known.push(Known {
            tag: snapshot.tag.clone(),
            number,
            step,
        });
        snapshot
    }

    /// The whole, as [`Compiled::from_snapshot`] reads it.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Its name among the snapshots of the domain: the number and the digest of its revision, and with
    /// edges a digest of the whole.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    fn follow(&mut self, before: &Self) {
        if before.exemptions == self.exemptions {
            self.first_step = before.first_step;
        }
        if before.keys == self.keys {
            self.keys_step = before.keys_step;
        }
        let old = before.parts.iter().enumerate();
        let mut old: HashMap<&Name, (usize, &Part)> =
            old.map(|(at, part)| (&part.name, (at, part))).collect();
        let mut same = Vec::new();
        for part in &mut self.parts {
            if let Some((at, was)) = old.remove(&part.name)
                && was.hash == part.hash
            {
                same.push((at, was.step, part));
            }
        }
        let places: Vec<usize> = same.iter().map(|(at, ..)| *at).collect();
        let stay = longest_rise(&places);
        for ((_, step, part), stays) in same.into_iter().zip(stay) {
            if stays {
                part.step = step;
            }
        }
        self.gone.clone_from(&before.gone);
        let gone = old.into_keys().map(|name| (name.clone(), self.step));
        self.gone.extend(gone);
        let more = self.gone.len().saturating_sub(GONE_MAX);
        for (_, step) in self.gone.drain(..more) {
            self.first_step = self.first_step.max(step);
        }
        let more = (before.known.len() + 1).saturating_sub(SNAPSHOTS_KNOWN);
        self.known.extend(before.known.iter().skip(more).cloned());
    }

    /// The changes that turn the snapshot of this tag into this one, as [`Compiled::with_changes`] reads
    /// them. `None`: it is unknown, or the whole is better.
    pub fn since(&self, tag: &str) -> Option<Vec<u8>> {
        let since = self.step_of(tag).filter(|step| *step >= self.first_step)?;
        let changed = || {
            let ranked = (0..).zip(&self.parts);
            ranked.filter(|(_, part)| part.step > since)
        };
        let gone: Vec<&Name> = { self.gone.iter() }
            .filter(|(_, step)| *step > since)
            .map(|(name, _)| name)
            .collect();
        let bytes = changed().map(|(_, part)| part.bytes.len()).sum::<usize>()
            + gone.iter().map(|name| name.as_str().len()).sum::<usize>();
        if bytes > CHANGES_MAX || bytes > self.bytes.len() / CHANGES_PART {
            return None;
        }
        let mut writer = Writer::default();
        writer.array(CHANGES_FIELDS);
        writer.unsigned(CHANGES);
        writer.text(self.domain.as_str());
        self.revision.write(&mut writer);
        writer.unsigned(self.check);
        let keys = Some(self.keys.as_slice()).filter(|_| self.keys_step > since);
        write_list(&mut writer, keys.unwrap_or_default());
        writer.list(gone.into_iter(), |writer, name| name.write(writer));
        let changed: Vec<_> = changed().collect();
        writer.list(changed.into_iter(), |writer, (rank, part)| {
            writer.array(2);
            writer.unsigned(rank);
            let bytes = self.bytes.get(part.bytes.clone());
            writer.0.extend_from_slice(bytes.unwrap_or_default());
        });
        Some(writer.0)
    }

    /// The step of a snapshot, or of one that is certainly not newer: a proxy may have a revision from
    /// another limiter that this one skipped.
    fn step_of(&self, tag: &str) -> Option<u64> {
        let known = || self.known.iter().rev();
        if let Some(known) = known().find(|known| known.tag == tag) {
            return Some(known.step);
        }
        let number: u64 = tag.split_once('-')?.0.parse().ok()?;
        let older = known().find(|known| known.number <= number)?;
        (number <= self.revision.number).then_some(older.step)
    }
}

/// Which of distinct numbers are in the longest list of them that rises: all but those that moved.
fn longest_rise(numbers: &[usize]) -> Vec<bool> {
    // The least number that a rising list of each length ends with, and for each number the one before it.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    for (at, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|end| numbers.get(*end) < Some(number));
        before.push(
            length
                .checked_sub(1)
                .and_then(|last| ends.get(last).copied()),
        );
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut rise = vec![false; numbers.len()];
    let mut next = ends.last().copied();
    while let Some(at) = next {
        if let Some(is_in) = rise.get_mut(at) {
            *is_in = true;
        }
        next = before.get(at).copied().flatten();
    }
    rise
}

fn write_choice<T: Choice>(writer: &mut Writer, value: T) {
    let mut choices = T::CHOICES.iter();
    let at = choices.position(|(_, choice)| *choice == value);
    writer.unsigned(at.and_then(|at| u64::try_from(at).ok()).unwrap_or(u64::MAX));
}

fn choice<T: Choice>(reader: &mut Reader<'_>) -> Result<T, DecodeError> {
    let at = usize::try_from(reader.unsigned()?).unwrap_or(usize::MAX);
    let found = T::CHOICES.get(at).map(|(_, choice)| *choice);
    found.ok_or(DecodeError::Index)
}

/// A number within bounds that the filter's arithmetic relies on.
fn within(reader: &mut Reader<'_>, least: u64, most: u64) -> Result<u64, DecodeError> {
    let number = reader.unsigned()?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(DecodeError::Bounds("a number"))
    }
}

fn small<T: TryFrom<u64>>(number: u64) -> Result<T, DecodeError> {
    T::try_from(number).map_err(|_| DecodeError::Bounds("a number"))
}

impl Wire for Matcher {
    fn write(&self, writer: &mut Writer) {
        writer.array(2);
        self.key.write(writer);
        writer.list(self.patterns.iter(), |writer, pattern| {
            pattern.write(writer);
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(2, |reader| {
            let key = Name::read(reader)?;
            let patterns = reader.list(MAX_PATTERNS, "patterns", Pattern::read)?;
            Ok(Self::new(key, patterns))
        })
    }
}

impl Wire for Penalty {
    fn write(&self, writer: &mut Writer) {
        writer.array(5);
        writer.unsigned(self.after);
        writer.unsigned(self.within_ms);
        writer.unsigned(self.for_ms);
        writer.unsigned(self.grow);
        writer.unsigned(self.max_ms);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(5, |reader| {
            Ok(Self {
                after: within(reader, 1, u64::MAX)?,
                within_ms: within(reader, 1, DAY_MS)?,
                for_ms: within(reader, 1, 7 * DAY_MS)?,
                grow: within(reader, 1, u64::MAX)?,
                max_ms: within(reader, 1, 7 * DAY_MS)?,
            })
        })
    }
}

const DAY_MS: u64 = 86_400_000;

// ---- the numbers of a bucket ----

/// Numbers and the edges of their calendar windows.
fn write_quota(writer: &mut Writer, parameters: &Parameters, edges: Option<Edges>) {
    writer.array(11);
    write_choice(writer, ChoiceOf(parameters.kind));
    parameters.rate.write(writer);
    parameters.burst.write(writer);
    parameters.max_delay_ms.write(writer);
    writer.optional(parameters.align.map(ChoiceOf), write_choice);
    parameters.sub_windows.write(writer);
    parameters.strict.write(writer);
    // The edges say what the zone's name would.
    writer.boolean(parameters.time_zone.is_some());
    writer.optional(parameters.week_start.map(ChoiceOf), write_choice);
    write_edges(writer, edges);
    parameters.adaptive.write(writer);
}

fn read_quota(reader: &mut Reader<'_>) -> Result<Algorithm, DecodeError> {
    reader.fields_and(10, 1, |reader, more| {
        let ChoiceOf(kind) = choice(reader)?;
        let mut parameters = Parameters {
            kind,
            rate: Rate::read(reader)?,
            burst: reader.optional(Reader::unsigned)?,
            max_delay_ms: reader.optional(Reader::unsigned)?,
            align: reader.optional(choice)?.map(|ChoiceOf(align)| align),
            sub_windows: reader.optional(Reader::unsigned)?,
            strict: reader.optional(Reader::boolean)?,
            time_zone: reader.boolean()?.then_some(UTC),
            week_start: reader.optional(choice)?.map(|ChoiceOf(day)| day),
            adaptive: None,
        };
        let edges = reader.optional(read_edges)?;
        if more > 0 {
            parameters.adaptive = reader.optional(Adaptive::read)?;
        }
        with_edges(&parameters, edges)
    })
}

/// Valid numbers with their edges. Calendar windows need some: without them, the limiter decides.
fn with_edges(parameters: &Parameters, edges: Option<Edges>) -> Result<Algorithm, DecodeError> {
    let quota = Algorithm::new(parameters).map_err(|_| DecodeError::Bounds("a quota"))?;
    match (edges, parameters.rate.calendar) {
        (Some(edges), Some(_)) => Ok(quota.with_edges(edges)),
        (None, Some(_)) => Err(DecodeError::Bounds("edges")),
        (_, None) => Ok(quota),
    }
}

/// The label of the first window, their starts, and the end of the last.
fn write_edges(writer: &mut Writer, edges: Option<Edges>) {
    writer.optional(edges, |writer, edges| {
        let numbers = [u64::from(edges.serial())].into_iter();
        let numbers: Vec<u64> = numbers.chain(edges.starts_ms()).collect();
        writer.list(numbers.into_iter(), Writer::unsigned);
    });
}

fn read_edges(reader: &mut Reader<'_>) -> Result<Edges, DecodeError> {
    reader.fields(WINDOWS_KNOWN + 2, |reader| {
        let serial = small(reader.unsigned()?)?;
        let mut starts_ms = [0; WINDOWS_KNOWN + 1];
        for start_ms in &mut starts_ms {
            *start_ms = reader.unsigned()?;
        }
        Ok(Edges::new(serial, starts_ms))
    })
}

impl Wire for Rate {
    fn write(&self, writer: &mut Writer) {
        writer.array(3);
        writer.unsigned(self.units);
        writer.unsigned(self.period_ms);
        let mut all = CalendarUnit::ALL.iter();
        let unit = self
            .calendar
            .and_then(|unit| all.position(|known| *known == unit));
        writer.optional(unit.and_then(|at| u64::try_from(at).ok()), Writer::unsigned);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(3, |reader| {
            let (units, period_ms) = (reader.unsigned()?, reader.unsigned()?);
            let calendar = reader.optional(|reader| {
                let at = small::<usize>(reader.unsigned()?)?;
                CalendarUnit::ALL.get(at).copied().ok_or(DecodeError::Index)
            })?;
            Ok(Self {
                units,
                period_ms,
                calendar,
            })
        })
    }
}

fn write_override(
    writer: &mut Writer,
    found: &Override,
    limit: &Algorithm,
    edges: &dyn Fn(&Parameters) -> Option<Edges>,
) {
    writer.array(3);
    writer.list(found.values.iter(), |writer, value| {
        writer.optional(value.as_deref(), Writer::bytes);
    });
    match found.quota {
        OverrideQuota::Unlimited => writer.null(),
        OverrideQuota::Quota {
            rate,
            burst,
            time_zone,
            ..
        } => {
            writer.array(4);
            writer.optional(rate, |writer, rate| rate.write(writer));
            burst.write(writer);
            writer.boolean(time_zone.is_some());
            let numbers = found.quota.parameters(limit.parameters());
            write_edges(writer, numbers.and_then(|numbers| edges(&numbers)));
        }
    }
    found.until_ms.write(writer);
}

fn read_override(
    reader: &mut Reader<'_>,
    per: usize,
    limit: &Algorithm,
) -> Result<Override, DecodeError> {
    let value =
        |reader: &mut Reader<'_>| reader.optional(|reader| reader.bytes().map(<[u8]>::to_vec));
    let kind = limit.parameters().kind;
    reader.fields(3, |reader| {
        let values = reader.list(MAX_NAMES, "values", value)?;
        if values.len() != per {
            return Err(DecodeError::Index);
        }
        let quota = reader.optional(|reader| {
            reader.fields(4, |reader| {
                let rate = reader.optional(Rate::read)?;
                let burst = reader.optional(Reader::unsigned)?;
                let time_zone = reader.boolean()?.then_some(UTC);
                let edges = reader.optional(read_edges)?;
                let quota = OverrideQuota::Quota {
                    kind,
                    rate,
                    burst,
                    time_zone,
                    edges: edges.map(Box::new),
                };
                let numbers = quota.parameters(limit.parameters());
                with_edges(&numbers.ok_or(DecodeError::Type)?, edges)?;
                Ok(quota)
            })
        })?;
        Ok(Override {
            values,
            quota: quota.unwrap_or(OverrideQuota::Unlimited),
            until_ms: reader.optional(Reader::unsigned)?,
        })
    })
}

// ---- costs ----

impl Wire for Pricing {
    fn write(&self, writer: &mut Writer) {
        writer.array(2);
        match self {
            Self::Request(price) => {
                writer.unsigned(0);
                writer.array(3);
                write_list(writer, &price.from);
                write_list(writer, &price.table);
                writer.unsigned(price.default);
            }
            Self::Response(price) => {
                writer.unsigned(1);
                writer.array(8);
                write_list(writer, &price.from);
                write_list(writer, &price.reserve.from);
                writer.unsigned(price.reserve.default);
                writer.unsigned(price.reserve.cap_percent.into());
                price.on_error.write(writer);
                let (kind, units) = match price.if_absent {
                    IfAbsent::Estimate => (0, 0),
                    IfAbsent::Max => (1, 0),
                    IfAbsent::Reserved => (2, 0),
                    IfAbsent::Units(units) => (3, units),
                };
                writer.unsigned(kind);
                writer.unsigned(units);
                writer.unsigned(price.max);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(2, |reader| match reader.unsigned()? {
            0 => reader.fields(3, read_request_price).map(Self::Request),
            1 => reader.fields(8, read_response_price).map(Self::Response),
            _ => Err(DecodeError::Index),
        })
    }
}

fn read_request_price(reader: &mut Reader<'_>) -> Result<RequestPrice, DecodeError> {
    Ok(RequestPrice {
        from: reader.list(MAX_NAMES, "from", RequestValue::read)?,
        table: reader.list(MAX_NAMES, "table", Row::read)?,
        default: within(reader, 0, MAX_COST)?,
    })
}

fn read_response_price(reader: &mut Reader<'_>) -> Result<ResponsePrice, DecodeError> {
    Ok(ResponsePrice {
        from: reader.list(MAX_NAMES, "from", Source::read)?,
        reserve: Reserve {
            from: reader.list(MAX_NAMES, "reserve", RequestValue::read)?,
            default: within(reader, 1, MAX_COST)?,
            cap_percent: small(within(reader, 1, 100)?)?,
        },
        on_error: reader.optional(|reader| within(reader, 0, MAX_COST))?,
        if_absent: match (reader.unsigned()?, within(reader, 0, MAX_COST)?) {
            (0, _) => IfAbsent::Estimate,
            (1, _) => IfAbsent::Max,
            (2, _) => IfAbsent::Reserved,
            (3, units) => IfAbsent::Units(units),
            _ => return Err(DecodeError::Index),
        },
        max: within(reader, 1, MAX_COST)?,
    })
}

impl Wire for Row {
    fn write(&self, writer: &mut Writer) {
        writer.array(2);
        write_list(writer, &self.matchers);
        writer.unsigned(self.units);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(2, |reader| {
            Ok(Self {
                matchers: reader.list(MAX_NAMES, "matchers", Matcher::read)?,
                units: within(reader, 0, MAX_COST)?,
            })
        })
    }
}

impl Wire for RequestValue {
    fn write(&self, writer: &mut Writer) {
        let (kind, words) = match &self.place {
            RequestPlace::Header(name) => (0, slice::from_ref(name)),
            RequestPlace::Json(pointer) => (1, pointer.tokens()),
        };
        writer.array(4);
        writer.unsigned(kind);
        write_list(writer, words);
        writer.unsigned(self.min);
        writer.unsigned(self.max);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(4, |reader| {
            let (kind, words) = read_place(reader)?;
            let place = match kind {
                0 => RequestPlace::Header(only(words)?),
                1 => RequestPlace::Json(Pointer::new(words).ok_or(DecodeError::Index)?),
                _ => return Err(DecodeError::Index),
            };
            let (min, max) = (within(reader, 0, MAX_COST)?, within(reader, 0, MAX_COST)?);
            // Otherwise the number cannot be brought between them.
            if min > max {
                return Err(DecodeError::Bounds("a number"));
            }
            Ok(Self { place, min, max })
        })
    }
}

impl Wire for Source {
    fn write(&self, writer: &mut Writer) {
        writer.array(3);
        match self {
            Self::Sum(terms) => {
                writer.unsigned(0);
                write_list(writer, terms);
                writer.unsigned(0);
            }
            Self::Status { of, units } => {
                writer.unsigned(1);
                writer.list(of.iter(), |writer, (from, to)| {
                    writer.array(2);
                    writer.unsigned((*from).into());
                    writer.unsigned((*to).into());
                });
                writer.unsigned(*units);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(3, |reader| match reader.unsigned()? {
            0 => {
                let terms = reader.list(MAX_NAMES, "terms", Term::read)?;
                reader.unsigned()?;
                Ok(Self::Sum(terms))
            }
            1 => Ok(Self::Status {
                of: reader.list(MAX_NAMES, "statuses", |reader| {
                    reader.fields(2, |reader| {
                        Ok((small(reader.unsigned()?)?, small(reader.unsigned()?)?))
                    })
                })?,
                units: within(reader, 0, MAX_COST)?,
            }),
            _ => Err(DecodeError::Index),
        })
    }
}

impl Wire for Term {
    fn write(&self, writer: &mut Writer) {
        let (kind, words) = match &self.place {
            ResponseValue::Header(name) => (0, slice::from_ref(name)),
            ResponseValue::Json(pointer) => (1, pointer.tokens()),
            ResponseValue::Trailer(name) => (2, slice::from_ref(name)),
            ResponseValue::Metadata(keys) => (3, keys.as_slice()),
        };
        writer.array(3);
        writer.unsigned(kind);
        write_list(writer, words);
        writer.unsigned(self.weight);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fields(3, |reader| {
            let (kind, words) = read_place(reader)?;
            let place = match kind {
                0 => ResponseValue::Header(only(words)?),
                1 => ResponseValue::Json(Pointer::new(words).ok_or(DecodeError::Index)?),
                2 => ResponseValue::Trailer(only(words)?),
                3 => ResponseValue::Metadata(words),
                _ => return Err(DecodeError::Index),
            };
            let weight = within(reader, 1, u64::MAX)?;
            Ok(Self { place, weight })
        })
    }
}

/// The kind of a place, and the words that name it.
fn read_place(reader: &mut Reader<'_>) -> Result<(u64, Vec<String>), DecodeError> {
    let kind = reader.unsigned()?;
    Ok((kind, reader.list(MAX_NAMES, "words", String::read)?))
}

fn only(mut words: Vec<String>) -> Result<String, DecodeError> {
    words.pop().ok_or(DecodeError::Index)
}
