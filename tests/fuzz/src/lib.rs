//! Every reader of bytes that strangers send, or that another program writes: one function each, which
//! ends on any bytes without a panic, and checks what must hold of what it has read.
//!
//! `cargo xtask fuzz` gives them to a fuzzer (`bin/fuzz.rs`); the tests give them the corpora, with
//! random changes. What the limiter reads as gRPC messages is decoded by `prost`; what it makes of them is
//! tested where it does (`limiter/tests`).

mod corpus;
mod proxy;
mod pump;

use std::sync::{Arc, atomic::AtomicBool};

use access_log::{Format, Layout, Log, Logs};
use documents::Node;
use filter_core::Config;
use migration::{File, Options, System};
use patterns::Pattern;
use policy::{Compiled, Descriptor, Name};
use protocol::{
    ApiError, StreamAnswer, StreamCall,
    compact::{Batch, BatchAnswer, Report},
    json,
};

pub use corpus::{mutate, of, write};
pub use pump::{Growth, grow};

/// A reader, by the name of its corpus.
#[derive(Clone, Copy)]
pub struct Reader {
    /// The name.
    pub name: &'static str,
    /// Reads some bytes.
    pub read: fn(&[u8]),
}

/// All readers.
pub const READERS: [Reader; 24] = [
    Reader::new("batch", batch),
    Reader::new("answer", answer),
    Reader::new("report", report),
    Reader::new("stream", stream),
    Reader::new("check-json", check_json),
    Reader::new("error-json", error_json),
    Reader::new("snapshot", snapshot),
    Reader::new("changes", proxy::changes),
    Reader::new("limits", limits),
    Reader::new("record", record),
    Reader::new("json", document),
    Reader::new("filter-config", filter_config),
    Reader::new("pattern", pattern),
    Reader::new("path", path),
    Reader::new("envoy-ratelimit", envoy_ratelimit),
    Reader::new("limitador", limitador),
    Reader::new("spring", spring),
    Reader::new("kubernetes", kubernetes),
    Reader::new("access-log", access_log),
    Reader::new("store-url", store_url),
    Reader::new("request", proxy::request),
    Reader::new("request-body", proxy::request_body),
    Reader::new("response", proxy::response),
    Reader::new("call-answer", proxy::call_answer),
];

impl Reader {
    const fn new(name: &'static str, read: fn(&[u8])) -> Self {
        Self { name, read }
    }

    /// The reader of this name.
    pub fn named(name: &str) -> Option<Self> {
        READERS.into_iter().find(|reader| reader.name == name)
    }
}

// --- What limiters and proxies send each other. What was read is written as it was meant.

fn batch(bytes: &[u8]) {
    if let Ok(batch) = Batch::decode(bytes) {
        assert_eq!(Batch::decode(&batch.encode()).as_ref(), Ok(&batch));
    }
}

fn answer(bytes: &[u8]) {
    if let Ok(answer) = BatchAnswer::decode(bytes) {
        assert_eq!(BatchAnswer::decode(&answer.encode()).as_ref(), Ok(&answer));
    }
}

fn report(bytes: &[u8]) {
    if let Ok(report) = Report::decode(bytes) {
        assert_eq!(Report::decode(&report.encode()).as_ref(), Ok(&report));
    }
}

fn stream(bytes: &[u8]) {
    if let Some(call) = StreamCall::decode(bytes) {
        assert_eq!(call.encode(), bytes);
    }
    if let Some(answer) = StreamAnswer::decode(bytes) {
        assert_eq!(answer.encode(), bytes);
    }
    let text = String::from_utf8_lossy(bytes);
    protocol::parse_proxies(&text).for_each(drop);
}

fn check_json(bytes: &[u8]) {
    drop(json::parse(bytes));
    drop(json::parse_slots(bytes, true));
    drop(json::parse_slots(bytes, false));
    drop(json::parse_settle(bytes));
}

fn error_json(bytes: &[u8]) {
    drop(ApiError::from_json(bytes));
}

fn snapshot(bytes: &[u8]) {
    let Ok(compiled) = Compiled::from_snapshot(bytes) else {
        return;
    };
    // Any value may come to any pattern.
    let value = bytes.get(..64).unwrap_or(bytes);
    let mut entries = Descriptor::new();
    for key in compiled.needed_keys() {
        entries.insert(key.clone(), value);
    }
    drop(compiled.matching(&entries, 1_763_000_000_000));
    compiled.exemption(&entries);
}

// --- What people and other programs write.

fn limits(bytes: &[u8]) {
    match limits_file::read("limits.yaml", bytes) {
        Ok(policy) => {
            let record = json_of(&limits_file::ToNode::to_node(&policy));
            assert_eq!(policy_in(&record), Some(policy));
        }
        Err(problems) => assert!(problems.to_string().starts_with("error: ")),
    }
}

fn record(bytes: &[u8]) {
    drop(policy_in(bytes));
}

fn policy_in(json: &[u8]) -> Option<policy::Policy> {
    limits_file::policy_from_node(&Node::from_json(json).ok()?).ok()
}

fn document(bytes: &[u8]) {
    if let Ok(node) = Node::from_json(bytes) {
        // Fractions are written as text, which their readers take too.
        let written = json_of(&node);
        let again = Node::from_json(&written).ok();
        assert_eq!(again.map(|again| json_of(&again)), Some(written));
    }
}

fn json_of(node: &Node) -> Vec<u8> {
    serde_json::to_vec(node).unwrap_or_else(|error| unreachable!("{error}"))
}

fn filter_config(bytes: &[u8]) {
    if let Err(problems) = Config::from_json(bytes) {
        drop(problems.to_string());
    }
}

/// A pattern, and below it a value.
fn pattern(bytes: &[u8]) {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let text = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let Ok(pattern) = Pattern::parse(&text) else {
        return;
    };
    let value = lines.next().unwrap_or_default();
    let found = pattern.finds(value);
    let mut writer = cbor::Writer::default();
    pattern.write(&mut writer);
    let read = Pattern::read(&mut cbor::Reader::new(&writer.0));
    let read = read.map(|read| read.finds(value));
    assert_eq!(read, Ok(found), "compiled, it finds the same");
}

fn path(bytes: &[u8]) {
    let normal = normalize::path(bytes).into_owned();
    assert_eq!(normalize::path(&normal).as_ref(), normal, "a normal form");
}

fn envoy_ratelimit(bytes: &[u8]) {
    convert(System::EnvoyRatelimit, bytes);
}

fn limitador(bytes: &[u8]) {
    convert(System::Limitador, bytes);
}

fn spring(bytes: &[u8]) {
    convert(System::Spring, bytes);
}

fn kubernetes(bytes: &[u8]) {
    convert(System::Kubernetes, bytes);
}

fn convert(system: System, bytes: &[u8]) {
    let options = Options {
        domain: Some(name("shop")),
        ..Options::default()
    };
    let name = "file.yaml";
    match migration::convert(system, &[File { name, bytes }], &options) {
        Ok(conversion) => drop(conversion.lost()),
        Err(problems) => drop(problems.iter().map(ToString::to_string).count()),
    }
}

fn access_log(bytes: &[u8]) {
    let needed = ["method", "path", "host", "remote_address"];
    let needed = needed
        .into_iter()
        .chain(["remote_address.whole", "route", "user"]);
    let needed: Vec<Name> = needed.map(name).collect();
    let formats = [Format::Json, Format::Envoy, Format::Combined];
    for format in std::iter::once(None).chain(formats.map(Some)) {
        let layout = Layout {
            format,
            needed: needed.clone(),
            ..Layout::default()
        };
        let log = Log::once("access.log", std::io::Cursor::new(bytes.to_vec()));
        let Ok(mut logs) = Logs::new(vec![log], layout, Arc::new(AtomicBool::new(false))) else {
            continue;
        };
        while let Ok(Some(_)) = logs.next_request() {}
    }
}

#[expect(clippy::unwrap_used, reason = "they are names")]
fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn store_url(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = text.parse::<redis_link::Server>() {
        drop(error.to_string());
    }
}
