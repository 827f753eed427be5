//! Credentials and permissions.

use std::time::Duration;

use anyhow::{Context, Result};
use harness::{Engine, until};
use policy::SlotId;
use protocol::Check;
use store::{ActivityReport, Change, FleetReport, Report, ResetScope, Resolution, StoreError};

use crate::{
    given::{
        EVERY_ALGORITHM, TEN_A_DAY, check, name, policy, publish, read, request, reset, write,
    },
    on_both_servers,
    servers::Server,
};

on_both_servers!(
    a_wrong_password_fails_and_does_not_go_on_as_default,
    a_user_with_few_rights_is_enough_for_checks_and_edits,
    an_edit_with_a_missing_right_changes_nothing
);

/// What the documentation asks operators to allow.
pub const RIGHTS: &str = "~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists +ping +time \
    +get +set +del +unlink +scan +pttl +pexpire +persist +rename \
    +hget +hset +hdel +hmget +hlen +hgetall +hscan +lindex +llen +lrange +lset +ltrim +rpush \
    +xadd +xdel +xlen +xrange +xrevrange +zadd +zcard +zremrangebyscore +zcount +zrange +zrangebyscore +zrem +zscore \
    +sadd +smembers +publish +subscribe";

/// What the documentation asks operators to allow a limiter where it must not edit limits.
const LIMITER_RIGHTS: &str = "%R~rl:* ~rl:b:* ~rl:r:* ~rl:p:* ~rl:{*}:p:* ~rl:{*}:a:* ~rl:fleet:* &rl:edits -@all \
    +eval +evalsha +script|load +script|exists +ping +time +get +set +del +pexpire \
    +hget +hset +hdel +hmget +hlen +hgetall +hscan +lindex +llen +lrange +lset +ltrim +rpush \
    +xrange +zadd +zcard +zremrangebyscore +zcount +zrange +zrangebyscore +zrem +zscore +smembers +subscribe";

/// Its reservations have a key of their own.
const SETTLING: &str = "  - {name: settling, per: [user], rate: 1000/1d, \
    cost: {from: {response_json: /total}, reserve: 1}}\n";

/// Its denials have one, too: the third request of a user is denied.
const PENALIZING: &str = "  - {name: penalizing, per: [user], rate: 2/1d, \
    penalty: {after: 1, within: 1m, for: 1m}}\n";

fn reserving(user: &str) -> Check {
    let (stamp, secret) = (1, 1);
    Check {
        reserve: true,
        slot: Some(SlotId { stamp, secret }),
        ..request(&[("user", user)])
    }
}

async fn a_wrong_password_fails_and_does_not_go_on_as_default(server: Server) -> Result<()> {
    server
        .command(&["ACL", "SETUSER", "bob", "on", ">right", "+@all", "~*"])
        .await?;
    // `default` needs no password here, so a client that ignores the failure would work.
    let refused = server.store_as("bob:wrong")?.ping().await;
    let Err(error @ StoreError::Auth(_)) = refused else {
        panic!("{refused:?}")
    };
    let message = error.to_string();
    assert!(!message.contains("wrong\u{20}password:") && !message.contains(":wrong"));
    server.store_as("bob:right")?.ping().await?;
    let refused = server.store_as("nobody:x")?.ping().await;
    assert!(matches!(refused, Err(StoreError::Auth(_))), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_missing_password_is_an_authentication_error() -> Result<()> {
    let server = Server::start_with(Engine::Redis, &["--requirepass", "s3cret"]).await?;
    let refused = server.store()?.ping().await;
    assert!(matches!(refused, Err(StoreError::Auth(_))), "{refused:?}");
    server.store_as(":s3cret")?.ping().await?;
    Ok(())
}

/// With a password it is the answer to AUTH, which is no reason to doubt the password.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_server_with_too_many_clients_says_so() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        server
            .command(&["ACL", "SETUSER", "bob", "on", ">pw", "+@all", "~*"])
            .await?;
        server
            .command(&["CONFIG", "SET", "maxclients", "2"])
            .await?;
        let mut full = Vec::new();
        for _ in 0..2 {
            let client = redis::Client::open(server.url())?;
            // The server may still count a client that has gone.
            let connected = async || client.get_multiplexed_async_connection().await.ok();
            full.push(until("a place", Duration::from_secs(10), connected).await?);
        }
        for store in [server.store()?, server.store_as("bob:pw")?] {
            let refused = store.ping().await.map(drop).expect_err("it is full");
            let said = refused.to_string();
            assert!(
                said.contains("max number of clients") && said.contains("maxclients"),
                "{said}"
            );
        }
    }
    Ok(())
}

async fn a_user_with_few_rights_is_enough_for_checks_and_edits(server: Server) -> Result<()> {
    let mut acl = vec!["ACL", "SETUSER", "limiter", "on", ">pw"];
    acl.extend(RIGHTS.split_whitespace());
    server.command(&acl).await?;
    let store = server.store_as("limiter:pw")?;
    let policy = publish(&store, &policy(EVERY_ALGORITHM)).await?;
    let alice = request(&[("user", "alice")]);
    for allowed in [true, true, false] {
        assert_eq!(check(&store, &policy, &alice).await?.allowed, allowed);
    }
    store.ping().await?;
    // Valkey would crash if asked about a command that lacks arguments.
    let rights = store.health().await?.remove(0).rights;
    let rights = rights.context("an answer about rights")?;
    assert!(
        rights.lacking.is_empty() && rights.spare.is_empty(),
        "{rights:?}"
    );
    store.heads().await?;
    store.load_scripts().await?;
    store.scripts().await?;
    let seen = [(Some(name("gcra")), vec!["p".to_owned()])].into();
    assert_eq!(
        store.count_proxies(&name("shop"), &seen).await?,
        [(Some(name("gcra")), 1)].into()
    );
    let bucket = [Some(b"alice".to_vec())];
    store.inspect(&policy, &name("gcra"), &bucket, 1).await?;
    assert_eq!(
        reset(&store, &policy.limits()[0], ResetScope::All).await?,
        1
    );
    assert_eq!(store.history(&name("shop"), 9).await?.len(), 3);
    Ok(())
}

/// Redis refuses every command on the keys that edits write.
async fn no_edit_is_permitted(server: &Server) -> Result<()> {
    for record in ["policy", "history", "o:gcra", "s:1"] {
        let key = format!("rl:{{shop}}:{record}");
        for command in [
            &["HSET", &key, "limits", "x"][..],
            &["DEL", &key],
            &["SET", &key, "x"],
            &["RPUSH", &key, "x"],
            &["EVALSHA", "0", "1", &key],
        ] {
            let dry = [&["ACL", "DRYRUN", "limiter"], command].concat();
            let answer: String = server.ask(&dry).await?;
            assert!(answer.contains("no permissions"), "{command:?}: {answer}");
        }
    }
    for command in [
        &["SADD", "rl:domains", "x"][..],
        &["PUBLISH", "rl:edits", "x"],
    ] {
        let dry = [&["ACL", "DRYRUN", "limiter"], command].concat();
        let answer: String = server.ask(&dry).await?;
        assert_ne!(answer, "OK", "{command:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_limiter_needs_no_right_to_edit_limits() -> Result<()> {
    let manual = include_str!("../../../../docs/stores.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(manual).contains(&words(LIMITER_RIGHTS)),
        "as documented"
    );
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await?;
        let mut acl = vec!["ACL", "SETUSER", "limiter", "on", ">pw"];
        acl.extend(LIMITER_RIGHTS.split_whitespace());
        server.command(&acl).await?;
        let all = server.store()?;
        let limits = format!("{EVERY_ALGORITHM}{SETTLING}{PENALIZING}");
        publish(&all, &policy(&limits)).await?;
        let before = read(&all).await?;

        let store = server.store_as("limiter:pw")?;
        let mut hints = store.watch_edits();
        let policy_now = crate::given::current(&store).await?;
        let alice = reserving("alice");
        for allowed in [true, true, false] {
            assert_eq!(check(&store, &policy_now, &alice).await?.allowed, allowed);
        }
        store.load_scripts().await?;
        assert_eq!(store.heads().await?.len(), 1);
        let shop = name("shop");
        let since = store.changes_since(&shop, policy_now.revision()).await?;
        assert!(since.is_some());
        let seen = [(None, vec!["p".to_owned()])].into();
        assert_eq!(store.count_proxies(&shop, &seen).await?, [(None, 1)].into());
        let (slot, noted) = (
            Resolution::Fine.slot(store.estimated_now_ms()),
            ActivityReport::default(),
        );
        let activity = Report::Activity {
            domain: &shop,
            slot,
            report: &noted,
        };
        store
            .report("one", &[Report::Fleet(&FleetReport::default()), activity])
            .await?;

        let other = policy("  - {name: other, rate: 1/s}\n");
        let refused = write(&store, &before, Change::Limits(&other)).await;
        assert!(refused.unwrap_err().to_string().contains("NOPERM"));
        let refused = reset(&store, &policy_now.limits()[0], ResetScope::All).await;
        assert!(refused.is_err());
        no_edit_is_permitted(&server).await?;
        assert_eq!(read(&all).await?, before);
        let hint = tokio::time::timeout(Duration::from_secs(5), hints.changed());
        write(&all, &before, Change::Limits(&other)).await?;
        hint.await??;
    }
    Ok(())
}

async fn an_edit_with_a_missing_right_changes_nothing(server: Server) -> Result<()> {
    let all = server.store()?;
    publish(&all, &policy(TEN_A_DAY)).await?;
    let before = read(&all).await?;
    let mut acl = vec!["ACL", "SETUSER", "limiter", "on", ">pw"];
    acl.extend(RIGHTS.split_whitespace());
    acl.push("-xdel");
    server.command(&acl).await?;
    let store = server.store_as("limiter:pw")?;
    let other = policy("  - {name: other, rate: 1/s}\n");
    let refused = write(&store, &before, Change::Limits(&other)).await;
    let refused = refused.err().context("refused")?.to_string();
    assert!(
        refused.contains("NOPERM") && refused.contains("XDEL"),
        "{refused}"
    );
    assert_eq!(read(&all).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_missing_right_is_a_refusal_that_says_so() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let policy = publish(&server.store()?, &policy(TEN_A_DAY)).await?;
    server
        .command(&[
            "ACL",
            "SETUSER",
            "ro",
            "on",
            ">pw",
            "~*",
            "+@all",
            "-@scripting",
        ])
        .await?;
    let store = server.store_as("ro:pw")?;
    let refused = check(&store, &policy, &request(&[("user", "a")]))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
    Ok(())
}
