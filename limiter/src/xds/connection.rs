//! A stream of discovery responses.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::stream::unfold;
use hyper::http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tonic::{
    Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_prost::ProstEncoder;

use super::{
    TYPE_URL, XdsServer,
    messages::{self, DiscoveryRequest, Node, ResponseHead},
};

/// The streaming call of ADS.
const STREAM: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// A larger response ends the connection: what clients of gRPC take by default.
const MAX_RESPONSE: usize = 4 << 20;

/// How long connecting may take, the TLS handshake included.
const CONNECT: Duration = Duration::from_secs(5);

/// The interval of pings that detect a dead server.
const PING_EVERY: Duration = Duration::from_secs(20);

/// `google.rpc.Code.INVALID_ARGUMENT`
const INVALID_ARGUMENT: i32 = 3;

/// Why responses stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("cannot read {}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("cannot connect to the management server: {}", chain(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("the management server: {}", .0.message())]
    Call(#[from] Status),
    #[error("the management server ended the stream")]
    Ended,
}

/// An error with its causes: tonic's own text is only "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Responses stay bytes until it is counted what they would be decoded to.
struct Undecoded;

impl Codec for Undecoded {
    type Encode = DiscoveryRequest;
    type Decode = Bytes;
    type Encoder = ProstEncoder<DiscoveryRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for Undecoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = message.remaining();
        Ok(Some(message.copy_to_bytes(length)))
    }
}

pub(super) struct Connection {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<Bytes>,
    node: Node,
    /// The last accepted version.
    accepted: String,
}

impl Connection {
    /// Connects and requests the limits.
    pub(super) async fn open(server: &XdsServer) -> Result<Self, ConnectionError> {
        let channel = connect(server).await?;
        let mut client = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
        client.ready().await?;
        let node = Node {
            id: server.node.clone(),
        };
        // The first request names no version, whatever was accepted before: a restarted server
        // counts from the beginning, and would mistake an old version for its own.
        let first = DiscoveryRequest {
            node: Some(node.clone()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        let (requests, receiver) = mpsc::channel(2);
        let sent = requests.try_send(first);
        sent.map_err(|_| ConnectionError::Ended)?;
        let stream = unfold(receiver, |mut receiver| async {
            let request = receiver.recv().await?;
            Some((request, receiver))
        });
        let path = PathAndQuery::from_static(STREAM);
        let response = client.streaming(tonic::Request::new(stream), path, Undecoded);
        Ok(Self {
            requests,
            responses: response.await?.into_inner(),
            node,
            accepted: String::new(),
        })
    }

    /// The next response.
    pub(super) async fn next(&mut self) -> Result<Bytes, ConnectionError> {
        self.responses
            .message()
            .await?
            .ok_or(ConnectionError::Ended)
    }

    /// The limits of this response are in force.
    pub(super) async fn accept(&mut self, response: ResponseHead) -> Result<(), ConnectionError> {
        self.accepted = response.version_info;
        self.answer(response.nonce, None).await
    }

    /// The limits of this response cannot be used.
    pub(super) async fn reject(
        &mut self,
        response: ResponseHead,
        error: String,
    ) -> Result<(), ConnectionError> {
        let status = messages::Status {
            code: INVALID_ARGUMENT,
            message: error,
        };
        self.answer(response.nonce, Some(status)).await
    }

    async fn answer(
        &self,
        nonce: String,
        error: Option<messages::Status>,
    ) -> Result<(), ConnectionError> {
        let request = DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: error,
        };
        let sent = self.requests.send(request).await;
        sent.map_err(|_| ConnectionError::Ended)
    }
}

async fn connect(server: &XdsServer) -> Result<Channel, ConnectionError> {
    let mut endpoint = Endpoint::from_shared(server.url.clone())?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_while_idle(true);
    if server.url.starts_with("https://") {
        // Read for each connection: certificates are replaced while programs run.
        let mut tls = ClientTlsConfig::new();
        tls = match &server.ca {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
            None => tls.with_native_roots(),
        };
        if let Some((cert, key)) = &server.identity {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect().await?)
}

fn read(path: &Path) -> Result<Vec<u8>, ConnectionError> {
    fs::read(path).map_err(|error| ConnectionError::File {
        path: path.to_owned(),
        error,
    })
}
