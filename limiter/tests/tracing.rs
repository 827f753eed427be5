//! Traces: what a collector receives of checks, and that the collector affects no check.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, ExitStatus},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context, Result};
use harness::{Client, Process, free_port};
use rustix::process::Signal;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A limiter that sends traces to a collector.
struct Running {
    process: Process,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Running {
    async fn start(variables: &[(&str, &str)]) -> Result<Self> {
        let dir = tempfile::TempDir::new()?;
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, "domain: shop\nlimits: [{name: all, rate: 1/1d}]\n")?;
        let [port, admin] = [free_port()?, free_port()?];
        let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
        command
            .args(["--listen", &format!("127.0.0.1:{port}"), "--drain", "1ms"])
            .args(["--admin", &format!("127.0.0.1:{admin}"), "--limits"])
            .arg(limits)
            .env("NO_PROXY", "127.0.0.1")
            .envs(variables.iter().copied());
        let mut process = Process::start("limiter", &mut command, dir.path())?;
        let ready = Client::new().get(&format!("http://127.0.0.1:{admin}/readyz"));
        process
            .ready(async || {
                let page = ready.send().await.ok()?;
                page.status.is_success().then_some(())
            })
            .await?;
        Ok(Self {
            process,
            port,
            _dir: dir,
        })
    }

    async fn check(&self, body: &str) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/v1/check", self.port);
        let request = Client::new().post(&url, body.to_owned());
        let request = request.header("traceparent", CALLER);
        request.header("tracestate", "shop=7").send().await?.json()
    }

    /// The log lines of the exporter.
    fn complaints(&self) -> usize {
        let log = self.process.log();
        let of_exporter = |line: &&str| line.contains("\"target\":\"opentelemetry");
        log.lines().filter(of_exporter).count()
    }

    async fn ended(&mut self) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.ended().await
    }
}

/// Answers one export, and gives its path and body.
fn export(mut stream: TcpStream) -> Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut path, mut length) = (String::new(), 0);
    reader.read_line(&mut path)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    stream.write_all(format!("{head}content-length: 2\r\n\r\n{{}}").as_bytes())?;
    Ok((path, body))
}

/// The paths and bodies that a collector receives.
type Exports = mpsc::Receiver<(String, Vec<u8>)>;

/// A collector: its URL, and what it is sent.
fn collector() -> Result<(String, Exports)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let (sent, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Ok(export) = export(stream)
                && sent.send(export).is_err()
            {
                break;
            }
        }
    });
    Ok((url, received))
}

/// An attribute of a span, whatever its type.
fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    let all = span.get("attributes")?.as_array()?;
    let found = all.iter().find(|one| one["key"] == key)?;
    found.get("value")?.as_object()?.values().next()
}

#[tokio::test]
async fn a_check_continues_the_trace_of_its_caller() -> Result<()> {
    let (url, exports) = collector()?;
    let mut limiter = Running::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        // So that nothing is sent before the end.
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ])
    .await?;
    let two = r#"{"domain":"shop","checks":[{"descriptor":{}},{"descriptor":{}}]}"#;
    limiter.check(two).await?;
    limiter
        .check(r#"{"domain":"shap","descriptor":{}}"#)
        .await?;
    assert_eq!(limiter.ended().await?.code(), Some(0));

    let (path, body) = exports.recv_timeout(PATIENCE)?;
    assert!(path.starts_with("POST /v1/traces "), "{path}");
    let body: Value = serde_json::from_slice(&body)?;
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array();
    let spans = spans.context("spans")?;
    let named = |name: &str| -> Vec<&Value> {
        let spans = spans.iter();
        spans.filter(|span| span["name"] == name).collect()
    };
    for span in spans {
        assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span["traceState"], "shop=7");
    }
    let [check, unknown] = named("check")[..] else {
        panic!("{body}");
    };
    let [store] = named("store")[..] else {
        panic!("{body}");
    };
    assert_eq!(check["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(store["parentSpanId"], check["spanId"]);
    let of_check = |key| attribute(check, key).map(|v| v.to_string().replace('"', ""));
    for (key, value) in [
        ("limiter.domain", "shop"),
        ("limiter.checks", "2"),
        ("limiter.allowed", "1"),
        ("limiter.denied", "1"),
        ("limiter.failed", "0"),
    ] {
        assert_eq!(of_check(key).as_deref(), Some(value), "{key}: {body}");
    }
    let error = attribute(unknown, "error.type").context("an error")?;
    assert_eq!(error, "unknown_domain");
    Ok(())
}

#[tokio::test]
async fn traces_are_exported_as_protobuf_by_default() -> Result<()> {
    let (url, exports) = collector()?;
    let mut limiter = Running::start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await?;
    limiter
        .check(r#"{"domain":"shop","descriptor":{}}"#)
        .await?;
    assert_eq!(limiter.ended().await?.code(), Some(0));
    let (_, body) = exports.recv_timeout(PATIENCE)?;
    assert!(serde_json::from_slice::<Value>(&body).is_err());
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    assert!(body.windows(16).any(|part| part == trace));
    Ok(())
}

#[tokio::test]
async fn a_hanging_or_unreachable_collector_does_not_affect_checks() -> Result<()> {
    // The kernel accepts the connections, and nobody reads from them.
    let hangs = TcpListener::bind("127.0.0.1:0")?;
    let away = free_port()?;
    for port in [hangs.local_addr()?.port(), away] {
        let mut limiter = Running::start(&[
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                &format!("http://127.0.0.1:{port}"),
            ),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "2"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1"),
        ])
        .await?;
        for at in 0..32 {
            let answer = limiter
                .check(r#"{"domain":"shop","descriptor":{}}"#)
                .await?;
            assert_eq!(answer["allowed"], at == 0, "{answer}");
        }
        assert_eq!(limiter.ended().await?.code(), Some(0));
        // The limiter logs one line for all lost batches.
        assert_eq!(limiter.complaints(), 1);
    }
    Ok(())
}

#[test]
fn an_invalid_collector_endpoint_is_reported_at_startup() -> Result<()> {
    for (url, why) in [
        ("https://collector:4318", "plain http"),
        ("collector", "invalid"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_limiter"))
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            .output()?;
        let text = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("OTEL_EXPORTER_OTLP_") && text.contains(why),
            "{text}"
        );
    }
    Ok(())
}
