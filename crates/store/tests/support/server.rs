//! A real server, spoken to in as much RESP2 as the scripts need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use store::script::{CHECK, Clock, ScriptCheck, ScriptReply, decode, encode};

/// Where a real server is: `redis://HOST:PORT[/DB]`.
const URL: &str = "RL_TEST_REDIS_URL";

/// A connection to a real server, with the script loaded.
pub struct Server {
    stream: BufReader<TcpStream>,
}

/// A RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

impl Server {
    /// Connects to the server named by the environment; `None`, loudly, if none is.
    pub fn from_env() -> Option<Self> {
        let Ok(url) = std::env::var(URL) else {
            eprintln!("SKIPPED: no real server; set {URL}=redis://127.0.0.1:6379");
            return None;
        };
        let address = url.trim_start_matches("redis://");
        let (address, database) = address.split_once('/').unwrap_or((address, "0"));
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut server = Self {
            stream: BufReader::new(stream),
        };
        server.command(&[b"SELECT", database.as_bytes()]);
        let loaded = server.command(&[b"SCRIPT", b"LOAD", CHECK.source.as_bytes()]);
        assert_eq!(
            loaded,
            Reply::Text(CHECK.sha1.clone()),
            "the digest names the script"
        );
        Some(server)
    }

    /// Runs a batch.
    pub fn batch(&mut self, checks: &[ScriptCheck<'_>], clock: Clock) -> ScriptReply {
        let call = encode(checks, clock);
        let mut words = vec![
            b"EVALSHA".to_vec(),
            CHECK.sha1.clone().into_bytes(),
            number(&call.keys.len()),
        ];
        words.extend(call.keys.iter().map(|key| key.to_vec()));
        words.extend(call.args.iter().map(number));
        let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
        let Reply::List(reply) = self.command(&words) else {
            unreachable!("the script failed")
        };
        let integers: Vec<_> = reply
            .iter()
            .map(|item| match item {
                Reply::Int(int) => *int,
                other => unreachable!("not an integer: {other:?}"),
            })
            .collect();
        decode(&integers, checks).unwrap()
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
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
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

fn number(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}
