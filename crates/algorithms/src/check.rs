//! Several limits in one check: all of them are charged, or none.
//!
//! The twin of `lua/check.lua`, for states in memory: those of the memory store and of a proxy's
//! own limits.

use crate::integers::TIME_MAX_MS;
use crate::{
    Algorithm, BucketRequest, Debits, Denials, Evaluation, Kind, LeaseRequest, LimitVerdict,
    Outcome, Penalty, Reservations, ReserveRequest, RetryAfter, SlotOp, State, penalty::Count,
};

/// A bucket's state with the newest generation of its limit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The generation of the limit.
    pub generation: u64,
    /// The state.
    pub state: State,
    /// Units reserved in it, if the limit's responses state their cost.
    pub reservations: Option<Box<Reservations>>,
}

/// What happens to a check over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The check is denied.
    #[default]
    Enforce,
    /// The check is not denied, and only this limit is not charged (shadow and degrade).
    Observe,
    /// As [`Observe`](Self::Observe), but the check is denied where it fits none of the limits of
    /// this mode (`quota_mode`).
    Together,
}

/// One limit of a check, as every store decides it.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The limit's numbers, or those of the bucket's override.
    pub algorithm: Algorithm,
    /// The generation they belong to.
    pub generation: u64,
    /// Units that the check costs.
    pub cost: u64,
    /// Units admitted earlier without the limiter; charged once, whatever is left.
    pub debit: u64,
    /// The label of the calendar window in which they were admitted; `None`: the current one.
    pub debit_serial: Option<u64>,
    /// A query for leased units, and settlements of earlier ones. A script's reply to `None` has no
    /// lease numbers, which costs the script less.
    pub lease: Option<LeaseRequest<'a>>,
    /// Operations on slots.
    pub free: Vec<SlotOp>,
    /// For a limit whose responses state their cost: what is reserved and settled.
    pub costs: Option<ReserveRequest>,
    /// For a limit with a penalty: the bucket's denials.
    pub penalty: Option<PenaltyRequest>,
    /// What happens over the limit.
    pub mode: Mode,
}

/// The denials of a bucket whose limit has a penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PenaltyRequest {
    /// When it is penalized.
    pub penalty: Penalty,
    /// Denials that proxies decided from their caches: counted first, whatever the decision.
    pub reported: u64,
    /// Whether the check itself counts if it is denied: one that stands for no request does not, although a
    /// bucket in debt does not fit even a cost of 0.
    pub counts: bool,
}

/// Options of a check as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Peek: apply only debits, settlements, reported denials and freed slots.
    pub peek: bool,
    /// Deny the check whatever these limits decide: charge nothing, but count a denial at each
    /// limit that the check does not fit.
    pub denied: bool,
    /// The caller has just confirmed its policy with the store, so a newer generation in the
    /// state is a leftover (a backup was restored), not a newer edit.
    pub force: bool,
    /// How debits are applied.
    pub debits: Debits,
    /// For how long the caller waits for permits, in milliseconds: it repeats a check that would pass
    /// within that time, and a request counts only once towards a penalty, by its final answer.
    pub patience_ms: u64,
}

/// A decided check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether every enforcing limit allows it.
    pub allowed: bool,
    /// One per limit, in the order given.
    pub limits: Vec<LimitVerdict>,
}

/// The caller's limit is older than the state, or the calendar edges it passed are not those of this
/// time: nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Which limit, as an index into the parts.
    pub limit: usize,
    /// The generation found in the state; 0 without one.
    pub generation: u64,
}

/// A limit of a check, and what is stored of its bucket: its state, and the denials if the limit has a penalty.
pub type StoredPart<'a> = (&'a Part<'a>, Option<&'a Stored>, Option<&'a Denials>);

/// The state and the denials to store for each part; `None`: unchanged.
pub type Writes = Vec<(Option<Stored>, Option<Denials>)>;

/// Tests one check; returns its verdict, and what to store.
///
/// # Errors
/// [`Stale`] for the first part whose state has a newer generation, or whose edges do not cover the
/// time. Then nothing may be stored.
pub fn check(
    parts: &[StoredPart<'_>],
    now_ms: u64,
    options: Options,
) -> Result<(Verdict, Writes), Stale> {
    refuse_stale(parts, now_ms, options.force)?;
    let evaluations: Vec<_> = parts
        .iter()
        .map(|(part, stored, _)| part.evaluate(*stored, now_ms, options.debits))
        .collect();
    let count = |(part, _, denials): &StoredPart<'_>| {
        let request = part.penalty.as_ref()?;
        Some(Count::new(request, *denials, now_ms))
    };
    let mut counts: Vec<_> = parts.iter().map(count).collect();
    // Whether the check fits a limit of the mode Together; `None`: it has none.
    let mut fits_one = None;
    let mut fits_enforced = true;
    for (((part, ..), evaluation), count) in parts.iter().zip(&evaluations).zip(&counts) {
        let fits = evaluation.fits() && !count.is_some_and(|count| count.holds());
        match part.mode {
            Mode::Enforce => fits_enforced &= fits,
            Mode::Together => fits_one = Some(fits || fits_one == Some(true)),
            Mode::Observe => {}
        }
    }
    let allowed = !options.denied && fits_enforced && fits_one != Some(false);
    let charge = allowed && !options.peek;
    let outcomes =
        { evaluations.into_iter().zip(&counts) }.map(|(evaluation, count)| match count {
            count if charge && !count.is_some_and(|count| count.holds()) => evaluation.charge(),
            _ => evaluation.leave(),
        });
    let outcomes: Vec<Outcome> = outcomes.collect();
    let repeated = !allowed && is_repeated(parts, &outcomes, &counts, options.patience_ms);
    let (limits, writes) = parts
        .iter()
        .zip(outcomes)
        .zip(&mut counts)
        .map(|(((part, stored, _), mut outcome), count)| {
            let stored = part.stored_as(*stored, &mut outcome);
            let mut verdict = outcome.verdict;
            if let Some(count) = count {
                if !(options.peek || repeated) {
                    count.add_own(&verdict.decision);
                }
                count.apply(&mut verdict.decision);
                verdict.penalty = count.status();
            }
            verdict.adaptive.take_if(|_| !options.peek);
            (verdict, (stored, count.and_then(|count| count.write())))
        })
        .unzip();
    Ok((Verdict { allowed, limits }, writes))
}

/// Whether the caller of a denied check repeats it, because it would pass within `patience_ms`.
fn is_repeated(
    parts: &[StoredPart<'_>],
    outcomes: &[Outcome],
    counts: &[Option<Count>],
    patience_ms: u64,
) -> bool {
    let decided = parts.iter().zip(outcomes).zip(counts);
    let waits = decided
        .filter(|(((part, ..), _), _)| part.mode == Mode::Enforce)
        .map(|(((part, ..), outcome), count)| {
            let mut decision = outcome.verdict.decision;
            decision.retry_after = part.wait(decision.retry_after);
            if let Some(count) = count {
                count.apply(&mut decision);
            }
            decision.retry_after
        });
    all_end_within(patience_ms, waits)
}

/// Whether a check would pass within `patience_ms`, milliseconds; 0: it does not wait.
pub fn all_end_within(patience_ms: u64, waits: impl Iterator<Item = RetryAfter>) -> bool {
    let longest = waits.fold(RetryAfter::Now, RetryAfter::later).millis();
    patience_ms > 0 && longest.is_some_and(|ms| ms <= patience_ms)
}

fn refuse_stale(parts: &[StoredPart<'_>], now_ms: u64, force: bool) -> Result<(), Stale> {
    let now_ms = now_ms.min(TIME_MAX_MS);
    for (limit, (part, stored, _)) in parts.iter().enumerate() {
        let generation = stored.map_or(0, |stored| stored.generation);
        let newer = part.generation < generation && !force;
        if newer || !part.algorithm.covers(now_ms) {
            return Err(Stale { limit, generation });
        }
    }
    Ok(())
}

impl Part<'_> {
    /// A part that charges one unit, and nothing more.
    pub fn new(algorithm: &Algorithm, generation: u64) -> Self {
        Self {
            algorithm: *algorithm,
            generation,
            cost: 1,
            debit: 0,
            debit_serial: None,
            lease: None,
            free: Vec::new(),
            costs: None,
            penalty: None,
            mode: Mode::Enforce,
        }
    }

    fn evaluate<'a>(
        &'a self,
        stored: Option<&'a Stored>,
        now_ms: u64,
        debits: Debits,
    ) -> Evaluation<'a> {
        let state = stored.map(|stored| &stored.state);
        let request = BucketRequest {
            cost: self.cost,
            debit: self.debit,
            debits,
            debit_serial: self.debit_serial,
            lease: self.lease.unwrap_or_default(),
            free: &self.free,
            reserve: self.costs.as_ref(),
            stored,
            edited: stored.is_some_and(|stored| stored.generation != self.generation),
        };
        self.algorithm.evaluate_request(state, now_ms, request)
    }

    /// What a check that waits has to wait for this limit, which decided so.
    pub fn wait(&self, decided: RetryAfter) -> RetryAfter {
        match decided {
            _ if self.mode != Mode::Enforce => RetryAfter::Now,
            // A slot may be freed at any moment.
            RetryAfter::Millis(_) if self.algorithm.kind() == Kind::Concurrency => RetryAfter::Now,
            wait => wait,
        }
    }

    fn stored_as(&self, stored: Option<&Stored>, outcome: &mut Outcome) -> Option<Stored> {
        // Only usage advances the generation; a shift of the time base does not.
        let generation = match stored {
            Some(stored) if outcome.verdict.charged == 0 && !outcome.changed => stored.generation,
            _ => self.generation,
        };
        let state = outcome.write.take()?;
        let mut reservations = outcome.reservations.take();
        match &mut reservations {
            Some(written) => written.generation = generation,
            None => reservations = stored.and_then(|stored| stored.reservations.clone()),
        }
        Some(Stored {
            generation,
            state,
            reservations,
        })
    }
}
