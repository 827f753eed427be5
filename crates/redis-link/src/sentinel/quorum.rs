//! Which primary to follow where sentinels disagree.
//!
//! A sentinel that was partitioned or hung keeps naming its old primary. The configuration epoch
//! decides: only a sentinel that wins a vote of most sentinels gets a higher one. But a sentinel
//! may also have a wrong epoch (of another deployment, or by a mistake in its file), so an epoch
//! alone decides nothing:
//!
//! - the candidate is the primary that most answering sentinels name, and at least half of them
//!   must name it; on a tie, the one with the higher epoch;
//! - it is followed if its epoch is higher than that of the current primary;
//! - otherwise it is followed only if most of *all* sentinels name it: an operator has reset them
//!   (`SENTINEL REMOVE`, `SENTINEL MONITOR`). So a stale sentinel cannot revert a failover when it
//!   is the only one reachable.

use std::collections::BTreeMap;

use crate::url::Host;

/// The reply of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) primary: Host,
    /// The configuration epoch; 0 if the sentinel does not permit the query.
    pub(super) epoch: u64,
}

/// A primary to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) claim: Claim,
    /// How many sentinels name it.
    pub(super) votes: usize,
    /// Whether these are most of all sentinels.
    pub(super) majority: bool,
}

/// Which primary to follow, by the answers received from `sentinels` sentinels; `None`: no change.
pub(super) fn decide(
    answers: &[&Claim],
    sentinels: usize,
    followed: Option<&Claim>,
) -> Option<Choice> {
    let mut named: BTreeMap<&Host, (usize, u64)> = BTreeMap::new();
    for answer in answers {
        let (votes, epoch) = named.entry(&answer.primary).or_default();
        *votes += 1;
        *epoch = answer.epoch.max(*epoch);
    }
    let is_followed = |primary: &Host| followed.is_some_and(|f| f.primary == *primary);
    let (primary, (votes, epoch)) = named
        .into_iter()
        .max_by_key(|(primary, (votes, epoch))| (*votes, *epoch, is_followed(primary)))?;
    let majority = 2 * votes > sentinels;
    let epoch = match followed {
        Some(before) if before.primary == *primary && !majority => epoch.max(before.epoch),
        Some(before) if before.primary != *primary && !majority && epoch <= before.epoch => {
            return None;
        }
        _ => epoch,
    };
    (2 * votes >= answers.len()).then(|| Choice {
        claim: Claim {
            primary: primary.clone(),
            epoch,
        },
        votes,
        majority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim((primary, epoch): (&str, u64)) -> Claim {
        Claim {
            primary: (primary.to_owned(), 6379),
            epoch,
        }
    }

    /// The primary followed after these answers of three sentinels.
    fn after(answers: &[(&str, u64)], followed: Option<(&str, u64)>) -> Option<(String, u64)> {
        let answers: Vec<Claim> = answers.iter().copied().map(claim).collect();
        let answers: Vec<&Claim> = answers.iter().collect();
        let followed = followed.map(claim);
        let choice = decide(&answers, 3, followed.as_ref()).map(|choice| choice.claim);
        choice
            .or(followed)
            .map(|claim| (claim.primary.0, claim.epoch))
    }

    fn follows(answers: &[(&str, u64)], followed: (&str, u64), wanted: (&str, u64)) {
        let found = after(answers, Some(followed));
        assert_eq!(
            found,
            Some((wanted.0.to_owned(), wanted.1)),
            "{answers:?} after {followed:?}"
        );
    }

    #[test]
    fn a_failover_is_followed_when_most_sentinels_know_it() {
        let old = ("old", 4);
        follows(&[("old", 4), ("old", 4), ("old", 4)], old, old);
        follows(&[("new", 5), ("old", 4), ("old", 4)], old, old);
        follows(&[("new", 5), ("new", 5), ("old", 4)], old, ("new", 5));
        follows(&[("new", 5), ("new", 5), ("new", 5)], old, ("new", 5));
    }

    #[test]
    fn one_of_two_answering_sentinels_suffices_with_a_higher_epoch() {
        follows(&[("new", 5), ("old", 4)], ("old", 4), ("new", 5));
        follows(&[("new", 5)], ("old", 4), ("new", 5));
    }

    #[test]
    fn a_sentinel_with_an_older_view_changes_nothing() {
        let new = ("new", 5);
        for behind in [
            &[("old", 4)][..],
            &[("old", 4), ("new", 5)],
            &[("old", 5)],
            &[("new", 0)],
            &[],
        ] {
            follows(behind, new, new);
        }
    }

    #[test]
    fn a_sentinel_with_a_false_epoch_is_outvoted() {
        let old = ("old", 4);
        follows(&[("liar", 999), ("old", 4), ("old", 4)], old, old);
        follows(&[("old", 999), ("new", 5), ("new", 5)], old, ("new", 5));
        // It was the only one reachable for a while.
        follows(&[("liar", 999)], old, ("liar", 999));
        follows(&[("liar", 999), ("old", 4), ("old", 4)], ("liar", 999), old);
    }

    #[test]
    fn a_majority_of_sentinels_may_revert_to_an_older_epoch() {
        follows(
            &[("other", 0), ("other", 0), ("old", 7)],
            ("old", 7),
            ("other", 0),
        );
        // Without permission to query epochs, only votes count.
        follows(&[("new", 0), ("old", 0)], ("old", 0), ("old", 0));
        follows(
            &[("new", 0), ("new", 0), ("old", 0)],
            ("old", 0),
            ("new", 0),
        );
    }

    #[test]
    fn three_different_sentinel_answers_change_nothing() {
        follows(&[("a", 6), ("b", 5), ("c", 4)], ("c", 4), ("c", 4));
        assert_eq!(after(&[], None), None);
    }

    #[test]
    fn the_first_choice_is_the_majoritys_or_the_newest_primary() {
        let found = |answers| after(answers, None).map(|(primary, _)| primary);
        assert_eq!(found(&[("old", 4)]).as_deref(), Some("old"));
        assert_eq!(found(&[("old", 4), ("new", 5)]).as_deref(), Some("new"));
        let all = [("old", 4), ("old", 4), ("new", 5)];
        assert_eq!(found(&all).as_deref(), Some("old"));
    }
}
