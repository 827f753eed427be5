//! Servers that refuse to write, forget, or are slow.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use harness::Engine;
use store::{CheckError, Options, StoreError, open};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    given::{TEN_A_DAY, check, policy, publish, read, request, units_left, write},
    on_both_servers,
    servers::{Server, patient, until},
};

on_both_servers!(
    a_server_that_lacks_replicas_charges_nothing,
    an_evicted_bucket_counts_as_unused,
    a_slow_server_charges_only_what_was_sent_and_each_once
);

const PATIENCE: Duration = Duration::from_secs(10);

/// A server that refuses writes by this code charges no check and takes no edit, until `mend`.
async fn refuses(server: &Server, ill: &[&[&str]], code: &str, mend: &[&str]) -> Result<()> {
    let store = server.store()?;
    let compiled = publish(&store, &policy(TEN_A_DAY)).await?;
    let before = read(&store).await?;
    for command in ill {
        server.command(command).await?;
    }
    let alice = request(&[("user", "alice")]);
    let refused = async || match check(&store, &compiled, &alice).await {
        Err(CheckError::Store(StoreError::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let (refusal, _) = until("a refusal", PATIENCE, refused).await?;
    assert_eq!(refusal.code, code);
    let bob = request(&[("user", "bob")]);
    assert!(check(&store, &compiled, &bob).await.is_err());
    let other = policy("  - {name: other, rate: 1/s}\n");
    let edit = write(&store, &before, store::Change::Limits(&other)).await;
    assert!(edit.expect_err("it refuses").to_string().contains(code));
    server.command(mend).await?;
    assert_eq!(read(&store).await?, before, "half an edit is none");
    let answer = check(&store, &compiled, &bob).await?;
    assert_eq!(units_left(&answer), 9, "nothing was charged");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_server_that_cannot_save_charges_nothing() -> Result<()> {
    for engine in [Engine::Redis, Engine::Valkey] {
        let dir = TempDir::new()?;
        let path = dir.path().to_string_lossy();
        let server = Server::start_with(engine, &["--dir", &path]).await?;
        // Once it has loaded, it has no folder any more: a save fails when it creates its file. One that could
        // not be renamed would be written to a busy disk first.
        server.command(&["PING"]).await?;
        std::fs::remove_dir_all(dir.path())?;
        let save = ["CONFIG", "SET", "save", "3600 1"];
        let mend = ["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"];
        refuses(&server, &[&save, &["BGSAVE"]], "MISCONF", &mend).await?;
    }
    Ok(())
}

async fn a_server_that_lacks_replicas_charges_nothing(server: Server) -> Result<()> {
    let replicas = |n| ["CONFIG", "SET", "min-replicas-to-write", n];
    refuses(&server, &[&replicas("1")], "NOREPLICAS", &replicas("0")).await?;
    Ok(())
}

async fn an_evicted_bucket_counts_as_unused(server: Server) -> Result<()> {
    let store = server.store()?;
    let policy = publish(&store, &policy(TEN_A_DAY)).await?;
    let alice = request(&[("user", "alice")]);
    for _ in 0..10 {
        assert!(check(&store, &policy, &alice).await?.allowed);
    }
    assert!(!check(&store, &policy, &alice).await?.allowed);
    let set = |name, to| ["CONFIG", "SET", name, to];
    let lru = set("maxmemory-policy", "allkeys-lru");
    server.command(&lru).await?;
    server.command(&set("maxmemory", "1")).await?;
    let evicted = async || (server.ask::<u64>(&["DBSIZE"]).await.ok()? == 0).then_some(());
    until("all is gone", PATIENCE, evicted).await?;
    server.command(&set("maxmemory", "0")).await?;
    let answer = check(&store, &policy, &alice).await?;
    assert_eq!(units_left(&answer), 9, "{answer:?}");
    assert!(store.heads().await?.is_empty(), "the limits are gone too");
    Ok(())
}

/// Passes bytes on to a server; its answers come late while `slow`.
async fn slowed(port: u16, slow: Arc<AtomicBool>, by: Duration) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let slow = Arc::clone(&slow);
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await?;
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_client, &mut to_server).await },
                );
                let mut bytes = [0; 4096];
                loop {
                    let read = from_server.read(&mut bytes).await?;
                    if slow.load(Ordering::Relaxed) {
                        tokio::time::sleep(by).await;
                    }
                    if read == 0 {
                        return std::io::Result::Ok(());
                    }
                    to_client.write_all(&bytes[..read]).await?;
                }
            });
        }
    });
    Ok(own)
}

async fn a_slow_server_charges_only_what_was_sent_and_each_once(server: Server) -> Result<()> {
    let limits = "  - {name: per-user, per: [user], rate: 1/1d, burst: 1000000}\n";
    let policy = publish(&server.store()?, &policy(limits)).await?;
    let slow = Arc::new(AtomicBool::new(false));
    let timeout = Duration::from_millis(100);
    let port = slowed(server.port(), Arc::clone(&slow), 2 * timeout).await?;
    let options = Options {
        timeout,
        ..Options::default()
    };
    let store = open(&format!("redis://127.0.0.1:{port}").parse()?, options)?;
    let alice = request(&[("user", "alice")]);
    let answers = async || check(&store, &policy, &alice).await.ok();
    let (answer, _) = until("a first answer", PATIENCE, answers).await?;
    let before = units_left(&answer);
    slow.store(true, Ordering::Relaxed);
    // Counts checks that time out: those that find the connection usable again after a late
    // reply to a probe.
    let mut late = 0;
    let asked = async || {
        match check(&store, &policy, &alice).await {
            Err(CheckError::Store(StoreError::Timeout(_))) => late += 1,
            Err(_) => {}
            Ok(answer) => panic!("an answer in time: {answer:?}"),
        }
        (late >= 3).then_some(())
    };
    until("three late ones", PATIENCE, asked).await?;
    slow.store(false, Ordering::Relaxed);
    let (answer, _) = until("recovery", PATIENCE, answers).await?;
    let charged = before - units_left(&answer);
    assert!((1..=late + 1).contains(&charged), "{charged} of {late}");
    Ok(())
}

/// As behind a firewall that forgets a connection on which nothing was said for long: what the server sends is lost,
/// and neither side gets an error.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_subscription_that_is_cut_off_is_made_again() -> Result<()> {
    let server = Server::start(Engine::Redis).await?;
    let lost = Arc::new(AtomicBool::new(false));
    let never = Duration::from_hours(1);
    let port = slowed(server.port(), Arc::clone(&lost), never).await?;
    let store = open(
        &format!("redis://127.0.0.1:{port}").parse()?,
        Options::default(),
    )?;
    let mut hints = store.watch_edits();
    tokio::time::timeout(PATIENCE, hints.changed()).await??;
    let publish = ["PUBLISH", "rl:edits", "x"];
    lost.store(true, Ordering::Relaxed);
    assert_eq!(server.ask::<u64>(&publish).await?, 1);
    // Its loss takes effect with the first message after it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!hints.has_changed()?);
    lost.store(false, Ordering::Relaxed);
    // Even if nothing else runs, it takes up to 7 s: until the next probe, for that, and until the next attempt.
    tokio::time::timeout(3 * PATIENCE, hints.changed()).await??;
    server.command(&publish).await?;
    tokio::time::timeout(PATIENCE, hints.changed()).await??;
    Ok(())
}

/// Passes bytes on to a server. While `flood` is some bytes, its next answer begins with them, and zeros follow for as
/// long as the client reads; `written` counts them.
async fn flooding(
    port: u16,
    flood: Arc<Mutex<Option<&'static str>>>,
    written: Arc<AtomicU64>,
) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let own = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (flood, written) = (Arc::clone(&flood), Arc::clone(&written));
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await?;
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_client, &mut to_server).await },
                );
                let mut bytes = [0; 4096];
                loop {
                    let read = from_server.read(&mut bytes).await?;
                    if read == 0 {
                        return std::io::Result::Ok(());
                    }
                    let start = *flood.lock().expect("no panic");
                    let Some(start) = start else {
                        to_client.write_all(&bytes[..read]).await?;
                        continue;
                    };
                    to_client.write_all(start.as_bytes()).await?;
                    let items = if start.starts_with('*') {
                        ":0\r\n"
                    } else {
                        "0000"
                    };
                    let more = items.repeat(16 * 1024);
                    loop {
                        to_client.write_all(more.as_bytes()).await?;
                        written.fetch_add(more.len() as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Ok(own)
}

/// An endless text, an endless line, and a list of a hundred million items.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_reply_without_an_end_closes_the_connection() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let server = Server::start(Engine::Redis).await?;
    let policy = publish(&server.store()?, &policy(TEN_A_DAY)).await?;
    let (flood, written) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let port = flooding(server.port(), Arc::clone(&flood), Arc::clone(&written)).await?;
    let store = open(&format!("redis://127.0.0.1:{port}").parse()?, patient())?;
    let alice = request(&[("user", "alice")]);
    let answers = async || check(&store, &policy, &alice).await.ok();
    until("a first answer", PATIENCE, answers).await?;
    for start in ["$2000000000\r\n", "+", "*100000000\r\n"] {
        let before = written.load(Ordering::Relaxed);
        *flood.lock().expect("no panic") = Some(start);
        let failed = match check(&store, &policy, &alice).await {
            Err(CheckError::Store(StoreError::Broken(why))) => why,
            other => panic!("{start:?}: {other:?}"),
        };
        assert!(
            failed.contains("a reply of more than 4 MiB"),
            "{start:?}: {failed}"
        );
        *flood.lock().expect("no panic") = None;
        until("an answer again", PATIENCE, answers).await?;
        let sent = written.load(Ordering::Relaxed) - before;
        // What the sockets hold is beyond the bound.
        assert!(sent < 24 * MIB, "{start:?}: {sent} bytes were read");
    }
    Ok(())
}
