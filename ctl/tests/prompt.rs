//! Questions at a terminal.

mod support;

use anyhow::Result;
use harness::Engine;
use support::{Server, rlctl, terminal::Terminal};

#[tokio::test]
#[ignore = "needs a server"]
async fn a_name_that_looks_like_a_typo_is_asked_about() -> Result<()> {
    let server = tokio::task::spawn_blocking(|| Server::start(Engine::Valkey, &[])).await??;
    let url = server.url();
    let shop = ["--redis", &url, "--domain", "shop"];
    let set = |name| [&shop[..], &["set-limit", name, "--rate", "5/s"]].concat();
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
    // A script is not asked: `status` above had no terminal either.
    assert!(rlctl(&set("per-uer")).status()?.success());
    Ok(())
}
