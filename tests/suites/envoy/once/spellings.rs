//! A request in any spelling counts against the same limits as in the plainest spelling.

use harness::RawClient;
use serde_json::{Value, json};

use crate::stage::{Plan, Stage, alone};

/// Makes Envoy pass targets on as clients write them.
fn as_written(plan: Plan) -> Plan {
    plan.config(|config| {
        let edit = |manager: &mut Value| {
            manager["normalize_path"] = json!(false);
            manager["merge_slashes"] = json!(false);
            manager["path_with_escaped_slashes_action"] = json!("KEEP_UNCHANGED");
        };
        config.manager_edit(edit).unwrap()
    })
}

/// One of the shipped limits, reduced to one request an hour and decided in the proxy.
fn shipped(name: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../limits.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let limits = file["limits"].as_array().unwrap();
    let limit = limits.iter().find(|limit| limit["name"] == name).unwrap();
    json!({
        "name": name, "match": limit["match"], "per": limit["per"], "rate": "1/1h",
        "scope": "proxy",
    })
    .to_string()
}

async fn status(client: &mut RawClient, method: &str, target: &str, lines: &[&str]) -> u16 {
    let first = format!("{method} {target} HTTP/1.1");
    let head = [&first, "host: shop.example", "content-length: 0"];
    let request = [&head[..], lines, &["", ""]].concat().join("\r\n");
    let reply = client.send(request.as_bytes()).await.unwrap();
    reply.map_or(0, |reply| reply.status)
}

/// Sends requests for all these targets; returns those that reached the service.
async fn passed<'t>(stage: &Stage, method: &str, targets: &[&'t str]) -> Vec<&'t str> {
    let mut client = stage.raw();
    let mut passed = Vec::new();
    for target in targets {
        let status = status(&mut client, method, target, &["x-user-id: alice"]).await;
        // Targets that Envoy rejects, or redirects to the plain spelling, do not reach the service.
        if !matches!(status, 0 | 307 | 400 | 429) {
            passed.push(*target);
        }
    }
    passed
}

const SIGN_INS: [&str; 30] = [
    "/login/",
    "/login//",
    "/LOGIN",
    "/LogIn/",
    "/login;x",
    "/login;jsessionid=1",
    "/;x/login",
    "/login%3bx",
    "/login%20",
    "/%20login",
    "/login%09",
    "/login.",
    "/login.json",
    "/LOGIN.XML",
    "//login",
    "/./login",
    "/login/.",
    "/x/../login",
    "/x/..;/login",
    "/x;a/..;b/login",
    "/%2e/login",
    "/x/%2e%2e/login",
    "/%6cogin",
    "/%4c%4f%47%49%4e",
    "%2flogin",
    "/x%2f..%2flogin",
    "/\\login",
    "/x%5c..%5clogin",
    "/login?user=root",
    "/login#top",
];

#[tokio::test]
async fn a_used_up_sign_in_is_used_up_in_every_spelling_and_method() {
    for plan in [
        alone(&[&shipped("sign-in")]),
        as_written(alone(&[&shipped("sign-in")])),
    ] {
        let stage = plan.await;
        let mut client = stage.raw();
        assert_eq!(status(&mut client, "POST", "/login", &[]).await, 200);
        for method in ["POST", "PUT", "PATCH", "GET", "OPTIONS", "DELETE"] {
            assert_eq!(
                passed(&stage, method, &["/login"]).await,
                [""; 0],
                "{method}"
            );
        }
        assert_eq!(passed(&stage, "POST", &SIGN_INS).await, [""; 0]);
        // Different paths pass.
        let others = ["/", "/logins", "/about/login"];
        assert_eq!(passed(&stage, "POST", &others).await, others);
    }
}

#[tokio::test]
async fn order_and_api_limits_apply_to_every_spelling_of_a_path() {
    let limits = [shipped("per-user"), shipped("orders")];
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    for limit in limits {
        let stage = as_written(alone(&[limit])).await;
        assert_eq!(
            passed(&stage, "POST", &["/api/orders"]).await,
            ["/api/orders"]
        );
        let targets = [
            "/api/orders",
            "/api/orders/",
            "/API/Orders",
            "/api;x=1/orders",
            "/api%20/orders",
            "/api/orders%20",
            "/api/orders;v=1",
            "/api%2forders",
            "/api%5Corders",
            "//api//orders",
            "/api./orders",
            "/x/..;/api/orders",
            "/api/orders?",
        ];
        assert_eq!(passed(&stage, "POST", &targets).await, [""; 0], "{limit}");
    }
}

#[tokio::test]
async fn all_spellings_of_a_path_share_one_bucket() {
    let plan = alone(&[
        "{name: paths, match: {host: shop.example}, per: [path], rate: 1/1h, scope: proxy}",
        "{name: targets, match: {host: raw.example}, per: [target], rate: 1/1h, scope: proxy}",
    ]);
    let stage = as_written(plan)
        .filter(|config| {
            let target = json!({"key": "target", "header": ":path"});
            config["descriptors"].as_array_mut().unwrap().push(target);
        })
        .await;
    let targets = [
        "/a/b", "/a/./b", "/a/b/", "/a/b;x", "/a/%62", "/a/b?x", "/a%2fb",
    ];
    assert_eq!(passed(&stage, "GET", &targets).await, ["/a/b"]);
    // The target unchanged, for limits that use it.
    let mut client = stage.raw();
    for target in targets {
        for expected in [200, 429] {
            let reply = client.get(target.as_bytes(), &[b"host: raw.example"]).await;
            assert_eq!(reply.unwrap().unwrap().status, expected, "{target}");
        }
    }
}

#[tokio::test]
async fn methods_and_hosts_have_one_spelling() {
    let stage =
        alone(&["{name: all, match: {host: shop.example, method: GET}, rate: 1/1h, scope: proxy}"])
            .await;
    let mut client = stage.raw();
    let mut seen = Vec::new();
    for host in [
        "shop.example",
        "SHOP.example",
        "shop.example:80",
        "shop.example.",
    ] {
        let line = format!("host: {host}");
        let reply = client.get(b"/", &[line.as_bytes()]).await.unwrap();
        seen.push(reply.unwrap().status);
    }
    assert_eq!(seen, [200, 429, 429, 429]);
}

/// Limits of each kind of credential, which skip requests without one.
fn per_credential() -> Plan {
    alone(&[
        "{name: cookie, match: {path: /cookie}, per: [session], if_missing: skip, rate: 1/1h, scope: proxy}",
        "{name: query, match: {path: /query}, per: [api-key], if_missing: skip, rate: 1/1h, scope: proxy}",
        "{name: header, match: {path: /header}, per: [user], if_missing: skip, rate: 1/1h, scope: proxy}",
        "{name: bots, match: {path: /bots, user: bot}, rate: 1/1h, scope: proxy}",
    ])
    .with_credentials()
}

#[tokio::test]
async fn one_session_has_one_bucket_however_its_cookie_is_spelled() {
    let stage = per_credential().await;
    let mut client = stage.raw();
    let first = status(&mut client, "GET", "/cookie", &["cookie: sid=abc"]).await;
    assert_eq!(first, 200);
    for line in [
        "cookie: sid =abc",
        "cookie: sid= abc",
        "cookie: sid=\"abc\"",
        "cookie: sid=\"\\141bc\"",
        "cookie: sid=a%62c",
        "cookie: SID=abc",
        "cookie: a=b;sid=abc",
        "cookie: a=b\r\ncookie: sid=abc",
        "cookie: sid=abc\r\ncookie: sid=abc",
    ] {
        let seen = status(&mut client, "GET", "/cookie", &[line]).await;
        assert_eq!(seen, 429, "{line}");
    }
    // Requests with several different values share a bucket.
    let mut seen = Vec::new();
    for n in 0..4 {
        let line = match n % 2 {
            0 => format!("cookie: sid=junk{n}; sid=abc"),
            _ => format!("cookie: sid=abc\r\ncookie: sid=junk{n}"),
        };
        seen.push(status(&mut client, "GET", "/cookie", &[&line]).await);
    }
    assert_eq!(seen, [200, 429, 429, 429]);
    // Without a credential, the limit does not apply.
    assert_eq!(status(&mut client, "GET", "/cookie", &[]).await, 200);
}

#[tokio::test]
async fn one_key_has_one_bucket_however_it_is_sent() {
    let stage = per_credential().await;
    let mut client = stage.raw();
    for (target, expected) in [
        ("/query?key=a+b", 200),
        ("/query?key=a%20b", 429),
        ("/query?KEY=a+b", 429),
        ("/query?%6bey=a+b", 429),
        ("/query?x=1;key=a+b", 429),
        ("/query?key=a+b&key=a%20b", 429),
        // Several different values share a bucket.
        ("/query?key=junk1&key=a+b", 200),
        ("/query?key=a+b&key=junk2", 429),
        ("/query?key=junk3&Key=a+b", 429),
        ("/query", 200),
    ] {
        let seen = status(&mut client, "GET", target, &[]).await;
        assert_eq!(seen, expected, "{target}");
    }
    for (lines, expected) in [
        (&["x-user-id: alice"][..], 200),
        (&["X-User-Id: alice", "x-user-id: alice"], 429),
        (&["x-user-id: junk1", "x-user-id: alice"], 200),
        (&["x-user-id: alice", "x-user-id: junk2"], 429),
        (&[], 200),
    ] {
        let seen = status(&mut client, "GET", "/header", lines).await;
        assert_eq!(seen, expected, "{lines:?}");
    }
    // Another value does not hide the one that a limit matches.
    for (lines, expected) in [
        (&["x-user-id: junk1", "x-user-id: bot"][..], 200),
        (&["x-user-id: bot", "x-user-id: junk2"], 429),
        (&["x-user-id: bot"], 429),
        (&["x-user-id: alice"], 200),
    ] {
        let seen = status(&mut client, "GET", "/bots", lines).await;
        assert_eq!(seen, expected, "{lines:?}");
    }
}
