//! Edits among many limits: a worker has all limits of one revision or all of another, whatever happens on
//! the way, and the newest soon after.

use std::{collections::HashMap, fmt::Write, sync::Arc};

use policy::{Compiled, Limit, Revision};

use crate::{
    decisions::worlds,
    faults,
    world::{CONFIG, Faults, World},
};

const WORKERS: usize = 3;

/// The limits of an edit: pairs that always have the same rate, some of them new, some gone, in an order that
/// may change.
struct Pairs(Vec<(u64, u64)>);

impl Pairs {
    fn edit(&mut self, world: &mut World) {
        for _ in 0..=world.chance.below(3) {
            let at = world.chance.index(self.0.len());
            match world.chance.below(6) {
                0 => {
                    let new = self.0.iter().map(|(name, _)| name + 1).max().unwrap_or(0);
                    self.0.insert(at, (new, 1));
                }
                1 if self.0.len() > 20 => drop(self.0.remove(at)),
                2 => {
                    let moved = self.0.remove(at);
                    self.0.insert(world.chance.index(self.0.len()), moved);
                }
                _ => self.0[at].1 += 1,
            }
        }
    }

    fn limits(&self) -> String {
        let mut limits = String::new();
        for (name, edits) in &self.0 {
            for half in ["a", "b"] {
                let rate = 1000 + edits;
                let method = if edits % 3 == 0 { "GET" } else { "PUT" };
                writeln!(
                    limits,
                    "  - {{name: {half}{name}, match: {{path: \"/p{name}/**\", method: {method}}}, per: [user], rate: {rate}/s}}"
                )
                .unwrap();
            }
        }
        limits
    }
}

/// The limits that a policy has, whatever their order.
fn content(compiled: &Compiled) -> Vec<Arc<Limit>> {
    let mut content = compiled.limits().to_vec();
    content.sort_by(|one, other| one.name.cmp(&other.name));
    content
}

#[derive(Default)]
struct Revisions {
    /// The limits of each.
    limits: HashMap<Revision, Vec<Arc<Limit>>>,
    /// What the workers had when they were last looked at.
    seen: HashMap<(usize, usize), Revision>,
}

fn applied(world: &mut World, pairs: &Pairs, revisions: &mut Revisions) {
    world.limiter.apply(&pairs.limits());
    let filters = Compiled::from_snapshot(&limits_file::snapshot_at(&world.limiter.compiled, 0));
    let revision = world.limiter.compiled.revision().clone();
    revisions
        .limits
        .insert(revision, content(&filters.unwrap()));
}

/// Every worker has the limits of one revision.
fn assert_whole(world: &World, revisions: &mut Revisions) {
    for (at, envoy) in world.envoys.iter().enumerate() {
        for (of, worker) in envoy.workers.iter().enumerate() {
            let Some(limits) = worker.in_force() else {
                continue;
            };
            let revision = limits.revision().clone();
            let seen = revisions.seen.insert((at, of), revision.clone());
            if seen.as_ref() != Some(&revision) && revision.number > 1 {
                assert_eq!(content(limits), revisions.limits[&revision]);
            }
        }
    }
}

fn assert_newest(world: &World) {
    for worker in world.envoys.iter().flat_map(|envoy| &envoy.workers) {
        let limits = worker.in_force().unwrap();
        assert_eq!(limits.revision(), world.limiter.compiled.revision());
    }
}

fn edited_worlds() -> impl Iterator<Item = (World, Pairs, Revisions)> {
    worlds(2, WORKERS, CONFIG, "  []\n").map(|mut world| {
        let pairs = Pairs((0..30).map(|name| (name, 0)).collect());
        let mut revisions = Revisions::default();
        applied(&mut world, &pairs, &mut revisions);
        world.run_for_ms(1_000);
        assert_newest(&world);
        (world, pairs, revisions)
    })
}

#[test]
fn an_edit_among_many_limits_is_sent_alone() {
    for (mut world, mut pairs, mut revisions) in edited_worlds() {
        let whole = world.limiter.sent_whole;
        for _ in 0..20 {
            pairs.edit(&mut world);
            applied(&mut world, &pairs, &mut revisions);
            world.run_for_ms(1_000);
            assert_newest(&world);
            assert_whole(&world, &mut revisions);
        }
        assert_eq!(world.limiter.sent_whole, whole);
        assert_eq!(world.limiter.sent_changes, 2 * 20);
    }
}

/// Also where limiters skipped revisions that others sent, are of a version that sends no changes, or restart.
#[test]
fn no_worker_has_limits_of_two_revisions_and_all_have_the_newest_in_the_end() {
    for (mut world, mut pairs, mut revisions) in edited_worlds() {
        for _ in 0..world.chance.below(3) {
            world.limiter.add_replica();
        }
        world.limiter.all_send_changes = world.chance.percent(50);
        for _ in 0..80 {
            match world.chance.below(30) {
                0 => world.faults = faults::any(&mut world),
                1 => world.faults = Faults::NONE,
                2 => world.limiter.restart(),
                3 => world.envoys[0].shared.lose_writes(20),
                4 => world.crash(1, CONFIG),
                5 => world.replace_worker(0, 2, CONFIG),
                6 => world.cut_off = Some(world.chance.index(2)),
                7 => world.cut_off = None,
                _ => {
                    pairs.edit(&mut world);
                    applied(&mut world, &pairs, &mut revisions);
                }
            }
            let end_us = world.now_us + world.chance.below(400_000);
            while world.step(end_us) {
                assert_whole(&world, &mut revisions);
            }
        }
        (world.faults, world.cut_off) = (Faults::NONE, None);
        world.run_for_ms(6_000);
        assert_whole(&world, &mut revisions);
        assert_newest(&world);
        if world.limiter.all_send_changes {
            assert!(world.limiter.sent_changes > 20);
        }
    }
}

#[test]
fn a_proxy_that_comes_back_when_limiters_forgot_its_revision_gets_the_whole() {
    for (mut world, mut pairs, mut revisions) in edited_worlds() {
        world.cut_off = Some(0);
        for n in 0..6 {
            if n == 3 {
                world.limiter.restart();
            }
            pairs.edit(&mut world);
            applied(&mut world, &pairs, &mut revisions);
            world.run_for_ms(1_000);
        }
        let whole = world.limiter.sent_whole;
        world.cut_off = None;
        world.run_for_ms(6_000);
        assert_newest(&world);
        assert_whole(&world, &mut revisions);
        assert_eq!(world.limiter.sent_whole, whole + 1);
    }
}

/// The numbers go on: what goes back are the limits.
#[test]
fn a_rollback_is_an_edit_like_any_other() {
    for (mut world, mut pairs, mut revisions) in edited_worlds() {
        let before = Pairs(pairs.0.clone());
        // More would be a fourth of all, of which the whole is sent.
        for _ in 0..2 {
            pairs.edit(&mut world);
            applied(&mut world, &pairs, &mut revisions);
            world.run_for_ms(1_000);
        }
        let whole = world.limiter.sent_whole;
        applied(&mut world, &before, &mut revisions);
        world.run_for_ms(1_000);
        assert_newest(&world);
        assert_whole(&world, &mut revisions);
        assert_eq!(world.limiter.sent_whole, whole);
    }
}

/// A limiter on a memory store restarts, and its revisions have numbers that were used before.
#[test]
fn revisions_that_begin_anew_are_not_mixed_with_those_before() {
    for (mut world, mut pairs, _) in edited_worlds() {
        for number in 0..4 {
            let mut revisions = Revisions::default();
            world.limiter.begin_anew("  []\n");
            for _ in 0..=number {
                pairs.edit(&mut world);
                applied(&mut world, &pairs, &mut revisions);
            }
            world.run_for_ms(3_000);
            assert_newest(&world);
            assert_whole(&world, &mut revisions);
        }
    }
}

/// A penalty holds for minutes, and leased units for one: whatever an edit does to another bucket, these are asked
/// for again only when that is over.
#[test]
fn an_edit_of_one_bucket_leaves_the_denials_and_leases_of_others() {
    const LIMITS: &str = "  - {name: per-user, match: {path: /checked}, per: [user], rate: 1/1h, penalty: {after: 1, within: 1m, for: 15m}}\n  - {name: leased, match: {path: /leased}, per: [user], rate: 100000/1h, lease: {ttl: 1m}}\n";
    for mut world in worlds(1, WORKERS, CONFIG, LIMITS) {
        let checks_of = |world: &mut World, user: &str, path: &'static str, each: usize| {
            let before = world.limiter.entries;
            for worker in 1..=WORKERS {
                for _ in 0..each {
                    world.request(0, worker, user, path);
                    world.run_for_ms(1);
                }
            }
            world.run_for_ms(20);
            world.limiter.entries - before
        };
        world.run_for_ms(500);
        for user in ["alice", "bob"] {
            checks_of(&mut world, user, "/leased", 200);
            checks_of(&mut world, user, "/checked", 3);
        }
        // The denials before the penalty are reported.
        world.run_for_ms(2_000);
        for user in ["alice", "bob"] {
            assert_eq!(checks_of(&mut world, user, "/checked", 1), 0, "{user}");
            assert!(checks_of(&mut world, user, "/leased", 2) < 2, "{user}");
        }
        let admitted = world.admitted("alice");
        world.limiter.reset_bucket("per-user", "alice");
        world.limiter.reset_bucket("leased", "alice");
        world.run_for_ms(1_000);
        assert_newest(&world);
        assert_eq!(checks_of(&mut world, "bob", "/checked", 1), 0);
        assert!(checks_of(&mut world, "bob", "/leased", 2) < 2);
        // The bucket itself is asked for anew.
        assert!(checks_of(&mut world, "alice", "/checked", 1) > 0);
        assert_eq!(world.admitted("alice"), admitted + 1);
        assert!(checks_of(&mut world, "alice", "/leased", 1) > 0);
    }
}
