//! The limiter's answers to checks over HTTP in each state of the store: they say whether anything
//! was charged, if the limiter can tell.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use harness::{Engine, Reply, until};
use protocol::{ApiError, CHECK_CBOR, ErrorCode, compact::BatchAnswer};
use serde_json::{Value, json};
use store::{CheckError, Refusal, StoreError};

use crate::support::{
    PATIENCE, PER_USER, Scripted, Server, Service, compact, publish, quick, tuned,
};

/// A hanging store is detected after this.
const TIMEOUT: Duration = Duration::from_millis(100);

pub async fn on(server: &Server) -> Result<Service> {
    publish(&server.store()?, PER_USER).await?;
    let settings = tuned(|s| s.store_timeout = TIMEOUT);
    let service = Service::ready_on(server.store_within(TIMEOUT)?, settings).await?;
    decides(&service).await?;
    Ok(service)
}

/// Waits until a peek is decided; returns what is left of alice's ten.
pub async fn decides(service: &Service) -> Result<u64> {
    let peek = json!({"descriptor": {"user": "alice"}, "peek": true});
    until("a decision", PATIENCE, async || {
        let reply = service.ask(peek.clone()).await.ok()?;
        reply.json().ok()?["remaining"].as_u64()
    })
    .await
}

pub async fn ask(service: &Service) -> Result<Reply> {
    service.ask(json!({"descriptor": {"user": "alice"}})).await
}

/// Waits until a check is refused with these words in the message; returns the error.
async fn refused(service: &Service, words: &str) -> Result<Value> {
    let what = format!("a refusal with {words:?}");
    until(&what, PATIENCE, async || {
        let reply = ask(service).await.ok()?;
        let mut body = reply.json().ok()?;
        let matches = body["error"]["message"].as_str()?.contains(words);
        (reply.status == 503 && matches).then(|| body["error"].take())
    })
    .await
}

/// Asserts that a program's error, and a proxy's, say that nothing was charged.
async fn nothing_was_charged(service: &Service, error: &Value) -> Result<()> {
    assert_eq!(error["code"], "store_unavailable", "{error}");
    assert_eq!(error["charged"], false, "{error}");
    let batch = service.post("/v1/check", compact("proxy", &["alice"]));
    let reply = batch.header("content-type", CHECK_CBOR).send().await?;
    assert_eq!(reply.status, 503);
    let error = ApiError::from_json(&reply.body).expect("an error");
    assert_eq!(error.code, ErrorCode::StoreUntouched, "{error}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_server_that_is_not_there_charges_nothing() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        let service = on(&server).await?;
        assert_eq!(ask(&service).await?.status, 200);
        let gone = async {
            for _ in 0..3 {
                let error = refused(&service, "unreachable").await?;
                nothing_was_charged(&service, &error).await?;
            }
            Ok(())
        };
        let _server = server.away(gone).await?;
        assert_eq!(decides(&service).await?, 9, "the one before");
    }
    Ok(())
}

/// Waits until `rl_store_up` has this value, and `/readyz?strict` this status.
async fn is_said_to_be(service: &Service, up: u64, strict: u16) -> Result<()> {
    until("health follows", PATIENCE, async || {
        let reply = service.admin("/readyz?strict").send().await.ok()?;
        let said = service.metric("rl_store_up").await.ok()?;
        (said == up && reply.status == strict).then_some(())
    })
    .await
}

fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

/// Every state in which a server accepts no writes: how to cause it, its error code, and how to end
/// it.
#[tokio::test]
#[ignore = "needs a server"]
async fn a_server_that_refuses_writes_charges_nothing() -> Result<()> {
    const REPLICAS: &str = "CONFIG SET min-replicas-to-write 1";
    for engine in [Engine::Redis, Engine::Valkey] {
        for (ill, code, mend) in [
            ("CONFIG SET maxmemory 1", "OOM", "CONFIG SET maxmemory 0"),
            (REPLICAS, "NOREPLICAS", "CONFIG SET min-replicas-to-write 0"),
            (
                "BGSAVE",
                "MISCONF",
                "CONFIG SET stop-writes-on-bgsave-error no",
            ),
            ("REPLICAOF 127.0.0.1 1", "READONLY", "REPLICAOF NO ONE"),
        ] {
            let server = Server::start(engine).await?;
            let service = on(&server).await?;
            assert_eq!(ask(&service).await?.status, 200);
            if code == "MISCONF" {
                // Without its folder a save fails when it creates its file. One that could not be renamed would
                // be written to a busy disk first.
                std::fs::remove_dir_all(server.dir())?;
                let save = ["CONFIG", "SET", "save", "3600 1"];
                server.command(&save).await?;
            }
            let left = decides(&service).await?;
            server.command(&words(ill)).await?;
            let mut charged = 0;
            let error = until(code, PATIENCE, async || {
                let reply = ask(&service).await.ok()?;
                charged += u64::from(reply.status == 200);
                let error = reply.json().ok()?["error"].take();
                error["message"].as_str()?.contains(code).then_some(error)
            })
            .await?;
            nothing_was_charged(&service, &error).await?;
            // The limiter stays ready, and reports the cause.
            service.readiness(200, code).await?;
            is_said_to_be(&service, 0, 503).await?;
            server.command(&words(mend)).await?;
            assert_eq!(decides(&service).await?, left - charged, "{code}");
            is_said_to_be(&service, 1, 200).await?;
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_server_that_loads_charges_nothing_and_then_has_what_was_charged() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    let users: Vec<String> = (0..1000).map(|n| format!("user{n}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let batch = service.post("/v1/check", compact("proxy", &users));
    let reply = batch.header("content-type", CHECK_CBOR).send().await?;
    assert_eq!(reply.status, 200);
    assert_eq!(ask(&service).await?.status, 200);
    let server = server.restart_slowly().await?;
    let error = refused(&service, "LOADING").await?;
    nothing_was_charged(&service, &error).await?;
    assert_eq!(decides(&service).await?, 9);
    drop(server);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_script_that_is_gone_is_sent_again_within_the_same_check() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    for left in [9, 8, 7] {
        server.command(&["SCRIPT", "FLUSH"]).await?;
        let reply = ask(&service).await?;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()?["remaining"], left);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn with_a_hanging_server_only_the_first_checks_are_uncertain() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    server.pause()?;
    let error = ask(&service).await?.json()?["error"].take();
    assert_eq!(error["code"], "store_unavailable");
    assert_eq!(error["charged"], Value::Null, "it may have been: {error}");
    for _ in 0..10 {
        let error = ask(&service).await?.json()?["error"].take();
        nothing_was_charged(&service, &error).await?;
    }
    server.resume()?;
    // The uncertain check was charged when the server resumed, the others never.
    let left = decides(&service).await?;
    assert_eq!(left, 9);
    Ok(())
}

/// The check cannot be decided, but nothing was charged, and only this bucket is affected.
#[tokio::test]
#[ignore = "needs a server"]
async fn a_bucket_that_holds_something_else_charges_nothing() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    server
        .command(&["SET", "rl:b:shop:per-user:alice", "not a bucket"])
        .await?;
    let error = refused(&service, "holds something else").await?;
    assert_eq!(error["charged"], false, "{error}");
    let batch = service.post("/v1/check", compact("proxy", &["alice"]));
    let reply = batch.header("content-type", CHECK_CBOR).send().await?;
    assert_eq!(reply.status, 200, "a proxy sees no failure of the limiter");
    let results = BatchAnswer::decode(&reply.body)?.results;
    assert_eq!(results, [Err(ErrorCode::StoreUntouched)]);
    is_said_to_be(&service, 1, 200).await?;
    assert!(service.allows("bob").await?);
    Ok(())
}

/// An ACL may permit the commands of one algorithm and not those of the next check in the same
/// call.
#[tokio::test]
#[ignore = "needs a server"]
async fn a_missing_right_leaves_open_whether_a_check_was_charged() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let service = on(&server).await?;
    let rights = ["ACL", "SETUSER", "default", "-@write"];
    server.command(&rights).await?;
    let error = refused(&service, "the store refused").await?;
    assert_eq!(error["code"], "store_unavailable");
    assert_eq!(error["charged"], Value::Null, "{error}");
    Ok(())
}

/// The store gets only four calls at once; checks waiting behind them were never sent.
#[tokio::test]
async fn checks_queued_behind_hanging_calls_are_not_charged() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let settings = tuned(|s| s.store_timeout = TIMEOUT);
    let service = Arc::new(Service::ready_on(store.clone(), settings).await?);
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..5 {
        let service = Arc::clone(&service);
        clients.spawn(async move { ask(&service).await?.json() });
        if n < 4 {
            store.entered(n + 1).await?;
        }
    }
    let mut charged = Vec::new();
    while let Some(body) = clients.join_next().await {
        let error = body??["error"].take();
        assert_eq!(error["code"], "store_unavailable", "{error}");
        charged.push(error["charged"].clone());
    }
    charged.sort_by_key(Value::is_null);
    assert_eq!(json!(charged), json!([false, null, null, null, null]));
    Ok(())
}

/// One uncertain check of a batch makes the whole batch uncertain.
#[tokio::test]
async fn one_uncertain_check_makes_the_error_of_its_batch_uncertain() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    let refused = || StoreError::Unreachable("nobody there".to_owned()).into();
    let doubtful = || StoreError::Timeout(TIMEOUT).into();
    for (errors, charged) in [
        ([refused(), refused()], json!(false)),
        ([refused(), doubtful()], Value::Null),
        ([doubtful(), refused()], Value::Null),
    ] {
        store.fail_each(errors);
        let checks = json!([{"descriptor": {"user": "a"}}, {"descriptor": {"user": "b"}}]);
        let reply = service.ask(json!({"checks": checks})).await?;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.json()?["error"]["charged"], charged);
    }
    Ok(())
}

/// A filter that meets failed calls goes on without limiters: so what is wrong with single buckets fails no call.
#[tokio::test]
async fn the_trouble_of_a_bucket_is_no_failure_of_the_limiter() -> Result<()> {
    let store = Scripted::with(PER_USER, 1000).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    let refused = |code: &str| -> CheckError {
        let (code, message) = (code.to_owned(), "no".to_owned());
        StoreError::Refused(Refusal { code, message }).into()
    };
    let batch = async || {
        let batch = service.post("/v1/check", compact("proxy", &["alice"]));
        batch.header("content-type", CHECK_CBOR).send().await
    };
    for (error, code) in [
        (refused("TRYAGAIN"), ErrorCode::StoreUntouched),
        (refused("WRONGTYPE"), ErrorCode::StoreUnavailable),
        (
            CheckError::CorruptBucket("per-user".parse()?),
            ErrorCode::StoreUntouched,
        ),
    ] {
        store.fail([error.clone()]);
        let reply = batch().await?;
        assert_eq!(reply.status, 200, "{error}");
        let answer = BatchAnswer::decode(&reply.body)?;
        assert_eq!(answer.results, [Err(code)], "{error}");
        // A program asks for one check, and gets its error.
        store.fail([error.clone()]);
        assert_eq!(ask(&service).await?.status, 503, "{error}");
    }
    store.fail([refused("OOM")]);
    assert_eq!(batch().await?.status, 503);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_domain_beyond_the_followed_ones_is_not_reported_as_unknown() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let running = on(&server).await?;
    // Domains of which there was an edit: the others were never written.
    let add = "for i = 1, 4096 do local name = 'domain-' .. i; redis.call('SADD', KEYS[1], name); \
               redis.call('XADD', 'rl:{' .. name .. '}:history', '1-0', 'op', 'edit') end";
    server.command(&["EVAL", add, "1", "rl:domains"]).await?;
    // By its name this domain would be the last.
    let fresh = Service::start(server.store()?, quick())?;
    until("it says that it does not know", PATIENCE, async || {
        let reply = ask(&fresh).await.ok()?;
        assert_ne!(reply.status, 404, "{}", reply.text());
        reply.text().contains("more domains than").then_some(())
    })
    .await?;
    // The limits in force stay.
    decides(&running).await?;
    Ok(())
}
