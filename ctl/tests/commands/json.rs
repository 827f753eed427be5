//! The output of every command's `-o json` is valid by docs/rlctl-output.schema.json.

mod reports;

use std::collections::BTreeSet;

use crate::support::{Server, rlctl, schema};
use anyhow::{Context, Result, ensure};
use harness::Engine;

/// Commands that print text only, or draw; and one that runs until it is stopped, and prints what `apply` does.
const WITHOUT: [&str; 4] = ["completions", "controller", "man", "top"];

/// Run in this order, on an empty server. `<NAME` stands for the path of the file NAME.
const FIRST: &str = "
list-domains
validate -f <limits.yaml -f <wrong.yaml
convert --from limitador <limitador.yaml
convert --to kubernetes --gateway infra/public <limits.yaml
diff -f <limits.yaml
apply -f <limits.yaml --dry-run
apply -f <limits.yaml --reason first
apply -f <edited.yaml
diff -f <limits.yaml
set-limit per-user --for user=alice --rate 100/s --until 2099-12-01T00:00Z
set-exemption health --match path=/healthz
set-limit trial --per user --rate 1/h --shadow
set-limit soft --per user --rate 1/h --over-limit degrade
set-limit line --yes --rate 1/m --burst 5 --algorithm leaky_bucket --over-limit queue
pause --until 2099-12-01T00:00Z --yes
list-limits
list-domains
resume
pause --limit soft
get-limit soft
list-domains
resume --limit soft
explain -d path=/api/x -d user=alice
check -d path=/api/x -d user=alice
check -d path=/api/x -d user=alice
check -d path=/api/x
check -d path=/api/x -d user=zoe --limit per-user --cost 99 --peek
simulate -f <scenarios.json
simulate -f <scenarios.json --engine redis
test <limits.test.yaml --coverage
test <wrong.test.yaml --engine local,redis
replay <access.log -f <limits.yaml
replay <access.log -f <edited.yaml --against redis
suggest <access.log --per path --match method=GET
inspect per-user user=alice
inspect per-user user=zoe
inspect -d path=/api/x -d user=alice
list-keys
list-keys --max 0
list-keys --max 1
credit per-user user=alice --units 1 --dry-run
credit per-user user=alice --units 1
reset per-user user=alice --dry-run
reset per-user user=alice --yes
reset per-user --yes
load-scripts --check
load-scripts
ping
doctor
export
get-limit per-user
list-limits
stats
denials
list-proxies
";

/// Run after limiters have reported.
const TOLD: &str = "
stats
stats per-user --over 1h
stats --over 24h --buckets
denials
denials --limit trial
suggest --limit per-user --deny 1%
list-proxies
doctor
";

const LAST: &str = "
rollback 1 --limit per-user --yes
delete-limit soft --yes
delete-exemption health --yes
history
delete-domain shop --yes
list-domains
";

const FILES: [(&str, &str); 8] = [
    (
        "limits.yaml",
        "domain: shop\nlimits:\n  - {name: per-user, match: {path: '/api/**'}, per: [user], rate: 10/s, burst: 20}\n",
    ),
    (
        "edited.yaml",
        "domain: shop\nlimits:\n  - {name: per-user, match: {path: '/api/**'}, per: [user], rate: 20/s}\n  - {name: tokens, match: {path: '/api/**'}, per: [user], rate: 1000/d, cost: {from: {response_json: /n}, reserve: 10, max: 100}}\n",
    ),
    (
        "access.log",
        "10.0.0.1 - - [25/Nov/2026:23:47:17 +0000] \"GET /api/a HTTP/1.1\" 200 612\nbroken\n",
    ),
    (
        "wrong.yaml",
        "domain: shop\nlimits:\n  - {name: a, rate: fast, bursts: 1}\n",
    ),
    (
        "limitador.yaml",
        "[{namespace: a, max_value: 1, seconds: 1}, {namespace: a, max_value: 1, seconds: 1, variables: ['size(b)']}]\n",
    ),
    (
        "limits.test.yaml",
        "cases:\n  - {name: a, requests: [{path: /api/x, user: alice, expect: allow}]}\n",
    ),
    (
        "wrong.test.yaml",
        "limits: edited.yaml\ncases:\n  - {name: a, requests: [{path: /api/x, user: alice, expect: {deny: tokens, delay: 1s}}]}\n  - {name: b, requests: [{path: /x, expect: deny}]}\n",
    ),
    (
        "scenarios.json",
        include_str!("../../../tests/vectors/examples.json"),
    ),
];

struct Session {
    server: Server,
    folder: tempfile::TempDir,
    seen: BTreeSet<String>,
}

impl Session {
    /// Runs each line and compares what it prints.
    fn run(&mut self, lines: &str) -> Result<()> {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            self.one(line).with_context(|| format!("rlctl {line}"))?;
        }
        Ok(())
    }

    fn one(&mut self, line: &str) -> Result<()> {
        let folder = self.folder.path();
        let file = |name| folder.join(name).display().to_string();
        let words = line.split(' ');
        let words = words.map(|word| word.strip_prefix('<').map_or(word.to_owned(), file));
        let words: Vec<String> = words.chain(["-o".into(), "json".into()]).collect();
        let mut command = rlctl(&words.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("RLCTL_REDIS", self.server.url());
        command.env("XDG_CONFIG_HOME", folder);
        let output = command.output()?;
        let said = String::from_utf8(output.stderr)?;
        let answered = matches!(output.status.code(), Some(0 | 1));
        ensure!(answered, "{}: {said}", output.status);
        ensure!(!output.stdout.is_empty(), "nothing printed: {said}");
        let printed = serde_json::from_slice(&output.stdout)?;
        let name = line.split(' ').next().unwrap_or(line);
        schema::validate(name, &printed)?;
        self.seen.insert(name.to_owned());
        Ok(())
    }
}

#[test]
#[ignore = "needs a server"]
fn what_is_printed_is_documented() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    for (name, text) in FILES {
        std::fs::write(folder.path().join(name), text)?;
    }
    let mut session = Session {
        server: Server::start(Engine::Redis, &[])?,
        folder,
        seen: BTreeSet::new(),
    };
    session.run(FIRST)?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(reports::write(&session.server))?;
    session.run(TOLD)?;
    session.run(LAST)?;
    let commands = ctl::cli::command();
    let commands = commands.get_subcommands().map(|c| c.get_name().to_owned());
    let expected: BTreeSet<String> = commands
        .filter(|name| !WITHOUT.contains(&name.as_str()) && name != "help")
        .collect();
    assert_eq!(session.seen, expected, "every command is tried");
    Ok(())
}

/// Checks the validator: one that accepts everything would prove nothing.
#[test]
fn what_is_not_documented_is_found() -> Result<()> {
    let good = serde_json::json!({
        "address": "redis://127.0.0.1:6379", "server": "redis", "version": null,
        "role": "master", "nodes": 1, "latency_us": 210,
    });
    schema::validate("ping", &good)?;
    let with = |field: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        changed[field] = value;
        schema::validate("ping", &changed)
    };
    assert!(with("extra", 1.into()).is_err(), "a field too many");
    assert!(with("nodes", "1".into()).is_err(), "another type");
    assert!(with("nodes", (-1).into()).is_err(), "below the minimum");
    let mut lacking = good.clone();
    lacking.as_object_mut().context("a map")?.remove("role");
    assert!(
        schema::validate("ping", &lacking).is_err(),
        "a field too few"
    );
    Ok(())
}
