//! Logs that real services wrote under load, replayed: Envoy, NGINX, and a service that writes JSON lines.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Bytes, Client, Nginx, Random, serve};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::stage::{Stage, at_once, eventually, limits, statuses};

// --- Services that write logs.

/// Envoy's default text, and the same as JSON with the user.
fn logs(manager: &mut Value) {
    let stdout = |format: Option<Value>| {
        let kind = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";
        let mut config = json!({"@type": kind});
        if let Some(format) = format {
            config["log_format"] = json!({"json_format": format});
        }
        json!({"name": "stdout", "typed_config": config})
    };
    let fields = json!({
        "start_time": "%START_TIME%", "method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "authority": "%REQ(:AUTHORITY)%", "response_code": "%RESPONSE_CODE%", "duration": "%DURATION%",
        "bytes_sent": "%BYTES_SENT%", "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
        "headers": {"x-user-id": "%REQ(X-USER-ID)%"},
    });
    manager["access_log"] = json!([stdout(None), stdout(Some(fields))]);
}

/// The lines that Envoy wrote about requests for `/api/` and `/static`, as text and as JSON. Others are about
/// those by which the harness sees that Envoy is there.
async fn written_by_envoy(stage: &Stage, requests: usize) -> [Vec<String>; 2] {
    eventually("Envoy has written all lines", async || {
        let log = stage.envoy().process().log();
        let of = |paths: [&str; 2]| -> Vec<String> {
            let ours = |line: &&str| paths.iter().any(|path| line.contains(path));
            log.lines().filter(ours).map(ToOwned::to_owned).collect()
        };
        let text = of(["\"GET /api/", "\"GET /static"]);
        let json = of(["\"path\":\"/api/", "\"path\":\"/static"]);
        (text.len() == requests && json.len() == requests).then_some([text, json])
    })
    .await
}

/// An NGINX that writes the combined format and JSON.
async fn nginx() -> Nginx {
    let logs = r#"
        log_format lines escape=json '{"msec":"$msec","request_time":"$request_time",'
            '"request_method":"$request_method","request_uri":"$request_uri",'
            '"host":"$host","remote_addr":"$remote_addr","status":"$status",'
            '"body_bytes_sent":"$body_bytes_sent","user":"$remote_user"}';
        access_log combined.log combined;
        access_log lines.log lines;"#;
    let locations = "location / { return 200 \"ok\"; }";
    Nginx::start("stderr", logs, locations).await.unwrap()
}

/// The lines of NGINX about requests for `/api/`, in one of its formats.
fn written_by_nginx(nginx: &Nginx, log: &str) -> Vec<String> {
    let log = nginx.log(log).unwrap();
    let ours = |line: &&str| line.contains("/api/");
    log.lines().filter(ours).map(ToOwned::to_owned).collect()
}

/// A service that writes a JSON line about each request, with names of its own.
struct Service {
    _tasks: JoinSet<()>,
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&lines);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, move |request| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let user = request.headers().get("x-user-id").unwrap();
            let line = json!({
                "ts": now.as_secs_f64(), "verb": request.method().as_str(), "url": request.uri().to_string(),
                "claims": {"user": user.to_str().unwrap()}, "took": 0, "code": 200,
            });
            theirs.lock().unwrap().push(line.to_string());
            async { hyper::Response::new(Full::new(Bytes::from_static(b"ok"))) }
        }));
        Self {
            _tasks: tasks,
            port,
            lines,
        }
    }

    fn written(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

/// Where the service's lines have what.
const OF_SERVICE: [&str; 6] = [
    "--field",
    "method=/verb",
    "--field",
    "path=/url",
    "--entry",
    "user=/claims/user",
];

// --- Loads.

/// A client for each user, which waits for each of its answers, so that its lines are in the order of its requests.
/// Each request is due at a time in milliseconds; those of one user are in order.
async fn load(port: u16, due: Vec<(u64, u64)>) {
    let mut by_user: Vec<Vec<u64>> = Vec::new();
    for (at_ms, user) in due {
        let user = usize::try_from(user).unwrap();
        by_user.resize(by_user.len().max(user + 1), Vec::new());
        by_user[user].push(at_ms);
    }
    let start = tokio::time::Instant::now();
    let mut users = JoinSet::new();
    for (user, due) in by_user.into_iter().enumerate() {
        users.spawn(async move {
            let client = Client::new();
            // NGINX takes the user from the credentials, whether it asks for them or not.
            // With a password that is no text, because such values are written in base64.
            let secret = format!("u{user}:").into_bytes();
            let secret = policy::value_to_node(Some(&[secret.as_slice(), b"\xff"].concat()));
            let credentials = format!("Basic {}", secret.get("base64").unwrap().as_text().unwrap());
            for (n, at_ms) in due.into_iter().enumerate() {
                tokio::time::sleep_until(start + Duration::from_millis(at_ms)).await;
                let path = ["a", "b?x=1", "c"][n % 3];
                let get = client.get(&format!("http://127.0.0.1:{port}/api/{path}"));
                let get = get.header("x-user-id", format!("u{user}"));
                let reply = get.header("authorization", &credentials).send().await;
                assert!([200, 429].contains(&reply.unwrap().status.as_u16()));
            }
        });
    }
    while let Some(done) = users.join_next().await {
        done.unwrap();
    }
}

/// Writes lines into a folder; returns the path.
fn kept(folder: &Path, name: &str, lines: &[String]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

fn replayed(stage: &Stage, log: &Path, more: &[&str]) -> Value {
    let log = log.display().to_string();
    let words = [&["replay", &log, "-o", "json"], more].concat();
    serde_json::from_str(&stage.rlctl(&words)).unwrap()
}

#[tokio::test]
async fn a_replay_denies_what_envoy_denied() {
    let stage = limits(&[
        "{name: per-path, match: {path: /api/**}, per: [path, remote_address], rate: 40/1h}",
        "{name: per-user, per: [user], if_missing: skip, rate: 25/1h}",
    ])
    .config(|config| config.manager_edit(logs).unwrap())
    .await;
    let mut sent = 0;
    let mut denied = 0;
    for user in ["alice", "bob", "carol"] {
        for path in ["/api/a", "/api/b?x=1", "/static"] {
            let request = stage.get(path, user);
            let (passed, refused) = at_once(&request, 12).await;
            let then = statuses(&request, 3).await;
            sent += 15;
            denied += refused + then.iter().filter(|status| **status == 429).count();
            assert_eq!(passed + refused, 12);
        }
    }
    assert!(denied > 20, "{denied}");
    let [text, json] = written_by_envoy(&stage, sent).await;
    let folder = tempfile::tempdir().unwrap();
    let json = kept(folder.path(), "json.log", &json);
    let by_json = replayed(&stage, &json, &["--entry", "user=/headers/x-user-id"]);
    assert_eq!(by_json["log"]["formats"], json!(["json"]));
    assert_eq!(by_json["requests"], sent);
    assert_eq!(by_json["denied_in_log"], denied);
    assert_eq!(by_json["denied"], denied);
    // The text has no user, so that limit applies to none of its requests: by path alone as many are over
    // as beyond 40 of each.
    let by_text = replayed(&stage, &kept(folder.path(), "text.log", &text), &[]);
    assert_eq!(by_text["log"]["formats"], json!(["envoy"]));
    assert_eq!(
        (&by_text["requests"], &by_text["denied_in_log"]),
        (&json!(sent), &json!(denied))
    );
    let limits = by_text["limits"].as_array().unwrap();
    let per_user = limits.iter().find(|limit| limit["name"] == "per-user");
    assert_eq!(per_user.unwrap()["requests"], 0);
    assert_eq!(by_text["denied"], 2 * (45 - 40));
}

#[tokio::test]
async fn logs_of_nginx_and_of_a_service_are_replayed() {
    // They do not ask a limiter: the limits come afterwards.
    let stage = limits(&["{name: per-user, per: [user], rate: 25/day}"]).await;
    let (nginx, service) = (nginx().await, Service::start().await);
    // Twelve users at once: the first sends forty requests, the next one less, and so on.
    let due: Vec<(u64, u64)> = { 0..12 }
        .flat_map(|user| (0..40 - user).map(move |_| (0, user)))
        .collect();
    let denied: u64 = (0..12).map(|user| 40 - user - 25).sum();
    let sent = due.len();
    tokio::join!(load(nginx.port(), due.clone()), load(service.port, due));
    let folder = tempfile::tempdir().unwrap();
    let logs = [
        (
            "combined",
            written_by_nginx(&nginx, "combined.log"),
            &["--entry", "user=remote_user"][..],
        ),
        ("json", written_by_nginx(&nginx, "lines.log"), &[]),
        ("json", service.written(), &OF_SERVICE),
    ];
    for (format, lines, flags) in logs {
        let log = kept(folder.path(), "access.log", &lines);
        let decided = replayed(&stage, &log, flags);
        assert_eq!(decided["log"]["formats"], json!([format]));
        assert_eq!(decided["log"]["broken"], 0);
        assert_eq!(
            (&decided["requests"], &decided["denied"]),
            (&json!(sent), &json!(denied))
        );
        let losses = decided["buckets"].as_array().unwrap();
        for (user, loss) in losses.iter().enumerate() {
            assert_eq!(loss["bucket"], json!({"user": format!("u{user}")}));
            assert_eq!(loss["requests"], 15 - user);
        }
    }
}

// --- Recordings for tests without these services.

const LENGTH_MS: u64 = 300_000;

/// A hundred users that ask evenly, and one ten times as often.
fn steady() -> Vec<(u64, u64)> {
    let mut random = Random(1);
    let mut due = Vec::new();
    for user in 0..101 {
        let every_ms = if user == 100 { 1000 } else { 10_000 };
        let mut at_ms = random.below(every_ms);
        while at_ms < LENGTH_MS {
            due.push((at_ms, user));
            at_ms += every_ms * 3 / 4 + random.below(every_ms / 2);
        }
    }
    due
}

/// Users that come now and then, with a page of requests at once.
fn bursts() -> Vec<(u64, u64)> {
    let mut random = Random(2);
    let mut due = Vec::new();
    for user in 0..150 {
        let mut pages: Vec<u64> = (0..5).map(|_| random.below(LENGTH_MS)).collect();
        pages.sort_unstable();
        for at_ms in pages {
            let size = 3 + random.below(7) + 30 * u64::from(random.below(100) == 0);
            due.extend((0..size).map(|n| (at_ms + n * 5, user)));
        }
    }
    due
}

/// Few use much: a user's part falls with its number.
fn skewed() -> Vec<(u64, u64)> {
    let mut random = Random(3);
    let mut due = Vec::new();
    for user in 0..200 {
        let requests = (0..1200 / (user + 10)).map(|_| random.below(LENGTH_MS));
        let mut times: Vec<u64> = requests.collect();
        times.sort_unstable();
        due.extend(times.into_iter().map(|at_ms| (at_ms, user)));
    }
    due
}

/// Writes the logs of `tests/vectors/logs` anew; its README says what they are.
#[tokio::test]
#[ignore = "takes five minutes: cargo xtask test --only e2e -- logs_are_recorded --run-ignored all"]
async fn logs_are_recorded() {
    let stage = limits(&[
        "{name: per-user, match: {path: /api/**}, per: [user], if_missing: skip, rate: 12/1m, burst: 20}",
        "{name: per-path, per: [path, user], if_missing: skip, rate: 60/day}",
    ])
    .config(|config| config.manager_edit(logs).unwrap())
    .await;
    let (nginx, service) = (nginx().await, Service::start().await);
    let of_envoy = steady();
    let requests = of_envoy.len();
    tokio::join!(
        load(stage.envoy().port(), of_envoy),
        load(nginx.port(), bursts()),
        load(service.port, skewed()),
    );
    let [text, json] = written_by_envoy(&stage, requests).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/logs");
    for (name, lines) in [
        ("envoy.log", text),
        ("envoy.jsonl", json),
        ("nginx.log", written_by_nginx(&nginx, "combined.log")),
        ("nginx.jsonl", written_by_nginx(&nginx, "lines.log")),
        ("service.jsonl", service.written()),
    ] {
        let mut text = String::new();
        for line in &lines {
            writeln!(text, "{line}").unwrap();
        }
        let file = File::create(folder.join(format!("{name}.gz"))).unwrap();
        let mut gzip = Command::new("gzip");
        gzip.args(["-9", "-n"])
            .stdin(std::process::Stdio::piped())
            .stdout(file);
        let mut gzip = gzip.spawn().unwrap();
        gzip.stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert!(gzip.wait().unwrap().success());
        assert!(lines.len() > 3000, "{name}: {}", lines.len());
    }
}
