//! The plan of an edit of limits and their overrides. A domain may have 100,000 overrides: they are
//! read page by page, and only if the plan needs them.

use std::collections::{BTreeMap, HashMap, HashSet};

use policy::{Compiled, Descriptor, Limit, Name, OVERRIDES_MAX, Override, Policy, Scope};
use serde::de::IgnoredAny;
use store::{
    InvalidOverride, LimitOf, OverrideCursor, OverrideEdit, OverrideEdits, Overrides, StoreError,
};

use super::Session;
use crate::{
    bucket::Values,
    changes::{self, LimitChange},
    error::{Error, Exit},
    render::{self, counted},
};

/// The most deleted overrides of one limit that are recorded. The history keeps at most 1 MiB of an
/// edit, which is fewer.
const RECORDED_MAX: u64 = 20_000;
/// The number of overrides to be deleted, for the confirmation prompt.
pub fn deletion_summary(count: u64) -> String {
    let overrides = counted(count, "override");
    if count > RECORDED_MAX {
        return format!("{overrides}, which rollback cannot restore");
    }
    overrides
}

/// Changed overrides, by limit and bucket; `None` deletes the override.
pub type Deltas = BTreeMap<Name, BTreeMap<Values, Option<Override>>>;

/// What an edit changes and writes.
#[derive(Debug, Default)]
pub struct EditPlan {
    /// Every limit, in the order of the policy; deleted ones come last.
    pub changes: Vec<LimitChange>,
    /// Whether any of the limits before had overrides, which then were read.
    pub overrides_read: bool,
    /// The edits of overrides to write.
    pub overrides: OverrideEdits,
    /// Overrides that stay and would be invalid for their limit, by limit. Such an edit must not be
    /// written.
    pub invalid_overrides: Vec<(Name, Vec<String>)>,
}

impl Session<'_> {
    /// The plan of an edit from the limits `before`, read without overrides, to `after`.
    ///
    /// A limit that lists overrides has exactly these afterwards. One that lists none keeps its
    /// own, changed by the deltas, unless its `per` changes.
    pub async fn plan_edit(
        &self,
        before: Option<&Policy>,
        after: &Policy,
        deltas: &Deltas,
    ) -> Result<EditPlan, Error> {
        let mut plan = EditPlan::default();
        let counts = match before {
            Some(before) => self.override_counts(before).await?,
            None => Vec::new(),
        };
        let before_total: u64 = counts.iter().sum();
        let mut total: u64 = 0;
        plan.overrides_read = counts.iter().any(|count| *count > 0);
        let old: HashMap<&Name, (&Limit, u64)> = { before.into_iter() }
            .flat_map(|before| &before.limits)
            .zip(counts)
            .map(|(limit, count)| (&limit.name, (limit, count)))
            .collect();
        let none = BTreeMap::new();
        for limit in &after.limits {
            let deltas = deltas.get(&limit.name).unwrap_or(&none);
            let old = old.get(&limit.name).copied();
            let override_plan = self
                .override_plan(&after.domain, old, limit, deltas)
                .await?;
            plan.note(old.map(|(old, _)| old), Some(limit), override_plan);
            let kept = old.map_or(0, |(_, count)| count);
            let listed = u64::try_from(limit.overrides.len()).unwrap_or(u64::MAX);
            total += if listed > 0 { listed } else { kept };
        }
        let max = u64::try_from(OVERRIDES_MAX).unwrap_or(u64::MAX);
        if total > max && total > before_total {
            let domain = &after.domain;
            let message = format!("the domain {domain} would have {total} overrides");
            return Err(Error::new(Exit::Refused, message).hint(format!("{max} at most")));
        }
        let kept = after.by_name();
        for gone in before.into_iter().flat_map(|before| &before.limits) {
            if !kept.contains_key(gone.name.as_str()) {
                let count = old.get(&gone.name).map_or(0, |(_, count)| *count);
                let override_plan = self.all_go(&after.domain, gone, count).await?;
                plan.note(Some(gone), None, override_plan);
            }
        }
        Ok(plan)
    }
}

/// The overrides of a limit, page by page.
pub struct OverridePages<'a> {
    of: LimitOf<'a>,
    next: Option<OverrideCursor>,
}

impl<'a> OverridePages<'a> {
    /// From the beginning.
    pub fn new(domain: &'a Name, limit: &'a Limit) -> Self {
        Self {
            of: LimitOf { domain, limit },
            next: Some(OverrideCursor::default()),
        }
    }

    /// The next page; `None` after the last.
    pub async fn page(
        &mut self,
        session: &Session<'_>,
    ) -> Result<Option<Vec<Result<Override, InvalidOverride>>>, Error> {
        let limit = self.of.limit;
        let texts = self.texts(session).await?;
        let read = |text| InvalidOverride::read(limit, text);
        Ok(texts.map(|texts| texts.into_iter().map(read).collect()))
    }

    /// The next page, as stored.
    async fn texts(&mut self, session: &Session<'_>) -> Result<Option<Vec<String>>, Error> {
        let Some(cursor) = self.next else {
            return Ok(None);
        };
        let page = session
            .call(session.store.scan_overrides(&self.of, cursor))
            .await?;
        self.next = page.next;
        Ok(Some(page.texts))
    }
}

impl EditPlan {
    fn note(&mut self, old: Option<&Limit>, new: Option<&Limit>, override_plan: OverridePlan) {
        let Some(limit) = new.or(old) else { return };
        let edit = override_plan.edit.filter(|edit| {
            edit.before.as_ref().is_none_or(|before| !before.is_empty()) || !edit.after.is_empty()
        });
        let overrides = edit.as_ref().map_or_else(Vec::new, |edit| {
            let side = |limit: Option<&Limit>, found: &[Override]| {
                let per = limit.map_or(&[][..], |limit| &limit.per);
                found
                    .iter()
                    .map(|found| limits_file::override_node(found, per))
                    .collect()
            };
            let before = side(old, edit.before.as_deref().unwrap_or_default());
            changes::of_overrides(before, side(new, &edit.after))
        });
        let change = LimitChange::new(old, new, overrides, override_plan.unrecorded);
        self.changes.extend(change);
        if let Some(edit) = edit {
            self.overrides.insert(limit.name.clone(), edit);
        }
        if !override_plan.invalid.is_empty() {
            self.invalid_overrides
                .push((limit.name.clone(), override_plan.invalid));
        }
    }

    /// The overrides that would become invalid, one a line; `None` if there are none.
    pub fn invalid_overrides_text(&self) -> Option<String> {
        let lines = self.invalid_overrides.iter().map(|(limit, lines)| {
            let lines = lines.join("\n  ");
            format!("overrides of {limit} do not fit it any more:\n  {lines}")
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        (!text.is_empty()).then_some(text)
    }
}

/// Whether every override of one means the same under the other.
fn same_numbers(a: &Limit, b: &Limit) -> bool {
    let numbers = |limit: &Limit| {
        (
            limit.quota,
            limit.if_missing,
            limit.scope,
            limit.lease_ttl_ms,
        )
    };
    numbers(a) == numbers(b)
}

// --- What an edit does to the overrides of one limit.

/// What an edit does to the overrides of one limit.
#[derive(Default)]
struct OverridePlan {
    pub(super) edit: Option<OverrideEdit>,
    /// How many are deleted without a record in the history.
    pub(super) unrecorded: u64,
    pub(super) invalid: Vec<String>,
}

impl Session<'_> {
    /// The plan if `old`, with this count of overrides, becomes `limit`.
    async fn override_plan(
        &self,
        domain: &Name,
        old: Option<(&Limit, u64)>,
        limit: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<OverridePlan, Error> {
        let Some((old, count)) = old else {
            return Ok(OverridePlan::listed(Vec::new(), limit.overrides.clone()));
        };
        if old.per != limit.per {
            let gone = self.all_go(domain, old, count).await?;
            return Ok(gone.with(limit.overrides.clone()));
        }
        if !limit.overrides.is_empty() {
            return self.compare(domain, old, limit).await;
        }
        let mut override_plan = self.deltas(domain, old, deltas).await?;
        if count > 0 && !same_numbers(old, limit) {
            let sides = (Some(old), limit);
            override_plan.invalid = self.find_invalid(domain, sides, deltas, count).await?;
        }
        Ok(override_plan)
    }

    /// Every override is deleted; they are recorded if they are few enough.
    async fn all_go(
        &self,
        domain: &Name,
        limit: &Limit,
        count: u64,
    ) -> Result<OverridePlan, Error> {
        if count == 0 {
            return Ok(OverridePlan::default());
        }
        if count > RECORDED_MAX {
            return Ok(OverridePlan::unrecorded(count));
        }
        let mut gone = BTreeMap::new();
        let mut walk = OverridePages::new(domain, limit);
        while let Some(page) = walk.page(self).await? {
            for found in page {
                let Ok(found) = found else {
                    return Ok(OverridePlan::unrecorded(count));
                };
                gone.insert(found.values.clone(), found);
            }
        }
        Ok(OverridePlan::listed(
            gone.into_values().collect(),
            Vec::new(),
        ))
    }

    /// The plan that replaces a limit's overrides with the listed ones.
    async fn compare(
        &self,
        domain: &Name,
        old: &Limit,
        limit: &Limit,
    ) -> Result<OverridePlan, Error> {
        let listed = limit.overrides.iter();
        let mut listed: HashMap<&Values, (&Override, bool)> = listed
            .map(|found| (&found.values, (found, false)))
            .collect();
        let (mut before, mut after) = (BTreeMap::new(), Vec::new());
        let mut unrecorded = 0;
        let mut walk = OverridePages::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page {
                let Ok(found) = found else {
                    unrecorded += 1;
                    continue;
                };
                match listed.get_mut(&found.values) {
                    Some((_, true)) => continue,
                    Some((same, seen)) if same.reads_like(&found) => {
                        *seen = true;
                        continue;
                    }
                    Some((other, seen)) => {
                        *seen = true;
                        after.push((*other).clone());
                    }
                    None => {}
                }
                before.insert(found.values.clone(), found);
            }
        }
        let new = listed.into_values().filter(|(_, seen)| !seen);
        after.extend(new.map(|(found, _)| found.clone()));
        after.sort_by(|a, b| a.values.cmp(&b.values));
        let recorded = u64::try_from(before.len()).unwrap_or(u64::MAX);
        if unrecorded > 0 || recorded > RECORDED_MAX {
            return Ok(OverridePlan::unrecorded(recorded + unrecorded).with(after));
        }
        Ok(OverridePlan::listed(before.into_values().collect(), after))
    }

    /// The plan that changes only these overrides.
    async fn deltas(
        &self,
        domain: &Name,
        old: &Limit,
        deltas: &BTreeMap<Values, Option<Override>>,
    ) -> Result<OverridePlan, Error> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (values, new) in deltas {
            let found = self.override_of(domain, old, values).await?;
            let same = match (&found, new) {
                (Some(found), Some(new)) => found.reads_like(new),
                (found, new) => found.is_none() && new.is_none(),
            };
            if !same {
                before.extend(found);
                after.extend(new.clone());
            }
        }
        Ok(OverridePlan {
            edit: Some(OverrideEdit {
                before: Some(before),
                after,
                listed: false,
            }),
            ..OverridePlan::default()
        })
    }
}

impl OverridePlan {
    /// The overrides before and after are listed in full.
    fn listed(before: Vec<Override>, after: Vec<Override>) -> Self {
        Self {
            edit: Some(OverrideEdit {
                before: Some(before),
                after,
                listed: true,
            }),
            ..Self::default()
        }
    }

    fn unrecorded(count: u64) -> Self {
        Self {
            edit: Some(OverrideEdit::clear(None)),
            unrecorded: count,
            ..Self::default()
        }
    }

    /// The plan with these overrides after the edit.
    fn with(mut self, after: Vec<Override>) -> Self {
        match &mut self.edit {
            Some(edit) => edit.after = after,
            None => return Self::listed(Vec::new(), after),
        }
        self
    }
}

// --- Overrides that are invalid for their limit, or would become so.

/// The most invalid overrides that are listed; the others are counted.
const INVALID_SHOWN: usize = 5;

impl Session<'_> {
    /// The overrides that do not fit a limit, in words. They fit the limit `before` that it was.
    async fn find_invalid(
        &self,
        domain: &Name,
        (before, limit): (Option<&Limit>, &Limit),
        deltas: &BTreeMap<Values, Option<Override>>,
        count: u64,
    ) -> Result<Vec<String>, Error> {
        let max = u64::try_from(limit.scope.overrides_max()).unwrap_or(u64::MAX);
        if limit.scope == Scope::Proxy && count > max {
            return Ok(vec![format!(
                "{count} overrides, and every proxy would hold them: {max} at most"
            )]);
        }
        let (mut shown, mut more) = (Vec::new(), 0);
        let mut fitting = Fitting::new(before, limit);
        let mut walk = OverridePages::new(domain, limit);
        while let Some(texts) = walk.texts(self).await? {
            for invalid in { texts.into_iter() }.filter_map(|text| fitting.invalid(text)) {
                let values = invalid.values(&limit.per);
                if values.is_some_and(|values| deltas.contains_key(&values)) {
                    continue;
                }
                if shown.len() < INVALID_SHOWN {
                    shown.push(describe(&invalid));
                } else {
                    more += 1;
                }
            }
        }
        shown.sort_unstable();
        if more > 0 {
            shown.push(format!("and {}", counted(more, "more override")));
        }
        Ok(shown)
    }

    /// The number of a limit's overrides and those that an edit would make invalid or leave without
    /// a bucket, in words; `None` if all stay valid.
    pub async fn overrides_invalidated(
        &self,
        domain: &Name,
        before: &Limit,
        after: &Limit,
    ) -> Result<Option<(u64, Vec<String>)>, Error> {
        let split_otherwise = before.per != after.per;
        if !split_otherwise && same_numbers(before, after) {
            return Ok(None);
        }
        let count = self.override_count(domain, before).await?;
        let lines = match count {
            0 => Vec::new(),
            // One page is enough: all of them are invalid.
            _ if split_otherwise => self.first_invalid_overrides(domain, after).await?,
            _ => {
                let sides = (Some(before), after);
                self.find_invalid(domain, sides, &BTreeMap::new(), count)
                    .await?
            }
        };
        Ok((!lines.is_empty()).then_some((count, lines)))
    }

    /// The overrides of a limit that do not fit it, in words.
    pub async fn invalid_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
    ) -> Result<Vec<String>, Error> {
        let count = self.override_count(domain, limit).await?;
        self.find_invalid(domain, (None, limit), &BTreeMap::new(), count)
            .await
    }

    async fn first_invalid_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
    ) -> Result<Vec<String>, Error> {
        let page = OverridePages::new(domain, limit).page(self).await?;
        let invalid = page.into_iter().flatten().filter_map(Result::err);
        let mut lines: Vec<String> = invalid.map(|invalid| describe(&invalid)).collect();
        lines.sort_unstable();
        lines.truncate(INVALID_SHOWN);
        Ok(lines)
    }
}

/// Finds overrides that do not fit a limit. Thousands have the same few numbers, which are read once: to read each
/// would take longer than all the rest of an edit.
struct Fitting<'l> {
    limit: &'l Limit,
    /// Whether what names a bucket of the limit does so as before.
    same_buckets: bool,
    /// What follows the values of overrides that fit.
    known: HashSet<String>,
}

/// Bound: numbers of overrides that are known to fit while the others are looked through. Beyond it, each
/// override with others is read.
const FITTING_MAX: usize = 10_000;

impl<'l> Fitting<'l> {
    fn new(before: Option<&Limit>, limit: &'l Limit) -> Self {
        Self {
            limit,
            same_buckets: before.is_some_and(|before| {
                before.per == limit.per && before.if_missing == limit.if_missing
            }),
            known: HashSet::new(),
        }
    }

    /// What is wrong with an override as it is stored, if anything is.
    fn invalid(&mut self, text: String) -> Option<InvalidOverride> {
        let numbers = numbers_of(&text).filter(|_| self.same_buckets);
        if numbers.is_some_and(|numbers| self.known.contains(numbers)) {
            return None;
        }
        let numbers = numbers.map(str::to_owned);
        let invalid = InvalidOverride::read(self.limit, text).err();
        if invalid.is_none() && self.known.len() < FITTING_MAX {
            self.known.extend(numbers);
        }
        invalid
    }
}

/// What follows the values in an override as it is stored; `None` if they do not come first.
fn numbers_of(text: &str) -> Option<&str> {
    let values = text.strip_prefix("{\"values\":")?;
    let mut read = serde_json::Deserializer::from_str(values).into_iter::<IgnoredAny>();
    read.next()?.ok()?;
    values.get(read.byte_offset()..)
}

/// `user=alice: burst: a log has no burst`.
fn describe(invalid: &InvalidOverride) -> String {
    let node: Option<policy::Node> = serde_json::from_str(&invalid.json).ok();
    let values = node.as_ref().and_then(|node| node.get("values"));
    let values = values.map_or_else(String::new, |values| {
        format!("{}: ", render::format_map(values, "=", " "))
    });
    format!("{values}{}", invalid.problems.join("; "))
}

// --- Overrides that are not in a limits file and stay.

/// The overrides that are not in a file and stay.
#[derive(Debug, Default)]
pub struct KeptOverrides {
    /// How many stay, by limit; only those of limits that list some.
    pub by_limit: Vec<(Name, usize)>,
    /// Why some cannot be kept, a line each.
    pub problems: Vec<String>,
}

impl Session<'_> {
    /// Adds to each limit that lists overrides those of `before` that it does not list. Limits that
    /// list none keep theirs in any case: see [`Session::plan_edit`].
    pub async fn keep_unlisted(
        &self,
        before: &Policy,
        after: &mut Policy,
    ) -> Result<KeptOverrides, Error> {
        let mut result = KeptOverrides::default();
        let domain = &after.domain;
        let before = before.by_name();
        for limit in &mut after.limits {
            let Some(old) = before.get(limit.name.as_str()) else {
                continue;
            };
            if limit.overrides.is_empty() || old.per != limit.per {
                continue;
            }
            let kept = self
                .keep_of(domain, old, limit, &mut result.problems)
                .await?;
            if kept > 0 {
                result.by_limit.push((limit.name.clone(), kept));
            }
        }
        Ok(result)
    }

    async fn keep_of(
        &self,
        domain: &Name,
        old: &Limit,
        limit: &mut Limit,
        problems: &mut Vec<String>,
    ) -> Result<usize, Error> {
        let listed = limit.overrides.iter().map(|found| found.values.clone());
        let mut known: HashSet<Values> = listed.collect();
        let before = known.len();
        let mut walk = OverridePages::new(domain, old);
        while let Some(page) = walk.page(self).await? {
            for found in page {
                let read = match found {
                    Ok(found) if known.contains(&found.values) => continue,
                    Ok(found) => limits_file::override_from_node(
                        limit,
                        &limits_file::override_node(&found, &limit.per),
                    )
                    .map_err(|problems| problems.to_string()),
                    Err(invalid) => match invalid.values(&limit.per) {
                        Some(values) if known.contains(&values) => continue,
                        _ => Err(format!("{}: {}", invalid.json, invalid.problems.join("; "))),
                    },
                };
                match read {
                    Ok(found) => {
                        known.insert(found.values.clone());
                        limit.overrides.push(found);
                    }
                    Err(why) => problems.push(format!("an override of {}: {why}", limit.name)),
                }
            }
        }
        let max = limit.scope.overrides_max();
        if limit.overrides.len() > max {
            problems.push(format!(
                "{} would have {} overrides, with those that are not in the file: {max} at most",
                limit.name,
                limit.overrides.len()
            ));
        }
        Ok(known.len() - before)
    }
}

impl EditPlan {
    /// How many overrides are deleted without a replacement.
    pub fn overrides_gone(&self) -> u64 {
        let removed = self.changes.iter().flat_map(|change| &change.overrides);
        let removed = removed.filter(|change| change.after.is_none()).count();
        let unrecorded: u64 = self
            .changes
            .iter()
            .map(|change| change.overrides_unrecorded)
            .sum();
        unrecorded.saturating_add(u64::try_from(removed).unwrap_or(u64::MAX))
    }
}

// --- Reads of single overrides and of counts: a domain may have 100,000 overrides. Reading them all takes
// 4 s and 100 MB in a debug build, where one override takes 10 ms and 18 MB.

impl Session<'_> {
    /// The override of one bucket.
    pub async fn override_of(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &Values,
    ) -> Result<Option<Override>, Error> {
        let of = LimitOf { domain, limit };
        self.call(self.store.read_override(&of, values)).await
    }

    /// Whether there is an override of one bucket, even one that cannot be read.
    pub async fn has_override(
        &self,
        domain: &Name,
        limit: &Limit,
        values: &Values,
    ) -> Result<bool, Error> {
        match self
            .store
            .read_override(&LimitOf { domain, limit }, values)
            .await
        {
            Ok(found) => Ok(found.is_some()),
            Err(StoreError::Corrupt(_)) => Ok(true),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// How many overrides a limit has.
    pub async fn override_count(&self, domain: &Name, limit: &Limit) -> Result<u64, Error> {
        let counts = self
            .call(self.store.override_counts(domain, &[&limit.name]))
            .await?;
        Ok(counts.first().copied().unwrap_or(0))
    }

    /// How many overrides each limit of a policy has.
    pub async fn override_counts(&self, policy: &Policy) -> Result<Vec<u64>, Error> {
        let names: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        self.call(self.store.override_counts(&policy.domain, &names))
            .await
    }

    /// The overrides of a limit in order, `max` at most; if there are more, an arbitrary choice.
    pub async fn some_overrides(
        &self,
        domain: &Name,
        limit: &Limit,
        max: usize,
    ) -> Result<Vec<Override>, Error> {
        let mut found = BTreeMap::new();
        let mut walk = OverridePages::new(domain, limit);
        while found.len() < max
            && let Some(page) = walk.page(self).await?
        {
            for one in page {
                let one = one.map_err(|invalid| self.unreadable(limit, &invalid))?;
                found.insert(one.values.clone(), one);
            }
        }
        Ok(found.into_values().take(max).collect())
    }

    fn unreadable(&self, limit: &Limit, invalid: &InvalidOverride) -> Error {
        let (json, problems) = (&invalid.json, invalid.problems.join("; "));
        self.failed(&StoreError::Corrupt(format!(
            "an override of {}, {json}: {problems}",
            limit.name
        )))
    }

    /// The limits of the domain, with the override of one bucket only.
    pub async fn policy_for_bucket(
        &self,
        policy: Policy,
        limit: &Name,
        values: &Values,
    ) -> Result<Policy, Error> {
        let mut policy = policy;
        let domain = &policy.domain;
        if let Some(limit) = policy.limits.iter_mut().find(|found| found.name == *limit) {
            limit.overrides = Vec::from_iter(self.override_of(domain, limit, values).await?);
        }
        Ok(policy)
    }

    /// The limits of the domain, with only the overrides that apply to a request.
    pub async fn policy_for_request(&self, descriptor: &Descriptor) -> Result<Policy, Error> {
        let mut policy = self.policy(Overrides::None).await?;
        // Matches at the end of time, when only endless pauses hold, and before `replaces`, since what replaces
        // then may be paused now: it may read too many overrides, never too few.
        let compiled = Compiled::new(policy.clone());
        for found in compiled.matching_all(descriptor, u64::MAX) {
            let (index, limit) = (found.index, found.limit);
            let values = found.into_values();
            let entry = self.override_of(compiled.domain(), limit, &values);
            let entry = entry.await?;
            if let Some(limit) = policy.limits.get_mut(index) {
                limit.overrides.extend(entry);
            }
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests;
