//! The context of the steps: cargo with the right packages, and servers.

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::tools::{Tools, WASM_TARGET};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Which tests of a program are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Tests that a plain `cargo test` runs.
    Usual,
    /// Tests that it skips because they need a server.
    Ignored,
}

/// The context of the steps.
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

    /// cargo for everything that runs natively. Every step uses the same packages, so that their
    /// dependencies have the same features and are built once.
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

    /// cargo for the packages that Envoy loads, for their target.
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

    /// Sets the variables by which tests find the programs that they start.
    pub(super) fn with_servers(&self, command: &mut Command) -> Result<()> {
        command
            .env("RL_TEST_REDIS", self.tools.redis()?)
            .env("RL_TEST_VALKEY", self.tools.valkey()?)
            .env("RL_TEST_BIN", self.workspace.target.join("debug"));
        Ok(())
    }

    /// The test runner: nextest, if it is installed.
    pub(super) fn tests(&self, selection: &[&str], which: Which) -> Command {
        let mut cargo = if self.tools.has_nextest() {
            self.native(&["nextest", "run", "--no-fail-fast"])
        } else {
            self.native(&["test", "--no-fail-fast"])
        };
        if self.tools.has_nextest() && !self.runner.is_empty() {
            // A test that the user names may be in only one of two runs.
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
