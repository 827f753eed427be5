//! The page: limits and their rates, buckets, the fleet, edits and problems, for operators to read.
//!
//! It is on the admin port, only with `--page-token-file`, and is read-only. Each response closes
//! its connection, so that the page takes no connection from probes and scrapers.

mod data;
mod views;

use std::{
    borrow::Cow,
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{
        ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HeaderName,
        HeaderValue, LOCATION, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use maud::Markup;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, percent_encode};
use ring::hmac;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::{
    serve::{self, Peer},
    tokens::Tokens,
};
pub(crate) use data::Data;

/// Bound: views of the page at once. Beyond it, the next waits 10 s, then 503.
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
            ("/page.css", &Method::GET | &Method::HEAD) => style(STYLE),
            ("/page.js", &Method::GET | &Method::HEAD) => script(SCRIPT),
            ("/login" | "/logout", &Method::POST) if is_foreign(&head.headers) => html_response(
                StatusCode::FORBIDDEN,
                views::login("/", Some("This form was sent by another site.")),
            ),
            ("/login", &Method::POST) => self.sign_in(body, &head.headers, peer.address).await,
            ("/logout", &Method::POST) => signed_out(),
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
                    html_response(StatusCode::UNAUTHORIZED, views::login(next, None))
                }
                Access::Wrong => wrong_token(),
                Access::Blocked => blocked("/"),
            },
            _ => method_not_allowed(),
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
        let now = now_s();
        let mut cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let valid = cookies.any(|cookies| is_valid_session(&self.tokens, cookies, now));
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
            return html_response(StatusCode::BAD_REQUEST, views::login("/", reason));
        };
        let body = body.to_bytes();
        let form = Query::parse(std::str::from_utf8(&body).unwrap_or_default());
        let next = form
            .text("next")
            .filter(|next| is_local(next))
            .unwrap_or_else(|| "/".to_owned());
        if !self.attempts.allows(address) {
            return blocked(&next);
        }
        let token = form.text("token").unwrap_or_default();
        let Some(token) = self.tokens.find(token.trim().as_bytes()) else {
            self.attempts.failed(address);
            let reason =
                Some("This is none of the tokens in the file that --page-token-file names.");
            return html_response(StatusCode::UNAUTHORIZED, views::login(&next, reason));
        };
        let secure = headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        signed_in(&session_cookie(&token, now_s(), secure), &next)
    }

    /// Gathers the data of a view, and renders it off the threads that serve checks.
    async fn view(&self, path: &str, query: Query) -> Response<Bytes> {
        let Ok(Ok(_turn)) = timeout(TURN, self.turn.acquire()).await else {
            return busy();
        };
        let Some(view) = self.data.gather(path, &query).await else {
            return html_response(StatusCode::NOT_FOUND, views::not_found());
        };
        let rendered = spawn_blocking(move || view.render(&query)).await;
        match rendered {
            Ok((status, html)) => html_response(status, html),
            Err(error) => {
                tracing::error!(%error, "a view of the page could not be rendered");
                busy()
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

// --- Wrong tokens, by address

/// Bound: wrong tokens for the page, of an address in a minute. Beyond it, 429.
const WRONG_MAX: u32 = 10;
const WRONG_PERIOD: Duration = Duration::from_mins(1);

/// Bound: addresses whose wrong tokens are counted. Beyond it, the oldest makes room.
const ADDRESSES_MAX: usize = 1024;

/// The addresses that recently sent wrong tokens.
#[derive(Default)]
struct Attempts(Mutex<HashMap<IpAddr, Wrong>>);

struct Wrong {
    count: u32,
    since: Instant,
}

impl Attempts {
    /// Whether the address may show another token.
    fn allows(&self, address: IpAddr) -> bool {
        let table = self.table();
        table
            .get(&network(address))
            .is_none_or(|wrong| wrong.count < WRONG_MAX || wrong.since.elapsed() >= WRONG_PERIOD)
    }

    /// Records a wrong token of the address.
    fn failed(&self, address: IpAddr) {
        let mut table = self.table();
        table.retain(|_, wrong| wrong.since.elapsed() < WRONG_PERIOD);
        let address = network(address);
        if table.len() >= ADDRESSES_MAX && !table.contains_key(&address) {
            let oldest = table.iter().min_by_key(|(_, wrong)| wrong.since);
            let oldest = oldest.map(|(address, _)| *address);
            oldest.map(|oldest| table.remove(&oldest));
        }
        let wrong = table.entry(address).or_insert_with(|| Wrong {
            count: 0,
            since: Instant::now(),
        });
        wrong.count = wrong.count.saturating_add(1);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Wrong>> {
        // A panic while the lock is held leaves the table usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client has a whole /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            std::net::Ipv6Addr::from(prefix).into()
        }
    }
}

// --- Sessions: a cookie with an expiry and a signature keyed with the token used to sign in.
//
// The limiter stores no sessions. So unauthorized clients cannot fill a table, every replica with
// the same token file accepts the cookie, and removing a token from the file ends its sessions.

/// The cookie's name.
const COOKIE_NAME: &str = "rl_page";

/// How long a session lasts, in seconds.
const SESSION_S: u64 = 12 * 3600;

/// Seconds since the epoch, by this machine's clock.
fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The header that begins a session.
fn session_cookie(token: &[u8], now_s: u64, secure: bool) -> String {
    let ends_s = now_s.saturating_add(SESSION_S);
    let signature = hmac::sign(&signing_key(token), &signed_text(ends_s));
    let signature = hex(signature.as_ref());
    let secure = if secure { "; Secure" } else { "" };
    format!(
        "{COOKIE_NAME}={ends_s}.{signature}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}"
    )
}

/// The header that ends a session.
fn ended_session() -> String {
    format!("{COOKIE_NAME}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict")
}

/// Whether a `cookie` header has a session that has not ended and was begun with a token in force.
fn is_valid_session(tokens: &Tokens, cookies: &str, now_s: u64) -> bool {
    let mut values = cookies.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE_NAME).then_some(value)
    });
    values.any(|value| {
        let Some((ends, signature)) = value.split_once('.') else {
            return false;
        };
        let Ok(ends_s) = ends.parse::<u64>() else {
            return false;
        };
        let Some(signature) = unhex(signature) else {
            return false;
        };
        // A cookie that lasts longer than one of ours was not made here.
        let current = ends_s > now_s && ends_s <= now_s.saturating_add(SESSION_S);
        current
            && tokens.any(|token| {
                hmac::verify(&signing_key(token), &signed_text(ends_s), &signature).is_ok()
            })
    })
}

fn signing_key(token: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token)
}

fn signed_text(ends_s: u64) -> Vec<u8> {
    format!("rate limiter page session until {ends_s}").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    (text.len() == 64).then(|| pairs.map(byte).collect())?
}

// --- The parameters of a query or a form

/// Parameters that are read; more are ignored.
const PARAMETERS_MAX: usize = 64;

/// Names and values, decoded.
#[derive(Debug, Default)]
struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.take(PARAMETERS_MAX).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decode(name)).into_owned();
            (name, decode(value))
        });
        Self(decoded.collect())
    }

    /// All parameters in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The first parameter of a name, as text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let (_, value) = self.all().find(|(key, _)| *key == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// A number, `default` where there is none.
    pub(super) fn number(&self, name: &str, default: usize) -> usize {
        self.text(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    }
}

fn decode(text: &str) -> Vec<u8> {
    let spaced: Cow<'_, str> = if text.contains('+') {
        text.replace('+', " ").into()
    } else {
        text.into()
    };
    percent_decode(spaced.as_bytes()).collect()
}

/// A value as part of a query.
fn encode(value: impl AsRef<[u8]>) -> String {
    percent_encode(value.as_ref(), NON_ALPHANUMERIC).to_string()
}

// --- Responses of the page, each with the headers that confine it

/// No content from elsewhere, nothing inline, no framing.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";

fn html_response(status: StatusCode, page: Markup) -> Response<Bytes> {
    let mut response = confined(serve::answer(status, HTML, page.into_string()));
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, never);
    response
}

fn style(text: &'static str) -> Response<Bytes> {
    asset("text/css; charset=utf-8", text)
}

fn script(text: &'static str) -> Response<Bytes> {
    asset("text/javascript; charset=utf-8", text)
}

fn asset(kind: &'static str, text: &'static str) -> Response<Bytes> {
    let mut response = confined(serve::answer(StatusCode::OK, kind, text));
    // After an upgrade of the limiter, browsers fetch the new style within a minute.
    let short = HeaderValue::from_static("max-age=60");
    response.headers_mut().insert(CACHE_CONTROL, short);
    response
}

fn confined(mut response: Response<Bytes>) -> Response<Bytes> {
    let headers = response.headers_mut();
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    let resource = HeaderName::from_static("cross-origin-resource-policy");
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (opener, "same-origin"),
        (resource, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn signed_in(cookie: &str, next: &str) -> Response<Bytes> {
    let mut response = redirect(next);
    let cookie = HeaderValue::from_str(cookie);
    response
        .headers_mut()
        .extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    response
}

fn signed_out() -> Response<Bytes> {
    signed_in(&ended_session(), "/")
}

fn redirect(next: &str) -> Response<Bytes> {
    let mut response = html_response(StatusCode::SEE_OTHER, maud::html! {});
    let next = HeaderValue::from_str(next).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, next);
    response
}

fn wrong_token() -> Response<Bytes> {
    let mut response = serve::text(
        StatusCode::UNAUTHORIZED,
        "`authorization: Bearer` with a token of the file that --page-token-file names is required\n",
    );
    let scheme = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    confined(response)
}

fn blocked(next: &str) -> Response<Bytes> {
    let reason = Some("Too many wrong tokens came from your address. Try again in a minute.");
    retry_later(
        html_response(StatusCode::TOO_MANY_REQUESTS, views::login(next, reason)),
        "60",
    )
}

fn busy() -> Response<Bytes> {
    retry_later(
        html_response(StatusCode::SERVICE_UNAVAILABLE, views::busy()),
        "2",
    )
}

fn retry_later(mut response: Response<Bytes>, seconds: &'static str) -> Response<Bytes> {
    let seconds = HeaderValue::from_static(seconds);
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

fn method_not_allowed() -> Response<Bytes> {
    let mut response = serve::text(
        StatusCode::METHOD_NOT_ALLOWED,
        "the page is read-only: GET only\n",
    );
    let allowed = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(ALLOW, allowed);
    confined(response)
}

#[cfg(test)]
mod tests;
