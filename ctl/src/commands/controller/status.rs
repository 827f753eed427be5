//! What a status says: the conditions, made of findings, of what the store has and of what the proxies have.

use std::time::Duration;

use kubernetes::{
    ANCESTORS_MAX, Ancestor, AncestorResult, Condition, DomainObjectResult, Finding, ObjectResult,
    RateLimitDomainStatus, RateLimitStatus, controller_name,
};
use tokio::time::Instant;

use super::enforced::Verdict;

const ACCEPTED: &str = "Accepted";
const PROGRAMMED: &str = "Programmed";
const ENFORCED: &str = "Enforced";
const FILTER_APPLIED: &str = "FilterApplied";

/// A proxy's workers take over what one of them polled within 50 ms. What a report says must have been so for longer.
const SETTLES_AFTER: Duration = Duration::from_millis(150);
/// How long a proxy or a limiter may take to start again before a status changes that was true.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// How often the message of one that is not true yet changes.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// What a condition says, and of which generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) status: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) generation: i64,
}

impl Claim {
    pub(super) fn new(
        status: &'static str,
        reason: &str,
        message: impl Into<String>,
        generation: i64,
    ) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
            generation,
        }
    }

    fn of(finding: &Finding, generation: i64) -> Self {
        let status = if finding.ok { "True" } else { "False" };
        Self::new(status, finding.reason, finding.message.clone(), generation)
    }

    fn condition(self, kind: &str, before: &[Condition], now: &str) -> Condition {
        let before = before
            .iter()
            .find(|one| one.kind == kind && one.status == self.status);
        Condition {
            kind: kind.to_owned(),
            status: self.status.to_owned(),
            reason: self.reason,
            message: self.message,
            observed_generation: self.generation,
            last_transition_time: before
                .map_or_else(|| now.to_owned(), |one| one.last_transition_time.clone()),
        }
    }
}

/// What became of an object's limits at one Gateway.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) programmed: Claim,
    /// `None`: as it was.
    pub(super) enforced: Option<Claim>,
    pub(super) revision: Option<u64>,
}

/// The status of a `RateLimit` of this generation. `judge` is asked about each Gateway at which it has limits.
pub(super) fn of_rate_limit(
    before: &RateLimitStatus,
    result: &ObjectResult,
    generation: i64,
    now: &str,
    mut judge: impl FnMut(&AncestorResult, Option<&Condition>) -> Judged,
) -> RateLimitStatus {
    let mut ancestors = Vec::new();
    for found in &result.ancestors {
        let mut known = before.ancestors.iter();
        let known = known.find(|one| one.ancestor_ref == found.ancestor);
        let old = known.map_or(&[][..], |known| &known.conditions);
        let accepted = Claim::of(&found.accepted, generation);
        let mut conditions = vec![accepted.condition(ACCEPTED, old, now)];
        let mut revision = None;
        if found.limits.is_empty() {
            // Accepted and without limits: replaced by those of another object.
            let Finding {
                reason, message, ..
            } = &found.accepted;
            for kind in [PROGRAMMED, ENFORCED] {
                let nothing = Claim::new("False", reason, message.clone(), generation);
                conditions.push(nothing.condition(kind, old, now));
            }
        } else {
            let enforced = old.iter().find(|one| one.kind == ENFORCED);
            let judged = judge(found, enforced);
            conditions.push(judged.programmed.condition(PROGRAMMED, old, now));
            match judged.enforced {
                Some(claim) => conditions.push(claim.condition(ENFORCED, old, now)),
                None => conditions.extend(enforced.cloned()),
            }
            revision = judged.revision;
        }
        ancestors.push(Ancestor {
            ancestor_ref: found.ancestor.clone(),
            controller_name: controller_name(),
            domain: found.domain.as_ref().map(ToString::to_string),
            revision,
            conditions,
        });
    }
    let accepted = in_short(&ancestors, ACCEPTED, generation);
    let enforced = in_short(&ancestors, ENFORCED, generation);
    if ancestors.len() > ANCESTORS_MAX {
        // Of too many, those that explain the summary.
        let is_true = |one: &Ancestor| one.conditions.iter().all(|one| one.status == "True");
        ancestors.sort_by_key(is_true);
        ancestors.truncate(ANCESTORS_MAX);
    }
    RateLimitStatus {
        accepted,
        enforced,
        in_force: result.in_force.clone(),
        ancestors,
    }
}

/// `True`, or the reason of the first condition of this kind that is not. One about an earlier generation is not; where the
/// new one was refused, for its reason.
fn in_short(ancestors: &[Ancestor], kind: &str, generation: i64) -> String {
    let of = |one: &Ancestor| {
        let find = |kind| one.conditions.iter().find(|one| one.kind == kind);
        let is_refused =
            |one: &&Condition| one.status == "False" && one.observed_generation == generation;
        if let Some(refused) = find(ACCEPTED).filter(is_refused) {
            return Some(refused.reason.clone());
        }
        match find(kind) {
            Some(one) if one.status != "True" => Some(one.reason.clone()),
            Some(one) if one.observed_generation == generation => None,
            _ => Some("Reconciling".to_owned()),
        }
    };
    match ancestors.iter().find_map(of) {
        Some(reason) => reason,
        None if ancestors.is_empty() => String::new(),
        None => "True".to_owned(),
    }
}

/// The status of a `RateLimitDomain`.
pub(super) fn of_domain(
    before: &RateLimitDomainStatus,
    result: &DomainObjectResult,
    generation: i64,
    now: &str,
    programmed: Option<Claim>,
    filter: Option<Claim>,
    revision: Option<u64>,
) -> RateLimitDomainStatus {
    let old = &before.conditions;
    let accepted = Claim::of(&result.accepted, generation);
    let mut conditions = vec![accepted.condition(ACCEPTED, old, now)];
    conditions.extend(programmed.map(|claim| claim.condition(PROGRAMMED, old, now)));
    conditions.extend(filter.map(|claim| claim.condition(FILTER_APPLIED, old, now)));
    RateLimitDomainStatus {
        revision,
        in_force: result.in_force.clone(),
        conditions,
    }
}

// --- An object whose deletion was asked for, and that somebody's finalizer still holds: its limits go at once.

fn ending(before: &[Condition], generation: i64, now: &str) -> Vec<Condition> {
    let claim = |one: &Condition| {
        // What it was accepted for is no more, but that it was stays true.
        if one.kind == ACCEPTED {
            return one.clone();
        }
        let message = "its deletion was asked for, and its limits are no longer kept in the store";
        let claim = Claim::new("False", "Deleting", message, generation);
        claim.condition(&one.kind, before, now)
    };
    before.iter().map(claim).collect()
}

/// The status of a `RateLimit` that is being deleted.
pub(super) fn of_ending_rate_limit(
    before: &RateLimitStatus,
    generation: i64,
    now: &str,
) -> RateLimitStatus {
    let mut status = before.clone();
    status.in_force = None;
    for one in &mut status.ancestors {
        one.conditions = ending(&one.conditions, generation, now);
        one.revision = None;
    }
    status.enforced = in_short(&status.ancestors, ENFORCED, generation);
    status
}

/// The same of a `RateLimitDomain`.
pub(super) fn of_ending_domain(
    before: &RateLimitDomainStatus,
    generation: i64,
    now: &str,
) -> RateLimitDomainStatus {
    RateLimitDomainStatus {
        revision: None,
        in_force: None,
        conditions: ending(&before.conditions, generation, now),
    }
}

// --- What is said of the proxies, over time.

/// What was said last of one object at one Gateway.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// As it was said: the status itself does not have it where there are too many Gateways.
    pub(super) said: Option<Claim>,
    /// The generation, and the revision that has it.
    about: (i64, u64),
    was_true: bool,
    all_since: Option<Instant>,
    lacking_since: Option<Instant>,
    said_at: Option<Instant>,
}

impl Held {
    /// What to say of a verdict; `None`: what was said before.
    ///
    /// It becomes true when all proxies have had the revision for a moment. One that is true stays so while what is missing
    /// may just be starting again: nobody wants to be woken by each proxy that is replaced.
    pub(super) fn hold(
        &mut self,
        about: (i64, u64),
        before: Option<&Condition>,
        verdict: Verdict,
        now: Instant,
    ) -> Option<Verdict> {
        if self.about != about {
            // After a restart of the controller the status is what is known.
            let is_first = self.about == (0, 0);
            let is_true =
                |one: &Condition| one.status == "True" && one.observed_generation == about.0;
            *self = Self {
                about,
                was_true: is_first && before.is_some_and(is_true),
                ..Self::default()
            };
        }
        let may_be_starting = match &verdict {
            Verdict::All(_) => {
                self.lacking_since = None;
                let since = *self.all_since.get_or_insert(now);
                if self.was_true || now.duration_since(since) >= SETTLES_AFTER {
                    self.was_true = true;
                    self.said_at = None;
                    return Some(verdict);
                }
                // Said at the next look.
                return None;
            }
            Verdict::NoPods => false,
            Verdict::NoProxies(_)
            | Verdict::NoneReports
            | Verdict::NoLimiters
            | Verdict::NoReports => true,
            Verdict::Lacking(lacking) => lacking.may_be_starting(),
        };
        self.all_since = None;
        if self.was_true && may_be_starting {
            let since = *self.lacking_since.get_or_insert(now);
            if now.duration_since(since) < STARTS_WITHIN {
                return None;
            }
        }
        self.was_true = false;
        if self
            .said_at
            .is_some_and(|at| now.duration_since(at) < PROGRESS_EVERY)
        {
            return None;
        }
        self.said_at = Some(now);
        Some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const START: (i64, u64) = (2, 7);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn it_is_true_once_all_have_had_it_for_a_moment() {
        let (mut held, now) = (Held::default(), Instant::now());
        assert_eq!(held.hold(START, None, Verdict::All(3), now), None);
        let settled = held.hold(START, None, Verdict::All(3), after(now, 200));
        assert_eq!(settled, Some(Verdict::All(3)));
        // A new generation begins anew.
        assert_eq!(
            held.hold((3, 8), None, Verdict::All(3), after(now, 300)),
            None
        );
    }

    #[test]
    fn proxies_that_start_again_do_not_change_it_for_ten_seconds() {
        let (mut held, now) = (Held::default(), Instant::now());
        let _ = held.hold(START, None, Verdict::All(3), now);
        let _ = held.hold(START, None, Verdict::All(3), after(now, 200));
        let gone = || Verdict::NoProxies(3);
        assert_eq!(held.hold(START, None, gone(), after(now, 300)), None);
        assert_eq!(held.hold(START, None, gone(), after(now, 10_200)), None);
        assert_eq!(
            held.hold(START, None, gone(), after(now, 10_400)),
            Some(gone())
        );
        // And then it has to settle again.
        assert_eq!(
            held.hold(START, None, Verdict::All(3), after(now, 10_500)),
            None
        );
    }

    #[test]
    fn without_a_store_nothing_stays_true_for_longer_than_a_proxy_takes_to_start() {
        let (mut held, now) = (Held::default(), Instant::now());
        let before = condition(ENFORCED, "True", START.0);
        let mut at = |ms| held.hold(START, Some(&before), Verdict::NoReports, after(now, ms));
        assert_eq!((at(0), at(9_900)), (None, None));
        let said = at(10_100).expect("something is said");
        let (status, reason, _) = said.describe();
        assert_eq!((status, reason), ("Unknown", "ProxiesUnknown"));
    }

    #[test]
    fn what_never_was_true_is_not_waited_for() {
        let (mut held, now) = (Held::default(), Instant::now());
        let gone = Verdict::NoProxies(3);
        assert_eq!(held.hold(START, None, gone.clone(), now), Some(gone));
    }

    fn condition(kind: &str, status: &str, generation: i64) -> Condition {
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: "Because".to_owned(),
            observed_generation: generation,
            ..Condition::default()
        }
    }

    #[test]
    fn in_short_it_is_true_of_this_generation_only() {
        let of = |conditions: Vec<Condition>| {
            let one = |condition| Ancestor {
                conditions: vec![condition],
                ..Ancestor::default()
            };
            let ancestors: Vec<_> = conditions.into_iter().map(one).collect();
            in_short(&ancestors, ENFORCED, 2)
        };
        assert_eq!(of(vec![condition(ENFORCED, "True", 2)]), "True");
        let old = vec![
            condition(ENFORCED, "True", 2),
            condition(ENFORCED, "True", 1),
        ];
        assert_eq!(of(old), "Reconciling");
        let one = vec![
            condition(ENFORCED, "True", 2),
            condition(ENFORCED, "False", 2),
        ];
        assert_eq!(of(one), "Because");
        assert_eq!(of(Vec::new()), "");
        assert_eq!(of(vec![condition(ACCEPTED, "True", 2)]), "Reconciling");
        let refused = Ancestor {
            conditions: vec![
                condition(ACCEPTED, "False", 2),
                condition(ENFORCED, "True", 1),
            ],
            ..Ancestor::default()
        };
        assert_eq!(in_short(&[refused], ENFORCED, 2), "Because");
    }

    #[test]
    fn of_more_gateways_than_a_status_has_those_that_are_not_true_are_shown_first() {
        let ancestor = |at: usize| AncestorResult {
            ancestor: kubernetes::AncestorRef {
                name: at.to_string(),
                ..kubernetes::AncestorRef::default()
            },
            domain: None,
            accepted: Finding {
                ok: true,
                reason: "Accepted",
                message: String::new(),
            },
            limits: vec!["a".parse().unwrap()],
            entries: BTreeSet::new(),
            shadow: false,
        };
        let result = ObjectResult {
            in_force: None,
            ancestors: (0..20).map(ancestor).collect(),
        };
        let judge = |found: &AncestorResult, _: Option<&Condition>| {
            let status = if found.ancestor.name == "18" {
                "False"
            } else {
                "True"
            };
            Judged {
                programmed: Claim::new("True", "Programmed", "", 1),
                enforced: Some(Claim::new(status, "Lagging", "", 1)),
                revision: None,
            }
        };
        let made = of_rate_limit(&RateLimitStatus::default(), &result, 1, "now", judge);
        assert_eq!(made.enforced, "Lagging");
        assert_eq!(made.ancestors.len(), ANCESTORS_MAX);
        assert_eq!(made.ancestors[0].ancestor_ref.name, "18");
    }

    #[test]
    fn of_an_object_that_is_being_deleted_nothing_is_in_force() {
        let conditions = vec![
            condition(ACCEPTED, "True", 1),
            condition(PROGRAMMED, "True", 1),
            condition(ENFORCED, "True", 1),
        ];
        let before = RateLimitStatus {
            enforced: "True".to_owned(),
            in_force: Some(kubernetes::InForce::default()),
            ancestors: vec![Ancestor {
                revision: Some(7),
                conditions: conditions.clone(),
                ..Ancestor::default()
            }],
            ..RateLimitStatus::default()
        };
        let said = |conditions: &[Condition]| -> Vec<String> {
            let one = |one: &Condition| format!("{} {} {}", one.kind, one.status, one.reason);
            conditions.iter().map(one).collect()
        };
        let expected = [
            "Accepted True Because",
            "Programmed False Deleting",
            "Enforced False Deleting",
        ];
        let made = of_ending_rate_limit(&before, 2, "now");
        assert_eq!(
            (made.enforced.as_str(), &made.in_force),
            ("Deleting", &None)
        );
        assert_eq!(said(&made.ancestors[0].conditions), expected);
        // Written once.
        assert_eq!(of_ending_rate_limit(&made, 2, "later"), made);
        let before = RateLimitDomainStatus {
            conditions,
            ..RateLimitDomainStatus::default()
        };
        assert_eq!(
            said(&of_ending_domain(&before, 2, "now").conditions),
            expected
        );
        // What never had a status gets none.
        let none = RateLimitStatus::default();
        assert_eq!(of_ending_rate_limit(&none, 2, "now"), none);
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_the_status() {
        let mut before = condition(PROGRAMMED, "True", 1);
        before.last_transition_time = "then".to_owned();
        let claim = |status| Claim::new(status, "Now", "", 2);
        let same = claim("True").condition(PROGRAMMED, std::slice::from_ref(&before), "now");
        assert_eq!(
            (same.last_transition_time.as_str(), same.reason.as_str()),
            ("then", "Now")
        );
        let other = claim("False").condition(PROGRAMMED, &[before], "now");
        assert_eq!(other.last_transition_time, "now");
    }
}
