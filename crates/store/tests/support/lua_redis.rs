//! The shipped scripts in a Lua 5.1 interpreter over an in-memory Redis.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop with the reason"
)]

use mlua::{Function, Lua, Table};
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

    /// With another way to take charges back.
    pub fn with_refund(source: &str) -> Self {
        let lua = Lua::new();
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

    /// Runs a batch as the server would.
    pub fn batch(&self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        decode(&self.eval(&self.check, &encode(checks, clock)), checks).unwrap()
    }

    /// Takes charges back.
    pub fn refund(&self, charges: &[Charge<'_>], clock: Clock) -> Vec<Refunded> {
        let reply = self.eval(&self.refund, &encode_refunds(charges, clock));
        decode_refunds(&reply, charges.len()).unwrap()
    }

    fn eval(&self, script: &Function, call: &ScriptCall<'_>) -> Vec<i64> {
        let keys: Vec<_> = call
            .keys
            .iter()
            .map(|key| self.lua.create_string(key).unwrap())
            .collect();
        let args: Vec<_> = call.args.iter().map(ToString::to_string).collect();
        let eval: Function = self.fake.get("eval").unwrap();
        eval.call((script.clone(), keys, args)).unwrap()
    }

    /// Gives units back.
    pub fn credit(&self, credit: &Credit<'_>, clock: Clock) -> Credited {
        let reply = self.eval(&self.credit, &encode_credit(credit, clock));
        decode_credited(&reply).unwrap()
    }

    /// Runs one command, as another client would.
    pub fn command<R: mlua::FromLuaMulti>(&self, words: &[&str]) -> R {
        let call: Function = self.fake.get("call").unwrap();
        let words: mlua::Variadic<_> = words.iter().map(ToString::to_string).collect();
        call.call(words).unwrap()
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
