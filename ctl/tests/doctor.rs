//! The findings of `rlctl doctor` on servers and limits with one problem each.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use anyhow::Result;
use harness::Engine;
use serde_json::Value;
use support::{Server, rlctl};

/// Sends one command, as another client would.
fn command(server: &Server, words: &[&str]) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    write!(stream, "*{}\r\n", words.len())?;
    for word in words {
        write!(stream, "${}\r\n{word}\r\n", word.len())?;
    }
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn run(url: &str, arguments: &[&str]) -> Result<std::process::Output> {
    Ok(rlctl(arguments).env("RLCTL_REDIS", url).output()?)
}

/// The findings as `severity check`, and the exit code.
fn findings(url: &str) -> Result<(Vec<String>, i32, Value)> {
    // No limiter runs here, which is a finding of its own.
    let output = run(url, &["doctor", "-o", "json", "--ignore", "fleet=limiters"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| anyhow::anyhow!("{error}: {said}"))?;
    let found = report["findings"].as_array().unwrap().iter();
    let found = found.map(|f| format!("{} {}", f["severity"], f["check"]).replace('"', ""));
    Ok((found.collect(), output.status.code().unwrap(), report))
}

fn has(found: &[String], finding: &str) -> bool {
    found.iter().any(|one| one == finding)
}

const LIMITS: &str = "ctl/tests/redis/files.in/good.yaml";

fn with_limits(engine: Engine, arguments: &[&str]) -> Result<Server> {
    let server = Server::start(engine, arguments)?;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/redis/files.in/good.yaml"
    );
    assert!(
        run(&server.url(), &["apply", "-f", file])?.status.success(),
        "{LIMITS}"
    );
    assert!(run(&server.url(), &["load-scripts"])?.status.success());
    Ok(server)
}

#[test]
#[ignore = "needs a server"]
fn a_healthy_server_has_nothing_to_mend() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = with_limits(engine, &["--appendonly", "yes"])?;
        let (found, exit, report) = findings(&server.url())?;
        assert!(
            found.iter().all(|one| one.starts_with("info")),
            "{report:#}"
        );
        assert_eq!(exit, 0);
        assert_eq!(report["healthy"], true);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_limits_that_are_gone_left_behind_is_found() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = with_limits(engine, &["--appendonly", "yes"])?;
        let left = |words: &[&str]| command(&server, words);
        left(&["SET", "rl:b:shop:gone:alice", "1", "EX", "60"])?;
        let (found, exit, report) = findings(&server.url())?;
        assert!(has(&found, "info orphans"), "{report:#}");
        assert_eq!(exit, 0, "what goes by itself is nothing to mend");
        assert_eq!(report["keys"]["all"], true);

        left(&["SET", "rl:b:shop:gone:bob", "1"])?;
        left(&["HSET", "rl:{shop}:o:gone", "alice", "{}"])?;
        left(&["SET", "rl:b:other:gone:bob", "1"])?;
        let (found, exit, report) = findings(&server.url())?;
        let orphans: Vec<_> = found.iter().filter(|f| f.contains("orphans")).collect();
        assert_eq!(orphans, ["warning orphans"; 3], "{report:#}");
        assert_eq!(exit, 1);
        let output = run(&server.url(), &["doctor", "--keys", "1"])?;
        let text = String::from_utf8(output.stdout)?;
        // One SCAN step covers more keys than there are here.
        assert!(text.contains("'rl:b:shop:gone:*'"), "{text}");
        left(&[
            "DEL",
            "rl:b:shop:gone:bob",
            "rl:{shop}:o:gone",
            "rl:b:other:gone:bob",
        ])?;
        assert_eq!(findings(&server.url())?.1, 0);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn an_override_that_cannot_be_read_is_found_and_can_be_deleted() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = with_limits(engine, &["--appendonly", "yes"])?;
        let wrong = r#"{"values":{"user":"eve"},"rate":"soon"}"#;
        command(&server, &["HSET", "rl:{shop}:o:per-user", "eve", wrong])?;
        let (found, exit, report) = findings(&server.url())?;
        assert!(has(&found, "error records"), "{report:#}");
        assert_eq!(exit, 1);
        let delete = ["delete-limit", "per-user", "--for", "user=eve", "--yes"];
        let output = run(&server.url(), &delete)?;
        assert!(output.status.success(), "{output:?}");
        assert_eq!(findings(&server.url())?.1, 0);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_was_evicted_is_told_and_that_the_limits_are_gone() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = with_limits(engine, &["--maxmemory-policy", "allkeys-lru"])?;
        let url = server.url();
        // Less memory than an empty server uses.
        command(&server, &["CONFIG", "SET", "maxmemory", "1"])?;
        while command(&server, &["DBSIZE"])? != ":0\r\n" {
            std::thread::yield_now();
        }
        command(&server, &["CONFIG", "SET", "maxmemory", "0"])?;
        let (found, exit, report) = findings(&url)?;
        assert!(has(&found, "warning evicted"), "{report:#}");
        assert!(has(&found, "info domains"), "{report:#}");
        assert_eq!(exit, 1, "{report:#}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn every_finding_names_the_command_that_mends_it_and_that_mends_it() -> Result<()> {
    let server = with_limits(
        Engine::Valkey,
        &["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"],
    )?;
    let url = server.url();
    command(&server, &["SCRIPT", "FLUSH"])?;
    run(&url, &["pause", "--limit", "exports"])?;
    let (found, exit, report) = findings(&url)?;
    for one in [
        "error eviction",
        "info scripts",
        "warning persistence",
        "warning paused",
    ] {
        assert!(has(&found, one), "{one}: {report:#}");
    }
    assert_eq!(exit, 1);
    for finding in report["findings"].as_array().unwrap() {
        let Some(mend) = finding["mend"].as_str() else {
            continue;
        };
        let mut words = mend.split("    #").next().unwrap().split_whitespace();
        match words.next() {
            Some("rlctl") => {
                run(&url, &words.collect::<Vec<_>>())?;
            }
            Some("valkey-cli") => {
                let words: Vec<&str> = words.collect();
                assert_eq!(&words[..2], ["-u", &url], "{mend}");
                let reply = command(&server, &words[2..])?;
                assert!(!reply.starts_with('-'), "{mend}: {reply}");
            }
            other => assert!(finding["severity"] == "info", "{other:?} in {mend}"),
        }
    }
    let (found, exit, report) = findings(&url)?;
    assert!(
        found.iter().all(|one| one.starts_with("info")),
        "{report:#}"
    );
    assert_eq!(exit, 0);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn keys_that_were_evicted_and_memory_that_runs_out_are_told() -> Result<()> {
    let server = with_limits(
        Engine::Redis,
        &["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random"],
    )?;
    let text = "x".repeat(100_000);
    for n in 0..60 {
        command(&server, &["SET", &format!("other:{n}"), &text])?;
    }
    let (found, exit, report) = findings(&server.url())?;
    assert!(has(&found, "warning evicted"), "{report:#}");
    assert!(
        found.iter().any(|one| one.ends_with("memory")),
        "{report:#}"
    );
    assert_eq!(exit, 1);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn records_that_are_lost_or_unreadable_are_told_and_hide_nothing_else() -> Result<()> {
    let server = with_limits(Engine::Redis, &["--appendonly", "yes"])?;
    command(&server, &["SADD", "rl:domains", "lost", "broken", "later"])?;
    command(&server, &["SET", "rl:{broken}:policy", "text"])?;
    let later = [
        "HSET",
        "rl:{later}:policy",
        "format",
        "9",
        "revision",
        "1",
        "digest",
        "ab",
    ];
    command(&server, &later)?;
    run(&server.url(), &["pause", "--domain", "shop", "--yes"])?;
    let (found, exit, report) = findings(&server.url())?;
    let records = found.iter().filter(|one| *one == "error records").count();
    assert_eq!(records, 3, "{report:#}");
    assert!(has(&found, "warning paused"), "{report:#}");
    assert_eq!(exit, 1);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_user_with_too_few_rights_is_told_which_it_lacks() -> Result<()> {
    let server = with_limits(Engine::Redis, &["--appendonly", "yes"])?;
    let rights = "reset on >s3cret ~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists \
                  +ping +time +hget +hmget +hgetall +hscan +hlen +smembers +xrevrange +zrange +get +mget";
    let words = ["ACL", "SETUSER", "narrow"]
        .into_iter()
        .chain(rights.split_whitespace());
    command(&server, &words.collect::<Vec<_>>())?;
    let url = format!("redis://narrow:s3cret@127.0.0.1:{}", server.port());
    let (found, exit, report) = findings(&url)?;
    assert!(has(&found, "error rights"), "{report:#}");
    assert!(has(&found, "info info"), "{report:#}");
    let text = report.to_string();
    assert!(
        text.contains("+xadd") && text.contains("~rl:*"),
        "{report:#}"
    );
    assert!(!text.contains("s3cret"), "{report:#}");
    assert_eq!(exit, 1);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_replica_is_told_from_its_primary() -> Result<()> {
    let primary = with_limits(Engine::Redis, &["--appendonly", "yes"])?;
    let port = primary.port().to_string();
    let replica = Server::start(Engine::Redis, &["--replicaof", "127.0.0.1", &port])?;
    // The server is a replica from its start, whether or not it is in sync already.
    let output = run(&replica.url(), &["doctor"])?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.contains("it is a replica"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_is_known_can_be_ignored_and_quiet_says_nothing_when_all_is_well() -> Result<()> {
    // Without an append-only file: a warning.
    let server = with_limits(Engine::Valkey, &[])?;
    let said = |arguments: &[&str]| -> Result<(i32, String)> {
        let command = [&["doctor", "-q", "--ignore", "fleet=limiters"], arguments].concat();
        let output = run(&server.url(), &command)?;
        let both = [&output.stdout[..], &output.stderr].concat();
        Ok((output.status.code().unwrap(), String::from_utf8(both)?))
    };
    let (code, text) = said(&[])?;
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("neither RDB snapshots nor the append-only file are on")
            && !text.contains("info:"),
        "{text}"
    );
    assert_eq!(said(&["--ignore", "persistence"])?, (0, String::new()));
    let at = format!("persistence={}", server.url());
    assert_eq!(said(&["--ignore", &at])?, (0, String::new()));
    assert_eq!(said(&["--ignore", "persistence=redis://elsewhere"])?.0, 1);
    let output = rlctl(&["doctor", "-q"])
        .env("RLCTL_REDIS", server.url())
        .env("RLCTL_DOCTOR_IGNORE", "persistence,orphans,fleet")
        .output()?;
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let loud = run(&server.url(), &["doctor", "--ignore", "persistence,fleet"])?;
    let text = String::from_utf8(loud.stdout)?;
    assert!(text.contains("no problems, 2 ignored"), "{text}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn limits_that_match_nothing_are_found() -> Result<()> {
    let server = with_limits(Engine::Valkey, &["--appendonly", "yes"])?;
    let set = [
        "set-limit",
        "api",
        "--match",
        "path=api/**",
        "--rate",
        "1/s",
    ];
    assert!(run(&server.url(), &set)?.status.success());
    let (found, exit, report) = findings(&server.url())?;
    assert!(has(&found, "warning unmeant"), "{report:#}");
    assert_eq!(exit, 1);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_store_with_limits_and_no_live_limiter_is_an_error() -> Result<()> {
    let server = with_limits(Engine::Valkey, &["--appendonly", "yes"])?;
    let page = || run(&server.url(), &["doctor", "-q", "--domain", "shop"]);
    let output = page()?;
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("error[fleet]: limiters: none has reported"),
        "{text}"
    );
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let store = store::open(&server.url().parse()?, store::Options::default())?;
        let heads = store.heads().await?;
        let of_shop = heads
            .into_iter()
            .find(|head| head.domain.as_str() == "shop");
        let Some(store::HeadState::Live(revision)) = of_shop.map(|head| head.state) else {
            anyhow::bail!("no limits");
        };
        followed(&server.url(), "shop", revision).await
    })?;
    let reported = std::time::Instant::now();
    let output = page()?;
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(0), &b""[..])
    );
    // A limiter that was killed reports no more.
    let text = loop {
        let output = page()?;
        if output.status.code() == Some(1) {
            break String::from_utf8(output.stdout)?;
        }
        assert!(reported.elapsed().as_secs() < 5, "it is taken for alive");
    };
    assert!(
        text.starts_with("error[fleet]: limiters: none has reported in the last 3 s"),
        "{text}"
    );
    assert!(
        text.contains("warning[fleet]: limiter web-1:8090: its last report is 3"),
        "{text}"
    );
    // Without limits there is nothing to enforce.
    let empty = Server::start(Engine::Valkey, &["--appendonly", "yes"])?;
    assert!(run(&empty.url(), &["load-scripts"])?.status.success());
    assert_eq!(run(&empty.url(), &["doctor", "-q"])?.status.code(), Some(0));
    Ok(())
}

/// Reports for a limiter that has this revision of a domain.
async fn followed(url: &str, domain: &str, revision: policy::Revision) -> Result<()> {
    let store = store::open(&url.parse()?, store::Options::default())?;
    let sighting = store::FleetReport {
        revisions: [(domain.parse()?, revision)].into(),
        ..store::FleetReport::default()
    };
    let note = store::Report::Fleet(&sighting);
    Ok(store.report("web-1:8090/00aa", &[note]).await?)
}

#[test]
#[ignore = "needs a server"]
fn limits_that_were_flushed_are_in_force_in_limiters_and_said_to_be() -> Result<()> {
    let server = with_limits(Engine::Valkey, &["--appendonly", "yes"])?;
    command(&server, &["FLUSHALL"])?;
    assert!(run(&server.url(), &["load-scripts"])?.status.success());
    let runtime = tokio::runtime::Runtime::new()?;
    let before = policy::Revision {
        number: 12,
        digest: 7,
    };
    runtime.block_on(followed(&server.url(), "shop", before))?;
    let (found, exit, report) = findings(&server.url())?;
    assert!(has(&found, "error records"), "{report:#}");
    assert!(!has(&found, "info domains"), "{report:#}");
    assert_eq!(exit, 1);
    let mut list = report["findings"].as_array().unwrap().iter();
    let finding = list.find(|f| f["check"] == "records").unwrap();
    assert!(
        finding["what"]
            .as_str()
            .unwrap()
            .contains("in force (revision 12)"),
        "{finding}"
    );
    assert!(
        finding["mend"]
            .as_str()
            .unwrap()
            .contains("rlctl apply -f -"),
        "{finding}"
    );
    Ok(())
}
