//! `cargo xtask wasm`: the filter as Envoy loads it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Result, ensure};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools, WASM_TARGET, replace};
use crate::ui::Ui;

/// The size limit of the filter. What counts is the time that it adds to Envoy's start, at most 0.3
/// s on an idle machine: V8 compiles it, with 17 ms of CPU for 10 KB, on all cores at once. `cargo
/// xtask bench` measures that time; the size is the substitute for it on a busy machine.
pub const SIZE_BUDGET_BYTES: u64 = 420_000;
/// The wasm features beyond the first version that the compiler uses and Envoy's V8 supports; the
/// optimiser must not use others.
const FEATURES: [&str; 7] = [
    "--enable-bulk-memory",
    "--enable-multivalue",
    "--enable-mutable-globals",
    "--enable-nontrapping-float-to-int",
    "--enable-reference-types",
    "--enable-sign-ext",
    "--enable-simd",
];

/// The optimiser's passes. `-Oz` would be 5 KB smaller than `-Os`, but it merges similar functions, and
/// V8 needs 760 ms of CPU to compile the result, not 670. `-O3` takes as long as `-Os` (730 to 720 ms),
/// and makes a leased request 7 % faster.
const PASSES: [&str; 6] = [
    "-O3",
    "-O3",
    // What is used often gets a shorter number: 6 KB less.
    "--const-hoisting",
    "--reorder-functions",
    // Sections that no engine reads.
    "--strip-producers",
    "--strip-target-features",
];

/// A stack 64 KiB smaller than the default: all data then lies below 2^20, where its addresses take
/// three bytes instead of four.
const STACK: &str = "-Clink-arg=-zstack-size=983040";

/// Bodies are searched sixteen bytes at a time.
const SIMD: &str = "-Ctarget-feature=+simd128";

/// A size, such as `249.1 KB`; rounded up, so that one above the budget never looks like it.
pub fn kilobytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(100);
    format!("{}.{} KB", tenths / 10, tenths % 10)
}

/// Builds the filter and returns its path, `target/filter.wasm`.
pub fn build(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    ui.heading("Filter");
    let built = module(workspace, ui, "filter")?;
    let path = workspace.target.join("filter.wasm");
    // What takes longest; whoever changes the passes compiles this program, too.
    let made_from = [&*built, &*std::env::current_exe()?].map(modified);
    if modified(&path) <= made_from.into_iter().max().flatten() {
        optimise(workspace, ui, &built, &path)?;
    }
    let bytes = std::fs::metadata(&path)?.len();
    let shown = workspace.short(&path).display();
    ui.line(&format!("{shown}: {}", kilobytes(bytes)));
    ensure!(
        bytes < SIZE_BUDGET_BYTES,
        "the filter has {bytes} bytes, and must have less than {SIZE_BUDGET_BYTES}"
    );
    Ok(path)
}

/// When a file was written, if it exists.
fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}

fn optimise(workspace: &Workspace, ui: &Ui, built: &Path, path: &Path) -> Result<()> {
    let optimiser = Tools::new(workspace, ui).get(Tool::WasmOpt)?;
    let mut optimise = Command::new(optimiser);
    optimise
        // The linker's.
        .arg("--remove-exports=__*")
        .args(PASSES)
        // Low memory holds the stack, and only an overflow reaches its end.
        .arg("--low-memory-unused")
        .args(FEATURES);
    replace(path, |fresh| {
        command::run(optimise.args([built, Path::new("-o"), fresh]))
    })
}

/// Builds one of the packages that Envoy loads, and returns its module.
pub fn module(workspace: &Workspace, ui: &Ui, package: &str) -> Result<PathBuf> {
    Tools::new(workspace, ui).target(WASM_TARGET)?;
    let mut cargo = workspace.loaded_by_envoy(package, "wasm", &[STACK, SIMD])?;
    command::run(cargo.args(["--target", WASM_TARGET]))?;
    let file = format!("{}.wasm", package.replace('-', "_"));
    Ok(workspace.built(WASM_TARGET, "wasm").join(file))
}
