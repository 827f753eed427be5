//! Penalties: the times of the denials that count. The buckets decide by the algorithm, which knows no penalties.

use algorithms::check::{Mode, Options, Part, PenaltyRequest, Stored, check};
use algorithms::{
    Algorithm, Decision, Denials, Kind, Parameters, Penalty, PenaltyStatus, RetryAfter,
};

use super::{Random, START_MS, STEPS_PER_WALK, count, part, walks};

#[derive(Clone, Default, Debug)]
struct Model {
    denials: Vec<u64>,
    began_ms: u64,
    ends_ms: u64,
    /// How long the last one was to last.
    lasted_ms: u64,
    begun: bool,
}

impl Model {
    /// As it is now, and whether the clock stepped back: then what was later counts as of now, and no penalty is longer
    /// than one that begins now.
    fn read(&self, penalty: Penalty, now_ms: u64) -> (Self, bool) {
        let since = |of: &Self| *of.denials.first().unwrap_or(&of.began_ms);
        let mut read = self.clone();
        read.begun = false;
        for at in read.denials.iter_mut().chain([&mut read.began_ms]) {
            *at = now_ms.min(*at);
        }
        // A `for` that is shorter by now counts from the beginning, which a bucket forgets for the next denials.
        let longest_ms = if penalty.grow > 1 {
            penalty.max_ms
        } else {
            penalty.for_ms
        };
        read.lasted_ms = read.lasted_ms.min(longest_ms);
        read.ends_ms = read
            .ends_ms
            .min(since(&read) + read.lasted_ms.max(penalty.for_ms));
        if now_ms - since(&read) >= penalty.within_ms {
            read.denials.clear();
        }
        (read, since(self) > now_ms)
    }

    /// Counts denials, but none during a penalty; returns whether any counted.
    fn deny(&mut self, denials: u64, penalty: Penalty, now_ms: u64) -> bool {
        if denials == 0 || self.ends_ms > now_ms {
            return false;
        }
        self.denials.extend((0..denials).map(|_| now_ms));
        if self.denials.len() as u64 >= penalty.after {
            self.denials.clear();
            self.lasted_ms = self.next_ms(penalty, now_ms);
            (self.began_ms, self.ends_ms) = (now_ms, now_ms + self.lasted_ms);
            self.begun = true;
        }
        true
    }

    fn left_ms(&self, now_ms: u64) -> u64 {
        self.ends_ms.saturating_sub(now_ms)
    }

    /// How long one lasts that begins now.
    fn next_ms(&self, penalty: Penalty, now_ms: u64) -> u64 {
        match self.anew_ms(penalty, now_ms) {
            0 => penalty.for_ms,
            _ => { penalty.max_ms }.min(penalty.for_ms.max(penalty.grow * self.lasted_ms)),
        }
    }

    /// Until one lasts as long as the first: twice the length of the last one after its end.
    fn anew_ms(&self, penalty: Penalty, now_ms: u64) -> u64 {
        let grows = u64::from(penalty.grow > 1);
        grows * (self.ends_ms + 2 * self.lasted_ms).saturating_sub(now_ms)
    }

    fn status(&self, penalty: Penalty, now_ms: u64) -> PenaltyStatus {
        PenaltyStatus {
            left_ms: self.left_ms(now_ms),
            denials: self.denials.len() as u64,
            next_ms: self.next_ms(penalty, now_ms),
            anew_ms: self.anew_ms(penalty, now_ms),
            begun: self.begun,
            unread: false,
        }
    }

    /// What is stored is forgotten when nothing of it matters any more, and not before.
    fn assert_forgotten(&self, penalty: Penalty, stored: &Denials, now_ms: u64) {
        let matters = |at_ms| {
            let read = self.read(penalty, at_ms).0;
            let left_ms = read.left_ms(at_ms) + read.anew_ms(penalty, at_ms);
            !read.denials.is_empty() || left_ms > 0
        };
        let at_ms = penalty.forgotten_at_ms(stored).max(now_ms);
        assert!(!matters(at_ms) && (at_ms == now_ms || matters(at_ms - 1)));
    }

    /// During a penalty nothing is left, until its end or later.
    fn over(&self, decision: Decision, now_ms: u64) -> Decision {
        match self.left_ms(now_ms) {
            0 => decision,
            left_ms => Decision {
                allowed: false,
                remaining: 0,
                retry_after: decision.retry_after.later(RetryAfter::Millis(left_ms)),
                reset_after_ms: decision.reset_after_ms.max(left_ms),
                ..decision
            },
        }
    }
}

/// A limit with its bucket.
struct Limit {
    algorithm: Algorithm,
    penalty: Penalty,
    mode: Mode,
    cost: u64,
    reported: u64,
    counts: bool,
    stored: Option<Stored>,
    denials: Option<Denials>,
    model: Model,
}

impl Limit {
    fn any(random: &mut Random) -> Self {
        let parameters = Parameters::new(Kind::TokenBucket, 1 + random.below(4), 1000);
        Self {
            algorithm: Algorithm::new(&parameters).unwrap(),
            penalty: any_penalty(random),
            mode: random.pick(&[Mode::Enforce, Mode::Enforce, Mode::Observe]),
            cost: 0,
            reported: 0,
            counts: true,
            stored: None,
            denials: None,
            model: Model::default(),
        }
    }

    fn part(&self) -> Part<'_> {
        let ask = PenaltyRequest {
            penalty: self.penalty,
            reported: self.reported,
            counts: self.counts,
        };
        Part {
            penalty: Some(ask),
            mode: self.mode,
            ..part(&self.algorithm, self.cost)
        }
    }
}

fn any_penalty(random: &mut Random) -> Penalty {
    Penalty {
        after: 1 + random.below(6),
        within_ms: random.pick(&[1000, 3000, 60_000]),
        for_ms: random.pick(&[1000, 5000, 20_000]),
        grow: random.pick(&[1, 2, 3]),
        max_ms: random.pick(&[20_000, 60_000]),
    }
}

/// Decides a check of two limits by the model, and compares.
fn step(limits: &mut [Limit], now_ms: u64, options: Options) -> [bool; 5] {
    let mut reads = Vec::new();
    for limit in &*limits {
        let (mut read, mut changed) = limit.model.read(limit.penalty, now_ms);
        changed |= read.deny(limit.reported, limit.penalty, now_ms);
        let state = limit.stored.as_ref().map(|stored| &stored.state);
        let evaluated = limit.algorithm.evaluate(state, now_ms, limit.cost);
        reads.push((read, changed, evaluated));
    }
    let enforced = |at: usize| limits[at].mode == Mode::Enforce;
    let mut all = reads.iter().enumerate().filter(|(at, _)| enforced(*at));
    let fits = all.all(|(_, (read, _, evaluated))| evaluated.fits() && read.left_ms(now_ms) == 0);
    let allowed = fits && !options.denied;
    let outcomes = reads.into_iter().map(|(read, changed, evaluated)| {
        let charges = allowed && !options.peek && read.left_ms(now_ms) == 0;
        let outcome = if charges {
            evaluated.charge()
        } else {
            evaluated.leave()
        };
        (read, changed, outcome)
    });
    let mut outcomes: Vec<_> = outcomes.collect();
    // Who waits for a denied check repeats it.
    let waits = outcomes.iter().enumerate().filter(|(at, _)| enforced(*at));
    let longest = waits.fold(RetryAfter::Now, |longest, (_, (read, _, outcome))| {
        longest.later(read.over(outcome.verdict.decision, now_ms).retry_after)
    });
    let waits = !allowed && longest.millis().is_some_and(|ms| ms <= options.patience_ms);
    let waits = waits && options.patience_ms > 0;

    let parts: Vec<_> = limits.iter().map(Limit::part).collect();
    let asked = { parts.iter().zip(&*limits) }
        .map(|(part, limit)| (part, limit.stored.as_ref(), limit.denials.as_ref()));
    let (verdict, writes) = check(&asked.collect::<Vec<_>>(), now_ms, options).unwrap();
    assert_eq!(verdict.allowed, allowed);
    let mut cases = [waits, false, false, false, false];
    for (at, (read, changed, outcome)) in outcomes.iter_mut().enumerate() {
        let (limit, decided) = (&mut limits[at], &verdict.limits[at]);
        let own = outcome.verdict.decision;
        if limit.counts && !options.peek && !waits && own.retry_after != RetryAfter::Never {
            *changed |= read.deny(u64::from(!own.allowed), limit.penalty, now_ms);
        }
        assert_eq!(decided.decision, read.over(own, now_ms));
        assert_eq!(decided.charged, outcome.verdict.charged);
        assert_eq!(decided.penalty, read.status(limit.penalty, now_ms));
        let (stored, denials) = writes[at].clone();
        assert_eq!(
            stored.as_ref().map(|stored| &stored.state),
            outcome.write.as_ref()
        );
        cases[1] |= read.begun;
        cases[2] |= read.left_ms(now_ms) > 0 && own.allowed;
        cases[3] |= !own.allowed && !allowed && read.left_ms(now_ms) == 0;
        cases[4] |= read.begun && read.lasted_ms > limit.penalty.for_ms;
        limit.denials = denials.or(limit.denials);
        limit.stored = stored.or(limit.stored.take());
        if *changed {
            limit.model = read.clone();
            read.assert_forgotten(limit.penalty, &limit.denials.unwrap(), now_ms);
        }
    }
    cases
}

fn walk(mut random: Random) -> [u64; 5] {
    let mut seen = [0; 5];
    let mut limits = [Limit::any(&mut random), Limit::any(&mut random)];
    let mut now_ms = START_MS;
    for _ in 0..STEPS_PER_WALK {
        now_ms = random.tick(now_ms, 3000);
        for limit in &mut limits {
            limit.cost = random.pick(&[0, 1, 1, 2, 3, 5]);
            limit.reported = random.below(4) * u64::from(random.one_in(20));
            limit.counts = !random.one_in(10);
            if random.one_in(60) {
                limit.penalty = any_penalty(&mut random);
            }
        }
        let options = Options {
            peek: random.one_in(8),
            denied: random.one_in(20),
            patience_ms: random.pick(&[0, 0, 0, 300, 2000]),
            ..Options::default()
        };
        count(&mut seen, step(&mut limits, now_ms, options));
    }
    seen
}

#[test]
fn penalties_begin_and_end_as_a_model_of_denials_says() {
    walks(walk);
}
