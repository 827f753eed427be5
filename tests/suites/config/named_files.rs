//! Source files named in documents, and files that documents link to, exist.

use std::path::{Path, PathBuf};

/// Folders of files that are not the project's.
const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];

/// Stand-ins for any name, in CONTRIBUTING.md.
const ANY_MODULE: [&str; 2] = ["name.rs", "name/mod.rs"];

pub fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            found.push(path);
        } else if !NOT_OURS.iter().any(|name| path.ends_with(name)) {
            files(&path, found);
        }
    }
}

/// The text that a document has in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    { text.lines() }.flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The targets of links, without the fragment.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.split("](").skip(1);
    starts.filter_map(|rest| rest.split([')', '#']).next())
}

/// Whoever may list processes can read their arguments.
#[test]
fn no_command_has_a_secret_among_its_arguments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut all, mut secrets) = (Vec::new(), 0);
    for folder in ["docs", "deploy"] {
        files(&root.join(folder), &mut all);
    }
    for path in all {
        // Pictures are no text.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        secrets += text.matches("create secret ").count();
        let shown = |line: &&str| {
            let edits = line.starts_with("sed ") && line.contains('$');
            // What is typed stays in the shell's history as well.
            let typed = "RL_STORE=redis://:";
            let given = [
                "--from-literal",
                "Bearer $(",
                "-H \"authorization: Bearer $",
                typed,
            ];
            edits || given.iter().any(|by| line.contains(by))
        };
        assert_eq!(text.lines().find(shown), None, "{}", path.display());
    }
    assert!(secrets > 5, "{secrets} secrets are made");
}

#[test]
fn documents_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all = Vec::new();
    files(&root, &mut all);
    let documents = { all.iter() }.filter(|path| path.extension().is_some_and(|is| is == "md"));
    let (mut checked, mut missing) = (0, Vec::new());
    for document in documents {
        let text = std::fs::read_to_string(document).unwrap();
        let is_source = |name: &&str| {
            let plain =
                |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'/' | b'.');
            let named = [".rs", ".lua"].iter().any(|end| name.ends_with(end));
            named && name.bytes().all(plain) && !ANY_MODULE.contains(name)
        };
        for source in quoted(&text).filter(is_source) {
            checked += 1;
            if !all.iter().any(|path| path.ends_with(source)) {
                missing.push(format!("{}: {source}", document.display()));
            }
        }
        let folder = document.parent().unwrap();
        let ours = |link: &&str| !link.contains(':') && !link.contains(' ') && !link.is_empty();
        for link in links(&text).filter(ours) {
            checked += 1;
            if !folder.join(link).exists() {
                missing.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(checked > 300, "{checked} names and links were found");
    assert_eq!(missing, Vec::<String>::new());
}
