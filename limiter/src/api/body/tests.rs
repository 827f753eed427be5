use super::*;

use std::sync::mpsc;

#[tokio::test]
async fn a_cancelled_decode_keeps_its_permit_until_it_finishes() {
    let bodies = Arc::new(Bodies::new(256 << 10, Gauge::default()));
    let large = Bytes::from(vec![0; LARGE + 1]);
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (finish, may_finish) = mpsc::channel::<()>();
    let first = tokio::spawn({
        let (bodies, large) = (Arc::clone(&bodies), large.clone());
        async move {
            let decode = move |_: &[u8]| {
                started.send(()).unwrap();
                may_finish.recv().unwrap();
                Ok(())
            };
            bodies.decode(large, decode).await
        }
    });
    has_started.await.unwrap();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(bodies.decoding.available_permits(), 0);
    finish.send(()).unwrap();
    let length = bodies.decode(large, |bytes| Ok(bytes.len())).await;
    assert_eq!(length.unwrap(), LARGE + 1);
}
