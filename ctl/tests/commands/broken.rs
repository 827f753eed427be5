//! Connections that break around an edit: what rlctl reports as written is written, once.

use std::{process::Output, time::Duration};

use crate::support::{
    Server,
    relay::{BUCKET, Breaks, REASON, relay},
    rlctl, wait,
};
use anyhow::Result;
use harness::{Engine, until};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server with the scripts and some limits.
fn server() -> Result<Server> {
    let server = Server::start(Engine::Valkey, &[])?;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/redis/files.in/good.yaml"
    );
    for arguments in [&["load-scripts"][..], &["apply", "-f", file]] {
        let output = at(server.port(), arguments)?;
        assert!(output.status.success(), "{}", said(&output));
    }
    Ok(server)
}

fn at(port: u16, arguments: &[&str]) -> Result<Output> {
    let url = format!("redis://127.0.0.1:{port}");
    Ok(rlctl(arguments)
        .env("RLCTL_REDIS", url)
        .env("RLCTL_DOMAIN", "shop")
        .output()?)
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn edits(server: &Server) -> Result<usize> {
    let output = at(server.port(), &["history", "-n", "0", "-o", "name"])?;
    Ok(String::from_utf8(output.stdout)?.lines().count())
}

/// Commands that write, and whose result is certain or can be found out.
const EDITS: [&[&str]; 6] = [
    &["set-limit", "per-user", "--rate", "7/s"],
    &["set-limit", "fresh", "--match", "path=/x", "--rate", "7/s"],
    &["set-limit", "per-user", "--for", "user=a", "--rate", "7/s"],
    &["pause", "--limit", "exports"],
    &["delete-limit", "exports", "--yes"],
    &["delete-domain", "shop", "--yes"],
];

#[test]
#[ignore = "needs a server"]
fn an_edit_whose_answer_is_lost_is_made_once_and_said_to_be() -> Result<()> {
    for breaks in [Breaks::OneAnswer, Breaks::OneEdit] {
        for edit in EDITS {
            let server = server()?;
            let through = relay(server.port(), breaks)?;
            let output = at(through, &[edit, &["--reason", REASON]].concat())?;
            let said = said(&output);
            assert_eq!(output.status.code(), Some(0), "{breaks:?} {edit:?}: {said}");
            assert!(said.contains("revision 1 → 2"), "{said}");
            assert_eq!(edits(&server)?, 2, "{breaks:?} {edit:?}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn an_edit_that_cannot_be_shown_is_said_to_be_made() -> Result<()> {
    let server = server()?;
    for (command, made) in [
        ("set-limit per-user --rate 7/s", true),
        ("set-limit per-user --rate 7/s --dry-run", false),
        ("reset exports --yes", true),
        ("list-limits", false),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        let output = server.rlctl(command).stdout(full).output()?;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("cannot write to stdout"), "{said}");
        let says = said.contains("the edit is made all the same");
        assert_eq!(says, made, "{command}: {said}");
    }
    assert_eq!(edits(&server)?, 4);
    Ok(())
}

/// The history's first edit is the same, and is not the one that did not arrive.
#[test]
#[ignore = "needs a server"]
fn limits_are_restored_although_the_edit_is_lost_on_the_way() -> Result<()> {
    for breaks in [Breaks::OneAnswer, Breaks::OneEdit] {
        let server = Server::start(Engine::Valkey, &[])?;
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/redis/files.in/good.yaml"
        );
        let apply = ["apply", "-f", file, "--reason", REASON];
        for arguments in [&["load-scripts"][..], &apply] {
            let output = at(server.port(), arguments)?;
            assert!(output.status.success(), "{}", said(&output));
        }
        wait(server.command(&["DEL", "rl:{shop}:limits"]))?;
        let output = at(relay(server.port(), breaks)?, &apply)?;
        let said_to = said(&output);
        assert_eq!(output.status.code(), Some(0), "{breaks:?}: {said_to}");
        assert_eq!(edits(&server)?, 2, "{breaks:?}: {said_to}");
        let output = at(server.port(), &["list-limits"])?;
        assert!(said(&output).contains("per-user"), "{}", said(&output));
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn what_is_written_is_said_to_be_whatever_comes_after() -> Result<()> {
    for edit in EDITS {
        let server = server()?;
        let through = relay(server.port(), Breaks::AllAfterwards)?;
        let output = at(through, &[edit, &["--reason", REASON]].concat())?;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{edit:?}: {said}");
        assert!(said.contains("revision 1 → 2"), "{said}");
        assert_eq!(edits(&server)?, 2, "{edit:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn waiting_for_those_who_cannot_be_seen_says_that_the_edit_is_written() -> Result<()> {
    let server = server()?;
    let through = relay(server.port(), Breaks::AllAfterwards)?;
    let edit = ["set-limit", "per-user", "--rate", "7/s", "--wait=100ms"];
    let output = at(through, &[&edit[..], &["--reason", REASON]].concat())?;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(9), "{said}");
    assert!(
        said.contains("revision 2 is written; which limiters and proxies"),
        "{said}"
    );
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn an_edit_that_cannot_be_found_again_is_said_to_be_uncertain() -> Result<()> {
    let server = server()?;
    let through = relay(server.port(), Breaks::AnswerAndAllAfterwards)?;
    let edit = ["set-limit", "per-user", "--rate", "7/s"];
    let output = at(through, &[&edit[..], &["--reason", REASON]].concat())?;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("it is unknown whether the edit was written"),
        "{said}"
    );
    assert!(said.contains("`rlctl history -n 3`"), "{said}");
    // The server has the edits: none was lost on the way.
    let written = async || edits(&server).is_ok_and(|count| count == 2).then_some(());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(until("the edit in the history", PATIENCE, written))
}

/// The bucket changed, and the history has nothing: who looks there only credits twice.
#[test]
#[ignore = "needs a server"]
fn a_credit_whose_answer_is_lost_names_the_command_that_tells() -> Result<()> {
    let server = server()?;
    let limit = ["set-limit", "few", "--per", "user", "--rate", "10/1d"];
    let user = format!("user={BUCKET}");
    let use_up = ["check", &user, "--limit", "few", "--cost", "8"];
    for arguments in [&limit[..], &use_up] {
        let output = at(server.port(), arguments)?;
        assert!(output.status.success(), "{}", said(&output));
    }
    let before = edits(&server)?;
    let through = relay(server.port(), Breaks::BucketAnswer)?;
    let output = at(through, &["credit", "few", &user, "--units", "3"])?;
    let said_to = said(&output);
    assert_eq!(output.status.code(), Some(3), "{said_to}");
    assert!(said_to.contains("2 were left before"), "{said_to}");
    assert!(said_to.contains("`rlctl inspect few`"), "{said_to}");
    assert!(!said_to.contains("rlctl history"), "{said_to}");
    assert_eq!(edits(&server)?, before, "the history has nothing");
    let output = at(server.port(), &["inspect", "few", &user])?;
    assert!(said(&output).contains("5 left"), "{}", said(&output));
    Ok(())
}
