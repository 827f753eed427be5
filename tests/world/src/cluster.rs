//! What the nodes of a Cluster do besides: refer calls to each other, move slots, and replace a primary.

use std::{
    cell::{Cell, RefCell},
    fmt::Write as _,
};

use redis_link::slot;
use tokio::time::{Duration, sleep};

use crate::{
    mutations::Rule,
    redis::{Health, Server, Servers},
};

const SLOTS: usize = 16384;

/// What a node knows of the others.
#[derive(Default)]
pub struct View {
    /// The node that has each slot; of a server that is in no Cluster: empty.
    owners: RefCell<Vec<usize>>,
    /// The slot whose keys leave for another node, or come from one.
    leaving: Cell<Option<(u16, usize)>>,
    arriving: Cell<Option<u16>>,
    /// Most others have been out of its reach for so long that it answers nothing.
    alone: Cell<bool>,
}

impl View {
    /// Of so many primaries, each with its copies, each has as many slots.
    pub fn begin(&self, primaries: usize, copies: usize) {
        let owner = |slot: usize| slot * primaries / SLOTS * copies;
        *self.owners.borrow_mut() = (0..SLOTS).map(owner).collect();
    }

    fn owner(&self, slot: u16) -> Option<usize> {
        self.owners.borrow().get(usize::from(slot)).copied()
    }

    /// The answer to CLUSTER SLOTS.
    pub fn slots(&self) -> Vec<u8> {
        let owners = self.owners.borrow();
        let (mut ranges, mut first, mut count) = (String::new(), 0, 0);
        for range in owners.chunk_by(|one, next| one == next) {
            let (last, owner) = (first + range.len() - 1, range[0]);
            let host = format!("redis-{owner}");
            let length = host.len();
            write!(ranges, "*3\r\n:{first}\r\n:{last}\r\n").unwrap();
            write!(ranges, "*2\r\n${length}\r\n{host}\r\n:6379\r\n").unwrap();
            (first, count) = (last + 1, count + 1);
        }
        format!("*{count}\r\n{ranges}").into_bytes()
    }
}

/// Commands of no key.
const KEYLESS: &str =
    "PING CLIENT AUTH SELECT ASKING CLUSTER SCRIPT SUBSCRIBE SCAN INFO HELLO TIME";

/// The keys of a command, all of them.
fn keys(command: &[Vec<u8>]) -> &[Vec<u8>] {
    match std::str::from_utf8(&command[0]).unwrap() {
        "EVAL" | "EVALSHA" => {
            let count = std::str::from_utf8(&command[2]).unwrap();
            &command[3..3 + count.parse::<usize>().unwrap()]
        }
        name if KEYLESS.split(' ').any(|keyless| keyless == name) => &[],
        _ => command.get(1..2).unwrap_or_default(),
    }
}

impl Server {
    /// To which node it refers a command, or why no node runs it now, in the words of Redis.
    pub fn refers(&self, command: &[Vec<u8>], asking: bool) -> Option<String> {
        let view = &self.view;
        if view.owners.borrow().is_empty() {
            return None;
        }
        let keys = keys(command);
        let first = keys.first()?;
        let at = slot(first);
        assert!(
            keys.iter().all(|key| slot(key) == at),
            "keys of several slots: {command:?}"
        );
        if view.alone.get() {
            return Some("CLUSTERDOWN The cluster is down".to_owned());
        }
        let absent = || keys.iter().filter(|key| !self.redis.has(key)).count();
        let apart = || {
            let apart = "TRYAGAIN Multiple keys request during rehashing of slot";
            self.sim.keeps(Rule::Together).then(|| apart.to_owned())
        };
        let owner = view.owner(at)?;
        if owner == self.number {
            let (_, to) = view.leaving.get().filter(|(leaving, _)| *leaving == at)?;
            return match absent() {
                0 => None,
                all if all == keys.len() => self
                    .sim
                    .keeps(Rule::Ask)
                    .then(|| format!("ASK {at} redis-{to}:6379")),
                _ => apart(),
            };
        }
        if asking && view.arriving.get() == Some(at) {
            let several = keys.iter().any(|key| key != first);
            return (several && absent() > 0).then(apart)?;
        }
        self.sim
            .keeps(Rule::Moved)
            .then(|| format!("MOVED {at} redis-{owner}:6379"))
    }

    /// Waits until it is up.
    async fn ready(&self) {
        let mut health = self.health.subscribe();
        let _ = health.wait_for(|health| *health == Health::Up).await;
    }
}

impl Servers {
    fn pause(&self, below_ms: u64) -> impl Future<Output = ()> {
        sleep(Duration::from_millis(self.sim.chance.below(below_ms)))
    }

    /// A slot moves to another node, one key after the other.
    pub async fn move_slot(&self, slot: u16) {
        if self.changing.replace(true) {
            return;
        }
        let parts = self.epochs.len();
        let node = |part: usize| self.pair(part % parts)[0];
        let has = |part: &usize| node(*part).view.owner(slot) == Some(node(*part).number);
        let part = (0..parts).find(has).unwrap();
        let (from, to) = (
            node(part),
            node(part + 1 + self.sim.chance.index(parts - 1)),
        );
        to.view.arriving.set(Some(slot));
        self.pause(3).await;
        from.view.leaving.set(Some((slot, to.number)));
        let patience_ms = if self.sim.chance.percent(30) { 500 } else { 5 };
        loop {
            self.pause(patience_ms).await;
            from.ready().await;
            to.ready().await;
            let Some(key) = from
                .redis
                .keys()
                .into_iter()
                .find(|key| redis_link::slot(key) == slot)
            else {
                break;
            };
            from.set_time();
            to.set_time();
            if self.sim.keeps(Rule::Migrated) {
                to.redis.take_key(&from.redis, &key);
            } else {
                from.redis
                    .send(&[b"DEL".as_slice(), key.as_slice()])
                    .unwrap();
            }
        }
        self.spread(
            to,
            |_| true,
            |view| {
                view.owners.borrow_mut()[usize::from(slot)] = to.number;
                view.arriving.set(None);
                view.leaving.set(None);
            },
        )
        .await;
        self.changing.set(false);
    }

    /// A node sends what has changed, and those that it reaches take it over, one after the other.
    async fn spread(
        &self,
        from: &Server,
        reaches: impl Fn(&Server) -> bool,
        learn: impl Fn(&View),
    ) {
        learn(&from.view);
        let first = self.sim.chance.index(self.redis.len());
        let others = self.redis.iter().cycle().skip(first).take(self.redis.len());
        for node in others.filter(|node| node.number != from.number && reaches(node)) {
            self.pause(40).await;
            learn(&node.view);
        }
    }

    /// A replica takes the place of its primary: as an operator says, and nothing is lost; or because that has died; or
    /// because most others have not reached it for a while, in which limiters still may. Such a one stops answering
    /// at about the time at which it is replaced, and becomes a replica once it reaches the others. Returns until
    /// when the old one may have charged what is lost.
    pub async fn replace_node(&self, part: usize, lasts_ms: u64) -> u64 {
        let [old, new] = self.pair(part);
        let (chance, mut until_ms) = (&self.sim.chance, self.sim.now_ms());
        let how = chance.below(3);
        if how == 0 {
            old.set_health(Health::Paused);
        } else {
            let begun = sleep(Duration::from_millis(500 + chance.below(1_000)));
            if how == 1 {
                old.view.alone.set(true);
                old.set_health(Health::Down);
                old.cut();
                begun.await;
            } else {
                begun.await;
                old.view.alone.set(self.sim.keeps(Rule::Minority));
                until_ms = self.sim.now_ms();
            }
            self.pause(500).await;
        }
        self.epochs[part].set(self.epochs[part].get() + 1);
        let learn = |view: &View| {
            for owner in view
                .owners
                .borrow_mut()
                .iter_mut()
                .filter(|owner| **owner == old.number)
            {
                *owner = new.number;
            }
        };
        self.spread(new, |node| how == 0 || node.number != old.number, learn)
            .await;
        if how > 0 {
            sleep(Duration::from_millis(lasts_ms)).await;
            learn(&old.view);
            old.view.alone.set(false);
        }
        old.set_health(Health::Up);
        until_ms
    }
}
