//! Follows docs/install.md to the letter, in an empty folder without cargo.

use std::path::Path;
use std::process::Command;

use crate::artifacts::{file, folder, output, variable};

/// The first two blocks of commands of a section.
fn commands(section: &str) -> String {
    let page = std::fs::read_to_string(file("docs/install.md")).unwrap();
    let section = page.split(&format!("## {section}\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    blocks.take(2).collect::<Vec<&str>>().join("\n")
}

/// A shell in a network namespace of its own, where the documented ports are free.
fn shell(script: &str, dir: &Path) -> Command {
    let mut shell = Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        shell.args(["--user", "--map-root-user"]);
    }
    // The shell is the first process of its own PID namespace, so nothing outlives it.
    shell.args(["--net", "--pid", "--fork", "--kill-child", "bash", "-euc"]);
    shell.arg(format!("ip link set lo up\n{script}"));
    let mut path = std::env::join_paths([dir.join("bin")]).unwrap();
    path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    shell.env("PATH", path).env_remove("RL_STORE");
    shell
}

#[test]
fn from_an_empty_folder_to_a_limited_request() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, empty) = (dir.path().join("bin"), dir.path().join("empty"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(&empty).unwrap();
    for (name, program) in [
        ("envoy", "RL_TEST_ENVOY"),
        ("valkey-server", "RL_TEST_VALKEY"),
    ] {
        let program = std::fs::canonicalize(variable(program)).unwrap();
        std::os::unix::fs::symlink(program, bin.join(name)).unwrap();
    }
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(&path, empty.join(path.file_name().unwrap())).unwrap();
    }
    let started = std::time::Instant::now();
    let script = commands("The first limited request");
    assert!(
        script.contains("sha256sum") && script.contains("rlctl inspect"),
        "{script}"
    );
    let shown = output(shell(&script, dir.path()).current_dir(&empty));
    println!(
        "from the artefacts to a denial: {:?}\n{shown}",
        started.elapsed()
    );
    let statuses = shown.lines().find(|line| line.contains("200 ")).unwrap();
    assert!(statuses.contains("429 "), "{shown}");
    assert!(shown.contains("of 20"), "rlctl shows the bucket: {shown}");
}
