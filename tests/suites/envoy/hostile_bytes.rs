//! Every byte in every place that the filter reads, sent without a client library, which would
//! normalize it.

use harness::{RawClient, RawReply};

use crate::stage::{Plan, alone, statuses};

/// One limit for each source of bytes, matched by its own host, so that each source is tested alone.
fn one_request_for_each_value() -> Plan {
    alone(&[
        "{name: header, match: {host: header}, per: [user], rate: 1/1h, scope: proxy}",
        "{name: cookie, match: {host: cookie}, per: [session], rate: 1/1h, scope: proxy}",
        "{name: query, match: {host: query}, per: [api-key], rate: 1/1h, scope: proxy}",
        "{name: path, match: {host: path}, per: [path], rate: 1/1h, scope: proxy}",
        "{name: alive, match: {host: alive}, per: [user], rate: 3/1h, scope: proxy}",
        "{name: hosts, per: [host], rate: 1000000/s, scope: proxy}",
        "{name: types, match: {method: '*'}, per: [method], rate: 1000000/s, scope: proxy}",
    ])
    .with_credentials()
}

/// Where the byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    Cookie,
    Query,
    Path,
    Host,
    Method,
    ContentType,
    Name,
}

const PLACES: [Place; 8] = [
    Place::Header,
    Place::Cookie,
    Place::Query,
    Place::Path,
    Place::Host,
    Place::Method,
    Place::ContentType,
    Place::Name,
];

/// A request with the byte between two letters in this place.
fn with(place: Place, byte: u8) -> Vec<u8> {
    let at = |wanted: Place, before: &str, after: &str| {
        let inside: &[u8] = if place == wanted { &[byte] } else { b"-" };
        [before.as_bytes(), b"a", inside, b"z", after.as_bytes()].concat()
    };
    let host = match place {
        Place::Host => at(Place::Host, "host: ", "\r\n"),
        _ => format!("host: {}\r\n", format!("{place:?}").to_lowercase()).into_bytes(),
    };
    let method = match place {
        Place::Method => at(Place::Method, "", " "),
        _ => b"GET ".to_vec(),
    };
    [
        method,
        at(Place::Path, "/", ""),
        at(Place::Query, "?key=", " HTTP/1.1\r\n"),
        host,
        at(Place::Header, "x-user-id: ", "\r\n"),
        at(Place::Cookie, "cookie: sid=", "\r\n"),
        at(Place::ContentType, "content-type: application/grpc", "\r\n"),
        at(Place::Name, "x-", ": 1\r\n"),
        b"\r\n".to_vec(),
    ]
    .concat()
}

async fn status(client: &mut RawClient, request: &[u8]) -> Option<u16> {
    let reply = client.send(request).await.unwrap();
    reply.map(|reply: RawReply| reply.status)
}

#[tokio::test]
async fn every_byte_in_every_place_is_limited_or_refused_by_envoy() {
    let stage = one_request_for_each_value().await;
    let mut client = stage.raw();
    for place in PLACES {
        let mut limited = 0;
        for byte in 0..=255_u8 {
            let request = with(place, byte);
            let first = status(&mut client, &request).await;
            let second = status(&mut client, &request).await;
            let buckets = matches!(
                place,
                Place::Header | Place::Cookie | Place::Query | Place::Path
            );
            // Envoy either rejects a request (closes, or redirects), or passes it on.
            let refused = |status| matches!(status, None | Some(307 | 400 | 404 | 426 | 431));
            match (first, second) {
                // The service rejects some requests too.
                (Some(200 | 400), Some(429)) if buckets => limited += 1,
                (Some(200), Some(200)) if !buckets => limited += 1,
                // Another spelling of an earlier value.
                (Some(429), Some(429)) if buckets && is_spelling(place, byte) => {}
                (first, second) if refused(first) && refused(second) => {}
                odd => panic!("{place:?} {byte:#04x}: {odd:?}"),
            }
        }
        // Envoy passes on what HTTP allows. If it passed on nothing, the test would show nothing.
        let least = match place {
            Place::Header | Place::Cookie | Place::ContentType => 200,
            Place::Query | Place::Path => 60,
            Place::Host | Place::Name => 10,
            // Envoy rejects unknown methods.
            Place::Method => 0,
        };
        assert!(limited >= least, "{place:?}: only {limited} bytes passed");
    }
    alive(&stage).await;
}

/// Bytes that end a value or stand for another: the remaining value occurred before.
fn is_spelling(place: Place, byte: u8) -> bool {
    match place {
        // The remaining value is `a`, or `a z`.
        Place::Query => b"&;#+ %".contains(&byte),
        Place::Cookie => b"; \t".contains(&byte),
        Place::Path => b"?#;\\/.".contains(&byte),
        _ => b" \t".contains(&byte),
    }
}

/// The filter still counts exactly.
async fn alive(stage: &crate::stage::Stage) {
    let request = stage.get("/", "somebody-else").header("host", "alive");
    assert_eq!(statuses(&request, 4).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn values_of_any_length_are_counted_or_refused() {
    let stage = one_request_for_each_value().await;
    let mut client = stage.raw();
    for length in [0, 1, 1_000, 10_000, 30_000, 55_000, 59_000, 61_000, 120_000] {
        let value = "v".repeat(length);
        for (host, header, target) in [
            ("header", format!("x-user-id: {value}"), "/".to_owned()),
            (
                "cookie",
                format!("cookie: a=b; sid={value}"),
                "/".to_owned(),
            ),
            ("query", "x-a: b".to_owned(), format!("/?key={value}")),
            ("path", "x-a: b".to_owned(), format!("/{value}")),
        ] {
            let host = format!("host: {host}");
            let lines = [host.as_bytes(), header.as_bytes()];
            let mut seen = Vec::new();
            for _ in 0..2 {
                let reply = client.get(target.as_bytes(), &lines).await.unwrap();
                seen.push(reply.map(|reply| reply.status));
            }
            let counted = seen == [Some(200), Some(429)];
            let too_large = seen
                .iter()
                .all(|s| matches!(s, None | Some(400 | 414 | 431)));
            assert!(counted || too_large, "{host}, {length} bytes: {seen:?}");
            assert!(
                counted || length > 55_000,
                "{host}, {length} bytes: {seen:?}"
            );
        }
    }
    alive(&stage).await;
}

const COOKIES: [&[u8]; 14] = [
    b"",
    b"sid",
    b"sid=",
    b"=sid",
    b";;;;",
    b"sid=a;sid=b",
    b"sid==",
    b" sid = x",
    b"SID=a",
    b"\"sid=a\"",
    b"sid=\"a;b\"",
    b"sid=a, sid=b",
    b"sid=\xff\xfe",
    b"sid=a=b=c",
];

const QUERIES: [&[u8]; 14] = [
    b"?",
    b"?key",
    b"?key=",
    b"?=",
    b"?&&&",
    b"?key=a&key=b",
    b"?%6bey=a",
    b"?key=%",
    b"?key=%f",
    b"?key=%ff%fe",
    b"?key=%00",
    b"?key=%0d%0ax:%20y",
    b"?key=a?key=b",
    b"?k%e",
];

#[tokio::test]
async fn malformed_cookies_and_queries_are_no_way_around() {
    let stage = one_request_for_each_value().await;
    let mut client = stage.raw();
    for cookie in COOKIES {
        let line = [b"cookie: ", cookie].concat();
        let reply = client.get(b"/", &[b"host: cookie", &line]).await.unwrap();
        let status = reply.map(|reply| reply.status);
        assert!(matches!(status, Some(200 | 429)), "{cookie:?}: {status:?}");
    }
    for query in QUERIES {
        let target = [b"/", query].concat();
        let reply = client.get(&target, &[b"host: query"]).await.unwrap();
        let status = reply.map(|reply| reply.status);
        let expected = matches!(status, Some(200 | 400 | 429));
        assert!(expected, "{query:?}: {status:?}");
    }
    // Two spellings of one key share one bucket, and it is used up.
    let mut seen = Vec::new();
    for target in [b"/?key=o%6Ee", b"/?k%65y=one"] {
        let reply = client.get(target, &[b"host: query"]).await.unwrap();
        seen.push(reply.unwrap().status);
    }
    assert_eq!(seen, [200, 429]);
    alive(&stage).await;
}

#[tokio::test]
async fn a_header_sent_twice_or_empty_is_counted() {
    let stage = one_request_for_each_value().await;
    let mut client = stage.raw();
    let twice: &[&[u8]] = &[b"host: header", b"x-user-id: alice", b"x-user-id: bob"];
    let alice: &[&[u8]] = &[b"host: header", b"x-user-id: alice"];
    let empty: &[&[u8]] = &[b"host: header", b"x-user-id:"];
    let absent: &[&[u8]] = &[b"host: header"];
    let spaces: &[&[u8]] = &[b"host: header", b"X-USER-ID: \t alice  "];
    for (headers, expected) in [
        (twice, 200),
        (twice, 429),
        // Two different values: such requests share a bucket.
        (alice, 200),
        (alice, 429),
        (spaces, 429),
        (empty, 200),
        (empty, 429),
        (absent, 200),
        (absent, 429),
    ] {
        let reply = client.get(b"/", headers).await.unwrap().unwrap();
        let shown = String::from_utf8_lossy(headers.last().unwrap());
        assert_eq!(reply.status, expected, "{shown}");
    }
    alive(&stage).await;
}
