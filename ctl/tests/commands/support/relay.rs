//! A relay in front of a server, which breaks connections where a test says so.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::Result;

/// Where connections break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaks {
    /// The first edit arrives, and its answer does not.
    OneAnswer,
    /// The first edit does not arrive.
    OneEdit,
    /// The answer to the first edit arrives, and nothing after it.
    AllAfterwards,
    /// As [`Breaks::OneAnswer`], and nothing after it.
    AnswerAndAllAfterwards,
    /// A credit of [`BUCKET`] arrives, and its answer does not: the third request that names it, after those for its
    /// override and for what is left.
    BucketAnswer,
}

/// Marks a call on a bucket: it is the value of its key.
pub const BUCKET: &str = "user-of-the-bucket";

/// Marks a request as an edit: every edit carries this reason.
pub const REASON: &str = "reason-of-the-edit";

/// Starts a relay to the server at `port`; returns the port to connect to.
pub fn relay(port: u16, breaks: Breaks) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let own = listener.local_addr()?.port();
    let edits = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let over = matches!(
                breaks,
                Breaks::AllAfterwards | Breaks::AnswerAndAllAfterwards
            );
            if over && edits.load(Ordering::SeqCst) > 0 {
                continue;
            }
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                return;
            };
            let edits = Arc::clone(&edits);
            thread::spawn(move || carry(client, server, breaks, &edits));
        }
    });
    Ok(own)
}

/// Relays requests and answers one at a time, as rlctl sends them.
fn carry(mut client: TcpStream, mut server: TcpStream, breaks: Breaks, edits: &AtomicUsize) {
    let mut answers = server.try_clone().unwrap();
    let mut to_client = client.try_clone().unwrap();
    let silent = Arc::new(AtomicUsize::new(0));
    let hushed = Arc::clone(&silent);
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = answers.read(&mut bytes) {
            // 1: drop this answer. 2: relay this answer, and none after it.
            let last = hushed.load(Ordering::SeqCst);
            if last == 1 || to_client.write_all(&bytes[..count]).is_err() || last == 2 {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
        let _ = answers.shutdown(Shutdown::Both);
    });
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let (mark, nth) = match breaks {
            Breaks::BucketAnswer => (BUCKET, 2),
            _ => (REASON, 0),
        };
        let is_edit = String::from_utf8_lossy(&bytes[..count]).contains(mark);
        if is_edit && edits.fetch_add(1, Ordering::SeqCst) == nth {
            match breaks {
                Breaks::OneEdit => break,
                Breaks::AllAfterwards => silent.store(2, Ordering::SeqCst),
                Breaks::OneAnswer | Breaks::AnswerAndAllAfterwards | Breaks::BucketAnswer => {
                    silent.store(1, Ordering::SeqCst);
                }
            }
        }
        if server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    if silent.load(Ordering::SeqCst) == 0 {
        let _ = server.shutdown(Shutdown::Both);
    }
}
