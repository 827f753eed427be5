//! What `cargo xtask fuzz` does besides running the fuzzer, for the readers that it names: `unpack FOLDER`
//! writes each corpus as the files that libFuzzer reads, `pack FOLDER` makes corpora of such files, `grow`
//! looks for readers that take more than twice as long for twice the input.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

use fuzz::{Reader, grow, of, write};

/// Bound: bytes of an input that is kept.
const KEPT_MAX: usize = 4096;
/// Inputs of a corpus whose parts are repeated, the longest first.
const GROWN: usize = 12;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments.as_slice() {
        ["unpack", folder, ref names @ ..] => each(names, |reader| {
            unpack(reader, &Path::new(folder).join(reader.name))
        }),
        ["pack", folder, ref names @ ..] => each(names, |reader| {
            pack(reader, &Path::new(folder).join(reader.name))
        }),
        ["grow", ref names @ ..] => each(names, growth),
        _ => Err(io::Error::other(
            "usage: readers unpack|pack FOLDER READER…, or grow READER…",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn each(names: &[&str], does: impl Fn(Reader) -> io::Result<()>) -> io::Result<()> {
    names.iter().try_for_each(|name| {
        let unknown = || io::Error::other(format!("no reader `{name}`"));
        does(Reader::named(name).ok_or_else(unknown)?)
    })
}

fn unpack(reader: Reader, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, input) in of(reader)?.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), input)?;
    }
    Ok(())
}

fn pack(reader: Reader, folder: &Path) -> io::Result<()> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let input = fs::read(entry?.path())?;
        if input.len() <= KEPT_MAX {
            inputs.push(input);
        }
    }
    println!("{}: {} inputs", reader.name, inputs.len());
    write(reader, &mut inputs)
}

fn growth(reader: Reader) -> io::Result<()> {
    let mut found = grow(reader, GROWN)?;
    let Some(worst) = found.pop() else {
        println!("{}: grows as its input does", reader.name);
        return Ok(());
    };
    let [before, part, after] = &worst.parts;
    let [short, long] = worst.times;
    Err(io::Error::other(format!(
        "{}: 8 times the input takes {long:?} in place of {short:?}: \"{}\", then \"{}\" repeated, then \"{}\"",
        reader.name,
        before.escape_ascii(),
        part.escape_ascii(),
        after.escape_ascii()
    )))
}
