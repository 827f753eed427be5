//! Runs the manual's examples unchanged, in the folder that a reader is in.

use std::{
    env::{join_paths, split_paths, var_os},
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{Server, cases, rlctl};
use anyhow::{Context, Result, ensure};
use harness::Engine;

/// Output that differs from run to run: as the manual shows it, and as it is compared.
const VOLATILE: [(&str, &str); 9] = [
    (
        "redis://127.0.0.1:6379 answers in 0.21 ms (valkey 9.1.2, master)",
        "[REDIS] answers in [..]",
    ),
    (", redis://127.0.0.1:6379)", ", [REDIS])"),
    ("redis://127.0.0.1:6379: ", "[REDIS]: "),
    ("-u redis://127.0.0.1:6379 ", "-u [REDIS] "),
    ("12 s      1 min\n", "[..]\n"),
    ("12 s\n", "[..]\n"),
    ("in 1 min\n", "in [..]\n"),
    ("in 1 min 1 s\n", "in [..]\n"),
    ("just now", "[..]"),
];

#[test]
#[ignore = "needs a server"]
fn the_manual_is_true() -> Result<()> {
    let mut manual = std::fs::read_to_string(root().join("docs/rlctl.md"))?;
    for (written, compared) in VOLATILE {
        ensure!(
            manual.contains(written),
            "the manual does not say {written:?} any more"
        );
        manual = manual.replace(written, compared);
    }
    let server = Server::start(Engine::Valkey, &[])?;
    is_true(&manual, &server)
}

/// Runs the examples of a page in the checkout, which is where trycmd runs what has a folder of its name.
fn is_true(page: &str, server: &Server) -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let copy = folder.path().join("page.md");
    std::fs::write(&copy, page)?;
    std::os::unix::fs::symlink(root(), copy.with_extension("in"))?;
    let cases = cases();
    cases.env("RLCTL_REDIS", server.url());
    cases.insert_var("[REDIS]", server.url())?;
    cases.case(copy);
    cases.run();
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
#[ignore = "needs a server"]
fn the_pages_about_migrating_are_true() -> Result<()> {
    let mut commands_run = 0;
    for page in MIGRATING {
        let server = Server::start(Engine::Valkey, &[])?;
        let home = tempfile::TempDir::new()?;
        let text = std::fs::read_to_string(root().join("docs/migrating").join(page))?;
        is_true(&text, &server).context(page)?;
        for line in commands(&text, "```sh")
            .into_iter()
            .chain(commands(&text, "   ```sh"))
        {
            run(&line, &server, home.path())?;
            commands_run += 1;
        }
    }
    ensure!(commands_run > 15, "{commands_run}");
    Ok(())
}

/// Each of these pages is checked on its own.
const MIGRATING: [&str; 5] = [
    "../kubernetes.md",
    "envoy-ratelimit.md",
    "limitador.md",
    "redisson.md",
    "spring-cloud-gateway.md",
];

/// Commands in examples that cannot run here, and why.
const SKIPPED: [(&str, &str); 2] = [
    (
        "rlctl apply -f limits/ --watch",
        "ends by SIGTERM only; tests/commands/watch.rs follows files",
    ),
    (
        "rlctl denials --limit orders --follow",
        "ends by Ctrl-C only; tests/commands/activity.rs follows",
    ),
];

/// The lines with rlctl of all blocks of a kind, with continued lines joined. The others start
/// Envoy and a limiter, or build; the suites in `tests/suites` run those.
fn commands(document: &str, fence: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let (mut inside, mut continued) = (false, false);
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            inside = line == fence;
            continue;
        }
        if !inside {
            continue;
        }
        let line = line.trim_start();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        match commands.last_mut().filter(|_| continued) {
            Some(last) => *last = format!("{last}\n{line}"),
            None => commands.push(line.to_owned()),
        }
        continued = line.ends_with("&&") || line.ends_with('\\');
    }
    commands.retain(|line| line.starts_with("rlctl "));
    commands
}

/// Runs a line in a shell, as a reader does.
fn run(line: &str, server: &Server, home: &Path) -> Result<()> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_rlctl"));
    let folder = program.parent().context("a folder")?.to_owned();
    let path = var_os("PATH").unwrap_or_default();
    let path = join_paths(std::iter::once(folder).chain(split_paths(&path)))?;
    let mut shell = Command::new("sh");
    for (name, value) in rlctl(&[]).get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell.args(["-c", line]).env("PATH", path);
    shell
        .env("RL_STORE", server.url())
        .env("XDG_CONFIG_HOME", home);
    shell.current_dir(root());
    let output = shell.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {}: {said}", output.status);
    ensure!(!said.contains("not everywhere"), "{line}: {said}");
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn commands_without_output_work_as_well() -> Result<()> {
    // The suite `deploy` runs the commands of README and the index, with the files they need.
    let manual = commands(
        &std::fs::read_to_string(root().join("docs/rlctl.md"))?,
        "```sh",
    );
    ensure!(manual.len() > 10, "{manual:?}");
    // What a reader has done before.
    let apply = "rlctl apply -f limits.yaml".to_owned();
    let lines: Vec<String> = std::iter::once(apply).chain(manual).collect();
    for (skipped, why) in SKIPPED {
        let there = lines.iter().any(|line| line.starts_with(skipped));
        ensure!(there, "{skipped} ({why}) is not in the documents any more");
    }
    // `the_manual_is_true` is about Valkey.
    let server = Server::start(Engine::Redis, &[])?;
    let home = tempfile::TempDir::new()?;
    let is_skipped = |line: &&String| SKIPPED.iter().any(|(start, _)| line.starts_with(start));
    for line in lines.iter().filter(|line| !is_skipped(line)) {
        run(line, &server, home.path())?;
    }
    Ok(())
}
