//! The seed, the clock and the network that all parts of a world share.

use std::cell::{Cell, RefCell};

use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use crate::mutations::{How, Rule};

/// When a world begins, in milliseconds since the epoch: three minutes before five in the morning of a day (UTC), so
/// that of the windows of a day only those of New York end in a run.
pub const EPOCH_MS: u64 = 1_763_096_220_000;

/// Random numbers from a seed.
#[derive(Debug)]
pub struct Chance(Cell<u64>);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub fn below(&self, bound: u64) -> u64 {
        let next = { self.0.get() }
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0.set(next);
        (next >> 33) % bound.max(1)
    }

    pub fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(u64::try_from(length).unwrap())).unwrap()
    }

    pub fn percent(&self, share: u64) -> bool {
        self.below(100) < share
    }
}

/// What the network does to messages, in percent of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Calls of proxies that never arrive.
    pub lost: u64,
    /// Answers that never arrive.
    pub unanswered: u64,
    /// Answers that come after the proxy's timeout.
    pub late: u64,
    /// Calls that arrive again, a while later.
    pub repeated: u64,
    /// Answers that are cut short, or another server's.
    pub garbled: u64,
    /// Messages of a limiter's connection to the store that take longer than a check may.
    pub slow: u64,
}

/// A part of the system that can be cut off from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Proxy(usize),
    /// A limiter, from the proxies.
    Limiter(usize),
    /// A limiter, from the store.
    Store(usize),
}

/// Why a rule was not left out.
pub const UNCHANGED: &str = "no script has the text of this rule";

/// What the parts of a world share.
pub struct Sim {
    pub chance: Chance,
    start: Instant,
    pub weather: Cell<Weather>,
    cut_off: RefCell<Vec<Part>>,
    changed: watch::Sender<()>,
    /// The rule that is left out, and whether it was.
    mutation: Option<How>,
    mutated: Cell<bool>,
    /// A hash over all that happened.
    trace: Cell<u64>,
    /// The last of the numbers that things have.
    last: Cell<u64>,
}

impl Sim {
    pub fn new(seed: u64, mutation: Option<How>) -> Self {
        Self {
            chance: Chance::new(seed),
            start: Instant::now(),
            weather: Cell::default(),
            cut_off: RefCell::default(),
            changed: watch::Sender::new(()),
            mutation,
            mutated: Cell::new(false),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
            last: Cell::new(0),
        }
    }

    /// Milliseconds since the world began.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    /// The true time, in milliseconds since the epoch.
    pub fn epoch_ms(&self) -> u64 {
        EPOCH_MS + self.now_ms()
    }

    /// How long a message to or from the store takes.
    pub fn hop(&self) -> Duration {
        let ms = if self.chance.percent(self.weather.get().slow) {
            5 + self.chance.below(60)
        } else {
            self.chance.below(8) / 5
        };
        Duration::from_millis(ms)
    }

    pub fn cut_off(&self, part: Part) {
        self.cut_off.borrow_mut().push(part);
    }

    pub fn rejoin(&self, part: Part) {
        self.cut_off.borrow_mut().retain(|of| *of != part);
        self.changed.send_replace(());
    }

    pub fn is_cut_off(&self, part: Part) -> bool {
        self.cut_off.borrow().contains(&part)
    }

    /// Numbers, each once.
    pub fn number(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    /// Waits until none of these parts is cut off.
    pub async fn reaches(&self, parts: &[Part]) {
        let reached = || !parts.iter().any(|part| self.is_cut_off(*part));
        if !reached() {
            let mut changed = self.changed.subscribe();
            let _ = changed.wait_for(|()| reached()).await;
        }
    }

    /// A script without the rule that is left out.
    pub fn mutated(&self, source: &str) -> String {
        match self.mutation {
            Some(How::Script(rule, without)) => {
                self.mutated
                    .set(self.mutated.get() || source.contains(rule));
                source.replace(rule, without)
            }
            _ => source.to_owned(),
        }
    }

    /// A script that is left as it is finds nothing.
    pub fn assert_mutated(&self) {
        let script = matches!(self.mutation, Some(How::Script(..)));
        assert!(!script || self.mutated.get(), "{UNCHANGED}");
    }

    /// Whether a part keeps to a rule.
    pub fn keeps(&self, rule: Rule) -> bool {
        self.mutation != Some(How::Part(rule))
    }

    /// Adds to the hash over all that happened.
    pub fn trace(&self, what: impl std::fmt::Debug) {
        let mut hash = self.trace.get();
        for byte in format!("{} {what:?}", self.now_ms()).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.trace.set(hash);
    }

    pub fn traced(&self) -> u64 {
        self.trace.get()
    }
}
