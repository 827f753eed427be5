//! What the steps work with: cargo on the right packages, and servers.

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::tools::{Tools, WASM_TARGET};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Which tests of a program are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that a plain `cargo test` runs.
    Usual,
    /// Those that it leaves out, because they need a server.
    Ignored,
}

/// What the steps work with.
pub struct Context<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) ui: &'a Ui,
    pub(super) tools: Tools<'a>,
    pub(super) runner: Vec<String>,
}

impl<'a> Context<'a> {
    /// `runner`: arguments for the test runner.
    pub fn new(workspace: &'a Workspace, ui: &'a Ui, runner: Vec<String>) -> Self {
        Self {
            workspace,
            ui,
            tools: Tools::new(workspace, ui),
            runner,
        }
    }

    pub(super) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = command::cargo(self.workspace);
        cargo.args(arguments);
        cargo
    }

    /// cargo on all that runs natively: the same packages in every step, so that
    /// their dependencies have the same features and are built once.
    pub(super) fn native(&self, subcommand: &[&str]) -> Command {
        let mut cargo = self.cargo(subcommand);
        cargo.args([
            "--workspace",
            "--exclude",
            "noop-filter",
            "--exclude",
            "lean-filter",
        ]);
        cargo
    }

    /// cargo on what Envoy loads, for its target.
    pub(super) fn in_envoy(&self, subcommand: &str) -> Command {
        self.cargo(&[
            subcommand,
            "--package=filter",
            "--package=noop-filter",
            "--package=lean-filter",
            "--target",
            WASM_TARGET,
        ])
    }

    /// Where the tests find what they start.
    pub(super) fn with_servers(&self, command: &mut Command) -> Result<()> {
        command
            .env("RL_TEST_REDIS", self.tools.redis()?)
            .env("RL_TEST_VALKEY", self.tools.valkey()?)
            .env("RL_TEST_BIN", self.workspace.target.join("debug"));
        Ok(())
    }

    /// The test runner, nextest where it is installed.
    pub(super) fn tests(&self, selection: &[&str], which: Which) -> Command {
        let mut cargo = if self.tools.has_nextest() {
            self.native(&["nextest", "run", "--no-fail-fast"])
        } else {
            self.native(&["test", "--no-fail-fast"])
        };
        if self.tools.has_nextest() && !self.runner.is_empty() {
            // What a person asks for may be in one of two runs.
            cargo.arg("--no-tests=pass");
        }
        cargo.args(selection).arg("--");
        if which == Which::Ignored {
            cargo.arg("--ignored");
        }
        cargo.args(&self.runner);
        cargo
    }
}
