//! HTTP/1.1 without a client library, to send malformed requests. Bytes are sent as given, and the
//! response is parsed only as far as needed to find its end.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that is reopened whenever the other side closes it.
#[derive(Debug)]
pub struct RawClient {
    port: u16,
    stream: Option<TcpStream>,
    /// Bytes already read that belong to the next answer.
    ahead: Vec<u8>,
}

/// An answer, as received.
#[derive(Debug, Clone)]
pub struct RawReply {
    /// The status of its first line.
    pub status: u16,
    /// Everything up to the empty line.
    pub head: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

impl RawReply {
    /// The values of a header, given in lower case.
    pub fn header(&self, name: &str) -> Vec<String> {
        let head = String::from_utf8_lossy(&self.head).into_owned();
        let pairs = head.split("\r\n").filter_map(|line| line.split_once(':'));
        pairs
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    }
}

impl RawClient {
    /// A client of a port on this machine.
    pub fn new(port: u16) -> Self {
        Self {
            port,
            stream: None,
            ahead: Vec::new(),
        }
    }

    /// Sends a request unchanged; `None` if the connection was closed without an answer.
    pub async fn send(&mut self, request: &[u8]) -> Result<Option<RawReply>> {
        let exchange = self.exchange(request);
        let done = tokio::time::timeout(PATIENCE, exchange).await;
        done.with_context(|| {
            let shown = String::from_utf8_lossy(request.get(..200).unwrap_or(request));
            format!("no answer within {} s to {shown:?}", PATIENCE.as_secs())
        })?
    }

    /// A GET with these lines of headers, each without its line break.
    pub async fn get(&mut self, target: &[u8], headers: &[&[u8]]) -> Result<Option<RawReply>> {
        self.send(&get(target, headers)).await
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Option<RawReply>> {
        let kept = self.stream.is_some();
        if let Some(reply) = self.send_once(request).await? {
            return Ok(Some(reply));
        }
        // A kept connection may have been closed since its last use.
        if kept {
            return self.send_once(request).await;
        }
        Ok(None)
    }

    /// Sends a request over the connection that is open, if one is; `None` if that was closed without an answer.
    pub async fn send_once(&mut self, request: &[u8]) -> Result<Option<RawReply>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.port).await?,
        };
        // The server may close the connection during the write, and may still have answered.
        let _ = stream.write_all(request).await;
        let Some(reply) = read_reply(&mut stream, &mut self.ahead).await? else {
            self.ahead.clear();
            return Ok(None);
        };
        let closes = reply
            .header("connection")
            .iter()
            .any(|word| word == "close");
        if closes || reply.status == 400 {
            self.ahead.clear();
        } else {
            self.stream = Some(stream);
        }
        Ok(Some(reply))
    }
}

/// The bytes of a GET.
pub fn get(target: &[u8], headers: &[&[u8]]) -> Vec<u8> {
    let mut request = [b"GET ", target, b" HTTP/1.1\r\n"].concat();
    if !headers.iter().any(|line| line.starts_with(b"host:")) {
        request.extend(b"host: shop.example\r\n");
    }
    for line in headers {
        request.extend_from_slice(line);
        request.extend(b"\r\n");
    }
    request.extend(b"\r\n");
    request
}

async fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads one answer; `None` if the connection ends before a whole one.
async fn read_reply(stream: &mut TcpStream, ahead: &mut Vec<u8>) -> Result<Option<RawReply>> {
    let end = loop {
        if let Some(at) = find(ahead, b"\r\n\r\n") {
            break at;
        }
        if !read_more(stream, ahead).await {
            return Ok(None);
        }
    };
    let head = ahead.drain(..end + 4).collect::<Vec<u8>>();
    let mut reply = RawReply {
        status: status(&head)?,
        head,
        body: Vec::new(),
    };
    let length = match reply.header("content-length").as_slice() {
        [] => 0,
        [length] => length.parse::<usize>()?,
        several => bail!("several content-lengths: {several:?}"),
    };
    while ahead.len() < length {
        if !read_more(stream, ahead).await {
            return Ok(None);
        }
    }
    reply.body = ahead.drain(..length).collect();
    Ok(Some(reply))
}

async fn read_more(stream: &mut TcpStream, ahead: &mut Vec<u8>) -> bool {
    matches!(stream.read_buf(ahead).await, Ok(read) if read > 0)
}

fn status(head: &[u8]) -> Result<u16> {
    let text = String::from_utf8_lossy(head).into_owned();
    let word = text
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let status = word.and_then(|word| word.parse().ok());
    status.with_context(|| format!("not an answer: {text:?}"))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}
