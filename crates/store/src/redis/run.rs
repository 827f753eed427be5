//! Commands and scripts over a link.

use redis::{Cmd, Pipeline, Value};

use super::{
    RedisStore,
    link::{Deadline, Link},
    reply::Reply,
};
use crate::{StoreError, script::Script};

/// One call of a script.
pub(crate) struct Call<K, A> {
    pub(crate) keys: Vec<K>,
    pub(crate) args: Vec<A>,
}

impl RedisStore {
    /// Runs commands that concern limits or listings; each has to succeed.
    pub(super) async fn control(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.control_each(commands)
            .await?
            .into_iter()
            .map(|reply| reply.map_err(StoreError::from))
            .collect()
    }

    /// As [`RedisStore::control`], for commands of which each may be refused by itself.
    pub(super) async fn control_each(&self, commands: &Pipeline) -> Result<Vec<Reply>, StoreError> {
        let deadline = Deadline::within(self.options.control_timeout);
        self.control.run(commands, deadline).await
    }
}

/// Runs calls of one script, pipelined; one reply each.
///
/// A server without the script answers NOSCRIPT, and has done nothing: these calls, and only
/// these, are sent once more, with the source. Nothing else is ever sent twice.
pub(crate) async fn scripts<K, A>(
    link: &Link,
    script: &Script,
    calls: &[Call<K, A>],
    deadline: Deadline,
) -> Result<Vec<Reply>, StoreError>
where
    K: redis::ToRedisArgs,
    A: redis::ToRedisArgs,
{
    let mut pipeline = Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(command("EVALSHA", &script.sha1, call));
    }
    let mut replies = link.run(&pipeline, deadline).await?;
    let missing: Vec<usize> = replies
        .iter()
        .enumerate()
        .filter(|(_, reply)| matches!(reply, Err(refusal) if refusal.code == "NOSCRIPT"))
        .map(|(i, _)| i)
        .collect();
    if missing.is_empty() {
        return Ok(replies);
    }
    // SCRIPT LOAD keeps the script where EVAL's copy may be evicted; EVAL runs even if somebody
    // flushes the scripts between the two.
    let mut again = Pipeline::with_capacity(missing.len() + 1);
    again.cmd("SCRIPT").arg("LOAD").arg(&script.source);
    for call in missing.iter().filter_map(|i| calls.get(*i)) {
        again.add_command(command("EVAL", &script.source, call));
    }
    let answers = link.run(&again, deadline).await?;
    for (i, answer) in missing.into_iter().zip(answers.into_iter().skip(1)) {
        if let Some(reply) = replies.get_mut(i) {
            *reply = answer;
        }
    }
    Ok(replies)
}

fn command<K, A>(eval: &str, script: &str, call: &Call<K, A>) -> Cmd
where
    K: redis::ToRedisArgs,
    A: redis::ToRedisArgs,
{
    let mut command = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), 0);
    command.arg(eval).arg(script).arg(call.keys.len());
    for key in &call.keys {
        command.arg(key);
    }
    for arg in &call.args {
        command.arg(arg);
    }
    command
}
