//! What happened in a run, and what must be true of it: the invariants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    plan::{CLASSES, Kind, QUEUE_MS, RESERVE, SLOT_TTL_MS, SLOTS, TURN_MS, the},
    proxy::At,
    redis::SKEW_MS,
};

/// The longest that a decision may take: a call's timeout, and the ticks after which a worker finds it lost.
const DECIDED_MS: u64 = 60;
/// How long units may be used after their grant.
const LEASE_TTL_MS: u64 = 300;
/// How long it may take until a slot that is freed can be taken.
const FREED_MS: u64 = 500;
/// How long a part that is cut off may go on with older limits after an edit.
const OLD_LIMITS_MS: u64 = 20_000;

/// How a request was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// `true`: it is marked as degraded.
    Passed(bool),
    /// The details of the denial.
    Denied(String),
}

/// Whose decision it was, as far as it shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// The answer of a limiter.
    Limiter,
    /// The worker, when the request came: units of a lease, a denial that still holds, or the fallback.
    Worker,
    /// The worker, for want of an answer.
    #[default]
    Fallback,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Sent {
    pub class: usize,
    pub user: String,
    pub at: At,
    pub at_ms: u64,
    pub decided_ms: u64,
    /// The store's day in New York when it came, and when it was decided.
    pub days: [u64; 2],
    pub decision: Option<Decision>,
    /// Whether a limiter's answer decided it, or it arrived at a worker that decided at once.
    pub by: By,
    /// What its response says that it cost, once it has ended with a response.
    pub cost: Option<u64>,
    /// Its client left, or its proxy crashed.
    pub gone: bool,
}

/// What an operator, or a loss of data, did to the buckets of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Units(u64),
    Reset,
    Pause,
    Credit(u64),
    Override(u64),
    Lost,
    /// What passed in a time, in milliseconds, may have been charged at a primary whose data is lost.
    FailedOver(u64, u64),
}

/// A deed, and when it may have happened.
#[derive(Clone, Debug)]
pub struct Done {
    from_ms: u64,
    until_ms: u64,
    class: Option<usize>,
    /// The only user whom it concerns, if it does not concern all.
    user: Option<String>,
    pub deed: Deed,
}

/// The record of a run.
#[derive(Debug, Default)]
pub struct Book {
    pub sent: Vec<Sent>,
    by_user: BTreeMap<String, Vec<usize>>,
    /// How many requests proxies had admitted by their shares of the limit when a user came, and how many checks were
    /// lost.
    shares: BTreeMap<String, (u64, u64)>,
    pub done: Vec<Done>,
    /// Requests with a slot that run, and when the last ones ended.
    running: BTreeSet<usize>,
    left_ms: VecDeque<u64>,
    /// The same of the adaptive limit, and the most of them at a time since this was last taken.
    pub served: BTreeSet<usize>,
    pub served_most: usize,
    /// The day in New York, by the slowest and the fastest clock of the store.
    pub days: [u64; 2],
    /// When a slot last moved from one node of a Cluster to another.
    pub moved_ms: u64,
    /// When the last fault began or ended.
    pub trouble_ms: u64,
    /// Faults that last.
    pub troubles: u64,
    /// Calls of checks without an answer.
    pub lost: u64,
    /// Whether nothing is disturbed in the run but what the network does to calls.
    pub only_weather: bool,
    /// Whether the store is a Cluster.
    pub on_nodes: bool,
    /// Calls that the network delivered twice.
    pub repeated: u64,
    /// Buckets that were compared with what passed.
    pub audited: u64,
}

/// A user's requests, counted.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    passed: u64,
    /// Those that the fallback may have let pass.
    fallback: u64,
    /// Units of the requests that passed, and whether all of them are known.
    units: u64,
    /// The same, but of each no more than it reserved.
    least: u64,
    units_known: bool,
    /// Requests that may have been charged without passing.
    unknown: u64,
    /// Requests that a second limit may have denied, on another node of a Cluster.
    denied: u64,
    first_ms: u64,
    last_ms: u64,
    /// The first and the last day.
    days: [u64; 2],
}

impl Book {
    /// No fault now, nor within so many milliseconds.
    pub fn is_calm(&self, now_ms: u64, for_ms: u64) -> bool {
        self.troubles == 0 && now_ms >= self.trouble_ms + for_ms
    }

    /// Notes a deed that may happen from now on; its number is for [`Book::ended`].
    pub fn begun(
        &mut self,
        now_ms: u64,
        (class, user): (Option<usize>, Option<String>),
        deed: Deed,
    ) -> usize {
        self.done.push(Done {
            from_ms: now_ms,
            until_ms: u64::MAX,
            class,
            user,
            deed,
        });
        self.done.len() - 1
    }

    /// From now on, nothing more comes of the deed at a part that is not cut off.
    pub fn ended(&mut self, deed: usize, now_ms: u64) {
        self.done[deed].until_ms = now_ms;
    }

    /// A request arrives; so many were admitted by shares of its limit so far.
    pub fn arrived(&mut self, sent: Sent, shares: u64) -> usize {
        { self.shares.entry(sent.user.clone()) }.or_insert((shares, self.lost));
        let number = self.sent.len();
        let of = self.by_user.entry(sent.user.clone()).or_default();
        of.push(number);
        self.sent.push(sent);
        number
    }

    /// A request is decided.
    pub fn decided(
        &mut self,
        number: usize,
        (decision, by): (Decision, By),
        now_ms: u64,
        paused: bool,
    ) {
        let calm = self.is_calm(now_ms, 3 * SLOT_TTL_MS);
        let edited = self.touched(the(Kind::Slots), "", now_ms.saturating_sub(OLD_LIMITS_MS));
        let sent = &mut self.sent[number];
        assert!(
            sent.decision.is_none(),
            "request {number} was decided twice"
        );
        let took_ms = now_ms - sent.at_ms;
        let waits_ms = match CLASSES[sent.class].kind {
            Kind::Queue => QUEUE_MS,
            _ => 0,
        };
        assert!(
            paused || took_ms <= DECIDED_MS + waits_ms,
            "request {number} took {took_ms} ms: {sent:?}"
        );
        let slots = CLASSES[sent.class].kind == Kind::Slots;
        if let Decision::Denied(details) = &decision {
            // Reservations wait until their slot has moved.
            let moves = CLASSES[sent.class].kind == Kind::Costs
                && self.moved_ms.saturating_add(100) > now_ms;
            assert!(
                !calm || moves || !details.ends_with(":failure"),
                "request {number} got no answer at {now_ms} ms: {sent:?}"
            );
        }
        if let Decision::Passed(degraded) = &decision {
            assert!(!*degraded, "request {number} passed undecided: {sent:?}");
            if CLASSES[sent.class].kind == Kind::Adaptive {
                self.served.insert(number);
                self.served_most = self.served_most.max(self.served.len());
            }
            if slots {
                self.running.insert(number);
                let running = self.running.len();
                assert!(
                    !calm || edited || running <= usize::try_from(SLOTS).unwrap(),
                    "{running} requests run at {now_ms} ms"
                );
            }
        }
        if slots && calm && !edited && matches!(&decision, Decision::Denied(_)) {
            let recent = |left_ms: &&u64| **left_ms + FREED_MS >= now_ms;
            // A limiter may have given a slot whose answer is on its way.
            let coming = |sent: &&Sent| {
                CLASSES[sent.class].kind == Kind::Slots && sent.decision.is_none() && !sent.gone
            };
            let coming = self.sent.iter().rev().take(200).filter(coming).count() - 1;
            let ended = self.left_ms.iter().filter(recent).count();
            let taken = self.running.len() + coming + ended;
            assert!(
                taken >= usize::try_from(SLOTS).unwrap(),
                "request {number} got no slot, with {taken} taken at {now_ms} ms"
            );
        }
        self.sent[number].decided_ms = now_ms;
        self.sent[number].days[1] = self.days[1];
        self.sent[number].decision = Some(decision);
        self.sent[number].by = by;
    }

    /// A request ends.
    pub fn left(&mut self, number: usize, cost: Option<u64>, now_ms: u64) {
        if self.running.remove(&number) {
            self.left_ms.push_back(now_ms);
            let old = self.left_ms.len().saturating_sub(64);
            self.left_ms.drain(..old);
        }
        self.served.remove(&number);
        let sent = &mut self.sent[number];
        sent.cost = cost;
        sent.gone |= cost.is_none();
    }

    /// A proxy crashes.
    pub fn lose_requests(&mut self, envoy: usize) {
        for (number, sent) in self.sent.iter_mut().enumerate() {
            if sent.at.envoy == envoy && (sent.decision.is_none() || sent.cost.is_none()) {
                sent.gone = true;
                self.running.remove(&number);
                self.served.remove(&number);
            }
        }
    }

    /// Every request was decided, unless its client left.
    pub fn assert_decided(&self) {
        for (number, sent) in self.sent.iter().enumerate() {
            let decided = sent.decision.is_some() || sent.gone;
            assert!(decided, "request {number} hangs: {sent:?}");
        }
    }

    pub fn users(&self) -> impl Iterator<Item = &String> {
        self.by_user.keys()
    }

    pub fn count(&self, of: impl Fn(&Sent) -> bool) -> usize {
        self.sent.iter().filter(|sent| of(sent)).count()
    }

    fn tally(&self, user: &str) -> (usize, Tally) {
        let sent: Vec<&Sent> = { self.by_user[user].iter() }
            .map(|number| &self.sent[*number])
            .collect();
        let mut tally = Tally {
            units_known: true,
            first_ms: sent[0].at_ms,
            last_ms: sent[sent.len() - 1].at_ms,
            days: [
                sent[0].days[0],
                sent.iter().map(|sent| sent.days[1]).max().unwrap(),
            ],
            ..Tally::default()
        };
        for sent in &sent {
            match &sent.decision {
                Some(Decision::Passed(_)) => {
                    tally.passed += 1;
                    let checked = CLASSES[sent.class].kind != Kind::Leased;
                    let certain = sent.by == By::Limiter || sent.by == By::Worker && !checked;
                    tally.fallback += u64::from(!certain);
                    tally.units += sent.cost.unwrap_or(0);
                    tally.least += sent.cost.unwrap_or(0).min(RESERVE);
                    tally.units_known &= sent.cost.is_some();
                }
                // The fallback denies what a call without an answer may have charged.
                Some(Decision::Denied(details))
                    if ![":failure", ":local"]
                        .iter()
                        .any(|by| details.ends_with(by)) =>
                {
                    let paired = self.on_nodes && CLASSES[sent.class].name == "sliding";
                    tally.denied += u64::from(paired);
                }
                _ => tally.unknown += 1,
            }
        }
        (sent[0].class, tally)
    }

    /// How many requests of a user passed.
    pub fn passed(&self, user: &str) -> u64 {
        let sent = self.by_user.get(user).into_iter().flatten();
        let passed =
            |number: &&usize| matches!(self.sent[**number].decision, Some(Decision::Passed(_)));
        u64::try_from(sent.filter(passed).count()).unwrap()
    }

    /// Deeds to a class that may concern what happened in a time to a user.
    fn deeds(
        &self,
        class: usize,
        user: &str,
        from_ms: u64,
        until_ms: u64,
    ) -> impl Iterator<Item = Deed> {
        let concerns = move |done: &&Done| {
            done.class.is_none_or(|of| of == class)
                && done.user.as_ref().is_none_or(|of| of == user)
                && done.from_ms <= until_ms
                && done.until_ms.saturating_add(OLD_LIMITS_MS) >= from_ms
        };
        self.done.iter().filter(concerns).map(|done| done.deed)
    }

    fn touched(&self, class: usize, user: &str, since_ms: u64) -> bool {
        let mut deeds = self.deeds(class, user, since_ms, u64::MAX);
        deeds.next().is_some()
    }

    /// Nothing disturbs a class, nor did since a time but for what it takes slots to expire before.
    pub fn is_undisturbed(&self, class: usize, since_ms: u64, now_ms: u64) -> bool {
        self.is_calm(now_ms, now_ms - since_ms + 3 * SLOT_TTL_MS)
            && !self.touched(class, "", since_ms)
    }

    /// The most units that a class may have allowed at once in a time.
    pub fn most_units(&self, class: usize, from_ms: u64, until_ms: u64) -> u64 {
        let mut most = 0;
        let mut in_force = Some((0, CLASSES[class].units));
        let edits = self.done.iter().filter(|done| done.class == Some(class));
        for done in edits {
            let Deed::Units(units) = done.deed else {
                continue;
            };
            if let Some((_, before)) = in_force.replace((done.from_ms, units))
                && done.until_ms.saturating_add(OLD_LIMITS_MS) >= from_ms
            {
                most = most.max(before);
            }
            if done.from_ms > until_ms {
                return most;
            }
        }
        in_force.map_or(most, |(_, units)| most.max(units))
    }

    /// The requests of a user that passed and that a server may have charged in a time.
    fn passed_in(&self, user: &str, from_ms: u64, until_ms: u64) -> impl Iterator<Item = usize> {
        let until_ms = until_ms.saturating_add(LEASE_TTL_MS + DECIDED_MS);
        let passed = move |number: &usize| {
            let sent = &self.sent[*number];
            matches!(sent.decision, Some(Decision::Passed(_)))
                && (from_ms..=until_ms).contains(&(sent.at_ms + DECIDED_MS))
        };
        self.by_user[user].iter().copied().filter(passed)
    }

    /// A user gets no more than the limit, whatever happens, but for what proxies admit by their shares while they get
    /// no answer; lost usage, and what operators give, may be used again. Returns by how many requests a leased limit
    /// was exceeded: they have to be among those that its fallback admitted.
    pub fn assert_not_exceeded(&self, user: &str) -> u64 {
        let (class, tally) = self.tally(user);
        if matches!(
            CLASSES[class].kind,
            Kind::Slots | Kind::Costs | Kind::Adaptive | Kind::Queue | Kind::Barred
        ) {
            return 0;
        }
        let mut most = self.most_units(class, tally.first_ms, tally.last_ms);
        let (mut times, mut credits, mut lost) = (1, 0, BTreeSet::new());
        if CLASSES[class].period == "day" {
            times += tally.days[1] - tally.days[0];
        }
        for deed in self.deeds(class, user, tally.first_ms, tally.last_ms) {
            match deed {
                Deed::Pause => return 0,
                Deed::Reset | Deed::Lost => times += 1,
                Deed::Credit(units) => credits += units,
                Deed::Override(units) => most = most.max(units),
                Deed::FailedOver(from_ms, until_ms) => {
                    lost.extend(self.passed_in(user, from_ms, until_ms));
                }
                Deed::Units(_) => {}
            }
        }
        let bound = most * times + credits + u64::try_from(lost.len()).unwrap();
        let certain = tally.passed - tally.fallback;
        if CLASSES[class].kind == Kind::Leased {
            return certain.saturating_sub(bound);
        }
        assert!(
            certain <= bound,
            "{user}: {certain} requests passed, of at most {bound}: {tally:?}"
        );
        0
    }

    /// Whether what is left of a user's bucket can be compared with what passed. Of requests under a lease it does not show
    /// which of them a share admitted, so none may have been.
    pub fn is_exact(&self, user: &str, shares: u64) -> bool {
        let (class, tally) = self.tally(user);
        let of = CLASSES[class].kind;
        let by_shares = of == Kind::Leased && self.shares[user].0 != shares;
        let same_day = CLASSES[class].period != "day" || tally.days[0] == self.days[1];
        matches!(of, Kind::Checked | Kind::Leased | Kind::Costs)
            && same_day
            && !by_shares
            && !self.touched(class, user, tally.first_ms)
    }

    /// What a bucket has charged is what passed, but for calls whose answers were lost.
    pub fn assert_charged(&mut self, user: &str, limit: u64, remaining: u64) {
        let (class, tally) = self.tally(user);
        let (kind, charged) = (CLASSES[class].kind, limit - remaining);
        self.audited += 1;
        let settles_at_once = kind != Kind::Costs || self.moved_ms < tally.first_ms;
        let calm = self.trouble_ms < tally.first_ms && self.troubles == 0 && settles_at_once;
        if kind == Kind::Costs {
            let known = tally.units_known && tally.fallback == 0;
            // A settlement may be lost: then the reserve stays charged.
            let lost = !self.only_weather || self.shares[user].1 != self.lost;
            // A call that was delivered twice may have reserved twice, but has settled once.
            let twice = charged.checked_sub(tally.units).map(|more| more % RESERVE);
            assert!(
                !known || lost || charged >= limit || twice == Some(0),
                "{user}: {charged} units are charged: {tally:?}"
            );
            assert!(
                !known || charged >= tally.least.min(limit),
                "{user}: {charged} units are charged: {tally:?}"
            );
            assert!(
                !known || !calm || tally.unknown > 0 || charged == tally.units.min(limit),
                "{user}: {charged} units are charged: {tally:?}"
            );
            return;
        }
        assert!(
            charged >= (tally.passed - tally.fallback).min(limit),
            "{user}: {charged} units are charged: {tally:?}"
        );
        if kind == Kind::Checked && self.repeated == 0 {
            // On a Cluster a denied check may leave what another node charged, if the refund is lost.
            let left = if calm { 0 } else { tally.denied };
            assert!(
                charged <= tally.passed + tally.unknown + left,
                "{user}: {charged} units are charged: {tally:?}"
            );
        }
        // A worker keeps less than a 128th of the limit until it expires.
        let spare = limit / 128 * 8;
        if kind == Kind::Leased && calm && self.repeated == 0 {
            assert!(
                charged <= tally.passed + tally.unknown + spare,
                "{user}: {charged} units are charged: {tally:?}"
            );
        }
    }

    /// The requests of a queue leave one after the other, while nothing delays one but not the next.
    pub fn assert_in_turn(&self, user: &str, now_ms: u64) {
        let (class, tally) = self.tally(user);
        let since_ms = tally.first_ms.saturating_sub(QUEUE_MS);
        if CLASSES[class].kind != Kind::Queue
            || !self.is_calm(now_ms, now_ms - since_ms)
            || self.touched(class, user, since_ms)
        {
            return;
        }
        // A slot that moved has another clock.
        let skew_ms = if self.moved_ms > since_ms { SKEW_MS } else { 0 };
        let sent = self.by_user[user].iter().map(|number| &self.sent[*number]);
        let passed = sent.filter(|sent| matches!(sent.decision, Some(Decision::Passed(_))));
        let mut left_ms: Vec<u64> = passed.map(|sent| sent.decided_ms).collect();
        left_ms.sort_unstable();
        for (nth, first) in left_ms.iter().enumerate() {
            for (turns, last) in (0..).zip(&left_ms[nth..]) {
                assert!(
                    last - first + DECIDED_MS + skew_ms >= turns * TURN_MS,
                    "{user}: {turns} turns after {first} ms one leaves at {last} ms"
                );
            }
        }
    }

    /// Of a user whose requests found everything well, exactly as many passed as the limit allows.
    pub fn assert_exactly(&self, user: &str, units: u64) {
        let (_, tally) = self.tally(user);
        assert_eq!(tally.passed, units, "{user}: {tally:?}");
    }
}
