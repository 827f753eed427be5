//! A management server that sends much.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use harness::until;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter::XdsServer;
use prost::Message;
use store::{Options, Overrides, StoreUrl, open};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc},
};

use crate::support::{PATIENCE, Service, name, tuned};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `envoy.service.discovery.v3.DiscoveryRequest`, as far as this server reads it.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(message, optional, tag = "6")]
    error: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// A field of bytes or text.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(u64::try_from(value.len()).unwrap(), &mut out);
    out.extend(value);
    out
}

/// A response with these resources.
fn response(version: &str, resources: &[Vec<u8>]) -> Bytes {
    let resources = resources.iter().flat_map(|resource| field(2, resource));
    let message = [
        field(1, version.as_bytes()),
        resources.collect(),
        field(5, format!("n{version}").as_bytes()),
    ]
    .concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

fn resource(config: &[u8]) -> Vec<u8> {
    [field(1, TYPE_URL.as_bytes()), field(2, config)].concat()
}

/// One limit of `user` in the domain `shop`, so many a day.
fn shop(requests: u8) -> Vec<u8> {
    let limit = [8, 4, 16, requests];
    let user = [field(1, b"user"), field(3, &limit)].concat();
    resource(&[field(1, b"x"), field(2, b"shop"), field(3, &user)].concat())
}

/// A management server for one connection.
struct Management {
    address: SocketAddr,
    responses: mpsc::UnboundedSender<Bytes>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl Management {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (responses, to_send) = mpsc::unbounded_channel::<Bytes>();
        let (said, answers) = mpsc::unbounded_channel();
        let to_send = Arc::new(Mutex::new(to_send));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (to_send, said) = (Arc::clone(&to_send), said.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    tokio::spawn(read(request.into_body(), said.clone()));
                    let to_send = Arc::clone(&to_send);
                    async move { Ok::<_, std::convert::Infallible>(stream_of(to_send)) }
                });
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        Ok(Self {
            address,
            responses,
            answers,
        })
    }

    fn send(&self, response: Bytes) -> Result<()> {
        Ok(self.responses.send(response)?)
    }

    /// The next answer to a response.
    async fn answer(&mut self) -> Result<Answer> {
        loop {
            let answer = self.answers.recv().await.context("an answer")?;
            if !answer.nonce.is_empty() {
                return Ok(answer);
            }
        }
    }

    async fn service(&self) -> Result<Service> {
        let server = XdsServer {
            url: format!("http://{}", self.address),
            node: "test".to_owned(),
            ca: None,
            identity: None,
        };
        let settings = tuned(|s| s.xds = Some(server));
        Service::ready_on(open(&StoreUrl::Memory, Options::default())?, settings).await
    }
}

type Responses = Arc<Mutex<mpsc::UnboundedReceiver<Bytes>>>;

fn stream_of(
    responses: Responses,
) -> Response<StreamBody<impl futures_util::Stream<Item = std::io::Result<Frame<Bytes>>>>> {
    let frames = futures_util::stream::unfold(responses, |responses| async {
        let next = responses.lock().await.recv().await?;
        Some((Ok(Frame::data(next)), responses))
    });
    let mut response = Response::new(StreamBody::new(frames));
    let grpc = hyper::header::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}

async fn read(mut body: Incoming, said: mpsc::UnboundedSender<Answer>) {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend(frame.into_data().unwrap_or_default());
        while let Some((prefix, rest)) = bytes.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
            let Some(message) = rest.get(..length as usize) else {
                break;
            };
            let _ = said.send(Answer::decode(message).unwrap());
            bytes.drain(..5 + length as usize);
        }
    }
}

#[tokio::test]
async fn a_response_that_would_become_too_much_is_rejected_with_a_short_message() -> Result<()> {
    let mut management = Management::start().await?;
    let service = management.service().await?;
    management.send(response("1", &[shop(10)]))?;
    assert_eq!(management.answer().await?.version, "1");

    let descriptors = [0x1a, 0].repeat(60_000);
    let many = [field(2, b"shop"), descriptors].concat();
    let of_another_type = field(1, "t".repeat(3 << 20).as_bytes());
    let of_a_long_name = [field(1, "n".repeat(1 << 20).as_bytes()), field(3, b"")].concat();
    for (nth, (resource, words)) in [
        (resource(&many), "more than 25000"),
        (of_another_type, "a resource of another type: ttt"),
        (resource(&of_a_long_name), "`domain` is missing"),
    ]
    .into_iter()
    .enumerate()
    {
        management.send(response(&format!("wrong{nth}"), &[resource]))?;
        let answer = management.answer().await?;
        assert_eq!(answer.version, "1", "the last good one stays");
        let message = answer.error.context("a rejection")?.message;
        assert!(message.contains(words), "{message:.200}");
        assert!(message.len() <= 4096, "{words}: {} bytes", message.len());
        let report = service.admin("/readyz").send().await?.json()?;
        assert_eq!(report["xds_error"], message);
    }
    Ok(())
}

/// Each is an edit, and the history of a domain has a thousand.
#[tokio::test]
async fn of_many_responses_the_latest_one_a_second_is_put_in_force() -> Result<()> {
    let mut management = Management::start().await?;
    let service = management.service().await?;
    for nth in 1..=100 {
        management.send(response(&nth.to_string(), &[shop(nth)]))?;
    }
    let mut answers = 1;
    while management.answer().await?.version != "100" {
        answers += 1;
    }
    assert!(answers <= 5, "{answers} of 100 were put in force");
    let shop = name("shop");
    until("the last limits are in force", PATIENCE, async || {
        let stored = service.store.read(&shop, Overrides::None).await.ok()?;
        let limit = stored.policy()?.limits.first()?.clone();
        (limit.quota.parameters().rate.units == 100).then_some(())
    })
    .await?;
    let history = service.store.history(&shop, 100).await?;
    assert!(history.len() <= answers, "{} edits", history.len());
    Ok(())
}
