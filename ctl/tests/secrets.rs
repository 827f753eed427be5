//! Contexts; and no output, error or argument ever contains a password, whatever fails.

mod support;

use std::{path::Path, process::Output};

use anyhow::Result;
use harness::Engine;
use support::{Server, rlctl};
use tempfile::TempDir;

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
    let urls = [
        (format!("redis://:{ESCAPED}@127.0.0.1:{port}"), None),
        (format!("redis://:{ESCAPED}@127.0.0.1:1"), Some(3)),
        (
            format!("redis://nobody:{ESCAPED}@127.0.0.1:{port}"),
            Some(4),
        ),
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
    for (url, exit) in &urls {
        for arguments in COMMANDS {
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

/// rlctl with a home of its own.
fn at_home(home: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = rlctl(arguments);
    command.env("XDG_CONFIG_HOME", home);
    Ok(command.env("PROD_PASSWORD", PASSWORD).output()?)
}

#[test]
#[ignore = "needs a server"]
fn contexts_lead_to_their_servers_and_tell_no_password() -> Result<()> {
    let prod = Server::start(Engine::Valkey, &["--requirepass", PASSWORD])?;
    let staging = Server::start(Engine::Redis, &[])?;
    let home = TempDir::new()?;
    let run = |arguments: &[&str]| {
        let output = at_home(home.path(), arguments)?;
        keeps_the_secret(&output, arguments);
        anyhow::Ok((output.status.code().unwrap(), said(&output)))
    };
    let (prod_url, staging_url) = (prod.url(), staging.url());
    let set = [
        "context",
        "set",
        "prod",
        "--redis",
        &prod_url,
        "--password-env",
        "PROD_PASSWORD",
    ];
    assert_eq!(run(&set)?.0, 0);
    assert_eq!(run(&["context", "set", "prod", "--domain", "shop"])?.0, 0);
    let set = ["context", "set", "staging", "--redis", &staging_url];
    assert_eq!(run(&set)?.0, 0);
    let with_command = ["--password-command", "printf %s \"$PROD_PASSWORD\""];
    let set = ["context", "set", "by-command", "--redis", &prod_url];
    assert_eq!(run(&[&set[..], &with_command[..]].concat())?.0, 0);
    let kept = format!("redis://:{ESCAPED}@127.0.0.1:{}", prod.port());
    // A password in the URL on the command line is not printed either.
    let (exit, text) = run(&["context", "set", "kept", "--redis", &kept])?;
    assert!(
        exit == 0 && text.contains("the password is saved"),
        "{text}"
    );

    for context in ["prod", "by-command", "kept", "staging"] {
        let (exit, text) = run(&["ping", "--context", context])?;
        assert_eq!(exit, 0, "{context}: {text}");
    }
    let (_, text) = run(&["ping", "--context", "prod"])?;
    assert!(text.contains(&prod.port().to_string()), "{text}");
    assert_eq!(run(&["apply", "-f", LIMITS, "--context", "prod"])?.0, 0);
    assert_eq!(run(&["list-limits", "--context", "staging"])?.0, 5);
    assert_eq!(run(&["context", "use", "prod"])?.0, 0);
    let (exit, text) = run(&["list-limits", "-o", "name"])?;
    assert!(exit == 0 && text.contains("per-user"), "{text}");

    let (_, listed) = run(&["context", "list"])?;
    assert!(
        listed.contains("from PROD_PASSWORD") && listed.contains("kept here"),
        "{listed}"
    );
    run(&["context", "list", "-o", "json"])?;
    let (exit, text) = run(&["ping", "--context", "prd"])?;
    assert!(exit == 5 && text.contains("did you mean `prod`?"), "{text}");
    assert_eq!(run(&["context", "delete", "prod"])?.0, 0);
    assert_eq!(run(&["ping", "--context", "prod"])?.0, 5);
    Ok(())
}

#[test]
fn the_file_of_contexts_is_its_owners_alone_and_a_broken_one_is_not_quoted() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let home = TempDir::new()?;
    let url = format!("redis://:{ESCAPED}@127.0.0.1:1");
    at_home(home.path(), &["context", "set", "prod", "--redis", &url])?;
    let file = home.path().join("rlctl/config.yaml");
    let mode = std::fs::metadata(&file)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for broken in [
        format!("contexts: [{PASSWORD}"),
        format!("contexts: {{prod: {{redis: '{url}', colour: '{PASSWORD}'}}}}"),
        format!("contexts: {{prod: {{redis: ['{PASSWORD}']}}}}"),
        format!("contexts: {{prod: {{domain: '{PASSWORD}'}}}}"),
    ] {
        std::fs::write(&file, broken)?;
        for arguments in [&["ping"][..], &["context", "list"]] {
            let output = at_home(home.path(), arguments)?;
            keeps_the_secret(&output, arguments);
            assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        }
    }
    Ok(())
}

#[test]
fn a_context_that_could_not_be_used_is_not_kept() -> Result<()> {
    let home = TempDir::new()?;
    for arguments in [
        &["context", "set", "prod"][..],
        &["context", "set", "prod", "--redis", "http://host"],
        &[
            "context",
            "set",
            "prod",
            "--redis",
            "redis://host",
            "--timeout",
            "soon",
        ],
        &[
            "context",
            "set",
            "prod",
            "--redis",
            "redis://host",
            "--domain",
            "a\u{7}",
        ],
        &["context", "set", "two words", "--redis", "redis://host"],
    ] {
        let output = at_home(home.path(), arguments)?;
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    assert_eq!(
        at_home(home.path(), &["context", "use", "prod"])?
            .status
            .code(),
        Some(5)
    );
    assert!(!home.path().join("rlctl/config.yaml").exists());
    Ok(())
}
