//! The world: proxies, limiters and a store, and what happens to them.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use filter_core::StreamId;
use limiter::{Portless, Settings};
use policy::{Compiled, Pause, Policy};
use store::{Change, Credit, Edit, Options, Overrides, ResetScope, Signature, Store, Stored};
use tokio::{
    sync::mpsc,
    task::spawn_local,
    time::{Duration, sleep, timeout},
};

pub use crate::book::Decision;
use crate::{
    book::{Book, By, Deed, Sent},
    calls::Connections,
    host,
    mutations::Rule,
    plan::{
        Act, CLASSES, COST_MAX, Class, Event, Kind, Overridden, Plan, RESERVE, SLOTS, limits, the,
    },
    proxy::{At, Envoy, Reply},
    redis::{Dial, Health, Kept, Layout, Servers, Wire},
    service::Service,
    sim::Sim,
};

/// How long users of one generation send requests, in milliseconds.
const GENERATION_MS: u64 = 12_000;
/// How long after that their buckets are looked at.
const SETTLED_MS: u64 = 6_000;
/// Units that users get back at the end.
const CREDIT: u64 = 2;
/// How long after a failover without another fault the operator can write again, in milliseconds.
const RECOVERED_MS: u64 = 10_000;
/// How long a limiter takes to load the limits and to be found ready.
const READY: Duration = Duration::from_secs(1);
/// Requests that come just before a limiter leaves.
const CROWD: u64 = 20;
/// The operator's place in the network.
const OPERATOR: usize = 99;

/// All parts.
pub struct World {
    pub sim: Rc<Sim>,
    pub plan: Plan,
    pub envoys: RefCell<Vec<Envoy>>,
    pub limiters: RefCell<Vec<Option<Portless>>>,
    pub connections: Connections,
    limiter_starts: Cell<u64>,
    /// How far the limiters' wall clock is ahead, in milliseconds.
    limiters_ahead_ms: Cell<i64>,
    redis: Rc<Servers>,
    dials: mpsc::UnboundedSender<Dial>,
    pub operator: Arc<dyn Store>,
    /// What the operator last wanted, and how often that changed.
    units: RefCell<Vec<(u64, Overridden)>>,
    marks: Cell<u64>,
    /// What was written, by the digest of its revision.
    written: RefCell<BTreeMap<String, Policy>>,
    pub book: RefCell<Book>,
    pub counts: RefCell<BTreeMap<String, u64>>,
    /// Whose decisions the current event brings.
    pub deciding: Cell<By>,
    pub service: RefCell<Service>,
    verbose: bool,
}

impl World {
    /// Everything begins, and the operator writes the limits.
    pub async fn start(sim: Sim, plan: Plan, verbose: bool) -> Rc<Self> {
        let sim = Rc::new(sim);
        let (dials, dialled) = mpsc::unbounded_channel();
        let redis = Servers::new(&sim, plan.layout);
        spawn_local(Rc::clone(&redis).listen(dialled));
        let operator = open(&plan, OPERATOR, &dials, Duration::from_millis(500));
        let world = Rc::new(Self {
            sim,
            envoys: RefCell::default(),
            limiters: RefCell::new((0..plan.limiters).map(|_| None).collect()),
            connections: Connections::default(),
            limiter_starts: Cell::new(0),
            limiters_ahead_ms: Cell::new(0),
            redis,
            dials,
            operator,
            units: RefCell::new(CLASSES.iter().map(|class| (class.units, None)).collect()),
            marks: Cell::new(0),
            written: RefCell::default(),
            book: RefCell::default(),
            counts: RefCell::default(),
            deciding: Cell::default(),
            service: RefCell::default(),
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
            let [wall, mono] =
                [self.sim.epoch_ms(), self.sim.now_ms()].map(|ms| i64::try_from(ms).unwrap());
            host::set_clocks(wall + self.limiters_ahead_ms.get(), mono);
            let since_ms = self.sim.epoch_ms() - 5 * 3_600_000;
            let days = self.redis.ahead_ms().map(|ms| (since_ms + ms) / 86_400_000);
            self.book.borrow_mut().days = days;
            sleep(Duration::from_millis(10)).await;
        }
    }

    // --- Limiters

    fn new_limiter(&self, limiter: usize) -> Portless {
        let settings = Settings::default();
        let start = self.limiter_starts.replace(self.limiter_starts.get() + 1);
        let store = open(&self.plan, limiter, &self.dials, settings.store_timeout);
        let name = format!("limiter-{limiter}/{start:04x}");
        Portless::start(&settings, store, name).unwrap()
    }

    fn start_limiter(&self, limiter: usize) {
        let started = self.new_limiter(limiter);
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

    /// A new limiter takes the place of one that leaves, as soon as it is ready: new calls go there, connections stay
    /// until the limiter ends them.
    async fn drain(self: &Rc<Self>, limiter: usize) {
        let comes = self.new_limiter(limiter);
        sleep(READY).await;
        // Their calls are under way when it leaves.
        let chance = &self.sim.chance;
        for _ in 0..CROWD {
            let class = chance.index(CLASSES.len());
            if let Some(at) = self.any_worker()
                && CLASSES[class].kind == Kind::Checked
            {
                self.arrive(class, &self.user(class, chance.below(2)), at);
            }
        }
        sleep(Duration::from_millis(chance.below(4))).await;
        let leaves = self.limiters.borrow_mut()[limiter].replace(comes);
        if let Some(leaves) = leaves
            && self.sim.keeps(Rule::Drain)
        {
            leaves.shut_down(&Settings::default()).await;
        }
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
        let (mut reply, mut served_ms) = (None, 0);
        if passed && class.kind == Kind::Adaptive {
            (served_ms, reply) = self.service.borrow_mut().serve(now_ms, chance);
        } else if passed {
            let cost = match class.kind {
                Kind::Costs => 10 + chance.below(COST_MAX - 10),
                _ => 1,
            };
            reply = Some((200, cost));
        }
        let lasts_ms = match class.kind {
            _ if !passed => 0,
            Kind::Adaptive => served_ms,
            Kind::Slots if chance.percent(20) => chance.below(8_000),
            Kind::Slots => chance.below(600),
            _ => chance.below(40),
        };
        let world = Rc::clone(self);
        spawn_local(async move {
            sleep(Duration::from_millis(lasts_ms)).await;
            if world.at(at.envoy, at.worker) == at {
                let now_ms = world.sim.now_ms();
                let cost = reply.map(|(_, cost)| cost);
                world.book.borrow_mut().left(number, cost, now_ms);
                let reply = reply.map(|(status, cost)| Reply::new(status, cost));
                world.end_request(at, number, reply).await;
            }
        });
    }

    pub fn arrive(self: &Rc<Self>, class: usize, user: &str, at: At) {
        let sent = Sent {
            class,
            user: user.to_owned(),
            at,
            at_ms: self.sim.now_ms(),
            decided_ms: 0,
            days: [self.book.borrow().days[0]; 2],
            decision: None,
            by: By::Fallback,
            cost: None,
            gone: false,
        };
        let shares = self.shares(CLASSES[class].name);
        let number = self.book.borrow_mut().arrived(sent, shares);
        self.request(at, number, &format!("/{}", CLASSES[class].name), user);
        if CLASSES[class].kind == Kind::Queue && self.sim.chance.percent(20) {
            let world = Rc::clone(self);
            spawn_local(async move {
                sleep(Duration::from_millis(400)).await;
                if world.at(at.envoy, at.worker) == at
                    && world.book.borrow().sent[number].decision.is_none()
                {
                    let now_ms = world.sim.now_ms();
                    world.book.borrow_mut().left(number, None, now_ms);
                    world.end_request(at, number, None).await;
                }
            });
        }
    }

    pub fn any_worker(&self) -> Option<At> {
        let chance = &self.sim.chance;
        let at = self.at(
            chance.index(self.plan.proxies),
            1 + chance.index(self.plan.workers),
        );
        let paused = self.envoys.borrow()[at.envoy].paused_until_ms > self.sim.now_ms();
        (!paused).then_some(at)
    }

    /// A user of a class who sends requests now.
    fn user(&self, class: usize, which: u64) -> String {
        let generation = self.sim.now_ms() / GENERATION_MS;
        format!("{}-{generation}-{which}", CLASSES[class].name)
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
            // A rush brings its own.
            if CLASSES[class].kind == Kind::Adaptive && self.service.borrow().rushing {
                continue;
            }
            let leased = CLASSES[class].kind == Kind::Leased;
            let which = if leased { 0 } else { chance.below(2) };
            let user = self.user(class, which);
            let (count, pause_ms) = if leased {
                (chance.below(40), chance.below(8))
            } else if CLASSES[class].kind == Kind::Queue {
                (1 + chance.below(8), 0)
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
        let text = limits(
            &self.units.borrow(),
            self.plan.pair(),
            1000 + self.marks.get(),
        );
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
    pub async fn stored(&self) -> Compiled {
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

    /// Gives units back; `true` if it is known that they were.
    async fn credit(&self, class: usize, user: String, units: u64) -> bool {
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
        self.operator.credit(&credit, &signature()).await.is_ok()
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
        let (edits, quiet) = (is_edit(event.act), is_quiet(event.act));
        self.log(&format!("{:?}", event.act));
        let trouble = |by: fn(&mut u64)| {
            let mut book = self.book.borrow_mut();
            book.trouble_ms = self.sim.now_ms();
            by(&mut book.troubles);
        };
        if let Act::Rush(rush) = event.act {
            self.rush(rush).await;
        } else if edits {
            self.operate(event).await;
        } else if quiet {
            self.disturb(event).await;
        } else {
            trouble(|troubles| *troubles += 1);
            self.disturb(event).await;
            trouble(|troubles| *troubles -= 1);
        }
        self.log(&format!("end of {:?}", event.act));
    }

    async fn operate(&self, event: Event) {
        let now = || self.sim.now_ms();
        let someone = |class: usize| Some(self.user(class, 0));
        let (class, user, deed) = match event.act {
            Act::Edit(class, which) => {
                let units = CLASSES[class].units;
                (
                    class,
                    None,
                    Deed::Units([units, units * 2, units / 2][usize::try_from(which).unwrap()]),
                )
            }
            Act::Reset(class) => (class, None, Deed::Reset),
            Act::Credit(class, units) => (class, someone(class), Deed::Credit(units)),
            Act::Override(class, units) => (class, someone(class), Deed::Override(units)),
            Act::Pause(class) => (class, None, Deed::Pause),
            other => unreachable!("{other:?}"),
        };
        let begun = { self.book.borrow_mut() }.begun(now(), (Some(class), user.clone()), deed);
        match deed {
            Deed::Units(units) => {
                self.units.borrow_mut()[class].0 = units;
                self.apply().await;
            }
            Deed::Override(units) => {
                self.units.borrow_mut()[class].1 = user.map(|user| (user, units));
                self.apply().await;
            }
            Deed::Reset => self.reset(class).await,
            Deed::Credit(units) => {
                self.credit(class, user.unwrap(), units).await;
            }
            Deed::Pause | Deed::Lost | Deed::FailedOver(..) => {
                self.pause(class, true).await;
                sleep(Duration::from_millis(event.lasts_ms)).await;
                self.pause(class, false).await;
            }
        }
        self.book.borrow_mut().ended(begun, now());
    }

    async fn disturb(self: &Rc<Self>, event: Event) {
        let lasts = || sleep(Duration::from_millis(event.lasts_ms));
        let redis = self.redis.primary();
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
            Act::StepRedis(ms) => self.redis.step_clocks(ms),
            Act::PauseRedis => {
                redis.set_health(Health::Paused);
                lasts().await;
                redis.set_health(Health::Up);
            }
            Act::CutRedis => redis.cut(),
            Act::Refuse(error) => {
                redis.refuse(Some(error));
                lasts().await;
                redis.refuse(None);
            }
            Act::Busy => {
                redis.busy.set(true);
                lasts().await;
                redis.busy.set(false);
            }
            Act::CrashRedis(kept) => self.crash_redis(kept, event.lasts_ms).await,
            Act::Evict => {
                let lost = self.lose(Deed::Lost);
                let keys = redis
                    .evict(["token%-", "window%-", "fixed%-", "slots"][self.sim.chance.index(4)]);
                self.log(&format!("{keys} keys are evicted"));
                self.book.borrow_mut().ended(lost, self.sim.now_ms());
            }
            Act::FailOver => self.fail_over(event.lasts_ms).await,
            Act::MoveSlots => self.move_slots(event.lasts_ms).await,
            Act::Drain(limiter) => self.drain(limiter).await,
            edit => unreachable!("{edit:?}"),
        }
    }

    /// What the old primary charges until the limiters have left it is lost, and may be used again, but no more.
    async fn fail_over(&self, lasts_ms: u64) {
        let begun_ms = self.sim.now_ms();
        let alone = || self.book.borrow().troubles == 1;
        let (was_alone, begun) = (alone(), self.lose(Deed::FailedOver(begun_ms, u64::MAX)));
        let until_ms = self.redis.fail_over(lasts_ms).await;
        // A limiter that reaches no sentinel meanwhile may call the old one as long as that lives.
        let undisturbed = || was_alone && alone() && self.book.borrow().trouble_ms == begun_ms;
        let certain = undisturbed() || self.plan.layout == Layout::Cluster;
        let lost_ms = until_ms.filter(|_| certain);
        let lost_ms = lost_ms.unwrap_or_else(|| self.sim.now_ms());
        self.book.borrow_mut().done[begun].deed = Deed::FailedOver(begun_ms, lost_ms);
        if until_ms.is_some() {
            let applied = timeout(Duration::from_millis(RECOVERED_MS), self.apply()).await;
            assert!(
                applied.is_ok() || !undisturbed(),
                "limits cannot be written {RECOVERED_MS} ms after a failover"
            );
            if applied.is_err() {
                self.apply().await;
            }
        }
        self.book.borrow_mut().ended(begun, self.sim.now_ms());
    }

    /// Slots of buckets that are in use, or soon will be, and of the limits themselves, move to other nodes.
    async fn move_slots(self: &Rc<Self>, lasts_ms: u64) {
        let chance = &self.sim.chance;
        let until_ms = self.sim.now_ms() + lasts_ms;
        let stored = self.stored().await;
        while self.sim.now_ms() < until_ms {
            // A bucket with reservations has two keys.
            let number = match chance.below(3) {
                0 => the(Kind::Costs),
                _ => chance.index(CLASSES.len()),
            };
            let (class, which) = (CLASSES[number], chance.below(2));
            let generation = self.sim.now_ms() / GENERATION_MS + chance.below(2);
            let user = format!("{}-{generation}-{which}", class.name);
            let values: &[_] = match class.kind {
                Kind::Slots | Kind::Adaptive => &[],
                _ => &[Some(user.clone().into_bytes())],
            };
            let limit = class.name.parse().unwrap();
            let slot = match self.operator.inspect(&stored, &limit, values, 0).await {
                Ok(found) if !chance.percent(10) => found.slot,
                _ => redis_link::slot(b"{shop}"),
            };
            if self.redis.changing.get() {
                sleep(Duration::from_millis(20)).await;
                continue;
            }
            self.book.borrow_mut().moved_ms = u64::MAX;
            let visits = async {
                if class.kind == Kind::Costs {
                    self.visit(number, &user, generation).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = self.redis.move_slot(slot) => {}
                () = visits => {}
            }
            self.book.borrow_mut().moved_ms = self.sim.now_ms();
        }
    }

    /// Requests of a user come while one of its bucket's two keys has moved and the other has not.
    async fn visit(self: &Rc<Self>, class: usize, user: &str, generation: u64) {
        while self.sim.now_ms() / GENERATION_MS <= generation {
            sleep(Duration::from_millis(20 + self.sim.chance.below(150))).await;
            if let Some(at) = self.any_worker() {
                self.arrive(class, user, at);
            }
        }
    }

    fn lose(&self, how: Deed) -> usize {
        let now_ms = self.sim.now_ms();
        self.book.borrow_mut().begun(now_ms, (None, None), how)
    }

    async fn crash_redis(&self, kept: Kept, lasts_ms: u64) {
        let lost = (kept != Kept::All).then(|| self.lose(Deed::Lost));
        let redis = self.redis.primary();
        if kept == Kept::Saved {
            redis.save();
            sleep(Duration::from_millis(lasts_ms)).await;
        }
        redis.set_health(Health::Down);
        redis.cut();
        sleep(Duration::from_millis(lasts_ms / 2)).await;
        redis.restart(kept);
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
                // A proxy also gets the edges of calendar windows.
                let limits = policy.limits.iter();
                for limit in limits.filter(|limit| limit.name.as_str() != "calendar") {
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
            self.book.borrow().assert_in_turn(&user, now_ms);
            let settled = self.book.borrow().is_calm(now_ms, 3_000);
            let (class, _) = user.split_once('-').unwrap();
            let exact = || self.book.borrow().is_exact(&user, self.shares(class));
            if !settled || !exact() {
                continue;
            }
            let values = [Some(user.clone().into_bytes())];
            let second = (class == "sliding").then_some("pair");
            for limit in [class].into_iter().chain(second) {
                let limit = limit.parse().unwrap();
                let inspected = self.operator.inspect(&stored, &limit, &values, 0).await;
                if let Ok(inspected) = inspected
                    && exact()
                {
                    let (answer, mut book) = (inspected.answer, self.book.borrow_mut());
                    let (left, before) = (answer.verdict.decision.remaining, book.audited);
                    book.assert_charged(&user, answer.limit.unwrap(), left);
                    self.sim.trace((&user, left, before));
                }
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
        self.book.borrow_mut().only_weather = { self.plan.events.iter() }.all(|event| {
            is_edit(event.act) || matches!(event.act, Act::Weather(_) | Act::Drain(_))
        });
        self.book.borrow_mut().on_nodes = self.plan.layout == Layout::Cluster;
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
        for limit in ["slots", "adaptive"] {
            let limit = limit.parse().unwrap();
            let inspected = self
                .operator
                .inspect(&stored, &limit, &[], 0)
                .await
                .unwrap();
            assert_eq!(
                Some(inspected.answer.verdict.decision.remaining),
                inspected.answer.limit,
                "slots are not free: {inspected:?}"
            );
        }
        self.assert_as_limited().await;
        self.assert_barred().await;
        self.sim.assert_mutated();
        self.book.borrow().assert_decided();
    }

    /// Of new users exactly as many requests pass as the limits and overrides allow.
    async fn assert_as_limited(self: &Rc<Self>) {
        for (class, of) in CLASSES.iter().enumerate() {
            if of.kind == Kind::Checked && class % 2 == 1 {
                let overridden = (format!("{}-final", of.name), of.units + 2);
                self.units.borrow_mut()[class].1 = Some(overridden);
            }
        }
        self.apply().await;
        sleep(Duration::from_secs(3)).await;
        let least = |of: &Class, units: u64| match of.name {
            "sliding" => units.min(self.plan.pair()),
            _ => units,
        };
        let mut limited = Vec::new();
        for (class, of) in CLASSES.iter().enumerate() {
            let (units, overridden) = self.units.borrow()[class].clone();
            let units = match overridden {
                Some((user, units)) if user.ends_with("-final") => units,
                _ => units,
            };
            let count = match of.kind {
                Kind::Checked => units + 4,
                Kind::Leased | Kind::Adaptive | Kind::Barred => continue,
                Kind::Queue => 8,
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
                self.book.borrow().assert_exactly(&user, least(of, units));
                limited.push((class, user, units));
            }
        }
        // Of what is given back, all can be used, and no more.
        for (class, user, _) in &limited {
            assert!(
                self.credit(*class, user.clone(), CREDIT).await,
                "{user} gets nothing"
            );
        }
        sleep(Duration::from_secs(3)).await;
        for (class, user, units) in limited {
            for _ in 0..CREDIT + 2 {
                self.arrive(class, &user, self.any_worker().unwrap());
                sleep(Duration::from_millis(30)).await;
            }
            sleep(Duration::from_millis(100)).await;
            let units = least(&CLASSES[class], units + CREDIT);
            self.book.borrow().assert_exactly(&user, units);
        }
    }

    /// Who is denied three times is denied altogether for six seconds, and the next time for twelve.
    async fn assert_barred(self: &Rc<Self>) {
        let user = "barred-final";
        // Pauses, requests after each, and how many of them pass. Denials by proxies are reported within two seconds.
        for (pause_ms, requests, passes) in [
            (0, 4, 2),
            (2_100, 3, 2),
            (2_500, 1, 0),
            (6_500, 5, 2),
            (2_500, 1, 0),
            (7_000, 1, 0),
            (7_000, 1, 1),
        ] {
            sleep(Duration::from_millis(pause_ms)).await;
            let passed = || self.book.borrow().passed(user);
            let before = passed();
            for _ in 0..requests {
                self.arrive(the(Kind::Barred), user, self.any_worker().unwrap());
                sleep(Duration::from_millis(30)).await;
            }
            sleep(Duration::from_millis(100)).await;
            let now_ms = self.sim.now_ms();
            assert_eq!(
                passed() - before,
                passes,
                "of {requests} after {pause_ms} ms, at {now_ms} ms"
            );
        }
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
            self.redis.executed(),
            self.sim.traced(),
        )
    }
}

/// What nobody is to notice.
fn is_quiet(act: Act) -> bool {
    matches!(act, Act::MoveSlots | Act::Drain(_))
}

fn is_edit(act: Act) -> bool {
    matches!(
        act,
        Act::Edit(..) | Act::Reset(_) | Act::Pause(_) | Act::Credit(..) | Act::Override(..)
    )
}

fn signature() -> Signature {
    Signature {
        author: "operator".to_owned(),
        reason: "world".to_owned(),
    }
}

fn open(
    plan: &Plan,
    from: usize,
    dials: &mpsc::UnboundedSender<Dial>,
    timeout: Duration,
) -> Arc<dyn Store> {
    let wire = Wire {
        from,
        dials: dials.clone(),
    };
    let options = Options {
        network: Some(Arc::new(wire)),
        ..Options::within(timeout)
    };
    store::open(&plan.layout.url(), options).unwrap()
}
