use super::*;
use crate::serve::AuthState;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

#[test]
fn unauthenticated_share_one_read_rate_and_idle_time_earns_no_credit() {
    let (unauthenticated, now) = (UnauthenticatedReads::default(), Instant::now());
    let ms = Duration::from_millis;
    // The first read is free, and delays those that follow.
    assert_eq!(unauthenticated.after(2000, now), None);
    assert_eq!(unauthenticated.after(2000, now), Some(now + ms(1)));
    assert_eq!(unauthenticated.after(200, now), Some(now + ms(2)));
    // Idle time earns no credit.
    let later = now + ms(1000);
    assert_eq!(unauthenticated.after(2000, later), None);
    assert_eq!(unauthenticated.after(0, later), Some(later + ms(1)));
}

/// As of clients that connect, send a kilobyte and leave, over and over.
#[test]
fn first_bytes_without_end_delay_the_reads_of_others_for_a_moment_only() {
    let (unauthenticated, now) = (UnauthenticatedReads::default(), Instant::now());
    for _ in 0..10 * 5000 {
        unauthenticated.after(UNAUTHENTICATED_READ, now);
    }
    let turn = unauthenticated.after(100, now).unwrap();
    assert_eq!(turn - now, UNAUTHENTICATED_WAIT);
    assert_eq!(unauthenticated.after(100, turn), None);
}

/// hyper reads the first 24 bytes alone, which say HTTP's version.
#[tokio::test(start_paused = true)]
async fn the_first_kilobyte_waits_for_no_turn_in_however_many_reads() {
    let unauthenticated = Arc::<UnauthenticatedReads>::default();
    unauthenticated.after(200_000, Instant::now());
    let started = Instant::now();
    let (mut client, server) = duplex(64 * 1024);
    let mut inbound = Inbound::new(server, Peer::alone(1), Arc::clone(&unauthenticated));
    client.write_all(&[7; 1025]).await.unwrap();
    for bytes in [24, 600, 400] {
        inbound.read_exact(&mut vec![0; bytes]).await.unwrap();
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    inbound.read_u8().await.unwrap();
    let waited = started.elapsed();
    assert!(waited >= UNAUTHENTICATED_BYTE * 200_000, "{waited:?}");
}

/// Envoy gives a health check 150 ms.
#[tokio::test(start_paused = true)]
async fn a_health_checker_waits_for_its_own_bytes_only() {
    let unauthenticated = Arc::<UnauthenticatedReads>::default();
    let (mut client, server) = duplex(64 * 1024);
    let peer = Peer::alone(1);
    peer.shows(AuthState::HealthChecker);
    let mut inbound = Inbound::new(server, peer, Arc::clone(&unauthenticated));
    let started = Instant::now();
    for n in 0..100 {
        unauthenticated.after(1_000_000, Instant::now());
        client.write_all(&[7; 200]).await.unwrap();
        inbound.read_exact(&mut [0; 200]).await.unwrap();
        assert_eq!(started.elapsed(), Duration::from_millis(250) * n);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    // One that asks all the time is slowed down.
    let started = Instant::now();
    client.write_all(&[7; 10 * 1024]).await.unwrap();
    inbound.read_exact(&mut [0; 10 * 1024]).await.unwrap();
    assert_eq!(started.elapsed(), HEALTH_CHECK_BYTE * 9 * 1024);
}

#[tokio::test(start_paused = true)]
async fn bytes_of_unauthenticated_are_throttled_but_all_read() {
    let unauthenticated = Arc::<UnauthenticatedReads>::default();
    let started = Instant::now();
    let read = (0..8_u8).map(async |id| {
        let (mut client, server) = duplex(64 * 1024);
        let mut inbound =
            Inbound::new(server, Peer::alone(id.into()), Arc::clone(&unauthenticated));
        client.write_all(&vec![id; 20_000]).await.unwrap();
        drop(client);
        let mut bytes = Vec::new();
        inbound.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, vec![id; 20_000]);
    });
    futures_util::future::join_all(read).await;
    // The paused clock shows the time spent waiting. Nothing waits after the last reads.
    let rate = UNAUTHENTICATED_BYTE * (8 * (20_000 - 2 * 1024));
    assert!(started.elapsed() >= rate, "{:?}", started.elapsed());
}
