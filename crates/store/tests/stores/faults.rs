//! Servers that fail.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use harness::Engine;
use policy::Compiled;
use protocol::Check;
use store::{
    Change, CheckError, Cursor, EditError, HeadState, LimitOf, Options, ResetScope, Signature,
    Store, StoreError, Stored,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    given::{
        EVERY_ALGORITHM, TEN_A_DAY, check, current, name, policy, publish, read, request,
        units_left, write,
    },
    on_both_servers,
    servers::{Server, patient, until},
};

on_both_servers!(
    a_hung_server_costs_one_deadline_and_finds_no_backlog,
    a_killed_server_is_found_again_with_its_scripts_gone,
    flushed_scripts_neither_lose_nor_double_a_check,
    a_full_server_refuses_checks_and_edits_whole,
    a_reset_without_the_right_to_read_buckets_leaves_them,
    a_missing_right_is_not_a_bad_bucket
);

/// As in production, except for the deadline: a test machine may have no idle core.
fn impatient() -> Options {
    Options {
        timeout: Duration::from_millis(100),
        ..Options::default()
    }
}

async fn serving(server: &Server) -> Result<(Arc<dyn Store>, Compiled)> {
    let store = server.store_with(impatient())?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    check(&store, &policy, &request(&[("user", "warm-up")])).await?;
    Ok((store, policy))
}

fn store_error(result: Result<protocol::Answer, CheckError>) -> StoreError {
    match result {
        Err(CheckError::Store(error)) => error,
        other => panic!("not a failure of the store: {other:?}"),
    }
}

/// The first answer after a failure, within 5 s.
async fn recovered(
    store: &Arc<dyn Store>,
    policy: &Compiled,
    request: &Check,
) -> Result<protocol::Answer> {
    let answers = async || check(store, policy, request).await.ok();
    let (answer, _) = until("recovery", Duration::from_secs(5), answers).await?;
    Ok(answer)
}

async fn a_hung_server_costs_one_deadline_and_finds_no_backlog(server: Server) -> Result<()> {
    let (store, policy) = serving(&server).await?;
    let alice = request(&[("user", "alice")]);
    server.pause()?;
    let error = store_error(check(&store, &policy, &alice).await);
    assert_eq!(error, StoreError::Timeout(impatient().timeout));
    // From now on nothing more is sent.
    for _ in 0..100 {
        let error = store_error(check(&store, &policy, &alice).await);
        assert!(error.is_harmless(), "{error}");
    }
    assert!(store.fault().is_some());
    server.resume()?;
    let answer = recovered(&store, &policy, &alice).await?;
    // The one that was sent may have been charged late; the hundred were not sent.
    assert!((8..=9).contains(&units_left(&answer)), "{answer:?}");
    assert!(store.fault().is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_long_hang_and_a_reconnection_charge_no_backlog() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let (store, policy) = serving(&server).await?;
    let alice = request(&[("user", "alice")]);
    server.pause()?;
    // The store closes the connection, and gets no answer on another, which the system accepts for the server.
    let dialled = async || {
        let error = store_error(check(&store, &policy, &alice).await);
        let tried = error.to_string().contains("no answer to PING");
        tried.then(|| assert!(error.is_harmless(), "{error}"))
    };
    until("a connection attempt", Duration::from_secs(5), dialled).await?;
    server.resume()?;
    let answer = recovered(&store, &policy, &alice).await?;
    assert!((8..=9).contains(&units_left(&answer)), "{answer:?}");
    Ok(())
}

async fn a_killed_server_is_found_again_with_its_scripts_gone(mut server: Server) -> Result<()> {
    let (store, policy) = serving(&server).await?;
    let alice = request(&[("user", "alice")]);
    server.kill();
    let fails = async || check(&store, &policy, &alice).await.err();
    let (error, _) = until("an error", Duration::from_secs(5), fails).await?;
    let down = [
        matches!(error, CheckError::Store(StoreError::Unreachable(_))),
        matches!(error, CheckError::Store(StoreError::Broken(_))),
    ];
    assert!(down.contains(&true), "{error:?}");
    server.launch(&[]).await?;
    let answer = recovered(&store, &policy, &alice).await?;
    assert_eq!(
        units_left(&answer),
        9,
        "an empty server has an unused bucket"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_missing_server_is_reported_as_unreachable() -> Result<()> {
    let mut server = Server::start(Engine::Redis).await?;
    let (_, policy) = serving(&server).await?;
    server.kill();
    let store = server.store_with(impatient())?;
    let alice = request(&[("user", "alice")]);
    let error = store_error(check(&store, &policy, &alice).await);
    assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    Ok(())
}

async fn flushed_scripts_neither_lose_nor_double_a_check(server: Server) -> Result<()> {
    let store = server.store()?;
    let limits = "  - {name: per-user, per: [user], rate: 1/1d, burst: 100000}\n";
    let policy = Arc::new(publish(&store, &policy(limits)).await?);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (store, policy) = (Arc::clone(&store), Arc::clone(&policy));
        clients.spawn(async move {
            let alice = request(&[("user", "alice")]);
            for _ in 0..40 {
                assert!(check(&store, &policy, &alice).await?.allowed);
            }
            anyhow::Ok(())
        });
    }
    let mut flushes = 0;
    while !clients.is_empty() {
        server.command(&["SCRIPT", "FLUSH"]).await?;
        flushes += 1;
        while let Some(client) = clients.try_join_next() {
            client??;
        }
    }
    assert!(flushes > 3, "the flushes came in the middle: {flushes}");
    let alice = request(&[("user", "alice")]);
    let last = check(&store, &policy, &alice).await?;
    assert_eq!(units_left(&last), 100_000 - 2001, "each check once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_replica_refuses_and_says_what_it_is() -> Result<()> {
    let primary = Server::start(Engine::Redis).await?;
    let (_, policy) = serving(&primary).await?;
    let replica = Server::start(Engine::Redis).await?;
    let port = primary.port().to_string();
    let store = replica.store()?;
    check(&store, &policy, &request(&[("user", "warm-up")])).await?;
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).await?;
    let refused = async || match check(&store, &policy, &request(&[("user", "a")])).await {
        Err(CheckError::Store(StoreError::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let (refusal, _) = until("a refusal", Duration::from_secs(5), refused).await?;
    assert_eq!(refusal.code, "READONLY");
    assert!(refusal.to_string().contains("primary"), "{refusal}");
    // Promoted again: the store finds it without a restart.
    replica.command(&["REPLICAOF", "NO", "ONE"]).await?;
    recovered(&store, &policy, &request(&[("user", "a")])).await?;
    Ok(())
}

async fn a_full_server_refuses_checks_and_edits_whole(server: Server) -> Result<()> {
    let store = server.store()?;
    let compiled = publish(&store, &policy(TEN_A_DAY)).await?;
    let before = read(&store).await?;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let refused = store_error(check(&store, &compiled, &request(&[("user", "a")])).await);
    let StoreError::Refused(refusal) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal.code, "OOM");
    let other = policy("  - {name: other, rate: 1/s}\n");
    let refused = write(&store, &before, Change::Limits(&other)).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("OOM")));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    assert_eq!(read(&store).await?, before, "half an edit is none");
    assert!(
        check(&store, &compiled, &request(&[("user", "a")]))
            .await?
            .allowed
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_loading_server_refuses_and_is_used_once_it_has_loaded() -> Result<()> {
    let mut server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    let checks: Vec<_> = (0..1000)
        .map(|i| request(&[("user", &format!("user{i}"))]))
        .collect();
    for result in store.check(&policy, &checks, false).await {
        result?;
    }
    server.command(&["SAVE"]).await?;
    server.kill();
    // A millisecond for each of its thousand keys.
    let slowly = [
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    server.launch(&slowly).await?;
    let store = server.store_with(impatient())?;
    let first = &checks[0];
    let loading = async || match check(&store, &policy, first).await {
        Err(CheckError::Store(StoreError::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let (refusal, _) = until("a refusal", Duration::from_secs(5), loading).await?;
    assert_eq!(refusal.code, "LOADING");
    let answers = async || check(&store, &policy, first).await.ok();
    let (answer, _) = until("recovery", Duration::from_secs(10), answers).await?;
    assert_eq!(units_left(&answer), 8, "the usage was loaded");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_busy_script_is_not_waited_for() -> Result<()> {
    let server = Server::start_with(Engine::Redis, &["--busy-reply-threshold", "50"]).await?;
    let (store, policy) = serving(&server).await?;
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let endless = tokio::spawn(async move {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end").arg(0);
        eval.query_async::<()>(&mut connection).await
    });
    let fails = async || {
        check(&store, &policy, &request(&[("user", "a")]))
            .await
            .err()
    };
    until("a failure", Duration::from_secs(5), fails).await?;
    let killed = async || server.command(&["SCRIPT", "KILL"]).await.ok();
    until("the end of it", Duration::from_secs(5), killed).await?;
    assert!(endless.await?.is_err());
    recovered(&store, &policy, &request(&[("user", "a")])).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn foreign_data_is_an_error_not_a_decision() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store_with(patient())?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    server
        .command(&["SET", "rl:b:shop:per-user:a", "not a bucket"])
        .await?;
    server
        .command(&["LPUSH", "rl:b:shop:per-user:b", "x"])
        .await?;
    for user in ["a", "b"] {
        let error = check(&store, &policy, &request(&[("user", user)])).await;
        let limit = name("per-user");
        assert_eq!(error, Err(CheckError::CorruptBucket(limit)));
    }
    // One bad bucket does not spoil the others of its batch.
    let batch = [request(&[("user", "a")]), request(&[("user", "good")])];
    let results = store.check(&policy, &batch, false).await;
    assert!(results[0].is_err() && results[1].is_ok(), "{results:?}");

    server
        .command(&["HSET", "rl:{shop}:limits", "per-user", "0000000000001024{"])
        .await?;
    let broken = read(&store).await.unwrap_err().to_string();
    assert!(broken.contains("JSON"), "{broken}");
    server
        .command(&["HSET", "rl:{shop}:limits", "per-user", "?"])
        .await?;
    let broken = read(&store).await.unwrap_err().to_string();
    assert!(broken.contains("without a place"), "{broken}");
    for format in ["1", "3"] {
        server
            .command(&["HSET", "rl:{shop}:policy", "format", format])
            .await?;
        let other = read(&store).await.unwrap_err().to_string();
        assert!(other.contains(&format!("format {format}")), "{other}");
        assert!(current(&store).await.is_err());
    }
    Ok(())
}

/// Without a right that reading a bucket needs, the error is not that the bucket is corrupt. A
/// bucket that cannot be read is not reset: its leased units would be granted again.
async fn a_reset_without_the_right_to_read_buckets_leaves_them(server: Server) -> Result<()> {
    let store = server.store_with(patient())?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    check(&store, &policy, &request(&[("user", "a")])).await?;
    let domain = policy.domain();
    let of = LimitOf {
        domain,
        limit: &policy.limits()[0],
    };
    let buckets = async || -> Result<usize> {
        let page = store.list(domain, None, Cursor::default()).await?;
        Ok(page.buckets.len())
    };
    server
        .command(&["ACL", "SETUSER", "default", "-get"])
        .await?;
    let reset = store
        .reset(&of, ResetScope::All, &Signature::default())
        .await;
    assert!(reset.is_err_and(|error| error.to_string().contains("NOPERM")));
    assert_eq!(buckets().await?, 1);
    server
        .command(&["ACL", "SETUSER", "default", "+get"])
        .await?;
    store
        .reset(&of, ResetScope::All, &Signature::default())
        .await?;
    assert_eq!(buckets().await?, 0);
    Ok(())
}

async fn a_missing_right_is_not_a_bad_bucket(server: Server) -> Result<()> {
    let store = server.store_with(patient())?;
    let policy = publish(&store, &policy(EVERY_ALGORITHM)).await?;
    let names: Vec<_> = policy.limits().iter().map(|l| l.name.clone()).collect();
    let ask = request(&[("user", "a")]);
    check(&store, &policy, &ask).await?;
    let mut refused = 0;
    for right in ["get", "lindex", "hget", "hgetall"] {
        let (without, with) = (format!("-{right}"), format!("+{right}"));
        let command = ["ACL", "SETUSER", "default", &without];
        server.command(&command).await?;
        for name in &names {
            let one = Check {
                only: vec![name.clone()],
                ..ask.clone()
            };
            match check(&store, &policy, &one).await {
                Ok(_) => {}
                Err(CheckError::Store(StoreError::Refused(refusal))) => {
                    assert_eq!(refusal.code, "NOPERM", "{name} {right}: {refusal}");
                    assert!(refusal.to_string().contains("permission"), "{refusal}");
                    refused += 1;
                }
                Err(error) => panic!("{name} without {right}: {error}"),
            }
        }
        server
            .command(&["ACL", "SETUSER", "default", &with])
            .await?;
    }
    assert!(refused >= names.len(), "each needs one of them: {refused}");
    Ok(())
}

/// A proxy in front of a server, so slow that a timeout of half a second is too short.
async fn far_away(server: &Server) -> Result<u16> {
    const HALF: Duration = Duration::from_millis(200);
    async fn slowly(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            tokio::time::sleep(HALF).await;
            to.write_all(&bytes[..read]).await?;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (port, to) = (listener.local_addr()?.port(), server.port());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else {
                return;
            };
            let ((from, back), (answers, asks)) = (client.into_split(), server.into_split());
            tokio::spawn(slowly(from, asks));
            tokio::spawn(slowly(answers, back));
        }
    });
    Ok(port)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_server_far_away_is_reached_within_the_timeout_of_checks() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let policy = publish(&server.store()?, &policy(TEN_A_DAY)).await?;
    let url = format!("redis://127.0.0.1:{}", far_away(&server).await?);
    let options = Options::within(Duration::from_secs(4));
    let store = store::open(&url.parse()?, options)?;
    for left in [9, 8] {
        let answers = async || {
            check(&store, &policy, &request(&[("user", "a")]))
                .await
                .ok()
        };
        let (answer, _) = until("an answer", Duration::from_secs(15), answers).await?;
        assert_eq!(units_left(&answer), left);
        // The connection is lost, and opened again.
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_lost_record_is_missing_not_deleted_and_goes_on_from_its_history() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    server.command(&["DEL", "rl:{shop}:policy"]).await?;
    let heads = store.heads().await?;
    assert_eq!(heads[0].state, HeadState::Missing);
    let again = publish(&store, &policy(TEN_A_DAY)).await?;
    assert_eq!(again.revision().number, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn evicted_limits_are_a_lost_record_not_an_empty_one() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let both = policy("  - {name: a, rate: 1/s}\n  - {name: b, rate: 1/s}\n");
    publish(&store, &both).await?;
    let base = read(&store).await?;
    server.command(&["HDEL", "rl:{shop}:limits", "a"]).await?;
    let damaged = read(&store).await.unwrap_err().to_string();
    assert!(damaged.contains("1 of the 2 limits"), "{damaged}");
    server.command(&["DEL", "rl:{shop}:limits"]).await?;
    assert_eq!(read(&store).await?, Stored::Absent);
    assert_eq!(store.heads().await?[0].state, HeadState::Missing);
    let late = write(&store, &base, Change::Limits(&both)).await;
    assert!(matches!(late, Err(EditError::Conflict { .. })), "{late:?}");
    let found = base.policy().expect("limits");
    let limit = LimitOf {
        domain: &found.domain,
        limit: &found.limits[0],
    };
    let by_ann = crate::given::by("ann");
    let reset = store.reset(&limit, ResetScope::All, &by_ann).await;
    assert!(
        matches!(reset, Err(EditError::Conflict { found: None, .. })),
        "{reset:?}"
    );
    let again = publish(&store, &policy(TEN_A_DAY)).await?;
    assert_eq!((again.revision().number, again.limits().len()), (2, 1));
    // Who has the lost limits learns that they are gone.
    let since = store.changes_since(&found.domain, &found.revision).await?;
    assert_eq!(since, None);

    // The record alone is lost: what it left behind is not among what is written next.
    server.command(&["DEL", "rl:{shop}:policy"]).await?;
    let again = publish(&store, &both).await?;
    assert_eq!((again.revision().number, again.limits().len()), (3, 2));

    // Nor are its overrides, which may not even fit the limit that has the name now.
    let with = |limit: &str| policy(&format!("  - {{name: a, rate: 1/s, {limit}}}\n"));
    let user = "per: [user], overrides: [{values: {user: ann}, rate: 2/s}]";
    publish(&store, &with(user)).await?;
    for limit in [
        "per: [path]",
        "per: [user], overrides: [{values: {user: bob}, rate: 3/s}]",
    ] {
        server.command(&["DEL", "rl:{shop}:policy"]).await?;
        publish(&store, &with(limit)).await?;
        let again = read(&store).await?;
        let again = &again.policy().expect("limits").limits[0];
        assert_eq!(again.overrides, with(limit).limits[0].overrides);
        let counted: u64 = server
            .ask(&["HGET", "rl:{shop}:policy", "overrides"])
            .await?;
        assert_eq!(counted, with(limit).limits[0].overrides.len() as u64);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_domain_whose_first_write_is_refused_is_not_lost() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let without = ["ACL", "SETUSER", "default", "-xadd"];
    server.command(&without).await?;
    let refused = write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY))).await;
    assert!(refused.unwrap_err().to_string().contains("XADD"));
    assert_eq!(store.heads().await?, []);
    server
        .command(&["ACL", "SETUSER", "default", "+xadd"])
        .await?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    assert_eq!(store.heads().await?.len(), 1);
    Ok(())
}

/// A failover to a replica that lacks the last steps loses part of what was staged.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn limits_of_which_some_are_lost_on_the_way_are_not_written() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let both = policy("  - {name: a, rate: 1/s}\n  - {name: b, rate: 1/s}\n");
    publish(&store, &both).await?;
    let script = include_str!("../../../../lua/policy_write.lua");
    let write = async |fields: &str| -> Result<u64> {
        let keys = ["policy", "history", "limits", "changes", "staged"];
        let keys = keys.map(|key| format!("rl:{{shop}}:{key}"));
        let staged = ["HSET", &keys[4], "a", "0000000000001024{}"];
        server.command(&staged).await?;
        let mut words = vec!["EVAL", script, "5"];
        words.extend(keys.iter().map(String::as_str));
        let digest = format!("{:016x}", current(&store).await?.revision().digest);
        words.extend([
            "1", &digest, "edit", "ann", "", "", "", "", "{}", "c", "shop",
        ]);
        words.extend([
            "9", "99", "9", "99", "9", "d", "", "", "0", "0", "staged", "2", fields, "0", "0",
        ]);
        let (status, ..): (u64, u64, String, u64) = server.ask(&words).await?;
        Ok(status)
    };
    let before = read(&store).await?;
    assert_eq!(write("2").await?, 3);
    assert_eq!(read(&store).await?, before);
    assert_eq!(write("1").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn an_unreadable_record_does_not_hide_other_domains() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    for domain in ["later", "foreign"] {
        server.command(&["SADD", "rl:domains", domain]).await?;
    }
    let later = ["HSET", "rl:{later}:policy", "format", "3", "revision", "7"];
    server.command(&later).await?;
    server
        .command(&["SET", "rl:{foreign}:policy", "not ours"])
        .await?;
    let mut heads = store.heads().await?;
    heads.sort_by(|a, b| a.domain.cmp(&b.domain));
    let states: Vec<_> = heads.into_iter().map(|head| head.state).collect();
    assert!(
        matches!(
            states.as_slice(),
            [
                HeadState::Unreadable(foreign),
                HeadState::Unreadable(later),
                HeadState::Live(_),
            ] if foreign.contains("something else") && later.contains("format 3")
        ),
        "{states:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_foreign_member_of_a_shared_key_hides_nothing() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    let add = "return redis.call('SADD', KEYS[1], '\\255', 'not\\1a name', '')";
    server.command(&["EVAL", add, "1", "rl:domains"]).await?;
    let heads = store.heads().await?;
    assert_eq!(heads.len(), 1);
    assert!(matches!(heads[0].state, HeadState::Live(_)));

    let fleet_report = store::FleetReport::default();
    store
        .report("a limiter", &[store::Report::Fleet(&fleet_report)])
        .await?;
    let add = "for _, key in ipairs(redis.call('KEYS', 'rl:fleet:*')) do
        redis.call('HSET', key, '\\255', '1 {}', 'other', '\\255') end";
    server.command(&["EVAL", add, "0"]).await?;
    assert_eq!(store.fleet().await?.limiters.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn one_domain_more_than_limiters_follow_is_refused() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let store = server.store()?;
    let add = "for i = 1, 4096 do redis.call('SADD', KEYS[1], 'domain-' .. i) end";
    server.command(&["EVAL", add, "1", "rl:domains"]).await?;
    let error = write(&store, &Stored::Absent, Change::Limits(&policy(TEN_A_DAY)))
        .await
        .unwrap_err();
    assert_eq!(error, EditError::TooManyDomains(4096));
    let listed: u64 = server.ask(&["SCARD", "rl:domains"]).await?;
    assert_eq!(listed, 4096, "nothing was written");
    server.command(&["SREM", "rl:domains", "domain-1"]).await?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    publish(&store, &policy(TEN_A_DAY)).await?;
    Ok(())
}
