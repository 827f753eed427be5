//! Updates a compiled policy by an edit of its domain, at the cost of what changed.

use std::sync::Arc;

use super::{Compiled, overrides::Overrides, shared};
use documents::Name;

use crate::{Limit, Override, Policy};

impl Compiled {
    /// The policy after edits, from its limits as they are now, without overrides, and the
    /// overrides that changed (limit, bucket, and `None` if it is gone). It shares all other
    /// overrides with this one.
    ///
    /// `None` if that is not enough: a limit with overrides has other numbers or other `per`
    /// entries now, which change the meaning of its overrides.
    pub fn caught_up(
        &self,
        mut policy: Policy,
        changed: impl IntoIterator<Item = (Name, Vec<Option<Vec<u8>>>, Option<Override>)>,
    ) -> Option<Self> {
        let mut next = if self.same_limits(&mut policy) {
            Self {
                limits: shared(&mut policy),
                policy,
                shape: Arc::clone(&self.shape),
                overrides: self.overrides.clone(),
                opaque: Vec::new(),
            }
        } else {
            let mut next = Self::new(policy);
            next.overrides = self.overrides_of(&next.limits)?;
            next
        };
        for (name, values, to) in changed {
            if let Some(at) = next.position(name.as_str()) {
                next.overrides.get_mut(at)?.set(&name, &values, to);
            }
        }
        Some(next)
    }

    /// Whether the limits and exemptions are the same, apart from their generations.
    fn same_limits(&self, policy: &mut Policy) -> bool {
        let same = |(old, new): (&Arc<Limit>, &mut Limit)| {
            let made = (new.generation, new.reset_generation);
            (new.generation, new.reset_generation) = (old.generation, old.reset_generation);
            let same = **old == *new;
            (new.generation, new.reset_generation) = made;
            same
        };
        let (old, new) = (&self.limits, &mut policy.limits);
        self.policy.exempt == policy.exempt
            && old.len() == new.len()
            && old.iter().zip(new).all(same)
    }

    /// The overrides that the limits had before.
    fn overrides_of(&self, limits: &[Arc<Limit>]) -> Option<Vec<Overrides>> {
        let of = |limit: &Arc<Limit>| {
            let Some(at) = self.position(limit.name.as_str()) else {
                return Some(Overrides::default());
            };
            let (old, overrides) = (self.limit(at)?, self.overrides.get(at)?);
            (!overrides.any() || same_buckets(old, limit)).then(|| overrides.clone())
        };
        limits.iter().map(of).collect()
    }
}

/// Whether an override means the same under both limits.
fn same_buckets(a: &Limit, b: &Limit) -> bool {
    let of = |limit: &Limit| (limit.quota, limit.if_missing, limit.scope);
    a.per == b.per && of(a) == of(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resolved;

    fn policy(limits: &str) -> Policy {
        let file = format!("domain: shop\nlimits: [{limits}]\n");
        Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    const LIVE: &str = "{name: a, per: [user], rate: 1/s, \
         overrides: [{values: {user: x}, rate: 9/s}, {values: {user: y}, rate: 8/s}]}";

    fn rate(compiled: &Compiled, user: &str) -> u64 {
        match compiled.quota_for(0, &[Some(user)], 0) {
            Some(Resolved::Quota(quota)) => quota.parameters().rate.units,
            other => panic!("{other:?}"),
        }
    }

    fn change(user: &str, to: Option<u64>) -> (Name, Vec<Option<Vec<u8>>>, Option<Override>) {
        let limit = policy("{name: a, per: [user], rate: 1/s}").limits.remove(0);
        let json =
            |rate: u64| format!("{{\"values\":{{\"user\":\"{user}\"}},\"rate\":\"{rate}/s\"}}");
        let to = to.map(|rate| {
            let node = serde_json::from_str(&json(rate)).unwrap();
            limit.read_override(&node).unwrap()
        });
        (limit.name, vec![Some(user.as_bytes().to_vec())], to)
    }

    #[test]
    fn an_edit_of_overrides_shares_the_rest() {
        let before = Compiled::new(policy(LIVE));
        let mut limits = policy("{name: a, per: [user], rate: 1/s}");
        limits.limits[0].generation = 7;
        let changed = [
            change("x", Some(5)),
            change("y", None),
            change("z", Some(3)),
        ];
        let after = before.caught_up(limits, changed).unwrap();
        let rates = ["x", "y", "z", "other"].map(|user| rate(&after, user));
        assert_eq!(rates, [5, 1, 3, 1]);
        assert_eq!(["x", "y", "z"].map(|user| rate(&before, user)), [9, 8, 1]);
        assert_eq!(after.limits()[0].generation, 7);
        assert!(Arc::ptr_eq(&before.shape, &after.shape));
    }

    #[test]
    fn overrides_stay_with_a_limit_that_keeps_its_rate_and_per() {
        let before = Compiled::new(policy(LIVE));
        let moved = "{name: new, rate: 2/s}, {name: a, per: [user], rate: 1/s, hidden: true}";
        let after = before.caught_up(policy(moved), []).unwrap();
        assert_eq!(after.overrides(1).count(), 2);
        assert_eq!(after.overrides(0).count(), 0);
        for other in [
            "{name: a, per: [user], rate: 2/s}",
            "{name: a, per: [ip], rate: 1/s}",
        ] {
            assert!(before.caught_up(policy(other), []).is_none(), "{other}");
        }
        let gone = before.caught_up(policy("{name: b, rate: 1/s}"), [change("x", None)]);
        assert_eq!(gone.unwrap().overrides(0).count(), 0);
    }
}
