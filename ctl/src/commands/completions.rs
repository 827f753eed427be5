//! `rlctl completions` and `rlctl man`.

use std::{
    future::{Ready, ready},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use clap_complete::{Shell, generate};
use store::Overrides;

use crate::{
    cli::{Global, command, examples},
    error::{Error, Exit},
    printer::Printer,
    session::Session,
};

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl completions bash > ~/.local/share/bash-completion/completions/rlctl"
    "rlctl completions zsh > ~/.zfunc/_rlctl"
    "rlctl completions fish > ~/.config/fish/completions/rlctl.fish"
))]
pub struct Completions {
    /// The shell.
    #[arg(required_unless_present = "names")]
    shell: Option<Shell>,

    /// What the scripts call: print the names of limits or domains.
    #[arg(long, hide = true, conflicts_with = "shell")]
    names: Option<Kind>,

    /// The line that is being completed, for the options in it.
    #[arg(hide = true, last = true, requires = "names")]
    words: Vec<String>,
}

/// What names are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Limits,
    Domains,
}

impl Completions {
    /// Writes the script to stdout.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        if let Some(kind) = self.names {
            return print(kind, global, &self.words, printer).await;
        }
        let Some(shell) = self.shell else {
            return Ok(Exit::Usage); // One of them is required.
        };
        let mut script = Vec::new();
        generate(shell, &mut command(), "rlctl", &mut script);
        printer.raw(&with_names(shell, &String::from_utf8_lossy(&script)))?;
        Ok(Exit::Done)
    }
}

/// Commands whose first argument is a limit.
const OF_A_LIMIT: &str =
    "get-limit set-limit delete-limit history inspect reset credit stats pause resume";

/// The script, extended so that it completes names.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{}", in_bash()),
        Shell::Fish => format!("{script}{}", in_fish()),
        Shell::Zsh => in_zsh(script),
        _ => script.to_owned(),
    }
}

fn in_bash() -> String {
    let commands = OF_A_LIMIT.replace(' ', "|");
    format!(
        r#"
_rlctl_with_names() {{
    _rlctl "$@"
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" kind="" words
    # Bash splits words at `:` and `=` as well.
    read -ra words <<< "${{COMP_LINE:0:$COMP_POINT}}"
    [[ $cur == "=" ]] && cur=""
    [[ $prev == "=" ]] && prev="${{COMP_WORDS[COMP_CWORD-2]}}"
    case "$prev" in
        --limit|{commands}) kind=limits ;;
        --domain|delete-domain) kind=domains ;;
    esac
    if [[ -n $kind && $cur != -* ]]; then
        COMPREPLY=($(compgen -W "$(rlctl completions --names "$kind" -- "${{words[@]}}" 2>/dev/null)" -- "$cur"))
    fi
}}
complete -F _rlctl_with_names -o bashdefault -o default rlctl
"#
    )
}

fn in_fish() -> String {
    let names = |kind: &str| {
        format!("-f -a '(rlctl completions --names {kind} -- (commandline -opc) 2>/dev/null)'")
    };
    let (limits, domains) = (names("limits"), names("domains"));
    format!(
        "complete -c rlctl -n \"__fish_seen_subcommand_from {OF_A_LIMIT}\" {limits}\n\
         complete -c rlctl -n \"__fish_seen_subcommand_from delete-domain\" {domains}\n\
         complete -c rlctl -l limit -x {limits}\n\
         complete -c rlctl -l domain -x {domains}\n"
    )
}

/// Completes names where the generated script offers files.
fn in_zsh(script: &str) -> String {
    let of_limits = |line: &str| {
        line.contains(":limit -- ")
            || line.contains(":name -- The limit:")
            || line.contains(":name -- What --limit is for")
            || line.contains("*::limits -- ")
            || line.contains("--limit=[")
    };
    let of_domains =
        |line: &str| line.contains("--domain=[") || line.contains(":name -- The domain");
    let mut text = String::new();
    for line in script.lines() {
        let names = match line {
            line if of_limits(line) => "_rlctl_limits",
            line if of_domains(line) => "_rlctl_domains",
            _ => "_default",
        };
        text.push_str(&line.replace(":_default'", &format!(":{names}'")));
        text.push('\n');
        if line.starts_with("#compdef") {
            for kind in ["limits", "domains"] {
                let call = format!(
                    "_rlctl_{kind}() {{ compadd -- ${{(f)\"$(rlctl completions --names {kind} -- \
                     $words 2>/dev/null)\"}} }}\n"
                );
                text.push_str(&call);
            }
        }
    }
    text
}

// --- The names that a shell completes. After an error there are none, and no message.

/// The timeout after Tab.
const PATIENCE: &str = "500ms";

/// Prints names, one a line.
async fn print(
    kind: Kind,
    global: &Global,
    words: &[String],
    printer: &Printer,
) -> Result<Exit, Error> {
    let typed = |flag: &str| given(words, flag);
    let global = Global {
        redis: typed("--redis").or_else(|| global.redis.clone()),
        domain: typed("--domain").or_else(|| global.domain.clone()),
        key_prefix: typed("--key-prefix").or_else(|| global.key_prefix.clone()),
        timeout: Some(PATIENCE.to_owned()),
        ..global.clone()
    };
    if let Ok(names) = names(kind, &global, printer).await {
        printer.raw(&(names.join("\n") + "\n"))?;
    }
    Ok(Exit::Done)
}

async fn names(kind: Kind, global: &Global, printer: &Printer) -> Result<Vec<String>, Error> {
    let session = Session::open(global, printer)?;
    if kind == Kind::Domains {
        let domains = session.domains().await?;
        return Ok(domains.iter().map(ToString::to_string).collect());
    }
    let policy = session.policy(Overrides::None).await?;
    let names = policy.limits.iter().map(|limit| limit.name.to_string());
    Ok(names.collect())
}

/// The value of an option on the command line, if given.
fn given(words: &[String], flag: &str) -> Option<String> {
    let after = |word: &String| {
        let rest = word.strip_prefix(flag)?.strip_prefix('=')?;
        Some(rest.to_owned())
    };
    let next = words.windows(2).find_map(|pair| match pair {
        [word, value] if word == flag => Some(value.clone()),
        _ => None,
    });
    next.or_else(|| words.iter().find_map(after))
        .filter(|value| !value.is_empty())
}

// --- `rlctl man`.

/// Print the manual.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl man | man -l -"
    "rlctl man --dir ~/.local/share/man/man1"
))]
pub struct Man {
    /// Write rlctl.1 and a page for every command to this folder.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl Man {
    /// Writes the page or pages.
    pub fn run(&self, _: &Global, printer: &Printer) -> Ready<Result<Exit, Error>> {
        ready(self.write(printer))
    }

    fn write(&self, printer: &Printer) -> Result<Exit, Error> {
        let failed = |error| Error::new(Exit::Usage, format!("cannot write the manual: {error}"));
        if let Some(dir) = &self.dir {
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(command(), dir))
                .map_err(failed)?;
            printer.note(format_args!("wrote the manual to {}", dir.display()));
        } else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command())
                .render(&mut page)
                .map_err(failed)?;
            printer.raw(&String::from_utf8_lossy(&page))?;
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_the_line() {
        let words = [
            "rlctl",
            "--domain",
            "shop",
            "--redis=redis://a",
            "get-limit",
            "",
        ];
        let words = words.map(str::to_owned);
        assert_eq!(given(&words, "--domain").as_deref(), Some("shop"));
        assert_eq!(given(&words, "--redis").as_deref(), Some("redis://a"));
        assert_eq!(given(&words, "--key-prefix"), None);
    }
}
