//! What rlctl prints and returns, word for word, against real servers.
//!
//! `cargo xtask test` says where the servers are and runs what needs one; by hand, the environment does
//! (`harness::Engine`), or `PATH`, and `-- --ignored`. `TRYCMD=overwrite` accepts what changed; read the diff.

use crate::support::{Server, cases, rlctl};
use anyhow::Result;
use harness::Engine;

/// Every file gets a server of its own, once of Redis and once of Valkey.
macro_rules! transcripts {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "needs a server"]
            fn $name() -> Result<()> {
                for engine in [Engine::Valkey, Engine::Redis] {
                    let server = Server::start(engine, &[])?;
                    let cases = cases();
                    cases.env("RLCTL_REDIS", server.url());
                    cases.insert_var("[REDIS]", server.url())?;
                    cases.case(format!("tests/redis/{}.trycmd", stringify!($name)));
                    cases.run();
                }
                Ok(())
            }
        )*
    };
}

transcripts! { domains descriptors exemptions penalties pauses credits setup limits costs overrides files history buckets decisions formats simulations replays mistakes }

/// The record of a cluster that is gone: of a domain that it was about to write, and of one that cannot be read.
#[test]
#[ignore = "needs a server"]
fn limits_of_a_cluster_that_is_gone_are_released_or_not_forgotten() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let record = r#"{"format":1,"owner":"old","domain":"","limits":{"a.b.c":""}}"#;
    let say = |words: &[&str]| crate::support::wait(server.command(words));
    for key in ["rl:{claimed}:objects", "rl:{later}:objects"] {
        say(&["SET", key, record])?;
    }
    say(&["SADD", "rl:domains", "later"])?;
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
    say(&later)?;
    let release = |arguments: &[&str]| {
        let release = [
            "--redis",
            &server.url(),
            "controller",
            "--cluster",
            "old",
            "--release",
        ];
        crate::support::ran(&mut rlctl(&[&release, arguments].concat()))
    };
    let failed = release(&["delete"])?.with(8);
    assert!(
        failed.err.contains("the limits of later are not deleted"),
        "{failed:?}"
    );
    assert!(say(&["GET", "rl:{later}:objects"])?.contains(record));
    let kept = release(&["keep", "--domain", "claimed"])?.with(0);
    assert!(kept.err.contains("claimed keeps its limits"), "{kept:?}");
    assert!(say(&["GET", "rl:{claimed}:objects"])?.contains("null"));
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn the_order_of_limits_is_an_edit_and_a_rollback_restores_it() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let file = tempfile::NamedTempFile::new()?;
    let orders = ["abcd", "dacb", "dxab", "ab", "ba"];
    for order in orders {
        let limits: Vec<_> = { order.chars() }
            .map(|name| format!("{{name: {name}, rate: 1/s}}"))
            .collect();
        std::fs::write(
            file.path(),
            format!("domain: shop\nlimits: [{}]\n", limits.join(", ")),
        )?;
        let path = file.path().display();
        server
            .run(&format!("apply --prune --yes -f {path}"))?
            .with(0);
    }
    let moved = server.run("history -n 1 -o wide")?;
    assert!(moved.out.contains("order: [a, b] → [b, a]"), "{moved:?}");
    for (at, order) in orders.iter().enumerate() {
        server.run(&format!("rollback {} --yes", at + 1))?.with(0);
        let names = server.run("list-limits -o name")?.out.replace('\n', "");
        assert_eq!(names, *order);
    }
    Ok(())
}

#[test]
#[ignore = "needs a server"]
fn buckets_are_found_by_what_list_keys_prints() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    server
        .run("set-limit per-user --per user --rate 10/1d")?
        .with(0);
    let digest = "ab".repeat(32);
    let bucket = "rl:b:shop:per-user:";
    let make = |value: &str| {
        server.run("check user=any --cost 3")?.with(0);
        let words = [
            "RENAME",
            &format!("{bucket}any"),
            &format!("{bucket}{value}"),
        ];
        crate::support::wait(server.command(&words))
    };
    make("caf%E9%1B")?;
    make(&format!("%~{digest}"))?;
    let listed = server.run("list-keys")?.out;
    let (text, long) = (r"user=caf\xe9\u{1b}", format!("user=sha256:{digest}"));
    assert!(listed.contains(text) && listed.contains(&long), "{listed}");
    let used = |expected: &str| -> Result<()> {
        let state = server.run(&format!("inspect per-user {text}"))?.with(0);
        assert!(state.out.contains(expected), "{state:?}");
        Ok(())
    };
    used("3 of 10")?;
    let explained = server.run(&format!("explain {text}"))?.with(0);
    assert!(explained.out.contains(text), "{explained:?}");
    server
        .run(&format!("credit per-user {text} --units 1"))?
        .with(0);
    used("2 of 10")?;
    server.run(&format!("reset per-user {text} --yes"))?.with(0);
    used("0 of 10")?;
    for command in [
        "inspect per-user",
        "explain",
        "reset --yes per-user",
        "credit --units 1 per-user",
    ] {
        let unknown = server.run(&format!("{command} {long}"))?.with(2);
        assert!(unknown.err.contains("name all of it"), "{unknown:?}");
    }
    // A value that is these characters is itself.
    make(r"caf\xe9")?;
    let itself = server.run(r"inspect per-user user=caf\xe9")?.with(0);
    assert!(itself.out.contains("3 of 10"), "{itself:?}");
    Ok(())
}

/// With `-q` stderr has warnings, errors and their hints, and nothing else, in any command.
#[test]
#[ignore = "needs a server"]
fn quiet_commands_only_warn() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    let limits = "tests/redis/files.in/good.yaml";
    let mut talking = 0;
    let commands: [&[&str]; 16] = [
        &["diff", "-f", limits],
        &["apply", "-f", limits],
        &["get-limit", "per-user"],
        &["set-limit", "daily", "--yes", "--rate", "9/day"],
        &["credit", "per-user", "user=a", "--units", "1"],
        &["pause", "--limit", "per-user"],
        &["resume", "--limit", "per-user"],
        &["resume"],
        &["list-keys"],
        &["list-keys", "--max", "0"],
        &["list-proxies"],
        &["denials"],
        &["stats"],
        &["check", "path=/none"],
        &["explain", "usr=a"],
        &["inspect", "-d", "nothing=a"],
    ];
    for arguments in commands {
        let run = |flags: &[&str]| {
            rlctl(&[arguments, flags].concat())
                .env("RLCTL_REDIS", server.url())
                .env("RLCTL_DOMAIN", "shop")
                .output()
        };
        let quiet = run(&["-q"])?;
        let said = String::from_utf8(quiet.stderr)?;
        let is_warning = |line: &str| {
            let starts = ["warning: ", "  hint: "];
            starts.iter().any(|start| line.starts_with(start))
        };
        assert!(said.lines().all(is_warning), "{arguments:?}: {said}");
        assert!(!said.starts_with("  hint"), "{arguments:?}: {said}");
        let loud = run(&[])?;
        let text = String::from_utf8(loud.stderr)?;
        talking += usize::from(text.lines().any(|line| !is_warning(line)));
    }
    assert!(
        talking > 10,
        "without -q only {talking} commands say anything"
    );
    Ok(())
}

/// The project's worked scenarios, decided by the scripts on both servers.
#[test]
#[ignore = "needs a server"]
fn the_worked_scenarios_come_out_as_written_on_a_server() -> Result<()> {
    let examples = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/examples.json"
    );
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        let arguments = [
            "simulate", "-f", examples, "--engine", "redis", "-o", "name",
        ];
        let output = rlctl(&arguments)
            .env("RLCTL_REDIS", server.url())
            .output()?;
        assert_eq!(
            String::from_utf8(output.stdout)?,
            "",
            "scenarios that came out otherwise"
        );
        assert_eq!(output.status.code(), Some(0));
    }
    Ok(())
}

/// Both engines decide the cases alike, and nothing is left on the server.
#[test]
#[ignore = "needs a server"]
fn the_scripts_decide_cases_as_the_algorithms_do() -> Result<()> {
    let folder = env!("CARGO_MANIFEST_DIR");
    let files = [
        "../limits.test.yaml",
        "tests/offline/test.in/limits.test.yaml",
    ];
    let files = files.map(|file| format!("{folder}/{file}"));
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine, &[])?;
        let [shipped, more] = &files;
        let output = rlctl(&["test", shipped, more, "--engine", "local,redis"])
            .env("RLCTL_REDIS", server.url())
            .output()?;
        let printed = String::from_utf8(output.stdout)?;
        assert_eq!(output.status.code(), Some(0), "{printed}");
        let by = |engine: &str| printed.matches(&format!(", by {engine}")).count();
        assert!(by("redis") >= 12, "{printed}");
        assert_eq!(by("redis"), by("local"), "{printed}");
        let keys = runtime.block_on(server.command(&["DBSIZE"]))?;
        assert_eq!(keys.trim(), ":0");
    }
    Ok(())
}

/// Limits that limiters would not load are refused by both, with the bound.
#[test]
#[ignore = "needs a server"]
fn what_validate_accepts_apply_accepts() -> Result<()> {
    use std::fmt::Write as _;
    let server = Server::start(Engine::Valkey, &[])?;
    let dir = tempfile::TempDir::new()?;
    let file = dir.path().join("limits.yaml");
    let path = file.to_string_lossy().into_owned();
    for (count, code) in [(10_001, 1), (9000, 0)] {
        let mut limits = "domain: shop\nlimits:\n".to_owned();
        for n in 0..count {
            writeln!(
                limits,
                "  - {{name: limit-{n}, match: {{path: /api/resource/{n}}}, per: [user], rate: 10/s, burst: 20}}"
            )?;
        }
        std::fs::write(&file, limits)?;
        let validated = rlctl(&["validate", "-f", &path]).output()?;
        let text = String::from_utf8(validated.stdout)?;
        assert_eq!(validated.status.code(), Some(code), "{text}");
        assert_eq!(text.contains("10000 limits"), code == 1, "{text}");
        let applied = rlctl(&["apply", "-f", &path])
            .env("RLCTL_REDIS", server.url())
            .output()?;
        assert_eq!(applied.status.success(), code == 0, "{applied:?}");
    }
    Ok(())
}

/// Calls rlctl as bash does when Tab is pressed.
#[test]
#[ignore = "needs a server"]
fn bash_completes_the_names_of_limits_and_domains() -> Result<()> {
    let server = Server::start(Engine::Valkey, &[])?;
    for (domain, limit) in [
        ("shop", "per-user"),
        ("shop", "per-tenant"),
        ("admin", "all"),
    ] {
        let set = [
            "--domain",
            domain,
            "set-limit",
            limit,
            "--rate",
            "1/s",
            "--yes",
        ];
        let set = rlctl(&set).env("RLCTL_REDIS", server.url()).output()?;
        assert!(set.status.success());
    }
    let script = rlctl(&["completions", "bash"]).output()?.stdout;
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_rlctl"));
    let folder = program.parent().map(std::path::Path::display);
    let path = format!(
        "{}:{}",
        folder.map_or_else(String::new, |f| f.to_string()),
        std::env::var("PATH")?
    );
    let named = format!(
        "rlctl --redis {} --domain shop get-limit per-u",
        server.url()
    );
    for (line, expected) in [
        (named.as_str(), "per-user"),
        ("rlctl --domain shop get-limit per-", "per-user per-tenant"),
        ("rlctl --domain=admin reset a", "all"),
        ("rlctl denials --domain shop --limit per-u", "per-user"),
        ("rlctl delete-domain s", "shop"),
        ("rlctl export --domain a", "admin"),
        ("rlctl --redis redis://127.0.0.1:1 get-limit per-", ""),
        ("rlctl --domain=shop pause --limit=per-u", "per-user"),
        ("rlctl --domain=shop pause --limit=", "per-user per-tenant"),
        ("rlctl get-lim", "get-limit"),
    ] {
        // Bash splits words at these as well.
        let call = "eval \"$SCRIPT\"; COMP_WORDS=($(sed 's/[:=]/ & /g' <<< \"$LINE\")); \
                    COMP_LINE=$LINE; COMP_POINT=${#LINE}; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                    _rlctl_with_names rlctl \"${COMP_WORDS[COMP_CWORD]}\" \
                    \"${COMP_WORDS[COMP_CWORD-1]}\"; echo \"${COMPREPLY[@]}\"";
        let output = std::process::Command::new("bash")
            .args(["-c", call])
            .env("SCRIPT", String::from_utf8(script.clone())?)
            .env("LINE", line)
            .env("PATH", &path)
            .env("RLCTL_REDIS", server.url())
            .output()?;
        assert_eq!(String::from_utf8(output.stdout)?.trim(), expected, "{line}");
    }
    Ok(())
}
