//! The setup of tests: a plan has the differences from the default, a stage is a running plan.

mod plan;
mod store;

use std::process::{Command, Output};
use std::time::Duration;

use harness::{Client, Envoy, Limiter, LimiterPlan, Programs, RawClient, Reply, Request, Upstream};
use serde_json::Value;
use tempfile::TempDir;

use plan::Keeps;
pub use plan::{Plan, alone, compiled, limits};
use store::Store;

/// Long enough for a busy machine. Promises with a time limit, such as edits within a second, are
/// tested in the simulation, whose clock no other program delays.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `probe` returns something.
pub async fn eventually<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    harness::until(what, PATIENCE, probe).await.unwrap()
}

/// Envoy's log line when a VM ends.
const TRAP: &str = "failed: Uncaught";

/// A running plan.
pub struct Stage {
    programs: Programs,
    pub upstream: Upstream,
    store: Store,
    store_url: String,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    envoys: Vec<Envoy>,
    _dir: TempDir,
}

/// Checks in every test that the filter's VM is still alive.
impl Drop for Stage {
    fn drop(&mut self) {
        for envoy in self.envoys.iter().filter(|_| !std::thread::panicking()) {
            let log = envoy.process().log();
            let traps: Vec<&str> = log.lines().filter(|line| line.contains(TRAP)).collect();
            assert!(traps.is_empty(), "the filter trapped: {traps:#?}");
        }
    }
}

impl Stage {
    /// The only Envoy, or the first.
    pub fn envoy(&self) -> &Envoy {
        self.nth_envoy(0)
    }

    /// One of several.
    pub fn nth_envoy(&self, n: usize) -> &Envoy {
        self.envoys.get(n).expect("the plan has that many Envoys")
    }

    /// A client that does not enforce HTTP's rules.
    pub fn raw(&self) -> RawClient {
        RawClient::new(self.envoy().port())
    }

    /// A GET as a user.
    pub fn get(&self, path: &str, user: &str) -> Request {
        self.envoy().get(path).header("x-user-id", user)
    }

    /// Runs rlctl on the store and expects it to succeed.
    pub fn rlctl(&self, arguments: &[&str]) -> String {
        rlctl(&self.programs, &self.store_url, arguments)
    }

    /// Runs a line of the documentation in a shell, with Envoy's port in place of the documented one,
    /// and `rlctl` at hand; returns what it prints.
    pub async fn shell(&self, line: &str) -> String {
        let envoy = format!("127.0.0.1:{}", self.envoy().port());
        let folder = self.programs.rlctl.parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(folder).chain(std::env::split_paths(&path));
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &line.replace("127.0.0.1:10000", &envoy)])
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("RL_STORE", &self.store_url);
        // The service behind Envoy answers meanwhile.
        let output = tokio::task::spawn_blocking(move || shell.output()).await;
        let output = output.unwrap().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// The report of `rlctl doctor`. Its exit code only says whether there are findings.
    pub fn doctor(&self) -> Value {
        let output = run_rlctl(&self.programs, &self.store_url, &["doctor", "-o", "json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// `rlctl inspect LIMIT KEY=VALUE... -o json`.
    pub fn inspect(&self, limit: &str, bucket: &[&str]) -> Value {
        let arguments = [&["inspect", limit], bucket, &["-o", "json"]].concat();
        serde_json::from_str(&self.rlctl(&arguments)).unwrap()
    }

    /// Kills the last Envoy.
    pub fn kill_an_envoy(&mut self) {
        drop(self.envoys.pop().expect("the plan has an Envoy"));
    }

    /// Stops all limiters; connections to them are refused from then on.
    pub async fn stop_limiters(&mut self) {
        for limiter in std::mem::take(&mut self.limiters) {
            self.stopped.push(limiter.stop().await.unwrap());
        }
    }

    /// Stops one of two.
    pub async fn stop_one_limiter(&mut self) {
        let limiter = self.limiters.pop().expect("a limiter runs");
        self.stopped.push(limiter.stop().await.unwrap());
    }

    /// Kills one of two.
    pub async fn kill_one_limiter(&mut self) {
        let limiter = self.limiters.pop().expect("a limiter runs");
        self.stopped.push(limiter.kill().await.unwrap());
    }

    /// The port of the limiter that was stopped last.
    pub fn stopped_port(&self) -> u16 {
        self.stopped.last().expect("a limiter was stopped").port
    }

    /// Starts the stopped limiters again.
    pub async fn start_limiters(&mut self) {
        for plan in std::mem::take(&mut self.stopped) {
            self.limiters.push(plan.start().await.unwrap());
        }
    }

    /// The number of running limiters.
    pub fn limiters(&self) -> usize {
        self.limiters.len()
    }

    /// One of them.
    pub fn limiter(&self, n: usize) -> &Limiter {
        self.limiters.get(n).expect("that many limiters run")
    }

    /// The metrics of every limiter, as Prometheus reads them.
    pub async fn limiter_pages(&self) -> Vec<String> {
        let mut pages = Vec::new();
        for n in 0..self.limiters() {
            let url = format!("{}/metrics", self.limiter(n).admin_url());
            pages.push(Client::new().get(&url).send().await.unwrap().text());
        }
        pages
    }

    /// The sum of a counter over all limiters and labels.
    pub async fn limiter_counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for n in 0..self.limiters() {
            sum += self.metric_of(n, name).await;
        }
        sum
    }

    /// The sum of a metric of one limiter over all labels.
    pub async fn metric_of(&self, n: usize, name: &str) -> u64 {
        let url = format!("{}/metrics", self.limiter(n).admin_url());
        let page = Client::new().get(&url).send().await.unwrap().text();
        page.lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }
}

/// Runs rlctl and expects it to succeed.
fn rlctl(programs: &Programs, store: &str, arguments: &[&str]) -> String {
    let output = run_rlctl(programs, store, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "rlctl {arguments:?}: {}\n{said}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

fn run_rlctl(programs: &Programs, store: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(&programs.rlctl);
    let command = command.args(arguments).env("RL_STORE", store);
    command.output().unwrap()
}

/// The statuses of `n` requests, sent one after the other.
pub async fn statuses(request: &Request, n: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..n {
        statuses.push(request.send().await.unwrap().status.as_u16());
    }
    statuses
}

/// Sends `n` requests at once; returns how many got 200 and how many 429.
pub async fn at_once(request: &Request, n: usize) -> (usize, usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..n {
        let request = request.clone();
        tasks.spawn(async move { request.send().await.unwrap().status.as_u16() });
    }
    let statuses = tasks.join_all().await;
    let count = |wanted| statuses.iter().filter(|&&status| status == wanted).count();
    (count(200), count(429))
}

/// The value of a header, which must be there.
pub fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
    reply
        .header(name)
        .unwrap_or_else(|| panic!("no {name} in {:?}", reply.headers))
}
