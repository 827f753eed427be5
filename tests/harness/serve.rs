//! Servers of tests: one for any protocol, one for HTTP/1.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Serves each connection in a task. Dropping the tasks closes the connections.
#[must_use]
pub fn serve_each<S>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> S + Send + 'static,
) -> JoinSet<()>
where
    S: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listener, serve));
    tasks
}

async fn accept<S>(listener: TcpListener, serve: impl Fn(TcpStream) -> S)
where
    S: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream));
        while connections.try_join_next().is_some() {}
    }
}

/// Answers every request with the result of `answer`.
pub async fn serve<A>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
) where
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    accept(listener, move |stream| {
        let answer = answer.clone();
        async move {
            let service = service_fn(|request| {
                let answered = answer(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            // A client may disconnect at any time.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await;
}
