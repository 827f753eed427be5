//! A real server, spoken to in as much RESP2 as the scripts need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::Scripts;
use harness::{Engine, Redis, free_port};
use redis_link::Script;
use store::{
    script::{
        Charge, Clock, Credit, Credited, Refunded, ScriptCheck, ScriptReply, decode,
        decode_credited, decode_refunds, encode, encode_credit, encode_refunds,
    },
    scripts::{CHECK, CREDIT, REFUND},
};
use tempfile::TempDir;

/// A server of its own, and a connection to it with the script loaded.
pub struct Server {
    stream: BufReader<TcpStream>,
    _redis: Redis,
    _dir: TempDir,
}

/// A RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(String),
    /// Not text.
    Bytes(Vec<u8>),
    Error(String),
    List(Vec<Reply>),
}

impl Server {
    pub fn start(engine: Engine) -> Self {
        let (dir, port) = (TempDir::new().unwrap(), free_port().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let program = engine.program().unwrap();
        let redis = runtime.block_on(Redis::start(&program, port, dir.path()));
        let redis = redis.unwrap();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut server = Self {
            stream: BufReader::new(stream),
            _redis: redis,
            _dir: dir,
        };
        for script in [&CHECK, &REFUND, &CREDIT] {
            let loaded = server.command(&[b"SCRIPT", b"LOAD", script.source.as_bytes()]);
            assert_eq!(
                loaded,
                Reply::Text(script.sha1.clone()),
                "the digest names it"
            );
        }
        server
    }

    /// Runs a batch that may fail.
    pub fn call(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> Reply {
        let checks: Vec<_> = checks.iter().collect();
        let call = encode(&checks, clock);
        self.evalsha(&CHECK, &call.keys, vec![call.packed()])
    }

    fn evalsha(&mut self, script: &Script, keys: &[&[u8]], args: Vec<Vec<u8>>) -> Reply {
        let mut words = vec![b"EVALSHA".to_vec(), script.sha1.clone().into_bytes()];
        words.push(digits(&keys.len()));
        words.extend(keys.iter().map(|key| key.to_vec()));
        words.extend(args);
        let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
        self.command(&words)
    }

    /// Runs one command; errors of the server are shown and kept.
    pub fn command(&mut self, words: &[&[u8]]) -> Reply {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend(*word);
            request.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).unwrap();
        let reply = self.read();
        if let Reply::Error(message) = &reply {
            eprintln!("the server says: {message}");
        }
        reply
    }

    fn read(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(rest.parse().unwrap()),
            "$" | "*" if rest == "-1" => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).map_or_else(|e| Reply::Bytes(e.into_bytes()), Reply::Text)
            }
            "*" => Reply::List(
                (0..rest.parse::<usize>().unwrap())
                    .map(|_| self.read())
                    .collect(),
            ),
            _ => unreachable!("not RESP2: {line:?}"),
        }
    }
}

impl Scripts for Server {
    fn batch(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        let reply = self.call(checks, clock);
        let checks: Vec<_> = checks.iter().collect();
        match reply {
            Reply::Bytes(reply) => decode(&reply, &checks).unwrap(),
            Reply::Text(reply) => decode(reply.as_bytes(), &checks).unwrap(),
            reply => unreachable!("the script failed: {reply:?}"),
        }
    }

    fn refund_all(&mut self, charges: &[Charge<'_>], clock: Clock) -> Vec<Refunded> {
        let call = encode_refunds(charges, clock);
        let reply = self.evalsha(&REFUND, &call.keys, call.args.iter().map(digits).collect());
        decode_refunds(&integers(&reply), charges.len()).unwrap()
    }

    fn credit_by(&mut self, credit: &Credit<'_>, clock: Clock) -> Credited {
        let call = encode_credit(credit, clock);
        let reply = self.evalsha(&CREDIT, &call.keys, call.args.iter().map(digits).collect());
        decode_credited(&integers(&reply)).unwrap()
    }
}

fn integers(reply: &Reply) -> Vec<i64> {
    let Reply::List(items) = reply else {
        unreachable!("the script failed: {reply:?}")
    };
    let integer = |item: &Reply| match item {
        Reply::Int(int) => *int,
        other => unreachable!("not an integer: {other:?}"),
    };
    items.iter().map(integer).collect()
}

fn digits(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}
