//! `--rls-config`: a folder of envoyproxy/ratelimit's files as a source of limits.

mod publish;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use migration::{Conversion, File, FileReport, Options, System, convert};
use policy::{Policy, Problems};

use crate::{
    LimitsError,
    watched_files::{Stamp, stamp},
};

pub(crate) use publish::Publisher;

/// The most files in the folder, and most bytes of all of them.
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 64 << 20;

/// How often to read again if files are replaced during a read.
const MAX_READS: usize = 3;

/// The most log lines about settings that mean something else here.
const MAX_NOTES: usize = 20;

/// The folder, and the stamps of its files at the last read.
#[derive(Debug)]
pub(crate) struct RlsConfig {
    folder: PathBuf,
    seen: Mutex<Vec<(PathBuf, Option<Stamp>)>>,
    /// Whether the folder ever had a file.
    filled: AtomicBool,
}

impl RlsConfig {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            seen: Mutex::default(),
            filled: AtomicBool::new(false),
        }
    }

    /// Whether the files differ from those last read.
    pub(crate) fn changed(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        stamps(&self.folder).unwrap_or_default() != *seen
    }

    /// Reads the files that end in .yaml or .yml, without subfolders.
    pub(crate) fn read(&self) -> Result<Vec<Policy>, LimitsError> {
        for attempt in 1.. {
            let before = stamps(&self.folder);
            let outcome = match &before {
                Ok(files) => self.read_files(files),
                Err(error) => {
                    let error = io::Error::new(error.kind(), error.to_string());
                    Err(LimitsError::Read {
                        path: self.folder.clone(),
                        error,
                    })
                }
            };
            let before = before.unwrap_or_default();
            // A mounted Kubernetes volume replaces all files at once: half of the old ones and
            // half of the new ones would be a configuration that nobody wrote.
            let settled = stamps(&self.folder).unwrap_or_default() == before;
            if settled || attempt == MAX_READS {
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = before;
                return outcome;
            }
        }
        Ok(Vec::new())
    }

    /// Fails if a folder has lost all its files: that is a broken mount, not an empty
    /// configuration.
    fn read_files(&self, files: &[(PathBuf, Option<Stamp>)]) -> Result<Vec<Policy>, LimitsError> {
        if files.is_empty() && self.filled.load(Ordering::Relaxed) {
            let folder = self.folder.display();
            return Err(LimitsError::Rls(format!("{folder} has no files any more")));
        }
        let policies = read_files(files)?;
        self.filled.fetch_or(!files.is_empty(), Ordering::Relaxed);
        Ok(policies)
    }
}

fn read_files(files: &[(PathBuf, Option<Stamp>)]) -> Result<Vec<Policy>, LimitsError> {
    let mut texts = Vec::with_capacity(files.len());
    for (path, _) in files {
        let bytes = fs::read(path).map_err(|error| LimitsError::Read {
            path: path.clone(),
            error,
        })?;
        texts.push((path.to_string_lossy(), bytes));
    }
    let files: Vec<File<'_>> = texts
        .iter()
        .map(|(name, bytes)| File { name, bytes })
        .collect();
    converted(&files)
}

/// Converts files of envoyproxy/ratelimit, and logs what means something else here.
pub(crate) fn converted(files: &[File<'_>]) -> Result<Vec<Policy>, LimitsError> {
    let conversion = convert(System::EnvoyRatelimit, files, &Options::default())
        .map_err(|wrong| LimitsError::Rls(joined(&wrong)))?;
    log_notes(&conversion);
    Ok(conversion
        .domains
        .into_iter()
        .map(|domain| domain.policy)
        .collect())
}

fn joined(wrong: &[Problems]) -> String {
    let texts: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

fn log_notes(conversion: &Conversion) {
    let notes = |report: &FileReport| {
        let all: Vec<_> = report
            .lost()
            .iter()
            .chain(report.changed())
            .cloned()
            .collect();
        all.into_iter().map({
            let file = report.file.clone();
            move |problem| (file.clone(), problem)
        })
    };
    let notes: Vec<_> = conversion.reports.iter().flat_map(notes).collect();
    for (file, note) in notes.iter().take(MAX_NOTES) {
        let line = note.place.map(|place| place.line);
        tracing::warn!(file, line, "{note}");
    }
    if let Some(more) = notes.len().checked_sub(MAX_NOTES).filter(|more| *more > 0) {
        tracing::warn!(
            more,
            "further notes; `rlctl convert --from envoy-ratelimit` shows them all"
        );
    }
}

/// The folder's files and their stamps, sorted by path.
fn stamps(folder: &Path) -> io::Result<Vec<(PathBuf, Option<Stamp>)>> {
    let mut files = Vec::new();
    let mut bytes: u64 = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let extension = path.extension().and_then(|extension| extension.to_str());
        if hidden || !matches!(extension, Some("yaml" | "yml")) || !path.is_file() {
            continue;
        }
        let stamp = stamp(&path);
        bytes = bytes.saturating_add(stamp.map_or(0, |stamp| stamp.len()));
        files.push((path, stamp));
        if files.len() > MAX_FILES || bytes > MAX_BYTES {
            let message = format!("more than {MAX_FILES} files or {MAX_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
    }
    files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}
