use super::*;

use futures_util::task::noop_waker_ref;
use tokio::sync::oneshot;

/// What happened, in order.
type Log = Arc<Mutex<Vec<&'static str>>>;

fn seen(log: &Log) -> Vec<&'static str> {
    std::mem::take(&mut *log.lock().unwrap())
}

/// Polls the requests with a connection that logs its polls and ends when `on_poll` says so.
fn poll(streams: &mut Streams, log: &Log, mut on_poll: impl FnMut() -> Poll<()>) -> Poll<()> {
    let connection = std::future::poll_fn(|_: &mut Context<'_>| {
        log.lock().unwrap().push("connection");
        on_poll()
    });
    let connection = std::pin::pin!(connection);
    streams.poll_with(connection, &mut Context::from_waker(noop_waker_ref()))
}

#[test]
fn ready_requests_run_before_the_connection_writes() {
    let (mut streams, log) = (Streams::default(), Log::default());
    let arrivals = streams.arrivals();
    let mut replies = Vec::new();
    let arrive = || {
        for _ in 0..3 {
            let (reply, answer) = oneshot::channel::<()>();
            replies.push(reply);
            let log = Arc::clone(&log);
            arrivals.execute(async move {
                log.lock().unwrap().push("start");
                answer.await.unwrap();
                log.lock().unwrap().push("answer");
            });
        }
        Poll::Pending
    };
    assert!(poll(&mut streams, &log, arrive).is_pending());
    assert_eq!(seen(&log), ["connection", "start", "start", "start"]);
    for reply in replies {
        reply.send(()).unwrap();
    }
    assert!(poll(&mut streams, &log, || Poll::Pending).is_pending());
    assert_eq!(seen(&log), ["answer", "answer", "answer", "connection"]);
}

#[test]
fn a_panic_ends_its_request_alone() {
    let (mut streams, log) = (Streams::default(), Log::default());
    let arrivals = streams.arrivals();
    arrivals.execute(async { panic!("one of two") });
    let other = Arc::clone(&log);
    arrivals.execute(async move { other.lock().unwrap().push("answer") });
    assert!(poll(&mut streams, &log, || Poll::Pending).is_pending());
    assert_eq!(seen(&log), ["answer", "connection"]);
    assert!(streams.running.is_empty());
}

#[test]
fn requests_end_with_their_connection() {
    let (mut streams, log) = (Streams::default(), Log::default());
    let arrivals = streams.arrivals();
    let held = Arc::new(());
    let arrive = || {
        let (held, arrivals) = (Arc::clone(&held), arrivals.clone());
        arrivals.clone().execute(async move {
            let _holds = (held, arrivals);
            std::future::pending::<()>().await;
        });
        Poll::Ready(())
    };
    assert!(poll(&mut streams, &log, arrive).is_ready());
    drop(streams);
    assert_eq!(Arc::strong_count(&held), 1);
    // The connection is gone, so this request is dropped.
    let late = Arc::clone(&held);
    arrivals.execute(async move { drop(late) });
    assert_eq!(Arc::strong_count(&held), 1);
}
