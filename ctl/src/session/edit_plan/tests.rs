use std::{sync::Arc, time::Duration};

use clap::Parser as _;
use policy::Policy;
use store::{Change, Edit, Options, Overrides, Signature, StoreUrl, Stored};

use super::{Deltas, EditPlan, Fitting, numbers_of};
use crate::{
    changes::{self, Action},
    cli::Cli,
    printer::Printer,
    session::Session,
    settings::{self, Settings},
};

impl Printer {
    /// A printer with the defaults that prints no notes.
    pub(crate) fn silent() -> Self {
        Self::new(&Cli::parse_from(["rlctl", "--quiet", "ping"]).global)
    }
}

impl<'p> Session<'p> {
    /// A session with a store of its own.
    pub(crate) fn in_memory(printer: &'p Printer) -> Self {
        let settings = Settings {
            url: StoreUrl::Memory,
            url_source: settings::DEFAULT_SOURCE,
            client_certificate: None,
            keys: store::Keys::default(),
            timeout: Duration::from_secs(1),
            domain: None,
        };
        let store = store::open(&settings.url, Options::default()).unwrap();
        Self {
            store,
            printer,
            settings,
            walked: Arc::default(),
        }
    }
}

fn policy(limits: &str) -> Policy {
    let file = format!("domain: shop\nlimits: [{limits}]\n");
    limits_file::read("test", file.as_bytes()).unwrap()
}

/// The plan of an edit that replaces the limits of a domain.
async fn plan(before: &str, after: &str) -> EditPlan {
    let printer = Printer::silent();
    let session = Session::in_memory(&printer);
    let before = policy(before);
    let edit = Edit {
        domain: &before.domain,
        base: &Stored::Absent,
        change: Change::Limits(&before),
        by: &Signature::default(),
    };
    session.store.write(&edit).await.unwrap();
    let base = session.read(&before.domain, Overrides::None).await.unwrap();
    let after = policy(after);
    let plan = session
        .plan_edit(base.policy(), &after, &Deltas::new())
        .await;
    plan.unwrap()
}

async fn actions(before: &str, after: &str) -> Vec<(String, Action)> {
    { plan(before, after).await.changes }
        .into_iter()
        .map(|change| (change.limit, change.action))
        .collect()
}

#[tokio::test]
async fn limits_are_compared_by_name_whatever_their_order() {
    let found = actions(
        "{name: a, rate: 1/s}, {name: b, rate: 1/s}, {name: c, rate: 1/s}",
        "{name: c, rate: 1/s}, {name: d, rate: 1/s}, {name: a, rate: 2/s}",
    )
    .await;
    let expected = [
        ("c", Action::Unchanged),
        ("d", Action::Created),
        ("a", Action::Changed),
        ("b", Action::Deleted),
    ];
    assert_eq!(
        found,
        expected.map(|(name, action)| (name.to_owned(), action))
    );
}

#[tokio::test]
async fn what_is_written_out_and_what_is_the_default_are_the_same() {
    let found = actions(
        "{name: a, rate: 60/60s}",
        "{name: a, rate: 60/1m, on_failure: local, cost: 1}",
    )
    .await;
    assert_eq!(found, [("a".to_owned(), Action::Unchanged)]);
}

#[tokio::test]
async fn fields_are_named_with_what_they_were() {
    let plan = plan(
        "{name: a, rate: 1/s, burst: 5, hidden: true}",
        "{name: a, rate: 2/s, burst: 5, cost: 3}",
    )
    .await;
    let text = serde_json::to_value(&plan.changes).unwrap();
    assert_eq!(
        text[0]["fields"],
        serde_json::json!([
            {"field": "rate", "before": "1/s", "after": "2/s"},
            {"field": "cost", "before": null, "after": 3},
            {"field": "hidden", "before": true, "after": null},
        ])
    );
}

#[tokio::test]
async fn overrides_are_compared_by_bucket() {
    let one = "{values: {user: x}, rate: 2/s}";
    let two = "{values: {user: y}, unlimited: true}";
    let three = "{values: {user: x}, rate: 3/s}";
    let limit = |overrides: &[&str]| {
        let overrides = overrides.join(", ");
        format!("{{name: a, per: [user], rate: 1/s, overrides: [{overrides}]}}")
    };
    let same = plan(&limit(&[one, two]), &limit(&[two, one])).await;
    assert!(!changes::any(&same.changes));
    let other = plan(&limit(&[one, two]), &limit(&[three])).await;
    let changes = serde_json::to_value(&other.changes).unwrap();
    assert_eq!(
        changes[0]["overrides"],
        serde_json::json!([
            {"values": {"user": "x"}, "before": {"rate": "2/s"}, "after": {"rate": "3/s"}},
            {"values": {"user": "y"}, "before": {"unlimited": true}, "after": null},
        ])
    );
}

const LIVE: &str = "{name: a, per: [user], rate: 1/s, overrides: [{values: {user: x}, burst: 9}]}";

#[tokio::test]
async fn overrides_that_nobody_lists_stay_and_have_to_fit() {
    let kept = plan(LIVE, "{name: a, per: [user], rate: 2/s}").await;
    assert_eq!(
        (kept.overrides.len(), kept.invalid_overrides_text()),
        (0, None)
    );
    let window = "{name: a, per: [user], rate: 2/s, algorithm: fixed_window}";
    let text = plan(LIVE, window).await.invalid_overrides_text().unwrap();
    assert!(
        text.contains("a do not fit") && text.contains("user=x: burst"),
        "{text}"
    );
}

#[test]
fn overrides_with_the_same_numbers_are_read_once_whatever_their_values_are() {
    let limits = |limits: &str| policy(limits).limits.remove(0);
    let before = limits("{name: a, per: [user], rate: 1/s}");
    let after = limits("{name: a, per: [user], rate: 1/s, algorithm: fixed_window}");
    let fits = |user: &str| format!(r#"{{"values":{{"user":{user}}},"rate":"2/s"}}"#);
    let users = [r#""x""#, r#""}\"}\\""#, r#"{"base64":"/w=="}"#, "null"];
    let mut fitting = Fitting::new(Some(&before), &after);
    for text in users.map(fits) {
        assert_eq!(numbers_of(&text), Some(r#","rate":"2/s"}"#), "{text}");
        assert_eq!(fitting.invalid(text), None);
    }
    assert_eq!(fitting.known.len(), 1);
    for other in [
        r#"{"values":{"user":"x"},"rate":"2/s","burst":1}"#,
        r#"{"values":{"user":"x","rate":"2/s"}"#,
        r#"{"rate":"2/s"}"#,
        r#"{"values":{"#,
        "",
    ] {
        for _ in 0..2 {
            assert!(fitting.invalid(other.to_owned()).is_some(), "{other}");
        }
    }
    // What names a bucket may be wrong now.
    let skips = limits("{name: a, per: [user], rate: 1/s, if_missing: skip}");
    let mut fitting = Fitting::new(Some(&before), &skips);
    assert_eq!(fitting.invalid(fits(r#""x""#)), None);
    assert!(fitting.invalid(fits("null")).is_some());
}

#[tokio::test]
async fn overrides_of_other_buckets_are_lost() {
    for after in [
        "{name: a, per: [tenant], rate: 1/s}",
        "{name: b, rate: 1/s}",
    ] {
        let lost = plan(LIVE, after).await;
        let edit = lost.overrides.values().next().unwrap();
        assert_eq!(edit.before.as_ref().map(Vec::len), Some(1), "{after}");
        assert!(edit.listed && edit.after.is_empty());
    }
}
