//! Values chosen to break the page.

use serde_json::json;

use crate::stage::{LIMITS, Stage};

const SCRIPT: &str = "<script>window.broken=1</script><img src=x onerror=\"window.broken=1\">";
const RIGHT_TO_LEFT: &str = "\u{202e}drow\u{2066}ssap \u{5e9}\u{5dc}\u{5d5}\u{5dd}";

/// The view fits, runs only its own script, and has no character that turns text around.
async fn assert_harmless(stage: &mut Stage, view: &str) {
    stage.open(view).await;
    for width in [400, 1600] {
        stage.browser.show(width, false).await.unwrap();
        let overflow = "document.documentElement.scrollWidth - innerWidth";
        let overflow = stage.eval(overflow).await;
        assert_eq!(overflow, 0, "{view} at {width} pixels");
    }
    let found = "document.scripts.length + document.querySelectorAll('main img, main script, main b').length";
    let found = stage.eval(found).await;
    assert_eq!(found, 1, "{view}: only its own script");
    let broken = stage.eval("window.broken ?? null").await;
    assert!(broken.is_null(), "{view}");
    let text = stage.browser.text().await.unwrap();
    assert!(
        !text.contains('\u{202e}') && !text.contains('\u{2066}'),
        "{view}: {text}"
    );
    assert_eq!(stage.browser.take_complaints(), [""; 0], "{view}");
}

#[tokio::test]
async fn every_value_is_shown_as_text() {
    let mut stage = Stage::signed_in(LIMITS).await;
    let long = "n".repeat(200);
    for user in [SCRIPT, RIGHT_TO_LEFT, &long, "'\"`={{7*7}}&amp;"] {
        stage.use_up(user).await;
    }
    stage.poll("%3Cb%3Enode%3C/b%3E", 3, None).await;
    stage.rlctl(&[
        "set-limit",
        "login",
        "--rate",
        "4/1h",
        "--description",
        SCRIPT,
        "--author",
        SCRIPT,
        "--reason",
        RIGHT_TO_LEFT,
    ]);
    let views = [
        "/",
        "/limits",
        "/limit?domain=shop&name=login",
        "/limit?domain=shop&name=per-user",
        "/fleet",
        "/history",
        "/problems",
    ];
    for view in views {
        assert_harmless(&mut stage, view).await;
    }
    stage.open("/history").await;
    stage
        .shows(&["<script>window.broken=1</script>", "\\u{202e}drow"])
        .await;
}

#[tokio::test]
async fn a_search_for_markup_finds_nothing_and_does_nothing() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage
        .open("/limits?q=%22%3E%3Cscript%3Ewindow.broken=1%3C/script%3E&sort=%22onx=")
        .await;
    stage.shows(&["No limit is named so."]).await;
    let typed = stage.eval("document.querySelector('[name=q]').value").await;
    assert_eq!(typed, "\"><script>window.broken=1</script>");
    for path in [
        "/limit?domain=shop&name=%3Cb%3E",
        "/limit?domain=%3Cb%3E&name=a",
        "/bucket?domain=shop&limit=%3Cb%3E&v.user=%ff%00",
    ] {
        stage.open(path).await;
        assert_eq!(
            stage
                .eval("document.querySelectorAll('main b').length")
                .await,
            0
        );
    }
    let status = stage
        .check(json!({"user": "still", "path": "/api/x"}))
        .await;
    assert!(status);
}
