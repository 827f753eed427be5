//! Requests in flight, over Envoys that crash, lossy networks, and a store that loses its data.

use crate::{
    decisions::{seeds, worlds},
    faults::any,
    world::{CONFIG, Faults, Outcome, World},
};

const LIMIT: usize = 12;
const TTL_MS: u64 = 1_500;
const LIMITS: &str = "  - {name: in-flight, algorithm: concurrency, limit: 12, slot_ttl: 1500ms}\n";
const ENVOYS: usize = 3;

/// What frees the slot has not all entries of its request, but no other limit applies to it for that.
#[test]
fn a_slot_is_freed_beside_limits_that_the_absence_of_an_entry_satisfies() {
    let limits = "  - {name: in-flight, algorithm: concurrency, limit: 1, match: {method: GET}}\n  \
                  - {name: others, match: {user: '!alice'}, rate: 1000/s, replaces: [in-flight]}\n";
    for mut world in worlds(1, 1, CONFIG, limits) {
        world.run_for_ms(500);
        for _ in 0..3 {
            let number = world.request(0, 1, "alice", "/");
            world.run_for_ms(50);
            assert!(world.passed(number), "{}", world.details(number));
            world.leave(number);
            world.run_for_ms(50);
        }
    }
}

/// A world in which requests run, and the ends of those that will end.
struct Run {
    world: World,
    ends: Vec<(u64, usize)>,
    most: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, ENVOYS, 2, CONFIG, LIMITS);
        world.limiter.proxies = ENVOYS as u64;
        world.run_for_ms(500);
        Self {
            world,
            ends: Vec::new(),
            most: 0,
        }
    }

    /// Admitted requests that have not ended.
    fn running(&self) -> Vec<usize> {
        let requests = self.world.requests.iter().enumerate();
        let running = requests
            .filter(|(_, sent)| !sent.gone && matches!(sent.outcome, Some(Outcome::Passed { .. })));
        running.map(|(number, _)| number).collect()
    }

    /// Requests arrive for some time; some are short, some outlive many renewals.
    fn load(&mut self, ms: u64) {
        let end_us = self.world.now_us + ms * 1000;
        while self.world.now_us < end_us {
            let chance = &mut self.world.chance;
            let (envoy, worker) = (chance.index(ENVOYS), 1 + chance.index(2));
            let lasts_ms = if chance.percent(10) {
                chance.below(6 * TTL_MS)
            } else {
                chance.below(300)
            };
            let number = self.world.request(envoy, worker, "alice", "/");
            self.ends
                .push((self.world.now_us + lasts_ms * 1000, number));
            let pause_us = self.world.chance.below(20_000);
            self.pass(pause_us);
        }
    }

    /// Time passes, and requests end.
    fn pass(&mut self, us: u64) {
        let until_us = self.world.now_us + us;
        self.ends.sort_unstable_by(|a, b| b.cmp(a));
        while let Some((at_us, number)) = self.ends.pop_if(|(at_us, _)| *at_us <= until_us) {
            self.world.run_until(at_us.max(self.world.now_us));
            if !self.world.requests[number].gone {
                self.world.leave(number);
            }
            self.most = self.most.max(self.running().len());
        }
        self.world.run_until(until_us);
        self.most = self.most.max(self.running().len());
    }

    fn end_all(&mut self) {
        // First, requests that wait for their answer are decided.
        self.world.run_for_ms(50);
        self.ends.clear();
        for number in self.running() {
            self.world.leave(number);
        }
    }

    fn slots(&self) -> usize {
        self.world.limiter.slots(self.world.limiter_ms())
    }
}

#[test]
fn running_requests_never_exceed_the_limit_and_all_slots_are_freed() {
    for mut run in seeds().map(Run::new) {
        run.load(8_000);
        assert_eq!(run.most, LIMIT);
        assert_eq!(run.world.counted("rl_slots.lapsed"), 0);
        run.world.run_for_ms(50);
        assert_eq!(run.slots(), run.running().len());
        run.end_all();
        run.world.run_for_ms(100);
        assert_eq!(run.slots(), 0, "freed at once");
    }
}

#[test]
fn call_faults_leak_no_slot_and_free_no_other_requests_slot() {
    for mut run in seeds().map(Run::new) {
        // These requests hold slots all the time.
        let kept: Vec<usize> = (0..4)
            .map(|n| run.world.request(n % ENVOYS, 1 + n % 2, "alice", "/"))
            .collect();
        run.world.run_for_ms(50);
        for _ in 0..20 {
            run.world.faults = any(&mut run.world);
            run.load(400);
        }
        run.world.faults = Faults::NONE;
        run.pass(TTL_MS * 1000);
        let before = run.slots();
        for number in run.running() {
            if !kept.contains(&number) {
                run.world.leave(number);
            }
        }
        run.ends.clear();
        run.world.run_for_ms(2 * TTL_MS);
        assert_eq!(run.slots(), kept.len(), "{before} before");
        for number in kept {
            run.world.leave(number);
        }
        run.world.run_for_ms(500);
        assert_eq!(run.slots(), 0);
    }
}

#[test]
fn only_a_crashed_envoy_loses_its_slots_after_the_ttl() {
    for mut run in seeds().map(Run::new) {
        run.load(3_000);
        let dead = run.world.chance.index(ENVOYS);
        run.world.crash(dead, CONFIG);
        run.world.run_for_ms(TTL_MS + 200);
        let running = run.running().len();
        assert_eq!(run.slots(), running);
        run.load(2_000);
        assert!(run.most <= LIMIT, "{}", run.most);
        run.end_all();
        run.world.run_for_ms(200);
        assert_eq!(run.slots(), 0);
    }
}

#[test]
fn lost_slots_are_entered_again_before_another_request_is_admitted() {
    for mut run in seeds().map(Run::new) {
        for n in 0..LIMIT {
            run.world.request(n % ENVOYS, 1 + n % 2, "alice", "/");
        }
        run.world.run_for_ms(100);
        assert_eq!(run.running().len(), LIMIT);
        run.world.limiter.lose_buckets();
        run.world.run_for_ms(TTL_MS);
        assert_eq!(run.slots(), LIMIT, "entered again");
        let another = run.world.request(0, 1, "alice", "/");
        run.world.run_for_ms(50);
        assert!(!run.world.passed(another));
        // An edit changes the limit, but not the running requests.
        run.world
            .limiter
            .edit(&LIMITS.replace("limit: 12", "limit: 5"));
        run.world.run_for_ms(TTL_MS);
        run.world.limiter.lose_buckets();
        run.world.run_for_ms(TTL_MS);
        assert_eq!(run.slots(), LIMIT, "entered under the edit");
        // An edit of an override, of which a proxy sees only a newer generation, changes neither.
        let overridden = LIMITS.replace("limit: 12", "limit: 5");
        run.world.limiter.edit(&overridden);
        run.world.limiter.lose_buckets();
        run.world.run_for_ms(TTL_MS);
        assert_eq!(run.slots(), LIMIT, "entered under an override");
        // A reset drops the slots for good.
        run.world.limiter.reset(&overridden);
        run.world.run_for_ms(2 * TTL_MS);
        assert_eq!(run.slots(), 0, "forgotten");
        // Later edits do not bring them back.
        run.world.limiter.edit(LIMITS);
        run.world.run_for_ms(2 * TTL_MS);
        assert_eq!(run.slots(), 0, "forgotten by an edit, too");
    }
}

#[test]
fn without_a_limiter_a_proxy_admits_its_share_and_caches_no_denial() {
    for mut run in seeds().map(Run::new) {
        // Before the first check: polls are answered with the number of proxies, too.
        run.world.faults = Faults::BLACK_HOLE;
        let sent: Vec<usize> = (0..40)
            .map(|n| {
                run.world.run_for_ms(10);
                run.world.request(0, 1 + n % 2, "alice", "/")
            })
            .collect();
        run.world.run_for_ms(200);
        let passed = |run: &Run| sent.iter().filter(|n| run.world.passed(**n)).count();
        assert_eq!(passed(&run), LIMIT / ENVOYS);
        // One ends, which frees its place at once.
        let first = sent
            .iter()
            .find(|n| run.world.passed(**n))
            .copied()
            .unwrap();
        run.world.leave(first);
        run.world.run_for_ms(60);
        let next = [1, 2].map(|worker| run.world.request(0, worker, "alice", "/"));
        run.world.run_for_ms(100);
        let passed = next.map(|number| run.world.passed(number));
        assert!(passed[0] != passed[1], "{passed:?}");
        run.world.faults = Faults::NONE;
        run.end_all();
        run.world.run_for_ms(3_000);
        assert_eq!(run.slots(), 0);
    }
}

/// A renewal must not come too late for a slot that was given long ago.
#[test]
fn an_answer_after_a_third_of_the_ttl_is_ignored_and_its_slot_freed() {
    let config = CONFIG.replace("20ms", "200ms");
    let limits = "  - {name: in-flight, match: {path: \"/**\"}, algorithm: concurrency, limit: 12, slot_ttl: 300ms}\n";
    let mut late = 0;
    for mut world in worlds(1, 1, &config, limits) {
        world.run_for_ms(500);
        world.slowest_us = 190_000;
        let number = world.request(0, 1, "alice", "/one");
        world.run_for_ms(195);
        assert!(world.passed(number), "by its share");
        if world.requests[number].took_us().unwrap() < 100_000 {
            continue;
        }
        late += 1;
        world.run_for_ms(10);
        let slot = world.limiter.given["/one"];
        let expiry = world.limiter.expiry_of(slot, world.limiter_ms());
        assert_eq!(expiry, None);
    }
    assert!(late > 0);
}

#[test]
fn a_slot_possibly_taken_by_an_unanswered_check_is_freed_at_once() {
    for mut world in worlds(1, 1, CONFIG, LIMITS) {
        world.run_for_ms(500);
        world.faults.late = 100;
        let number = world.request(0, 1, "alice", "/");
        world.run_for_ms(10);
        assert_eq!(world.limiter.slots(world.limiter_ms()), 1);
        world.run_for_ms(190);
        assert!(world.passed(number), "by its share");
        let slots = world.limiter.slots(world.limiter_ms());
        assert_eq!(slots, 0, "long before it lapses");
    }
}

/// Otherwise the next attempt may be a twelfth of the ttl away, and the slots may lapse before.
#[test]
fn slots_not_renewed_during_an_open_breaker_are_renewed_once_it_closes() {
    let limits = "  - {name: in-flight, match: {path: \"/**\"}, algorithm: concurrency, limit: 12, slot_ttl: 12s}\n";
    for mut world in worlds(1, 2, CONFIG, limits) {
        let short = |world: &mut World| {
            let worker = 1 + world.chance.index(2);
            let number = world.request(0, worker, "alice", "/short");
            world.run_for_ms(10);
            world.leave(number);
        };
        world.run_for_ms(500);
        world.request(0, 1, "alice", "/long");
        world.run_for_ms(3_500);
        world.faults = Faults::BLACK_HOLE;
        (0..100).for_each(|_| short(&mut world));
        world.faults = Faults::NONE;
        while world.counted("rl_breaker_open") > 0 {
            short(&mut world);
        }
        (0..10).for_each(|_| short(&mut world));
        let (slot, now_ms) = (world.limiter.given["/long"], world.limiter_ms());
        let expiry_ms = world.limiter.expiry_of(slot, now_ms).unwrap();
        assert!(expiry_ms + 300 > now_ms + 12_000);
    }
}
