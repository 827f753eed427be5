//! The response to a connection beyond `--max-connections`.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
};

/// Responses written at once; further connections are closed without one.
pub(super) const AT_ONCE: usize = 64;

/// How long the client may take to read its response.
const LINGER: Duration = Duration::from_millis(200);

const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    x-rl-api: 1\r\n\
    content-type: application/json\r\n\
    content-length: 92\r\n\
    connection: close\r\n\r\n\
    {\"error\":{\"code\":\"overloaded\",\"message\":\"too many connections (--max-connections reached)\"}}";

/// Writes the response, then reads what the client still sends: closing a socket with unread bytes
/// resets it, and the client loses the answer.
pub(super) async fn reject(mut stream: TcpStream, permit: OwnedSemaphorePermit) {
    let _ = tokio::time::timeout(LINGER, async {
        stream.write_all(ANSWER).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    })
    .await;
    drop(permit);
}

#[cfg(test)]
mod tests {
    use super::ANSWER;

    #[test]
    fn the_rejection_states_its_content_length() {
        let text = std::str::from_utf8(ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
