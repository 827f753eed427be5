//! Parts of the documents that the code itself writes: `UPDATE_DOCS=1 cargo test -p tests --test config`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::{Path, PathBuf},
    process::Command,
};

use super::named_files::files;

const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p tests --test config updates it";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares what is between two lines of a document with what the code says, or replaces it.
fn compare(document: &str, start: &str, end: &str, generated: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(start).unwrap();
    let (present, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}{start}{generated}{end}{after}");
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(
        present == generated,
        "{document} is behind the code: {UPDATE}"
    );
}

/// A constant whose comment says what it bounds, and what happens beyond it.
struct Bound {
    what: String,
    value: String,
    beyond: String,
    name: String,
}

/// The bound that a comment has, as `Bound: WHAT. Beyond it, WHAT HAPPENS.`
fn bound(comment: &str, constant: &str) -> Option<Bound> {
    let (_, text) = comment.split_once("Bound: ")?;
    // A paragraph of its own ends the bound.
    let (what, beyond) = text.split('\n').next()?.split_once(". Beyond it, ")?;
    let (name, value) = constant.split_once("const ")?.1.split_once(": ")?;
    let (_, value) = value.split_once(" = ")?;
    Some(Bound {
        what: what.to_owned(),
        value: value.trim_end_matches(';').to_owned(),
        beyond: beyond.trim().trim_end_matches('.').to_owned(),
        name: name.to_owned(),
    })
}

/// The bounds in a source file.
fn bounds(source: &str, path: &Path) -> Vec<Bound> {
    let mut found = Vec::new();
    let mut comment = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            comment += text.trim();
            comment.push(if text.is_empty() { '\n' } else { ' ' });
            continue;
        }
        if comment.contains("Bound: ") {
            let mut constant = line.to_owned();
            while !constant.ends_with(';') {
                constant += lines.next().unwrap().trim();
            }
            let parsed = bound(&comment, &constant);
            assert!(parsed.is_some(), "{}: {comment}", path.display());
            found.extend(parsed);
        }
        comment.clear();
    }
    found
}

/// Where a bound holds, as the headings of the document, with the folders of the code.
const PLACES: [(&str, &[&str]); 4] = [
    ("A proxy", &["filter", "module", "crates/filter-core"]),
    ("A limiter", &["limiter"]),
    (
        "The store, and connections to it",
        &["crates/store", "crates/redis-link"],
    ),
    ("Limits, checks and buckets", &["crates", "ctl"]),
];

#[test]
fn every_bound_of_the_code_is_in_the_list() {
    let root = root();
    let mut sources = Vec::new();
    for folder in ["filter", "module", "limiter", "ctl", "crates"] {
        files(&root.join(folder), &mut sources);
    }
    sources.sort();
    let mut text = String::new();
    let mut listed = BTreeSet::new();
    for (place, folders) in PLACES {
        write!(
            text,
            "\n## {place}\n\n| what | bound | beyond it | where |\n|---|---|---|---|\n"
        )
        .unwrap();
        for path in &sources {
            let short = path.strip_prefix(&root).unwrap();
            let here = folders.iter().any(|folder| short.starts_with(folder));
            if !here || path.extension().is_none_or(|is| is != "rs") || !listed.insert(short) {
                continue;
            }
            for bound in bounds(&std::fs::read_to_string(path).unwrap(), short) {
                let Bound {
                    what,
                    value,
                    beyond,
                    name,
                } = bound;
                let short = short.display();
                writeln!(
                    text,
                    "| {what} | `{value}` | {beyond} | `{name}` in `{short}` |"
                )
                .unwrap();
            }
        }
    }
    assert!(text.lines().count() > 80, "most bounds are gone");
    compare(
        "docs/bounds.md",
        "<!-- by the code -->\n",
        "\n<!-- end -->",
        &text,
    );
}

/// Whether a crate uses another, perhaps through others.
fn reaches(uses: &BTreeMap<&str, BTreeSet<&str>>, from: &str, to: &str) -> bool {
    uses[from]
        .iter()
        .any(|next| *next == to || reaches(uses, next, to))
}

#[test]
fn the_picture_of_the_crates_is_cargos() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let is_shipped = |name: &str| {
        let program = ["filter", "module", "limiter", "ctl"].contains(&name);
        program || root().join("crates").join(name).exists()
    };
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let dependencies = dependencies.filter(|of| of["kind"].is_null());
        let names = dependencies.filter_map(|of| of["name"].as_str());
        if is_shipped(name) {
            uses.insert(name, names.filter(|name| is_shipped(name)).collect());
        }
    }
    for program in ["filter", "module"] {
        for reader in ["limits-file", "calendar", "migration"] {
            assert!(!reaches(&uses, program, reader), "{program} links {reader}");
        }
    }
    let mut picture = String::from("```mermaid\ngraph LR\n");
    for (name, direct) in &uses {
        for of in direct {
            // An arrow that a longer way implies says nothing more.
            let implied = direct.iter().any(|other| reaches(&uses, other, of));
            if !implied {
                writeln!(picture, "  {name} --> {of}").unwrap();
            }
        }
    }
    picture += "```\n";
    compare(
        "ARCHITECTURE.md",
        "<!-- by Cargo -->\n",
        "<!-- end -->",
        &picture,
    );
}
