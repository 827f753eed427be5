//! `cargo xtask wasm`: the filter as Envoy loads it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use wasm_encoder::{ExportSection, Module, RawSection};
use wasmparser::{Export, Parser, Payload};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools, WASM_TARGET};
use crate::ui::Ui;

/// The size limit of the filter. What counts is the time that it adds to Envoy's start, at most 0.3
/// s on an idle machine: V8 compiles it, with 17 ms of CPU for 10 KB, on all cores at once. `cargo
/// xtask bench` measures that time; the size is the substitute for it on a busy machine.
pub const SIZE_BUDGET_BYTES: u64 = 460_000;
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

/// Callbacks that the SDK exports and the filter does not use. Envoy calls every callback that it
/// finds, so without these it enters the VM half as often for a request.
const UNUSED_EXPORTS: [&str; 9] = [
    "__*",
    "proxy_on_done",
    "proxy_on_downstream_*",
    "proxy_on_foreign_function",
    "proxy_on_grpc_receive_*",
    "proxy_on_log",
    "proxy_on_new_connection",
    "proxy_on_upstream_*",
    "proxy_on_vm_start",
];

/// The prefix of an export that replaces the SDK's: see `filter/src/exports.rs`.
const OWN_EXPORTS: &str = "rl_";

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
    let renamed = built.with_file_name("renamed.wasm");
    std::fs::write(&renamed, with_own_exports(&std::fs::read(&built)?)?)?;
    let optimiser = Tools::new(workspace, ui).get(Tool::WasmOpt)?;
    let mut optimise = Command::new(optimiser);
    optimise
        // First, so that the passes below drop code that only those exports use.
        .arg(format!("--remove-exports={}", UNUSED_EXPORTS.join(",")))
        .args(PASSES)
        // Low memory holds the stack, and only an overflow reaches its end.
        .arg("--low-memory-unused")
        .args(FEATURES)
        .args([&*renamed, Path::new("-o"), &path]);
    command::run(&mut optimise)?;
    let bytes = std::fs::metadata(&path)?.len();
    let shown = workspace.short(&path).display();
    ui.line(&format!("{shown}: {}", kilobytes(bytes)));
    ensure!(
        bytes < SIZE_BUDGET_BYTES,
        "the filter has {bytes} bytes, and must have less than {SIZE_BUDGET_BYTES}"
    );
    Ok(path)
}

/// Builds one of the packages that Envoy loads, and returns its module.
pub fn module(workspace: &Workspace, ui: &Ui, package: &str) -> Result<PathBuf> {
    Tools::new(workspace, ui).target(WASM_TARGET)?;
    // Cargo does not optimise across crates for a library that is also a Rust library.
    let mut cargo = workspace.cargo(&["rustc", "--package", package, "--lib"]);
    cargo
        .args(["--crate-type=cdylib", "--profile=wasm", "--target"])
        .arg(WASM_TARGET)
        .env("CARGO_TARGET_DIR", &workspace.target);
    let flags = workspace.flags_without_paths(&[STACK, SIMD])?;
    command::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags))?;
    let file = format!("{}.wasm", package.replace('-', "_"));
    Ok(workspace.target.join(WASM_TARGET).join("wasm").join(file))
}

/// Renames each export whose name begins with [`OWN_EXPORTS`] to the rest of its name, and removes the
/// export that had that name.
fn with_own_exports(module: &[u8]) -> Result<Vec<u8>> {
    let mut renamed = Module::new();
    for part in Parser::new(0).parse_all(module) {
        let part = part?;
        if let Payload::ExportSection(exports) = part {
            let exports: Vec<Export<'_>> = exports.into_iter().collect::<Result<_, _>>()?;
            let replaces = |other: &Export<'_>, export: &Export<'_>| {
                other.name.strip_prefix(OWN_EXPORTS) == Some(export.name)
            };
            let mut section = ExportSection::new();
            for export in &exports {
                if !exports.iter().any(|other| replaces(other, export)) {
                    let name = export.name.strip_prefix(OWN_EXPORTS).unwrap_or(export.name);
                    section.export(name, export.kind.into(), export.index);
                }
            }
            renamed.section(&section);
        } else if let Some((id, range)) = part.as_section() {
            let data = module.get(range).context("cut short")?;
            renamed.section(&RawSection { id, data });
        }
    }
    Ok(renamed.finish())
}

#[cfg(test)]
mod tests {
    use wasm_encoder::ExportKind;

    use super::*;

    #[test]
    fn an_export_takes_the_name_of_another() {
        let module = |exports: &[(&str, u32)]| {
            let mut section = ExportSection::new();
            for (name, index) in exports {
                section.export(name, ExportKind::Func, *index);
            }
            let mut module = Module::new();
            let data = &[7; 300];
            module.section(&RawSection { id: 0, data });
            module.section(&section);
            module.section(&RawSection {
                id: 0,
                data: b"\x01n",
            });
            module.finish()
        };
        let renamed = with_own_exports(&module(&[("call", 1), ("rl_call", 200), ("other", 2)]));
        assert_eq!(renamed.unwrap(), module(&[("call", 200), ("other", 2)]));
        let without = module(&[("call", 1)]);
        assert_eq!(with_own_exports(&without).unwrap(), without);
        assert!(with_own_exports(&without[..without.len() - 1]).is_err());
    }
}
