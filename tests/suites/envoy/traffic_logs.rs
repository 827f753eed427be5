//! Logs that a real Envoy wrote under load, replayed.

use serde_json::{Value, json};

use crate::stage::{at_once, eventually, limits, statuses};

/// Envoy's default text, and the same as JSON with the user.
fn logs(manager: &mut Value) {
    let stdout = |format: Option<Value>| {
        let kind = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";
        let mut config = json!({"@type": kind});
        if let Some(format) = format {
            config["log_format"] = json!({"json_format": format});
        }
        json!({"name": "stdout", "typed_config": config})
    };
    let fields = json!({
        "start_time": "%START_TIME%", "method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "authority": "%REQ(:AUTHORITY)%", "response_code": "%RESPONSE_CODE%", "duration": "%DURATION%",
        "bytes_sent": "%BYTES_SENT%", "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
        "headers": {"x-user-id": "%REQ(X-USER-ID)%"},
    });
    manager["access_log"] = json!([stdout(None), stdout(Some(fields))]);
}

#[tokio::test]
async fn a_replay_denies_what_envoy_denied() {
    let stage = limits(&[
        "{name: per-path, match: {path: /api/**}, per: [path, remote_address], rate: 40/1h}",
        "{name: per-user, per: [user], if_missing: skip, rate: 25/1h}",
    ])
    .config(|config| config.manager_edit(logs).unwrap())
    .await;
    let mut sent = 0;
    let mut denied = 0;
    for user in ["alice", "bob", "carol"] {
        for path in ["/api/a", "/api/b?x=1", "/static"] {
            let request = stage.get(path, user);
            let (passed, refused) = at_once(&request, 12).await;
            let then = statuses(&request, 3).await;
            sent += 15;
            denied += refused + then.iter().filter(|status| **status == 429).count();
            assert_eq!(passed + refused, 12);
        }
    }
    assert!(denied > 20, "{denied}");
    // Not those by which the harness sees that Envoy is there.
    let written = |paths: [&str; 2]| -> Vec<String> {
        let log = stage.envoy().process().log();
        let ours = |line: &&str| paths.iter().any(|path| line.contains(path));
        log.lines().filter(ours).map(ToOwned::to_owned).collect()
    };
    let (text, json) = eventually("Envoy has written all lines", async || {
        let text = written(["\"GET /api/", "\"GET /static"]);
        let json = written(["\"path\":\"/api/", "\"path\":\"/static"]);
        (text.len() == sent && json.len() == sent).then_some((text, json))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let replayed = |name: &str, lines: &[String], more: &[&str]| -> Value {
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        let path = path.display().to_string();
        let words = [&["replay", &path, "-o", "json"], more].concat();
        serde_json::from_str(&stage.rlctl(&words)).unwrap()
    };
    let by_json = replayed("json.log", &json, &["--entry", "user=/headers/x-user-id"]);
    assert_eq!(by_json["log"]["formats"], json!(["json"]));
    assert_eq!(by_json["requests"], sent);
    assert_eq!(by_json["denied_in_log"], denied);
    assert_eq!(by_json["denied"], denied);
    // The text has no user, so that limit applies to none of its requests: by path alone as many are over
    // as beyond 40 of each.
    let by_text = replayed("text.log", &text, &[]);
    assert_eq!(by_text["log"]["formats"], json!(["envoy"]));
    assert_eq!(
        (&by_text["requests"], &by_text["denied_in_log"]),
        (&json!(sent), &json!(denied))
    );
    let limits = by_text["limits"].as_array().unwrap();
    let per_user = limits.iter().find(|limit| limit["name"] == "per-user");
    assert_eq!(per_user.unwrap()["requests"], 0);
    assert_eq!(by_text["denied"], 2 * (45 - 40));
}
