//! A Lua 5.1 interpreter over as much of Redis as the stores and the scripts use. No I/O, no clock: time is set.

#![expect(
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "only tests use it"
)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Mutex,
};

use mlua::{FromLuaMulti, Function, Lua, LuaString, Table, Value, Variadic, chunk::ChunkMode};

pub use mlua;

/// A server's data, and what runs scripts over it.
pub struct LuaRedis {
    lua: Lua,
    fake: Table,
    run: Function,
    command: Function,
    set_time: Function,
    time: Cell<[u64; 2]>,
    published: Rc<RefCell<Vec<[String; 2]>>>,
}

impl Default for LuaRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl LuaRedis {
    /// An empty server.
    pub fn new() -> Self {
        let lua = Lua::new();
        lua.globals().set("struct", packing(&lua)).unwrap();
        let sha1hex = lua.create_function(|_, text: LuaString| {
            Ok(sha1_smol::Sha1::from(&*text.as_bytes())
                .digest()
                .to_string())
        });
        lua.globals().set("sha1hex", sha1hex.unwrap()).unwrap();
        let published = Rc::<RefCell<Vec<_>>>::default();
        let messages = Rc::clone(&published);
        let publish = lua.create_function(move |_, (channel, text): (String, String)| {
            messages.borrow_mut().push([channel, text]);
            Ok(())
        });
        lua.globals().set("publish", publish.unwrap()).unwrap();
        let fake = compiled(&lua, include_str!("fake_redis.lua"), "fake_redis");
        let fake: Table = fake.call(()).unwrap();
        Self {
            lua,
            run: fake.get("run").unwrap(),
            command: fake.get("command").unwrap(),
            set_time: fake.get("set_time").unwrap(),
            fake,
            time: Cell::default(),
            published,
        }
    }

    /// Compiles a script.
    pub fn load(&self, source: &str, name: &str) -> Function {
        // Only servers know the first line of scripts with flags.
        let source = match source.strip_prefix("#!lua") {
            Some(rest) => format!("--{rest}"),
            None => source.to_owned(),
        };
        compiled(&self.lua, &source, name)
    }

    /// A function of the fake server.
    pub fn function(&self, name: &str) -> Function {
        self.fake.get(name).unwrap()
    }

    /// Runs a script, which has to answer with whole numbers or a text.
    pub fn eval<R: FromLuaMulti>(
        &self,
        script: &Function,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> R {
        let (keys, args) = (self.texts(keys), self.texts(args));
        let eval = self.function("eval");
        eval.call((script.clone(), keys, args)).unwrap()
    }

    /// Runs a script.
    ///
    /// # Errors
    /// If the script ends with one.
    pub fn run(
        &self,
        script: &Function,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> mlua::Result<Value> {
        let (keys, args) = (self.texts(keys), self.texts(args));
        self.run.call((script, keys, args))
    }

    /// Replaces all data by a copy of another server's.
    pub fn take_over(&self, other: &Self) {
        let data = other.function("copy").call(()).unwrap();
        let data = self.copied(&data);
        self.function("restore").call::<()>(data).unwrap();
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let names: Vec<LuaString> = self.function("names").call(()).unwrap();
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    /// Whether there is such a key.
    pub fn has(&self, key: &[u8]) -> bool {
        let found = self.send(&[b"EXISTS", key]).unwrap();
        found.as_integer() == Some(1)
    }

    /// Takes a key from another server, with the time that it has left.
    pub fn take_key(&self, other: &Self, key: &[u8]) {
        let name = |of: &Self| of.lua.create_string(key).unwrap();
        let entry: Value = other.function("take").call(name(other)).unwrap();
        if !entry.is_nil() {
            let entry = self.copied(&entry);
            let put = self.function("put");
            put.call::<()>((name(self), entry)).unwrap();
        }
    }

    /// A value of another interpreter, in this one.
    fn copied(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                Value::String(self.lua.create_string(&*text.as_bytes()).unwrap())
            }
            Value::Table(table) => {
                let copy = self.lua.create_table().unwrap();
                for pair in table.pairs::<Value, Value>() {
                    let (key, item) = pair.unwrap();
                    copy.raw_set(self.copied(&key), self.copied(&item)).unwrap();
                }
                Value::Table(copy)
            }
            other => other.clone(),
        }
    }

    fn texts(&self, texts: &[impl AsRef<[u8]>]) -> Vec<LuaString> {
        let text = |text: &_| self.lua.create_string(AsRef::<[u8]>::as_ref(text)).unwrap();
        texts.iter().map(text).collect()
    }

    /// Runs one command of bytes, as a client's.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn send(&self, words: &[impl AsRef<[u8]>]) -> mlua::Result<Value> {
        let words = Variadic::from_iter(self.texts(words));
        self.command.call(words)
    }

    /// Runs one command, as another client would.
    pub fn command<R: FromLuaMulti>(&self, words: &[&str]) -> R {
        let call = self.function("call");
        let words: Variadic<_> = words.iter().map(ToString::to_string).collect();
        call.call(words).unwrap()
    }

    /// Runs one command of bytes; its reply as a list, empty for nil.
    pub fn bytes(&self, words: &[&[u8]]) -> Vec<Vec<u8>> {
        let reply = self.send(words).unwrap();
        let text = |value: &Value| value.to_string().map(String::into_bytes);
        match &reply {
            Value::String(text) => vec![text.as_bytes().to_vec()],
            Value::Table(items) => { items.sequence_values::<Value>() }
                .map(|item| match item.unwrap() {
                    Value::String(text) => text.as_bytes().to_vec(),
                    other => text(&other).unwrap(),
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The type of what a key holds, as the servers name it.
    pub fn type_of(&self, key: &str) -> String {
        self.function("type_of").call(key).unwrap()
    }

    /// How many writes there have been.
    pub fn writes(&self) -> u64 {
        self.function("writes").call(()).unwrap()
    }

    /// How many commands there have been, writes included.
    pub fn calls(&self) -> u64 {
        self.function("calls").call(()).unwrap()
    }

    /// How many members of sorted sets ranges have had.
    pub fn ranged_items(&self) -> u64 {
        self.function("ranged_items").call(()).unwrap()
    }

    /// The time to live of a key in milliseconds, -2 if it does not exist.
    pub fn ttl(&self, key: &str) -> i64 {
        self.function("ttl").call(key).unwrap()
    }

    /// Sets the server's TIME.
    pub fn set_time(&self, seconds: u64, micros: u64) {
        if self.time.replace([seconds, micros]) != [seconds, micros] {
            let time = (seconds.to_string(), micros.to_string());
            self.set_time.call::<()>(time).unwrap();
        }
    }

    /// What was published since the last call: channels and texts.
    pub fn take_published(&self) -> Vec<[String; 2]> {
        self.published.take()
    }
}

/// What was compiled, by its source.
static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Compiles a script, or loads it as it was compiled for another interpreter.
fn compiled(lua: &Lua, source: &str, name: &str) -> Function {
    let mut known = COMPILED.lock().unwrap();
    if let Some(bytes) = known.get(source) {
        let loaded = lua.load(bytes.as_slice()).set_mode(ChunkMode::Binary);
        return loaded.into_function().unwrap();
    }
    let function = lua.load(source).set_name(name).into_function().unwrap();
    known.insert(source.to_owned(), function.dump(false));
    function
}

/// What the scripts use of the servers' `struct`: doubles, whole numbers and texts, little-endian.
fn packing(lua: &Lua) -> Table {
    let packing = lua.create_table().unwrap();
    let size = |_: &Lua, kind: LuaString| Ok(if kind == "l" { 8 } else { 0 });
    let functions = [
        ("pack", lua.create_function(pack)),
        ("unpack", lua.create_function(unpack)),
        ("size", lua.create_function(size)),
    ];
    for (name, function) in functions {
        packing.set(name, function.unwrap()).unwrap();
    }
    packing
}

/// The kinds and sizes of what a format names.
fn items(format: &LuaString) -> Vec<(char, usize)> {
    let format = format.to_str().unwrap();
    let mut items: Vec<(char, usize)> = Vec::new();
    for next in format.strip_prefix('<').unwrap().chars() {
        match (next.to_digit(10), items.last_mut()) {
            (Some(digit), Some((_, size))) => *size = *size * 10 + digit as usize,
            _ => items.push((next, 0)),
        }
    }
    items
}

fn pack(lua: &Lua, (format, values): (LuaString, Variadic<Value>)) -> mlua::Result<LuaString> {
    let (items, mut bytes) = (items(&format), Vec::new());
    assert_eq!(items.len(), values.len());
    for ((kind, size), value) in items.into_iter().zip(values) {
        let number = || lua.coerce_number(value.clone()).unwrap().unwrap();
        match kind {
            'd' => bytes.extend(number().to_le_bytes()),
            'I' => {
                let number = number();
                let whole: u32 = number.to_string().parse().unwrap();
                let all = whole.to_le_bytes();
                let (kept, cut) = all.split_at(size);
                assert!(cut.iter().all(|byte| *byte == 0), "{number}");
                bytes.extend(kept);
            }
            'c' => {
                let text = value.as_string().unwrap().as_bytes();
                assert_eq!(text.len(), size);
                bytes.extend(&*text);
            }
            _ => panic!("{kind}"),
        }
    }
    lua.create_string(bytes)
}

fn unpack(
    lua: &Lua,
    (format, text, from): (LuaString, LuaString, Option<usize>),
) -> mlua::Result<Variadic<Value>> {
    let mut at = from.unwrap_or(1) - 1;
    let bytes = text.as_bytes();
    let mut read = Vec::new();
    for (kind, size) in items(&format) {
        let size = if kind == 'd' { 8 } else { size };
        let of = &bytes[at..at + size];
        at += size;
        let mut wide = [0; 8];
        read.push(match kind {
            'c' => Value::String(lua.create_string(of)?),
            'd' => Value::Number(f64::from_le_bytes(of.try_into().unwrap())),
            'I' => {
                wide[..size].copy_from_slice(of);
                Value::Number(f64::from(u32::try_from(u64::from_le_bytes(wide)).unwrap()))
            }
            _ => panic!("{kind}"),
        });
    }
    read.push(Value::Number(f64::from(u32::try_from(at + 1).unwrap())));
    Ok(Variadic::from_iter(read))
}
