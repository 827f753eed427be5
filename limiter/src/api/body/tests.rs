use super::*;

use std::sync::mpsc;

const MAX: usize = 256 << 10;

/// A body of so many bytes that has arrived, over a connection of its own.
fn received(bodies: &Bodies, length: usize) -> Received {
    let mut memory = bodies.memory_permit(&Peer::alone(0)).unwrap();
    memory.grow(length).unwrap();
    let bytes = Bytes::from(vec![0; length]);
    Received { bytes, memory }
}

async fn length(bodies: &Bodies, length: usize) -> Result<usize, ApiError> {
    let body = received(bodies, length);
    let decoded = bodies.decode(body, |bytes| Ok(bytes.len())).await;
    decoded.map(|(length, _)| length)
}

#[tokio::test]
async fn a_cancelled_decode_keeps_its_permits_until_it_finishes() {
    let bodies = Arc::new(Bodies::new(MAX, Gauge::default()));
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (finish, may_finish) = mpsc::channel::<()>();
    let first = tokio::spawn({
        let bodies = Arc::clone(&bodies);
        async move {
            let decode = move |_: &[u8]| {
                started.send(()).unwrap();
                may_finish.recv().unwrap();
                Ok(())
            };
            bodies
                .decode(received(&bodies, MAX), decode)
                .await
                .map(drop)
        }
    });
    has_started.await.unwrap();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(bodies.decoding.available_permits(), 0);
    assert!(bodies.bytes.used() > MAX);
    finish.send(()).unwrap();
    assert_eq!(length(&bodies, MAX).await.unwrap(), MAX);
    assert_eq!(bodies.bytes.used(), 0);
}

#[tokio::test]
async fn large_bodies_that_wait_for_their_turn_leave_room_for_others() {
    let bodies = Bodies::new(MAX, Gauge::default());
    let turn = Arc::clone(&bodies.decoding).acquire_owned().await.unwrap();
    let waiting = futures_util::future::join_all((0..20).map(|_| length(&bodies, MAX)));
    let small = async {
        let decoded = length(&bodies, LARGE).await;
        drop(turn);
        decoded
    };
    let (small, waiting) = tokio::join!(small, waiting);
    assert_eq!(small.unwrap(), LARGE);
    for large in waiting {
        assert_eq!(large.unwrap(), MAX);
    }
}
