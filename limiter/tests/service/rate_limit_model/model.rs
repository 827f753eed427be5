//! A model of what calls charge, written independently of the limiter's code.

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
    cost: i64,
    mode: Mode,
    over: bool,
}

/// The units that each bucket has counted.
#[derive(Default)]
pub struct Model {
    pub used: HashMap<String, i64>,
}

impl Model {
    fn used(&self, key: &str) -> i64 {
        self.used.get(key).copied().unwrap_or(0)
    }

    /// The limits with a quota that apply to a descriptor, without replaced ones.
    fn limits(descriptor: &Descriptor, replaced: &[&str], cost: i64) -> Vec<Said> {
        let said = |limit: &Limit, units, key| Said {
            name: limit.name,
            key,
            units,
            cost,
            mode: limit.mode,
            over: false,
        };
        let text = format!("{:?}", descriptor.entries);
        let mut found = Vec::new();
        let own = descriptor.limit();
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

    /// Decides descriptors together: what each limit says, and whether they are allowed.
    fn decide(&mut self, parts: &mut [Vec<Said>], own: Own) -> bool {
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
        for said in parts.iter_mut().flatten() {
            let cost = if own == Own::None {
                costs[&said.key]
            } else {
                0
            };
            said.over = self.used(&said.key) + cost > said.units;
        }
        let mut allowed = parts
            .iter()
            .flatten()
            .all(|said| !said.over || said.mode != Mode::Enforce);
        if allowed && own == Own::None {
            for said in parts.iter().flatten().filter(|said| !said.over) {
                if let Some(cost) = costs.remove(&said.key) {
                    *self.used.entry(said.key.clone()).or_default() += cost;
                }
            }
        }
        // Quotas deny if nothing is left for any descriptor that has one.
        let mut limited = parts.iter().filter(|part| !part.is_empty()).peekable();
        let over = |said: &Said| said.over && said.mode != Mode::Shadow;
        if limited.peek().is_some() && limited.all(|part| part.iter().any(over)) {
            for said in parts.iter_mut().flatten().filter(|said| said.over) {
                if said.mode == Mode::Quota {
                    said.mode = Mode::Enforce;
                    allowed = false;
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
            replaced.extend(own.filter_map(|found| found.limit()?.replaces));
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
        let mut all = true;
        for (own, group) in groups {
            let mut own = own;
            let mut cost = cost;
            let first = &descriptors[group[0]];
            let fitting = first.limit.is_none() && first.limit().is_some_and(|limit| limit.fitting);
            if let (Own::Used(units), true) = (own, fitting) {
                (own, cost) = (Own::None, units);
            }
            let limits = group
                .iter()
                .map(|at| Self::limits(&descriptors[*at], &replaced, cost));
            let mut parts: Vec<Vec<Said>> = limits.collect();
            all &= self.decide(&mut parts, own);
            for (at, part) in group.iter().zip(parts) {
                answers[*at] = self.status(&part);
            }
        }
        let overall = if all { "OK" } else { "OVER_LIMIT" };
        format!("{overall}: {}", answers.join(", "))
    }

    /// The tightest of the enforced limits.
    fn status(&self, part: &[Said]) -> String {
        let left = |said: &Said| (said.units - self.used(&said.key)).max(0);
        let tightness = |said: &&Said| (!said.over, left(said));
        let enforced = part.iter().filter(|said| said.mode == Mode::Enforce);
        let tightest = enforced.min_by_key(tightness);
        match tightest.or_else(|| part.iter().min_by_key(tightness)) {
            Some(said) => {
                let over = said.over && said.mode == Mode::Enforce;
                let code = if over { "OVER_LIMIT" } else { "OK" };
                format!("{code} {} of {} {:?}", left(said), said.units, said.name)
            }
            None => "OK 0".to_owned(),
        }
    }
}
