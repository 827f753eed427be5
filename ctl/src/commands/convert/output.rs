//! Where the limits files go.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use migration::{Domain, file_name};

use crate::{error::Error, exit::Exit};

/// A file for each domain; empty if they go to stdout.
pub(super) fn targets(out: Option<&Path>, domains: &[Domain]) -> Result<Vec<PathBuf>, Error> {
    let Some(out) = out else {
        return Ok(Vec::new());
    };
    let folder = out.is_dir() || out.to_string_lossy().ends_with('/');
    match domains {
        [_] if !folder => Ok(vec![out.to_owned()]),
        [_, _, ..] if !folder => {
            let message = format!(
                "--out {}: {} domains need a folder",
                out.display(),
                domains.len()
            );
            Err(Error::usage(message).hint(format!("--out {}/", out.display())))
        }
        domains => {
            let names = domains.iter().map(|domain| file_name(&domain.policy));
            Ok(names.map(|name| out.join(name)).collect())
        }
    }
}

/// Writes them. If one exists already, it writes none.
pub(super) fn write(targets: &[PathBuf], domains: &[Domain], overwrite: bool) -> Result<(), Error> {
    let taken = targets.iter().find(|path| !overwrite && path.exists());
    if let Some(taken) = taken {
        return Err(exists(taken));
    }
    for (path, domain) in targets.iter().zip(domains) {
        let text = domain.document.to_yaml();
        write_one(path, &text, overwrite).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(path),
            _ => Error::usage(format!("cannot write {}: {error}", path.display())),
        })?;
    }
    Ok(())
}

fn write_one(path: &Path, text: &str, overwrite: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = File::options();
    options.write(true);
    if overwrite {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(path)?.write_all(text.as_bytes())
}

fn exists(path: &Path) -> Error {
    let message = format!("{} is there already", path.display());
    Error::new(Exit::Conflict, message).hint("--overwrite replaces it")
}
