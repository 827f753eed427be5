//! Limits files, from paths, folders or stdin.

use std::{
    fs::File,
    io::{self, ErrorKind},
};

use clap::Args;
use limits_file::{FILE_MAX, Supply, Surroundings};
use policy::{Name, Policy, Problems};
use store::read_at_most;

use crate::{
    commands::validate::cost_warning,
    error::{Error, Exit},
    render::{counted, diagnostics},
};

/// The file name extensions of limits files in a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The limits files that a command reads.
#[derive(Clone, Debug, Args)]
pub struct FilesArg {
    /// A limits file, or a folder of them; `-` is stdin. May be given several times.
    #[arg(
        short,
        long = "file",
        value_name = "FILE",
        required_unless_present = "paths"
    )]
    files: Vec<String>,

    /// What -f is for, without it: nobody means anything else by a bare path.
    #[arg(hide = true)]
    paths: Vec<String>,
}

impl FilesArg {
    /// Whether stdin is among them.
    pub fn has_stdin(&self) -> bool {
        self.files.iter().chain(&self.paths).any(|path| path == "-")
    }

    /// The paths of the files, those in folders in the order of their names.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        list_all(self.files.iter().chain(&self.paths), &EXTENSIONS)
    }

    /// Reads all of them, folders in the order of their files' names.
    pub async fn read(&self) -> Result<Vec<Source>, Error> {
        read_all(self.files.iter().chain(&self.paths), &EXTENSIONS).await
    }
}

/// Reads the files at these paths; of a folder, the files with one of these extensions, by name.
pub async fn read_all(
    paths: impl Iterator<Item = &String>,
    extensions: &[&str],
) -> Result<Vec<Source>, Error> {
    let files = list_all(paths, extensions)?;
    let mut sources = Vec::with_capacity(files.len());
    for file in &files {
        sources.push(Source::read(file).await?);
    }
    Ok(sources)
}

fn list_all<'p>(
    paths: impl Iterator<Item = &'p String>,
    extensions: &[&str],
) -> Result<Vec<String>, Error> {
    let mut files: Vec<String> = Vec::new();
    for path in paths {
        for file in files_at(path, extensions)? {
            // A file that is named twice is read once.
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The file at a path, or the files of the folder there, without its subfolders. What has the name of
/// a limits file and is none (a link to nothing or to itself, a folder) is an error: without it, the
/// limits would seem to have been removed.
pub fn files_at(path: &str, extensions: &[&str]) -> Result<Vec<String>, Error> {
    if path == "-" || !std::path::Path::new(path).is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| unreadable(path, &error))? {
        let file = entry.map_err(|error| unreadable(path, &error))?.path();
        let name = file.to_string_lossy().into_owned();
        if !has_extension(&name, extensions) {
            continue;
        }
        let found = std::fs::metadata(&file).map_err(|error| unreadable(&name, &error))?;
        if !found.is_file() {
            return Err(unreadable(&name, &io::Error::other("not a file")));
        }
        files.push(name);
    }
    if files.is_empty() {
        let kinds = extensions.join(", .");
        return Err(Error::usage(format!("there is no .{kinds} file in {path}")));
    }
    files.sort_unstable();
    Ok(files)
}

/// The file name extensions of cases, which stand beside the limits files that they test.
pub const CASES: [&str; 3] = ["test.yaml", "test.yml", "test.json"];

/// Whether a file has one of these extensions. What ends in `.test.yaml` has that extension only.
pub fn has_extension(name: &str, extensions: &[&str]) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let ends = |extension: &&str| {
        let stem = { name.strip_suffix(*extension) }.and_then(|stem| stem.strip_suffix('.'));
        stem.is_some_and(|stem| !stem.is_empty())
    };
    match CASES.iter().find(|extension| ends(extension)) {
        Some(extension) => extensions.contains(extension),
        None => extensions.iter().any(ends),
    }
}

/// A limits file as bytes, with its name for messages.
#[derive(Debug)]
pub struct Source {
    /// The path as typed, or `stdin`.
    pub name: String,
    bytes: Vec<u8>,
}

impl Source {
    /// Reads a file; `-` is stdin. On a thread of its own, so that Ctrl-C ends the wait for a
    /// terminal or a pipe.
    pub async fn read(path: &str) -> Result<Self, Error> {
        let owned = path.to_owned();
        let read = tokio::task::spawn_blocking(move || read(&owned)).await;
        let bytes = read
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| unreadable(path, &error))?;
        let name = if path == "-" { "stdin" } else { path }.to_owned();
        Ok(Self { name, bytes })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The limits in it and the warnings about them, or every error in it. `supply` returns what
    /// the proxies of its domain supply.
    pub fn policy<'s>(
        &self,
        supply: impl FnOnce(&Name) -> Option<Supply<'s>>,
    ) -> Result<(Policy, Option<Problems>), Problems> {
        let around = |policy: &Policy| Surroundings {
            now_ms: Some(crate::now_ms()),
            supply: supply(&policy.domain),
            dear: Some(cost_warning),
        };
        limits_file::read_with_warnings(&self.name, &self.bytes, around)
    }

    /// The error for a file with these problems.
    pub fn invalid(&self, problems: &Problems) -> Error {
        let count = counted(problems.count(), "problem");
        let text = diagnostics(problems);
        Error::new(Exit::No, format!("{} has {count}\n{text}", self.name))
    }
}

/// Also what a pipe gives: a command waits for it, as for stdin.
fn read(path: &str) -> io::Result<Vec<u8>> {
    match path {
        "-" => read_at_most(io::stdin(), FILE_MAX),
        path => read_at_most(File::open(path)?, FILE_MAX),
    }
}

/// The error for a file that cannot be read.
pub fn unreadable(path: &str, error: &io::Error) -> Error {
    let hint = match error.kind() {
        ErrorKind::NotFound => {
            Some("the path is relative to the current folder; `-` reads stdin".to_owned())
        }
        ErrorKind::PermissionDenied => Some(format!(
            "`ls -l {path}` shows who may read it, and the folders above it"
        )),
        _ => None,
    };
    Error::usage(format!("cannot read {path}: {error}")).maybe_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_comes_with_a_hint() {
        for (kind, hint) in [
            (ErrorKind::NotFound, "relative to the current folder"),
            (ErrorKind::PermissionDenied, "`ls -l a.yaml` shows"),
        ] {
            let error = unreadable("a.yaml", &kind.into());
            assert!(error.hints().any(|found| found.contains(hint)), "{error}");
        }
    }

    #[tokio::test]
    async fn a_pipe_is_read_as_a_file_is() {
        use std::{io::Write as _, os::fd::AsRawFd as _};

        let (theirs, mut ours) = io::pipe().unwrap();
        ours.write_all(b"domain: shop").unwrap();
        drop(ours);
        let path = format!("/dev/fd/{}", theirs.as_raw_fd());
        let source = Source::read(&path).await.unwrap();
        assert_eq!(source.bytes(), b"domain: shop");
    }

    #[test]
    fn cases_are_no_limits_files() {
        for (name, limits, cases) in [
            ("limits.yaml", true, false),
            ("a/limits.test.yaml", false, true),
            ("limits.test.json", false, true),
            ("latest.yml", true, false),
            ("test.yaml", true, false),
            (".yaml", false, false),
            ("a/.test.yaml", true, false),
            ("limits.yaml.bak", false, false),
        ] {
            assert_eq!(has_extension(name, &EXTENSIONS), limits, "{name}");
            assert_eq!(has_extension(name, &CASES), cases, "{name}");
        }
    }
}
