//! Credentials and permissions.

use anyhow::Result;
use store::StoreError;

use crate::{
    given::{TEN_A_DAY, check, policy, publish, request},
    servers::{REDIS, Server, VALKEY},
};

/// What the documentation tells operators to allow.
const RIGHTS: [&str; 27] = [
    "~rl:*",
    "&rl:*",
    "-@all",
    "+eval",
    "+evalsha",
    "+script|load",
    "+script|exists",
    "+get",
    "+set",
    "+del",
    "+hget",
    "+hset",
    "+hdel",
    "+hmget",
    "+hlen",
    "+hgetall",
    "+hscan",
    "+xadd",
    "+xrevrange",
    "+publish",
    "+subscribe",
    "+time",
    "+ping",
    "+smembers",
    "+sadd",
    "+pttl",
    "+unlink",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_fails_and_does_not_go_on_as_default() -> Result<()> {
    for kind in [REDIS, VALKEY] {
        let server = Server::start(kind).await?;
        server
            .command(&["ACL", "SETUSER", "bob", "on", ">right", "+@all", "~*"])
            .await?;
        // `default` needs no password here, so a client that ignores the failure would work.
        let refused = server.store_as("bob:wrong")?.ping().await;
        assert!(matches!(refused, Err(StoreError::Auth(_))), "{refused:?}");
        let message = refused.unwrap_err().to_string();
        assert!(!message.contains("wrong\u{20}password:") && !message.contains(":wrong"));
        server.store_as("bob:right")?.ping().await?;
        let refused = server.store_as("nobody:x")?.ping().await;
        assert!(matches!(refused, Err(StoreError::Auth(_))), "{refused:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_password_is_an_authentication_error() -> Result<()> {
    let server = Server::start_with(REDIS, &["--requirepass", "s3cret"]).await?;
    let refused = server.store()?.ping().await;
    assert!(matches!(refused, Err(StoreError::Auth(_))), "{refused:?}");
    server.store_as(":s3cret")?.ping().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_few_rights_is_enough_for_checks_and_edits() -> Result<()> {
    for kind in [REDIS, VALKEY] {
        let server = Server::start(kind).await?;
        let mut acl = vec!["ACL", "SETUSER", "limiter", "on", ">pw"];
        acl.extend(RIGHTS);
        server.command(&acl).await?;
        let store = server.store_as("limiter:pw")?;
        let policy = publish(&store, &policy(TEN_A_DAY)).await?;
        assert!(
            check(&store, &policy, &request(&[("user", "a")]))
                .await?
                .allowed
        );
        store.ping().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_refusal_that_says_so() -> Result<()> {
    let server = Server::start(REDIS).await?;
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
