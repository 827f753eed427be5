//! Logs as programs write them, read through what users of the crate have.

#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

use std::{
    io::{Cursor, Read, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use access_log::{
    Counts, Field, Format, LINE_MAX, Layout, Log, LogError, Logs, REORDER_MAX, Request, Service,
    Unreadable,
};
use flate2::{Compression, write::GzEncoder};
use policy::Name;
use regex::bytes::Regex;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn layout(needed: &[&str]) -> Layout {
    let mut needed: Vec<Name> = needed.iter().map(|text| name(text)).collect();
    needed.sort_unstable();
    Layout {
        needed,
        ..Layout::default()
    }
}

fn log(text: impl AsRef<[u8]>) -> Log {
    let bytes = text.as_ref().to_vec();
    Log::new("test.log", move || Ok(Box::new(Cursor::new(bytes.clone()))))
}

fn open(logs: Vec<Log>, layout: Layout) -> Result<Logs, LogError> {
    Logs::new(logs, layout, Arc::default())
}

fn read(logs: Vec<Log>, layout: Layout) -> (Vec<Request>, Counts) {
    layout.check().unwrap();
    let mut logs = open(logs, layout).unwrap();
    let mut requests = Vec::new();
    while let Some(request) = logs.next_request().unwrap() {
        requests.push(request);
    }
    (requests, logs.counts())
}

/// The only request of a line, its entries as text.
fn one(line: &str, layout: Layout) -> (Request, String) {
    let (requests, counts) = read(vec![log(line)], layout);
    assert_eq!(requests.len(), 1, "{line}: {counts:?}");
    let request = requests.first().unwrap().clone();
    let entries = request.descriptor.iter();
    let entries = entries.map(|(key, value)| format!("{key}={}", String::from_utf8_lossy(value)));
    let entries: Vec<String> = entries.collect();
    (request, entries.join(" "))
}

const AT_MS: u64 = 1_795_650_437_250;
const ALL: [&str; 6] = [
    "method",
    "path",
    "host",
    "remote_address",
    "remote_address.whole",
    "route",
];

fn entries(counts: &Counts) -> Vec<(&str, u64)> {
    let entries = counts.entries.iter();
    entries
        .map(|entry| (entry.name.as_str(), entry.requests))
        .collect()
}

#[test]
fn envoys_text_is_read() {
    let line = r#"[2026-11-25T23:47:17.250Z] "POST /Api/x/?a=1 HTTP/2" 503 UF 5 91 14 - "192.0.2.9, 10.1.2.3" "curl "8"" "6c1a" "Shop.example:8080" "127.0.0.1:8080""#;
    let (request, entries) = one(line, layout(&ALL));
    assert_eq!(
        entries,
        "host=shop.example method=POST path=/Api/x remote_address=10.1.2.3 \
         remote_address.whole=10.1.2.3"
    );
    let Request {
        at_ms,
        took_ms,
        status,
        bytes_sent,
        ..
    } = request;
    assert_eq!(at_ms, AT_MS);
    assert_eq!(
        (took_ms, status, bytes_sent),
        (Some(14), Some(503), Some(91))
    );
    let hops = Layout {
        trusted_hops: 1,
        entries: vec![(name("agent"), "user_agent".parse().unwrap())],
        ..layout(&["agent", "remote_address"])
    };
    assert_eq!(
        one(line, hops).1,
        r#"agent=curl "8" remote_address=192.0.2.9"#
    );
    assert_eq!(request.service, Service::Silent);
    let of_service = line.replace(" 14 - ", " 14 9 ");
    assert_eq!(one(&of_service, layout(&[])).0.service, Service::Took(9));
    let head = line.replace("POST", "HEAD").replace(" 503 ", " 0 ");
    let (request, _) = one(&head, layout(&[]));
    assert_eq!((request.is_head, request.status), (true, Some(0)));
}

#[test]
fn of_fewer_addresses_than_hops_the_connections_counts_as_in_envoy() {
    for (hops, forwarded, address) in [
        (0, "192.0.2.9, 10.1.2.3", "10.1.2.3"),
        (1, "192.0.2.9, 10.1.2.3", "192.0.2.9"),
        (2, "192.0.2.9, 10.1.2.3", "10.1.2.3"),
        (1, "10.1.2.3", "10.1.2.3"),
        (1, "unknown, 10.1.2.3", "10.1.2.3"),
        (0, "192.0.2.9, unknown", ""),
    ] {
        let line = format!("{{\"time\":1,\"x-forwarded-for\":\"{forwarded}\"}}");
        let wanted = Layout {
            trusted_hops: hops,
            ..layout(&["remote_address"])
        };
        let expected = match address {
            "" => String::new(),
            address => format!("remote_address={address}"),
        };
        assert_eq!(one(&line, wanted).1, expected, "{hops}: {forwarded}");
    }
}

/// What Envoy, and Istio's agent, say about themselves on the same output, before requests and between them.
#[test]
fn lines_that_proxies_write_about_themselves_are_no_requests() {
    let own = "[2026-11-25 23:47:16.120][1][info][main] [source/server/server.cc:430] initializing epoch 0\n\
               2026-11-25T23:47:16.120Z\tinfo\tFLAG: --concurrency=\"2\"\n\
               [2026-11-25 23:47:16.120][14][warning][config] [source/x.cc:1] gRPC config: {\"path\": \"/\"}\n\
               2026/11/25 23:47:16 [error] 31#31: *1 open() \"/x\" failed, client: 10.0.0.1, request: \"GET /x HTTP/1.1\"\n";
    let text =
        r#"[2026-11-25T23:47:17.250Z] "GET /x HTTP/1.1" 200 - 0 12 7 6 "-" "ua" "id" "shop" "-""#;
    let json = r#"{"start_time":"2026-11-25T23:47:17.250Z","path":"/x"}"#;
    let combined = r#"10.0.0.1 - - [25/Nov/2026:23:47:17 +0000] "GET /x HTTP/1.1" 200 12 "-" "ua""#;
    for (line, format) in [
        (text, Format::Envoy),
        (json, Format::Json),
        (combined, Format::Combined),
    ] {
        let log_of = log([&own.repeat(20), line, "\n", own, line, "\n"].concat());
        let (requests, counts) = read(vec![log_of], layout(&["path"]));
        assert_eq!((requests.len(), counts.formats), (2, vec![format]));
        assert_eq!((counts.others, counts.broken), (84, 0));
    }
    // What only resembles them is broken.
    let (_, counts) = read(
        vec![log([
            json,
            "\n[2026-11-25 23:47:16.120][1][loud][main] x\n[x][1][info] x\n2026/11/25 23:47:16 [32] x\n",
        ]
        .concat())],
        layout(&[]),
    );
    assert_eq!((counts.others, counts.broken), (0, 3));
}

/// Caddy's lines about its start, certificates and admin API, and about a request that has a line of its own; Istio's
/// agent with `--log_as_json`; Envoy with a JSON format of its documentation.
#[test]
fn so_are_those_in_json() {
    let own = [
        r#"{"level":"info","ts":1795650436.1,"msg":"serving initial configuration"}"#,
        r#"{"level":"info","ts":1795650436.1,"logger":"tls.obtain","msg":"acquiring lock","identifier":"shop.example"}"#,
        r#"{"level":"info","ts":1795650436.1,"logger":"admin.api","msg":"received request","method":"POST","host":"localhost:2019","uri":"/load","remote_ip":"127.0.0.1"}"#,
        r#"{"level":"error","ts":1795650436.1,"logger":"http.log.error","msg":"dial tcp: refused","request":{"method":"GET","uri":"/x","host":"shop"},"duration":0.1,"status":502}"#,
        r#"{"level":"info","time":"2026-11-25T23:47:16.120Z","scope":"ads","msg":"XDS: pushing"}"#,
        r#"{"Timestamp":"2026-11-25T23:47:16","ThreadId":"1","Level":"info","Message":"starting main dispatch loop"}"#,
    ]
    .join("\n");
    let request = r#"{"level":"info","ts":1795650438.0,"logger":"http.log.access","msg":"handled request","request":{"method":"GET","uri":"/x","host":"shop"},"duration":0.1,"status":200}"#;
    let text = [&own, request, &own, request].join("\n");
    let (requests, counts) = read(vec![log(text)], layout(&["path"]));
    assert_eq!((requests.len(), counts.others, counts.broken), (2, 12, 0));
    // What limits need may be in such a line.
    let events = Layout {
        entries: vec![(name("job"), "/msg".parse().unwrap())],
        ..layout(&["job"])
    };
    let line = r#"{"time":"2026-11-25T23:47:17.250Z","msg":"resize"}"#;
    assert_eq!(one(line, events).1, "job=resize");
}

#[test]
fn istios_text_is_read() {
    let line = r#"[2026-11-25T23:47:17.250Z] "GET /x HTTP/1.1" 200 - via_upstream - "-" 0 12 7 6 "-" "ua" "id" "shop" "10.0.0.2:80" inbound|80|| 127.0.0.6:1 10.0.0.2:80 [2001:db8:0:1:2::9]:5050 - default"#;
    let (request, entries) = one(line, layout(&ALL));
    assert_eq!(
        entries,
        "host=shop method=GET path=/x remote_address=2001:db8:0:1:: \
         remote_address.whole=2001:db8:0:1:2::9 route=default"
    );
    assert_eq!((request.took_ms, request.bytes_sent), (Some(7), Some(12)));
}

#[test]
fn the_combined_format_is_read() {
    let line = r#"2001:db8::7 - al\x22ice [26/Nov/2026:00:47:17 +0100] "GET /a\"b?user=bob HTTP/1.1" 200 512 "https://a/\"b" "Mozilla/5.0 (X11)" rt=0.1"#;
    let entries = vec![
        (name("user"), "remote_user".parse().unwrap()),
        (name("agent"), "user_agent".parse().unwrap()),
        (name("key"), "query:USER".parse().unwrap()),
    ];
    let wanted = Layout {
        entries,
        prefixes: Some([24, 128]),
        ..layout(&["agent", "key", "path", "remote_address", "user"])
    };
    let (request, entries) = one(line, wanted);
    assert_eq!(
        entries,
        "agent=Mozilla/5.0 (X11) key=bob path=/a\"b remote_address=2001:db8::7 user=al\"ice"
    );
    assert_eq!(request.at_ms, AT_MS - 250);
    assert_eq!((request.status, request.bytes_sent), (Some(200), Some(512)));
    let common = r#"10.0.0.1 - - [25/Nov/2026:23:47:17 +0000] "GET / HTTP/1.0" 200 -"#;
    let (request, entries) = one(common, layout(&["path", "user"]));
    assert_eq!((&*entries, request.bytes_sent), ("path=/", Some(0)));
    for user in ["al [ice", "[", "a] [b]", "-"] {
        let line = common.replace("- - [", &format!("- {user} ["));
        let wanted = Layout {
            entries: vec![(name("user"), "remote_user".parse().unwrap())],
            ..layout(&["user"])
        };
        let expected = format!("user={user}").replace("user=-", "");
        assert_eq!(one(&line, wanted).1, expected);
    }
    for (target, path) in [
        ("http://shop/api/a?b=c", "/api/a"),
        ("HTTP://shop", "/"),
        ("/go?to=http://shop/api", "/go"),
        ("*", "*"),
    ] {
        let line = common.replace("GET /", &format!("GET {target}"));
        let expected = format!("path={path}");
        assert_eq!(one(&line, layout(&["path"])).1, expected, "{target}");
    }
}

#[test]
fn json_is_read_at_usual_keys_and_at_pointers() {
    let line = r#"{"start_time":"2026-11-25T23:47:17.250Z","method":"GET","path":"/api","x-envoy-origin-path":null,"authority":"shop","response_code":429,"duration":3,"bytes_sent":20,"downstream_remote_address":"10.0.0.9:4000","user":"ann","empty":"","upstream_service_time":"2","usage":{"total":"12","parts":[1,{"n":7}]},"headers":{"x-tenant-id":"a\"c\u00e9me"},"nothing":"-"}"#;
    let wanted = Layout {
        entries: vec![(name("tenant"), "/headers/x-tenant-id".parse().unwrap())],
        costs: ["/usage/total", "/usage/parts/1/n", "/usage/parts", "/none"]
            .map(|place| place.parse().unwrap())
            .to_vec(),
        hashed: vec![name("user")],
        ..layout(&[
            "empty",
            "host",
            "method",
            "nothing",
            "path",
            "remote_address",
            "tenant",
            "user",
        ])
    };
    let (request, entries) = one(line, wanted);
    let hash = String::from_utf8(policy::hashed(b"ann")).unwrap();
    assert_eq!(
        entries,
        format!(
            "host=shop method=GET path=/api remote_address=10.0.0.9 tenant=a\"céme user={hash}"
        )
    );
    assert_eq!(request.costs, [Some(12), Some(7), None, None]);
    assert_eq!((request.status, request.took_ms), (Some(429), Some(3)));
    assert_eq!(request.service, Service::Took(2));
    for (time, service) in [
        ("", Service::Unknown),
        (",\"upstream_service_time\":null", Service::Silent),
        (",\"upstream_header_time\":\"\"", Service::Silent),
        (",\"upstream_header_time\":\"0.012\"", Service::Took(12)),
        (
            ",\"upstream_header_time\":\"0.012, 0.020\"",
            Service::Unknown,
        ),
    ] {
        let (request, _) = one(&format!("{{\"time\":1{time}}}"), layout(&[]));
        assert_eq!(request.service, service, "{time}");
    }
}

#[test]
fn a_time_of_the_end_is_brought_to_the_start() {
    let line = r#"{"time_iso8601":"2026-11-25T23:47:18+00:00","request_time":"0.750","uri":"/x"}"#;
    let (request, entries) = one(line, layout(&["path"]));
    assert_eq!(
        (request.at_ms, request.took_ms, &*entries),
        (AT_MS, Some(750), "path=/x")
    );
    let own = Layout {
        fields: vec![
            (Field::EndTime, "/t".parse().unwrap()),
            (Field::Duration, "/took".parse().unwrap()),
        ],
        ..layout(&[])
    };
    assert_eq!(
        one(r#"{"t":1795650437.35,"took":100.9}"#, own).0.at_ms,
        AT_MS
    );
}

/// As Caddy 2 writes them by default, and with `duration_format string` in a logger of a name.
#[test]
fn caddys_lines_are_read() {
    let line = r#"{"level":"info","ts":1795650438.0004097,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.1.2.3","remote_port":"41342","client_ip":"192.0.2.9","proto":"HTTP/2.0","method":"GET","host":"Shop.example:8443","uri":"/api/x?a=1","headers":{"User-Agent":["curl/8"],"X-User-Id":["ann"]},"tls":{"resumed":false,"version":772}},"bytes_read":0,"user_id":"","duration":0.750409,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"]}}"#;
    let wanted = || Layout {
        entries: vec![(
            name("user"),
            "/request/headers/X-User-Id/0".parse().unwrap(),
        )],
        ..layout(&["host", "method", "path", "remote_address", "user"])
    };
    let text = line
        .replace("log.access", "log.access.log0")
        .replace("0.750409", r#""750.409ms""#);
    for line in [line, &text] {
        let (request, entries) = one(line, wanted());
        assert_eq!(
            entries,
            "host=shop.example method=GET path=/api/x remote_address=192.0.2.9 user=ann"
        );
        assert_eq!((request.at_ms, request.took_ms), (AT_MS, Some(750)));
        assert_eq!(
            (request.status, request.bytes_sent),
            (Some(200), Some(10_900))
        );
    }
    // Other programs' lines have other units, and flags say better.
    let (other, _) = one(&line.replace("http.log.access", "app"), layout(&[]));
    assert_eq!((other.at_ms, other.took_ms), (1_795_650_438_000, Some(0)));
    let given = Layout {
        fields: vec![
            (Field::Time, "/ts".parse().unwrap()),
            (Field::Duration, "/size".parse().unwrap()),
        ],
        ..layout(&[])
    };
    let (given, _) = one(line, given);
    assert_eq!(
        (given.at_ms, given.took_ms),
        (1_795_650_438_000, Some(10_900))
    );
}

#[test]
fn a_field_in_another_unit_or_of_the_end_is_not_the_usual_one_under_its_key() {
    let line = r#"{"ts":1795650438,"duration":0.75,"upstream_service_time":0.5}"#;
    let given = Layout {
        fields: vec![
            (Field::EndTime, "/ts".parse().unwrap()),
            (Field::DurationS, "/duration".parse().unwrap()),
            (
                Field::ServiceTimeS,
                "/upstream_service_time".parse().unwrap(),
            ),
        ],
        ..layout(&[])
    };
    let (request, _) = one(line, given);
    assert_eq!((request.at_ms, request.took_ms), (AT_MS, Some(750)));
    assert_eq!(request.service, Service::Took(500));
}

#[test]
fn parameters_are_those_that_the_filter_reads() {
    let key = |target: &str| {
        let wanted = Layout {
            entries: vec![(name("key"), "query:api_key".parse().unwrap())],
            ..layout(&["key"])
        };
        one(&format!("{{\"time\":1,\"path\":\"{target}\"}}"), wanted).1
    };
    assert_eq!(key("/x?a=1;API_key=a+b&api_key=a%20b"), "key=a b");
    assert_eq!(key("/x?api_key=a&api_key=b"), "key=(several)");
    assert_eq!(key("/x?%20api_key=a"), "key=a");
    assert_eq!(key("/x#?api_key=a"), "");
}

#[test]
fn what_could_be_either_of_two_values_is_none() {
    let line = |agent: &str| {
        format!(
            r#"[2026-11-25T23:47:17.250Z] "GET / HTTP/1.1" 200 - 0 1 1 - {agent} "id" "shop" "127.0.0.1:80""#
        )
    };
    // A client's header, to which the proxy has appended its address.
    let forged = line(r#""9.9.9.9" "x,10.0.0.1" "curl""#);
    let text = [line(r#""10.0.0.1" "curl""#), forged].join("\n");
    let (requests, counts) = read(vec![log(text)], layout(&["remote_address"]));
    let address = requests
        .first()
        .and_then(|of| of.descriptor.get("remote_address"));
    assert_eq!((address, requests.len()), (Some(&b"10.0.0.1"[..]), 1));
    assert_eq!(counts.first_broken.first().unwrap().why, Unreadable::Envoy);
    let json = r#"{"time":1,"user":{"id":1},"tenant":["a"],"beta":true}"#;
    let (_, entries) = one(json, layout(&["beta", "tenant", "user"]));
    assert_eq!(entries, "beta=true");
}

#[test]
fn counts_say_how_many_requests_have_what() {
    let text = [
        r#"{"time":1000,"duration":3,"usage":7}"#,
        r#"{"time":2000,"duration":"soon","status":200,"bytes_sent":5}"#,
    ];
    let text = text.join("\n") + "\n{\"time\":2000,\"status\":0,\"upstream_service_time\":null}\n";
    let (_, counts) = read(vec![log(text)], layout(&[]));
    assert_eq!((counts.durations, counts.statuses, counts.sizes), (1, 2, 1));
    assert_eq!(counts.service_times, 1);
    // Of a whole second, whatever the duration is that was subtracted.
    let ends = r#"{"time_iso8601":"2026-11-25T23:47:18+00:00","request_time":"0.750"}"#;
    let (_, counts) = read(vec![log(ends)], layout(&[]));
    assert!(counts.whole_seconds);
}

#[test]
fn times_that_no_calendar_knows_are_broken() {
    let text = |year| format!("{{\"time\":\"{year}-12-31T23:00:00Z\"}}\n");
    let (requests, counts) = read(vec![log(text(9999) + &text(9998))], layout(&[]));
    let why = counts.first_broken.first().map(|broken| broken.why);
    assert_eq!((requests.len(), why), (1, Some(Unreadable::Time)));
    assert!(requests[0].at_ms < access_log::END_MS);
}

#[test]
fn a_regular_expression_names_what_it_finds() {
    let pattern = r"^(?P<time>\S+) (?P<method>\S+) (?P<path>\S+) u=(?P<user>\S*) s=(?P<status>\d+)";
    let wanted = Layout {
        pattern: Some(Regex::new(pattern).unwrap()),
        ..layout(&["method", "path", "user"])
    };
    let (request, entries) = one("1795650437250 get /x u=ann s=404", wanted);
    assert_eq!(
        (request.at_ms, &*entries),
        (AT_MS, "method=GET path=/x user=ann")
    );
    assert_eq!(request.status, Some(404));
    let pattern = r"^(?P<time>\S+) u=(?P<user>\S*)";
    let wanted = Layout {
        pattern: Some(Regex::new(pattern).unwrap()),
        ..layout(&["user"])
    };
    assert_eq!(one("1795650437250 u=", wanted).1, "");
}

#[test]
fn a_layout_that_fits_no_format_is_refused() {
    let with = |place: &str, format, pattern: Option<&str>| {
        let layout = Layout {
            format,
            pattern: pattern.map(|pattern| Regex::new(pattern).unwrap()),
            entries: vec![(name("user"), place.parse().unwrap())],
            ..layout(&["user"])
        };
        layout.check().map_err(|error| error.to_string())
    };
    assert_eq!(with("/user", None, None), Ok(()));
    assert_eq!(with("remote_user", None, None), Ok(()));
    assert!(
        with("/user", Some(Format::Envoy), None)
            .unwrap_err()
            .contains("is a place in JSON")
    );
    assert!(
        with("user", Some(Format::Json), None)
            .unwrap_err()
            .contains("like /user")
    );
    let unknown = with("x-user", Some(Format::Envoy), None).unwrap_err();
    assert!(unknown.contains("they have authority"), "{unknown}");
    let group = with("usr", None, Some("(?P<user>.*)")).unwrap_err();
    assert!(group.contains("no group `usr`; it has user"), "{group}");
}

/// A request every millisecond from `from_ms` on, each in a line.
fn lines(from_ms: u64, count: u64) -> String {
    let line = |n| format!("{{\"time\":{},\"path\":\"/\"}}\n", AT_MS + from_ms + n);
    (0..count).map(line).collect()
}

fn zstd(text: &str) -> Vec<u8> {
    // A frame of raw blocks: magic, no checksum, window of 128 KiB, blocks, the last one marked.
    let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    let mut blocks = text.as_bytes().chunks(100_000).peekable();
    while let Some(block) = blocks.next() {
        let header = u32::try_from(block.len()).unwrap() << 3 | u32::from(blocks.peek().is_none());
        out.extend(&header.to_le_bytes()[..3]);
        out.extend(block);
    }
    out
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn rotated_and_compressed_logs_are_one_in_order() {
    let appended = [gzip(&lines(0, 500)), gzip(&lines(500, 500))].concat();
    // A frame to skip, then two frames.
    let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3].to_vec();
    let frames = [skipped, zstd(&lines(1000, 400)), zstd(&lines(1400, 600))].concat();
    let logs = vec![
        log(lines(2000, 1000)),
        log(""),
        log(frames),
        log(appended),
        Log::once("stdin", Cursor::new(lines(3000, 10))),
    ];
    let (requests, counts) = read(logs, layout(&["path"]));
    let times: Vec<u64> = requests
        .iter()
        .map(|request| request.at_ms - AT_MS)
        .collect();
    assert_eq!(times, (0..3010).collect::<Vec<_>>());
    assert_eq!(
        (counts.lines, counts.requests, counts.late),
        (3010, 3010, 0)
    );
    assert_eq!(entries(&counts), [("path", 3010)]);
    assert_eq!(counts.formats, [Format::Json]);
}

#[test]
fn logs_of_several_proxies_are_merged() {
    let even: String = (0..500).map(|n| lines(2 * n, 1)).collect();
    let odd: String = (0..500).map(|n| lines(2 * n + 1, 1)).collect();
    let (requests, _) = read(vec![log(odd), log(even)], layout(&[]));
    let times: Vec<u64> = requests
        .iter()
        .map(|request| request.at_ms - AT_MS)
        .collect();
    assert_eq!(times, (0..1000).collect::<Vec<_>>());
}

#[test]
fn requests_are_sorted_within_the_bound_and_late_beyond_it() {
    let max = u64::try_from(REORDER_MAX).unwrap();
    let within = lines(1000, max - 1) + &lines(0, 1) + &lines(1000 + max, 10);
    let (requests, counts) = read(vec![log(within)], layout(&[]));
    assert_eq!((requests[0].at_ms, counts.late), (AT_MS, 0));
    let beyond = lines(1000, max + 5) + &lines(0, 1) + &lines(2000 + max, 10);
    let (requests, counts) = read(vec![log(beyond)], layout(&[]));
    assert_eq!((requests[0].at_ms, counts.late), (AT_MS + 1000, 1));
    assert!(
        requests.is_sorted_by_key(|request| request.at_ms),
        "the clock never steps back"
    );
    assert_eq!(requests.len(), REORDER_MAX + 16);
}

#[test]
fn long_values_are_cut_as_the_filter_cuts_them_and_wait_in_bounded_memory() {
    let line = |at| format!("{{\"time\":{at},\"user\":\"{}\"}}\n", "x".repeat(70_000));
    // 128 MiB and some of values of 64 KiB, and one that started before them.
    let held = 2100;
    let text = [gzip(&line(5000)).repeat(held), gzip(&line(4000))].concat();
    let mut logs = open(vec![log(text)], layout(&["user"])).unwrap();
    let first = logs.next_request().unwrap().unwrap();
    assert_eq!(first.descriptor.get("user").unwrap().len(), 65_536);
    assert_eq!(first.at_ms, 5_000_000);
    while logs.next_request().unwrap().is_some() {}
    assert_eq!((logs.counts().requests, logs.counts().late), (2101, 1));
}

/// Broken lines, of which the first is read as somebody stops reading.
struct Stopped(Arc<AtomicBool>, u32);

impl Read for Stopped {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.0.store(true, Ordering::Relaxed);
        self.1 += 1;
        to.fill(b'\n');
        if let [first, ..] = to {
            *first = b'x';
        }
        Ok(if self.1 < 100 { to.len() } else { 0 })
    }
}

#[test]
fn who_stops_reading_has_what_was_read() {
    let stopped = Arc::new(AtomicBool::new(false));
    let bytes = Cursor::new(lines(0, 50)).chain(Stopped(Arc::clone(&stopped), 0));
    let stdin = vec![Log::once("stdin", bytes), log(lines(1000, 1))];
    let mut logs = Logs::new(stdin, layout(&[]), stopped).unwrap();
    let mut read = 0;
    while logs.next_request().unwrap().is_some() {
        read += 1;
    }
    let counts = logs.counts();
    assert_eq!((read, counts.requests, counts.broken), (50, 50, 0));
    assert_eq!(counts.cut, []);
}

#[test]
fn broken_lines_are_counted_and_the_first_are_shown() {
    let long = format!("{{\"time\":1,\"path\":\"{}\"}}\n", "x".repeat(LINE_MAX));
    let text = [
        "\n{\"time\":1,\n",
        &lines(0, 1),
        "{\"path\":\"/\"}\r\n",
        "Traceback\n\n",
        &long,
        "{\"time\":1}\u{fffd}\n",
        "{\"time\":true}\n",
        "[]\n",
        "{\"method\":null,\"path\":null,\"time\":5}\n",
        "{\"method\":\"-\",\"time\":5}\n",
        "{\"method\":\"\",\"path\":\"\",\"time\":5}\n",
        &lines(1, 1),
    ];
    let (requests, counts) = read(vec![log(text.concat())], layout(&["method", "path"]));
    assert_eq!(requests.len(), 2);
    let places: Vec<_> = counts
        .first_broken
        .iter()
        .map(|b| (b.line, b.why))
        .collect();
    let (json, time) = (Unreadable::Json, Unreadable::Time);
    let first = (2, Unreadable::Unknown);
    assert_eq!(
        places,
        [
            first,
            (4, time),
            (5, json),
            (7, Unreadable::TooLong),
            (8, json)
        ]
    );
    assert_eq!((counts.lines, counts.broken, counts.others), (12, 7, 3));
}

#[test]
fn a_log_that_is_cut_off_or_damaged_is_read_up_to_there() {
    let whole = gzip(&lines(0, 5000));
    let cut = whole[..whole.len() / 2].to_vec();
    let (requests, counts) = read(vec![log(cut), log(lines(9000, 1))], layout(&[]));
    assert!((100..5000).contains(&requests.len()), "{}", requests.len());
    assert_eq!(counts.cut.len(), 1);
    let mut damaged = zstd(&lines(0, 10_000));
    damaged.truncate(320_000);
    let (requests, counts) = read(vec![log(damaged)], layout(&[]));
    assert!(
        (100..10_000).contains(&requests.len()),
        "{}",
        requests.len()
    );
    assert_eq!(counts.cut.len(), 1);
}

#[test]
fn what_is_no_log_ends_with_an_error() {
    let error = |log| match open(vec![log], layout(&[])) {
        Err(error) => error.to_string(),
        Ok(mut logs) => logs.next_request().unwrap_err().to_string(),
    };
    let endless = Log::once("zeros", std::io::repeat(0));
    assert_eq!(
        error(endless),
        "zeros: line 1 is longer than 64 MiB: this is no log"
    );
    let prose = "To be, or not to be\n".repeat(60_000);
    assert_eq!(
        error(log(prose)),
        "test.log has no format that is known: none of its first 55189 lines begins like an access log's"
    );
    let pointer = Layout {
        entries: vec![(name("user"), "/user".parse().unwrap())],
        ..layout(&["user"])
    };
    let common = log("10.0.0.1 - - [25/Nov/2026:23:47:17 +0000] \"GET / HTTP/1.0\" 200 -");
    let refused = open(vec![common], pointer).err().unwrap().to_string();
    assert_eq!(
        refused,
        "`/user` is a place in JSON; the format is combined"
    );
    let gone = Log::new("gone", || Err(std::io::ErrorKind::NotFound.into()));
    assert_eq!(error(gone), "cannot read gone: entity not found");
    let many = (0..1001).map(|_| log("")).collect();
    assert!(matches!(
        open(many, layout(&[])),
        Err(LogError::TooMany(1001))
    ));
    // A line without an end in the middle of a log.
    let then = lines(0, 1).into_bytes();
    let endless = Log::once("then", Cursor::new(then).chain(std::io::repeat(b'x')));
    assert_eq!(
        error(endless),
        "then: line 2 is longer than 64 MiB: this is no log"
    );
}

/// A log that is there once, and then no more, or in part.
#[test]
fn a_log_that_is_rotated_while_others_are_read_is_missing_and_said_to_be() {
    let mut opened = 0;
    let rotated = Log::new("b.log", move || {
        opened += 1;
        match opened {
            1 => Ok(Box::new(Cursor::new(lines(1000, 10)))),
            _ => Err(std::io::Error::other("gone")),
        }
    });
    let (requests, counts) = read(vec![log(lines(0, 10)), rotated], layout(&["path"]));
    assert_eq!((requests.len(), counts.lines), (10, 13));
    let cut = { counts.cut.iter() }.map(|cut| (&*cut.file, &*cut.why));
    assert_eq!(cut.collect::<Vec<_>>(), [("b.log", "gone")]);
}

/// A request far from those around it, wherever it is.
#[test]
fn a_wrong_clock_moves_no_other_request() {
    let wrong = |time: &str| format!("{{\"time\":{time},\"path\":\"/\"}}\n");
    let other: String = (0..50).map(|n| lines(2 * n + 1, 1)).collect();
    for time in ["\"2099-01-01T00:00:00Z\"", "0", "1"] {
        for at in [0, 1, 2, 25, 49, 50] {
            let mut text: Vec<String> = (0..50).map(|n| lines(2 * n, 1)).collect();
            text.insert(at, wrong(time));
            let (requests, counts) = read(vec![log(text.concat()), log(&other)], layout(&["path"]));
            let times: Vec<u64> = requests
                .iter()
                .map(|request| request.at_ms - AT_MS)
                .collect();
            assert_eq!(times, (0..100).collect::<Vec<_>>(), "{time} in line {at}");
            assert_eq!((counts.late, counts.broken, counts.lines), (0, 1, 101));
            let line = u64::try_from(at).unwrap() + 1;
            let broken = counts.first_broken.first().unwrap();
            assert_eq!((broken.line, broken.why), (line, Unreadable::Astray));
            assert_eq!(entries(&counts), [("path", 100)]);
        }
    }
    // By a day it may be right; but nothing else waits for it, or is moved.
    let ahead = lines(86_400_000, 1) + &lines(0, u64::try_from(REORDER_MAX).unwrap());
    let (requests, counts) = read(vec![log(ahead), log(lines(50_000, 200_000))], layout(&[]));
    assert_eq!(
        (requests.len(), counts.late, counts.broken),
        (300_001, 0, 0)
    );
    // Of two nobody knows which is wrong, and a log may go on after years.
    let two = lines(0, 1) + &wrong("0");
    assert_eq!(read(vec![log(two)], layout(&[])).0.len(), 2);
    let year = 400 * 86_400_000;
    let (requests, _) = read(vec![log(lines(0, 3) + &lines(year, 3))], layout(&[]));
    assert_eq!(requests.len(), 6);
}
