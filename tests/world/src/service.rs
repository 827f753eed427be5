//! The service behind the adaptive limit: how it fares, who calls it, and what the limit has to make of that.

use std::rc::Rc;

use tokio::{
    task::spawn_local,
    time::{Duration, sleep},
};

use crate::{
    plan::{CLASSES, Kind, the},
    sim::Chance,
    world::World,
};

/// The fewest slots, and the time within which answers are to begin.
pub const MIN: u64 = 3;
pub const LATENCY_MS: u64 = 600;
/// Clients leave who wait longer.
const PATIENCE_MS: u64 = 3_000;
/// With so many slots the service is busy whole, and far behind at a third.
const ENOUGH: u64 = 8;

/// What becomes of the service, or of who calls it, between two times in which all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rush {
    /// It takes three times as long.
    Third,
    /// It stalls for two seconds, every four.
    Stalled,
    /// It answers 503 at once.
    Failing,
    /// Many clients leave before an answer can come.
    HangUps,
    /// Three times as long, after a night of few requests, all of them late by nature.
    Night,
}

impl Rush {
    pub const ALL: [Self; 5] = [
        Self::Third,
        Self::Stalled,
        Self::Failing,
        Self::HangUps,
        Self::Night,
    ];

    /// Of the rushes of a run: three fit in five minutes, one of them with a night; two runs have all of them.
    pub fn nth(run: u64, nth: u64) -> Self {
        let [run, nth] = [run, nth].map(|number| usize::try_from(number).unwrap());
        let night = run % 3;
        match Self::ALL {
            [.., last] if nth == night => last,
            [rushes @ .., _] => rushes[(2 * run + nth - usize::from(nth > night)) % rushes.len()],
        }
    }

    /// How long it takes at most.
    pub fn lasts_ms(self) -> u64 {
        if self == Self::Night { 130_000 } else { 55_000 }
    }
}

/// How requests come, and how they fare, for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    lasts_ms: u64,
    /// The mean pause between two requests.
    pause_ms: u64,
    /// The least time of an answer, and how much longer it takes on average, without a queue; 0: a 503 at once.
    least_ms: u64,
    mean_ms: u64,
    stalls: bool,
    /// The share of clients that leave early, in percent.
    hang_ups: u64,
}

const WHOLE: Phase = Phase {
    lasts_ms: 15_000,
    pause_ms: 16,
    least_ms: 0,
    mean_ms: 100,
    stalls: false,
    hang_ups: 0,
};

/// Four workers with a queue.
#[derive(Debug)]
pub struct Service {
    free_ms: [u64; 4],
    phase: Phase,
    pub rushing: bool,
    /// The limit as it was found lately, newest last.
    limits: [u64; 3],
}

impl Default for Service {
    fn default() -> Self {
        Self {
            free_ms: [0; 4],
            phase: WHOLE,
            rushing: false,
            limits: [u64::MAX; 3],
        }
    }
}

impl Service {
    /// How long a request takes, and the status and cost of its answer; `None`: its client left.
    pub fn serve(&mut self, now_ms: u64, chance: &Chance) -> (u64, Option<(u16, u64)>) {
        if chance.percent(self.phase.hang_ups) {
            return (10 + chance.below(30), None);
        }
        let mean_ms = self.phase.mean_ms;
        if mean_ms == 0 {
            return (1, Some((503, 1)));
        }
        let free = { self.free_ms.iter_mut() }.min().unwrap();
        let resumes_ms = if self.phase.stalls && now_ms % 4_000 < 2_000 {
            now_ms - now_ms % 4_000 + 2_000
        } else {
            now_ms
        };
        *free = resumes_ms.max(*free) + self.phase.least_ms + mean_ms / 2 + chance.below(mean_ms);
        match *free - now_ms {
            late @ PATIENCE_MS.. => (late.min(PATIENCE_MS), None),
            took_ms => (took_ms, Some((200, 1))),
        }
    }
}

impl World {
    /// Many requests come, while all is well, then not, then well again.
    pub async fn rush(self: &Rc<Self>, rush: Rush) {
        if std::mem::replace(&mut self.service.borrow_mut().rushing, true) {
            return;
        }
        let begun_ms = self.sim.now_ms();
        let look = spawn_local(Rc::clone(self).look_at_service());
        let mut bad = Phase {
            lasts_ms: 14_000,
            ..WHOLE
        };
        match rush {
            Rush::Third | Rush::Night => bad.mean_ms = 300,
            Rush::Stalled => bad.stalls = true,
            Rush::Failing => bad.mean_ms = 0,
            Rush::HangUps => bad.hang_ups = 50,
        }
        let before = self.serve_for(WHOLE).await;
        if rush == Rush::Night {
            // No more at a time than the fewest slots, with those whose end proxies have yet to report.
            let night = Phase {
                lasts_ms: 75_000,
                pause_ms: 900,
                // Late is what takes longer than half of the time that is allowed.
                least_ms: LATENCY_MS / 2,
                ..WHOLE
            };
            self.serve_for(night).await;
        }
        let during = self.serve_for(bad).await;
        let last = Phase {
            lasts_ms: 25_000,
            ..WHOLE
        };
        let after = self.serve_for(last).await;
        let (class, now_ms) = (the(Kind::Adaptive), self.sim.now_ms());
        if self.book.borrow().is_undisturbed(class, begun_ms, now_ms) {
            self.log(&format!("{rush:?}: {before} {during} {after}"));
            self.sim.trace((before, during, after));
            let overload = matches!(rush, Rush::Third | Rush::Night);
            assert!(
                !overload || during <= ENOUGH,
                "{rush:?}: the limit stays at {during}"
            );
            let well = rush != Rush::HangUps || during >= before;
            assert!(well, "{rush:?}: the limit falls from {before} to {during}");
            assert!(
                after >= ENOUGH,
                "{rush:?}: the limit does not come back from {after}"
            );
        }
        self.service.borrow_mut().rushing = false;
        look.await.unwrap();
    }

    /// Requests come in this way; returns the limit after that.
    async fn serve_for(self: &Rc<Self>, phase: Phase) -> u64 {
        self.service.borrow_mut().phase = phase;
        let (chance, class) = (&self.sim.chance, the(Kind::Adaptive));
        let until_ms = self.sim.now_ms() + phase.lasts_ms;
        while self.sim.now_ms() < until_ms {
            sleep(Duration::from_millis(
                phase.pause_ms / 2 + chance.below(phase.pause_ms),
            ))
            .await;
            if let Some(at) = self.any_worker() {
                self.arrive(class, "adaptive-rush", at);
            }
        }
        self.service.borrow_mut().phase = WHOLE;
        self.service.borrow().limits[2]
    }

    /// The limit stays within its bounds, and no more requests run than it allows.
    async fn look_at_service(self: Rc<Self>) {
        let class = the(Kind::Adaptive);
        let limit = CLASSES[class].name.parse().unwrap();
        let mut stored = self.stored().await;
        let mut at = 0_u64;
        while self.service.borrow().rushing {
            sleep(Duration::from_millis(250)).await;
            at += 1;
            if at.is_multiple_of(8) {
                stored = self.stored().await;
            }
            let found = self.operator.inspect(&stored, &limit, &[], 0).await;
            let most = std::mem::take(&mut self.book.borrow_mut().served_most);
            let mut service = self.service.borrow_mut();
            service.limits.rotate_left(1);
            service.limits[2] = found.map_or(u64::MAX, |found| found.answer.limit.unwrap());
            let (limits, now_ms) = (service.limits, self.sim.now_ms());
            let book = self.book.borrow();
            let bound = book.most_units(class, now_ms.saturating_sub(5_000), now_ms);
            let newest = limits[2];
            assert!(
                newest == u64::MAX || (MIN..=bound).contains(&newest),
                "the limit is {newest}, of {MIN} to {bound}"
            );
            // It changes once a second at most.
            let allowed = *limits.iter().max().unwrap();
            assert!(
                u64::try_from(most).unwrap() <= allowed
                    || !book.is_undisturbed(class, now_ms.saturating_sub(10_000), now_ms),
                "{most} requests run where {allowed} may, at {now_ms} ms"
            );
        }
    }
}
