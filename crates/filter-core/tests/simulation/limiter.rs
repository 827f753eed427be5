//! A simulated limiter: the same algorithms, one map of buckets, no network.

use std::collections::{HashMap, HashSet};

use algorithms::{
    Algorithm, Denials, InFlightSlot, LeaseRequest, LimitVerdict, SlotAct, SlotId, SlotOp, State,
    check::{self, Mode, Options, PenaltyRequest, Stored, Writes},
};
use policy::{
    BucketEdit, BucketEdits, Compiled, Edits, Limit, Match, Name, Policy, Revision, Snapshot,
};
use protocol::{
    Answer, CHANGES_CBOR, Check, ErrorCode, LIMITS_CBOR, Lease, LimitAnswer, Reservation,
    Settlement,
    compact::{Batch, BatchAnswer},
};

/// One bucket: a limit and the values of its `per` entries.
pub type Bucket = (Name, Vec<Option<Vec<u8>>>);

/// The events of leased limits, in order.
#[derive(Default)]
pub struct LeaseRecord {
    /// The bucket, the time in microseconds, and the units.
    pub charged: Vec<(Bucket, u64, u64)>,
    /// The bucket, the Envoy, the time in microseconds, and the lease.
    pub granted: Vec<(Bucket, usize, u64, Lease)>,
    /// The bucket, the Envoy, the time in microseconds, and the settlement.
    pub settled: Vec<(Bucket, usize, u64, Settlement)>,
    /// The users of requests whose leased limit was settled already.
    pub leased_users: HashSet<String>,
}

/// The limiter with its store.
pub struct Limiter {
    pub compiled: Compiled,
    /// What each replica made of the limits when it was last polled.
    replicas: Vec<Snapshot>,
    /// The tag of the newest snapshot, and when its edges become outdated.
    newest: (String, u64),
    /// Whether all replicas send changes. The first of two does not: it is of an older version.
    pub all_send_changes: bool,
    /// Polls answered with changes, and with the whole.
    pub sent_changes: u64,
    pub sent_whole: u64,
    buckets: HashMap<Bucket, Stored>,
    /// Denials of buckets.
    pub penalties: Penalties,
    /// Units charged by checks and by debits.
    pub charged: HashMap<Bucket, u64>,
    pub debited: HashMap<Bucket, u64>,
    /// Checks that were received.
    pub entries: u64,
    /// The path of the latest poll.
    pub polled: String,
    /// The number of proxies to report.
    pub proxies: u64,
    /// The units that checks reserved, and what requests cost.
    pub costs: Costs,
    /// The current time, and the calling Envoy.
    pub now_us: u64,
    pub envoy: usize,
    /// The events of leased limits.
    pub lease_record: LeaseRecord,
    /// The slots that requests were given, by their paths.
    pub given: HashMap<String, InFlightSlot>,
    /// Limits by the line that says them.
    known: HashMap<String, Limit>,
}

impl Limiter {
    pub fn new(limits: &str) -> Self {
        let mut limiter = Self {
            compiled: Compiled::new(Policy::empty("shop".parse().unwrap())),
            replicas: Vec::new(),
            newest: (String::new(), 0),
            all_send_changes: true,
            sent_changes: 0,
            sent_whole: 0,
            buckets: HashMap::new(),
            penalties: Penalties::default(),
            charged: HashMap::new(),
            debited: HashMap::new(),
            entries: 0,
            polled: String::new(),
            proxies: 1,
            costs: Costs::default(),
            now_us: 0,
            envoy: 0,
            lease_record: LeaseRecord::default(),
            given: HashMap::new(),
            known: HashMap::new(),
        };
        limiter.edit(limits);
        limiter.replicas.push(limiter.made(None));
        limiter
    }

    /// Replaces the limits; all have a new generation.
    pub fn edit(&mut self, limits: &str) {
        self.write(limits, |_, _| true, false);
    }

    /// Replaces the limits; those that differ have a new generation.
    pub fn apply(&mut self, limits: &str) {
        let differs = |old: &Limit, new: &Limit| {
            let same = Limit {
                generation: old.generation,
                ..new.clone()
            };
            same != *old
        };
        self.write(limits, differs, false);
    }

    /// The store is another one, whose revisions begin anew.
    pub fn begin_anew(&mut self, limits: &str) {
        self.compiled = Compiled::new(Policy::empty("shop".parse().unwrap()));
        self.edit(limits);
        self.restart();
    }

    /// Every replica restarts and forgets what it sent.
    pub fn restart(&mut self) {
        let replicas = 0..self.replicas.len();
        self.replicas = replicas.map(|_| self.made(None)).collect();
    }

    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// There is one replica more.
    pub fn add_replica(&mut self) {
        self.replicas.push(self.made(None));
    }

    /// Drops the buckets for good; the limits stay the same in a new generation.
    pub fn reset(&mut self, limits: &str) {
        self.write(limits, |_, _| true, true);
        self.lose_buckets();
    }

    /// Edits the bucket of one user alone: it is unused then, as after a reset.
    pub fn reset_bucket(&mut self, limit: &str, user: &str) {
        let at = self.compiled.position(limit).unwrap();
        let mut limit = self.compiled.limit(at).unwrap().clone();
        let values = vec![Some(user.as_bytes().to_vec())];
        let number = self.compiled.revision().number + 1;
        limit.bucket_edits.add(BucketEdit {
            slot: BucketEdits::slot_of(&limit.name, &values),
            generation: number,
            reset_generation: number,
        });
        let mut domain = Policy::empty("shop".parse().unwrap());
        domain.revision = Revision {
            number,
            digest: policy::digest(format!("{number} {user}").as_bytes()),
        };
        let bucket = (limit.name.clone(), values);
        let edits = Edits {
            domain,
            base: 0,
            limit_count: self.compiled.limits().len(),
            limits: vec![(limit.name.clone(), Some(limit))],
            cleared: Vec::new(),
            overrides: Vec::new(),
        };
        self.compiled = self.compiled.caught_up(edits).unwrap();
        self.buckets.remove(&bucket);
        self.penalties.denials.remove(&bucket);
        self.newest.1 = 0;
    }

    /// Of many limits, each on a line and none saying anything of another, each is read once: edits repeat nearly all.
    fn read(&mut self, limits: &str) -> Policy {
        let policy = |limits: &str| {
            let text = format!("domain: shop\nlimits:\n{limits}");
            limits_file::read("limits.yaml", text.as_bytes()).unwrap()
        };
        if limits.lines().count() < 20 {
            return policy(limits);
        }
        let mut all = Policy::empty("shop".parse().unwrap());
        for line in limits.lines() {
            if !self.known.contains_key(line) {
                let read = policy(line).limits.remove(0);
                self.known.insert(line.to_owned(), read);
            }
            all.limits.push(self.known[line].clone());
        }
        all
    }

    fn write(&mut self, limits: &str, differs: fn(&Limit, &Limit) -> bool, reset: bool) {
        let mut policy = self.read(limits);
        let number = self.compiled.revision().number + 1;
        policy.revision = Revision {
            number,
            digest: policy::digest(format!("{number} domain: shop\nlimits:\n{limits}").as_bytes()),
        };
        for limit in &mut policy.limits {
            let before = self.compiled.named(&limit.name);
            limit.generation = match before {
                Some(before) if !differs(before, limit) => before.generation,
                _ => number,
            };
            limit.reset_generation = match before {
                Some(_) if reset => number,
                before => before.map_or(0, |limit| limit.reset_generation),
            };
        }
        self.compiled = Compiled::new(policy);
        self.newest.1 = 0;
    }

    /// The units charged to a user's bucket, by checks and by debits.
    pub fn charged_in_all(&self, limit: &str, user: &str) -> u64 {
        let of = |bucket: &Bucket| {
            let values = [Some(user.as_bytes().to_vec())];
            bucket.0.as_str() == limit && bucket.1 == values
        };
        let all = self.charged.iter().chain(&self.debited);
        all.filter(|(bucket, _)| of(bucket))
            .map(|(_, units)| units)
            .sum()
    }

    /// The slots that requests hold in all buckets.
    pub fn slots(&self, now_ms: u64) -> usize {
        let of = |stored: &Stored| match &stored.state {
            State::Concurrency(state) => state.slots().filter(|(_, at)| *at > now_ms).count(),
            _ => 0,
        };
        self.buckets.values().map(of).sum()
    }

    /// When a slot expires, in milliseconds since the epoch; `None`: it does not exist.
    pub fn expiry_of(&self, slot: InFlightSlot, now_ms: u64) -> Option<u64> {
        let of = |stored: &Stored| match &stored.state {
            State::Concurrency(state) => state.slots().find(|(of, at)| *of == slot && *at > now_ms),
            _ => None,
        };
        self.buckets.values().find_map(of).map(|(_, at_ms)| at_ms)
    }

    /// Redis lost what it stored.
    pub fn lose_buckets(&mut self) {
        self.buckets.clear();
        self.penalties.denials.clear();
    }

    /// Whether this is the tag of the newest snapshot.
    pub fn is_current(&self, etag: &str) -> bool {
        if self.now_ms() < self.newest.1 {
            return self.newest.0 == etag;
        }
        format!("\"{}\"", self.made(None).tag()) == etag
    }

    fn now_ms(&self) -> u64 {
        crate::world::EPOCH_MS + self.now_us / 1000
    }

    fn made(&self, before: Option<&Snapshot>) -> Snapshot {
        limits_file::snapshot_after(&self.compiled, self.now_ms(), before)
    }

    /// The answer of a replica to a poll of a proxy that has the snapshot of this tag: its tag and, if the
    /// proxy has another one, its media type and its body. It may have skipped revisions that others sent.
    pub fn poll(
        &mut self,
        replica: usize,
        has: Option<&str>,
        takes_changes: bool,
    ) -> (String, Option<(&'static str, Vec<u8>)>) {
        let at = replica % self.replicas.len();
        let of = |made: &Snapshot| format!("\"{}\"", made.tag());
        if !self.is_current(&of(&self.replicas[at])) || self.now_ms() >= self.newest.1 {
            let made = self.made(Some(&self.replicas[at]));
            let until_ms = limits_file::snapshot_until_ms(&self.compiled, self.now_ms());
            self.newest = (of(&made), until_ms.unwrap_or(u64::MAX));
            if made.tag() != self.replicas[at].tag() {
                self.replicas[at] = made;
            }
        }
        let made = &self.replicas[at];
        let etag = of(made);
        if has == Some(&etag) {
            return (etag, None);
        }
        let sends_changes = takes_changes && (self.all_send_changes || at > 0);
        let has = has
            .filter(|_| sends_changes)
            .map(|has| has.trim_matches('"'));
        let body = if let Some(changes) = has.and_then(|has| made.since(has)) {
            self.sent_changes += 1;
            (CHANGES_CBOR, changes)
        } else {
            self.sent_whole += 1;
            (LIMITS_CBOR, made.bytes().to_vec())
        };
        (etag, Some(body))
    }

    /// Decides a batch.
    pub fn check(&mut self, body: &[u8], now_ms: u64) -> Vec<u8> {
        let batch = Batch::decode(body).unwrap();
        assert_eq!(batch.domain.as_str(), "shop");
        let proxy = batch.proxy_mark();
        let checks = batch.checks.into_iter().map(|check| Check {
            proxy,
            ..check.into_check(&batch.keys)
        });
        let checks: Vec<Check> = checks.collect();
        let mut results = Vec::new();
        for check in &checks {
            self.entries += 1;
            let answer = self.decide(check, now_ms, false);
            self.record(check, &answer);
            results.push(Ok(answer));
        }
        let answer = BatchAnswer {
            results,
            revision: self.compiled.revision().clone(),
            proxies: self
                .compiled
                .limits()
                .iter()
                .map(|limit| (limit.name.clone(), self.proxies))
                .collect(),
        };
        answer.encode()
    }

    /// Answers a batch of so many checks with an error for each.
    pub fn refuse(&self, checks: usize, code: ErrorCode) -> Vec<u8> {
        let answer = BatchAnswer {
            results: vec![Err(code); checks],
            revision: self.compiled.revision().clone(),
            proxies: Vec::new(),
        };
        answer.encode()
    }

    fn record_slot(&mut self, check: &Check, answer: &Answer) {
        let mut taken = answer.limits.iter().filter(|of| of.verdict.charged > 0);
        let slot = taken.find_map(|limit| limit.verdict.slot);
        if let (Some(slot), Some(path)) = (slot, check.descriptor.get("path")) {
            let path = String::from_utf8_lossy(path).into_owned();
            let id = SlotId {
                stamp: slot.start_ms,
                secret: slot.parts,
            };
            let ttl_ms = slot.since_ms;
            self.given.insert(path, InFlightSlot { id, ttl_ms });
        }
    }

    /// Records the events of leased limits.
    fn record(&mut self, check: &Check, answer: &Answer) {
        self.record_slot(check, answer);
        let (envoy, at_us) = (self.envoy, self.now_us);
        for found in self.compiled.matching(&check.descriptor, answer.now_ms) {
            let limit = &found.limit;
            if limit.lease_ttl_ms.is_none() {
                continue;
            }
            if check.cost > 0 && skips(check, &limit.name) {
                let user = check.descriptor.get("user").unwrap_or_default();
                let user = String::from_utf8(user.to_vec()).unwrap();
                self.lease_record.leased_users.insert(user);
            }
            let ask = check.limit(&limit.name).and_then(|of| of.lease.as_ref());
            for settle in ask.iter().flat_map(|ask| &ask.settle) {
                self.lease_record
                    .settled
                    .push((bucket(&found), envoy, at_us, *settle));
            }
            let Some(said) = answer.limits.iter().find(|said| said.name == limit.name) else {
                continue;
            };
            if answer.allowed && said.verdict.charged > 0 {
                self.lease_record
                    .charged
                    .push((bucket(&found), at_us, said.verdict.charged));
            }
            if let Some(lease) = said.verdict.lease {
                self.lease_record
                    .granted
                    .push((bucket(&found), envoy, at_us, lease));
            }
        }
    }

    /// Decides one check, or only peeks.
    pub fn decide(&mut self, check: &Check, now_ms: u64, peek: bool) -> Answer {
        let matches = matching(&self.compiled, check, now_ms);
        let buckets: Vec<Bucket> = matches.iter().map(bucket).collect();
        self.costs.settle(check, &buckets);
        let debit = |name: &Name| {
            let debit = check.limit(name).and_then(|of| of.debit);
            debit.map_or(0, |debit| debit.units)
        };
        let changes: Vec<Change> = matches
            .iter()
            .map(|found| Change::new(&self.compiled, check, found, now_ms))
            .collect();
        let parts = matches.iter().zip(&changes).map(|(found, change)| {
            let name = &found.limit.name;
            let cost = if skips(check, name) { 0 } else { check.cost };
            check::Part {
                costs: None,
                penalty: ask_penalty(check, found),
                algorithm: change.algorithm,
                generation: found.limit.generation_of(&found.values),
                cost: units(check, found.limit, &change.algorithm) * cost,
                debit: if peek { 0 } else { debit(name) },
                debit_serial: change.debit_serial,
                lease: Some(change.lease(found, check.proxy)),
                free: change.free.clone(),
                mode: match found.mode() {
                    protocol::Mode::Enforce => Mode::Enforce,
                    _ => Mode::Observe,
                },
            }
        });
        let parts: Vec<_> = parts.collect();
        let asked = parts.iter().zip(&buckets).map(|(part, bucket)| {
            let denials = self.penalties.denials.get(bucket);
            (part, self.buckets.get(bucket), denials)
        });
        let asked: Vec<_> = asked.collect();
        let (verdict, writes) = check::check(&asked, now_ms, forced(peek)).unwrap();
        let limits = matches.iter().zip(&verdict.limits).zip(&changes);
        let mut answer = Answer {
            revision: self.compiled.revision().clone(),
            now_ms,
            allowed: verdict.allowed,
            limits: limits
                .map(|((found, verdict), change)| settled(found, verdict, &change.algorithm))
                .collect(),
            parts: Vec::new(),
        };
        if verdict.allowed {
            self.costs.reserve(check, &buckets, &mut answer.limits);
        }
        self.penalties.reported += check.limits.iter().map(|of| of.denied).sum::<u64>();
        for (bucket, verdict) in buckets.iter().zip(&verdict.limits) {
            *self.charged.entry(bucket.clone()).or_default() += verdict.charged;
            *self.debited.entry(bucket.clone()).or_default() += debit(&bucket.0);
        }
        if !peek {
            self.store(buckets, writes);
        }
        answer
    }

    fn store(&mut self, buckets: Vec<Bucket>, writes: Writes) {
        for (bucket, (stored, denials)) in buckets.into_iter().zip(writes) {
            let denials = denials.map(|denials| (bucket.clone(), denials));
            self.penalties.denials.extend(denials);
            self.buckets.extend(stored.map(|stored| (bucket, stored)));
        }
    }
}

/// Denials of buckets whose limits have a penalty.
#[derive(Default)]
pub struct Penalties {
    denials: HashMap<Bucket, Denials>,
    /// Denials that proxies reported.
    pub reported: u64,
}

fn ask_penalty(check: &Check, found: &Match<'_, '_>) -> Option<PenaltyRequest> {
    let entry = check.limit(&found.limit.name);
    Some(PenaltyRequest {
        penalty: found.limit.penalty?,
        reported: entry.map_or(0, |of| of.denied),
        counts: check.cost > 0 && !entry.is_some_and(|of| of.skip),
    })
}

/// Costs in responses.
#[derive(Default)]
pub struct Costs {
    /// Units that are not settled, by bucket and reservation number.
    pub reserved: HashMap<(Bucket, u64), u64>,
    /// The bucket, the reserved units, and the actual cost.
    pub settled: Vec<(Bucket, u64, u64)>,
}

impl Costs {
    /// Settles the costs of requests that had reserved units in these buckets. A repeat changes
    /// nothing.
    fn settle(&mut self, check: &Check, buckets: &[Bucket]) {
        let entries = check.limits.iter();
        let settled = entries.flat_map(|entry| entry.settle.iter().map(move |of| (entry, of)));
        for (entry, settled) in settled {
            let Some(bucket) = buckets.iter().find(|bucket| bucket.0 == entry.limit) else {
                continue;
            };
            let name = (bucket.clone(), settled.reservation.number);
            if let Some(units) = self.reserved.remove(&name) {
                self.settled.push((bucket.clone(), units, settled.units));
            }
        }
    }

    /// Records the charges of a check that are reservations.
    fn reserve(&mut self, check: &Check, buckets: &[Bucket], limits: &mut [LimitAnswer]) {
        for (limit, bucket) in limits.iter_mut().zip(buckets) {
            let own = check.limit(&limit.name).and_then(|of| of.cost);
            if limit.verdict.charged == 0 || own.is_none_or(|cost| !cost.reserve) {
                continue;
            }
            let before = self.reserved.len() + self.settled.len();
            let reservation = Reservation {
                secret: check.slot.unwrap().secret,
                number: 1 + u64::try_from(before).unwrap(),
                units: limit.verdict.charged,
                seal: 0,
            };
            let name = (bucket.clone(), reservation.number);
            self.reserved.insert(name, limit.verdict.charged);
            limit.reservation = Some(reservation);
        }
    }
}

/// The limits that a check is about.
fn matching<'c>(compiled: &'c Compiled, check: &'c Check, now_ms: u64) -> Vec<Match<'c, 'c>> {
    let mut matches = compiled.matching(&check.descriptor, now_ms);
    matches.retain(|found| {
        let entry = check.limit(&found.limit.name);
        entry.is_none_or(|of| {
            !of.skip || of.lease.is_some() || !of.slots.is_empty() || !of.settle.is_empty()
        })
    });
    matches
}

/// Units that one request costs.
fn units(check: &Check, limit: &Limit, algorithm: &Algorithm) -> u64 {
    let own = check.limit(&limit.name).and_then(|of| of.cost);
    match (own, limit.response_price()) {
        (Some(own), Some(price)) => price.reserve.capped(own.units, algorithm.limit()),
        (own, _) => own.map_or(limit.cost, |cost| cost.units),
    }
}

/// The parts of a check that concern one limit, besides its cost.
struct Change {
    algorithm: Algorithm,
    debit_serial: Option<u64>,
    want: u64,
    settle: Vec<Settlement>,
    free: Vec<SlotOp>,
}

impl Change {
    fn new(compiled: &Compiled, check: &Check, found: &Match<'_, '_>, now_ms: u64) -> Self {
        let entry = check.limit(&found.limit.name);
        let lease = entry.and_then(|of| of.lease.as_ref());
        let slots = entry.into_iter().flat_map(|of| &of.slots);
        let quota =
            { compiled.quota_for(found.index, &found.values, now_ms) }.unwrap_or(found.limit.quota);
        let algorithm = calendar::at(&quota, now_ms);
        let reset = found.limit.reset_generation_of(&found.values);
        // As in a real plan, a slot from before the reset is not entered again.
        let known = |op: &&SlotOp| op.act != SlotAct::Enter || op.slot.turn >= reset;
        Self {
            algorithm: algorithm
                .within_delay(check.max_delay_ms.unwrap_or(u64::MAX))
                .for_request(check.slot.unwrap_or_else(|| SlotId::new(0, 1, now_ms))),
            debit_serial: entry.and_then(|of| of.debit?.serial),
            want: lease.map_or(0, |ask| ask.want),
            settle: lease.map_or_else(Vec::new, |ask| ask.settle.clone()),
            free: slots.filter(known).copied().collect(),
        }
    }

    fn lease(&self, found: &Match<'_, '_>, proxy: u8) -> LeaseRequest<'_> {
        LeaseRequest {
            ttl_ms: found.limit.lease_ttl_ms.unwrap_or(0),
            want: self.want,
            proxy,
            settle: &self.settle,
        }
    }
}

fn bucket(found: &Match<'_, '_>) -> Bucket {
    let values = found.values.iter().map(|value| value.map(<[u8]>::to_vec));
    (found.limit.name.clone(), values.collect())
}

fn skips(check: &Check, limit: &Name) -> bool {
    check.limit(limit).is_some_and(|of| of.skip)
}

fn settled(found: &Match<'_, '_>, verdict: &LimitVerdict, algorithm: &Algorithm) -> LimitAnswer {
    let generation = found.limit.generation_of(&found.values);
    let mut verdict = verdict.clone();
    if let Some(slot) = &mut verdict.slot
        && found.limit.gives_slots()
        && verdict.charged > 0
    {
        slot.turn = generation;
    }
    LimitAnswer {
        generation,
        mode: found.mode(),
        limit: Some((verdict.limit_milli).map_or_else(|| algorithm.limit(), |milli| milli / 1000)),
        window_ms: algorithm.window_ms(),
        hidden: found.limit.hidden,
        verdict,
        ..LimitAnswer::new(found.limit.name.clone())
    }
}

/// Like a limiter that has just confirmed its policy.
fn forced(peek: bool) -> Options {
    Options {
        peek,
        force: true,
        ..Options::default()
    }
}
