//! The findings of `rlctl doctor` on servers and limits with one problem each.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Ran, Server, ran, rlctl, wait};
use anyhow::{Context, Result};
use harness::{Engine, until};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

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

/// As [`command`], of words without spaces.
fn say(server: &Server, words: &str) -> Result<String> {
    command(server, &words.split(' ').collect::<Vec<_>>())
}

fn run(url: &str, words: &str) -> Result<Ran> {
    let words: Vec<_> = words.split_whitespace().collect();
    ran(rlctl(&words).env("RLCTL_REDIS", url))
}

/// What `rlctl doctor` finds, as `severity check`, its exit code, and its report.
struct Found {
    findings: Vec<String>,
    exit: i32,
    report: Value,
}

/// No limiter runs here, which is a finding of its own, and not shown.
fn findings(url: &str) -> Result<Found> {
    let ran = run(url, "doctor -o json --ignore fleet=limiters")?;
    let report: Value = serde_json::from_str(&ran.out).with_context(|| ran.err.clone())?;
    let found = report["findings"].as_array().unwrap().iter();
    let found = found.map(|f| format!("{} {}", f["severity"], f["check"]).replace('"', ""));
    Ok(Found {
        findings: found.collect(),
        exit: ran.code.unwrap(),
        report,
    })
}

impl Found {
    fn count(&self, finding: &str) -> usize {
        self.findings.iter().filter(|one| *one == finding).count()
    }

    /// Fails unless these are among the findings, and something is to be mended.
    fn has(self, findings: &[&str]) -> Self {
        for finding in findings {
            assert!(self.count(finding) > 0, "{finding}: {:#}", self.report);
        }
        assert_eq!(self.exit, 1, "{:#}", self.report);
        self
    }

    fn nothing_to_mend(self) {
        let information = self.findings.iter().all(|one| one.starts_with("info"));
        assert!(information && self.exit == 0, "{:#}", self.report);
        assert_eq!(self.report["healthy"], true);
    }
}

fn with_limits(engine: Engine, arguments: &[&str]) -> Result<Server> {
    let server = Server::start(engine, arguments)?;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/redis/files.in/good.yaml"
    );
    run(&server.url(), &format!("apply -f {file}"))?.with(0);
    run(&server.url(), "load-scripts")?.with(0);
    Ok(server)
}

fn healthy(engine: Engine) -> Result<Server> {
    with_limits(engine, &["--appendonly", "yes"])
}

const ENGINES: [Engine; 2] = [Engine::Redis, Engine::Valkey];

#[test]
#[ignore = "needs a server"]
fn a_healthy_server_has_nothing_to_mend() -> Result<()> {
    for engine in ENGINES {
        let server = healthy(engine)?;
        findings(&server.url())?.nothing_to_mend();
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_limits_that_are_gone_left_behind_is_found() -> Result<()> {
    for engine in ENGINES {
        let server = healthy(engine)?;
        say(&server, "SET rl:b:shop:gone:alice 1 EX 60")?;
        let found = findings(&server.url())?;
        assert_eq!(found.count("info orphans"), 1);
        assert_eq!(found.report["keys"]["all"], true);
        // What goes by itself is nothing to mend.
        found.nothing_to_mend();

        say(&server, "SET rl:b:shop:gone:bob 1")?;
        say(&server, "HSET rl:{shop}:o:gone alice {}")?;
        say(&server, "SET rl:b:other:gone:bob 1")?;
        let found = findings(&server.url())?.has(&["warning orphans"]);
        let orphans = found.findings.iter().filter(|f| f.contains("orphans"));
        assert_eq!((found.count("warning orphans"), orphans.count()), (3, 3));
        let text = run(&server.url(), "doctor --keys 1")?.out;
        // One SCAN step covers more keys than there are here.
        assert!(text.contains("'rl:b:shop:gone:*'"), "{text}");
        assert!(text.contains("unlink rl:b:shop:gone\n"), "{text}");
        say(
            &server,
            "DEL rl:b:shop:gone:bob rl:{shop}:o:gone rl:b:other:gone:bob",
        )?;
        findings(&server.url())?.nothing_to_mend();
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn an_override_that_cannot_be_read_is_found_and_can_be_deleted() -> Result<()> {
    for engine in ENGINES {
        let server = healthy(engine)?;
        let wrong = r#"{"values":{"user":"eve"},"rate":"soon"}"#;
        command(&server, &["HSET", "rl:{shop}:o:per-user", "eve", wrong])?;
        findings(&server.url())?.has(&["error records"]);
        run(&server.url(), "delete-limit per-user --for user=eve --yes")?.with(0);
        findings(&server.url())?.nothing_to_mend();
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_was_evicted_is_told_and_that_the_limits_are_gone() -> Result<()> {
    for engine in ENGINES {
        let server = with_limits(engine, &["--maxmemory-policy", "allkeys-lru"])?;
        // Less memory than an empty server uses.
        say(&server, "CONFIG SET maxmemory 1")?;
        while say(&server, "DBSIZE")? != ":0\r\n" {
            std::thread::yield_now();
        }
        say(&server, "CONFIG SET maxmemory 0")?;
        findings(&server.url())?.has(&["warning evicted", "info domains"]);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn every_finding_names_the_command_that_mends_it_and_that_mends_it() -> Result<()> {
    let full = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let server = with_limits(Engine::Valkey, &full)?;
    let url = server.url();
    say(&server, "SCRIPT FLUSH")?;
    run(&url, "pause --limit exports")?;
    let problems = [
        "error eviction",
        "info scripts",
        "warning persistence",
        "warning paused",
    ];
    let report = findings(&url)?.has(&problems).report;
    for finding in report["findings"].as_array().unwrap() {
        let Some(mend) = finding["mend"].as_str() else {
            continue;
        };
        let mut words = mend.split("    #").next().unwrap().split_whitespace();
        match words.next() {
            Some("rlctl") => {
                run(&url, &words.collect::<Vec<_>>().join(" "))?;
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
    findings(&url)?.nothing_to_mend();
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn keys_that_were_evicted_and_memory_that_runs_out_are_told() -> Result<()> {
    let full = ["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random"];
    let server = with_limits(Engine::Redis, &full)?;
    let text = "x".repeat(100_000);
    for n in 0..60 {
        command(&server, &["SET", &format!("other:{n}"), &text])?;
    }
    let found = findings(&server.url())?.has(&["warning evicted"]);
    let memory = found.findings.iter().any(|one| one.ends_with("memory"));
    assert!(memory, "{:#}", found.report);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn records_that_are_lost_or_unreadable_are_told_and_hide_nothing_else() -> Result<()> {
    let server = healthy(Engine::Redis)?;
    say(&server, "SADD rl:domains lost broken later")?;
    say(&server, "XADD rl:{lost}:history 1-0 op fields")?;
    // A first write that was refused left this.
    say(&server, "SADD rl:domains never")?;
    say(&server, "SET rl:{broken}:policy text")?;
    say(
        &server,
        "HSET rl:{later}:policy format 9 revision 1 digest ab",
    )?;
    run(&server.url(), "pause --domain shop --yes")?;
    let found = findings(&server.url())?.has(&["warning paused"]);
    assert_eq!(found.count("error records"), 3, "{:#}", found.report);
    Ok(())
}

/// The history alone has not all limits: half a domain would be in force.
#[test]
#[ignore = "needs a server"]
fn limits_that_are_lost_are_not_rolled_back() -> Result<()> {
    let server = healthy(Engine::Redis)?;
    run(&server.url(), "set-limit per-user --domain shop --rate 7/s")?.with(0);
    say(&server, "DEL rl:{shop}:policy")?;
    let refused = run(&server.url(), "rollback 1 --domain shop --yes")?.with(8);
    assert!(refused.err.contains("rlctl apply -f -"), "{}", refused.err);
    assert_eq!(say(&server, "EXISTS rl:{shop}:policy")?, ":0\r\n");
    let found = findings(&server.url())?.has(&["error records"]);
    let report = found.report.to_string();
    assert!(!report.contains("rollback"), "{report}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_long_reason_or_author_is_refused() -> Result<()> {
    let server = healthy(Engine::Redis)?;
    for (flag, most) in [("--reason", 1024), ("--author", 256)] {
        let pause = |bytes| format!("pause --domain shop --yes {flag} {}", "x".repeat(bytes));
        let refused = run(&server.url(), &pause(most + 1))?.with(2);
        assert!(refused.err.contains("are kept"), "{}", refused.err);
        run(&server.url(), &pause(most))?.with(0);
        run(&server.url(), "resume --domain shop")?.with(0);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_user_with_too_few_rights_is_told_which_it_lacks() -> Result<()> {
    let server = healthy(Engine::Redis)?;
    let rights = "reset on >s3cret ~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists \
                  +ping +time +hget +hmget +hgetall +hscan +hlen +smembers +get";
    let rights = rights.split_whitespace().collect::<Vec<_>>().join(" ");
    say(&server, &format!("ACL SETUSER narrow {rights}"))?;
    let url = format!("redis://narrow:s3cret@127.0.0.1:{}", server.port());
    let found = findings(&url)?.has(&["error rights", "info info"]);
    let text = found.report.to_string();
    assert!(text.contains("+xadd") && text.contains("~rl:*"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    // A limiter's user may not even run the script that finds out.
    say(&server, "ACL SETUSER narrow resetkeys %R~rl:*")?;
    findings(&url)?.has(&["error rights", "info info"]);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_replica_is_told_from_its_primary() -> Result<()> {
    let primary = healthy(Engine::Redis)?;
    let port = primary.port().to_string();
    let replica = Server::start(Engine::Redis, &["--replicaof", "127.0.0.1", &port])?;
    // The server is a replica from its start, whether or not it is in sync already.
    let text = run(&replica.url(), "doctor")?.with(1).out;
    assert!(text.contains("it is a replica"), "{text}");
    // What only reads is answered there as well.
    let copied = async || {
        let limits = run(&replica.url(), "list-limits").ok()?;
        (limits.code == Some(0)).then_some(())
    };
    wait(until("the limits are copied", PATIENCE, copied))?;
    for command in ["stats", "list-proxies", "denials", "export"] {
        run(&replica.url(), command)?.with(0);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_is_known_can_be_ignored_and_quiet_says_nothing_when_all_is_well() -> Result<()> {
    // Without an append-only file: a warning.
    let server = with_limits(Engine::Valkey, &[])?;
    let said = |arguments: &str| -> Result<(i32, String)> {
        let quiet = format!("doctor -q --ignore fleet=limiters {arguments}");
        let ran = run(&server.url(), &quiet)?;
        Ok((ran.code.unwrap(), ran.out + &ran.err))
    };
    let (code, text) = said("")?;
    let why = "neither RDB snapshots nor the append-only file are on";
    assert!(text.contains(why) && !text.contains("info:"), "{text}");
    assert_eq!(code, 1);
    assert_eq!(said("--ignore persistence")?, (0, String::new()));
    let at = format!("--ignore persistence={}", server.url());
    assert_eq!(said(&at)?, (0, String::new()));
    assert_eq!(said("--ignore persistence=redis://elsewhere")?.0, 1);
    let mut known = rlctl(&["doctor", "-q"]);
    known.env("RLCTL_DOCTOR_IGNORE", "persistence,orphans,fleet");
    let quiet = ran(known.env("RLCTL_REDIS", server.url()))?.with(0);
    assert_eq!(quiet.out, "");
    let text = run(&server.url(), "doctor --ignore persistence,fleet")?.out;
    assert!(text.contains("no problems, 2 ignored"), "{text}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn limits_that_match_nothing_are_found() -> Result<()> {
    let server = healthy(Engine::Valkey)?;
    run(
        &server.url(),
        "set-limit api --match path=api/** --rate 1/s",
    )?
    .with(0);
    findings(&server.url())?.has(&["warning unmeant"]);
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_store_with_limits_and_no_live_limiter_is_an_error() -> Result<()> {
    let server = healthy(Engine::Valkey)?;
    let page = || run(&server.url(), "doctor -q --domain shop");
    let text = page()?.with(1).out;
    let none = "error[fleet]: limiters: none has reported";
    assert!(text.starts_with(none), "{text}");
    wait(async {
        let store = store::open(&server.url().parse()?, store::Options::default())?;
        let mut heads = store.heads().await?.into_iter();
        let of_shop = heads.find(|head| head.domain.as_str() == "shop");
        let Some(store::HeadState::Live(revision)) = of_shop.map(|head| head.state) else {
            anyhow::bail!("no limits");
        };
        followed(&server.url(), "shop", revision).await
    })?;
    let reported = std::time::Instant::now();
    assert_eq!(page()?.with(0).out, "");
    // A limiter that was killed reports no more.
    let text = loop {
        let ran = page()?;
        if ran.code == Some(1) {
            break ran.out;
        }
        assert!(reported.elapsed().as_secs() < 5, "it is taken for alive");
    };
    let none = "error[fleet]: limiters: none has reported in the last 3 s";
    assert!(text.starts_with(none), "{text}");
    let last = "warning[fleet]: limiter web-1:8090: its last report is 3";
    assert!(text.contains(last), "{text}");
    // Without limits there is nothing to enforce.
    let empty = Server::start(Engine::Valkey, &["--appendonly", "yes"])?;
    run(&empty.url(), "load-scripts")?.with(0);
    run(&empty.url(), "doctor -q")?.with(0);
    Ok(())
}

/// Reports for a limiter that has this revision of a domain.
async fn followed(url: &str, domain: &str, revision: policy::Revision) -> Result<()> {
    let store = store::open(&url.parse()?, store::Options::default())?;
    let fleet_report = store::FleetReport {
        revisions: [(domain.parse()?, revision)].into(),
        ..store::FleetReport::default()
    };
    let report = store::Report::Fleet(&fleet_report);
    Ok(store.report("web-1:8090/00aa", &[report]).await?)
}

#[test]
#[ignore = "needs a server"]
fn limits_that_were_flushed_are_in_force_in_limiters_and_said_to_be() -> Result<()> {
    let server = healthy(Engine::Valkey)?;
    say(&server, "FLUSHALL")?;
    run(&server.url(), "load-scripts")?.with(0);
    let before = policy::Revision {
        number: 12,
        digest: 7,
    };
    wait(followed(&server.url(), "shop", before))?;
    let found = findings(&server.url())?.has(&["error records"]);
    assert_eq!(found.count("info domains"), 0, "{:#}", found.report);
    let mut list = found.report["findings"].as_array().unwrap().iter();
    let finding = list.find(|f| f["check"] == "records").unwrap();
    for (field, part) in [
        ("what", "in force (revision 12)"),
        ("mend", "rlctl apply -f -"),
    ] {
        assert!(finding[field].as_str().unwrap().contains(part), "{finding}");
    }
    Ok(())
}
