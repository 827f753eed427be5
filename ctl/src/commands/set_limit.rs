//! `rlctl set-limit`.

mod fields;

use clap::Args;
use insight::Window;
use limits_file::ToNode as _;
use policy::{Limit, Name, Node, Override, Policy, Scope};
use store::{Overrides, Stored};

use crate::{
    bucket::{self, Pair, Values},
    changes::{self, Action, LimitChange},
    cli::{Global, examples},
    commands::replay::{BeforeEdit, with_overrides},
    edit::{EditArgs, EditReport, Edited, Planned, PlannedWrite, can_ask, end_after, not_a_time},
    error::{self, Error, Exit},
    printer::Printer,
    render::counted,
    session::Session,
};
use fields::LimitFields;
use fields::invalid_limit;
pub(super) use fields::matchers;

/// Create a limit, change fields of one, or set an override for one bucket.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl set-limit per-user --per user --rate 10/s --burst 20 --match 'path=/api/**'"
    "rlctl set-limit per-user --rate 20/s --reason 'launch day'"
    "rlctl set-limit per-user --for user=alice --rate 100/s --until 2h"
    "rlctl set-limit per-user --for user=probe --unlimited"
    "rlctl set-limit sign-in --penalty after=10,within=1m,for=15m"
    "rlctl set-limit new-limit --rate 5/s --shadow        # report only, deny nothing"
    "rlctl set-limit per-user --unset burst --dry-run"
    "rlctl set-limit per-user --rate 5/s --replay access.log --fail-above 0.1%"
))]
pub struct SetLimit {
    /// The limit.
    name: String,

    #[command(flatten)]
    fields: LimitFields,

    /// Set an override for this bucket only; name every entry of `per`.
    #[arg(long = "for", value_name = "KEY=VALUE", help_heading = "One bucket")]
    bucket: Vec<Pair>,

    /// That bucket is not limited.
    #[arg(long, requires = "bucket", conflicts_with_all = ["rate", "burst", "limit"],
        help_heading = "One bucket")]
    unlimited: bool,

    /// When the override ends: a time like 2026-12-01T00:00Z, or a duration from now like 2h.
    #[arg(
        long,
        value_name = "TIME",
        requires = "bucket",
        help_heading = "One bucket"
    )]
    until: Option<String>,

    /// Fail if the limit exists.
    #[arg(long, conflicts_with = "bucket", help_heading = "Edit options")]
    if_absent: bool,

    #[command(flatten)]
    before: BeforeEdit,

    #[command(flatten)]
    edit: EditArgs,
}

impl SetLimit {
    /// Makes the edit and shows what it did.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let name = bucket::limit_name(&self.name)?;
        let session = Session::open(global, printer)?;
        let domain = session.domain().await?;
        let base = self.base(&session, &domain, &name).await?;
        let edited = if self.bucket.is_empty() {
            self.set_limit(&session, &domain, &name, base).await?
        } else {
            self.set_override(&session, &domain, base).await?
        };
        printer.data(&edited.report)?;
        let warned = self.warn(&session, &name, &edited).await;
        session.note_read_failure(warned);
        session.follow_up_edit(&edited.report, &self.edit).await
    }

    /// The record that the edit is based on: with this limit alone, where the others do not matter. Reading
    /// thousands takes longer than all the rest.
    async fn base(
        &self,
        session: &Session<'_>,
        domain: &Name,
        name: &Name,
    ) -> Result<Stored, Error> {
        if !self.before.any() {
            let base = session.read_for(domain, name).await?;
            let limit = base.policy().and_then(|policy| policy.limit(name.as_str()));
            let alike = |limit: &Limit| {
                let edited = limits_file::limit_from_node(&self.edited_node(Some(limit), name));
                edited.is_ok_and(|edited| limits_file::edit::refers_alike(limit, &edited))
            };
            let suffices = !self.bucket.is_empty() || limit.is_some_and(alike);
            if suffices || !base.is_part() {
                return Ok(base);
            }
        }
        session.read(domain, Overrides::None).await
    }

    async fn set_limit(
        &self,
        session: &Session<'_>,
        domain: &Name,
        name: &Name,
        base: Stored,
    ) -> Result<Edited, Error> {
        let limit_in = |base: &Stored| base.policy()?.limit(name.as_str()).cloned();
        if self.before.any() {
            let edited = self.edited(&base, domain, name)?;
            let after = |before: &Policy| with_overrides(edited, before);
            self.before.show(session, domain, &self.edit, after).await?;
        }
        if limit_in(&base).is_none() && !self.edit.dry_run {
            let policy = self.edited(&base, domain, name)?;
            if let Some(new) = policy.limit(name.as_str()) {
                self.ask_for_typo(&base, name).await?;
                self.ask_for_every_request(&base, domain, new).await?;
            }
        }
        let about = async |base: &Stored| Ok(limit_in(base));
        let plan = async |base: &Stored, before: &Option<Limit>| {
            self.check_presence(name, before.as_ref())?;
            let policy = self.edited(base, domain, name)?;
            let after = policy.limit(name.as_str());
            if let (Some(before), Some(after)) = (before, after) {
                self.overrides_must_fit(session, domain, (before, after))
                    .await?;
            }
            if let Some(after) = after {
                fields::warn(session, domain, after).await;
            }
            let change = LimitChange::between(before.as_ref(), after);
            Ok(Planned {
                changes: change.into_iter().collect(),
                write: PlannedWrite::Fields(policy),
            })
        };
        session.edit(&self.edit, domain, base, about, plan).await
    }

    /// A typo in the name would create a new limit, perhaps for all requests, beside the intended
    /// one. At a terminal the user is asked; a script gets a warning afterwards.
    async fn ask_for_typo(&self, base: &Stored, name: &Name) -> Result<(), Error> {
        let limits = base.policy().map_or(&[][..], |policy| &policy.limits);
        match similar(limits, name) {
            Some(similar) if can_ask() => {
                let question = format!("{name} is a new limit beside {similar}: create it");
                self.edit.confirm(question).await
            }
            _ => Ok(()),
        }
    }

    /// A new limit without a pattern counts every request of the domain; without `per` as well, all
    /// of them in one bucket, and then it has to be confirmed. Otherwise the user is asked at a terminal,
    /// and a script gets a warning afterwards.
    async fn ask_for_every_request(
        &self,
        base: &Stored,
        domain: &Name,
        limit: &Limit,
    ) -> Result<(), Error> {
        let one_bucket = limit.per.is_empty();
        if !self.is_for_every_request(limit) || !one_bucket && !can_ask() {
            return Ok(());
        }
        let name = &limit.name;
        let question = format!("{name} applies to every request of domain {domain}: create it");
        let limits = base.policy().map_or(&[][..], |policy| &policy.limits);
        let meant = similar(limits, name);
        let confirmed = self.edit.confirm(question).await;
        confirmed.map_err(|error| {
            error.maybe_hint(
                meant.map(|meant| format!("there is no limit {name} yet; did you mean {meant}?")),
            )
        })
    }

    /// Whether it applies to every request and `--yes` was not given.
    fn is_for_every_request(&self, limit: &Limit) -> bool {
        limit.matchers.is_empty() && limit.enforce_percent > 0 && !self.edit.yes
    }

    /// Checks that the edit neither loses the limit's overrides nor makes one of them invalid.
    async fn overrides_must_fit(
        &self,
        session: &Session<'_>,
        domain: &Name,
        (before, after): (&Limit, &Limit),
    ) -> Result<(), Error> {
        let Some((count, lines)) = session.overrides_invalidated(domain, before, after).await?
        else {
            return Ok(());
        };
        let name = &after.name;
        let (overrides, lines) = (counted(count, "override"), lines.join("\n  "));
        let error = Error::usage(format!("limit {name}:\n  {lines}"));
        Err(error
            .hint(format!("its {overrides} must fit as well"))
            .hint(format!("`rlctl delete-limit {name} --for …` removes one")))
    }

    fn check_presence(&self, name: &Name, before: Option<&Limit>) -> Result<(), Error> {
        match before {
            Some(_) if self.if_absent => Err(Error::new(
                Exit::Conflict,
                format!("limit {name} exists already"),
            )
            .hint("without --if-absent the command changes its fields")),
            Some(_) if !self.fields.any() => Err(Error::usage("nothing to change: name a field")
                .hint(format!("as in `rlctl set-limit {name} --rate 20/s`"))
                .hint(format!("`rlctl get-limit {name}` shows what there is"))),
            Some(_) | None => Ok(()),
        }
    }

    /// This limit, edited by the flags.
    fn edited_node(&self, old: Option<&Limit>, name: &Name) -> Node {
        let mut limit = match old {
            Some(limit) => limit.to_node(),
            None => Node::map([("name", Node::text(name.as_str()))]),
        };
        self.fields.apply(&mut limit);
        limit
    }

    /// The limits of the base with this one edited by the flags.
    fn edited(&self, base: &Stored, domain: &Name, name: &Name) -> Result<Policy, Error> {
        let old = base
            .policy()
            .cloned()
            .unwrap_or_else(|| Policy::empty(domain.clone()));
        let limit = self.edited_node(old.limit(name.as_str()), name);
        let edited = limits_file::limit_from_node(&limit).and_then(|limit| {
            if base.is_part() {
                // The others are valid beside it, as they were.
                let mut edited = old.clone();
                edited.limits = vec![limit];
                return Ok(edited);
            }
            limits_file::edit::with_limit(&old, limit)
        });
        edited.map_err(|problems| {
            let error = invalid_limit(name.as_str(), &problems);
            let is_new = old.limit(name.as_str()).is_none();
            let similar = similar(&old.limits, name).filter(|_| is_new);
            error.maybe_hint(
                similar.map(|similar| {
                    format!("there is no limit {name} yet; did you mean {similar}?")
                }),
            )
        })
    }
}

/// An existing limit whose name is similar to a new one.
fn similar<'l>(limits: &'l [Limit], name: &Name) -> Option<&'l str> {
    let others = limits.iter().filter(|limit| limit.name != *name);
    error::closest(name.as_str(), others.map(|limit| limit.name.as_str()))
}

impl SetLimit {
    /// Warns of what the author would not expect: the limit is paused, matches nothing, applies to
    /// every request, or is new because of a typo.
    async fn warn(&self, session: &Session<'_>, name: &Name, edited: &Edited) -> Result<(), Error> {
        let (report, policy) = (&edited.report, edited.policy());
        let domain = &report.domain;
        if let Some(policy) = policy {
            session.warn_of_pause(policy, &[name.as_str()]);
        }
        let limit = policy.and_then(|policy| policy.limit(name.as_str()));
        let window = limit.and_then(|limit| Window::from_quota(&limit.quota, crate::now_ms()));
        if let Some(window) = window.filter(|_| self.bucket.is_empty()) {
            session
                .printer
                .note(format_args!("{name} counts in {window}"));
        }
        let is_new = |change: &LimitChange| change.action == Action::Created;
        if !report.changes.iter().any(is_new) {
            return Ok(());
        }
        if limit.is_some_and(|limit| self.is_for_every_request(limit)) && !can_ask() {
            session.printer.warn(format_args!(
                "{name} applies to every request of domain {domain}; --match narrows it, --yes \
                 confirms it"
            ));
        }
        warn_of_typo(session, name, report, policy).await
    }
}

/// Warns that the edit created a limit, or even a domain, perhaps because of a typo.
async fn warn_of_typo(
    session: &Session<'_>,
    name: &Name,
    report: &EditReport,
    policy: Option<&Policy>,
) -> Result<(), Error> {
    if report.previous_revision.is_none() {
        return session.warn_of_new_domain().await;
    }
    let limits = policy.map_or(&[][..], |policy| &policy.limits);
    if let Some(similar) = similar(limits, name) {
        let new = if report.dry_run {
            "would be a new"
        } else {
            "is a new"
        };
        session
            .printer
            .warn(format_args!("{name} {new} limit beside {similar}"));
    }
    Ok(())
}

// --- `set-limit --for`: an override for one bucket.

impl SetLimit {
    pub(super) async fn set_override(
        &self,
        session: &Session<'_>,
        domain: &Name,
        base: Stored,
    ) -> Result<Edited, Error> {
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
        if self.before.any() {
            let limit = session.limit_in(&base, domain, &self.name).await?;
            let values = bucket::bucket(limit, &bucket, &[])?;
            let old = session.override_of(domain, limit, &values).await?;
            let now_ms = session.now_ms().await?;
            let new = self.override_for(limit, &values, old.as_ref(), now_ms)?;
            let after = |before: &Policy| with_override(before.clone(), &limit.name, new);
            self.before.show(session, domain, &self.edit, after).await?;
        }
        let about = async |base: &Stored| {
            let limit = session.limit_in(base, domain, &self.name).await?;
            let values = bucket::bucket(limit, &bucket, &[])?;
            session.override_of(domain, limit, &values).await
        };
        let plan = async |base: &Stored, before: &Option<Override>| {
            let limit = session.limit_in(base, domain, &self.name).await?;
            let values = bucket::bucket(limit, &bucket, &[])?;
            let now_ms = session.now_ms().await?;
            let after = self.override_for(limit, &values, before.as_ref(), now_ms)?;
            fields::warn_of_override(session, domain, limit, &after).await;
            if before.is_none() {
                must_have_room(session, domain, limit).await?;
            }
            Ok(Planned {
                changes: vec![between(limit, before.as_ref(), Some(&after))],
                write: PlannedWrite::Override(limit.name.clone(), values, Some(after)),
            })
        };
        session.edit(&self.edit, domain, base, about, plan).await
    }

    /// The override that the flags make of the existing one.
    fn override_for(
        &self,
        limit: &Limit,
        values: &Values,
        before: Option<&Override>,
        now_ms: u64,
    ) -> Result<Override, Error> {
        let mut node = before.map_or_else(
            || Node::map::<&str>([]),
            |entry| limits_file::override_node(entry, &limit.per),
        );
        node.set("values", bucket::to_node(limit, values));
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
        limits_file::override_from_node(limit, &node)
            .map_err(|problems| invalid_limit(name, &problems))
    }
}

/// A policy with one override changed or added.
fn with_override(mut policy: Policy, limit: &Name, new: Override) -> Policy {
    let mut limits = policy.limits.iter_mut();
    if let Some(limit) = limits.find(|one| one.name == *limit) {
        limit.overrides.retain(|old| old.values != new.values);
        limit.overrides.push(new);
    }
    policy
}

/// Proxies hold the overrides of their limits. (The store counts those of a domain.)
async fn must_have_room(session: &Session<'_>, domain: &Name, limit: &Limit) -> Result<(), Error> {
    if limit.scope != Scope::Proxy {
        return Ok(());
    }
    let (own, max) = (
        session.override_count(domain, limit).await?,
        limit.scope.overrides_max(),
    );
    if usize::try_from(own).is_ok_and(|own| own < max) {
        return Ok(());
    }
    let name = &limit.name;
    let message = format!("limit {name} has {own} overrides already");
    Err(Error::new(Exit::Refused, message).hint(format!(
        "with `scope: proxy` every Envoy holds all of them: {max} at most"
    )))
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
        return Err(not_a_time("--until", until, "neither a time nor a while")
            .hint("a time is like 2026-12-01T00:00Z, a while from now like 30m or 2h"));
    };
    if ms == 0 {
        return Err(Error::usage(format!("--until: {until} is over at once"))
            .hint("`rlctl delete-limit NAME --for …` ends an override now"));
    }
    let end_ms = end_after("--until", until, ms, now_ms)?;
    Ok(policy::format_timestamp(end_ms))
}

/// The change of one bucket's override.
pub(super) fn between(
    limit: &Limit,
    before: Option<&Override>,
    after: Option<&Override>,
) -> LimitChange {
    let before = before.map(|entry| limits_file::override_node(entry, &limit.per));
    let after = after.map(|entry| limits_file::override_node(entry, &limit.per));
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
            ("9000000d", "9000000d is after the year 9999"),
            (
                "10000-01-01T00:00Z",
                "10000-01-01T00:00Z is after the year 9999",
            ),
        ] {
            let error = absolute(until, now_ms).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
