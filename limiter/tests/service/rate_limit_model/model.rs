//! A model of what calls charge and answer, written independently of the limiter's code.
//!
//! Codes are those of envoyproxy/ratelimit: a descriptor's is `OVER_LIMIT` if its limit is exceeded,
//! unless the limit is in shadow mode; the call's is if a limit without `quota_mode` is exceeded, or
//! all limits with `quota_mode` are that were found for its descriptors. A descriptor that is
//! unlimited has 2^32 - 1 left, one without a limit 0. What is charged is this limiter's own.

use std::collections::HashMap;

use super::{
    calls::{Descriptor, Own},
    limits::{Limit, MATCHED, Mode},
};

/// One limit's answer about a descriptor.
#[derive(Clone, Debug)]
struct Said {
    name: &'static str,
    key: String,
    units: i64,
    /// The smallest limit of the descriptors that share the bucket.
    least: i64,
    cost: i64,
    mode: Mode,
    over: bool,
}

/// The units that each bucket has counted.
pub struct Model {
    limits: Vec<Limit>,
    pub used: HashMap<String, i64>,
}

impl Said {
    fn is_quota(&self) -> bool {
        matches!(self.mode, Mode::Quota | Mode::ShadowQuota)
    }

    /// Over a limit that is not in shadow mode.
    fn is_exceeded(&self) -> bool {
        self.over && matches!(self.mode, Mode::Enforce | Mode::Quota)
    }
}

/// Whether limits with `quota_mode` deny.
fn quotas_deny<'a>(said: impl Iterator<Item = &'a Said>) -> bool {
    let quotas: Vec<&Said> = said.filter(|said| said.is_quota()).collect();
    !quotas.is_empty() && quotas.iter().all(|said| said.is_exceeded())
}

impl Model {
    pub fn new(limits: Vec<Limit>) -> Self {
        Self {
            limits,
            used: HashMap::new(),
        }
    }

    fn used(&self, key: &str) -> i64 {
        self.used.get(key).copied().unwrap_or(0)
    }

    /// The limits with a quota that apply to a descriptor, without replaced ones.
    fn limits(&self, descriptor: &Descriptor, replaced: &[&str], cost: i64) -> Vec<Said> {
        let said = |limit: &Limit, units, key| Said {
            name: limit.name,
            key,
            units,
            least: units,
            cost,
            mode: limit.mode,
            over: false,
        };
        let text = format!("{:?}", descriptor.entries);
        let mut found = Vec::new();
        let own = descriptor.limit(&self.limits);
        if descriptor.limit.is_none()
            && let Some(limit) = own.filter(|limit| !replaced.contains(&limit.name))
        {
            let units = limit.units;
            found.extend(units.map(|units| said(limit, units, format!("{} {text}", limit.name))));
        }
        // An entry with two different values matches whatever value a limit requires.
        let values: Vec<&str> = { descriptor.entries.iter() }
            .filter(|(key, _)| *key == "a")
            .map(|(_, value)| *value)
            .collect();
        let several = values.iter().any(|value| *value != values[0]);
        if several || values.contains(&"2") {
            found.push(said(&MATCHED, 9, "matched".to_owned()));
        }
        if let Some(units) = descriptor.limit {
            let itself = said(&MATCHED, units, format!("itself {text}"));
            found.push(Said { name: "", ..itself });
        }
        found
    }

    /// Decides descriptors together: what each limit says, and whether they are allowed. `quotas`: all
    /// of the call's limits with `quota_mode` are among theirs.
    fn decide(&mut self, parts: &mut [Vec<Said>], own: Own, quotas: bool) -> bool {
        let mut costs: HashMap<String, i64> = HashMap::new();
        for said in parts.iter().flatten() {
            *costs.entry(said.key.clone()).or_default() += said.cost;
        }
        match own {
            Own::Used(units) => {
                for key in costs.keys() {
                    *self.used.entry(key.clone()).or_default() += units;
                }
            }
            Own::Back(units) => {
                for key in costs.keys() {
                    let used = self.used.entry(key.clone()).or_default();
                    *used = (*used - units).max(0);
                }
            }
            Own::None | Own::Look => {}
        }
        let mut least: HashMap<String, i64> = HashMap::new();
        for said in parts.iter().flatten() {
            let least = least.entry(said.key.clone()).or_insert(said.units);
            *least = said.units.min(*least);
        }
        for said in parts.iter_mut().flatten() {
            said.least = least[&said.key];
            let cost = if own == Own::None {
                costs[&said.key]
            } else {
                0
            };
            said.over = self.used(&said.key) + cost > said.least;
        }
        let enforced = |said: &Said| said.mode == Mode::Enforce;
        let allowed = parts
            .iter()
            .flatten()
            .all(|said| !said.over || !enforced(said))
            && !(quotas && quotas_deny(parts.iter().flatten()));
        if allowed && own == Own::None {
            for said in parts.iter().flatten().filter(|said| !said.over) {
                if let Some(cost) = costs.remove(&said.key) {
                    *self.used.entry(said.key.clone()).or_default() += cost;
                }
            }
        }
        allowed
    }

    /// The answer to a call: the overall code, and of each descriptor the code, what is left, and the
    /// limit.
    pub fn call(&mut self, descriptors: &[Descriptor], hits: i64) -> String {
        let mut replaced = Vec::new();
        if descriptors.len() > 1 {
            let own = descriptors.iter().filter(|found| found.limit.is_none());
            replaced.extend(own.filter_map(|found| found.limit(&self.limits)?.replaces));
        }
        let cost = hits.max(1);
        // In the order of each group's first descriptor.
        let mut groups: Vec<(Own, Vec<usize>)> = Vec::new();
        for (at, descriptor) in descriptors.iter().enumerate() {
            let together = groups.iter_mut().find(|(own, _)| *own == Own::None);
            match together {
                Some((_, group)) if descriptor.own == Own::None => group.push(at),
                _ => groups.push((descriptor.own, vec![at])),
            }
        }
        let mut answers = vec![String::new(); descriptors.len()];
        let mut decided: Vec<(Own, Vec<usize>, Vec<Vec<Said>>)> = Vec::new();
        for (own, group) in groups {
            let mut own = own;
            let mut cost = cost;
            let first = &descriptors[group[0]];
            let fitting = first.limit.is_none() && { first.limit(&self.limits) }
                .is_some_and(|limit| limit.fitting);
            if let (Own::Used(units), true) = (own, fitting) {
                (own, cost) = (Own::None, units);
            }
            let limits = { group.iter() }
                .map(|at| self.limits(&descriptors[*at], &replaced, cost))
                .collect();
            decided.push((own, group, limits));
        }
        let is_quota = |parts: &Vec<Vec<Said>>| parts.iter().flatten().any(Said::is_quota);
        let with_quotas = { decided.iter() }
            .filter(|(.., parts)| is_quota(parts))
            .count();
        let mut all = true;
        for (own, group, parts) in &mut decided {
            all &= self.decide(parts, *own, with_quotas < 2);
            for (at, part) in group.iter().zip(parts) {
                answers[*at] = self.status(&descriptors[*at], part);
            }
        }
        all &= !quotas_deny(
            decided
                .iter()
                .flat_map(|(.., parts)| parts.iter().flatten()),
        );
        let overall = if all { "OK" } else { "OVER_LIMIT" };
        format!("{overall}: {}", answers.join(", "))
    }

    /// The tightest of the limits that are not in shadow mode.
    fn status(&self, descriptor: &Descriptor, part: &[Said]) -> String {
        let left = |said: &Said| (said.least - self.used(&said.key)).max(0);
        let tightness = |said: &&Said| (!said.over, left(said));
        let counting = |said: &&Said| matches!(said.mode, Mode::Enforce | Mode::Quota);
        let tightest = part.iter().filter(counting).min_by_key(tightness);
        if let Some(said) = tightest.or_else(|| part.iter().min_by_key(tightness)) {
            let code = if said.is_exceeded() {
                "OVER_LIMIT"
            } else {
                "OK"
            };
            return format!("{code} {} of {} {:?}", left(said), said.units, said.name);
        }
        let found = descriptor.limit(&self.limits);
        let unlimited = found.is_some_and(|limit| limit.units.is_none());
        let left = if unlimited { u32::MAX } else { 0 };
        format!("OK {left}")
    }
}
