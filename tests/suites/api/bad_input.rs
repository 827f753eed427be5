//! Requests that schemathesis makes from the description, valid and invalid, with a fixed seed.

use std::process::Command;

use crate::service::{Service, document, variable};

/// Requests per operation.
const CASES: &str = "60";

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";

/// The description, with a domain that exists, so that most valid checks are decided.
fn description() -> String {
    let text = std::fs::read_to_string(document("openapi.yaml")).unwrap();
    let any = "\n        domain: {$ref: \"#/components/schemas/Domain\"}\n";
    assert_eq!(
        text.matches(any).count(),
        4,
        "a check, a batch, a call, a snapshot"
    );
    text.replace(any, "\n        domain: {enum: [shop]}\n")
}

fn run(url: &str, paths: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("openapi.yaml"), description()).unwrap();
    let mut command = Command::new("python3");
    command
        .args(["-m", "schemathesis.cli", "run", "openapi.yaml"])
        .args(["--url", url, "--include-path-regex"])
        .args(paths)
        // It uses the filter's encoding; other tests send it invalid input.
        .args(["--exclude-operation-id", "report"])
        .args(["--seed", "17", "--max-examples", CASES])
        .args(["--phases", "examples,coverage,fuzzing", "--checks", CHECKS])
        .args(["--request-timeout", "20", "--generation-database", "none"])
        .args(["--suppress-health-check", "all", "--no-color"])
        .current_dir(dir.path())
        .env("PYTHONPATH", variable("RL_TEST_SCHEMATHESIS"));
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[tokio::test]
async fn no_input_breaks_the_limiter_or_its_description() {
    let service = Service::start(&["--store-timeout", "10s"]).await;
    let [data, admin] = [service.limiter.url(), service.limiter.admin_url()];
    // The first two send half of the requests each.
    let parts: [(_, &[_]); 3] = [
        (&data, &["^/v1/check$"]),
        (
            &data,
            &["^/(v1/|json)", "--exclude-path-regex", "^/v1/check$"],
        ),
        (&admin, &["^/(healthz|readyz|metrics)$"]),
    ];
    let running = parts.map(|(url, paths)| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || run(&url, paths))
    });
    for part in running {
        let (content, said) = part.await.unwrap();
        assert!(content && said.contains(" generated, "), "{said}");
    }
    let health = format!("{}/v1/health", service.limiter.url());
    let health = service.client.get(&health).send().await.unwrap();
    assert_eq!(health.status, 200);
}
