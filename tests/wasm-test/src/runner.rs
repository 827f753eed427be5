//! Makes a module for Node of the program, and has Node run its tests.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use walrus::{Module, ModuleConfig};
use wasm_bindgen_cli_support::Bindgen;

/// The module's name, which `node.cjs` has, too.
const MODULE: &str = "program";

/// What `wasm-bindgen-test` exports each test as, before its name.
const PREFIX: &str = "__wbgt_";

const SCRIPT: &str = include_str!("node.cjs");

/// Arguments that cargo passes to every test program and that change nothing here.
const FLAG: &str = "--";

pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let mut arguments = arguments.filter(|argument| !argument.to_string_lossy().starts_with(FLAG));
    let program = PathBuf::from(
        arguments
            .next()
            .context("usage: wasm-test PROGRAM [FILTER]")?,
    );
    let filter = arguments.next().unwrap_or_default();
    let filter = filter.to_string_lossy();

    let bytes = fs::read(&program).with_context(|| program.display().to_string())?;
    let module = ModuleConfig::new().parse(&bytes)?;
    let tests = tests(&module);
    let chosen = tests.iter().filter(|(name, _)| name.contains(&*filter));
    let chosen: Vec<&str> = chosen.map(|(_, export)| export.as_str()).collect();
    // Tests that are no `wasm_bindgen_test`s would not be run, and nobody would see it.
    ensure!(
        !tests.is_empty(),
        "{}: no tests; is `extern crate wasm_test` at its root?",
        program.display()
    );
    if chosen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }

    let folder = tempfile::tempdir()?;
    let mut bindgen = Bindgen::new();
    bindgen
        .nodejs(true)?
        .export_wasm(true)
        .emit_start(false)
        .input_module(MODULE, module)
        .generate(folder.path())?;
    let script = folder.path().join("node.cjs");
    fs::write(&script, SCRIPT)?;
    let node = std::env::var_os("RL_TEST_NODE").unwrap_or_else(|| "node".into());
    let status = Command::new(node)
        .arg(script)
        .arg((tests.len() - chosen.len()).to_string())
        .args(chosen)
        .status()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Every test's name and what it is exported as.
fn tests(module: &Module) -> Vec<(String, String)> {
    let exports = module.exports.iter().map(|export| export.name.as_str());
    let tests = exports.filter(|name| name.starts_with(PREFIX));
    let named = tests.filter_map(|export| Some((export.split_once("::")?.1, export)));
    named
        .map(|(name, export)| (name.to_owned(), export.to_owned()))
        .collect()
}
