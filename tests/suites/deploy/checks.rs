//! Files of the checkout, and the programs that check them.

pub use harness::variable;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A file of the checkout.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Its text.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files of a folder below `deploy`, as paths in the checkout.
pub fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir(file(folder))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(ending))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} has no {ending}");
    files
}

/// The documents of a YAML file.
pub fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The only document of this kind and name in some files.
pub fn named(files: &[String], kind: &str, name: &str) -> Value {
    let all = files.iter().flat_map(|path| documents(path));
    let mut found = all.filter(|doc| doc["kind"] == kind && doc["metadata"]["name"] == name);
    let first = found
        .next()
        .unwrap_or_else(|| panic!("no {kind} {name} in {files:?}"));
    assert!(found.next().is_none(), "two of {kind} {name}");
    first
}

/// Runs a Python module that checks files, as `cargo xtask test` has installed it.
pub fn python(module: &str) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-m", module])
        .env("PYTHONPATH", variable("RL_TEST_CHECKERS"));
    command
}

/// Runs a check that must succeed; returns its output.
pub fn passes(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}:\n{said}");
    said
}

/// Runs a check that must fail; returns its output.
pub fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(!output.status.success(), "{command:?} was content:\n{said}");
    said
}
