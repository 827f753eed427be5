//! `set-limit --for`: an override for one bucket.

use policy::{Limit, Name, Node, OVERRIDES_MAX, Override, Scope};
use store::{Change, Stored};

use super::{
    SetLimit,
    problems::{invalid_limit, warn_of_override},
};
use crate::{
    bucket::{self, Values},
    changes::{self, Action, LimitChange},
    edit::{EditReport, Prepared},
    error::Error,
    exit::Exit,
    session::Session,
};

impl SetLimit {
    pub(super) async fn set_override(
        &self,
        session: &Session<'_>,
        domain: &Name,
        base: Stored,
    ) -> Result<EditReport, Error> {
        if let Some(field) = self
            .fields
            .other_than(&["rate", "burst", "limit", "time_zone"])
        {
            let flag = field.replace('_', "-");
            return Err(Error::usage(format!(
                "--for gives one bucket other numbers, not another --{flag}"
            ))
            .hint("it takes --rate, --burst, --limit, --time-zone, --unlimited and --until"));
        }
        let bucket = session.as_proxies_have(domain, &self.bucket).await?;
        let override_in = async |base: &Stored| {
            let limit = session.limit_in(base, domain, &self.name).await?;
            let values = bucket::bucket(limit, &bucket, &[])?;
            session.override_of(domain, limit, &values).await
        };
        let attempt = async |base: &Stored, before: &Option<Override>| {
            let limit = session.limit_in(base, domain, &self.name).await?;
            let values = bucket::bucket(limit, &bucket, &[])?;
            let now_ms = session.now_ms().await?;
            let after = self.override_for(limit, &values, before.as_ref(), now_ms)?;
            warn_of_override(session, domain, limit, &after).await;
            if before.is_none() {
                must_have_room(session, base, limit).await?;
            }
            let prepared = Prepared {
                domain,
                base,
                change: Change::Override {
                    limit: &limit.name,
                    values: &values,
                    to: Some(&after),
                },
                changes: vec![between(limit, before.as_ref(), Some(&after))],
            };
            Ok(session.edit(prepared, &self.edit).await)
        };
        session
            .edit_with_retry(domain, base, override_in, attempt)
            .await
    }

    /// The override that the flags make of the existing one.
    fn override_for(
        &self,
        limit: &Limit,
        values: &Values,
        before: Option<&Override>,
        now_ms: u64,
    ) -> Result<Override, Error> {
        let mut node =
            before.map_or_else(|| Node::map::<&str>([]), |entry| entry.to_node(&limit.per));
        let pairs = limit.per.iter().zip(values);
        let pairs =
            pairs.map(|(key, value)| (key.as_str(), policy::value_to_node(value.as_deref())));
        node.set("values", Node::map(pairs));
        if self.unlimited {
            node.unset("rate");
            node.unset("limit");
            node.unset("burst");
            node.unset("time_zone");
            node.set("unlimited", true.into());
        } else if self.fields.any() {
            node.unset("unlimited");
            self.fields.apply(&mut node);
        }
        if let Some(until) = &self.until {
            node.set("until", Node::text(absolute(until, now_ms)?));
        }
        let name = limit.name.as_str();
        limit
            .read_override(&node)
            .map_err(|problems| invalid_limit(name, &problems))
    }
}

/// Limiters hold all overrides of a domain, and proxies those of their limits.
async fn must_have_room(session: &Session<'_>, base: &Stored, limit: &Limit) -> Result<(), Error> {
    let Some(policy) = base.policy() else {
        return Ok(());
    };
    let counts = session.override_counts(policy).await?;
    let mut limits = policy.limits.iter().zip(&counts);
    let own = limits.find(|(other, _)| other.name == limit.name);
    let (own, all) = (own.map_or(0, |(_, count)| *count), counts.iter().sum());
    let has_room = |count, max| usize::try_from(count).is_ok_and(|count: usize| count < max);
    let refused = |message: String| Error::new(Exit::Refused, message);
    let max = limit.scope.overrides_max();
    if limit.scope == Scope::Proxy && !has_room(own, max) {
        let name = &limit.name;
        let error = refused(format!("limit {name} has {own} overrides already"));
        return Err(error.hint(format!(
            "with `scope: proxy` every Envoy holds all of them: {max} at most"
        )));
    }
    if !has_room(all, OVERRIDES_MAX) {
        let error = refused(format!("the domain has {all} overrides already"));
        return Err(error.hint(format!("{OVERRIDES_MAX} at most")));
    }
    Ok(())
}

/// A point in time stays as it is; a duration counts from now by the store's clock.
fn absolute(until: &str, now_ms: u64) -> Result<String, Error> {
    if let Some(ms) = policy::parse_timestamp(until) {
        if ms <= now_ms {
            return Err(Error::usage(format!("--until: {until} has passed"))
                .hint("`rlctl delete-limit NAME --for …` ends an override now"));
        }
        return Ok(until.to_owned());
    }
    let Ok(ms) = policy::parse_duration(until) else {
        return Err(
            Error::usage(format!("--until: `{until}` is neither a time nor a while"))
                .hint("a time is like 2026-12-01T00:00Z, a while from now like 30m or 2h"),
        );
    };
    if ms == 0 {
        return Err(Error::usage(format!("--until: {until} is over at once"))
            .hint("`rlctl delete-limit NAME --for …` ends an override now"));
    }
    // Whole seconds read better, and a duration need not be exact to the millisecond.
    let until_ms = now_ms
        .saturating_add(ms)
        .div_ceil(1000)
        .saturating_mul(1000);
    Ok(policy::format_timestamp(until_ms))
}

/// The change of one bucket's override.
pub fn between(limit: &Limit, before: Option<&Override>, after: Option<&Override>) -> LimitChange {
    let before = before.map(|entry| entry.to_node(&limit.per));
    let after = after.map(|entry| entry.to_node(&limit.per));
    let overrides = changes::override_change(before.as_ref(), after.as_ref());
    LimitChange {
        limit: limit.name.to_string(),
        action: if overrides.is_empty() {
            Action::Unchanged
        } else {
            Action::Changed
        },
        fields: Vec::new(),
        overrides,
        overrides_unrecorded: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::absolute;

    #[test]
    fn an_override_ends_in_the_future() {
        let now_ms = 1_795_615_896_377;
        for (until, end) in [
            ("30m", "2026-11-25T14:41:37Z"),
            ("1ms", "2026-11-25T14:11:37Z"),
            ("2099-12-01T00:00Z", "2099-12-01T00:00Z"),
        ] {
            assert_eq!(absolute(until, now_ms).unwrap(), end, "{until}");
        }
        for (until, why) in [
            ("0s", "0s is over at once"),
            ("0ms", "0ms is over at once"),
            ("2020-12-01T00:00Z", "2020-12-01T00:00Z has passed"),
            ("soon", "neither a time nor a while"),
        ] {
            let error = absolute(until, now_ms).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
