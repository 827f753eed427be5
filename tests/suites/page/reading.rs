//! The content of the views.

use serde_json::json;

use crate::stage::{LIMITS, Stage};

#[tokio::test]
async fn traffic_appears_without_a_reload_and_leads_to_a_bucket() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage
        .shows(&["No bucket was denied in the last 10 s."])
        .await;
    stage.eval("window.opened = 1").await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice", "path=/api/orders"]).await;
    assert_eq!(stage.eval("window.opened").await, 1, "it was not reloaded");
    // Two limits deny alice.
    stage.click("per-user").await;
    stage
        .shows(&["One user's request rate", "user=alice"])
        .await;
    stage.click("user=alice").await;
    stage
        .shows(&["of 10 units used", "is denied", "passes in", "rl:b:"])
        .await;
    stage.click("per-user").await;
    stage
        .shows(&[
            "One user's request rate",
            "Settings",
            "10/m",
            "Last 10 seconds",
            "denied",
        ])
        .await;
    assert_eq!(stage.browser.take_complaints(), [""; 0]);
}

#[tokio::test]
async fn a_bucket_is_looked_up_by_its_values() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage
        .check(json!({"user": "a&b=c d", "path": "/login"}))
        .await;
    stage.open("/limit?domain=shop&name=login").await;
    stage
        .eval("document.querySelector('input[name=\"v.user\"]').focus()")
        .await;
    stage.browser.type_text("a&b=c d").await.unwrap();
    stage.press("Enter").await;
    stage
        .shows(&["user=a&b=c d", "1 of 3 units used", "passes"])
        .await;
    stage.open("/bucket?domain=shop&limit=login").await;
    stage.shows(&["Which user?"]).await;
    stage.open("/bucket?domain=shop&limit=nosuch").await;
    stage.shows(&["There is no such limit."]).await;
    stage.open("/limit?domain=nosuch&name=login").await;
    stage.shows(&["There is no domain nosuch"]).await;
}

/// Proxies cut addresses and hash keys; whoever looks for a client types what the client sends.
#[tokio::test]
async fn a_bucket_is_found_by_the_value_that_proxies_alter() {
    let limits = "domain: shop
limits:
  - {name: per-network, per: [remote_address], rate: 7/1h, match: {path: /network}}
  - {name: per-key, per: [api_key], rate: 8/1h, match: {path: /key}}
";
    let mut stage = Stage::signed_in(limits).await;
    let hash = "ba7816bf8f01cfea414140de5dae2223";
    stage
        .check(json!({"remote_address": "10.1.2.0", "path": "/network"}))
        .await;
    stage.check(json!({"api_key": hash, "path": "/key"})).await;
    let entries = "remote_address.24.56,api_key,api_key.hashed";
    let poll = format!(
        "{}/v1/policy?domain=shop&proxy={:032x}&node=edge-1&entries={entries}",
        stage.limiter.url(),
        1
    );
    stage.client.get(&poll).send().await.unwrap();
    for (looked_up, shown, used, note) in [
        (
            "per-network&v.remote_address=10.1.2.77",
            "remote_address=10.1.2.0",
            "1 of 7 units used",
            "all addresses in 10.1.2.0/24 share the bucket",
        ),
        (
            "per-key&v.api_key=abc",
            hash,
            "1 of 8 units used",
            "the proxies hash `api_key`",
        ),
    ] {
        // The limiter reports its proxies once a second.
        let path = format!("/bucket?domain=shop&limit={looked_up}");
        let started = std::time::Instant::now();
        loop {
            stage.open(&path).await;
            if stage.browser.text().await.unwrap().contains(note) {
                break;
            }
            assert!(started.elapsed().as_secs() < 30, "{looked_up}");
        }
        stage.shows(&[shown, used, note]).await;
    }
}

/// Alice is denied; ten times as many requests of bob would be.
#[tokio::test]
async fn the_most_denied_bucket_is_one_that_is_denied() {
    let limits = "domain: shop
limits:
  - {name: enforced, per: [user], rate: 1/1h, match: {path: /enforced}}
  - {name: trial, per: [user], rate: 1/1h, enforce: 0%, match: {path: /trial}}
";
    let mut stage = Stage::signed_in(limits).await;
    for _ in 0..30 {
        stage.check(json!({"user": "bob", "path": "/trial"})).await;
    }
    for _ in 0..3 {
        let denied = json!({"user": "alice", "path": "/enforced"});
        stage.check(denied).await;
    }
    let table = "document.querySelector('[aria-label^=\"Most denied buckets\"]')";
    let denied = format!("({table}?.innerText ?? '')");
    let both = format!("{denied}.includes('bob') && {denied}.includes('alice')");
    until_true(&mut stage, &both).await;
    let text = stage.eval(&denied).await;
    let text = text.as_str().unwrap();
    assert!(text.find("alice") < text.find("bob"), "{text}");
}

/// A month of a customer in Tokyo, and a month of one in Berlin.
const MONTHLY: &str = "\
domain: shop
limits:
  - name: monthly
    per: [user]
    rate: 1000/month
    time_zone: Asia/Tokyo
    overrides: [{values: {user: bob}, rate: 9/month, time_zone: Europe/Berlin}]
";

#[tokio::test]
async fn the_calendar_window_of_a_limit_and_of_a_bucket_is_shown() {
    let mut stage = Stage::signed_in(MONTHLY).await;
    stage.open("/limit?domain=shop&name=monthly").await;
    let tokyo = [
        "window now",
        "the month from ",
        "-01T00:00:00+09:00[Asia/Tokyo]",
    ];
    stage.shows(&tokyo).await;
    stage
        .open("/bucket?domain=shop&limit=monthly&v.user=ann")
        .await;
    stage.shows(&tokyo).await;
    stage
        .open("/bucket?domain=shop&limit=monthly&v.user=bob")
        .await;
    stage
        .shows(&["of 9 units used", "window now", "[Europe/Berlin]"])
        .await;
}

#[tokio::test]
async fn an_edit_and_who_follows_it_are_shown() {
    let mut stage = Stage::signed_in(LIMITS).await;
    let first = stage.revision().await;
    stage.rlctl(&[
        "set-limit",
        "per-user",
        "--rate",
        "20/m",
        "--author",
        "mia",
        "--reason",
        "sale",
    ]);
    stage.open("/history").await;
    stage
        .shows(&["mia", "sale", "per-user", "rate", "10/m", "20/m"])
        .await;
    let struck = "document.querySelector('del').innerText";
    assert_eq!(stage.eval(struck).await, "10/m");
    // Once the first edit is no longer in force here, the second one is.
    while stage.revision().await == first {}
    let current = stage.revision().await;
    stage.poll("edge-1", 1, Some(&current)).await;
    stage.poll("edge-2", 2, Some(&first)).await;
    stage.open("/fleet").await;
    stage
        .shows(&["edge-1", "edge-2", "current", "behind"])
        .await;
    let behind = "Array.from(document.querySelectorAll('tr')).find((row) => row.innerText.includes('behind')).innerText";
    assert!(
        stage
            .eval(behind)
            .await
            .as_str()
            .unwrap()
            .starts_with("edge-2")
    );
}

#[tokio::test]
async fn problems_come_with_the_command_that_fixes_them() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.rlctl(&["pause", "--limit", "login", "--yes"]);
    stage.open("/problems").await;
    stage
        .shows(&[
            "shop/login",
            "it is paused",
            "rlctl resume --domain shop --limit login",
        ])
        .await;
    stage
        .shows(&["neither RDB snapshots nor the append-only file are on"])
        .await;
}

#[tokio::test]
async fn ten_thousand_limits_are_searched_and_paged() {
    let limits = (0..10_000).fold(String::new(), |limits, n| {
        limits + &format!("  - {{name: limit-{n:05}, rate: 5/s, match: {{path: /p{n}}}}}\n")
    });
    let mut stage = Stage::signed_in(&format!("domain: shop\nlimits:\n{limits}")).await;
    stage.open("/limits").await;
    stage
        .shows(&["10000 limits", "limit-00049", "Page 1"])
        .await;
    stage.click("Next").await;
    stage.shows(&["limit-00050", "Page 2"]).await;
    stage.open("/limits?q=limit-0777&sort=name").await;
    stage.shows(&["10 limits found", "limit-07779"]).await;
    stage.open("/limits?page=99999999999999999999").await;
    stage.shows(&["Page 1"]).await;
    stage.open("/limits?page=4000000000").await;
    stage.shows(&["limit-09999", "Page 200"]).await;
}

/// The text of a cell: its row starts with a limit's name.
async fn cell(stage: &mut Stage, limit: &str, column: &str) -> String {
    let script = format!(
        "(() => {{
            const table = document.querySelector('table');
            const at = Array.from(table.querySelectorAll('th')).findIndex((th) => th.innerText === '{column}');
            const row = Array.from(table.querySelectorAll('tbody tr')).find((row) => row.innerText.startsWith('{limit}'));
            return at < 0 || !row ? 'none' : row.cells[at].innerText;
        }})()"
    );
    let text = stage.eval(&script).await;
    text.as_str().unwrap().to_owned()
}

async fn until_true(stage: &mut Stage, script: &str) {
    let started = std::time::Instant::now();
    while stage.eval(script).await != true {
        assert!(started.elapsed().as_secs() < 30, "{script}");
    }
}

/// Two limits match each of these requests; it still is one request.
#[tokio::test]
async fn a_request_counts_once_however_many_limits_match_it() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice"]).await;
    for (tile, column) in [("Allowed", "Allowed/s"), ("Denied", "Denied/s")] {
        let script = format!(
            "Array.from(document.querySelectorAll('.tiles dt')).find((dt) => dt.innerText === '{tile}')
                .nextElementSibling.querySelector('strong').innerText"
        );
        let shown = stage.eval(&script).await;
        assert_eq!(shown, cell(&mut stage, "per-user", column).await, "{tile}");
        assert_ne!(shown, "0", "{tile}");
    }
}

/// Requests in flight are counted by bucket: the table shows the fullest of the busy ones.
#[tokio::test]
async fn slots_in_use_are_those_of_the_fullest_bucket() {
    let limits = "domain: shop
limits:
  - {name: streams, per: [user], match: {path: /stream}, algorithm: concurrency, limit: 4}
";
    let mut stage = Stage::signed_in(limits).await;
    for user in ["alice", "bob", "bob", "bob", "carol", "carol"] {
        stage.check(json!({"user": user, "path": "/stream"})).await;
    }
    stage.open("/limits").await;
    let started = std::time::Instant::now();
    while cell(&mut stage, "streams", "Slots in use").await != "3 of 4" {
        assert!(started.elapsed().as_secs() < 30);
    }
    stage.open("/limit?domain=shop&name=streams").await;
    stage
        .shows(&["Slots in use", "3 of 4", "2 of 4", "1 of 4"])
        .await;
    stage.click("user=bob").await;
    stage.shows(&["3 of 4 slots in use"]).await;
}

/// What has no request a second: what responses cost, penalties, requests in flight.
const OTHERS: &str = "domain: shop
limits:
  - {name: tokens, match: {path: /tokens}, rate: 1000/1h, cost: {from: {response_json: /tokens}, reserve: 10, max: 100}}
  - {name: guesses, match: {path: /guess}, rate: 1/1h, penalty: {after: 1, within: 1m, for: 1m}}
  - {name: in-flight, match: {path: /flight}, algorithm: concurrency, limit: 5}
";

#[tokio::test]
async fn costs_penalties_and_slots_have_columns_and_a_minute_has_a_line() {
    let mut stage = Stage::signed_in(OTHERS).await;
    for _ in 0..3 {
        stage.check(json!({"path": "/guess"})).await;
        stage.check(json!({"path": "/flight"})).await;
    }
    let call = async |path: &str, body: serde_json::Value| {
        let url = format!("{}{path}", stage.limiter.url());
        let reply = stage.client.post(&url, body.to_string()).send().await;
        reply.unwrap()
    };
    let reserve = json!({"domain": "shop", "descriptor": {"path": "/tokens"}, "reserve": true});
    let reserved = call("/v1/check", reserve).await.json().unwrap();
    call(
        "/v1/settle",
        json!({"token": reserved["token"], "cost": 90}),
    )
    .await;
    stage.open("/limits").await;
    for (limit, column, wanted) in [
        ("tokens", "Units/s", None),
        ("guesses", "Penalties", Some("1")),
        ("in-flight", "Slots in use", Some("3 of 5")),
        ("in-flight", "Quota", Some("5")),
    ] {
        let started = std::time::Instant::now();
        loop {
            let shown = cell(&mut stage, limit, column).await;
            if wanted.map_or(shown != "0" && shown != "none", |wanted| shown == wanted) {
                break;
            }
            assert!(
                started.elapsed().as_secs() < 30,
                "{limit} {column}: {shown}"
            );
        }
    }
    // A time slot that has ended is a bar.
    for view in ["/", "/limit?domain=shop&name=in-flight"] {
        stage.open(view).await;
        until_true(
            &mut stage,
            "/: .*[1-9]/.test(document.querySelector('.trend svg')?.getAttribute('aria-label') ?? '')",
        )
        .await;
    }
    // Limits without them have no such columns.
    stage.rlctl(&["delete-limit", "tokens", "--yes"]);
    stage.open("/limits").await;
    until_true(&mut stage, "!document.body.innerText.includes('Units/s')").await;
}
