//! No output, error or argument ever contains a password, whatever fails.

use std::process::Output;

use crate::support::{Server, rlctl};
use anyhow::Result;
use harness::Engine;

const PASSWORD: &str = "s3cr%t@:/";
const ESCAPED: &str = "s3cr%25t%40%3A%2F";
const LIMITS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/redis/files.in/good.yaml"
);

/// Every command that uses Redis, with its arguments.
const COMMANDS: &[&[&str]] = &[
    &["ping"],
    &["doctor"],
    &["load-scripts"],
    &["load-scripts", "--check"],
    &["list-domains"],
    &["list-proxies"],
    &["list-limits"],
    &["get-limit", "per-user"],
    &["set-limit", "per-user", "--rate", "1/s"],
    &["set-limit", "per-user", "--for", "user=a", "--rate", "1/s"],
    &["delete-limit", "per-user", "--yes"],
    &["set-exemption", "health", "--match", "path=/healthz"],
    &["delete-exemption", "health", "--yes"],
    &["delete-domain", "shop", "--yes"],
    &["diff", "-f", LIMITS],
    &["apply", "-f", LIMITS],
    &["export"],
    &["history"],
    &["rollback", "1", "--yes"],
    &["pause", "--limit", "per-user", "--for", "1h"],
    &["resume"],
    &["inspect", "per-user", "user=a"],
    &["inspect", "-d", "user=a"],
    &["list-keys"],
    &["reset", "per-user", "--yes"],
    &["credit", "per-user", "user=a", "--units", "1"],
    &["stats"],
    &["denials"],
    &["check", "-d", "user=a"],
    &["explain", "-d", "user=a"],
    &[
        "simulate",
        "-f",
        LIMITS,
        "--engine",
        "redis",
        "--traffic",
        "constant:1/s",
        "--for",
        "1s",
        "-d",
        "path=/export",
    ],
];

fn said(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams.map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

fn keeps_the_secret(output: &Output, arguments: &[&str]) {
    let said = said(output);
    for secret in [PASSWORD, ESCAPED, "s3cr"] {
        assert!(!said.contains(secret), "{arguments:?}: {said}");
    }
}

#[test]
#[ignore = "needs a server"]
fn no_command_shows_the_password_wherever_it_fails() -> Result<()> {
    let server = Server::start(Engine::Redis, &["--requirepass", PASSWORD])?;
    let port = server.port();
    // The first two for each command; what fails before a command begins, for a few.
    let urls = [
        (format!("redis://:{ESCAPED}@127.0.0.1:{port}"), None),
        (
            format!("redis://nobody:{ESCAPED}@127.0.0.1:{port}"),
            Some(4),
        ),
        (format!("redis://:{ESCAPED}@127.0.0.1:1"), Some(3)),
        (
            format!("redis://:{ESCAPED}@no-such-host.invalid:1"),
            Some(3),
        ),
        (format!("http://:{ESCAPED}@127.0.0.1"), Some(2)),
        (format!("redis://:{ESCAPED}@127.0.0.1:port"), Some(2)),
        (format!("redis://:{PASSWORD}@127.0.0.1:1"), Some(2)),
        (
            format!("redis-sentinel://:{ESCAPED}@127.0.0.1:1/primary"),
            Some(3),
        ),
    ];
    for (nth, (url, exit)) in urls.iter().enumerate() {
        let few = |words: &&&[&str]| nth < 2 || ["ping", "doctor", "simulate"].contains(&words[0]);
        for arguments in COMMANDS.iter().filter(few) {
            let output = rlctl(arguments).env("RLCTL_REDIS", url).output()?;
            keeps_the_secret(&output, arguments);
            if let Some(exit) = exit {
                let text = said(&output);
                assert_eq!(output.status.code(), Some(*exit), "{arguments:?}: {text}");
            }
        }
        let flag = [&["ping", "--redis", url.as_str()][..], &["-o", "json"]].concat();
        keeps_the_secret(&rlctl(&flag).output()?, &["ping", "--redis"]);
    }
    Ok(())
}

#[test]
fn help_never_shows_what_a_variable_holds() -> Result<()> {
    for arguments in COMMANDS {
        let mut help: Vec<&str> = arguments.iter().take(1).copied().collect();
        help.push("--help");
        let output = rlctl(&help)
            .env("RLCTL_REDIS", format!("redis://:{ESCAPED}@host"))
            .output()?;
        keeps_the_secret(&output, &help);
        assert_eq!(output.status.code(), Some(0));
    }
    Ok(())
}
