//! The appearance of the page: narrow and wide, light and dark, by keyboard and screen reader, and
//! without scripts.

use crate::stage::{LIMITS, Stage};

const VIEWS: [&str; 6] = [
    "/",
    "/limits",
    "/limit?domain=shop&name=per-user",
    "/fleet",
    "/history",
    "/problems",
];

/// How many columns `Denied/s` are not in view.
const HIDDEN_DENIALS: &str = "Array.from(document.querySelectorAll('th'))
    .filter((th) => th.innerText === 'Denied/s')
    .filter((th) => {
        const right = th.getBoundingClientRect().right;
        return right > Math.min(innerWidth, th.closest('.scroll').getBoundingClientRect().right) + 1;
    }).length";

/// The minimum contrast of text at WCAG's level AA.
const CONTRAST: f64 = 4.5;

#[tokio::test]
async fn it_fits_and_is_legible_in_every_size_and_color() {
    let mut stage = Stage::signed_in(LIMITS).await;
    // As long as a name of a customer may be.
    stage
        .use_up("alice-of-the-northern-branch-office-of-example-corporation")
        .await;
    stage.shows(&["user=alice"]).await;
    for view in VIEWS {
        let widths = [400, 1280, 1600].into_iter();
        for (width, dark) in widths.flat_map(|width| [(width, false), (width, true)]) {
            stage.browser.show(width, dark).await.unwrap();
            stage.open(view).await;
            let overflow = "document.documentElement.scrollWidth - innerWidth";
            assert_eq!(stage.eval(overflow).await, 0, "{view} at {width} pixels");
            // Nobody scrolls a table sideways to see what is denied.
            assert_eq!(
                stage.eval(HIDDEN_DENIALS).await,
                0,
                "{view} at {width} pixels"
            );
            let (ratio, text) = stage.browser.contrast().await.unwrap();
            assert!(ratio >= CONTRAST, "{view}, dark: {dark}: {ratio} of {text}");
        }
    }
    assert_eq!(stage.browser.take_complaints(), [""; 0]);
}

#[tokio::test]
async fn a_keyboard_and_a_screen_reader_are_enough() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice"]).await;
    stage.open("/").await;
    stage.press("Tab").await;
    let focused = "document.activeElement.innerText";
    assert_eq!(stage.eval(focused).await, "Skip to the content");
    stage.press("Enter").await;
    let at = stage.eval("document.activeElement.id").await;
    assert_eq!(at, "view");
    for view in VIEWS {
        stage.open(view).await;
        let spoken = stage.browser.spoken().await.unwrap();
        for (role, name) in &spoken {
            let named = [
                "link",
                "button",
                "textbox",
                "searchbox",
                "combobox",
                "table",
                "region",
                "image",
            ];
            assert!(
                !named.contains(&role.as_str()) || !name.is_empty(),
                "{view}: a {role} without a name"
            );
        }
        for role in ["banner", "main", "navigation", "contentinfo"] {
            assert!(
                spoken.iter().any(|(found, _)| found == role),
                "{view}: no {role}"
            );
        }
        let headings = stage.eval("document.querySelectorAll('h1').length").await;
        assert_eq!(headings, 1, "{view}");
    }
}

#[tokio::test]
async fn a_replacement_keeps_the_focus() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice"]).await;
    let focus = "const link = Array.from(document.links).find((at) => at.innerText === 'exports'); link.focus(); link.dataset.old = 1;";
    stage.eval(focus).await;
    stage.use_up("bob").await;
    stage.shows(&["user=bob"]).await;
    let tag = stage.eval("document.activeElement.tagName").await;
    assert_eq!(tag, "A", "it is not lost to the body");
}

#[tokio::test]
async fn the_page_is_readable_without_scripts() {
    let mut stage = Stage::signed_in(LIMITS).await;
    stage.use_up("alice").await;
    stage.shows(&["user=alice"]).await;
    stage.browser.scripts(false).await.unwrap();
    stage.open("/").await;
    let html = stage
        .browser
        .call("DOM.getDocument", serde_json::json!({"depth": -1}))
        .await
        .unwrap()
        .to_string();
    assert!(
        html.contains("user=alice") && html.contains("\"http-equiv\",\"refresh\""),
        "{html}"
    );
}
