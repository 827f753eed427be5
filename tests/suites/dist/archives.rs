//! Archives, checksums and the bill of materials.

use std::process::Command;

use serde_json::json;

use crate::artifacts::{artifact, folder, json, names, output, programs, variable, version};

#[test]
fn checksums_hold_and_cover_every_artefact() {
    let mut check = Command::new("sha256sum");
    output(
        check
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(folder()),
    );
    let sums = std::fs::read_to_string(folder().join("SHA256SUMS")).unwrap();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "SHA256SUMS" || sums.contains(&format!("  {name}\n")),
            "{name}"
        );
    }
}

#[test]
fn the_archive_has_programs_manual_completions_and_licences() {
    let dir = tempfile::tempdir().unwrap();
    let home = programs(dir.path());
    for path in [
        "filter.wasm",
        "librl_filter.so",
        "envoy.yaml",
        "limits.yaml",
        "limits.schema.json",
        "systemd/limiter.service",
        "helm/Chart.yaml",
        "helm/templates/limiter.yaml",
        "helm/files/limiter.yaml",
        "helm/files/dashboard.json",
        "completions/bash/rlctl",
        "completions/zsh/_rlctl",
        "completions/fish/rlctl.fish",
        "man/man1/rlctl.1",
        "man/man1/rlctl-apply.1",
        "man/man1/limiter.1",
        "LICENSE",
        "LICENSES-OF-RUST.html",
    ] {
        let size = std::fs::metadata(home.join(path)).map(|file| file.len());
        assert!(size.is_ok_and(|size| size > 100), "{path}");
    }
    let licences = std::fs::read_to_string(home.join("LICENSES-OF-LIBRARIES.txt")).unwrap();
    for library in [
        "tokio 1",
        "ring 0",
        "libmimalloc-sys 0",
        "\nLLVM libunwind\n",
        "\nmusl\n",
    ] {
        assert!(licences.contains(library), "{library}");
    }
    let page = Command::new("man").arg("--version").output().is_ok();
    if page {
        let page = home.join("man/man1/rlctl.1");
        let shown = output(Command::new("man").arg("-l").arg(page));
        assert!(shown.contains("rlctl"), "{shown}");
    }
}

#[test]
fn the_programs_are_static_and_of_this_version() {
    let dir = tempfile::tempdir().unwrap();
    let home = programs(dir.path());
    for program in ["limiter", "rlctl"] {
        let shown = output(Command::new(home.join(program)).arg("--version"));
        assert_eq!(shown.trim(), format!("{program} {}", version()));
        // A dynamic program would name the loader of a C library.
        let bytes = std::fs::read(home.join(program)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for loader in ["/lib64/ld-linux", "/lib/ld-linux", "/lib/ld-musl"] {
            assert!(!text.contains(loader), "{program} needs {loader}");
        }
    }
}

/// Images of Envoy are of several distributions, or of none.
#[test]
fn the_module_needs_an_old_glibc_and_no_library_besides() {
    let dir = tempfile::tempdir().unwrap();
    let module = std::fs::read(programs(dir.path()).join("librl_filter.so")).unwrap();
    let text = String::from_utf8_lossy(&module);
    let versions = text.split("GLIBC_2.").skip(1).map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().unwrap()
    });
    let newest = versions.max().unwrap();
    assert!(newest <= 28, "glibc 2.{newest}");
    for library in ["libgcc_s.so", "libstdc++.so", "libunwind.so"] {
        assert!(!text.contains(library), "{library}");
    }
    let alone = artifact("librl_filter-", &format!("-{}.so", std::env::consts::ARCH));
    assert!(std::fs::read(alone).unwrap() == module);
}

/// Otherwise two builds could not give the same bytes.
#[test]
fn archives_carry_one_time_and_no_owner() {
    for archive in [
        artifact("rl-", &format!("-{}-linux.tar.gz", std::env::consts::ARCH)),
        artifact("rl-limiter-", ".oci.tar"),
        artifact("rl-filter-", ".oci.tar"),
        artifact("rl-module-", ".oci.tar"),
    ] {
        let mut tar = Command::new("tar");
        tar.args(["-tvf", archive.to_str().unwrap(), "--numeric-owner"]);
        let list = output(tar.args(["--full-time", "--utc"]));
        let field = |line: &str, n: usize| line.split_whitespace().nth(n).unwrap().to_owned();
        let first = list.lines().next().unwrap();
        for line in list.lines() {
            assert_eq!(field(line, 1), "0/0", "{line}");
            assert_eq!(field(line, 3), field(first, 3), "{line}");
            assert_eq!(field(line, 4), field(first, 4), "{line}");
        }
        let mut sorted = names(&archive);
        sorted.sort();
        assert_eq!(names(&archive), sorted);
    }
}

#[test]
fn the_bill_of_materials_is_valid_and_names_what_is_linked() {
    let path = artifact("rl-", ".cdx.json");
    let check = "import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)";
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", variable("RL_TEST_DIST_CHECKERS"));
    output(python.args(["-c", check]).arg(&path));
    let bill = json(&path);
    let components = bill["components"].as_array().unwrap();
    let named = |name: &str| {
        let found = components
            .iter()
            .find(|component| component["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(named("ring")["scope"], "required");
    assert!(named("ring")["hashes"][0]["content"].is_string());
    assert_eq!(named("cc")["scope"], "excluded", "it only compiles");
    assert_eq!(named("rlctl")["type"], "application");
    assert!(named("rlctl")["purl"].is_null(), "no package of a registry");
    let root = &bill["dependencies"][0]["dependsOn"];
    let own = |name: &str| format!("{name}@{}", version());
    assert_eq!(
        *root,
        json!(["limiter", "ctl", "filter", "module"].map(own))
    );
}
