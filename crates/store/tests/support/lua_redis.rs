//! The shipped scripts in a Lua 5.1 interpreter over an in-memory Redis.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop with the reason"
)]

use mlua::{Function, Lua, Table};
use store::script::{
    CHECK, CREDIT, Clock, Credit, Credited, ScriptCheck, ScriptReply, decode, decode_credited,
    encode, encode_credit,
};

/// A Lua interpreter with the script loaded and an empty store.
pub struct LuaRedis {
    lua: Lua,
    fake: Table,
    check: Function,
    credit: Function,
}

impl LuaRedis {
    pub fn new() -> Self {
        let lua = Lua::new();
        let fake: Table = lua
            .load(include_str!("fake_redis.lua"))
            .set_name("fake_redis")
            .eval()
            .unwrap();
        let check = lua
            .load(CHECK.source.as_str())
            .set_name("check.lua")
            .into_function()
            .unwrap();
        let credit = lua
            .load(CREDIT.source.as_str())
            .set_name("credit.lua")
            .into_function()
            .unwrap();
        Self {
            lua,
            fake,
            check,
            credit,
        }
    }

    /// Runs a batch as the server would.
    pub fn batch(&self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        let call = encode(checks, clock);
        let keys: Vec<_> = call
            .keys
            .iter()
            .map(|key| self.lua.create_string(key).unwrap())
            .collect();
        let args: Vec<_> = call.args.iter().map(ToString::to_string).collect();
        let eval: Function = self.fake.get("eval").unwrap();
        let reply: Vec<i64> = eval.call((self.check.clone(), keys, args)).unwrap();
        decode(&reply, checks).unwrap()
    }

    /// Gives units back.
    pub fn credit(&self, credit: &Credit<'_>, clock: Clock) -> Credited {
        let call = encode_credit(credit, clock);
        let keys = call.keys.iter().map(|key| self.lua.create_string(key));
        let keys: Vec<_> = keys.map(Result::unwrap).collect();
        let args: Vec<_> = call.args.iter().map(ToString::to_string).collect();
        let eval: Function = self.fake.get("eval").unwrap();
        let reply: Vec<i64> = eval.call((self.credit.clone(), keys, args)).unwrap();
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
        self.fake
            .get::<Function>("writes")
            .unwrap()
            .call(())
            .unwrap()
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
