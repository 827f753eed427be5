//! A management server that sends more than a limiter may take.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::strikes::Count;

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Small responses in a row, each with another limit.
const EDITS: usize = 200;

/// The responses of a stream, one after the other.
struct Responses(mpsc::Receiver<Bytes>);

impl Body for Responses {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Answers every stream with response after response, without end.
pub async fn serve(port: u16, count: Count) {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        let count = Arc::clone(&count);
        let service = service_fn(move |request: Request<Incoming>| {
            let (sender, responses) = mpsc::channel(1);
            // The limiter's answers are not read.
            tokio::spawn(send(sender, request.into_body(), Arc::clone(&count)));
            let mut response = Response::new(Responses(responses));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(CONTENT_TYPE, grpc);
            async { Ok::<_, Infallible>(response) }
        });
        let serving = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(serving);
    }
}

async fn send(responses: mpsc::Sender<Bytes>, _unread: Incoming, count: Count) {
    let mut nth = 0;
    loop {
        let edits = (0..EDITS).map(|edit| limits(1, nth + edit + 1));
        let large = [
            limits(9900, nth + 1),
            // Descriptors of two bytes each.
            response(&resource(&[0x1a, 0].repeat(1_500_000))),
            response(&field(1, &vec![b't'; 3 << 20])),
        ];
        for bytes in edits.chain(large) {
            if responses.send(bytes).await.is_err() {
                return;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
        nth += EDITS;
        sleep(Duration::from_millis(500)).await;
    }
}

/// A field of bytes, text or a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(value.len(), &mut out);
    out.extend(value);
    out
}

fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 127 {
        out.push(u8::try_from(number & 127).unwrap_or(0) | 128);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

/// This many limits of so many requests a day, in the domain `xds`.
fn limits(many: usize, requests: usize) -> Bytes {
    let mut policy = vec![8, 4, 16];
    varint(requests, &mut policy);
    let descriptor = |n: usize| {
        let value = field(2, format!("u{n}").as_bytes());
        field(3, &[field(1, b"user"), value, field(3, &policy)].concat())
    };
    let descriptors = (0..many).flat_map(descriptor);
    let config = field(2, b"xds").into_iter().chain(descriptors);
    response(&resource(&config.collect::<Vec<_>>()))
}

fn resource(config: &[u8]) -> Vec<u8> {
    [field(1, TYPE_URL.as_bytes()), field(2, config)].concat()
}

/// A response of one resource, as a message of gRPC.
fn response(resource: &[u8]) -> Bytes {
    let message = [field(1, b"v"), field(2, resource), field(5, b"n")].concat();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}
