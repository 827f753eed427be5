//! `deploy/docker`: checks that need no container engine.

use crate::checks::{documents, file, passes, python, text};

#[test]
fn compose_is_of_its_schema() {
    let mut check = python("check_jsonschema");
    passes(
        check
            .args(["--builtin-schema", "vendor.compose-spec"])
            .arg(file("deploy/docker/compose.yaml")),
    );
}

#[test]
fn compose_mounts_files_that_are_there() {
    let compose = documents("deploy/docker/compose.yaml").remove(0);
    for service in ["limiter", "envoy"] {
        for volume in compose["services"][service]["volumes"].as_array().unwrap() {
            let from = volume.as_str().unwrap().split(':').next().unwrap();
            let built = from == "../../target/filter.wasm";
            assert!(
                built || file("deploy/docker").join(from).is_file(),
                "{service} mounts {from}"
            );
        }
    }
}

/// The names that compose's Envoy looks up are services of the same file.
#[test]
fn compose_has_every_host_that_envoy_calls() {
    let compose = documents("deploy/docker/compose.yaml").remove(0);
    let gateway = text("deploy/envoy/gateway.yaml");
    for name in ["limiter", "service"] {
        assert!(
            gateway.contains(&format!("address: {name}, port_value")),
            "{name}"
        );
        assert!(compose["services"][name].is_object(), "{name}");
    }
}

#[test]
fn images_are_of_this_version() {
    let manifest = text("Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("version"));
    let version = line.unwrap().split('"').nth(1).unwrap().to_owned();
    for path in [
        "deploy/docker/compose.yaml",
        "deploy/kubernetes/kustomization.yaml",
        "deploy/kubernetes/base/kustomization.yaml",
        "deploy/kubernetes/base/limiter.yaml",
        "deploy/kubernetes/components/envoy-gateway/gateway.yaml",
        "deploy/kubernetes/components/gitops/rlctl.yaml",
        "deploy/kubernetes/components/istio/gateway.yaml",
        "deploy/kubernetes/components/istio/sidecar.yaml",
        "deploy/kubernetes/components/istio/traffic-extension.yaml",
        "deploy/kubernetes/components/istio/waypoint.yaml",
    ] {
        assert!(
            text(path).contains(&version),
            "{path} names another version"
        );
    }
}
