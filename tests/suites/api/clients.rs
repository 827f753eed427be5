//! The clients of `docs/clients`, as they are printed there.

use std::path::Path;
use std::process::Command;

use crate::service::{Service, document, variable};

/// The first block of code of a page.
fn code(page: &str, language: &str) -> String {
    let text = std::fs::read_to_string(document(&format!("clients/{page}.md"))).unwrap();
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap();
    let (code, _) = rest.split_once("```").unwrap();
    code.to_owned()
}

/// Runs a page's client, followed by code that proves it works.
async fn proves(program: &Path, page: &str, language: &str, file: &str, proof: &str) {
    let service = Service::start(&[]).await;
    let path = service.dir.path().join(file);
    std::fs::write(&path, code(page, language) + proof).unwrap();
    let mut command = Command::new(program);
    command.arg(&path).env("LIMITER", service.limiter.url());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
    assert_eq!(String::from_utf8_lossy(&said).trim(), "proved");
}

const PYTHON: &str = r#"
import os
limiter = Limiter(os.environ["LIMITER"], "shop")
user = {"user": "alice", "path": "/api"}
assert [limiter.check(user)["allowed"] for _ in range(6)] == [True] * 5 + [False]
assert limiter.check(user)["retry_after_ms"] > 0
waiter = {"user": "bob", "path": "/wait"}
assert all(limiter.check(waiter, wait_ms=5000)["allowed"] for _ in range(5))
assert limiter.check(waiter, cost=3, wait_ms=5000)["reason"] == "exceeds_capacity"
try:
    Limiter(os.environ["LIMITER"], "nosuch").check(user)
    raise SystemExit("an unknown domain is an error")
except NoDecision as error:
    assert error.code == "unknown_domain"
gone = Limiter("http://127.0.0.1:9", "shop", timeout_s=0.2)
assert gone.allowed(user, if_undecided=True) and not gone.allowed(user, if_undecided=False)
print("proved")
"#;

const JAVASCRIPT: &str = r#"
import assert from "node:assert/strict";
const limiter = new Limiter(process.env.LIMITER, "shop");
const user = { user: "alice", path: "/api" };
const seen = [];
for (let i = 0; i < 6; i += 1) seen.push((await limiter.check(user)).allowed);
assert.deepEqual(seen, [true, true, true, true, true, false]);
const waiter = { user: "bob", path: "/wait" };
for (let i = 0; i < 5; i += 1) assert((await limiter.check(waiter, { waitMs: 5000 })).allowed);
assert.equal((await limiter.check(waiter, { cost: 3, waitMs: 5000 })).reason, "exceeds_capacity");
await assert.rejects(new Limiter(process.env.LIMITER, "nosuch").check(user), { code: "unknown_domain" });
const gone = new Limiter("http://127.0.0.1:9", "shop", { timeoutMs: 200 });
assert.equal(await gone.allowed(user, { ifUndecided: true }), true);
assert.equal(await gone.allowed(user, { ifUndecided: false }), false);
console.log("proved");
"#;

#[tokio::test]
async fn the_python_client_does_what_its_page_says() {
    proves(
        Path::new("python3"),
        "python",
        "python",
        "client.py",
        PYTHON,
    )
    .await;
}

#[tokio::test]
async fn the_javascript_client_does_what_its_page_says() {
    proves(
        &variable("RL_TEST_NODE"),
        "javascript",
        "js",
        "client.mjs",
        JAVASCRIPT,
    )
    .await;
}
