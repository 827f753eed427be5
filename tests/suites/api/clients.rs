//! The clients of `docs/clients`, as they are printed there.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};

use crate::service::{Service, document, variable};

/// The blocks of code of a page; the first is the client.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(document(&format!("clients/{page}.md"))).unwrap();
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").unwrap().0.to_owned());
    blocks.collect()
}

/// Forwards connections to a limiter; returns its own URL, and the number of connections so far.
async fn counted(limiter: &str) -> (String, Arc<AtomicUsize>) {
    let to = limiter.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let mut to = TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move {
                // It ends when either side closes.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    (url, connections)
}

/// Runs a page's client, followed by code that proves it works.
async fn proves(program: &Path, page: &str, language: &str, file: &str, proof: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    let client = blocks(page, language).swap_remove(0);
    std::fs::write(&path, client + proof).unwrap();
    let mut command = Command::new(program);
    command.arg(&path);
    is_proved(command).await;
}

/// Runs a program that proves that a client works. It makes two clients, each of which needs one
/// connection.
async fn is_proved(mut command: Command) {
    let service = Service::start(&[]).await;
    let (url, connections) = counted(&service.limiter.url()).await;
    command.env("LIMITER", url);
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
    let connections = connections.load(Ordering::Relaxed);
    assert!(connections <= 2, "{connections} connections");
}

const PYTHON: &str = r#"
import os
limiter = Limiter(os.environ["LIMITER"], "shop")
user = {"user": "alice", "path": "/api"}
assert [limiter.check(user)["allowed"] for _ in range(6)] == [True] * 5 + [False]
assert limiter.check(user)["retry_after_ms"] > 0
assert int(retry_after(limiter.check(user))["Retry-After"]) > 0
never = limiter.check({"user": "carl", "path": "/wait"}, cost=3)
assert never["retry_after_ms"] == -1 and retry_after(never) == {}
chat = {"path": "/chat"}
reserved = limiter.check(chat, reserve=True)
assert reserved["remaining"] == 900
limiter.settle(reserved["token"], 30)
limiter.settle(reserved["token"], 30)
assert limiter.check(chat, cost=0)["remaining"] == 970
held = {"path": "/held"}
first = limiter.check(held)
assert first["allowed"] and not limiter.check(held)["allowed"]
assert limiter.renew(held, slots(first)) == []
limiter.release(held, slots(first))
assert limiter.renew(held, slots(first)) == ["in-flight"]
assert limiter.check(held)["allowed"]
batch = limiter.check_all([{"descriptor": {"user": "dora", "path": "/api"}, "cost": cost} for cost in (3, 3)])
assert [decision["allowed"] for decision in batch] == [True, False]
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
const again = await limiter.check(user);
assert(Number(retryAfter(again)["Retry-After"]) > 0);
const never = await limiter.check({ user: "carl", path: "/wait" }, { cost: 3 });
assert.equal(never.retry_after_ms, -1);
assert.deepEqual(retryAfter(never), {});
const chat = { path: "/chat" };
const reserved = await limiter.check(chat, { reserve: true });
assert.equal(reserved.remaining, 900);
await limiter.settle(reserved.token, 30);
await limiter.settle(reserved.token, 30);
assert.equal((await limiter.check(chat, { cost: 0 })).remaining, 970);
const held = { path: "/held" };
const first = await limiter.check(held);
assert(first.allowed && !(await limiter.check(held)).allowed);
assert.deepEqual(await limiter.renew(held, slots(first)), []);
await limiter.release(held, slots(first));
assert.deepEqual(await limiter.renew(held, slots(first)), ["in-flight"]);
assert((await limiter.check(held)).allowed);
const dora = { user: "dora", path: "/api" };
const batch = await limiter.checkAll([3, 3].map((cost) => ({ descriptor: dora, cost })));
assert.deepEqual(batch.map(({ allowed }) => allowed), [true, false]);
const waiter = { user: "bob", path: "/wait" };
for (let i = 0; i < 5; i += 1) assert((await limiter.check(waiter, { waitMs: 5000 })).allowed);
assert.equal((await limiter.check(waiter, { cost: 3, waitMs: 5000 })).reason, "exceeds_capacity");
await assert.rejects(new Limiter(process.env.LIMITER, "nosuch").check(user), { code: "unknown_domain" });
const gone = new Limiter("http://127.0.0.1:9", "shop", { timeoutMs: 200 });
assert.equal(await gone.allowed(user, { ifUndecided: true }), true);
assert.equal(await gone.allowed(user, { ifUndecided: false }), false);
console.log("proved");
"#;

/// The page's second block is the body of `answer`.
const GO: &str = r#"
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"example/limiter"
)

func answer(ctx context.Context, w http.ResponseWriter, user, path string) {
@@
}

var ctx = context.Background()

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func holds(what bool, message string) {
	if !what {
		panic(message)
	}
}

func at(user, path string) limiter.Check {
	return limiter.Check{Descriptor: map[string]string{"user": user, "path": path}, Cost: 1}
}

func main() {
	url := os.Getenv("LIMITER")
	client := limiter.New(url, "shop")
	check := func(check limiter.Check, wait time.Duration) *limiter.Decision {
		return must(client.Check(ctx, check, wait))
	}
	for n := range 6 {
		holds(check(at("alice", "/api"), 0).Allowed == (n < 5), "five of six")
	}
	holds(check(at("alice", "/api"), 0).RetryAfter() != "", "a time to retry")
	dear := at("carl", "/wait")
	dear.Cost = 3
	never := check(dear, 0)
	holds(never.RetryAfterMs == -1 && never.RetryAfter() == "", "never passes")

	chat := limiter.Check{Descriptor: map[string]string{"path": "/chat"}, Cost: 1, Reserve: true}
	reserved := check(chat, 0)
	holds(*reserved.Remaining == 900, "the reserve is charged")
	for range 2 {
		if err := client.Settle(ctx, reserved.Token, 30); err != nil {
			panic(err)
		}
	}
	chat.Cost, chat.Reserve = 0, false
	holds(*check(chat, 0).Remaining == 970, "the cost is charged once")

	held := limiter.Check{Descriptor: map[string]string{"path": "/held"}, Cost: 1}
	first := check(held, 0)
	holds(first.Allowed && !check(held, 0).Allowed, "one slot")
	holds(len(must(client.Renew(ctx, held.Descriptor, first.Slots()))) == 0, "the slot is kept")
	if err := client.Release(ctx, held.Descriptor, first.Slots()); err != nil {
		panic(err)
	}
	gone := must(client.Renew(ctx, held.Descriptor, first.Slots()))
	holds(slices.Equal(gone, []string{"in-flight"}), "the slot is gone")
	holds(check(held, 0).Allowed, "the slot is free")

	three := at("dora", "/api")
	three.Cost = 3
	batch := must(client.CheckAll(ctx, []limiter.Check{three, three}))
	holds(batch[0].Allowed && !batch[1].Allowed, "a batch")

	for range 5 {
		holds(check(at("bob", "/wait"), 5*time.Second).Allowed, "waits for its turn")
	}
	dear = at("bob", "/wait")
	dear.Cost = 3
	holds(check(dear, 5*time.Second).Reason == "exceeds_capacity", "waiting does not help")

	var none *limiter.NoDecision
	_, err := limiter.New(url, "nosuch").Check(ctx, at("alice", "/api"), 0)
	holds(errors.As(err, &none) && none.Code == "unknown_domain", "an unknown domain")
	_, err = limiter.New("http://127.0.0.1:9", "shop").Check(ctx, at("alice", "/api"), 0)
	holds(errors.As(err, &none) && none.Code == "unreachable" && none.NothingCharged, "no limiter")
	_ = answer
	fmt.Println("proved")
}
"#;

#[tokio::test]
async fn the_go_client_does_what_its_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = blocks("go", "go");
    let files = [
        ("go.mod", "module example\n\ngo 1.22\n"),
        ("limiter/client.go", &blocks[0]),
        ("main.go", &GO.replace("@@", &blocks[1])),
    ];
    std::fs::create_dir(dir.path().join("limiter")).unwrap();
    for (file, text) in files {
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let mut command = Command::new(variable("RL_TEST_GO"));
    command
        .args(["run", "."])
        .current_dir(dir.path())
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .env("GOTOOLCHAIN", "local");
    is_proved(command).await;
}

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
