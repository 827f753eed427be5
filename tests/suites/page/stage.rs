//! A limiter with its page, its store, traffic, and a browser.

pub use harness::variable;

use std::process::Command;

use harness::{Chromium, Client, Limiter, LimiterPlan, Redis, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const TOKEN: &str = "9f0c2a7d41b85e63";

pub const LIMITS: &str = "domain: shop
limits:
  - {name: per-user, description: One user's request rate, per: [user], rate: 10/1m, match: {path: \"/api/**\"}}
  - {name: login, per: [user], algorithm: fixed_window, rate: 3/1h, match: {path: /login}}
  - {name: exports, rate: 100/1m, match: {path: /export}, description: Everybody's exports together}
  - {name: trial, per: [user], rate: 1/1h, enforce: 0%, match: {path: \"/api/**\"}}
";

/// The running programs.
pub struct Stage {
    pub browser: Chromium,
    pub limiter: Limiter,
    pub redis: Redis,
    pub client: Client,
    _dir: TempDir,
}

impl Stage {
    /// Starts a limiter with these limits, and a browser that has not signed in.
    pub async fn start(limits: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = variable("RL_TEST_REDIS");
        let redis = Redis::start(&program, free_port().unwrap(), dir.path())
            .await
            .unwrap();
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, TOKEN).unwrap();
        let tokens = tokens.to_str().unwrap();
        let more = ["--page-token-file", tokens, "--store-timeout", "2s"];
        let plan = LimiterPlan::under(limits, &redis.url(), dir.path(), &more).unwrap();
        let limiter = plan.start().await.unwrap();
        let browser = Chromium::start(&variable("RL_TEST_CHROMIUM"), dir.path()).await;
        Self {
            browser: browser.unwrap(),
            limiter,
            redis,
            client: Client::new(),
            _dir: dir,
        }
    }

    /// The same, signed in and at the overview.
    pub async fn signed_in(limits: &str) -> Self {
        let mut stage = Self::start(limits).await;
        stage.open("/").await;
        stage.sign_in(TOKEN).await;
        stage.shows(&["Overview"]).await;
        // The sign-in form has status 401, which the console reports.
        stage.browser.take_complaints();
        stage
    }

    /// Waits until the page shows these texts.
    pub async fn shows(&mut self, texts: &[&str]) {
        self.browser.shows(texts).await.unwrap();
    }

    pub async fn eval(&mut self, expression: &str) -> Value {
        self.browser.eval(expression).await.unwrap()
    }

    pub async fn click(&mut self, text: &str) {
        self.browser.click(text).await.unwrap();
    }

    pub async fn press(&mut self, key: &str) {
        self.browser.press(key).await.unwrap();
    }

    pub async fn open(&mut self, path: &str) {
        let url = format!("{}{path}", self.limiter.admin_url());
        self.browser.open(&url).await.unwrap();
    }

    /// Types a token and submits the form by keyboard.
    pub async fn sign_in(&mut self, token: &str) {
        let focus = "document.querySelector('input').focus()";
        self.eval(focus).await;
        self.browser.type_text(token).await.unwrap();
        self.browser.press("Enter").await.unwrap();
        self.browser.loaded().await.unwrap();
    }

    /// Sends a check with these entries; returns whether it was allowed.
    pub async fn check(&self, descriptor: Value) -> bool {
        let body = json!({"domain": "shop", "descriptor": descriptor}).to_string();
        let reply = self
            .client
            .post(&format!("{}/v1/check", self.limiter.url()), body);
        let reply = reply.send().await.unwrap();
        reply.json().unwrap()["allowed"]
            .as_bool()
            .unwrap_or_else(|| panic!("{}", reply.text()))
    }

    /// Sends twelve requests of a user, of which the last two are denied.
    pub async fn use_up(&self, user: &str) {
        for _ in 0..12 {
            self.check(json!({"user": user, "path": "/api/orders"}))
                .await;
        }
    }

    /// Polls the snapshot as a proxy does.
    pub async fn poll(&self, node: &str, number: u32, revision: Option<&str>) {
        let revision = revision.map_or(String::new(), |revision| format!("&revision={revision}"));
        let url = format!(
            "{}/v1/policy?domain=shop&proxy={number:032x}&node={node}{revision}",
            self.limiter.url()
        );
        self.client.get(&url).send().await.unwrap();
    }

    /// The revision in force, as proxies send it.
    pub async fn revision(&self) -> String {
        let url = format!("{}/v1/policy?domain=shop", self.limiter.url());
        let reply = self.client.get(&url).send().await.unwrap();
        reply.header("etag").unwrap().trim_matches('"').to_owned()
    }

    /// Runs `rlctl` on the store.
    pub fn rlctl(&self, arguments: &[&str]) {
        let mut command = Command::new(variable("RL_TEST_BIN").join("rlctl"));
        command
            .args(arguments)
            .args(["--redis", &self.redis.url(), "--domain", "shop"]);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
