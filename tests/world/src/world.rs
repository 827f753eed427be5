//! The world: proxies, limiters and a store, and what happens to them.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    sync::Arc,
};

use bytes::Bytes;
use filter_core::StreamId;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use limiter::{Portless, Settings};
use policy::{Compiled, Pause, Policy};
use store::{
    Change, Credit, Edit, Options, Overrides, ResetScope, Signature, Store, StoreUrl, Stored,
};
use tokio::{
    io::duplex,
    sync::mpsc,
    task::spawn_local,
    time::{Duration, sleep},
};

pub use crate::book::Decision;
use crate::{
    book::{Book, By, Deed, Sent},
    host,
    plan::{Act, CLASSES, COST_MAX, Event, Kind, Plan, RESERVE, SLOTS, limits},
    proxy::{Answer, At, Envoy},
    redis::{Dial, Health, Kept, Server, Wire},
    sim::Sim,
};

/// How long users of one generation send requests, in milliseconds.
const GENERATION_MS: u64 = 12_000;
/// How long after that their buckets are looked at.
const SETTLED_MS: u64 = 6_000;
/// The operator's place in the network.
const OPERATOR: usize = 99;

/// All parts.
pub struct World {
    pub sim: Rc<Sim>,
    pub plan: Plan,
    pub envoys: RefCell<Vec<Envoy>>,
    limiters: RefCell<Vec<Option<Portless>>>,
    limiter_starts: Cell<u64>,
    /// How far the limiters' wall clock is ahead, in milliseconds.
    limiters_ahead_ms: Cell<i64>,
    redis: Rc<Server>,
    dials: mpsc::UnboundedSender<Dial>,
    operator: Arc<dyn Store>,
    /// What the operator last wanted, and how often that changed.
    units: RefCell<Vec<u64>>,
    marks: Cell<u64>,
    /// What was written, by the digest of its revision.
    written: RefCell<BTreeMap<String, Policy>>,
    pub book: RefCell<Book>,
    pub counts: RefCell<BTreeMap<String, u64>>,
    /// Whose decisions the current event brings.
    pub deciding: Cell<By>,
    verbose: bool,
}

impl World {
    /// Everything begins, and the operator writes the limits.
    pub async fn start(sim: Sim, plan: Plan, verbose: bool) -> Rc<Self> {
        let sim = Rc::new(sim);
        let (dials, dialled) = mpsc::unbounded_channel();
        let redis = Server::new(Rc::clone(&sim));
        spawn_local(Rc::clone(&redis).listen(dialled));
        let operator = open(OPERATOR, &dials, Duration::from_millis(500));
        let world = Rc::new(Self {
            sim,
            envoys: RefCell::default(),
            limiters: RefCell::new((0..plan.limiters).map(|_| None).collect()),
            limiter_starts: Cell::new(0),
            limiters_ahead_ms: Cell::new(0),
            redis,
            dials,
            operator,
            units: RefCell::new(CLASSES.iter().map(|class| class.units).collect()),
            marks: Cell::new(0),
            written: RefCell::default(),
            book: RefCell::default(),
            counts: RefCell::default(),
            deciding: Cell::default(),
            verbose,
            plan,
        });
        spawn_local(Rc::clone(&world).keep_wall_clock());
        world.apply().await;
        for limiter in 0..world.plan.limiters {
            world.start_limiter(limiter);
        }
        for envoy in 0..world.plan.proxies {
            world.start_envoy(envoy, 0);
        }
        sleep(Duration::from_secs(3)).await;
        world
    }

    pub fn log(&self, text: &str) {
        if self.verbose {
            eprintln!("{:>8} {text}", self.sim.now_ms());
        }
    }

    /// The wall clock of all limiters.
    async fn keep_wall_clock(self: Rc<Self>) {
        loop {
            let ms = i64::try_from(self.sim.epoch_ms()).unwrap() + self.limiters_ahead_ms.get();
            host::set_wall_ms(ms);
            sleep(Duration::from_millis(10)).await;
        }
    }

    // --- Limiters

    fn start_limiter(&self, limiter: usize) {
        let settings = Settings::default();
        let start = self.limiter_starts.replace(self.limiter_starts.get() + 1);
        let store = open(limiter, &self.dials, settings.store_timeout);
        let name = format!("limiter-{limiter}/{start:04x}");
        let started = Portless::start(&settings, store, name).unwrap();
        self.limiters.borrow_mut()[limiter] = Some(started);
    }

    /// Envoy calls any limiter that is there.
    pub fn choose_limiter(&self) -> Option<usize> {
        let limiters = self.limiters.borrow();
        let there: Vec<usize> = (0..limiters.len())
            .filter(|limiter| limiters[*limiter].is_some())
            .collect();
        (!there.is_empty()).then(|| there[self.sim.chance.index(there.len())])
    }

    /// A proxy's call arrives at a limiter.
    pub async fn ask_limiter(
        &self,
        limiter: usize,
        envoy: usize,
        request: hyper::Request<Full<Bytes>>,
    ) -> Answer {
        let gone = || Answer::of_envoy(503, "connection termination");
        let (ours, theirs) = duplex(64 * 1024);
        let from = IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(envoy + 1).unwrap()));
        match &mut self.limiters.borrow_mut()[limiter] {
            Some(limiter) => limiter.accept(theirs, from),
            None => return gone(),
        }
        let Ok((mut sender, connection)) =
            hyper::client::conn::http1::handshake(TokioIo::new(ours)).await
        else {
            return gone();
        };
        let connection = spawn_local(connection);
        let answered = async {
            let response = sender.send_request(request).await.ok()?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let status = head.status.as_u16();
            let mut headers = vec![(":status".to_owned(), status.to_string().into_bytes())];
            for (name, value) in &head.headers {
                headers.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
            }
            Some(Answer {
                decided: false,
                headers,
                body,
            })
        };
        let answer = answered.await.unwrap_or_else(gone);
        connection.abort();
        answer
    }

    // --- Requests

    /// How many requests proxies have admitted by their shares of a limit, for want of an answer.
    fn shares(&self, class: &str) -> u64 {
        let counts = self.counts.borrow();
        let admitted = counts.get(&format!("rl_decisions.allowed.local.{class}"));
        admitted.copied().unwrap_or(0)
    }

    /// A request is decided: it runs for a while, or it has ended.
    pub fn decided(self: &Rc<Self>, at: At, stream: StreamId, decision: &Decision) {
        let number = usize::try_from(stream.0).unwrap();
        self.sim.trace((number, decision));
        let now_ms = self.sim.now_ms();
        let excused = !self.book.borrow().is_calm(now_ms, 1_000)
            && self
                .plan
                .events
                .iter()
                .any(|event| matches!(event.act, Act::PauseProxy(_)));
        let mut book = self.book.borrow_mut();
        let by = self.deciding.get();
        book.decided(number, (decision.clone(), by), now_ms, excused);
        let sent = &book.sent[number];
        let class = CLASSES[sent.class];
        self.log(&format!(
            "{} at {at:?} since {}: {decision:?}",
            sent.user, sent.at_ms
        ));
        drop(book);
        let chance = &self.sim.chance;
        let passed = matches!(decision, Decision::Passed(_));
        let lasts_ms = match class.kind {
            _ if !passed => 0,
            Kind::Slots if chance.percent(20) => chance.below(8_000),
            Kind::Slots => chance.below(600),
            _ => chance.below(40),
        };
        let cost = passed.then(|| match class.kind {
            Kind::Costs => 10 + chance.below(COST_MAX - 10),
            _ => 1,
        });
        let world = Rc::clone(self);
        spawn_local(async move {
            sleep(Duration::from_millis(lasts_ms)).await;
            if world.at(at.envoy, at.worker) == at {
                let now_ms = world.sim.now_ms();
                world.book.borrow_mut().left(number, cost, now_ms);
                world.end_request(at, number, cost).await;
            }
        });
    }

    fn arrive(self: &Rc<Self>, class: usize, user: &str, at: At) {
        let sent = Sent {
            class,
            user: user.to_owned(),
            at,
            at_ms: self.sim.now_ms(),
            decision: None,
            by: By::Fallback,
            cost: None,
            gone: false,
        };
        let shares = self.shares(CLASSES[class].name);
        let number = self.book.borrow_mut().arrived(sent, shares);
        self.request(at, number, &format!("/{}", CLASSES[class].name), user);
    }

    fn any_worker(&self) -> Option<At> {
        let chance = &self.sim.chance;
        let at = self.at(
            chance.index(self.plan.proxies),
            1 + chance.index(self.plan.workers),
        );
        let paused = self.envoys.borrow()[at.envoy].paused_until_ms > self.sim.now_ms();
        (!paused).then_some(at)
    }

    /// Requests, until the run ends.
    async fn load(self: Rc<Self>) {
        let chance = &self.sim.chance;
        while self.sim.now_ms() < self.plan.ends_ms {
            sleep(Duration::from_millis(
                1 + chance.below(2 * self.plan.pause_ms),
            ))
            .await;
            let class = chance.index(CLASSES.len());
            let generation = self.sim.now_ms() / GENERATION_MS;
            let leased = CLASSES[class].kind == Kind::Leased;
            let which = if leased { 0 } else { chance.below(2) };
            let user = format!("{}-{generation}-{which}", CLASSES[class].name);
            let (count, pause_ms) = if leased {
                (chance.below(40), chance.below(8))
            } else {
                (1 + chance.below(2), 0)
            };
            let Some(at) = self.any_worker() else {
                continue;
            };
            let world = Rc::clone(&self);
            spawn_local(async move {
                for _ in 0..count {
                    if world.at(at.envoy, at.worker) != at {
                        return;
                    }
                    world.arrive(class, &user, at);
                    sleep(Duration::from_millis(pause_ms)).await;
                }
            });
        }
    }

    // --- The operator

    /// Makes the stored limits what the operator wants, however often it takes.
    async fn apply(&self) {
        self.marks.set(self.marks.get() + 1);
        let text = limits(&self.units.borrow(), 1000 + self.marks.get());
        let wanted = limits_file::read("limits.yaml", text.as_bytes()).unwrap();
        loop {
            if let Ok(base) = self.operator.read(&wanted.domain, Overrides::All).await
                && self.edit(&base, &wanted).await
            {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn edit(&self, base: &Stored, wanted: &Policy) -> bool {
        let edit = Edit {
            domain: &wanted.domain,
            base,
            change: Change::Limits(wanted),
            by: &signature(),
        };
        let written = self.operator.write(&edit).await;
        if let Ok(revision) = &written {
            let digest = format!("{:?}", revision.digest);
            self.written.borrow_mut().insert(digest, wanted.clone());
        }
        written.is_ok()
    }

    /// The limits as they are stored.
    async fn stored(&self) -> Compiled {
        loop {
            let domain = "shop".parse().unwrap();
            if let Ok(Stored::Live(record)) = self.operator.read(&domain, Overrides::All).await {
                return Compiled::new(record.policy);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn reset(&self, class: usize) {
        loop {
            let stored = self.stored().await;
            let at = stored.position(CLASSES[class].name).unwrap();
            let limit = store::LimitOf {
                domain: stored.domain(),
                limit: stored.limit(at).unwrap(),
            };
            let by = signature();
            if { self.operator.reset(&limit, ResetScope::All, &by).await }.is_ok() {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn credit(&self, class: usize, units: u64) {
        let generation = self.sim.now_ms() / GENERATION_MS;
        let user = format!("{}-{generation}-0", CLASSES[class].name);
        let stored = self.stored().await;
        let credit = Credit {
            policy: &stored,
            limit: &CLASSES[class].name.parse().unwrap(),
            values: &[Some(user.into_bytes())],
            units,
            peek: false,
            force: false,
        };
        // Who does not know whether it was given does not give it twice.
        let _ = self.operator.credit(&credit, &signature()).await;
    }

    async fn pause(&self, class: usize, paused: bool) {
        loop {
            let domain = "shop".parse().unwrap();
            if let Ok(base) = self.operator.read(&domain, Overrides::All).await
                && let Some(policy) = base.policy()
            {
                let mut wanted = policy.clone();
                for limit in &mut wanted.limits {
                    if limit.name.as_str() == CLASSES[class].name {
                        limit.paused = paused.then_some(Pause { until_ms: None });
                    }
                }
                if self.edit(&base, &wanted).await {
                    return;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    // --- What happens

    async fn happen(self: Rc<Self>, event: Event) {
        sleep(Duration::from_millis(
            event.at_ms.saturating_sub(self.sim.now_ms()),
        ))
        .await;
        let edits = matches!(
            event.act,
            Act::Edit(..) | Act::Reset(_) | Act::Pause(_) | Act::Credit(..)
        );
        self.log(&format!("{:?}", event.act));
        let trouble = |by: fn(&mut u64)| {
            let mut book = self.book.borrow_mut();
            book.trouble_ms = self.sim.now_ms();
            by(&mut book.troubles);
        };
        if edits {
            self.operate(event).await;
        } else {
            trouble(|troubles| *troubles += 1);
            self.disturb(event).await;
            trouble(|troubles| *troubles -= 1);
        }
        self.log(&format!("end of {:?}", event.act));
    }

    async fn operate(&self, event: Event) {
        let now = || self.sim.now_ms();
        let (class, deed) = match event.act {
            Act::Edit(class, which) => {
                let units = CLASSES[class].units;
                (
                    class,
                    Deed::Units([units, units * 2, units / 2][usize::try_from(which).unwrap()]),
                )
            }
            Act::Reset(class) => (class, Deed::Reset),
            Act::Credit(class, units) => (class, Deed::Credit(units)),
            Act::Pause(class) => (class, Deed::Pause),
            other => unreachable!("{other:?}"),
        };
        let begun = self.book.borrow_mut().begun(now(), Some(class), deed);
        match deed {
            Deed::Units(units) => {
                self.units.borrow_mut()[class] = units;
                self.apply().await;
            }
            Deed::Reset => self.reset(class).await,
            Deed::Credit(units) => self.credit(class, units).await,
            Deed::Pause | Deed::Lost => {
                self.pause(class, true).await;
                sleep(Duration::from_millis(event.lasts_ms)).await;
                self.pause(class, false).await;
            }
        }
        self.book.borrow_mut().ended(begun, now());
    }

    async fn disturb(self: &Rc<Self>, event: Event) {
        let lasts = || sleep(Duration::from_millis(event.lasts_ms));
        match event.act {
            Act::Weather(weather) => {
                self.sim.weather.set(weather);
                lasts().await;
                self.sim.weather.take();
            }
            Act::CutOff(part) => {
                self.sim.cut_off(part);
                lasts().await;
                self.sim.rejoin(part);
            }
            Act::CrashProxy(envoy) => self.crash_envoy(envoy),
            Act::PauseProxy(envoy) => {
                let until_ms = self.sim.now_ms() + event.lasts_ms;
                self.envoys.borrow_mut()[envoy].paused_until_ms = until_ms;
                lasts().await;
            }
            Act::CrashLimiter(limiter) => {
                self.limiters.borrow_mut()[limiter] = None;
                lasts().await;
                self.start_limiter(limiter);
            }
            Act::StepLimiters(ms) => self.limiters_ahead_ms.set(ms),
            Act::StepProxy(envoy, ms) => self.envoys.borrow_mut()[envoy].ahead_ms = ms,
            Act::StepRedis(ms) => {
                let ahead_ms = &self.redis.ahead_ms;
                ahead_ms.set(ahead_ms.get() + ms);
            }
            Act::PauseRedis => {
                self.redis.set_health(Health::Paused);
                lasts().await;
                self.redis.set_health(Health::Up);
            }
            Act::CutRedis => self.redis.cut(),
            Act::Refuse(error) => {
                self.redis.refuse(Some(error));
                lasts().await;
                self.redis.refuse(None);
            }
            Act::Busy => {
                self.redis.busy.set(true);
                lasts().await;
                self.redis.busy.set(false);
            }
            Act::CrashRedis(kept) => self.crash_redis(kept, event.lasts_ms).await,
            Act::Evict => {
                let lost = self.lose();
                let keys = self
                    .redis
                    .evict(["token%-", "window%-", "fixed%-", "slots"][self.sim.chance.index(4)]);
                self.log(&format!("{keys} keys are evicted"));
                self.book.borrow_mut().ended(lost, self.sim.now_ms());
            }
            edit => unreachable!("{edit:?}"),
        }
    }

    fn lose(&self) -> usize {
        let now_ms = self.sim.now_ms();
        self.book.borrow_mut().begun(now_ms, None, Deed::Lost)
    }

    async fn crash_redis(&self, kept: Kept, lasts_ms: u64) {
        let lost = (kept != Kept::All).then(|| self.lose());
        if kept == Kept::Saved {
            self.redis.save();
            sleep(Duration::from_millis(lasts_ms)).await;
        }
        self.redis.set_health(Health::Down);
        self.redis.cut();
        sleep(Duration::from_millis(lasts_ms / 2)).await;
        self.redis.restart(kept);
        if let Some(lost) = lost {
            // As docs/deploy.md says, the operator compares the limits with those in the repository.
            self.apply().await;
            self.book.borrow_mut().ended(lost, self.sim.now_ms());
        }
    }

    // --- What is looked at all the time

    /// No worker has limits of two revisions.
    fn look_at_workers(&self) {
        let written = self.written.borrow();
        for envoy in self.envoys.borrow().iter() {
            for compiled in envoy.workers.iter().filter_map(|worker| worker.in_force()) {
                let quota = |name: &str| {
                    let at = compiled.position(name).unwrap();
                    compiled.limit(at).unwrap().quota
                };
                let revision = compiled.revision();
                assert_eq!(
                    quota("mark-one"),
                    quota("mark-two"),
                    "a proxy has limits of two revisions as {revision:?}"
                );
                let Some(policy) = written.get(&format!("{:?}", revision.digest)) else {
                    continue;
                };
                for limit in &policy.limits {
                    let has = quota(limit.name.as_str());
                    assert_eq!(has, limit.quota, "{} of {revision:?}", limit.name);
                }
            }
        }
    }

    /// Compares the buckets of users who sent their last request with what passed.
    async fn audit(&self, generation: u64) {
        let mark = format!("-{generation}-");
        let users = |book: &Book| -> Vec<String> {
            let users = book.users().filter(|user| user.contains(&mark));
            users.cloned().collect()
        };
        let users = users(&self.book.borrow());
        let stored = self.stored().await;
        for user in users {
            self.book.borrow().assert_not_exceeded(&user);
            let now_ms = self.sim.now_ms();
            let settled = self.book.borrow().is_calm(now_ms, 3_000);
            let (class, _) = user.split_once('-').unwrap();
            let exact = || self.book.borrow().is_exact(&user, self.shares(class));
            if !settled || !exact() {
                continue;
            }
            let (limit, values) = (class.parse().unwrap(), [Some(user.clone().into_bytes())]);
            let inspected = self.operator.inspect(&stored, &limit, &values, 0).await;
            if let Ok(inspected) = inspected
                && exact()
            {
                let (answer, mut book) = (inspected.answer, self.book.borrow_mut());
                let before = book.audited;
                book.assert_charged(&user, answer.limit.unwrap(), answer.remaining);
                self.sim.trace((&user, answer.remaining, before));
            }
        }
    }

    async fn watch(self: Rc<Self>) {
        let mut generation = 0;
        while self.sim.now_ms() < self.plan.ends_ms {
            sleep(Duration::from_secs(1)).await;
            self.look_at_workers();
            if self.sim.now_ms() >= (generation + 1) * GENERATION_MS + SETTLED_MS {
                self.audit(generation).await;
                generation += 1;
            }
        }
    }

    /// Runs to the end, and checks that everything is well after it.
    pub async fn run(self: Rc<Self>) {
        let load = spawn_local(Rc::clone(&self).load());
        let watch = spawn_local(Rc::clone(&self).watch());
        let events: Vec<_> = { self.plan.events.iter() }
            .map(|event| spawn_local(Rc::clone(&self).happen(*event)))
            .collect();
        for task in events.into_iter().chain([load, watch]) {
            task.await.unwrap();
        }
        // Longer than slots, leases and backoffs last.
        sleep(Duration::from_secs(20)).await;
        self.look_at_workers();
        self.book.borrow().assert_decided();
        let users: Vec<String> = self.book.borrow().users().cloned().collect();
        let mut exceeded = BTreeMap::<&str, u64>::new();
        for user in &users {
            let (class, _) = user.split_once('-').unwrap();
            *exceeded.entry(class).or_default() += self.book.borrow().assert_not_exceeded(user);
        }
        for (class, exceeded) in exceeded {
            let admitted = self.shares(class);
            assert!(
                exceeded <= admitted,
                "{class}: {exceeded} more passed than may, and {admitted} by the fallback"
            );
        }
        self.assert_well().await;
    }

    /// All that was disturbed has recovered: limits are in force, slots are free, and buckets exact.
    async fn assert_well(self: &Rc<Self>) {
        let stored = self.stored().await;
        for envoy in self.envoys.borrow().iter() {
            for worker in &envoy.workers {
                let in_force = worker.in_force().map(Compiled::revision);
                assert_eq!(
                    in_force,
                    Some(stored.revision()),
                    "a worker's limits are old"
                );
            }
        }
        let slots = "slots".parse().unwrap();
        let inspected = self
            .operator
            .inspect(&stored, &slots, &[], 0)
            .await
            .unwrap();
        assert_eq!(
            inspected.answer.remaining, SLOTS,
            "slots are not free: {inspected:?}"
        );
        for (class, of) in CLASSES.iter().enumerate() {
            let units = self.units.borrow()[class];
            let count = match of.kind {
                Kind::Checked => units + 4,
                Kind::Leased => continue,
                Kind::Slots => SLOTS,
                Kind::Costs => 2 * units / RESERVE,
            };
            let user = format!("{}-final", of.name);
            for _ in 0..count {
                self.arrive(class, &user, self.any_worker().unwrap());
                sleep(Duration::from_millis(30)).await;
            }
            sleep(Duration::from_millis(100)).await;
            if of.kind == Kind::Checked {
                self.book.borrow().assert_exactly(&user, units);
            }
        }
        self.book.borrow().assert_decided();
    }

    /// What the run did, in one line.
    pub fn summary(&self) -> String {
        self.log(&format!("{:?}", self.counts.borrow()));
        let book = self.book.borrow();
        let passed = book.count(|sent| matches!(sent.decision, Some(Decision::Passed(_))));
        let failed = book.count(|sent| {
            matches!(&sent.decision, Some(Decision::Denied(details)) if details.ends_with(":failure"))
        });
        format!(
            "requests={} passed={passed} undecided={failed} events={} audited={} commands={} trace={:016x}",
            book.sent.len(),
            self.plan.events.len(),
            book.audited,
            self.redis.executed.get(),
            self.sim.traced(),
        )
    }
}

fn signature() -> Signature {
    Signature {
        author: "operator".to_owned(),
        reason: "world".to_owned(),
    }
}

fn open(from: usize, dials: &mpsc::UnboundedSender<Dial>, timeout: Duration) -> Arc<dyn Store> {
    let wire = Wire {
        from,
        dials: dials.clone(),
    };
    let options = Options {
        network: Some(Arc::new(wire)),
        ..Options::within(timeout)
    };
    let url: StoreUrl = "redis://redis:6379".parse().unwrap();
    store::open(&url, options).unwrap()
}
