//! Requests to a server: which slot of a Cluster they belong to, and how a server gets a script that
//! it lacks.

use std::collections::BTreeMap;

use redis::{Arg, Cmd, Pipeline, ToRedisArgs, Value};

use crate::{
    Error,
    connection::{Connection, Deadline},
};

/// A Lua script, which a server stores and is called by its digest.
#[derive(Debug)]
pub struct Script {
    /// The Lua source.
    pub source: String,
    /// The digest for EVALSHA, in lower-case hexadecimal.
    pub sha1: String,
}

impl Script {
    /// The script of this source.
    pub fn new(source: String) -> Self {
        Self {
            sha1: sha1_smol::Sha1::from(&source).digest().to_string(),
            source,
        }
    }
}

/// A command of these words.
pub fn cmd(words: impl ToRedisArgs) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

/// The answer to one request.
pub type Outcome = Result<Value, Error>;

/// One command whose keys are all in one slot.
#[derive(Clone)]
pub struct Request {
    command: Cmd,
    /// The script that the command calls.
    script: Option<&'static Script>,
}

/// A plain command; its first argument is its key, if it has one.
impl From<Cmd> for Request {
    fn from(command: Cmd) -> Self {
        Self {
            command,
            script: None,
        }
    }
}

impl Request {
    /// A call of a script.
    pub fn call(
        script: &'static Script,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> Self {
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), 0);
        command.arg("EVALSHA").arg(&script.sha1).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        for arg in args {
            command.arg(arg);
        }
        Self {
            command,
            script: Some(script),
        }
    }

    /// The same, with the script's source: for one that is called rarely.
    pub fn eval(
        script: &'static Script,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> Self {
        let call = Self::call(script, keys, args);
        Self {
            command: call.with_source(script),
            ..call
        }
    }

    /// The slot of its first key.
    pub fn slot(&self) -> u16 {
        let key = if self.script.is_some() { 3 } else { 1 };
        match self.command.args_iter().nth(key) {
            Some(Arg::Simple(key)) => slot(key),
            _ => 0,
        }
    }

    /// The same call with the script's source, for a server that does not have it.
    fn with_source(&self, script: &Script) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&script.source);
        for arg in self.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    /// The script that the reply reports as missing.
    fn missing(&self, answer: &Outcome) -> Option<&'static Script> {
        self.script.filter(|_| is_refused(answer, "NOSCRIPT"))
    }
}

/// Whether the server refused, with this code.
pub fn is_refused(answer: &Outcome, code: &str) -> bool {
    matches!(answer, Err(Error::Refused(refusal)) if refusal.code == code)
}

/// Sends requests together; one answer each. With `asking`, ASKING precedes each request, for a
/// node of a Cluster that is importing its slot.
///
/// A server without a script answers NOSCRIPT, and has done nothing: these calls, and only
/// these, are sent once more, with the source. Nothing else is ever sent twice.
pub(crate) async fn send(
    link: &Connection,
    requests: &[&Request],
    asking: bool,
    deadline: Deadline,
) -> Vec<Outcome> {
    let commands = requests.iter().map(|request| request.command.clone());
    let mut answers = exchange(link, Vec::new(), commands.collect(), asking, deadline).await;
    let missing: Vec<_> = requests
        .iter()
        .zip(&answers)
        .enumerate()
        .filter_map(|(i, (request, answer))| Some((i, *request, request.missing(answer)?)))
        .collect();
    if missing.is_empty() {
        return answers;
    }
    // SCRIPT LOAD keeps the script where EVAL's copy may be evicted; EVAL runs even if somebody
    // flushes the scripts between the two.
    let scripts: BTreeMap<&str, &Script> = missing
        .iter()
        .map(|(_, _, script)| (script.sha1.as_str(), *script))
        .collect();
    let load = |script: &&Script| {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&script.source);
        load
    };
    let loads = scripts.values().map(load).collect();
    let calls = missing
        .iter()
        .map(|(_, call, script)| call.with_source(script));
    let again = exchange(link, loads, calls.collect(), asking, deadline).await;
    for ((i, ..), answer) in missing.into_iter().zip(again) {
        if let Some(first) = answers.get_mut(i) {
            *first = answer;
        }
    }
    answers
}

/// One round trip; the answers to `commands`.
async fn exchange(
    link: &Connection,
    first: Vec<Cmd>,
    commands: Vec<Cmd>,
    asking: bool,
    deadline: Deadline,
) -> Vec<Outcome> {
    let (skip, step) = (first.len(), if asking { 2 } else { 1 });
    let count = commands.len();
    let mut pipeline = Pipeline::with_capacity(skip + step * count);
    for command in first {
        pipeline.add_command(command);
    }
    for command in commands {
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command);
    }
    match link.run(&pipeline, deadline).await {
        Ok(replies) => {
            let wanted = replies.into_iter().skip(skip + step - 1).step_by(step);
            wanted.map(|reply| reply.map_err(Error::from)).collect()
        }
        Err(error) => vec![Err(error); count],
    }
}

/// Which of a Cluster's 16384 slots a key lives in: CRC-16/XMODEM of its hash tag, or of the whole key
/// if it has none.
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % 16384
}

/// The text between the first `{` and the next `}`, unless it is empty.
fn tag(key: &[u8]) -> &[u8] {
    let mut parts = key.splitn(2, |b| *b == b'{');
    let (_, Some(after)) = (parts.next(), parts.next()) else {
        return key;
    };
    match after.iter().position(|b| *b == b'}') {
        None | Some(0) => key,
        Some(end) => after.get(..end).unwrap_or(key),
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{}{bar}"), {
            // An empty tag does not count: the whole key is hashed.
            let whole = slot(b"foo{}{bar}");
            assert_ne!(whole, slot(b"bar"));
            whole
        });
    }
}
