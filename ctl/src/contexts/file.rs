//! The file of contexts, which only its owner can read.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use policy::Node;

use super::Contexts;
use crate::error::Error;

/// `$XDG_CONFIG_HOME/rlctl/config.yaml`, else under `~/.config`; `None` where there is no home.
pub fn path(environment: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let base = environment("XDG_CONFIG_HOME").map(PathBuf::from);
    let base = base.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(environment("HOME")?).join(".config"));
    Some(base.or_else(home)?.join("rlctl").join("config.yaml"))
}

/// Reads the contexts; none if the file does not exist.
pub fn read(path: &Path) -> Result<Contexts, Error> {
    let shown = path.display();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        // `NotADirectory`: a parent of the path is a file, so this file cannot exist.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Contexts::default());
        }
        Err(error) => return Err(Error::usage(format!("cannot read {shown}: {error}"))),
    };
    let broken = |why: &str| {
        Error::usage(format!("{shown}: {why}"))
            .hint("fix it, or delete it and set the contexts again: `rlctl context set`")
    };
    // A YAML error would quote the line, which may hold a password.
    let node = Node::from_yaml("config.yaml", &bytes).map_err(|_| broken("it is not YAML"))?;
    Contexts::from_node(&node).map_err(|why| broken(&why))
}

/// Replaces the file as a whole.
pub fn write(path: &Path, contexts: &Contexts) -> Result<(), Error> {
    let failed =
        |error: std::io::Error| Error::usage(format!("cannot write {}: {error}", path.display()));
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    let beside = path.with_extension("yaml.new");
    let _ = fs::remove_file(&beside);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let text = contexts.to_node().to_yaml();
    let mut file = options.open(&beside).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}
