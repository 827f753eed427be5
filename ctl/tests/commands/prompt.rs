//! Questions at a terminal.

use crate::support::{Server, rlctl, terminal::Terminal};
use anyhow::Result;
use harness::Engine;

#[tokio::test]
#[ignore = "needs a server"]
async fn a_name_that_looks_like_a_typo_is_asked_about() -> Result<()> {
    let server = tokio::task::spawn_blocking(|| Server::start(Engine::Valkey, &[])).await??;
    let url = server.url();
    let shop = ["--redis", &url, "--domain", "shop"];
    let narrowed = ["--rate", "5/s", "--match", "path=/x"];
    let set = |name| [&shop[..], &["set-limit", name], &narrowed[..]].concat();
    let limits = || -> Result<String> {
        let list = [&shop[..], &["list-limits", "-o", "name"]].concat();
        Ok(String::from_utf8(rlctl(&list).output()?.stdout)?)
    };
    assert!(rlctl(&set("per-user")).status()?.success());
    for (answer, code, then) in [("n\r", 7, "per-user\n"), ("y\r", 0, "per-user\nper-usr\n")] {
        let program = env!("CARGO_BIN_EXE_rlctl");
        let mut terminal = Terminal::run(program, &set("per-usr"), &[])?;
        terminal
            .shows("per-usr is a new limit beside per-user: create it? [y/N]")
            .await?;
        terminal.press(answer)?;
        assert_eq!(terminal.code().await?, code);
        assert_eq!(limits()?, then);
    }
    // A script is not asked: the command above had no terminal either.
    assert!(rlctl(&set("per-uer")).status()?.success());
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_new_limit_for_every_request_is_asked_about() -> Result<()> {
    let server = tokio::task::spawn_blocking(|| Server::start(Engine::Valkey, &[])).await??;
    let url = server.url();
    let set = [
        "--redis",
        &url,
        "--domain",
        "shop",
        "set-limit",
        "everything",
    ];
    let set = [&set[..], &["--rate", "5/s"]].concat();
    for (answer, code) in [("n\r", 7), ("y\r", 0)] {
        let mut terminal = Terminal::run(env!("CARGO_BIN_EXE_rlctl"), &set, &[])?;
        terminal
            .shows("everything applies to every request of domain shop: create it? [y/N]")
            .await?;
        terminal.press(answer)?;
        assert_eq!(terminal.code().await?, code);
    }
    // No question about an existing limit, a shadow limit, one with a `match`, or with --yes.
    for more in [
        &["everything", "--rate", "6/s"][..],
        &["trial", "--rate", "6/s", "--shadow"],
        &["orders", "--rate", "6/s", "--match", "path=/orders"],
        &["all-of-it", "--rate", "6/s", "--yes"],
    ] {
        let set = [&["--redis", &url, "--domain", "shop", "set-limit"], more].concat();
        let mut terminal = Terminal::run(env!("CARGO_BIN_EXE_rlctl"), &set, &[])?;
        assert_eq!(terminal.code().await?, 0, "{more:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn a_script_confirms_a_limit_that_puts_all_requests_into_one_bucket() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    for (name, more, code, message) in [
        (
            "per-usr",
            &[][..],
            7,
            "per-usr applies to every request of domain shop: create it: not confirmed",
        ),
        (
            "per-user",
            &["--per", "user"],
            0,
            "warning: per-user applies to every request",
        ),
        ("all", &["--yes"], 0, ""),
    ] {
        let set = ["--domain", "shop", "set-limit", name, "--rate", "5/s"];
        let output = rlctl(&[&set[..], more].concat())
            .env("RLCTL_REDIS", server.url())
            .output()?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(message), "{said}");
    }
    Ok(())
}
