//! `rlctl top` in a terminal: what it draws, what keys do, and how it leaves the terminal.

#![expect(clippy::expect_used, reason = "a test may fail loudly")]

use crate::support::{
    Server, rlctl,
    terminal::{PATIENCE, Terminal},
};
use anyhow::{Context, Result};
use ctl::commands::top::Screen;
use harness::{Engine, until};
use policy::Name;
use protocol::{DecidedBy, Outcome};
use rustix::process::Signal;
use store::{
    Activity, ActivityReport, BucketActivity, Denial, FleetReport, LimitActivity, Options, Report,
    Resolution, open,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn bucket(user: &str, requests: u64, denied: u64) -> BucketActivity {
    BucketActivity {
        limit: name("per-user"),
        bucket: vec![(name("user"), Some(user.as_bytes().to_vec()))],
        requests,
        denied,
        over: 0,
        last: (denied > 0).then(|| Denial {
            at_ms: 1,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            proxy: None,
            descriptor: vec![(name("path"), format!("/of/{user}").into_bytes())],
        }),
    }
}

/// A server on which a limiter reported some decisions.
async fn server() -> Result<Server> {
    let server = tokio::task::spawn_blocking(|| Server::start(Engine::Valkey, &[])).await??;
    let url = server.url();
    let edit = ["--redis", &url, "--domain", "shop", "set-limit", "per-user"];
    let edit = rlctl(&edit)
        .args(["--per", "user", "--rate", "1/s"])
        .output()?;
    assert!(edit.status.success());
    let store = open(&url.parse()?, Options::default())?;
    store
        .report("a", &[Report::Fleet(&FleetReport::default())])
        .await?;
    let mut limit = LimitActivity::default();
    limit.add(Outcome::Denied, DecidedBy::DenyCache, 4000);
    let noted = ActivityReport {
        covered_ms: 10_000,
        activity: Activity {
            limits: [(name("per-user"), limit)].into(),
            buckets: vec![bucket("alice", 400, 300), bucket("bob", 9000, 0)],
            ..Activity::default()
        },
    };
    let note = Report::Activity {
        domain: &name("shop"),
        slot: Resolution::Fine.slot(store.estimated_now_ms()),
        report: &noted,
    };
    store.report("web-1:8090/00aa", &[note]).await?;
    Ok(server)
}

const RLCTL: &str = env!("CARGO_BIN_EXE_rlctl");

#[tokio::test]
#[ignore = "needs a server"]
async fn it_shows_who_is_denied_and_obeys_keys() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    // Over a minute, so that the report stays in the span.
    let arguments = ["top", "--redis", &url, "--over", "1m"];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    let text = terminal.shows("user=alice").await?;
    assert!(text.contains("per-user") && text.contains("400"), "{text}");
    assert!(
        text.contains("answers in") && text.contains("path=/of/alice"),
        "{text}"
    );
    let place = |text: &str, what: &str| text.find(what).expect("it is shown");
    assert!(place(&text, "user=alice") < place(&text, "user=bob"));
    terminal.press("r")?;
    let text = terminal.shows("REQ/S▼").await?;
    assert!(
        place(&text, "user=bob") < place(&text, "user=alice"),
        "{text}"
    );
    terminal.press("/bob\r")?;
    terminal.shows_no_more("user=alice").await?;
    terminal.shows("filter: bob").await?;
    terminal.press("\u{1b}")?;
    terminal.shows("user=alice").await?;
    // The selected bucket, as `inspect` shows it.
    terminal.press("\u{1b}[B\r")?;
    terminal.shows("Esc closes this").await?;
    terminal.shows("of 1").await?;
    terminal.press("\r")?;
    terminal.shows_no_more("Esc closes this").await?;
    terminal.press("?")?;
    terminal.shows("Any key closes this").await?;
    terminal.press("x")?;
    terminal.shows_no_more("Any key closes this").await?;
    terminal.press("q")?;
    assert_eq!(terminal.ends().await?, 0);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn however_it_ends_the_terminal_is_as_it_was() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    let arguments = ["top", "--redis", &url];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    terminal.shows("answers in").await?;
    terminal.press("\u{3}")?;
    assert_eq!(terminal.ends().await?, 130);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let terminal = Terminal::run(RLCTL, &arguments, &[])?;
        terminal.shows("answers in").await?;
        terminal.signal(signal)?;
        assert_eq!(terminal.ends().await?, 130);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn it_goes_on_when_redis_goes_and_in_a_smaller_window() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    let arguments = ["top", "--redis", &url, "--over", "1m", "--timeout", "200ms"];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    terminal.shows("user=alice").await?;
    server.process().pause()?;
    terminal.shows("no answer").await?;
    terminal.shows("user=alice").await?;
    server.process().resume()?;
    terminal.shows("answers in").await?;
    // A key pressed at the instant of the resize is read with the next one: crossterm returns the
    // resize and drops the information that there was input.
    let written = terminal.written();
    let clears = || written().matches("\u{1b}[2J").count();
    let before = clears();
    terminal.resize(6, 30)?;
    until("it is drawn anew", PATIENCE, async || {
        (clears() > before).then_some(())
    })
    .await?;
    terminal.shows("rlctl top  shop").await?;
    terminal.press("q")?;
    assert_eq!(terminal.ends().await?, 0);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn no_color_means_none() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    for (variables, colored) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let arguments = ["top", "--redis", &url, "--over", "1m"];
        let mut terminal = Terminal::run(RLCTL, &arguments, variables)?;
        terminal.shows("user=alice").await?;
        terminal.press("q")?;
        let written = terminal.written();
        assert_eq!(terminal.ends().await?, 0);
        let written = written();
        // Red, as a 256-color code.
        assert_eq!(written.contains("\u{1b}[38;5;1"), colored, "{variables:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_from_the_start_is_said_without_a_screen() -> Result<()> {
    let port = harness::free_port()?;
    let url = format!("redis://127.0.0.1:{port}");
    let terminal = Terminal::run(RLCTL, &["top", "--redis", &url], &[])?;
    terminal.shows("cannot reach").await?;
    let written = terminal.written()();
    assert!(!written.contains("\u{1b}[?1049h"), "{written}");
    Ok(())
}

/// The variable by which the next test makes this program panic.
const PANIC: &str = "RL_TEST_PANIC";

/// Not a test: the program that the next test runs in a terminal.
#[test]
fn panics_with_a_screen() {
    if std::env::var_os(PANIC).is_none() {
        return;
    }
    let _screen = Screen::take().expect("a terminal");
    panic!("something is wrong");
}

#[tokio::test]
async fn a_panic_gives_the_terminal_back_and_is_read() -> Result<()> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("a path")?;
    let arguments = ["--exact", "top::panics_with_a_screen", "--nocapture"];
    let terminal = Terminal::run(own, &arguments, &[(PANIC, "1")])?;
    terminal.shows("something is wrong").await?;
    assert_ne!(terminal.ends().await?, 0);
    Ok(())
}
