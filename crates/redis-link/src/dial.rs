//! Opens a byte stream to a server, at a fixed address or wherever sentinels name its primary.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use redis::RedisConnectionInfo;
use rustls_native_certs::ErrorKind;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{Mutex, Semaphore},
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{
            CertificateDer, PrivateKeyDer, ServerName,
            pem::{self, PemObject},
        },
    },
};

use crate::{
    ClientCertificate, Error, Settings,
    sentinel::Primary,
    subscription::Publisher,
    url::{Address, Host, Server},
};

/// Certificates are read again for a connection if they were read longer ago.
const REREAD: Duration = Duration::from_secs(1);

/// The byte stream under a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens streams in place of TCP: the network of a simulation.
pub trait Network: fmt::Debug + Send + Sync {
    /// Connects to a server.
    ///
    /// # Errors
    /// As of a TCP connection.
    fn connect(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// A stream to a server, not logged in yet.
pub(crate) struct Dialled {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) login: RedisConnectionInfo,
    /// Where the server is, if sentinels name it.
    pub(crate) place: Option<Host>,
}

/// How to reach a server with a fixed address.
#[derive(Clone)]
pub(crate) struct Dialer {
    server: Server,
    tls: Option<Arc<Certificates>>,
    network: Option<Arc<dyn Network>>,
}

impl Dialer {
    /// Reads the system's root certificates and the client's, if the server speaks TLS.
    pub(crate) fn new(server: Server, settings: &Settings) -> Result<Self, Error> {
        let client = settings.client_certificate.as_ref();
        let tls = match server.address {
            Address::Tcp { tls: true, .. }
            | Address::Sentinel { tls: true, .. }
            | Address::Cluster { tls: true, .. } => Some(Arc::new(Certificates::read(client)?)),
            _ => None,
        };
        let network = settings.network.clone();
        Ok(Self {
            server,
            tls,
            network,
        })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// A dialer of another server, with the same login and certificates.
    pub(crate) fn to(&self, host: &str, port: u16) -> Self {
        self.with_login(&(host.to_owned(), port), self.server.login.clone())
    }

    pub(crate) fn with_login(&self, (host, port): &Host, login: RedisConnectionInfo) -> Self {
        let address = Address::Tcp {
            host: host.clone(),
            port: *port,
            tls: self.tls.is_some(),
        };
        Self {
            server: Server { address, login },
            tls: self.tls.clone(),
            network: self.network.clone(),
        }
    }

    pub(crate) async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        match &self.server.address {
            Address::Tcp { host, port, .. } => self.tcp(host, *port).await,
            Address::Sentinel { .. } => Err(io::Error::other("no sentinel was asked")),
            Address::Cluster { .. } => Err(io::Error::other("a cluster is dialled node by node")),
            #[cfg(unix)]
            Address::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        }
    }

    /// With TLS if the URL says so.
    pub(crate) async fn tcp(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        if let Some(network) = &self.network {
            return network.connect(host, port).await;
        }
        let stream = connect_to_any(addresses(host, port).await?).await?;
        // A check is one small write and then a wait: Nagle would add a delayed ACK to it.
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let (tls, unread) = tls.latest().await;
        let connected = tls.connect(name, stream).await;
        let connected = connected.map_err(|error| match unread {
            Some(why) => io::Error::new(error.kind(), format!("{error}; {why}")),
            None => error,
        });
        Ok(Box::new(connected?))
    }
}

/// Bound: names of Redis servers that are looked up at once. Beyond it, a connection attempt waits for
/// another's, and fails after its time.
///
/// The system waits up to minutes for name servers that do not answer, long after the attempt was given up, on
/// threads that other work needs too.
const LOOKUPS_MAX: usize = 64;

static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// How long an address may take to answer before the next one of the name is tried as well.
const NEXT_ADDRESS: Duration = Duration::from_millis(100);

/// The addresses of a host.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let name = (host.to_owned(), port);
    look_up(move || name.to_socket_addrs().map(Iterator::collect)).await
}

async fn look_up(
    found: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let turn = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let found = spawn_blocking(move || {
        // Held to its end, whether or not somebody still waits for it.
        let _turn = turn;
        found()
    });
    found.await?
}

/// Connects to the first address that answers. The next is tried once one has failed or takes long: of a name's
/// addresses some may be of a network that loses what is sent there.
async fn connect_to_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut next = addresses.into_iter();
    let mut tried = FuturesUnordered::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        tried.extend(next.next().map(TcpStream::connect));
        let more = next.len() > 0;
        tokio::select! {
            connected = tried.next() => match connected {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => last = error,
                None => return Err(last),
            },
            () = sleep(NEXT_ADDRESS), if more => {}
        }
    }
}

/// How to reach a server, at its fixed address or where sentinels name it now.
#[derive(Clone)]
pub(crate) struct Route {
    dialer: Dialer,
    /// Of a server that sentinels name.
    primary: Option<Primary>,
}

impl Route {
    /// The connect timeout also bounds a sentinel's answers.
    pub(crate) fn new(dialer: Dialer, settings: &Settings) -> Self {
        let primary = match &dialer.server().address {
            Address::Sentinel { sentinels, .. } => {
                let dial_to = |host: &Host| dialer.with_login(host, sentinels.login.clone());
                Some(Primary::new(sentinels, settings.connect_timeout, dial_to))
            }
            _ => None,
        };
        Self { dialer, primary }
    }

    pub(crate) fn server(&self) -> &Server {
        self.dialer.server()
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.dialer.tls.is_some()
    }

    /// The place of a server that sentinels name; `None`: its address is fixed.
    pub(crate) async fn place(&self) -> io::Result<Option<Host>> {
        match &self.primary {
            Some(primary) => primary.place().await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns once sentinels name another place; never, where there are none.
    pub(crate) async fn moved(&self, from: Option<&Host>) {
        match (&self.primary, from) {
            (Some(primary), Some(from)) => primary.moved(from).await,
            _ => std::future::pending().await,
        }
    }

    /// Call when the dialled server refuses writes: there may be a new primary. Returns whether
    /// sentinels can find it, without redialling.
    pub(crate) fn refresh(&self) -> bool {
        if let Some(primary) = &self.primary {
            primary.refresh();
        }
        self.primary.is_some()
    }

    /// Dials the server, at the place that [`Route::place`] named.
    pub(crate) async fn dial(&self, place: Option<&Host>) -> io::Result<Box<dyn Stream>> {
        let Some((host, port)) = place else {
            return self.dialer.dial().await;
        };
        let dialled = self.dialer.tcp(host, *port).await;
        dialled.map_err(|e| io::Error::other(format!("the primary {host}:{port}: {e}")))
    }
}

impl Publisher for Route {
    fn dial(&self) -> BoxFuture<'_, io::Result<Dialled>> {
        Box::pin(async {
            let place = self.place().await?;
            Ok(Dialled {
                stream: self.dial(place.as_ref()).await?,
                login: self.server().login.clone(),
                place,
            })
        })
    }

    fn moved<'a>(&'a self, from: Option<&'a Host>) -> BoxFuture<'a, ()> {
        Box::pin(self.moved(from))
    }
}

/// The system's root certificates, and the client's. They follow their files: a renewed one is used from
/// the next connection on, as one that expired or whose authority is gone would never be accepted.
///
/// A handshake that fails is no reason of its own to read them: with TLS 1.3 a server refuses a
/// client's certificate after the client's handshake has succeeded.
struct Certificates {
    client: Option<ClientCertificate>,
    last: Mutex<LastRead>,
}

struct LastRead {
    connector: TlsConnector,
    /// Which root certificates are not in it, and why.
    unread: Option<String>,
    at: Instant,
    /// Why they are older than `at`.
    error: Option<Error>,
}

impl Certificates {
    fn read(client: Option<&ClientCertificate>) -> Result<Self, Error> {
        let (connector, unread) = connector(client)?;
        Ok(Self {
            last: Mutex::new(LastRead {
                connector,
                unread,
                at: Instant::now(),
                error: None,
            }),
            client: client.cloned(),
        })
    }

    /// What connects with the files as they are, or as they last were usable, and what to say of root
    /// certificates where it fails.
    async fn latest(&self) -> (TlsConnector, Option<String>) {
        let mut last = self.last.lock().await;
        if last.at.elapsed() >= REREAD {
            last.at = Instant::now();
            let client = self.client.clone();
            // The system's roots are a few hundred kilobytes.
            let read = spawn_blocking(move || connector(client.as_ref())).await;
            match read.unwrap_or_else(|error| Err(Error::Unreachable(error.to_string()))) {
                Ok((connector, unread)) => {
                    last.connector = connector;
                    last.unread = unread;
                    last.error = None;
                }
                Err(error) => {
                    if last.error.as_ref() != Some(&error) {
                        tracing::error!(%error, "the certificates for the store stay as they were");
                    }
                    last.error = Some(error);
                }
            }
        }
        (last.connector.clone(), last.unread.clone())
    }
}

/// And which root certificates it does not know: of several sources one may be a file that is not there.
fn connector(client: Option<&ClientCertificate>) -> Result<(TlsConnector, Option<String>), Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let why = found.errors.first().map(|error| match &error.kind {
        ErrorKind::Pem(why) => format!("{}: {}", error.context, pem_problem(why)),
        _ => error.to_string(),
    });
    if roots.is_empty() {
        return Err(Error::Unreachable(format!(
            "no root certificates found for TLS ({}); SSL_CERT_FILE can name some",
            why.unwrap_or_else(|| "the system has none".to_owned())
        )));
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match client {
        Some(client) => {
            let (chain, key) = read(client)?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| {
                let path = client.cert.display();
                Error::Unreachable(format!("the client certificate for TLS, {path}: {error}"))
            })?
        }
        None => config.with_no_client_auth(),
    };
    let unread = why.map(|why| format!("not all root certificates could be read: {why}"));
    Ok((TlsConnector::from(Arc::new(config)), unread))
}

fn read(
    client: &ClientCertificate,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let unusable = |error| Error::Unreachable(format!("the client certificate for TLS: {error}"));
    let read = |path| PemFile::read(path).map_err(unusable);
    let chain = read(&client.cert)?.certificates().map_err(unusable)?;
    Ok((chain, read(&client.key)?.private_key().map_err(unusable)?))
}

// --- Files, and those of certificates and keys.

/// The bytes of a file. A program that runs long reads it again later, beside other work, so it must be one
/// that gives its bytes at once and each time: to open a named pipe takes as long as nobody writes into it.
/// What is in `/dev` is read, as a shell's `<(…)` and stdin are.
///
/// # Errors
/// It cannot be read, is a folder or a named pipe, or is larger than `max`.
pub fn read_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() && !path.starts_with("/dev") {
        let message = "it is no regular file; of a pipe, write what it gives into a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    read_at_most(File::open(path)?, max)
}

/// Reads to the end, in memory for no more than `max`, in bytes.
///
/// # Errors
/// It cannot be read, or there is more: [`io::ErrorKind::FileTooLarge`].
pub fn read_at_most(from: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read <= max) {
        return Ok(bytes);
    }
    let message = format!(
        "it is larger than {} MiB; is it the file that you mean?",
        max >> 20
    );
    Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
}

/// Bound: bytes of a file of certificates, or of a key. Beyond it, the file cannot be used.
const PEM_MAX: u64 = 16 << 20;

/// Why a file of certificates, or of a key, cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {why}", .path.display())]
pub struct PemError {
    path: PathBuf,
    why: String,
}

/// A file of certificates, or of a key.
pub struct PemFile {
    path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl PemFile {
    /// Reads it.
    ///
    /// # Errors
    /// See [`read_file`].
    pub fn read(path: &Path) -> Result<Self, PemError> {
        let path = path.to_owned();
        match read_file(&path, PEM_MAX) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(error) => Err(PemError {
                path,
                why: error.to_string(),
            }),
        }
    }

    /// Its certificates, at least one.
    ///
    /// # Errors
    /// It has none.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PemError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let found = match found {
            Ok(found) if found.is_empty() => Err(pem::Error::NoItemsFound),
            found => found,
        };
        let none = "certificate: no line is `-----BEGIN CERTIFICATE-----`";
        found.map_err(|error| self.unusable(&error, none))
    }

    /// Its private key.
    ///
    /// # Errors
    /// It has none.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        let none = "private key: no line is like `-----BEGIN PRIVATE KEY-----`; one with a passphrase has to be decrypted";
        let found = PrivateKeyDer::from_pem_slice(&self.bytes);
        found.map_err(|error| self.unusable(&error, none))
    }

    fn unusable(&self, error: &pem::Error, none: &str) -> PemError {
        let path = self.path.clone();
        let why = match error {
            pem::Error::NoItemsFound => format!("it has no {none}"),
            error => pem_problem(error),
        };
        PemError { path, why }
    }
}

/// What is wrong with a PEM file; the error's own text has lines as lists of bytes.
fn pem_problem(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            // Of a file without line breaks it is the whole key.
            let is_label = |byte: u8| byte.is_ascii_uppercase() || byte == b' ';
            let label = std::str::from_utf8(end_marker).ok();
            let label = label.filter(|label| label.bytes().all(is_label));
            format!(
                "it is cut off, or still being written: there is no line `-----END {}-----`",
                label.unwrap_or("…")
            )
        }
        // This may be a key, too.
        pem::Error::IllegalSectionStart { .. } => {
            "a line begins with `-----BEGIN ` and does not end with `-----`".to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::{
        net::{TcpListener, TcpSocket},
        time::timeout,
    };

    use super::*;

    /// An address where connection attempts get no answer, for as long as the rest is kept.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let at = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(NEXT_ADDRESS, TcpStream::connect(at)).await {
            queued.push(stream.unwrap());
        }
        (at, listener, queued)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_is_read_up_to_its_bound_and_a_named_pipe_not_opened() {
        use std::{io::Write as _, os::fd::AsRawFd as _, process::Command};

        let folder = std::env::temp_dir().join(format!("files-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [long, pipe] = ["long", "pipe"].map(|name| folder.join(name));
        fs::write(&long, vec![b'0'; (1 << 20) + 1]).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        for (path, why) in [
            (&long, "larger than 1 MiB"),
            (&folder, "no regular file"),
            (&pipe, "no regular file"),
        ] {
            let error = read_file(path, 1 << 20).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(read_file(&long, 2 << 20).unwrap().len(), (1 << 20) + 1);
        fs::remove_dir_all(&folder).unwrap();
        // As `<(printf key)` in a shell.
        let (theirs, mut ours) = io::pipe().unwrap();
        ours.write_all(b"key").unwrap();
        drop(ours);
        let path = format!("/dev/fd/{}", theirs.as_raw_fd());
        assert_eq!(read_file(Path::new(&path), 3).unwrap(), b"key");
    }

    #[test]
    fn what_is_wrong_with_a_pem_file_is_said_without_its_key() {
        let path = std::env::temp_dir().join(format!("pem-{}", std::process::id()));
        let key = "-----BEGIN PRIVATE KEY-----\nTUlHSEFnRUE=\n-----END PRIVATE KEY-----\n";
        let certificate = key.replace("PRIVATE KEY", "CERTIFICATE");
        let long = "0".repeat(17 << 20);
        for (text, no_certificate, no_key) in [
            (&*certificate, "", "it has no private key"),
            (key, "it has no certificate", ""),
            ("", "it has no certificate", "it has no private key"),
            (
                &certificate[..50],
                "no line `-----END CERTIFICATE-----`",
                "END CERTIFICATE",
            ),
            (
                &key[..35],
                "it is cut off",
                "no line `-----END PRIVATE KEY-----`",
            ),
            (&key.replace('\n', ""), "END …-----`", "END …-----`"),
            (
                &key.replace('\n', "")[..40],
                "does not end with",
                "does not end with",
            ),
            (&long, "larger than 16 MiB", "larger than 16 MiB"),
        ] {
            fs::write(&path, text).unwrap();
            let read = || PemFile::read(&path);
            let found = [
                read().and_then(|file| file.certificates().map(drop)),
                read().and_then(|file| file.private_key().map(drop)),
            ];
            for (found, expected) in found.into_iter().zip([no_certificate, no_key]) {
                let why = found
                    .err()
                    .map(|error| error.to_string())
                    .unwrap_or_default();
                assert_eq!(why.is_empty(), expected.is_empty(), "{why}");
                assert!(why.contains(expected), "{why}");
                assert!(!why.contains("TUlH") && !why.contains('['), "{why}");
            }
        }
        fs::remove_file(&path).unwrap();
        let gone = PemFile::read(&path).err().unwrap();
        assert!(gone.to_string().contains("No such file"), "{gone}");
    }

    #[tokio::test]
    async fn an_address_that_answers_is_found_behind_others() {
        let (silent, _listener, _queued) = silent().await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers = server.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refuses = closed.local_addr().unwrap();
        drop(closed);
        let within = 5 * NEXT_ADDRESS;
        for all in [
            vec![answers],
            vec![refuses, answers],
            vec![silent, answers],
            vec![silent, refuses, silent, answers, silent],
        ] {
            let connected = timeout(within, connect_to_any(all.clone())).await;
            let connected = connected.unwrap_or_else(|_| panic!("too late: {all:?}"));
            assert_eq!(connected.unwrap().peer_addr().unwrap(), answers, "{all:?}");
        }
        let failed = connect_to_any(vec![refuses, refuses]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::ConnectionRefused);
        let none = connect_to_any(Vec::new()).await.unwrap_err();
        assert_eq!(none.to_string(), "the name has no address");
    }

    #[tokio::test]
    async fn name_servers_that_hang_take_so_many_threads() {
        let mut hanging = Vec::new();
        let (begun, started) = mpsc::channel();
        for _ in 0..=LOOKUPS_MAX {
            let (answer, answers) = mpsc::channel::<()>();
            let begun = begun.clone();
            let found = look_up(move || {
                begun.send(()).unwrap();
                let _ = answers.recv();
                Ok(Vec::new())
            });
            hanging.push(answer);
            // Whoever dials gives up soon.
            assert!(timeout(Duration::from_millis(1), found).await.is_err());
        }
        let wait = Duration::from_secs(10);
        for _ in 0..LOOKUPS_MAX {
            started.recv_timeout(wait).unwrap();
        }
        drop(hanging);
        let found = look_up(|| Ok(vec![([127, 0, 0, 1], 1).into()]));
        assert_eq!(timeout(wait, found).await.unwrap().unwrap().len(), 1);
        // The last gave up before its turn.
        assert!(started.try_recv().is_err());
    }
}
