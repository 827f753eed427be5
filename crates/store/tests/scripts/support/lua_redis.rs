//! The shipped scripts in a Lua 5.1 interpreter over an in-memory Redis.

use super::Scripts;
use mlua::{Function, Lua, LuaString, Table, Variadic};
use store::{
    script::{
        Charge, Clock, Credit, Credited, Refunded, ScriptCall, ScriptCheck, ScriptReply, decode,
        decode_credited, decode_refunds, encode, encode_credit, encode_refunds,
    },
    scripts::{CHECK, CREDIT, REFUND},
};

/// A Lua interpreter with the script loaded and an empty store.
pub struct LuaRedis {
    lua: Lua,
    fake: Table,
    check: Function,
    credit: Function,
    refund: Function,
}

impl LuaRedis {
    pub fn new() -> Self {
        Self::with_refund(&REFUND.source)
    }

    /// With another refund script.
    pub fn with_refund(source: &str) -> Self {
        let lua = Lua::new();
        lua.globals().set("struct", packing(&lua)).unwrap();
        let fake: Table = lua
            .load(include_str!("fake_redis.lua"))
            .set_name("fake_redis")
            .eval()
            .unwrap();
        let script = |source: &str, name| {
            let loaded = lua.load(source).set_name(name).into_function();
            loaded.unwrap()
        };
        let check = script(&CHECK.source, "check.lua");
        let refund = script(source, "refund.lua");
        let credit = script(&CREDIT.source, "credit.lua");
        Self {
            lua,
            fake,
            check,
            credit,
            refund,
        }
    }

    fn eval<R: mlua::FromLuaMulti>(
        &self,
        script: &Function,
        keys: &[&[u8]],
        args: &[Vec<u8>],
    ) -> R {
        let text = |bytes: &[u8]| self.lua.create_string(bytes).unwrap();
        let keys: Vec<_> = keys.iter().map(|key| text(key)).collect();
        let args: Vec<_> = args.iter().map(|arg| text(arg)).collect();
        let eval: Function = self.fake.get("eval").unwrap();
        eval.call((script.clone(), keys, args)).unwrap()
    }

    /// Runs one command, as another client would.
    pub fn command<R: mlua::FromLuaMulti>(&self, words: &[&str]) -> R {
        let call: Function = self.fake.get("call").unwrap();
        let words: Variadic<_> = words.iter().map(ToString::to_string).collect();
        call.call(words).unwrap()
    }

    /// Runs one command of bytes; its reply as a list, empty for nil.
    pub fn bytes(&self, words: &[&[u8]]) -> Vec<Vec<u8>> {
        let call: Function = self.fake.get("call").unwrap();
        let words = words
            .iter()
            .map(|word| self.lua.create_string(word).unwrap());
        let reply: mlua::Value = call.call(words.collect::<Variadic<_>>()).unwrap();
        let text = |value: &mlua::Value| value.to_string().map(String::into_bytes);
        match &reply {
            mlua::Value::String(text) => vec![text.as_bytes().to_vec()],
            mlua::Value::Table(items) => { items.sequence_values::<mlua::Value>() }
                .map(|item| match item.unwrap() {
                    mlua::Value::String(text) => text.as_bytes().to_vec(),
                    other => text(&other).unwrap(),
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The type of what a key holds, as the servers name it.
    pub fn type_of(&self, key: &str) -> String {
        let type_of: Function = self.fake.get("type_of").unwrap();
        type_of.call(key).unwrap()
    }

    /// How many writes there have been.
    pub fn writes(&self) -> u64 {
        self.count("writes")
    }

    /// How many commands there have been, writes included.
    pub fn calls(&self) -> u64 {
        self.count("calls")
    }

    fn count(&self, of: &str) -> u64 {
        let count: Function = self.fake.get(of).unwrap();
        count.call(()).unwrap()
    }

    /// The time to live of a key in milliseconds, -2 if it does not exist.
    pub fn ttl(&self, key: &str) -> i64 {
        self.fake.get::<Function>("ttl").unwrap().call(key).unwrap()
    }

    /// Sets the server's TIME.
    pub fn set_time(&self, seconds: u64, micros: u64) {
        let set: Function = self.fake.get("set_time").unwrap();
        set.call::<()>((seconds.to_string(), micros.to_string()))
            .unwrap();
    }
}

impl Scripts for LuaRedis {
    fn batch(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        let call = encode(checks, clock);
        let reply: LuaString = self.eval(&self.check, &call.keys, &[call.packed()]);
        decode(&reply.as_bytes(), checks).unwrap()
    }

    fn refund_all(&mut self, charges: &[Charge<'_>], clock: Clock) -> Vec<Refunded> {
        let call = encode_refunds(charges, clock);
        let reply: Vec<i64> = self.eval(&self.refund, &call.keys, &digits(&call));
        decode_refunds(&reply, charges.len()).unwrap()
    }

    fn credit_by(&mut self, credit: &Credit<'_>, clock: Clock) -> Credited {
        let call = encode_credit(credit, clock);
        let reply: Vec<i64> = self.eval(&self.credit, &call.keys, &digits(&call));
        decode_credited(&reply).unwrap()
    }
}

fn digits(call: &ScriptCall<'_>) -> Vec<Vec<u8>> {
    let digits = |number: &i64| number.to_string().into_bytes();
    call.args.iter().map(digits).collect()
}

/// What the scripts use of the servers' `struct`: doubles and whole numbers, little-endian.
fn packing(lua: &Lua) -> Table {
    let packing = lua.create_table().unwrap();
    // The sizes of a format's numbers; `None` is a double.
    let sizes = |format: &LuaString| {
        let format = format.to_str().unwrap();
        let mut kinds = format.strip_prefix('<').unwrap().chars();
        let mut sizes = Vec::new();
        while let Some(kind) = kinds.next() {
            sizes.push(match kind {
                'd' => None,
                'I' => kinds
                    .next()
                    .and_then(|size| usize::try_from(size.to_digit(10)?).ok()),
                other => panic!("{other}"),
            });
        }
        sizes
    };
    let pack = move |lua: &Lua, (format, numbers): (LuaString, Variadic<f64>)| {
        let (sizes, mut bytes) = (sizes(&format), Vec::new());
        assert_eq!(sizes.len(), numbers.len());
        for (size, number) in sizes.iter().zip(numbers) {
            match size {
                None => bytes.extend(number.to_le_bytes()),
                Some(size) => {
                    let whole: u32 = number.to_string().parse().unwrap();
                    let all = whole.to_le_bytes();
                    let (kept, cut) = all.split_at(*size);
                    assert!(cut.iter().all(|byte| *byte == 0), "{number}");
                    bytes.extend(kept);
                }
            }
        }
        lua.create_string(bytes)
    };
    let unpack = move |_: &Lua, (format, text, from): (LuaString, LuaString, Option<usize>)| {
        let mut at = from.unwrap_or(1) - 1;
        let bytes = text.as_bytes();
        let mut read = Vec::new();
        for size in sizes(&format) {
            let length = size.unwrap_or(8);
            let mut wide = [0; 8];
            wide[..length].copy_from_slice(&bytes[at..at + length]);
            at += length;
            read.push(match size {
                None => f64::from_le_bytes(wide),
                Some(_) => f64::from(u32::try_from(u64::from_le_bytes(wide)).unwrap()),
            });
        }
        read.push(f64::from(u32::try_from(at + 1).unwrap()));
        Ok(Variadic::from_iter(read))
    };
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
