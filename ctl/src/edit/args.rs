//! What every edit takes on the command line.

use clap::Args;
use store::Signature;

use crate::args::millis;

/// What every edit takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Edit options")]
pub struct EditArgs {
    /// Show what would change, without changing it.
    #[arg(long)]
    pub dry_run: bool,

    /// The reason, for the history.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub reason: String,

    /// The author, for the history [default: the user at this machine].
    #[arg(
        long,
        value_name = "NAME",
        env = "RLCTL_AUTHOR",
        hide_env_values = true
    )]
    pub author: Option<String>,

    /// Wait until every live limiter and proxy has the edit, this long at most [default: 5s].
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5s",
        value_parser = millis
    )]
    pub wait: Option<u64>,
}

impl EditArgs {
    /// Who edits, and why.
    pub fn signature(&self) -> Signature {
        Signature {
            author: self
                .author
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(user_at_host),
            reason: self.reason.clone(),
        }
    }
}

fn user_at_host() -> String {
    let name = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let user = name("USER")
        .or_else(|| name("LOGNAME"))
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{user}@{}", gethostname::gethostname().to_string_lossy())
}
