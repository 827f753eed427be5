//! The shipped scripts in an interpreter.

use std::ops::Deref;

use lua_redis::{
    LuaRedis as Interpreter,
    mlua::{Function, LuaString},
};
use store::{
    script::{
        Charge, Clock, Credit, Credited, Refunded, ScriptCall, ScriptCheck, ScriptReply, decode,
        decode_credited, decode_refunds, encode, encode_credit, encode_refunds,
    },
    scripts::{CHECK, CREDIT, REFUND},
};

use super::Scripts;

/// An interpreter with the scripts loaded and an empty store.
pub struct LuaRedis {
    redis: Interpreter,
    check: Function,
    credit: Function,
    refund: Function,
}

impl Deref for LuaRedis {
    type Target = Interpreter;

    fn deref(&self) -> &Interpreter {
        &self.redis
    }
}

impl LuaRedis {
    pub fn new() -> Self {
        Self::with_refund(&REFUND.source)
    }

    /// With another refund script.
    pub fn with_refund(source: &str) -> Self {
        let redis = Interpreter::new();
        Self {
            check: redis.load(&CHECK.source, "check.lua"),
            refund: redis.load(source, "refund.lua"),
            credit: redis.load(&CREDIT.source, "credit.lua"),
            redis,
        }
    }
}

impl Scripts for LuaRedis {
    fn batch(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        let checks: Vec<_> = checks.iter().collect();
        let call = encode(&checks, clock);
        let reply: LuaString = self.eval(&self.check, &call.keys, &[call.packed()]);
        decode(&reply.as_bytes(), &checks).unwrap()
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
