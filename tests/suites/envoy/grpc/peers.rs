//! A gRPC echo service, and a client with many calls on one connection, over real HTTP/2.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use harness::{Bytes, serve_each};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The service; it ends when dropped.
pub struct Echo {
    port: u16,
    calls: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Echo {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        Self {
            port,
            calls,
            _tasks: serve_each(listener, move |stream| serve(stream, Arc::clone(&counted))),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Calls that arrived so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, calls: Arc<AtomicU64>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut running = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        calls.fetch_add(1, Ordering::Relaxed);
        running.spawn(async move {
            // A client may disconnect at any time.
            let _ = echo(request.into_body(), respond).await;
        });
    }
}

async fn echo(mut messages: RecvStream, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let head = Response::builder().header("content-type", "application/grpc");
    let mut answer = respond.send_response(head.body(()).unwrap(), false)?;
    while let Some(bytes) = messages.data().await {
        let bytes = bytes?;
        messages.flow_control().release_capacity(bytes.len())?;
        answer.send_data(bytes, false)?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    answer.send_trailers(trailers)
}

/// One connection of a client.
pub struct Connection {
    sender: SendRequest<Bytes>,
    _driver: JoinSet<()>,
}

impl Connection {
    pub async fn open(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        let (sender, driver) = h2::client::handshake(stream.unwrap()).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Errors of the connection show in its calls.
            let _ = driver.await;
        });
        Self {
            sender,
            _driver: tasks,
        }
    }

    /// Begins a call.
    pub async fn begin(&self, path: &str, user: &str) -> Call {
        let request = Request::post(format!("http://service{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("x-user-id", user)
            .body(())
            .unwrap();
        let mut sender = self.sender.clone().ready().await.unwrap();
        let (response, messages) = sender.send_request(request, false).unwrap();
        Call { response, messages }
    }

    /// A call with one message.
    pub async fn unary(&self, path: &str, user: &str) -> Answer {
        let mut call = self.begin(path, user).await;
        call.say("hello", true);
        call.answer().await
    }
}

/// A call whose response has not started.
pub struct Call {
    response: ResponseFuture,
    messages: SendStream<Bytes>,
}

impl Call {
    /// Sends a message, the last one or not.
    pub fn say(&mut self, text: &str, last: bool) {
        // The call may have been answered already.
        let _ = self.messages.send_data(message(text), last);
    }

    /// Resets the call.
    pub fn reset(mut self) {
        self.messages.send_reset(Reason::CANCEL);
    }

    /// Waits for the head of the response.
    pub async fn begun(self) -> Stream {
        let (head, body) = self.response.await.unwrap().into_parts();
        Stream {
            status: head.status.as_u16(),
            headers: head.headers,
            messages: self.messages,
            body,
        }
    }

    /// Waits for the whole answer.
    pub async fn answer(self) -> Answer {
        self.begun().await.rest().await
    }
}

/// A call whose response has started.
pub struct Stream {
    status: u16,
    headers: HeaderMap,
    messages: SendStream<Bytes>,
    body: RecvStream,
}

impl Stream {
    /// Sends a message and waits for its echo.
    pub async fn echoed(&mut self, text: &str) {
        self.messages.send_data(message(text), false).unwrap();
        self.expect(text).await;
    }

    /// Waits for the echo of a message sent before.
    pub async fn expect(&mut self, text: &str) {
        let said = message(text);
        let mut received = Vec::new();
        while received.len() < said.len() {
            received.extend(self.body.data().await.unwrap().unwrap());
        }
        assert_eq!(received, said);
    }

    /// Ends the request, and waits for the end of the response.
    pub async fn end(mut self) -> Answer {
        self.messages.send_data(Bytes::new(), true).unwrap();
        self.rest().await
    }

    async fn rest(mut self) -> Answer {
        let trailers_only = self.body.is_end_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = self.body.data().await {
            bytes.extend(chunk.unwrap());
        }
        let trailers = self.body.trailers().await.unwrap();
        Answer {
            status: self.status,
            headers: self.headers,
            trailers_only,
            bytes,
            trailers: trailers.unwrap_or_default(),
        }
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Whether the response was only a head.
    pub trailers_only: bool,
    bytes: Vec<u8>,
    trailers: HeaderMap,
}

impl Answer {
    /// The status that a gRPC client library reports for the call.
    pub fn grpc_status(&self) -> &str {
        let of = if self.trailers_only {
            &self.headers
        } else {
            &self.trailers
        };
        of.get("grpc-status").unwrap().to_str().unwrap()
    }

    /// A header of the head.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .to_str()
            .unwrap()
    }

    /// Whether the service echoed this.
    pub fn says(&self, text: &str) -> bool {
        self.bytes == message(text)
    }
}

/// An uncompressed message, preceded by its length.
fn message(text: &str) -> Bytes {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), text.as_bytes()].concat().into()
}
