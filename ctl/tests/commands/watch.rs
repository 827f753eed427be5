//! `rlctl apply --watch`, against real servers, with files swapped as the kubelet swaps them and with
//! concurrent live edits.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::support::rlctl;
use anyhow::Result;
use harness::{Client, Engine, Process, Redis, Signal, free_port, until};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_mins(1);

/// A folder as the kubelet mounts a `ConfigMap`: `..data` links to the folder of a version, and each
/// file is a link through it.
struct ConfigMap {
    dir: TempDir,
    version: u32,
}

impl ConfigMap {
    fn new(files: &[(&str, &str)]) -> Result<Self> {
        let mut mounted = Self {
            dir: TempDir::new()?,
            version: 0,
        };
        for (name, _) in files {
            symlink(format!("..data/{name}"), mounted.path().join(name))?;
        }
        mounted.swap(files)?;
        Ok(mounted)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn swap(&mut self, files: &[(&str, &str)]) -> Result<()> {
        let old = self.folder();
        self.version += 1;
        fs::create_dir(self.folder())?;
        for (name, text) in files {
            fs::write(self.folder().join(name), text)?;
        }
        let fresh = self.path().join("..data_tmp");
        symlink(self.folder().file_name().unwrap(), &fresh)?;
        fs::rename(fresh, self.path().join("..data"))?;
        if self.version > 1 {
            fs::remove_dir_all(old)?;
        }
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.path().join(format!("..2026_11_22_{}", self.version))
    }
}

/// A server without persistence.
struct Server {
    redis: Redis,
    _dir: TempDir,
}

impl Server {
    async fn start(engine: Engine) -> Result<Self> {
        let dir = TempDir::new()?;
        let program = engine.program()?;
        let redis = Redis::start_with(&program, free_port()?, dir.path(), &[]).await?;
        Ok(Self { redis, _dir: dir })
    }

    fn url(&self) -> String {
        self.redis.url()
    }
}

const FAILURES: &str = "rl_apply_failures_total{cause=\"files\"}";

/// A running `apply --watch`, and its pages.
struct Watch {
    process: Process,
    url: String,
    _dir: TempDir,
}

impl Watch {
    async fn start(redis: &str, files: &Path, more: &[&str]) -> Result<Self> {
        let dir = TempDir::new()?;
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let mut command = rlctl(&["apply", "--watch", "--metrics-listen", &listen]);
        command.arg("-f").arg(files).args(more);
        command
            .env("RLCTL_REDIS", redis)
            .env("RLCTL_AUTHOR", "gitops");
        let mut process = Process::start("watch", &mut command, dir.path())?;
        let url = format!("http://{listen}");
        let health = Client::new().get(&format!("{url}/healthz"));
        let alive = async || health.send().await.ok().filter(|page| page.status == 200);
        process.ready(alive).await?;
        Ok(Self {
            process,
            url,
            _dir: dir,
        })
    }

    async fn page(&self, path: &str) -> (u16, String) {
        let page = Client::new().get(&format!("{}{path}", self.url));
        let page = page.send().await.unwrap();
        (page.status.as_u16(), page.text())
    }

    /// Waits until the page of metrics has a line.
    async fn until_metric(&self, line: &str) {
        let what = format!("{line} in the metrics");
        let found = until(&what, PATIENCE, async || {
            let (_, page) = self.page("/metrics").await;
            page.lines().any(|found| found == line).then_some(())
        });
        let found = found.await.is_ok();
        let page = self.page("/metrics").await.1;
        assert!(found, "no {line} in\n{page}{}", self.process.log());
    }

    /// How often the files were refused.
    async fn failures(&self) -> u64 {
        let page = self.page("/metrics").await.1;
        let count = page.lines().find_map(|line| line.strip_prefix(FAILURES));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    async fn until_said(&self, text: &str) {
        let found = until(text, PATIENCE, async || {
            self.process.log().contains(text).then_some(())
        });
        assert!(
            found.await.is_ok(),
            "no {text:?} in\n{}",
            self.process.log()
        );
    }
}

/// Runs a command as an operator would; it must succeed.
fn by_hand(redis: &str, arguments: &[&str]) -> String {
    let output = rlctl(arguments).env("RLCTL_REDIS", redis).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The limits in force, a line each; none if the domain does not exist.
fn limits(redis: &str) -> Vec<String> {
    let mut export = rlctl(&["export", "-o", "json", "--domain", "shop"]);
    let output = export.env("RLCTL_REDIS", redis).output().unwrap();
    if output.status.code() == Some(5) {
        return Vec::new();
    }
    let file: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let limits = file.get("limits").and_then(|limits| limits.as_array());
    let line = |limit: &serde_json::Value| {
        let field = |name: &str| limit.get(name).map(ToString::to_string).unwrap_or_default();
        format!("{} {}", field("name"), field("rate")).replace('"', "")
    };
    limits.unwrap().iter().map(line).collect()
}

async fn until_limits(redis: &str, expected: &[&str]) {
    let found = until("the limits", PATIENCE, async || {
        (limits(redis) == expected).then_some(())
    });
    assert!(found.await.is_ok(), "{:?} != {expected:?}", limits(redis));
}

fn shop(limits: &[&str]) -> String {
    let limits = limits.join("}\n  - {");
    format!("domain: shop\nlimits:\n  - {{{limits}}}\n")
}

const A: &str = "name: a, per: [user], rate: 1/s";
const B: &str = "name: b, rate: 1/s";

#[tokio::test]
#[ignore = "needs a server"]
async fn a_swapped_config_map_is_applied_and_edits_at_night_survive_it_and_a_restart() -> Result<()>
{
    for engine in [Engine::Valkey, Engine::Redis] {
        let server = Server::start(engine).await?;
        let redis = server.url();
        let mut mounted = ConfigMap::new(&[("shop.yaml", &shop(&[A, B]))])?;
        let watch = Watch::start(&redis, mounted.path(), &["--prune"]).await?;
        until_limits(&redis, &["a 1/s", "b 1/s"]).await;
        watch.until_metric("rl_apply_in_force 1").await;
        watch
            .until_metric("rl_apply_drift{domain=\"shop\"} 0")
            .await;
        assert_eq!(watch.page("/readyz").await.0, 200);

        // Live edits at night: a limit, one bucket, a new limit, a pause.
        by_hand(&redis, &["set-limit", "a", "--rate", "9/s"]);
        by_hand(
            &redis,
            &["set-limit", "a", "--for", "user=vip", "--rate", "99/s"],
        );
        by_hand(
            &redis,
            &["set-limit", "own", "--match", "path=/x", "--rate", "5/s"],
        );
        by_hand(&redis, &["pause", "--limit", "b"]);
        let night = ["a 9/s", "b 1/s", "own 5/s"];
        watch
            .until_metric("rl_apply_drift{domain=\"shop\"} 3")
            .await;
        watch.until_said("3 differences from the files").await;
        assert_eq!(limits(&redis), night);

        // The file changes `b`, and has a new limit: the other live edits stay.
        let b = "name: b, rate: 2/s";
        let c = "name: c, rate: 3/s";
        mounted.swap(&[("shop.yaml", &shop(&[A, b, c]))])?;
        until_limits(&redis, &["a 9/s", "b 2/s", "own 5/s", "c 3/s"]).await;
        assert!(by_hand(&redis, &["export"]).contains("user: vip"));

        // They stay over a restart as well, and nothing is written.
        watch.process.stop().await?;
        let written = by_hand(&redis, &["history", "-n", "0", "-o", "name"]);
        let watch = Watch::start(&redis, mounted.path(), &["--prune"]).await?;
        watch.until_metric("rl_apply_in_force 1").await;
        assert_eq!(limits(&redis), ["a 9/s", "b 2/s", "own 5/s", "c 3/s"]);
        assert_eq!(
            by_hand(&redis, &["history", "-n", "0", "-o", "name"]),
            written
        );

        // The file changes a limit that was edited at night, and no longer has `c`: the file wins.
        let a = "name: a, per: [user], rate: 4/s";
        mounted.swap(&[("shop.yaml", &shop(&[a, b]))])?;
        until_limits(&redis, &["a 4/s", "b 2/s", "own 5/s"]).await;
        let history = by_hand(&redis, &["history"]);
        assert!(history.contains("gitops"), "{history}");

        // Their order is the file's, too.
        mounted.swap(&[("shop.yaml", &shop(&[b, a]))])?;
        until_limits(&redis, &["b 2/s", "own 5/s", "a 4/s"]).await;
        let history = by_hand(&redis, &["history", "-n", "1"]);
        assert!(history.contains("~order"), "{history}");
        watch.process.stop().await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn files_that_lost_most_of_their_limits_delete_nothing_unless_told() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let redis = server.url();
    let c = "name: c, rate: 3/s";
    let mut mounted = ConfigMap::new(&[("shop.yaml", &shop(&[A, B, c]))])?;
    let watch = Watch::start(&redis, mounted.path(), &["--prune"]).await?;
    let all = ["a 1/s", "b 1/s", "c 3/s"];
    until_limits(&redis, &all).await;
    for (files, deleted) in [
        ("domain: shop\nlimits: []\n".to_owned(), 3),
        (shop(&[A]), 2),
    ] {
        mounted.swap(&[("shop.yaml", &files)])?;
        watch
            .until_said(&format!(
                "would delete {deleted} of the 3 limits of domain shop"
            ))
            .await;
        watch.until_metric("rl_apply_in_force 0").await;
        assert_eq!(limits(&redis), all);
    }
    let (status, why) = watch.page("/readyz").await;
    assert!(status == 503 && why.contains("more than 50 %"), "{why}");
    // Others instead of all are refused in each turn, and a person's limit does not become the files'.
    by_hand(
        &redis,
        &["set-limit", "x", "--match", "path=/x", "--rate", "5/s"],
    );
    let others = ["x", "y", "z"].map(|name| format!("name: {name}, rate: 9/s"));
    mounted.swap(&[("shop.yaml", &shop(&others.each_ref().map(String::as_str)))])?;
    for _ in 0..2 {
        let failed = watch.failures().await;
        watch
            .until_metric(&format!("{FAILURES} {}", failed + 1))
            .await;
    }
    mounted.swap(&[("shop.yaml", &shop(&[A, B, c]))])?;
    watch.until_metric("rl_apply_in_force 1").await;
    assert_eq!(limits(&redis), ["a 1/s", "b 1/s", "c 3/s", "x 5/s"]);
    by_hand(&redis, &["delete-limit", "x", "--yes"]);
    // One of three may go; and with the flag, all.
    mounted.swap(&[("shop.yaml", &shop(&[A, B]))])?;
    until_limits(&redis, &["a 1/s", "b 1/s"]).await;
    watch.until_metric("rl_apply_in_force 1").await;
    watch.process.stop().await?;
    mounted.swap(&[("shop.yaml", "domain: shop\nlimits: []\n")])?;
    let allowed = ["--prune", "--prune-max=100%"];
    let watch = Watch::start(&redis, mounted.path(), &allowed).await?;
    until_limits(&redis, &[]).await;
    watch.process.stop().await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn invalid_files_change_nothing_until_they_are_valid_again() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let redis = server.url();
    let valid = shop(&[A]);
    let mut mounted = ConfigMap::new(&[("shop.yaml", &valid), ("admin.yaml", "domain: admin\n")])?;
    // `limits` is missing in one of two files.
    let watch = Watch::start(&redis, mounted.path(), &[]).await?;
    watch.until_said("admin.yaml has 1 problem").await;
    watch
        .until_metric("rl_apply_failures_total{cause=\"files\"} 1")
        .await;
    let (status, why) = watch.page("/readyz").await;
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("admin.yaml has 1 problem"), "{why}");
    assert_eq!(by_hand(&redis, &["list-domains", "-o", "name"]), "");

    let admin = "domain: admin\nlimits: []\n";
    mounted.swap(&[("shop.yaml", &valid), ("admin.yaml", admin)])?;
    until_limits(&redis, &["a 1/s"]).await;
    watch.until_metric("rl_apply_in_force 1").await;

    mounted.swap(&[
        ("shop.yaml", "domain: shop\nlimits: [{name: a, rate: ten}]"),
        ("admin.yaml", admin),
    ])?;
    watch.until_metric("rl_apply_in_force 0").await;
    watch.until_said("stay in force").await;
    assert_eq!(limits(&redis), ["a 1/s"]);
    mounted.swap(&[
        ("shop.yaml", &shop(&["name: a, rate: 2/s"])),
        ("admin.yaml", admin),
    ])?;
    until_limits(&redis, &["a 2/s"]).await;
    watch.until_metric("rl_apply_in_force 1").await;

    // What has the name of a file and cannot be read is not a file that was removed.
    let folder = mounted.path().join("folder.yaml");
    let link = mounted.path().join("link.yaml");
    for (place, words) in [(&folder, "folder.yaml: not a file"), (&link, "link.yaml: ")] {
        if *place == folder {
            fs::create_dir(place)?;
        } else {
            symlink("nowhere", place)?;
        }
        watch.until_said(words).await;
        watch.until_metric("rl_apply_in_force 0").await;
        assert_eq!(limits(&redis), ["a 2/s"]);
        if *place == folder {
            fs::remove_dir(place)?;
        } else {
            fs::remove_file(place)?;
        }
        watch.until_metric("rl_apply_in_force 1").await;
    }
    watch.process.stop().await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn redis_may_be_away_at_the_start_and_later_and_lose_everything() -> Result<()> {
    let (port, dir, files) = (free_port()?, TempDir::new()?, TempDir::new()?);
    let redis = format!("redis://127.0.0.1:{port}");
    let file = files.path().join("limits.yaml");
    fs::write(&file, shop(&[A]))?;
    let mut watch = Watch::start(&redis, &file, &[]).await?;
    watch.until_said("cannot reach redis://").await;
    watch.until_metric("rl_apply_in_force 0").await;
    assert!(watch.process.is_running());

    let program = Engine::Valkey.program()?;
    let arguments = ["--save", "", "--appendonly", "no"];
    let server = Redis::start_with(&program, port, dir.path(), &arguments).await?;
    watch.until_metric("rl_apply_in_force 1").await;
    watch.until_said("the store answers again").await;
    until_limits(&redis, &["a 1/s"]).await;

    // The server comes back empty: the lost limits are written again.
    drop(server);
    watch.until_metric("rl_apply_in_force 0").await;
    let server = Redis::start_with(&program, port, dir.path(), &arguments).await?;
    until_limits(&redis, &["a 1/s"]).await;
    watch.until_said("the store has lost domain shop").await;
    watch.until_metric("rl_apply_in_force 1").await;

    // A domain that was deleted on purpose stays deleted until the file changes.
    by_hand(&redis, &["delete-domain", "shop", "--yes"]);
    watch
        .until_metric("rl_apply_drift{domain=\"shop\"} 1")
        .await;
    assert_eq!(by_hand(&redis, &["list-domains", "-o", "name"]), "");
    fs::write(&file, shop(&[A, B]))?;
    until_limits(&redis, &["a 1/s", "b 1/s"]).await;
    drop(server);
    watch.process.stop().await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn two_watches_of_the_same_files_write_each_edit_once() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let redis = server.url();
    let files = TempDir::new()?;
    let file = files.path().join("limits.yaml");
    fs::write(&file, shop(&[A]))?;
    let one = Watch::start(&redis, files.path(), &[]).await?;
    let two = Watch::start(&redis, files.path(), &[]).await?;
    for n in 1..=3 {
        fs::write(&file, shop(&[A, &format!("name: b, rate: {n}/s")]))?;
        until_limits(&redis, &["a 1/s", &format!("b {n}/s")]).await;
        for watch in [&one, &two] {
            watch
                .until_metric(&format!("rl_apply_revision{{domain=\"shop\"}} {}", n + 1))
                .await;
        }
    }
    let history = by_hand(&redis, &["history", "-n", "0", "-o", "name"]);
    assert_eq!(history.lines().count(), 4, "{history}");
    one.process.stop().await?;
    two.process.stop().await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn sigterm_ends_it_with_0_and_strangers_at_the_port_do_no_harm() -> Result<()> {
    let server = Server::start(Engine::Valkey).await?;
    let files = TempDir::new()?;
    fs::write(files.path().join("limits.yaml"), shop(&[A]))?;
    let mut watch = Watch::start(&server.url(), files.path(), &[]).await?;
    watch.until_metric("rl_apply_in_force 1").await;
    assert_eq!(watch.page("/").await.0, 404);
    let post = Client::new().post(&format!("{}/metrics", watch.url), "x");
    assert_eq!(post.send().await?.status, 405);

    // More idle connections than are served at a time: they are closed after a while.
    let address = watch.url.trim_start_matches("http://");
    let silent: Vec<_> = (0..300)
        .filter_map(|_| std::net::TcpStream::connect(address).ok())
        .collect();
    watch.until_metric("rl_apply_in_force 1").await;
    drop(silent);

    watch.process.signal(Signal::TERM)?;
    let status = watch.process.ended().await?;
    assert_eq!(status.code(), Some(0), "{}", watch.process.log());
    Ok(())
}

/// A lack of file descriptors ends without a change of the file.
#[cfg(target_os = "linux")]
#[tokio::test]
#[ignore = "needs a server"]
async fn files_that_could_not_be_read_are_read_again_though_they_stay_the_same() -> Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let server = Server::start(Engine::Valkey).await?;
    let redis = server.url();
    let folder = TempDir::new()?;
    let path = folder.path().join("shop.yaml");
    fs::write(&path, shop(&[A]))?;
    let watch = Watch::start(&redis, &path, &[]).await?;
    until_limits(&redis, &["a 1/s"]).await;

    let pid = Pid::from_raw(i32::try_from(watch.process.id())?);
    let none = Rlimit {
        current: Some(3),
        ..rustix::process::getrlimit(Resource::Nofile)
    };
    let before = prlimit(pid, Resource::Nofile, none)?;
    fs::write(&path, shop(&[A, B]))?;
    watch.until_said("Too many open files").await;
    assert_eq!(limits(&redis), ["a 1/s"]);
    prlimit(pid, Resource::Nofile, before)?;
    until_limits(&redis, &["a 1/s", "b 1/s"]).await;
    let said = watch.process.log().matches("Too many open files").count();
    assert_eq!(said, 1, "{}", watch.process.log());
    watch.process.stop().await
}
