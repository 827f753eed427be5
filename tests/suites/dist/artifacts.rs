//! The folder of artefacts, and the programs that read them.

pub use harness::variable;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The folder of artefacts.
pub fn folder() -> PathBuf {
    variable("RL_TEST_ARTIFACTS")
}

/// A file of the checkout.
pub fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs a command and returns what it prints.
pub fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{stdout}{stderr}");
    stdout
}

/// The only artefact whose name has this beginning and end, as `cargo xtask dist` names it.
pub fn artifact(start: &str, end: &str) -> PathBuf {
    let found = std::fs::read_dir(folder()).unwrap();
    let mut found: Vec<PathBuf> = found
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(start) && name.ends_with(end)
        })
        .collect();
    assert_eq!(found.len(), 1, "{start}*{end}: {found:?}");
    found.remove(0)
}

/// Unpacks a tar archive, compressed or not.
pub fn unpack(archive: &Path, into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    let mut tar = Command::new("tar");
    output(tar.arg("-xf").arg(archive).arg("-C").arg(into));
}

/// The names in an archive.
pub fn names(archive: &Path) -> Vec<String> {
    let list = output(Command::new("tar").arg("-tf").arg(archive));
    list.lines().map(str::to_owned).collect()
}

/// The version in the file names.
pub fn version() -> String {
    let manifest = std::fs::read_to_string(file("Cargo.toml")).unwrap();
    let line = manifest.lines().find(|line| line.starts_with("version"));
    line.unwrap().split('"').nth(1).unwrap().to_owned()
}

/// The folder of this machine's programs, unpacked from their archive.
pub fn programs(into: &Path) -> PathBuf {
    let end = format!("-{}-linux.tar.gz", std::env::consts::ARCH);
    unpack(&artifact("rl-", &end), into);
    into.join(format!("rl-{}", version()))
}

/// Reads a JSON file.
pub fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The digest of an artefact in `digests.txt`.
pub fn digest(name: &str) -> String {
    let lines = std::fs::read_to_string(folder().join("digests.txt")).unwrap();
    let line = lines.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no digest of {name}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned()
}
