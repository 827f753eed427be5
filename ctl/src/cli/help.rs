//! `rlctl --help`: the commands in groups, by task.

use std::fmt::Write as _;

use clap::Command;

/// Every command is in exactly one group; a test checks that.
const GROUPS: &[(&str, &[&str])] = &[
    ("Limits", LIMITS),
    ("Live", LIVE),
    ("What if", WHAT_IF),
    ("Setup", SETUP),
];
const LIMITS: &[&str] = &[
    "list-limits",
    "get-limit",
    "set-limit",
    "delete-limit",
    "set-exemption",
    "delete-exemption",
    "delete-domain",
    "validate",
    "convert",
    "diff",
    "apply",
    "export",
    "history",
    "rollback",
    "pause",
    "resume",
];
const LIVE: &[&str] = &[
    "inspect",
    "list-keys",
    "reset",
    "credit",
    "stats",
    "denials",
    "top",
];
const WHAT_IF: &[&str] = &["check", "explain", "simulate"];
const SETUP: &[&str] = &[
    "ping",
    "doctor",
    "load-scripts",
    "list-domains",
    "list-proxies",
    "completions",
    "man",
];

/// Examples come before the options: they are what most people look for.
const COMMAND_TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}\n";

const CONNECTION: &str = "\
A Redis URL is redis://[[user]:password@]host[:port][/db], or rediss:// with TLS; valkey:// and \
valkeys:// are the same. redis-sentinel://host:port,host:port/service finds the primary by Sentinel, \
redis-cluster://host:port,host:port is a Cluster. Put one with a password into the environment: arguments are visible to \
other users of the machine.

Exit codes: 0 done or yes, 1 the answer is no, 2 usage, 3 Redis unreachable, 4 authentication, \
5 not found, 6 conflict, 7 declined, 8 refused by Redis, 9 written but not in force everywhere \
yet (--wait), 130 interrupted.";

/// Replaces clap's one long list of commands.
pub fn grouped(command: Command) -> Command {
    let width = command
        .get_subcommands()
        .map(|sub| sub.get_name().len())
        .max()
        .unwrap_or(0);
    let mut listing = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(listing, "\x1b[1m\x1b[4m{title}:\x1b[0m");
        for name in *names {
            let about = command
                .find_subcommand(name)
                .and_then(Command::get_about)
                .map(ToString::to_string)
                .unwrap_or_default();
            let _ = writeln!(listing, "  \x1b[1m{name:width$}\x1b[0m  {about}");
        }
        listing.push('\n');
    }
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{listing}{{options}}{{after-help}}\n");
    command
        .mut_subcommands(|sub| sub.help_template(COMMAND_TEMPLATE))
        .help_template(template)
        .after_help(CONNECTION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), once.len());
        let command = Cli::command();
        let there: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(once, there);
    }

    #[test]
    fn every_command_has_examples() {
        for sub in Cli::command().get_subcommands() {
            let examples = sub.get_after_help().map(ToString::to_string);
            assert!(
                examples.is_some_and(|text| text.contains("rlctl")),
                "{}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn the_tree_is_sound() {
        grouped(Cli::command()).debug_assert();
    }
}
