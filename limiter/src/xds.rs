//! `--xds-server`: limits from a management server, as Envoy Gateway sends them to its rate limit
//! service: `RateLimitConfig` resources over ADS, in the state-of-the-world variant.
//!
//! The limiter publishes them into the store like those of `--rls-config`. It rejects an unusable
//! response whole. Then, and while the server is unreachable, the limits stay as they were.
//!
//! However much the server sends, the limiter puts the limits of one response a second in force, the
//! latest, and of large ones fewer ([`Pace`]), and logs a line a second: each is an edit, and a
//! domain's history has a thousand.

mod messages;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::stream::unfold;
use hyper::http::uri::PathAndQuery;
use insight::with_causes;
use migration::File;
use policy::Policy;
use prost::Message;
use store::{PemError, PemFile, Store};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tonic::{
    Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_prost::ProstEncoder;

use crate::{
    aside::{Pace, alone},
    log::shortened,
    publish::Publisher,
    rls_config::converted,
};
use messages::Content;
use messages::{DiscoveryRequest, Node, RateLimitConfig, Resources, ResponseHead};

/// The type of the resources.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The pause before reconnecting: doubled up to the longest while no response comes, and shortened
/// by up to half at random, so that limiters do not all reconnect at once.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The pause between two lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Bound: resources in a response of `--xds-server`. Beyond it, an error; the last good limits
/// stay.
const MAX_RESOURCES: usize = 4096;

/// The management server, and how this limiter identifies itself to it.
#[derive(Clone, Debug)]
pub struct XdsServer {
    /// `http://HOST:PORT`, or `https://HOST:PORT`.
    pub url: String,
    /// The node whose limits the server sends.
    pub node: String,
    /// Authorities of the server's certificate, PEM; `None`: those of this machine.
    pub ca: Option<PathBuf>,
    /// The certificate chain and the private key to show, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The parts that can fail separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Connection,
    Configuration,
    Store,
}

/// What the log and `/readyz` report.
#[derive(Clone, Default, PartialEq, Eq)]
struct Report {
    errors: BTreeMap<Part, String>,
    /// What means something else here, or nothing, in the limits that are in force.
    notes: String,
}

/// The limits of a management server.
pub(crate) struct Xds {
    server: XdsServer,
    store: Arc<dyn Store>,
    report: Mutex<Report>,
    reported: Notify,
}

/// The limits that the store should hold.
struct Wanted {
    publisher: Publisher,
    /// What could not be written yet.
    unwritten: Option<Vec<Policy>>,
    /// When the next ones, or the same ones again, may be put in force.
    pace: Pace,
}

impl Report {
    fn error(&self) -> Option<String> {
        let texts: Vec<&str> = self.errors.values().map(String::as_str).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

impl Xds {
    pub(crate) fn new(server: XdsServer, store: Arc<dyn Store>) -> Self {
        Self {
            server,
            store,
            report: Mutex::default(),
            reported: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the server's current limits are not in force.
    pub(crate) fn error(&self) -> Option<String> {
        self.lock().error()
    }

    /// Records an error of a part, or that it has none.
    fn report(&self, part: Part, error: Option<String>) {
        let mut report = self.lock();
        match error {
            Some(error) => report.errors.insert(part, shortened(error)),
            None => report.errors.remove(&part),
        };
        drop(report);
        self.reported.notify_one();
    }

    /// Logs what is new, a line a second.
    async fn log(&self) {
        let server = &self.server.url;
        let mut logged = Report::default();
        loop {
            self.reported.notified().await;
            let now = self.lock().clone();
            if now == logged {
                continue;
            }
            if now.errors == logged.errors {
                tracing::warn!(server, notes = now.notes, "not all is as the server has it");
                logged.notes = now.notes;
            } else {
                match now.error() {
                    Some(error) => tracing::error!(server, error, "the limits stay as they were"),
                    None => {
                        tracing::info!(server, "the limits are as the management server has them");
                    }
                }
                logged.errors = now.errors;
                // Notes that are new as well have the next line.
                self.reported.notify_one();
            }
            sleep(LOG_EVERY).await;
        }
    }

    /// Follows the server forever.
    pub(crate) async fn follow(&self) {
        tokio::join!(self.connect_again_and_again(), self.log());
    }

    async fn connect_again_and_again(&self) {
        let mut wanted = Wanted {
            publisher: Publisher::for_place(
                Arc::clone(&self.store),
                "--xds-server",
                &format!("{} {}", self.server.url, self.server.node),
            ),
            unwritten: None,
            pace: Pace::new(),
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match Connection::open(&self.server).await {
                Ok(connection) => self.listen(connection, &mut wanted, &mut pause).await,
                Err(error) => error.to_string(),
            };
            self.report(Part::Connection, Some(error));
            let shorter = fastrand::u64(0..=u64::try_from(pause.as_millis()).unwrap_or(0) / 2);
            let again = Instant::now() + pause.saturating_sub(Duration::from_millis(shorter));
            while wanted.unwritten.is_some() && wanted.pace.next() < again {
                wanted.pace.turn().await;
                let _alone = alone().await;
                let began = Instant::now();
                self.write(&mut wanted).await;
                wanted.pace.ended(began);
            }
            sleep_until(again).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows one connection; returns why it ended.
    async fn listen(
        &self,
        mut connection: Connection,
        wanted: &mut Wanted,
        pause: &mut Duration,
    ) -> String {
        let mut latest: Option<Bytes> = None;
        loop {
            let due = latest.is_some() || wanted.unwritten.is_some();
            tokio::select! {
                response = connection.next() => match response {
                    // An earlier one that had no turn yet is outdated.
                    Ok(response) => {
                        latest = Some(response);
                        *pause = FIRST_PAUSE;
                        self.report(Part::Connection, None);
                    }
                    Err(error) => return error.to_string(),
                },
                () = wanted.pace.turn(), if due => {
                    let _alone = alone().await;
                    let began = Instant::now();
                    let outcome = if let Some(response) = latest.take() {
                        self.respond(response, &mut connection, wanted).await
                    } else {
                        self.write(wanted).await;
                        Ok(())
                    };
                    wanted.pace.ended(began);
                    if let Err(error) = outcome {
                        return error;
                    }
                }
            }
        }
    }

    /// Puts the limits of a response in force, or rejects it; fails if the connection ended.
    async fn respond(
        &self,
        response: Bytes,
        connection: &mut Connection,
        wanted: &mut Wanted,
    ) -> Result<(), String> {
        // The last limits are dropped before the next ones are read.
        wanted.unwritten = None;
        let head = ResponseHead::decode(response.clone()).map_err(|error| error.to_string())?;
        let answered = match limits(&response) {
            Ok((policies, notes)) => {
                wanted.unwritten = Some(policies);
                self.lock().notes = notes;
                self.report(Part::Configuration, None);
                self.write(wanted).await;
                connection.accept(head).await
            }
            Err(error) => {
                let error = shortened(error);
                self.report(Part::Configuration, Some(error.clone()));
                connection.reject(head, error).await
            }
        };
        answered.map_err(|error| error.to_string())
    }

    async fn write(&self, wanted: &mut Wanted) {
        let Some(policies) = &mut wanted.unwritten else {
            return;
        };
        let error = wanted.publisher.publish(policies).await.err();
        if error.is_none() {
            wanted.unwritten = None;
        }
        self.report(Part::Store, error.map(|error| error.to_string()));
    }
}

/// The policies in a response and notes about them, or what is wrong with it.
fn limits(response: &Bytes) -> Result<(Vec<Policy>, String), String> {
    let content = Content::new(response, TYPE_URL)?;
    let resources = Resources::decode(response.clone()).map_err(|error| error.to_string())?;
    if resources.all.len() > MAX_RESOURCES {
        return Err(format!("more than {MAX_RESOURCES} resources"));
    }
    if resources.all.len() > content.typed() {
        return Err("a resource without a type".to_owned());
    }
    let mut files = Vec::with_capacity(resources.all.len());
    for resource in resources.all {
        let config = RateLimitConfig::decode(resource.value).map_err(|error| error.to_string())?;
        let text = config.file().to_string();
        files.push((config.name, text));
    }
    let files = files.iter().map(|(name, text)| File {
        name,
        bytes: text.as_bytes(),
    });
    let converted = converted(&files.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    let mut notes: Vec<String> = converted.notes.iter().map(ToString::to_string).collect();
    if !content.unknown.is_empty() {
        let fields: Vec<String> = content.unknown.iter().map(ToString::to_string).collect();
        let fields = fields.join(", ");
        notes.insert(0, format!("unknown fields, which have no effect: {fields}"));
    }
    Ok((converted.policies, shortened(notes.join("; "))))
}

// --- A stream of discovery responses

/// The streaming call of ADS.
const STREAM: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Bound: bytes of a response of `--xds-server`. Beyond it, an error; the last good limits stay.
///
/// What clients of gRPC take by default.
pub(crate) const MAX_RESPONSE: usize = 4 << 20;

/// How long connecting may take, the TLS handshake included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The interval of pings that detect a dead server.
const PING_EVERY: Duration = Duration::from_secs(20);

/// `google.rpc.Code.INVALID_ARGUMENT`
const INVALID_ARGUMENT: i32 = 3;

/// Why responses stopped.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Unusable(#[from] PemError),
    // Its own text is only "transport error".
    #[error("cannot connect to the management server: {}", with_causes(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("the management server: {}", .0.message())]
    Call(#[from] Status),
    #[error("the management server ended the stream")]
    Ended,
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

struct Connection {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<Bytes>,
    node: Node,
    /// The last accepted version.
    accepted: String,
}

impl Connection {
    /// Connects and requests the limits.
    async fn open(server: &XdsServer) -> Result<Self, ConnectionError> {
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
    async fn next(&mut self) -> Result<Bytes, ConnectionError> {
        self.responses
            .message()
            .await?
            .ok_or(ConnectionError::Ended)
    }

    /// The limits of this response are in force.
    async fn accept(&mut self, response: ResponseHead) -> Result<(), ConnectionError> {
        self.accepted = response.version_info;
        self.answer(response.nonce, None).await
    }

    /// The limits of this response cannot be used.
    async fn reject(
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
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_while_idle(true);
    if server.url.starts_with("https://") {
        // Read for each connection: certificates are replaced while programs run.
        let mut tls = ClientTlsConfig::new();
        tls = match &server.ca {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read_pem(
                path,
                PemFile::certificates,
            )?)),
            None => tls.with_native_roots(),
        };
        if let Some((cert, key)) = &server.identity {
            tls = tls.identity(Identity::from_pem(
                read_pem(cert, PemFile::certificates)?,
                read_pem(key, PemFile::private_key)?,
            ));
        }
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect().await?)
}

/// A file, of which tonic's own errors would not say what is wrong with it, nor its name.
fn read_pem<T>(
    path: &Path,
    check: fn(&PemFile) -> Result<T, PemError>,
) -> Result<Vec<u8>, PemError> {
    let file = PemFile::read(path)?;
    check(&file)?;
    Ok(file.bytes)
}
