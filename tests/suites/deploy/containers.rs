//! `deploy/docker`: checks that need no image build.

use std::process::Command;

use crate::checks::{documents, file, files, passes, python, text, variable};

#[test]
fn the_dockerfiles_follow_the_rules() {
    for path in files("deploy/docker", ".Dockerfile") {
        let hadolint = variable("RL_TEST_CHECKERS").join("bin/hadolint");
        passes(Command::new(hadolint).arg(file(&path)));
    }
}

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
fn compose_mounts_files_that_are_there_and_builds_what_is_here() {
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
    let build = &compose["services"]["limiter"]["build"];
    let context = file("deploy/docker").join(build["context"].as_str().unwrap());
    assert!(
        context
            .join(build["dockerfile"].as_str().unwrap())
            .is_file()
    );
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

/// cargo reads the manifest of every member, whatever it builds.
#[test]
fn the_limiters_image_is_built_from_all_that_cargo_needs() {
    let kept = text("deploy/docker/limiter.Dockerfile.dockerignore");
    let kept: Vec<&str> = kept
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let manifest = text("Cargo.toml");
    let members = manifest.split("members = [").nth(1).unwrap();
    let members = members.split(']').next().unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let folder = member.split('/').next().unwrap();
        assert!(kept.contains(&folder), "{member} is left out");
    }
    for path in kept {
        assert!(file(path).exists(), "{path} is not there");
    }
}

#[test]
fn the_filters_image_holds_one_file_under_the_name_that_istio_looks_for() {
    let dockerfile = text("deploy/docker/filter.Dockerfile");
    let lines: Vec<&str> = dockerfile
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    assert_eq!(
        lines,
        ["FROM scratch", "COPY target/filter.wasm /plugin.wasm"]
    );
    let kept = text("deploy/docker/filter.Dockerfile.dockerignore");
    assert_eq!(kept, "*\n!target/filter.wasm\n");
}

#[test]
fn images_are_of_this_version_and_of_the_rust_that_is_needed() {
    let manifest = text("Cargo.toml");
    let field = |name: &str| {
        let line = manifest
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let (version, rust) = (field("version"), field("rust-version"));
    assert!(text("deploy/docker/limiter.Dockerfile").contains(&format!("FROM rust:{rust}-")));
    for path in [
        "deploy/docker/compose.yaml",
        "deploy/docker/filter.Dockerfile",
        "deploy/istio/gateway.yaml",
        "deploy/istio/sidecar.yaml",
        "deploy/kubernetes/kustomization.yaml",
        "deploy/kubernetes/limiter.yaml",
    ] {
        assert!(
            text(path).contains(&version),
            "{path} names another version"
        );
    }
}
