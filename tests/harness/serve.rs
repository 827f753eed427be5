//! An HTTP/1 server.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Answers every request with the result of `answer`.
pub async fn serve<A>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
) where
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(|request| {
                let answered = answer(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            // A client may disconnect at any time.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}
