//! `rlctl stats`.

mod view;

use clap::Args;
use policy::Name;
use store::{ActivitySummary, Overrides};

use crate::{
    activity::Span,
    args::{Global, examples},
    error::Error,
    exit::Exit,
    printer::Printer,
    session::{self, Session},
};

use view::Report;

/// Show the recent decisions of each limit, per second and in total.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl stats"
    "rlctl stats per-user orders --over 1h"
    "rlctl stats -o json | jq '.limits[] | select(.denied.count > 0) | .limit'"
    "watch -n1 rlctl stats --over 10s"
))]
pub struct Stats {
    /// Only these limits.
    #[arg(value_name = "LIMIT")]
    limits: Vec<String>,

    /// The same, as `denials` and `list-keys` name them.
    #[arg(
        long = "limit",
        value_name = "NAME",
        value_delimiter = ',',
        hide = true
    )]
    named: Vec<String>,

    /// How far back to look: 10s, 1m or 1h.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1m",
        hide_possible_values = true
    )]
    over: Span,
}

impl Stats {
    /// Adds up the reports of all limiters.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let policy = session.policy(Overrides::None).await?;
        let wanted: Vec<&String> = self.limits.iter().chain(&self.named).collect();
        for name in &wanted {
            session::find_limit(&policy, name)?;
        }
        let wanted = |name: &&Name| {
            wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name.as_str())
        };
        let limits: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        let limits: Vec<&Name> = limits.into_iter().filter(wanted).collect();
        let reported = |observed: &ActivitySummary| observed.covered_ms > 0;
        let observed = session.activity_with(&policy.domain, self.over, reported);
        let observed = observed.await?;
        let proxies = session.proxies(&policy.domain, limits.iter().copied());
        let proxies = proxies.await?;
        if observed.covered_ms == 0 {
            let (span, domain) = (self.over.text(), &policy.domain);
            printer.note(format_args!(
                "no limiter reported decisions in domain {domain} in the last {span}"
            ));
            printer.hint("`rlctl list-proxies` shows which limiters are alive");
        }
        printer.data(&Report::new(
            &policy.domain,
            self.over,
            &limits,
            &observed,
            &proxies,
        ))?;
        Ok(Exit::Done)
    }
}
