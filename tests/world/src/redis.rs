//! A model of a Redis server: the shipped scripts over data in memory, behind the bytes of its protocol, with the
//! faults of a server and of the network to it; and of the sentinels that name one of two. What the nodes of a
//! Cluster do besides is in `cluster.rs`.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Write as _,
    io,
    rc::{Rc, Weak},
};

use futures_util::future::{BoxFuture, join3};
use lua_redis::{
    LuaRedis,
    mlua::{self, Function, Value},
};
use store::{Network, StoreUrl, Stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
    sync::{mpsc, oneshot, watch},
    task::spawn_local,
    time::{Duration, Instant, sleep, sleep_until},
};

use crate::{
    cluster::View,
    mutations::Rule,
    sim::{Part, Sim},
};

/// A connection attempt on its way to a server.
pub struct Dial {
    from: usize,
    host: String,
    stream: DuplexStream,
    accepted: oneshot::Sender<bool>,
}

/// The network as one limiter, or an operator, uses it.
#[derive(Debug)]
pub struct Wire {
    pub from: usize,
    pub dials: mpsc::UnboundedSender<Dial>,
}

impl Network for Wire {
    fn connect(&self, host: &str, _: u16) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (ours, stream) = duplex(1 << 20);
        let (accepted, is_accepted) = oneshot::channel();
        let dial = Dial {
            from: self.from,
            host: host.to_owned(),
            stream,
            accepted,
        };
        let _ = self.dials.send(dial);
        Box::pin(async move {
            match is_accepted.await {
                Ok(true) => Ok(Box::new(ours) as Box<dyn Stream>),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }
}

/// How a server takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Up,
    /// It does nothing, and goes on later with all that it received.
    Paused,
    Down,
}

/// What a server has after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    All,
    /// What it had at the last [`Server::save`].
    Saved,
    Nothing,
}

/// Bytes for a client, and when they are sent.
type Replies = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

/// One server.
pub struct Server {
    pub sim: Rc<Sim>,
    pub number: usize,
    all: Weak<Servers>,
    pub redis: LuaRedis,
    scripts: RefCell<BTreeMap<String, Function>>,
    saved: RefCell<Value>,
    /// How far its clock is ahead, in milliseconds.
    pub ahead_ms: Cell<i64>,
    pub health: watch::Sender<Health>,
    /// Each number cuts the connections that were made before.
    cuts: watch::Sender<u64>,
    /// Whether it answers nothing but BUSY, as during a script that does not end.
    pub busy: Cell<bool>,
    subscribers: RefCell<Vec<Replies>>,
    pub executed: Cell<u64>,
    /// Of a sentinel: the primary that it names, and the epoch, which is how often that changed.
    names: Cell<usize>,
    /// Of a node of a Cluster: what it knows of the others.
    pub view: View,
}

/// Where sentinels publish another primary.
const SWITCH: &str = "+switch-master";
/// What a replica answers to writes.
const READONLY: &str = "READONLY You can't write against a read only replica.";
/// The most by which the clocks of a Cluster's nodes differ, in milliseconds.
pub const SKEW_MS: u64 = 200;

/// What the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Alone,
    /// A primary and its replica, and three sentinels.
    Sentinel,
    /// Three primaries, each with a replica.
    Cluster,
}

impl Layout {
    pub fn url(self) -> StoreUrl {
        let url = match self {
            Self::Alone => "redis://redis-0",
            Self::Sentinel => "redis-sentinel://sentinel-0,sentinel-1,sentinel-2/shop",
            Self::Cluster => "redis-cluster://redis-0,redis-2,redis-5",
        };
        url.parse().unwrap()
    }
}

/// The servers of a store.
pub struct Servers {
    pub sim: Rc<Sim>,
    /// One after the other, those that have the same data.
    pub redis: Vec<Rc<Server>>,
    sentinels: Vec<Rc<Server>>,
    /// Of each part of the data, how often there was another primary.
    pub epochs: Vec<Cell<usize>>,
    /// Whether primaries or slots change.
    pub changing: Cell<bool>,
}

impl Servers {
    pub fn new(sim: &Rc<Sim>, layout: Layout) -> Rc<Self> {
        let (parts, copies, sentinels) = match layout {
            Layout::Alone => (1, 1, 0),
            Layout::Sentinel => (1, 2, 3),
            Layout::Cluster => (3, 2, 0),
        };
        Rc::new_cyclic(|all| {
            let some = |count| (0..count).map(move |number| Server::new(sim, number, all.clone()));
            let redis: Vec<_> = some(parts * copies).collect();
            if layout == Layout::Cluster {
                for node in &redis {
                    let ahead = i64::try_from(sim.chance.below(SKEW_MS)).unwrap();
                    node.ahead_ms.set(ahead);
                    node.view.begin(parts, copies);
                }
            }
            Self {
                sim: Rc::clone(sim),
                redis,
                sentinels: some(sentinels).collect(),
                epochs: vec![Cell::new(0); parts],
                changing: Cell::new(false),
            }
        })
    }

    /// The server that has a part of the data, and the one that would take its place.
    pub fn pair(&self, part: usize) -> [&Rc<Server>; 2] {
        let (epoch, copies) = (
            self.epochs[part].get(),
            self.redis.len() / self.epochs.len(),
        );
        [epoch, epoch + 1].map(|nth| &self.redis[part * copies + nth % copies])
    }

    /// Some primary.
    pub fn primary(&self) -> Rc<Server> {
        let part = self.sim.chance.index(self.epochs.len());
        Rc::clone(self.pair(part)[0])
    }

    pub fn executed(&self) -> u64 {
        self.redis.iter().map(|redis| redis.executed.get()).sum()
    }

    /// All clocks step forward.
    pub fn step_clocks(&self, ms: i64) {
        for server in &self.redis {
            server.ahead_ms.set(server.ahead_ms.get() + ms);
        }
    }

    /// How far the slowest and the fastest clock are ahead, in milliseconds.
    pub fn ahead_ms(&self) -> [u64; 2] {
        let ahead = || {
            self.redis
                .iter()
                .map(|server| server.ahead_ms.get().unsigned_abs())
        };
        [ahead().min().unwrap(), ahead().max().unwrap()]
    }

    /// Takes connection attempts for ever.
    pub async fn listen(self: Rc<Self>, mut dials: mpsc::UnboundedReceiver<Dial>) {
        while let Some(dial) = dials.recv().await {
            let (kind, number) = dial.host.split_once('-').unwrap();
            let of = if kind == "redis" {
                &self.redis
            } else {
                &self.sentinels
            };
            let server = Rc::clone(&of[number.parse::<usize>().unwrap()]);
            spawn_local(server.accept(dial));
        }
    }

    /// Another primary, of data as far as the replica has them. Returns until when limiters that are not disturbed
    /// otherwise may use the old one; `None`: there is no other, or this happens already.
    pub async fn fail_over(&self, lasts_ms: u64) -> Option<u64> {
        if self.redis.len() < 2 || self.changing.replace(true) {
            return None;
        }
        let part = self.sim.chance.index(self.epochs.len());
        let [old, new] = self.pair(part);
        if self.sim.keeps(Rule::Replica) {
            new.redis.take_over(&old.redis);
        }
        let until_ms = if self.sentinels.is_empty() {
            self.replace_node(part, lasts_ms).await
        } else {
            new.ahead_ms.set(old.ahead_ms.get());
            self.replace_named(lasts_ms).await
        };
        self.changing.set(false);
        Some(until_ms)
    }

    /// What the old primary does, the new one never gets. After a while the sentinels name the new one, one after the
    /// other, the last of them perhaps late. The old one goes on as before, until a sentinel demotes it.
    async fn replace_named(&self, lasts_ms: u64) -> u64 {
        let [old, new] = self.pair(0);
        sleep(Duration::from_millis(self.sim.chance.below(1_500))).await;
        let epoch = self.epochs[0].get() + 1;
        self.epochs[0].set(epoch);
        new.refuse(None);
        let mut named_ms = 0;
        let late = self.sim.chance.index(3);
        for of in 1..=3 {
            if of == 3 && self.sim.chance.percent(50) {
                sleep(Duration::from_millis(lasts_ms)).await;
            }
            let sentinel = &self.sentinels[(late + of) % 3];
            if self.sim.keeps(Rule::Sentinels) {
                sentinel.names.set(epoch);
                sentinel.tell(SWITCH, "shop");
            }
            if of == 2 {
                named_ms = self.sim.now_ms();
            }
            sleep(Duration::from_millis(self.sim.chance.below(100))).await;
        }
        let lived_ms = self.sim.now_ms() - named_ms;
        sleep(Duration::from_millis(lasts_ms.saturating_sub(lived_ms))).await;
        old.refuse(Some(READONLY));
        old.cut();
        named_ms + 500
    }
}

impl Server {
    fn new(sim: &Rc<Sim>, number: usize, all: Weak<Servers>) -> Rc<Self> {
        let redis = LuaRedis::new();
        redis.function("expire").call::<()>(()).unwrap();
        Rc::new(Self {
            sim: Rc::clone(sim),
            number,
            all,
            redis,
            scripts: RefCell::default(),
            saved: RefCell::new(Value::Nil),
            ahead_ms: Cell::new(0),
            health: watch::Sender::new(Health::Up),
            cuts: watch::Sender::new(0),
            busy: Cell::new(false),
            subscribers: RefCell::default(),
            executed: Cell::new(0),
            names: Cell::new(0),
            view: View::default(),
        })
    }

    async fn accept(self: Rc<Self>, dial: Dial) {
        self.sim.reaches(&[Part::Store(dial.from)]).await;
        let mut health = self.health.subscribe();
        let _ = health.wait_for(|health| *health != Health::Paused).await;
        let up = *health.borrow() == Health::Up;
        if dial.accepted.send(up).is_ok() && up {
            self.serve(dial.stream, dial.from).await;
        }
    }

    pub fn set_health(&self, health: Health) {
        self.health.send_replace(health);
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.subscribers.borrow_mut().clear();
    }

    /// Saves all data, as to a file.
    pub fn save(&self) {
        let data: Value = self.redis.function("copy").call(()).unwrap();
        self.saved.replace(data);
    }

    /// Begins a new process.
    pub fn restart(&self, kept: Kept) {
        self.cut();
        self.scripts.borrow_mut().clear();
        let restore = self.redis.function("restore");
        match kept {
            Kept::All => Ok(()),
            Kept::Saved => restore.call(self.saved.borrow().clone()),
            Kept::Nothing => restore.call(()),
        }
        .unwrap();
        self.health.send_replace(Health::Up);
    }

    /// Refuses writes with an error, or no longer.
    pub fn refuse(&self, error: Option<&str>) {
        self.redis.function("refuse").call::<()>(error).unwrap();
    }

    /// Evicts the keys in which the Lua pattern is found.
    pub fn evict(&self, pattern: &str) -> u64 {
        self.redis.function("evict").call(pattern).unwrap()
    }

    async fn serve(self: Rc<Self>, stream: DuplexStream, from: usize) {
        let mut cuts = self.cuts.subscribe();
        let (mut read, mut write) = split(stream);
        let (commands, mut arrived) = mpsc::unbounded_channel();
        let (replies, mut sent) = mpsc::unbounded_channel();
        let sim = &self.sim;
        let reader = async move {
            let (mut bytes, mut at) = (Vec::new(), Instant::now());
            while let Ok(1..) = read.read_buf(&mut bytes).await {
                while let Some(command) = take_command(&mut bytes) {
                    at = at.max(Instant::now() + sim.hop());
                    let _ = commands.send((at, command));
                }
            }
        };
        let server = Rc::clone(&self);
        let executor = async move {
            let mut health = server.health.subscribe();
            let (mut last, mut asking) = (Instant::now(), false);
            while let Some((at, command)) = arrived.recv().await {
                sleep_until(at).await;
                server.sim.reaches(&[Part::Store(from)]).await;
                let _ = health.wait_for(|health| *health == Health::Up).await;
                let reply = server.execute(&command, &mut asking, &replies);
                last = last.max(Instant::now() + server.sim.hop());
                let _ = replies.send((last, reply));
            }
        };
        let writer = async move {
            while let Some((at, reply)) = sent.recv().await {
                sleep_until(at).await;
                sim.reaches(&[Part::Store(from)]).await;
                let _ = write.write_all(&reply).await;
            }
        };
        tokio::select! {
            biased;
            _ = cuts.changed() => {}
            _ = join3(reader, executor, writer) => {}
        }
    }

    /// Tells the data what time it is.
    pub fn set_time(&self) {
        let now_ms = self.sim.epoch_ms();
        let now_ms = now_ms.saturating_add_signed(self.ahead_ms.get());
        self.redis.set_time(now_ms / 1000, now_ms % 1000 * 1000);
    }

    fn execute(&self, command: &[Vec<u8>], asking: &mut bool, replies: &Replies) -> Vec<u8> {
        self.executed.set(self.executed.get() + 1);
        self.set_time();
        let word = |at: usize| command.get(at).map(|word| String::from_utf8_lossy(word));
        let name = word(0).unwrap_or_default().to_uppercase();
        let mut reply = Vec::new();
        if self.busy.get() {
            return b"-BUSY Redis is busy running a script.\r\n".to_vec();
        }
        if let Some(error) = self.refers(command, std::mem::take(asking)) {
            return format!("-{error}\r\n").into_bytes();
        }
        match (name.as_str(), word(1).as_deref()) {
            ("PING", _) => reply.extend(b"+PONG\r\n"),
            ("CLIENT" | "AUTH" | "SELECT" | "ASKING", _) => {
                *asking = name == "ASKING";
                reply.extend(b"+OK\r\n");
            }
            ("CLUSTER", Some("SLOTS")) => reply = self.view.slots(),
            ("SCRIPT", Some("EXISTS")) => {
                let known = self.scripts.borrow();
                let found = (2..command.len()).map(|at| {
                    i64::from(word(at).is_some_and(|sha1| known.contains_key(sha1.as_ref())))
                });
                let found: Vec<Value> = found.map(Value::Integer).collect();
                reply.extend(format!("*{}\r\n", found.len()).bytes());
                for value in &found {
                    encode(value, &mut reply);
                }
            }
            ("SCRIPT", Some("LOAD")) => {
                let sha1 = self.load(&command[2]);
                reply.extend(format!("+{sha1}\r\n").bytes());
            }
            ("EVAL", _) => {
                let sha1 = self.load(&command[1]);
                self.run(&sha1, command, &mut reply);
            }
            ("EVALSHA", Some(sha1)) => self.run(sha1, command, &mut reply),
            ("SUBSCRIBE", Some(channel)) => {
                self.subscribers.borrow_mut().push(replies.clone());
                reply.extend(texts(&["subscribe", channel]));
                reply[1] = b'3';
                reply.extend(b":1\r\n");
            }
            ("SENTINEL", Some(what)) => {
                let epoch = self.names.get();
                let words = match what {
                    "MASTER" => ["config-epoch".to_owned(), epoch.to_string()],
                    _ => [format!("redis-{}", epoch % 2), "6379".to_owned()],
                };
                reply.extend(texts(&words));
            }
            ("INFO" | "CONFIG" | "HELLO" | "DBSIZE", _) => reply.extend(b"-ERR not here\r\n"),
            _ => respond(self.redis.send(command), &mut reply),
        }
        self.publish();
        reply
    }

    fn load(&self, source: &[u8]) -> String {
        let sha1 = sha1_smol::Sha1::from(source).digest().to_string();
        let mut scripts = self.scripts.borrow_mut();
        if !scripts.contains_key(&sha1) {
            let source = self.sim.mutated(std::str::from_utf8(source).unwrap());
            scripts.insert(sha1.clone(), self.redis.load(&source, &sha1));
        }
        sha1
    }

    fn run(&self, sha1: &str, command: &[Vec<u8>], reply: &mut Vec<u8>) {
        let script = self.scripts.borrow().get(sha1).cloned();
        let Some(script) = script else {
            reply.extend(b"-NOSCRIPT No matching script.\r\n");
            return;
        };
        let keys: usize = String::from_utf8_lossy(&command[2]).parse().unwrap();
        let (keys, args) = command[3..].split_at(keys);
        respond(self.redis.run(&script, keys, args), reply);
    }

    /// Sends what was published.
    fn publish(&self) {
        for [channel, text] in self.redis.take_published() {
            // Of a Cluster, each node sends it to all.
            let all = self.all.upgrade();
            for server in all.iter().flat_map(|all| &all.redis) {
                server.tell(&channel, &text);
            }
        }
    }

    fn tell(&self, channel: &str, text: &str) {
        let bytes = texts(&["message", channel, text]);
        for subscriber in self.subscribers.borrow().iter() {
            let _ = subscriber.send((Instant::now() + Duration::from_millis(1), bytes.clone()));
        }
    }
}

/// A list of texts, as the server would write it.
fn texts(words: &[impl AsRef<str>]) -> Vec<u8> {
    let mut reply = format!("*{}\r\n", words.len());
    for word in words.iter().map(AsRef::as_ref) {
        write!(reply, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
    reply.into_bytes()
}

/// Takes the first whole command from what was received.
fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let number = |bytes: &[u8], at: &mut usize| -> Option<usize> {
        let rest = bytes.get(*at..)?;
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let text = std::str::from_utf8(rest.get(1..end)?).unwrap();
        *at += end + 2;
        Some(text.parse().unwrap())
    };
    let words = number(bytes, &mut at)?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let length = number(bytes, &mut at)?;
        command.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    if at > bytes.len() {
        return None;
    }
    bytes.drain(..at);
    Some(command)
}

fn respond(result: mlua::Result<Value>, reply: &mut Vec<u8>) {
    match result {
        Ok(value) => encode(&value, reply),
        Err(error) => {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or_default();
            let text = text.trim_start_matches("runtime error: ");
            let codes = ["OOM ", "READONLY ", "WRONGTYPE ", "MISCONF "];
            // Anything else is a fault of the model or of a script.
            assert!(codes.iter().any(|code| text.starts_with(code)), "{error}");
            reply.extend(format!("-{text}\r\n").bytes());
        }
    }
}

/// Writes a value as the server would.
fn encode(value: &Value, reply: &mut Vec<u8>) {
    match value {
        Value::Nil | Value::Boolean(false) => reply.extend(b"$-1\r\n"),
        Value::Boolean(true) => reply.extend(b":1\r\n"),
        Value::Integer(number) => reply.extend(format!(":{number}\r\n").bytes()),
        Value::Number(number) => reply.extend(format!(":{number:.0}\r\n").bytes()),
        Value::String(text) => {
            let text = text.as_bytes();
            reply.extend(format!("${}\r\n", text.len()).bytes());
            reply.extend(text.iter());
            reply.extend(b"\r\n");
        }
        Value::Table(table) => {
            let lists = table.raw_len() > 0;
            let field = |name| table.get::<Option<String>>(name).unwrap();
            let field = |name| (!lists).then(|| field(name)).flatten();
            if let Some(error) = field("err") {
                reply.extend(format!("-{error}\r\n").bytes());
            } else if let Some(ok) = field("ok") {
                reply.extend(format!("+{ok}\r\n").bytes());
            } else {
                let table = table.clone();
                let items = table.sequence_values::<Value>();
                let items: Vec<Value> = items.map(Result::unwrap).collect();
                reply.extend(format!("*{}\r\n", items.len()).bytes());
                for item in &items {
                    encode(item, reply);
                }
            }
        }
        other => panic!("{other:?} is no reply"),
    }
}
