//! Random calls.

use serde_json::{Value, json};

use super::limits::Limit;

/// The units that a descriptor itself contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    None,
    Look,
    Used(i64),
    Back(i64),
}

#[derive(Clone, Debug)]
pub struct Descriptor {
    pub entries: Vec<(&'static str, &'static str)>,
    pub own: Own,
    /// Requests per year.
    pub limit: Option<i64>,
}

impl Descriptor {
    pub fn random(random: &mut fastrand::Rng) -> Self {
        let values = ["1", "2", "x1", "x2", "free"];
        let mut pick = |from: &[&'static str]| from[random.usize(..from.len())];
        let mut entries = vec![(
            pick(&["a", "a", "c", "d", "s", "q", "r", "n", "z"]),
            pick(&values),
        )];
        if random.u8(..5) == 0 {
            entries.push((
                ["a", "b", "b"][random.usize(..3)],
                values[random.usize(..3)],
            ));
        }
        let units = random.i64(1..6);
        Self {
            entries,
            own: match random.u8(..10) {
                0 => Own::Look,
                1 => Own::Used(units),
                2 | 3 => Own::Back(units),
                _ => Own::None,
            },
            limit: (random.u8(..8) == 0).then(|| random.i64(0..6)),
        }
    }

    pub fn json(&self) -> Value {
        let entries = self.entries.iter();
        let entries: Value = entries
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let mut descriptor = json!({"entries": entries});
        match self.own {
            Own::None => {}
            Own::Look => descriptor["hitsAddend"] = json!(0),
            Own::Used(units) => descriptor["hitsAddend"] = json!(units),
            Own::Back(units) => {
                descriptor["hitsAddend"] = json!(units);
                descriptor["isNegativeHits"] = json!(true);
            }
        }
        if let Some(units) = self.limit {
            descriptor["limit"] = json!({"requestsPerUnit": units, "unit": "YEAR"});
        }
        descriptor
    }

    /// The limit of this descriptor: the best pattern of each entry is chosen, whatever follows it.
    pub fn limit<'l>(&self, limits: &'l [Limit]) -> Option<&'l Limit> {
        let mut left: Vec<&Limit> = limits.iter().collect();
        for (at, is) in self.entries.iter().enumerate() {
            let patterns = left.iter().filter_map(|limit| limit.entries.get(at));
            let fitting = patterns.filter(|wanted| {
                let value = match wanted.1.strip_suffix('*') {
                    Some(begin) => is.1.starts_with(begin),
                    None => wanted.1.is_empty() || wanted.1 == is.1,
                };
                wanted.0 == is.0 && value
            });
            let best = *fitting.min_by_key(|wanted| match wanted.1 {
                "" => 2,
                value if value.ends_with('*') => 1,
                _ => 0,
            })?;
            left.retain(|limit| limit.entries.get(at) == Some(&best));
        }
        let ended = |limit: &&Limit| limit.entries.len() == self.entries.len();
        left.into_iter().find(ended)
    }
}
