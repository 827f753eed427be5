//! Decides requests at times that the caller chooses, as a limiter with these limits and empty buckets
//! would: for tests of limits, simulations and logs.
//!
//! It is the limiter's own code: the same plan of a check, and the buckets of the memory store or the
//! scripts on a server. What a proxy decides alone (leases, prechecks, limits of `scope: proxy`) is decided
//! as if one proxy sent every request.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use algorithms::{
    Adaptive, CostSettlement, Pace, SETTLE_WITHIN_MS, SlotAct, SlotId, SlotOp, check::Verdict,
};
use policy::{Compiled, Descriptor, Limit, Name, Policy, Pricing, RequestPlace};
use protocol::{Answer, Check, LimitAnswer, LimitCost, LimitRequest};

use crate::{
    CheckError, Keys, Refusal, Store, StoreError,
    memory::HeldBuckets,
    plan::{
        CheckPlan, Seal,
        script::{Bucket, ScriptCheck},
    },
    random_key,
};

/// Bound: bytes of requests of a simulation, a test or a log that hold slots or reservations. Beyond it, the next
/// request cannot be decided.
const OPEN_BYTES_MAX: usize = 1 << 30;

/// Limits, and the buckets that their requests have used so far.
#[derive(Debug)]
pub struct Engine {
    policy: Compiled,
    keys: Keys,
    seal: Seal,
    buckets: Buckets,
    /// Requests so far: each has a number of its own.
    requests: u64,
    /// Requests that are still to end, by the time of their next act and in the order in which they came.
    open: BTreeMap<(u64, u64), Open>,
    open_bytes: usize,
    open_bytes_max: usize,
}

/// Where the buckets are.
#[derive(Debug)]
enum Buckets {
    Memory(Box<HeldBuckets>),
    Server(OnServer),
}

/// The buckets of one run, in keys of its own on a server.
struct OnServer {
    store: Arc<dyn Store>,
    run: u64,
    used: BTreeSet<String>,
}

/// A request that holds slots or reservations.
#[derive(Debug)]
struct Open {
    end_ms: u64,
    request: Check,
    answer: Answer,
    /// What adaptive limits learn.
    paces: Vec<(Name, Pace)>,
    used: Vec<(Name, u64)>,
}

impl Open {
    /// The memory that it takes, in bytes, about.
    fn bytes(&self) -> usize {
        let values = self.request.descriptor.iter().map(|(_, value)| value.len());
        let limits =
            self.answer.limits.len() * (size_of::<LimitAnswer>() + size_of::<(Name, u64)>());
        // The answer names buckets by the same values.
        size_of::<Self>() + limits + 2 * values.sum::<usize>()
    }
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The exemption because of which no limit applies.
    pub exempt: Option<Name>,
    /// The answer of a limiter.
    pub answer: Answer,
}

/// What happens to the slots of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act<'a> {
    /// Its client leaves, perhaps while a queue holds it.
    Leave,
    /// It still runs.
    Renew,
    /// It has ended; what adaptive limits learn of that.
    End(&'a [(Name, Pace)]),
}

impl Decision {
    /// Whether the request holds anything until it ends: a slot, or a reservation.
    pub fn holds(&self) -> bool {
        let holds = |limit: &LimitAnswer| {
            let has_slot = limit.verdict.slot.is_some() && limit.verdict.charged > 0;
            has_slot || limit.reservation.is_some()
        };
        self.answer.limits.iter().any(holds)
    }
}

impl Engine {
    /// Decides in memory. At most `buckets_max` buckets are in use at once: a check that needs another
    /// one fails. Unused ones are forgotten when room is needed.
    pub fn new(policy: Policy, buckets_max: usize) -> Self {
        let held = HeldBuckets::new(buckets_max);
        Self::at(policy, Buckets::Memory(Box::new(held)))
    }

    /// Decides by the scripts on a server, in keys of the simulation `run`, which [`Self::forget`]
    /// deletes.
    pub fn on_server(policy: Policy, store: Arc<dyn Store>, run: u64) -> Self {
        let used = BTreeSet::new();
        Self::at(policy, Buckets::Server(OnServer { store, run, used }))
    }

    fn at(policy: Policy, buckets: Buckets) -> Self {
        Self {
            policy: Compiled::new(policy),
            keys: Keys::default(),
            seal: Seal::new(random_key().as_bytes()),
            buckets,
            requests: 0,
            open: BTreeMap::new(),
            open_bytes: 0,
            open_bytes_max: OPEN_BYTES_MAX,
        }
    }

    /// The limits.
    pub fn policy(&self) -> &Compiled {
        &self.policy
    }

    /// Replaces the limits. Those that were edited need a higher generation than before.
    pub fn edit(&mut self, policy: Policy) {
        self.policy = Compiled::new(policy);
    }

    /// A request with this descriptor, which has not been decided yet. It costs what limits charge for
    /// one request; a caller may change that.
    pub fn request(&mut self, descriptor: Descriptor) -> Check {
        self.requests = self.requests.wrapping_add(1);
        Check {
            descriptor,
            cost: 1,
            reserve: true,
            slot: Some(SlotId::new(0, SlotId::PROGRAM, self.requests)),
            ..Check::default()
        }
    }

    /// Says what the request costs at the limits whose cost is read from it. `number` returns the number
    /// in a place of the request.
    pub fn price(&self, request: &mut Check, number: impl Fn(&RequestPlace) -> Option<u64>) {
        for limit in self.policy.limits() {
            let cost = match limit.pricing.as_deref() {
                Some(Pricing::Request(price)) if !price.from.is_empty() => LimitCost {
                    units: price.units(&number, &request.descriptor),
                    reserve: false,
                },
                // The plan cuts it to what the bucket holds.
                Some(Pricing::Response(price)) if !price.reserve.from.is_empty() => LimitCost {
                    units: price.reserve.wanted(&number),
                    reserve: true,
                },
                Some(_) | None => continue,
            };
            LimitRequest::change(&mut request.limits, &limit.name, |entry| {
                entry.cost = Some(cost);
            });
        }
    }

    /// Decides a request at a time in milliseconds since the epoch, after the requests that end until
    /// then. Times may step back, as a server's clock may. In memory this is ready at once.
    ///
    /// # Errors
    /// What a limiter would fail with. [`CheckError::Stale`]: limits were edited backwards. There is also a bound
    /// on the requests that have not ended.
    pub async fn decide(&mut self, at_ms: u64, request: &Check) -> Result<Decision, CheckError> {
        while let Some(due) = self.open.first_entry() {
            if due.key().0 > at_ms {
                break;
            }
            let ((due_ms, number), open) = due.remove_entry();
            if due_ms < open.end_ms {
                // Of the renewals since the request before only the last can matter, and there may be millions.
                let pause_ms = self.renewal_ms(&open).unwrap_or(u64::MAX).max(1);
                let passed_ms = at_ms.min(open.end_ms.saturating_sub(1)) - due_ms;
                let renewed_ms = due_ms + passed_ms / pause_ms * pause_ms;
                self.slots(renewed_ms, &open.request, &open.answer, Act::Renew)
                    .await?;
                let next_ms = renewed_ms.saturating_add(pause_ms).min(open.end_ms);
                self.open.insert((next_ms, number), open);
            } else {
                self.open_bytes -= open.bytes();
                self.end(&open).await?;
            }
        }
        if self.open_bytes > self.open_bytes_max {
            return Err(CheckError::Store(StoreError::Refused(Refusal {
                code: "OOM".to_owned(),
                message: format!(
                    "{} requests have not ended: do their durations have the right unit?",
                    self.open.len()
                ),
            })));
        }
        let answer = self.check(at_ms, request).await?;
        let exempt = if answer.limits.is_empty() {
            self.policy.exemption(&request.descriptor)
        } else {
            None
        };
        Ok(Decision {
            exempt: exempt.map(|exemption| exemption.name.clone()),
            answer,
        })
    }

    /// A request that was admitted starts at this time and takes so long; `None`: nothing is known, and it ends at
    /// once. Until then it renews its slot at limits on requests in flight, as a proxy does; then it frees it, and
    /// adaptive limits learn how long it took; and at the limits of `used`, so many units replace what it reserved.
    /// Requests that are decided at that time or later come after it.
    pub fn end_at(
        &mut self,
        (start_ms, took_ms): (u64, Option<u64>),
        request: Check,
        decision: Decision,
        used: Vec<(Name, u64)>,
    ) {
        let pace = |rule: &Adaptive| took_ms.map(|ms| rule.pace(ms));
        self.end_paced((start_ms, took_ms), request, decision, used, pace);
    }

    /// As [`Self::end_at`]; adaptive limits learn what `pace` makes of it.
    pub fn end_paced(
        &mut self,
        (start_ms, took_ms): (u64, Option<u64>),
        request: Check,
        decision: Decision,
        used: Vec<(Name, u64)>,
        pace: impl Fn(&Adaptive) -> Option<Pace>,
    ) {
        if decision.holds() {
            let end_ms = start_ms.saturating_add(took_ms.unwrap_or(0));
            self.requests = self.requests.wrapping_add(1);
            // Later nothing is given back any more: its end matters only if it frees a slot, or cost more than
            // it reserved.
            let costs_more = |limit: &LimitAnswer| {
                let used = used.iter().find(|(name, _)| *name == limit.name);
                let reserved = limit.reservation.map(|reservation| reservation.units);
                used.zip(reserved)
                    .is_some_and(|((_, units), reserved)| *units > reserved)
            };
            let mut limits = decision.answer.limits.iter();
            let matters = limits.any(|limit| self.is_in_flight(limit) || costs_more(limit));
            let end_ms = if matters {
                end_ms
            } else {
                end_ms.min(start_ms.saturating_add(SETTLE_WITHIN_MS))
            };
            let paces = decision.answer.limits.iter().filter_map(|limit| {
                let known = self.policy.named(&limit.name)?;
                let rule = known.quota.parameters().adaptive?;
                Some((limit.name.clone(), pace(&rule)?))
            });
            let open = Open {
                end_ms,
                paces: paces.collect(),
                request,
                answer: decision.answer,
                used,
            };
            let pause_ms = self.renewal_ms(&open).unwrap_or(u64::MAX);
            let next_ms = start_ms.saturating_add(pause_ms).min(end_ms);
            self.open_bytes += open.bytes();
            self.open.insert((next_ms, self.requests), open);
        }
    }

    /// How often a request renews its slots: after half of the time that they live; `None`: it has none.
    fn renewal_ms(&self, open: &Open) -> Option<u64> {
        let slots = { open.answer.limits.iter() }.filter(|limit| self.is_in_flight(limit));
        let ttls_ms = slots.filter_map(|limit| limit.verdict.slot?.ttl_ms());
        Some(ttls_ms.min()? / 2)
    }

    async fn end(&mut self, open: &Open) -> Result<(), CheckError> {
        let Open {
            end_ms,
            request,
            answer,
            paces,
            used,
        } = open;
        self.slots(*end_ms, request, answer, Act::End(paces))
            .await?;
        let used_at = |name: &Name| { used.iter().find(|(limit, _)| limit == name) }.map(|of| of.1);
        let settles =
            |limit: &LimitAnswer| limit.reservation.is_some() && used_at(&limit.name).is_some();
        if answer.limits.iter().any(settles) {
            self.settle(*end_ms, request, answer, used_at).await?;
        }
        Ok(())
    }

    /// Whether a limit, which may have been edited or deleted since, has the request's slot in flight.
    fn is_in_flight(&self, answer: &LimitAnswer) -> bool {
        let limit = self.policy.named(&answer.name);
        answer.verdict.charged > 0 && limit.is_some_and(Limit::gives_slots)
    }

    /// Frees the slots that the answer gave to a request whose client has left: in flight, or in a queue
    /// that still holds it.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub async fn release(
        &mut self,
        at_ms: u64,
        request: &Check,
        answer: &Answer,
    ) -> Result<(), CheckError> {
        self.slots(at_ms, request, answer, Act::Leave).await
    }

    async fn slots(
        &mut self,
        at_ms: u64,
        request: &Check,
        answer: &Answer,
        act: Act<'_>,
    ) -> Result<(), CheckError> {
        let mut check = Check {
            descriptor: request.descriptor.clone(),
            peek: true,
            ..Check::default()
        };
        for limit in answer.limits.iter().filter(|of| of.verdict.charged > 0) {
            let charged = limit.verdict.charged;
            let Some(slot) = limit.verdict.slot else {
                continue;
            };
            // A deleted limit has no slots, and a request that ends has left its queue long ago.
            let exists = self.policy.position(limit.name.as_str()).is_some();
            if !exists || (act != Act::Leave && !self.is_in_flight(limit)) {
                continue;
            }
            let op = match act {
                Act::Leave => SlotOp::free(slot, charged),
                Act::End(paces) => {
                    let pace = paces.iter().find(|(name, _)| *name == limit.name);
                    let free = SlotAct::Free(charged);
                    SlotOp {
                        slot,
                        act: pace.map_or(free, |(_, pace)| SlotAct::Answered(*pace)),
                    }
                }
                // As a proxy does with a slot that is missing: renewals before this one were skipped.
                Act::Renew => SlotOp {
                    slot,
                    act: SlotAct::Enter,
                },
            };
            check.only.push(limit.name.clone());
            check.limits.push(LimitRequest {
                slots: vec![op],
                ..LimitRequest::new(limit.name.clone())
            });
        }
        if check.only.is_empty() {
            return Ok(());
        }
        self.check(at_ms, &check).await.map(drop)
    }

    /// The response to a request has ended: at each limit for which `used` returns units, these replace
    /// what the request reserved. The answer is that to a peek of cost 0; its `reserved` says what was given
    /// back and charged.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub async fn settle(
        &mut self,
        at_ms: u64,
        request: &Check,
        answer: &Answer,
        used: impl Fn(&Name) -> Option<u64>,
    ) -> Result<Answer, CheckError> {
        let settled = answer.limits.iter().filter_map(|limit| {
            let settlement = CostSettlement {
                reservation: limit.reservation?,
                units: used(&limit.name)?,
            };
            Some(LimitRequest {
                settle: vec![settlement],
                ..LimitRequest::new(limit.name.clone())
            })
        });
        let settling = Check {
            descriptor: request.descriptor.clone(),
            peek: true,
            limits: settled.collect(),
            ..Check::default()
        };
        self.check(at_ms, &settling).await
    }

    async fn check(&mut self, at_ms: u64, check: &Check) -> Result<Answer, CheckError> {
        let (policy, seal) = (&self.policy, Some(&self.seal));
        let planned = CheckPlan::new(policy, check, &self.keys, seal, at_ms, false)?;
        let verdict = match &mut self.buckets {
            Buckets::Memory(held) => held.check(&planned, at_ms)?,
            Buckets::Server(server) => server.check(&planned.check, at_ms).await?,
        };
        Ok(planned.answer(policy, &verdict, at_ms))
    }

    /// Deletes what it wrote on a server.
    ///
    /// # Errors
    /// The server's.
    pub async fn forget(self) -> Result<(), StoreError> {
        let Buckets::Server(OnServer { store, run, used }) = self.buckets else {
            return Ok(());
        };
        let used: Vec<&str> = used.iter().map(String::as_str).collect();
        store.end_simulation(run, &used).await
    }
}

impl OnServer {
    async fn check(&mut self, check: &ScriptCheck<'_>, at_ms: u64) -> Result<Verdict, CheckError> {
        if check.limits.is_empty() {
            return Ok(Verdict {
                allowed: !check.options.denied,
                limits: Vec::new(),
            });
        }
        for key in check.limits.iter().flat_map(Bucket::keys) {
            if !self.used.contains(key) {
                self.used.insert(key.to_owned());
            }
        }
        self.store.simulate(self.run, check, at_ms).await
    }
}

impl fmt::Debug for OnServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used.len();
        write!(f, "run {} with {used} keys", self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "
domain: shop
exempt:
  - {name: health, match: {path: /health}}
limits:
  - name: per-user
    match: {path: /api/**}
    per: [user]
    rate: 2/1s
    overrides: [{values: {user: partner}, rate: 4/1s}]
  - {name: uploads, match: {path: /upload}, algorithm: concurrency, limit: 1}
  - name: tokens
    match: {path: /chat}
    rate: 100/10s
    cost: {from: {response_json: /usage/total}, reserve: {default: 30, from: {request_header: x-max}}}
";

    fn engine() -> Engine {
        let policy = limits_file::read("test", LIMITS.as_bytes()).unwrap();
        Engine::new(policy, 100)
    }

    fn request(engine: &mut Engine, entries: &[(&str, &str)]) -> Check {
        let entry = |(key, value): &(&str, &str)| (key.parse().unwrap(), value.as_bytes().to_vec());
        engine.request(entries.iter().map(entry).collect())
    }

    async fn denied_by(engine: &mut Engine, at_ms: u64, entries: &[(&str, &str)]) -> String {
        let request = request(engine, entries);
        let answer = engine.decide(at_ms, &request).await.unwrap().answer;
        let names = answer
            .summary()
            .denied_by
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        names.join(",")
    }

    #[tokio::test]
    async fn requests_meet_the_limits_exemptions_and_overrides_of_a_limiter() {
        let mut engine = engine();
        for user in ["alice", "alice", "partner", "partner", "partner", "partner"] {
            // Spelled as a client may, and as a proxy sends it.
            let entries = [("path", "/api/%78;v=1"), ("user", user)];
            assert_eq!(denied_by(&mut engine, 1000, &entries).await, "", "{user}");
        }
        let alice = [("path", "/api/x"), ("user", "alice")];
        assert_eq!(denied_by(&mut engine, 1499, &alice).await, "per-user");
        assert_eq!(denied_by(&mut engine, 1500, &alice).await, "");
        let health = request(&mut engine, &[("path", "/health")]);
        let decision = engine.decide(1500, &health).await.unwrap();
        assert_eq!(decision.exempt.unwrap().as_str(), "health");
        let other = request(&mut engine, &[("path", "/other")]);
        assert_eq!(engine.decide(1500, &other).await.unwrap().exempt, None);
    }

    #[tokio::test]
    async fn a_request_holds_its_slot_until_it_ends() {
        let mut engine = engine();
        let upload = [("path", "/upload")];
        let first = request(&mut engine, &upload);
        let decision = engine.decide(1000, &first).await.unwrap();
        assert!(decision.holds());
        engine.end_at((1000, Some(59_000)), first, decision, Vec::new());
        assert_eq!(denied_by(&mut engine, 59_999, &upload).await, "uploads");
        assert_eq!(denied_by(&mut engine, 60_000, &upload).await, "");
        // Nobody counts the renewals of a year.
        let year_ms = 31_536_000_000;
        let long = request(&mut engine, &upload);
        let decision = engine.decide(70_000, &long).await.unwrap();
        assert!(decision.holds());
        engine.end_at((70_000, Some(year_ms)), long, decision, Vec::new());
        let (last_ms, end_ms) = (69_999 + year_ms, 70_000 + year_ms);
        for at_ms in [last_ms - 20_000, last_ms] {
            assert_eq!(denied_by(&mut engine, at_ms, &upload).await, "uploads");
        }
        assert_eq!(denied_by(&mut engine, end_ms, &upload).await, "");
        assert!(engine.open.is_empty());
    }

    #[tokio::test]
    async fn what_a_request_used_replaces_what_it_reserved() {
        let mut engine = engine();
        let name: Name = "tokens".parse().unwrap();
        let left = |decision: &Decision| decision.answer.summary().remaining.unwrap();
        let mut first = request(&mut engine, &[("path", "/chat")]);
        engine.price(&mut first, |_| Some(50));
        let decision = engine.decide(1000, &first).await.unwrap();
        assert_eq!(left(&decision), 50);
        engine.end_at((1000, None), first, decision, vec![(name, 5)]);
        let second = request(&mut engine, &[("path", "/chat")]);
        let decision = engine.decide(1000, &second).await.unwrap();
        assert_eq!(left(&decision), 65, "5 used, 30 reserved");
    }

    #[tokio::test]
    async fn reservations_go_once_nothing_of_them_can_be_given_back() {
        let mut engine = engine();
        let name: Name = "tokens".parse().unwrap();
        for (units, open) in [(5, 0), (31, 1)] {
            let chat = request(&mut engine, &[("path", "/chat")]);
            let decision = engine.decide(1000, &chat).await.unwrap();
            engine.end_at(
                (1000, Some(u64::MAX)),
                chat,
                decision,
                vec![(name.clone(), units)],
            );
            let other = request(&mut engine, &[("path", "/other")]);
            engine.decide(600_999, &other).await.unwrap();
            assert_eq!(engine.open.len(), 1);
            engine.decide(601_000, &other).await.unwrap();
            assert_eq!(engine.open.len(), open, "{units} of 30");
            assert_eq!(engine.open_bytes > 0, open > 0);
        }
    }

    #[tokio::test]
    async fn requests_that_never_end_are_bounded() {
        let mut engine = engine();
        let long = "x".repeat(10_000);
        engine.open_bytes_max = 20_000;
        let upload = request(&mut engine, &[("path", "/upload"), ("user", &long)]);
        let decision = engine.decide(1000, &upload).await.unwrap();
        engine.end_at((1000, Some(4000)), upload.clone(), decision, Vec::new());
        let error = engine.decide(4999, &upload).await.unwrap_err();
        assert!(
            error.to_string().contains("1 requests have not ended"),
            "{error}"
        );
        assert!(engine.decide(5000, &upload).await.is_ok());
    }

    #[tokio::test]
    async fn a_deleted_limit_has_nothing_to_release() {
        let mut engine = engine();
        let upload = request(&mut engine, &[("path", "/upload")]);
        let decision = engine.decide(1000, &upload).await.unwrap();
        engine.edit(Policy::empty("shop".parse().unwrap()));
        engine.end_at((1000, None), upload.clone(), decision, Vec::new());
        assert!(
            engine
                .decide(2000, &upload)
                .await
                .unwrap()
                .answer
                .limits
                .is_empty()
        );
    }

    #[tokio::test]
    async fn buckets_are_bounded() {
        let mut engine = engine();
        for user in 0..100 {
            let user = user.to_string();
            denied_by(&mut engine, 1000, &[("path", "/api/x"), ("user", &user)]).await;
        }
        let more = request(&mut engine, &[("path", "/api/x"), ("user", "x")]);
        assert!(matches!(
            engine.decide(1000, &more).await,
            Err(CheckError::Store(_))
        ));
        assert!(
            engine.decide(3000, &more).await.is_ok(),
            "unused ones are forgotten"
        );
    }
}
