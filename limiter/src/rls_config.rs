//! `--rls-config`: a folder of envoyproxy/ratelimit's files as a source of limits.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use migration::{Conversion, File, FileReport, Options, System, convert};
use policy::{Policy, Problems};
use store::read_file;

use crate::{
    LimitsError,
    log::{shortened, start_of},
    watched_files::{Stamp, stamp},
};

/// Bound: files of `--rls-config`. Beyond it, an error; the last good limits stay.
const MAX_FILES: usize = 1000;
/// Bound: bytes of those files. Beyond it, an error; the last good limits stay.
const MAX_BYTES: u64 = 64 << 20;

/// How often to read again if files are replaced during a read.
const MAX_READS: usize = 3;

/// The most notes about settings that mean something else here.
const MAX_NOTES: usize = 20;

/// The files of the folder with their stamps, or why one of them cannot be read.
type Stamps = Result<Vec<(PathBuf, Stamp)>, String>;

/// The folder, and its files at the last read.
#[derive(Debug)]
pub(crate) struct RlsConfig {
    folder: PathBuf,
    seen: Mutex<Stamps>,
    /// Whether the folder ever had a file.
    filled: AtomicBool,
}

impl RlsConfig {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            seen: Mutex::new(Ok(Vec::new())),
            filled: AtomicBool::new(false),
        }
    }

    /// Whether the files differ from those last read.
    pub(crate) fn changed(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        stamps(&self.folder) != *seen
    }

    /// Reads the files that end in .yaml or .yml, without subfolders.
    pub(crate) fn read(&self) -> Result<Vec<Policy>, LimitsError> {
        let mut reads = 1;
        loop {
            let before = stamps(&self.folder);
            let outcome = match &before {
                Ok(files) => self.read_files(files),
                Err(error) => Err(LimitsError::Rls(error.clone())),
            };
            // A mounted Kubernetes volume replaces all files at once: half of the old ones and
            // half of the new ones would be a configuration that nobody wrote.
            if reads == MAX_READS || stamps(&self.folder) == before {
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = before;
                return outcome;
            }
            reads += 1;
        }
    }

    /// Fails if a folder has lost all its files: that is a broken mount, not an empty
    /// configuration.
    fn read_files(&self, files: &[(PathBuf, Stamp)]) -> Result<Vec<Policy>, LimitsError> {
        if files.is_empty() && self.filled.load(Ordering::Relaxed) {
            let folder = self.folder.display();
            return Err(LimitsError::Rls(format!("{folder} has no files any more")));
        }
        let policies = read_files(files)?;
        self.filled.fetch_or(!files.is_empty(), Ordering::Relaxed);
        Ok(policies)
    }
}

fn read_files(files: &[(PathBuf, Stamp)]) -> Result<Vec<Policy>, LimitsError> {
    let mut texts = Vec::with_capacity(files.len());
    // A file may have grown since its stamp was taken.
    let mut left = MAX_BYTES;
    for (path, _) in files {
        let bytes = read_file(path, left).map_err(|error| LimitsError::Read {
            path: path.clone(),
            error,
        })?;
        left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(left));
        texts.push((path.to_string_lossy(), bytes));
    }
    let files: Vec<File<'_>> = texts
        .iter()
        .map(|(name, bytes)| File { name, bytes })
        .collect();
    let converted = converted(&files)?;
    for note in &converted.notes {
        tracing::warn!(file = note.file, line = note.line, "{}", note.text);
    }
    Ok(converted.policies)
}

/// What files of envoyproxy/ratelimit became.
pub(crate) struct Converted {
    pub(crate) policies: Vec<Policy>,
    /// What means something else here; of many, the first ones.
    pub(crate) notes: Vec<Note>,
}

/// Something that means something else here than in envoyproxy/ratelimit.
pub(crate) struct Note {
    file: String,
    line: Option<u32>,
    text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.text)
    }
}

/// Converts files of envoyproxy/ratelimit.
pub(crate) fn converted(files: &[File<'_>]) -> Result<Converted, LimitsError> {
    let conversion = convert(System::EnvoyRatelimit, files, &Options::default())
        .map_err(|wrong| LimitsError::Rls(joined(&wrong)))?;
    let notes = notes(&conversion);
    let domains = conversion.domains.into_iter();
    Ok(Converted {
        policies: domains.map(|domain| domain.policy).collect(),
        notes,
    })
}

fn joined(wrong: &[Problems]) -> String {
    start_of(wrong)
}

fn notes(conversion: &Conversion) -> Vec<Note> {
    let notes = |report: &FileReport| {
        let all: Vec<_> = report
            .lost()
            .iter()
            .chain(report.changed())
            .take(MAX_NOTES)
            .map(|problem| Note {
                file: shortened(report.file.clone()),
                line: problem.place.map(|place| place.line),
                text: shortened(problem.to_string()),
            })
            .collect();
        all
    };
    let counts =
        { conversion.reports.iter() }.map(|report| report.lost().len() + report.changed().len());
    let more = counts.sum::<usize>().saturating_sub(MAX_NOTES);
    let first = conversion.reports.iter().flat_map(notes).take(MAX_NOTES);
    let mut notes: Vec<Note> = first.collect();
    if let Some(last) = notes.last_mut().filter(|_| more > 0) {
        let hint = "`rlctl convert --from envoy-ratelimit` shows them all";
        last.text = format!("{} (and {more} further notes; {hint})", last.text);
    }
    notes
}

/// The folder's files and their stamps, sorted by path. What has the name of a file and is none (a
/// folder, a link to nothing or to itself) is an error: without it, its domain would be deleted.
fn stamps(folder: &Path) -> Stamps {
    let at = |path: &Path, error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut files = Vec::new();
    let mut bytes: u64 = 0;
    for entry in fs::read_dir(folder).map_err(|error| at(folder, error))? {
        let path = entry.map_err(|error| at(folder, error))?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let extension = path.extension().and_then(|extension| extension.to_str());
        if hidden || !matches!(extension, Some("yaml" | "yml")) {
            continue;
        }
        let stamp = stamp(&path).map_err(|error| at(&path, error))?;
        if !stamp.is_file() {
            return Err(at(&path, io::Error::other("not a file")));
        }
        bytes = bytes.saturating_add(stamp.len());
        files.push((path, stamp));
        if files.len() > MAX_FILES || bytes > MAX_BYTES {
            let message = format!("more than {MAX_FILES} files or {MAX_BYTES} bytes");
            return Err(at(folder, io::Error::other(message)));
        }
    }
    files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grew_since_it_was_found_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.yaml");
        let file = fs::File::create(&path).unwrap();
        let files = stamps(folder.path()).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        let why = read_files(&files).unwrap_err().to_string();
        assert!(why.contains("shop.yaml: it is larger than 64 MiB"), "{why}");
    }
}
