//! envoyproxy/ratelimit's files as a source of limits.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context, Result};
use harness::{Engine, until};
use limiter::{RunError, Settings};
use policy::Policy;
use serde_json::json;
use store::{Change, Edit, Options, Overrides, Signature, Store, StoreUrl, open};
use tempfile::TempDir;

use crate::support::{PATIENCE, Server, Service, name, quick};

const SHOP: &str =
    "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: N}}]\n";
const API: &str =
    "domain: api\ndescriptors: [{key: path, value: /x*, rate_limit: {unlimited: true}}]\n";

fn shop(requests: u32) -> String {
    SHOP.replace('N', &requests.to_string())
}

fn followed(folder: &Path, memory: bool) -> Settings {
    Settings {
        rls_config: Some(folder.to_owned()),
        limits_are_the_policy: memory,
        ..quick()
    }
}

/// Waits until a peek shows this quota for a user.
async fn quota_becomes(service: &Service, quota: u64) -> Result<()> {
    let what = format!("the quota is {quota}");
    until(&what, PATIENCE, async || {
        let peek = json!({"descriptor": {"descriptor": "user=alice"}, "peek": true});
        let answer = service.ask(peek).await.ok()?.json().ok()?;
        (answer["limits"][0]["limit"] == quota).then_some(())
    })
    .await
}

/// Waits until `/readyz` is 200 and reports an error with these words, or none.
async fn error_becomes(service: &Service, words: Option<&str>) -> Result<()> {
    let what = format!("the error is {words:?}");
    until(&what, PATIENCE, async || {
        let report = service.admin("/readyz").send().await.ok()?.json().ok()?;
        let error = report["limits_file_error"].as_str();
        let right = match words {
            Some(words) => error?.contains(words),
            None => error.is_none(),
        };
        (right && report["ready"] == true).then_some(())
    })
    .await
}

#[tokio::test]
async fn valid_edits_take_effect_and_invalid_ones_do_not() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shop.yaml");
    fs::write(&path, shop(10))?;
    fs::write(folder.path().join("api.yml"), API)?;
    fs::write(folder.path().join("notes.txt"), "not a configuration")?;
    fs::write(folder.path().join(".hidden.yaml"), "neither")?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::ready_on(store, followed(folder.path(), true)).await?;
    quota_becomes(&service, 10).await?;

    fs::write(&path, shop(20).replace("day", "fortnight"))?;
    error_becomes(&service, Some("shop.yaml:2:")).await?;
    quota_becomes(&service, 10).await?;
    fs::write(&path, shop(20))?;
    quota_becomes(&service, 20).await?;
    error_becomes(&service, None).await?;

    // A second file with the same descriptor.
    let second = folder.path().join("more.yaml");
    fs::write(&second, shop(30))?;
    error_becomes(&service, Some("a second descriptor `user`")).await?;
    fs::remove_file(&second)?;
    error_becomes(&service, None).await?;

    fs::remove_file(&path)?;
    until("the domain is gone", PATIENCE, async || {
        let reply = service.ask(json!({"descriptor": {}})).await.ok()?;
        (reply.status == 404).then_some(())
    })
    .await?;
    fs::remove_file(folder.path().join("api.yml"))?;
    error_becomes(&service, Some("has no files any more")).await?;
    let reply = service.post("/v1/check", r#"{"domain":"api","descriptor":{}}"#);
    assert_eq!(reply.send().await?.status, 200, "the last good limits stay");
    Ok(())
}

/// Without the file, the domain would be deleted.
#[tokio::test]
async fn an_entry_that_is_no_file_keeps_the_last_good_limits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    fs::write(at("api.yml"), API)?;
    fs::write(at("shop.yaml"), shop(10))?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::ready_on(store, followed(folder.path(), true)).await?;
    quota_becomes(&service, 10).await?;
    for (words, name, target) in [
        ("No such file", "shop.yaml", "nowhere.yaml"),
        ("symbolic links", "shop.yaml", "shop.yaml"),
        ("not a file", "folder.yaml", "."),
    ] {
        symlink(target, at(".next"))?;
        fs::rename(at(".next"), at(name))?;
        error_becomes(&service, Some(words)).await?;
        error_becomes(&service, Some(name)).await?;
        quota_becomes(&service, 10).await?;
        if name == "shop.yaml" {
            fs::write(at(".next"), shop(10))?;
            fs::rename(at(".next"), at(name))?;
        } else {
            fs::remove_file(at(name))?;
        }
        error_becomes(&service, None).await?;
    }
    Ok(())
}

/// The rules that its README explains, by examples of the same shapes.
#[tokio::test]
async fn the_documented_rules_of_envoyproxy_ratelimit_hold() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let day = |n: u32| format!("rate_limit: {{unit: day, requests_per_unit: {n}}}");
    let list = [
        ("two", format!(
            "[{{key: kind, value: ads, descriptors: [{{key: to, {}}}]}}, {{key: to, {}}}]",
            day(1), day(3)
        )),
        ("three", format!("[{{key: ip, {}}}, {{key: ip, value: 50.0.0.5, {}}}]", day(2), day(0))),
        ("four", format!("[{{key: a, value: x, {}}}]", day(0))),
        ("five", format!("[{{key: ldap, rate_limit: {{unlimited: true}}}}, {{key: azure, {}}}]", day(1))),
        ("six", format!(
            "[{{key: service, descriptors: [{{key: user, value: a, shadow_mode: true, {}}}, {{key: user, value: b, {}}}]}}]",
            day(1), day(1)
        )),
        ("seven", "[{key: k1, value: v1, descriptors: [{key: user, rate_limit: {name: narrow, unit: day, requests_per_unit: 1}}]}, \
             {key: k2, value: v2, descriptors: [{key: user, rate_limit: {replaces: [{name: narrow}], unit: day, requests_per_unit: 9}}]}]".to_owned()),
        ("nine", format!(
            "[{{key: v, value: value*, {0}}}, {{key: p, value: /api/*/do, {0}}}, {{key: r, value: /a/*/b/*/c, {0}}}]",
            day(0)
        )),
        ("eleven", format!(
            "[{{key: files, value: files/*, share_threshold: true, {0}}}, {{key: alone, value: alone/*, {0}}}, \
              {{key: mid, value: m*d, share_threshold: true, {0}}}]",
            day(2)
        )),
    ];
    for (domain, descriptors) in &list {
        let text = format!("domain: {domain}\ndescriptors: {descriptors}\n");
        fs::write(folder.path().join(format!("{domain}.yaml")), text)?;
    }
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::ready_on(store, followed(folder.path(), true)).await?;
    // A call of descriptors with `;` between, and whether it is over a limit.
    let calls = [
        ("two", "kind=ads,to=1;to=1", "OK"),
        ("two", "kind=ads,to=1;to=2", "OVER_LIMIT"),
        ("two", "kind=ads,to=2;to=2", "OK"),
        ("two", "to=1", "OK"),
        ("three", "ip=50.0.0.1", "OK"),
        ("three", "ip=50.0.0.5", "OVER_LIMIT"),
        ("four", "a=x,b=y", "OK"),
        ("four", "a=x", "OVER_LIMIT"),
        ("five", "ldap=x", "OK"),
        ("five", "ldap=x", "OK"),
        ("five", "azure=x", "OK"),
        ("five", "azure=x", "OVER_LIMIT"),
        ("six", "service=s,user=a", "OK"),
        ("six", "service=s,user=a", "OK"),
        ("six", "service=s,user=b", "OK"),
        ("six", "service=s,user=b", "OVER_LIMIT"),
        ("seven", "k1=v1,user=u;k2=v2,user=u", "OK"),
        ("seven", "k1=v1,user=u;k2=v2,user=u", "OK"),
        ("seven", "k1=v1,user=u", "OK"),
        ("seven", "k1=v1,user=u", "OVER_LIMIT"),
        ("nine", "v=value1", "OVER_LIMIT"),
        ("nine", "v=other", "OK"),
        ("nine", "p=/api/123/do", "OVER_LIMIT"),
        ("nine", "p=/api/123/undo/", "OK"),
        ("nine", "r=/a/1/b/2/c", "OVER_LIMIT"),
        ("nine", "r=/a/1/b/c", "OK"),
        ("eleven", "files=files/a", "OK"),
        ("eleven", "files=files/b", "OK"),
        ("eleven", "files=files/c", "OVER_LIMIT"),
        ("eleven", "alone=alone/a", "OK"),
        ("eleven", "alone=alone/a", "OK"),
        ("eleven", "alone=alone/b", "OK"),
        ("eleven", "mid=m1d", "OK"),
        ("eleven", "mid=m2d", "OK"),
        ("eleven", "mid=m3d", "OVER_LIMIT"),
    ];
    for (nth, (domain, descriptors, expected)) in calls.into_iter().enumerate() {
        let descriptors = descriptors.split(';').map(|entries| {
            let entries = entries.split(',').filter_map(|entry| entry.split_once('='));
            let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
            json!({"entries": entries.collect::<Vec<_>>()})
        });
        let call = json!({"domain": domain, "descriptors": descriptors.collect::<Vec<_>>()});
        let reply = service.post("/json", call.to_string()).send().await?;
        let answer = reply.json()?;
        assert_eq!(answer["overallCode"], expected, "{nth}: {call}: {answer}");
    }
    Ok(())
}

/// As a kubelet updates a mounted volume: a new folder, and one link swapped.
#[tokio::test]
async fn a_swapped_volume_is_read_as_a_whole() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let version = |name: &str, requests: u32| -> Result<()> {
        fs::create_dir(at(name))?;
        fs::write(at(name).join("shop.yaml"), shop(requests))?;
        symlink(name, at("..next"))?;
        Ok(fs::rename(at("..next"), at("..data"))?)
    };
    version("..one", 10)?;
    symlink("..data/shop.yaml", at("shop.yaml"))?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::ready_on(store, followed(folder.path(), true)).await?;
    quota_becomes(&service, 10).await?;
    version("..two", 20)?;
    quota_becomes(&service, 20).await
}

#[tokio::test]
async fn the_limiter_does_not_start_with_an_invalid_configuration() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("missing");
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::start(store, followed(&missing, true))?;
    let error = service.end().await?.err().context("an error")?;
    assert!(matches!(error, RunError::Limits(_)));
    assert!(error.to_string().contains("missing"), "{error}");

    fs::write(
        folder.path().join("shop.yaml"),
        "domain: shop\ndescriptor: []\n",
    )?;
    let store = open(&StoreUrl::Memory, Options::default())?;
    let service = Service::start(store, followed(folder.path(), true))?;
    let error = service.end().await?.err().context("an error")?.to_string();
    assert!(error.contains("did you mean `descriptors`?"), "{error}");
    Ok(())
}

/// A limiter that follows a folder with `shop.yaml`, whose quota of 10 is in force.
async fn followed_shop() -> Result<(TempDir, Server, Service)> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("shop.yaml"), shop(10))?;
    let server = Server::start(Engine::Valkey).await?;
    let service = Service::ready_on(server.store()?, followed(folder.path(), false)).await?;
    quota_becomes(&service, 10).await?;
    Ok((folder, server, service))
}

/// An edit of the limits by hand.
async fn edit(store: &dyn Store, to: impl FnOnce(&mut Policy)) -> Result<()> {
    let domain = name("shop");
    let base = store.read(&domain, Overrides::All).await?;
    let mut policy = base.policy().context("limits")?.clone();
    to(&mut policy);
    let by = Signature {
        author: "ann".to_owned(),
        reason: "at night".to_owned(),
    };
    let edit = Edit {
        domain: &domain,
        base: &base,
        change: Change::Limits(&policy),
        by: &by,
    };
    store.write(&edit).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn files_give_way_to_edits_in_the_store() -> Result<()> {
    let (folder, server, first) = followed_shop().await?;
    let path = folder.path().join("shop.yaml");
    let settings = followed(folder.path(), false);
    let second = Service::ready_on(server.store()?, settings.clone()).await?;

    // Both limiters follow, and only one edit is made.
    fs::write(&path, shop(20))?;
    quota_becomes(&first, 20).await?;
    quota_becomes(&second, 20).await?;
    let history = first.store.history(&name("shop"), 10).await?;
    let whose: Vec<_> = history
        .iter()
        .map(|e| (e.by.author.as_str(), e.by.reason.as_str()))
        .collect();
    assert_eq!(whose, [("limiter", "--rls-config"); 2]);

    // A pause is no edit of limits, and stays.
    edit(&*first.store, |policy| {
        policy.limits[0].paused = Some(policy::Pause { until_ms: None });
    })
    .await?;
    fs::write(&path, shop(25))?;
    until(
        "the limits changed beside the pause",
        PATIENCE,
        async || {
            let stored = first.store.read(&name("shop"), Overrides::All).await.ok()?;
            let limit = stored.policy()?.limits.first()?;
            (limit.quota.parameters().rate.units == 25 && limit.paused.is_some()).then_some(())
        },
    )
    .await?;
    edit(&*first.store, |policy| policy.limits[0].paused = None).await?;

    // Another rate is one: the files are ignored until their limits are applied again.
    let other = |requests: u64| {
        let rate = format!(
            "domain: shop\nlimits: [{{name: user, descriptor: [user], algorithm: fixed_window, rate: {requests}/d}}]"
        );
        limits_file::read("", rate.as_bytes())
    };
    let other = |requests| other(requests).map_err(|problems| anyhow::anyhow!("{problems}"));
    let by_hand = other(99)?;
    edit(&*first.store, |policy| *policy = by_hand).await?;
    fs::write(&path, shop(30))?;
    error_becomes(&first, Some("edited by ann (revision ")).await?;
    quota_becomes(&first, 99).await?;
    let restarted = Service::ready_on(server.store()?, settings).await?;
    error_becomes(&restarted, Some("edited by ann")).await?;
    quota_becomes(&restarted, 99).await?;
    let as_files = other(30)?;
    edit(&*first.store, |policy| *policy = as_files).await?;
    error_becomes(&first, None).await?;
    error_becomes(&restarted, None).await?;
    fs::write(&path, shop(40))?;
    quota_becomes(&first, 40).await?;
    Ok(())
}

/// Pauses are no edits of limits for a limiter that starts after them either, however many there are.
#[tokio::test]
#[ignore = "needs a server"]
async fn files_give_way_to_no_pause_of_before_a_restart() -> Result<()> {
    let (folder, server, first) = followed_shop().await?;
    let path = folder.path().join("shop.yaml");
    let settings = followed(folder.path(), false);
    let _ = first.end().await?;
    let store = server.store()?;
    for day in 1..=40 {
        edit(&*store, |policy| {
            let until_ms = Some(4_070_908_800_000 + day);
            policy.limits[0].paused = Some(policy::Pause { until_ms });
        })
        .await?;
    }
    edit(&*store, |policy| policy.limits[0].paused = None).await?;
    fs::write(&path, shop(27))?;
    let later = Service::ready_on(server.store()?, settings).await?;
    quota_becomes(&later, 27).await
}

/// Even after the pause before limits are published again.
#[tokio::test]
#[ignore = "needs a server"]
async fn an_invalid_file_stays_an_error_until_it_is_corrected() -> Result<()> {
    let (folder, _server, service) = followed_shop().await?;
    let path = folder.path().join("shop.yaml");
    fs::write(&path, "domain: shop\ndescriptor: []\n")?;
    error_becomes(&service, Some("did you mean `descriptors`?")).await?;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let report = service.admin("/readyz").send().await?.json()?;
    let error = report["limits_file_error"].as_str().unwrap_or_default();
    assert!(error.contains("did you mean"), "{report}");
    quota_becomes(&service, 10).await?;
    fs::write(&path, shop(20))?;
    quota_becomes(&service, 20).await?;
    error_becomes(&service, None).await
}
