//! Responses of the page, each with the headers that confine it.

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION,
        REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
};
use maud::Markup;

use super::{session, views};
use crate::serve;

/// No content from elsewhere, nothing inline, no framing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";

pub(super) fn html(status: StatusCode, page: Markup) -> Response<Bytes> {
    let mut response = confined(serve::answer(status, HTML, page.into_string()));
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, never);
    response
}

pub(super) fn style(text: &'static str) -> Response<Bytes> {
    asset("text/css; charset=utf-8", text)
}

pub(super) fn script(text: &'static str) -> Response<Bytes> {
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
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (opener, "same-origin"),
        (resource, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(super) fn signed_in(cookie: &str, next: &str) -> Response<Bytes> {
    let mut response = redirect(next);
    let cookie = HeaderValue::from_str(cookie);
    response
        .headers_mut()
        .extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    response
}

pub(super) fn signed_out() -> Response<Bytes> {
    signed_in(&session::no_cookie(), "/")
}

fn redirect(next: &str) -> Response<Bytes> {
    let mut response = html(StatusCode::SEE_OTHER, maud::html! {});
    let next = HeaderValue::from_str(next).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, next);
    response
}

pub(super) fn wrong_token() -> Response<Bytes> {
    let mut response = serve::text(
        StatusCode::UNAUTHORIZED,
        "`authorization: Bearer` with a token of the file that --page-token-file names is required\n",
    );
    let scheme = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    confined(response)
}

pub(super) fn blocked(next: &str) -> Response<Bytes> {
    let reason = Some("Too many wrong tokens came from your address. Try again in a minute.");
    retry_later(
        html(StatusCode::TOO_MANY_REQUESTS, views::login(next, reason)),
        "60",
    )
}

pub(super) fn busy() -> Response<Bytes> {
    retry_later(html(StatusCode::SERVICE_UNAVAILABLE, views::busy()), "2")
}

fn retry_later(mut response: Response<Bytes>, seconds: &'static str) -> Response<Bytes> {
    let seconds = HeaderValue::from_static(seconds);
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

pub(super) fn method_not_allowed() -> Response<Bytes> {
    let mut response = serve::text(
        StatusCode::METHOD_NOT_ALLOWED,
        "the page is read-only: GET only\n",
    );
    let allowed = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(ALLOW, allowed);
    confined(response)
}
