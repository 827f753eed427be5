//! The page: limits and their rates, buckets, the fleet, edits and problems, for operators to read.
//!
//! It is on the admin port, only with `--page-token-file`, and is read-only. Each response closes
//! its connection, so that the page takes no connection from probes and scrapers.

mod attempts;
mod cache;
mod data;
mod query;
mod respond;
mod session;
mod views;

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, COOKIE},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::{serve::Peer, tokens::Tokens};

use attempts::Attempts;
use query::Query;

pub(crate) use data::Data;

/// Responses made at once; others wait, so that many readers use no more than one core.
const AT_ONCE: usize = 1;

/// How long a response waits for its turn.
const TURN: Duration = Duration::from_secs(10);

/// The body of a sign-in, in bytes, and how long it may take.
const FORM_MAX: usize = 8 * 1024;
const FORM_WITHIN: Duration = Duration::from_secs(5);

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The page, and who may see it.
pub(crate) struct Page {
    data: Arc<Data>,
    tokens: Arc<Tokens>,
    attempts: Attempts,
    turn: Semaphore,
}

/// Whether a request may see the page.
enum Access {
    Granted,
    /// It shows no token and no session.
    None,
    /// It shows a wrong token.
    Wrong,
    /// Its address showed too many wrong tokens.
    Blocked,
}

impl Page {
    pub(crate) fn new(data: Data, tokens: Arc<Tokens>) -> Self {
        Self {
            data: Arc::new(data),
            tokens,
            attempts: Attempts::default(),
            turn: Semaphore::new(AT_ONCE),
        }
    }

    /// Responds to a request for any path that is not one of the admin port's own.
    pub(super) async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Bytes> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        match (path, &head.method) {
            ("/page.css", &Method::GET | &Method::HEAD) => respond::style(STYLE),
            ("/page.js", &Method::GET | &Method::HEAD) => respond::script(SCRIPT),
            ("/login" | "/logout", &Method::POST) if is_foreign(&head.headers) => respond::html(
                StatusCode::FORBIDDEN,
                views::login("/", Some("This form was sent by another site.")),
            ),
            ("/login", &Method::POST) => self.sign_in(body, &head.headers, peer.address).await,
            ("/logout", &Method::POST) => respond::signed_out(),
            (_, &Method::GET | &Method::HEAD) => match self.access(&head.headers, peer.address) {
                Access::Granted => {
                    self.view(path, Query::parse(head.uri.query().unwrap_or_default()))
                        .await
                }
                Access::None => {
                    let here = head.uri.path_and_query().map_or("/", |next| next.as_str());
                    let next = if matches!(path, "/login" | "/logout") {
                        "/"
                    } else {
                        here
                    };
                    respond::html(StatusCode::UNAUTHORIZED, views::login(next, None))
                }
                Access::Wrong => respond::wrong_token(),
                Access::Blocked => respond::blocked("/"),
            },
            _ => respond::method_not_allowed(),
        }
    }

    fn access(&self, headers: &HeaderMap, address: IpAddr) -> Access {
        if headers.contains_key(AUTHORIZATION) {
            if !self.attempts.allows(address) {
                return Access::Blocked;
            }
            if self.tokens.admit(headers) {
                return Access::Granted;
            }
            self.attempts.failed(address);
            return Access::Wrong;
        }
        let now = session::now_s();
        let mut cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let valid = cookies.any(|cookies| session::is_valid(&self.tokens, cookies, now));
        if valid { Access::Granted } else { Access::None }
    }

    async fn sign_in(
        &self,
        body: Incoming,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Response<Bytes> {
        let collected = timeout(FORM_WITHIN, Limited::new(body, FORM_MAX).collect()).await;
        let Ok(Ok(body)) = collected else {
            let reason = Some("The form was not received whole.");
            return respond::html(StatusCode::BAD_REQUEST, views::login("/", reason));
        };
        let body = body.to_bytes();
        let form = Query::parse(std::str::from_utf8(&body).unwrap_or_default());
        let next = form
            .text("next")
            .filter(|next| is_local(next))
            .unwrap_or_else(|| "/".to_owned());
        if !self.attempts.allows(address) {
            return respond::blocked(&next);
        }
        let token = form.text("token").unwrap_or_default();
        let Some(token) = self.tokens.find(token.trim().as_bytes()) else {
            self.attempts.failed(address);
            let reason =
                Some("This is none of the tokens in the file that --page-token-file names.");
            return respond::html(StatusCode::UNAUTHORIZED, views::login(&next, reason));
        };
        let secure = headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        respond::signed_in(&session::cookie(&token, session::now_s(), secure), &next)
    }

    /// Gathers the data of a view, and renders it off the threads that serve checks.
    async fn view(&self, path: &str, query: Query) -> Response<Bytes> {
        let Ok(Ok(_turn)) = timeout(TURN, self.turn.acquire()).await else {
            return respond::busy();
        };
        let Some(view) = self.data.gather(path, &query).await else {
            return respond::html(StatusCode::NOT_FOUND, views::not_found());
        };
        let rendered = spawn_blocking(move || view.render(&query)).await;
        match rendered {
            Ok((status, html)) => respond::html(status, html),
            Err(error) => {
                tracing::error!(%error, "a view of the page could not be rendered");
                respond::busy()
            }
        }
    }
}

/// Whether a browser says that another site sent the request.
fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

/// Whether a path stays on this server: `//host` and `/\host` do not.
fn is_local(next: &str) -> bool {
    let mut bytes = next.bytes();
    bytes.next() == Some(b'/')
        && !matches!(bytes.next(), Some(b'/' | b'\\'))
        && next.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_never_leads_to_another_site() {
        for next in ["/", "/limits?q=a&page=2", "/bucket?v.user=%3Cb%3E"] {
            assert!(is_local(next), "{next}");
        }
        for next in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\t/evil",
            "/a\r\nset-cookie: a",
        ] {
            assert!(!is_local(next), "{next}");
        }
    }
}
