//! `cargo xtask ci`: what must pass on a clean machine before a change lands.

use anyhow::Result;

use crate::test;
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Runs every test.
pub fn run(workspace: &Workspace, ui: &Ui) -> Result<()> {
    test::run(&test::Args::default(), workspace, ui)
}
