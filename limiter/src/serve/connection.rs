//! One connection, from its first byte to its end.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, Version,
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, interval_at, sleep},
};

use super::{ConnectionBounds, Handler, Lifecycle, Phase};
use crate::tls::Tls;

/// Header bytes of one request; clients send a few hundred.
const MAX_HEAD: u16 = 16 * 1024;

/// Streams of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 1024;

/// Dead peers of HTTP/2 connections are found by pings this far apart.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a connection accepted at the very end may take to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);

/// Serves the connections of one port.
pub(super) struct Server<H> {
    handler: Arc<H>,
    tls: Option<Tls>,
    protocols: Builder<TokioExecutor>,
    idle: Duration,
}

impl<H: Handler> Server<H> {
    pub(super) fn new(handler: Arc<H>, tls: Option<Tls>, bounds: ConnectionBounds) -> Self {
        let mut protocols = Builder::new(TokioExecutor::new());
        protocols
            .http1()
            .max_buf_size(usize::from(MAX_HEAD))
            // Idle connections and slow heads end by the connection's own idle rule: hyper would
            // set a timer for every request.
            .header_read_timeout(None)
            .pipeline_flush(true);
        let window = u32::try_from(bounds.max_body).unwrap_or(u32::MAX);
        protocols
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::from(MAX_HEAD))
            .initial_stream_window_size(window.clamp(16 * 1024, 1 << 20))
            .initial_connection_window_size(1 << 20)
            .keep_alive_interval(PING_EVERY);
        Self {
            handler,
            tls,
            protocols,
            idle: bounds.idle,
        }
    }

    pub(super) async fn serve(&self, stream: TcpStream, lifecycle: &Arc<Lifecycle>) {
        match &self.tls {
            None => self.drive(stream, lifecycle).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => self.drive(stream, lifecycle).await,
                Err(error) => tracing::debug!(%error, "TLS handshake failed"),
            },
        }
    }

    async fn drive<I>(&self, stream: I, lifecycle: &Arc<Lifecycle>)
    where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let activity = Arc::new(Activity::default());
        let service = service_fn(|request| {
            let running = Running::start(&activity);
            answer(
                Arc::clone(&self.handler),
                request,
                Arc::clone(lifecycle),
                running,
            )
        });
        let mut connection = pin!(
            self.protocols
                .serve_connection(TokioIo::new(stream), service)
        );
        let closing = pin!(close(&activity, lifecycle, self.idle));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return log_end(ended),
            () = closing => connection.as_mut().graceful_shutdown(),
        }
        // Told to end after what it has; a client that neither reads nor sends is cut off.
        tokio::select! {
            ended = connection => log_end(ended),
            () = stuck(&activity, self.idle) => {}
            () = lifecycle.reached(Phase::Abort) => {}
        }
    }
}

fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Waits until the connection should end: it is idle for long, or the service closes.
async fn close(activity: &Activity, lifecycle: &Lifecycle, idle: Duration) {
    tokio::select! {
        () = stuck(activity, idle) => {}
        () = lifecycle.reached(Phase::Close) => {
            // Its first request may be on the way: it was accepted moments ago.
            if activity.started.load(Ordering::Relaxed) == 0 {
                sleep(LAST_REQUEST).await;
            }
        }
    }
}

/// Waits until no request runs nor started for `idle`.
async fn stuck(activity: &Activity, idle: Duration) {
    let mut seen = activity.started.load(Ordering::Relaxed);
    let mut ticks = interval_at(Instant::now() + idle, idle);
    loop {
        ticks.tick().await;
        let started = activity.started.load(Ordering::Relaxed);
        if started == seen && activity.running.load(Ordering::Relaxed) == 0 {
            return;
        }
        seen = started;
    }
}

/// The requests of one connection.
#[derive(Default)]
struct Activity {
    started: AtomicU64,
    running: AtomicUsize,
}

/// A request that was started and has not ended, be it because its client left.
struct Running(Arc<Activity>);

impl Running {
    fn start(activity: &Arc<Activity>) -> Self {
        activity.started.fetch_add(1, Ordering::Relaxed);
        activity.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn answer<H: Handler>(
    handler: Arc<H>,
    request: Request<Incoming>,
    lifecycle: Arc<Lifecycle>,
    running: Running,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let http1 = request.version() <= Version::HTTP_11;
    let mut response = handler.handle(request).await;
    if http1 && lifecycle.is_leaving() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    drop(running);
    Ok(response)
}
