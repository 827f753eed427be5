use super::*;

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
