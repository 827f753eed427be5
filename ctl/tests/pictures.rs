//! The page that compares the algorithms: its commands draw its pictures, and its limits are valid.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

const RLCTL: &str = env!("CARGO_BIN_EXE_rlctl");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> Result<String> {
    Ok(fs::read_to_string(root().join("docs/algorithms.md"))?)
}

/// The names in `pictures/NAME.svg` and the texts that stand for them.
fn pictures<'p>(page: &'p str) -> Vec<(&'p str, &'p str)> {
    let picture = |line: &'p str| {
        let (text, file) = line.strip_prefix("![")?.split_once("](pictures/")?;
        Some((file.strip_suffix(".svg)")?, text))
    };
    page.lines().filter_map(picture).collect()
}

#[test]
fn the_commands_of_the_page_make_its_pictures() -> Result<()> {
    let page = page()?;
    let pictures = pictures(&page);
    ensure!(pictures.len() == 9, "one for each algorithm: {pictures:?}");
    let script = page
        .split_once("```sh\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (script, _) = script.context("the page has no command")?;

    let copy = tempfile::tempdir()?;
    let made = copy.path().join("docs/pictures");
    fs::create_dir_all(&made)?;
    let committed = root().join("docs/pictures");
    fs::copy(
        committed.join("algorithms.yaml"),
        made.join("algorithms.yaml"),
    )?;
    let folder = Path::new(RLCTL).parent().context("rlctl is in a folder")?;
    let mut path = folder.as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    let status = Command::new("sh")
        .args(["-ec", script])
        .current_dir(copy.path())
        .env("PATH", path)
        .status()?;
    ensure!(status.success(), "the command of the page: {status}");

    for (name, text) in pictures {
        let file = format!("{name}.svg");
        let now = fs::read_to_string(made.join(&file))?;
        ensure!(
            now == fs::read_to_string(committed.join(&file))?,
            "{file} is out of date"
        );
        let caption = now
            .replace("<tspan font-weight=\"bold\">", "")
            .replace("</tspan>", "");
        ensure!(
            caption.contains(&format!(">{text}</text>")),
            "{file} does not say {text:?}"
        );
    }
    Ok(())
}

#[test]
fn the_limits_of_the_page_are_valid() -> Result<()> {
    let page = page()?;
    let limits = page
        .split('`')
        .filter(|code| code.starts_with("{algorithm: "));
    let mut file = "domain: shop\nlimits:\n".to_owned();
    let mut count = 0;
    for limit in limits {
        count += 1;
        file.push_str(&limit.replacen('{', &format!("  - {{name: choice-{count}, "), 1));
        file.push('\n');
    }
    ensure!(
        count == 7,
        "one limit for each line of the table, not {count}"
    );
    let mut rlctl = Command::new(RLCTL)
        .args(["validate", "-f", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    rlctl
        .stdin
        .take()
        .context("stdin")?
        .write_all(file.as_bytes())?;
    ensure!(rlctl.wait()?.success(), "not valid:\n{file}");
    Ok(())
}
