//! Faults around rlctl: servers that are gone, hang or refuse, Ctrl-C, closed pipes, and concurrent
//! edits by others.

use std::{
    io::{Read, Write as _},
    net::TcpListener,
    process::{Child, ExitStatus, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use harness::{Engine, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Server, of, rlctl, wait};

const PATIENCE: Duration = Duration::from_secs(20);

fn run(arguments: &[&str]) -> Result<Output> {
    Ok(rlctl(arguments).stdin(Stdio::null()).output()?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn interrupt(child: &Child) -> Result<()> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("a process id")?;
    Ok(kill_process(pid, Signal::INT)?)
}

/// Waits until the program handles Ctrl-C itself, as the kernel sees it.
fn until_interruptible(child: &Child) -> Result<()> {
    let status = format!("/proc/{}/status", child.id());
    let handles = async || {
        let status = std::fs::read_to_string(&status).ok()?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        (mask & 0b10 != 0).then_some(())
    };
    wait(until("a handler for SIGINT", PATIENCE, handles))
}

fn read_all(child: &mut Child) -> Result<(ExitStatus, String)> {
    let mut said = String::new();
    let mut stderr = child.stderr.take().context("piped")?;
    stderr.read_to_string(&mut said)?;
    Ok((child.wait()?, said))
}

#[test]
#[ignore = "needs a server"]
fn a_server_that_starts_can_be_waited_for() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let url = format!("redis://127.0.0.1:{port}");
    let waiting = rlctl(&["--redis", &url, "ping", "--wait=20s"])
        .stdout(Stdio::piped())
        .spawn()?;
    // The first attempt fails; the server starts after it.
    drop(listener.accept()?);
    drop(listener);
    let dir = tempfile::TempDir::new()?;
    let program = Engine::Valkey.program()?;
    let server = wait(harness::Redis::start(&program, port, dir.path()))?;
    let output = waiting.wait_with_output()?;
    drop(server);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("answers in"));
    Ok(())
}

#[test]
fn a_server_that_is_not_there_is_said_at_once_and_by_name() -> Result<()> {
    let port = harness::free_port()?;
    let url = format!("redis://:s3cret@127.0.0.1:{port}");
    for command in [
        &["ping"][..],
        &["list-limits"],
        &["doctor"],
        &["set-limit", "a", "--rate", "1/s"],
    ] {
        // It does not wait for the timeout.
        let output = rlctl(command)
            .args(["--timeout", "1h"])
            .env("REDIS_URL", &url)
            .output()?;
        assert_eq!(output.status.code(), Some(3));
        let said = stderr(&output);
        let unreachable = format!("cannot reach redis://127.0.0.1:{port}: ");
        assert!(said.contains(&unreachable), "{said}");
        assert!(said.contains("the address comes from REDIS_URL"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
        assert_eq!(output.stdout, b"");
        let consequences = said.contains("proxies decide by each limit's `on_failure`");
        assert_eq!(consequences, command == ["doctor"], "{said}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_server_that_hangs_is_given_up_on() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server.process().pause()?;
    let output = run(&["ping", "--redis", &server.url()])?;
    server.process().resume()?;
    let said = of(&output).with(3).err;
    let why = "no answer to PING within 1000 ms, though it takes connections";
    assert!(said.contains(why), "{said}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn wrong_credentials_and_missing_rights_are_told_apart() -> Result<()> {
    let password = ["--requirepass", "hunter2"];
    let viewer = [
        "--user", "viewer", "on", ">pw", "~rl:*", "-@all", "+ping", "+hello",
    ];
    let users = [&password[..], &viewer].concat();
    let server = Server::start(Engine::Valkey, &users)?;
    let at = |login: &str| format!("redis://{login}127.0.0.1:{}", server.port());
    for (login, code, message) in [
        ("", 4, "refused the login"),
        (":s3cret@", 4, "refused the login"),
        ("nobody:s3cret@", 4, "refused the login"),
        (":hunter2@", 0, ""),
        ("viewer:pw@", 0, ""),
    ] {
        let output = run(&["ping", "--redis", &at(login)])?;
        let said = of(&output).with(code).err;
        assert!(said.contains(message) && !said.contains("s3cret"), "{said}");
    }
    let output = run(&["list-domains", "--redis", &at("viewer:pw@")])?;
    let said = of(&output).with(8).err;
    assert!(said.contains("NOPERM"), "{said}");
    Ok(())
}

#[test]
fn ctrl_c_ends_the_wait_for_a_server() -> Result<()> {
    let silent = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("redis://{}", silent.local_addr()?);
    let mut child = rlctl(&["list-limits", "--timeout", "1h", "--redis", &url])
        .stderr(Stdio::piped())
        .spawn()?;
    let _connection = silent.accept()?;
    interrupt(&child)?;
    let (status, said) = read_all(&mut child)?;
    assert_eq!(status.code(), Some(130));
    assert_eq!(said, "error: interrupted\n");
    Ok(())
}

#[test]
fn ctrl_c_ends_the_wait_for_a_file() -> Result<()> {
    let mut child = rlctl(&["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // stdin stays open until the end, and nothing is written to it.
    let _stdin = child.stdin.take();
    until_interruptible(&child)?;
    interrupt(&child)?;
    let (status, said) = read_all(&mut child)?;
    assert_eq!(status.code(), Some(130));
    assert_eq!(said, "error: interrupted\n");
    Ok(())
}

/// What was read counts, however little it is.
#[test]
fn ctrl_c_has_a_suggestion_go_by_what_was_read() -> Result<()> {
    let mut child = rlctl(&["suggest", "-", "--per", "user"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("piped")?;
    let line = b"{\"time\": \"2026-11-25T23:47:17.250Z\", \"user\": \"ann\"}\n";
    // More than the pipe and the program's buffers hold, so that some requests are read.
    stdin.write_all(&line.repeat(10_000))?;
    until_interruptible(&child)?;
    interrupt(&child)?;
    // The log goes on until the program reads no more of it.
    let more = std::thread::spawn(move || while stdin.write_all(line).is_ok() {});
    let output = child.wait_with_output()?;
    assert!(more.join().is_ok());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.ends_with("error: interrupted\n"), "{said}");
    let found = String::from_utf8(output.stdout)?;
    assert!(found.contains(" by user, from 2026-11-25"), "{found}");
    assert!(!found.contains("left out"), "{found}");
    Ok(())
}

#[test]
fn ctrl_c_has_a_replay_print_what_was_read() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, "domain: shop\nlimits: [{name: all, rate: 1/h}]\n")?;
    let limits = limits.to_str().context("a path")?;
    let mut child = rlctl(&["replay", "-", "-f", limits])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // stdin stays open until the end. All but what a pipe holds was read when all is written.
    let mut stdin = child.stdin.take().context("piped")?;
    stdin.write_all(&b"{\"time\":1795650437}\n".repeat(100_000))?;
    until_interruptible(&child)?;
    interrupt(&child)?;
    let output = child.wait_with_output()?;
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    let printed = String::from_utf8(output.stdout)?;
    let read = printed
        .strip_prefix("stdin: ")
        .and_then(|text| text.split(' ').next());
    let read: u64 = read.context("a count")?.parse()?;
    assert!((50_000..=100_000).contains(&read), "{printed}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn ctrl_c_ends_the_wait_for_a_bucket() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server.run("set-limit a --yes --rate 1/h")?.with(0);
    server.run("check")?.with(0);
    let mut child = server
        .rlctl("check --wait 2h")
        .stderr(Stdio::piped())
        .spawn()?;
    let mut first = [0; 7];
    child
        .stderr
        .as_mut()
        .context("piped")?
        .read_exact(&mut first)?;
    assert_eq!(&first, b"denied;");
    interrupt(&child)?;
    let (status, said) = read_all(&mut child)?;
    assert_eq!(status.code(), Some(130));
    assert!(said.ends_with("error: interrupted\n"), "{said}");
    Ok(())
}

#[test]
fn a_reader_that_leaves_is_no_error() -> Result<()> {
    let mut child = rlctl(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(child.stdout.take());
    let (status, said) = read_all(&mut child)?;
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn data_is_on_stdout_and_talk_on_stderr() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server.run("set-limit a --yes --rate 1/h")?.with(0);
    let got = server.run("get-limit a -o json")?.with(0);
    let limit: serde_json::Value = serde_json::from_str(&got.out)?;
    assert_eq!(limit["rate"], "1/h");
    assert!(got.err.contains("revision 1"), "{got:?}");
    Ok(())
}

/// Writers of different limits all succeed. Of the writers of one limit, `rlctl` reports a conflict to
/// those that lost; no edit is lost without such a report.
#[test]
#[ignore = "needs a server"]
fn edits_at_the_same_time_are_made_or_refused() -> Result<()> {
    const WRITERS: usize = 8;
    let server = Server::start(Engine::Valkey, &[])?;
    let start = |limit: usize, rate: usize| -> Result<Child> {
        let words = format!("set-limit limit-{limit} --yes --rate {rate}/s --timeout 20s");
        let mut command = server.rlctl(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.spawn()?)
    };
    let others: Result<Vec<Child>> = (0..WRITERS).map(|n| start(n, 1)).collect();
    for mut child in others? {
        assert_eq!(child.wait()?.code(), Some(0));
    }
    let same: Result<Vec<Child>> = (0..WRITERS).map(|n| start(0, n + 2)).collect();
    let mut made = 0;
    for mut child in same? {
        match child.wait()?.code() {
            Some(0) => made += 1,
            code => assert_eq!(code, Some(6)),
        }
    }
    let history = server.run("history -n 100 -o json")?;
    let edits: Vec<serde_json::Value> = serde_json::from_str(&history.out)?;
    assert_eq!(edits.len(), WRITERS + made);
    let limits = server.run("list-limits -o name")?;
    assert_eq!(limits.out.lines().count(), WRITERS);
    Ok(())
}

/// The history shows later that buckets were reset, and by whom.
#[test]
#[ignore = "needs a server"]
fn an_interrupted_reset_leaves_its_trace() -> Result<()> {
    let debug = ["--enable-debug-command", "yes"];
    let server = Server::start(Engine::Valkey, &debug)?;
    let set = server.run("set-limit per-user --per user --rate 1/h")?;
    set.with(0);
    let mut populate = std::net::TcpStream::connect(("127.0.0.1", server.port()))?;
    let keys = b"DEBUG POPULATE 300000 rl:b:shop:per-user\r\n";
    std::io::Write::write_all(&mut populate, keys)?;
    populate.read_exact(&mut [0; 5])?;
    let mut child = server
        .rlctl("reset per-user --yes")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let history = || -> Result<String> { Ok(server.run("history")?.out) };
    while !history()?.contains("every bucket: started") {
        assert!(child.try_wait()?.is_none(), "it ended before it was seen");
    }
    interrupt(&child)?;
    let (status, said) = read_all(&mut child)?;
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("some of the buckets are reset"), "{said}");
    let history = history()?;
    assert_eq!(history.matches("reset per-user").count(), 1, "{history}");
    Ok(())
}
