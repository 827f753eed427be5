//! An HTTP client with a short interface for tests.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client as Pool};
use hyper_util::rt::TokioExecutor;

/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends requests over pooled connections.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Default for Client {
    fn default() -> Self {
        Self::of(&Pool::builder(TokioExecutor::new()))
    }
}

impl Client {
    /// Makes no connection before the first request.
    pub fn new() -> Self {
        Self::default()
    }

    /// One connection of cleartext HTTP/2 to each server.
    pub fn http2() -> Self {
        Self::of(Pool::builder(TokioExecutor::new()).http2_only(true))
    }

    fn of(builder: &Builder) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            pool: builder.build(connector),
        }
    }

    /// A GET of a whole URL.
    pub fn get(&self, url: &str) -> Request {
        self.request(Method::GET, url)
    }

    /// A POST to a whole URL.
    pub fn post(&self, url: &str, body: impl Into<Bytes>) -> Request {
        let mut request = self.request(Method::POST, url);
        request.body = body.into();
        request
    }

    /// A PATCH of a whole URL.
    pub fn patch(&self, url: &str, body: impl Into<Bytes>) -> Request {
        let mut request = self.request(Method::PATCH, url);
        request.body = body.into();
        request
    }

    /// A DELETE of a whole URL.
    pub fn delete(&self, url: &str) -> Request {
        self.request(Method::DELETE, url)
    }

    fn request(&self, method: Method, url: &str) -> Request {
        let (client, url) = (self.clone(), url.to_owned());
        Request {
            client,
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }
}

/// A request to be sent, once or often.
#[derive(Debug, Clone)]
pub struct Request {
    client: Client,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    /// Adds a header; bytes above 0x7f are sent as they are.
    ///
    /// # Panics
    /// When HTTP cannot carry such a header: a mistake in the test.
    #[must_use]
    #[expect(clippy::expect_used, reason = "only tests build requests")]
    pub fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    /// The same request without the body of its answer.
    #[must_use]
    pub fn head(mut self) -> Self {
        self.method = Method::HEAD;
        self
    }

    /// Sends it and reads the whole answer.
    pub async fn send(&self) -> Result<Reply> {
        let mut request = hyper::Request::builder()
            .method(&self.method)
            .uri(&self.url);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = request.body(Full::new(self.body.clone()))?;
        let started = Instant::now();
        let exchange = async {
            let (head, body) = self.client.pool.request(request).await?.into_parts();
            let body = body.collect().await?;
            let trailers = body.trailers().cloned().unwrap_or_default();
            let body = body.to_bytes();
            let (status, headers) = (head.status, head.headers);
            anyhow::Ok(Reply {
                status,
                headers,
                body,
                trailers,
                took: started.elapsed(),
            })
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs()))
            .flatten()
            .with_context(|| format!("{} {}", self.method, self.url))
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its whole body.
    pub body: Bytes,
    /// What came after it.
    pub trailers: HeaderMap,
    /// From the first byte sent to the last byte received.
    pub took: Duration,
}

impl Reply {
    /// A header as text; `None` if it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }
}
