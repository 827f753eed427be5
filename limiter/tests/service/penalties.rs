//! Penalties, as programs and operators see them.

use std::io::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::{Service, quick};

/// One unit that does not come back within a test, and a penalty that outlasts it.
const SIGN_IN: &str = "  - name: sign-in
    per: [user]
    rate: 1/1h
    penalty: {after: 2, within: 1h, for: 1d}
";
const DAY_MS: f64 = 86_400_000.0;
const TOKEN: &str = "9f0c2a7d41b85e63";

async fn ask(service: &Service, user: &str) -> Result<Value> {
    service
        .ask(json!({"descriptor": {"user": user}}))
        .await?
        .json()
}

#[tokio::test]
async fn the_answer_names_a_penalty_from_the_denial_that_begins_it() -> Result<()> {
    let service = Service::with(SIGN_IN).await?;
    assert_eq!(ask(&service, "eve").await?["allowed"], true);
    let first = ask(&service, "eve").await?;
    assert_eq!(first["allowed"], false, "{first}");
    assert_eq!(first["limits"][0].get("penalty"), None, "{first}");
    for _ in 0..2 {
        let denied = ask(&service, "eve").await?;
        let limit = &denied["limits"][0];
        assert_eq!(limit["penalty"], true, "{denied}");
        let left_ms = limit["retry_after_ms"].as_f64().unwrap_or_default();
        assert!((DAY_MS - 60_000.0..=DAY_MS).contains(&left_ms), "{denied}");
    }
    assert_eq!(ask(&service, "bob").await?["allowed"], true);
    Ok(())
}

#[tokio::test]
async fn the_page_shows_the_rule_the_count_and_the_end() -> Result<()> {
    let mut tokens = NamedTempFile::new()?;
    writeln!(tokens, "{TOKEN}")?;
    let mut settings = quick();
    settings.page_token_file = Some(tokens.path().to_owned());
    let service = Service::with_settings(SIGN_IN, settings).await?;
    let page = async |path: &str| -> Result<String> {
        let page = service.admin(path);
        let page = page.header("authorization", format!("Bearer {TOKEN}"));
        Ok(page.send().await?.text())
    };
    let limit = page("/limit?domain=shop&name=sign-in").await?;
    for (part, value) in [("after", "2"), ("within", "1h"), ("for", "1d")] {
        let field = format!("{part}: <bdi class=\"value\" title=\"{value}\">");
        assert!(limit.contains(&field), "{field}: {limit}");
    }
    let bucket = "/bucket?domain=shop&limit=sign-in&v.user=eve";
    for denials in 0..2 {
        let count = format!("{denials} of 2 denials in 1h, which would deny it for 1d");
        ask(&service, "eve").await?;
        let shown = page(bucket).await?;
        assert!(shown.contains(&count), "{count}: {shown}");
    }
    ask(&service, "eve").await?;
    let shown = page(bucket).await?;
    assert!(shown.contains("denied until "), "{shown}");
    Ok(())
}
