//! Runs the commands of README and of the documentation's index as a new user: in a fresh shell, in a
//! folder that holds a release, on the documented ports. The test has a network namespace of its own, so
//! that no other program uses these ports.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use harness::Programs;

use crate::checks::{file, passes, text};

/// The port of the reader's own service.
const SERVICE: u16 = 8080;

/// The lines of all blocks of a kind.
fn lines(document: &str, fence: &str) -> Vec<String> {
    let (mut lines, mut inside) = (Vec::new(), false);
    for line in document.lines() {
        match line {
            line if line.starts_with("```") => inside = line == fence,
            line if inside && !line.is_empty() => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

/// Brings up the loopback interface of a new network namespace.
const LOOPBACK: &str = "import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))";

/// Options for `unshare` that this user may use; `None` if it may not run it.
fn unshare() -> Option<Vec<&'static str>> {
    // When the first process ends, the kernel ends all others of the namespace.
    let own = ["--net", "--pid", "--fork", "--kill-child"];
    let ways = [own.to_vec(), [&own[..], &["--map-root-user"]].concat()];
    ways.into_iter().find(|way| {
        let mut unshare = Command::new("unshare");
        let tried = unshare.args(way).args(["python3", "-c", LOOPBACK]).output();
        tried.is_ok_and(|tried| tried.status.success())
    })
}

/// A folder with the archive of a release.
fn release(programs: &Programs, dir: &Path) {
    let name = "rl-0.1.0";
    let folder = dir.join(name);
    std::fs::create_dir(&folder).unwrap();
    for (from, to) in [
        (&programs.limiter, "limiter"),
        (&programs.rlctl, "rlctl"),
        (&programs.filter, "filter.wasm"),
        (&file("limits.yaml"), "limits.yaml"),
    ] {
        std::fs::copy(from, folder.join(to)).unwrap();
    }
    // A release has the filter beside the file, and a busy machine needs more than 20 ms.
    let envoy = text("envoy.yaml");
    let envoy = envoy.replace("target/filter.wasm", "filter.wasm");
    let slow = envoy.replace("\"timeout\": \"20ms\"", "\"timeout\": \"2s\"");
    assert_ne!(slow, envoy);
    std::fs::write(folder.join("envoy.yaml"), slow).unwrap();
    // Where `cargo xtask dist` leaves it.
    std::fs::create_dir_all(dir.join("target/artifacts")).unwrap();
    let archive = format!(
        "target/artifacts/{name}-{}-linux.tar.gz",
        std::env::consts::ARCH
    );
    let mut tar = Command::new("tar");
    // Programs for tests are large.
    passes(
        tar.current_dir(dir)
            .args(["-I", "gzip -1", "-cf", &archive, name]),
    );
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir_all(dir.join("www/api")).unwrap();
    std::fs::write(dir.join("www/api/hello"), "hello").unwrap();
}

/// The lines as a script that prints each line before it runs it; each must succeed.
fn script(lines: &[String]) -> String {
    let mut script = String::new();
    for line in lines {
        let shown = line.replace('\'', "'\\''");
        let _ = writeln!(script, "echo; echo '@@ {shown}'");
        let command = line.split(" #").next().unwrap().trim_end();
        if command.ends_with('&') {
            let _ = writeln!(script, "{command}");
        } else {
            let _ = writeln!(script, "{command} || {{ echo \"@@ FAILED $?\"; exit 1; }}");
        }
    }
    script
}

/// Runs a script as a new user pastes it, with the user's service running.
fn run(programs: &Programs, script: &str, dir: &Path) -> Output {
    std::fs::write(dir.join("commands.sh"), script).unwrap();
    let folders = [&programs.valkey, &programs.envoy].map(|program| program.parent().unwrap());
    let path = std::env::join_paths(
        folders
            .into_iter()
            .chain(["/usr/local/bin", "/usr/bin", "/bin"].map(Path::new)),
    );
    let outer = format!(
        "python3 -c \"$LOOPBACK\" || exit 9
python3 -m http.server {SERVICE} --bind 127.0.0.1 --directory www > service.log 2>&1 &
service=$!
for _ in $(seq 300); do (: <>/dev/tcp/127.0.0.1/{SERVICE}) 2>/dev/null && break; sleep 0.1; done
env -i PATH=\"$READER\" HOME=\"$PWD\" LANG=C.UTF-8 timeout 400 bash < commands.sh 2>&1
status=$?
kill $service
exit $status"
    );
    Command::new("unshare")
        .args(unshare().unwrap())
        .args(["bash", "-c", &outer])
        .env("LOOPBACK", LOOPBACK)
        .env("READER", path.unwrap())
        .current_dir(dir)
        .output()
        .unwrap()
}

/// The output of a command.
fn said<'a>(all: &'a str, command: &str) -> &'a str {
    let mut parts = all.split("@@ ").filter(|part| part.starts_with(command));
    parts
        .next()
        .unwrap_or_else(|| panic!("no {command} in {all}"))
}

#[test]
fn the_commands_of_the_readme_and_the_docs_index_work() {
    if unshare().is_none() {
        println!("skipped: no network namespace can be made here");
        return;
    }
    let mut readme = lines(&text("README.md"), "```sh");
    let stop = readme.pop().unwrap();
    assert_eq!(stop, "kill $(jobs -p)");
    let index = lines(&text("docs/README.md"), "```sh");
    assert!(readme.len() >= 10 && index.len() >= 10);
    // The index assumes the limits of limits.yaml.
    let apply = "rlctl apply -f limits.yaml --yes".to_owned();
    let all = readme.into_iter().chain([apply]).chain(index).chain([stop]);
    let all: Vec<String> = all.collect();

    let programs = Programs::from_env().unwrap();
    let dir = tempfile::tempdir().unwrap();
    release(&programs, dir.path());
    let output = run(&programs, &script(&all), dir.path());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && !printed.contains("@@ FAILED"),
        "{printed}"
    );

    let statuses = said(&printed, "curl").lines().nth(1).unwrap();
    let statuses: Vec<&str> = statuses.split_whitespace().collect();
    assert_eq!(statuses.len(), 40, "{printed}");
    assert_eq!(statuses[..20], ["200"; 20], "{printed}");
    let denied = statuses.iter().filter(|status| **status == "429").count();
    assert!(denied >= 15, "{printed}");
    assert!(
        said(&printed, "rlctl inspect").contains("of 20"),
        "{printed}"
    );
    assert!(
        said(&printed, "rlctl history").contains("REVISION"),
        "{printed}"
    );
}

/// The blocks of a kind, as they are printed.
fn blocks(document: &str, fence: &str) -> Vec<String> {
    let fence = format!("{fence}\n");
    let parts = document.split(&fence).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap().to_owned())
        .collect()
}

/// A race would show at least once: nothing here waits but the commands themselves.
#[test]
fn the_first_blocks_of_the_readme_work_each_time_they_are_pasted() {
    if unshare().is_none() {
        println!("skipped: no network namespace can be made here");
        return;
    }
    let readme = blocks(&text("README.md"), "```sh");
    let [install, first, next] = &readme[..] else {
        panic!("{readme:?}");
    };
    let (first_part, curl) = first.trim_end().rsplit_once('\n').unwrap();
    assert!(curl.starts_with("curl "), "{curl}");
    assert!(
        next.starts_with("rlctl inspect") && next.contains("\nrlctl denials\n"),
        "{next}"
    );
    let pasted = format!(
        "{install}{first_part}\necho '@@ first'\n{curl}\necho\necho '@@ again'\n{curl}\necho\necho '@@ next'\n{next}"
    );
    let programs = Programs::from_env().unwrap();
    let kept = tempfile::tempdir().unwrap();
    release(&programs, kept.path());
    for _ in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        passes(
            Command::new("cp")
                .arg("-r")
                .arg(kept.path().join("."))
                .arg(dir.path()),
        );
        let output = run(&programs, &pasted, dir.path());
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && !printed.contains("error"),
            "{printed}"
        );
        let statuses = |part: &str| -> Vec<String> {
            let line = said(&printed, part).lines().nth(1).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let denied = |statuses: &[String]| statuses.iter().filter(|s| *s == "429").count();
        let pasted_first = statuses("first");
        assert_eq!(pasted_first.len(), 40, "{printed}");
        assert_eq!(pasted_first[..20], ["200"; 20], "{printed}");
        assert!(denied(&pasted_first) >= 15, "{printed}");
        // A unit comes back every three seconds.
        assert!(denied(&statuses("again")) >= 30, "{printed}");
        let next = said(&printed, "next");
        assert!(
            next.contains("of 20") && next.contains("user=alice  "),
            "{printed}"
        );
    }
}

/// Other commands build from the sources, which takes long; the task runner's own tests cover them.
#[test]
fn other_commands_of_the_readme_are_tasks() {
    for line in lines(&text("README.md"), "```console") {
        let task = line.strip_prefix("$ cargo xtask ");
        let task = task.unwrap_or_else(|| panic!("{line}: not run by any test"));
        let task = task.split_whitespace().next().unwrap();
        let tasks = text("xtask/src/main.rs").to_lowercase();
        assert!(tasks.contains(&format!("    {task}(")), "{task}");
    }
}

/// Every page for readers, with the folder that its links start from.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for folder in ["", "docs/", "docs/clients/", "docs/migrating/", "lua/"] {
        for entry in std::fs::read_dir(file(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            // The changelog's links are of their time.
            if path.extension().is_some_and(|of| of == "md") && name != "CHANGELOG.md" {
                pages.push((format!("{folder}{name}"), folder.to_owned()));
            }
        }
    }
    pages
}

/// Every link leads to an existing file, and to a heading in it.
#[test]
fn links_lead_somewhere() {
    let mut followed = 0;
    for (document, folder) in pages() {
        let text_of = text(&document);
        let links = text_of
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.starts_with("http") && !link.contains(' ')) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file(&document),
                path => file(&format!("{folder}{path}")),
            };
            assert!(target.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let headings = std::fs::read_to_string(&target).unwrap();
                let found = headings
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line) == heading);
                assert!(found, "{document}: {link}");
            }
            followed += 1;
        }
    }
    assert!(followed > 200, "{followed}");
}

/// The anchor of a heading.
fn anchor(line: &str) -> String {
    let title = line.trim_start_matches('#').trim().to_lowercase();
    let kept = title
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
