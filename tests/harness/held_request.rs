//! Requests that stay in flight for as long as a test wants.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A request whose body does not end, so that the service behind Envoy waits for it. When it is
/// dropped, the connection closes.
pub struct HeldRequest(TcpStream);

impl HeldRequest {
    /// Sends a POST to a path as a user, without the last byte of its body.
    pub async fn send(port: u16, path: &str, user: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: any\r\nx-user-id: {user}\r\ncontent-length: 5\r\n\r\n1234"
        );
        stream.write_all(head.as_bytes()).await?;
        Ok(Self(stream))
    }

    /// Sends the last byte.
    pub async fn complete(&mut self) -> Result<()> {
        Ok(self.0.write_all(b"5").await?)
    }

    /// Ends the request, and returns the status of its answer.
    pub async fn finish(mut self) -> Result<u16> {
        self.complete().await?;
        self.status().await
    }

    /// The status of the answer, if it arrives within this time.
    pub async fn status_within(&mut self, time: Duration) -> Result<Option<u16>> {
        timeout(time, self.status()).await.ok().transpose()
    }

    /// Reads the rest of the answer, until the connection closes.
    pub async fn ended(mut self) {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
    }

    /// Reads the head of the answer as far as its status.
    pub async fn status(&mut self) -> Result<u16> {
        let mut head = [0; 12];
        self.0.read_exact(&mut head).await?;
        let status = head.get(9..).unwrap_or_default();
        String::from_utf8_lossy(status)
            .parse()
            .context("the answer has no status")
    }
}
