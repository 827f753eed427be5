//! Confirmation before something is deleted.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::{error::Error, exit::Exit};

/// What commands take that ask first.
#[derive(Clone, Copy, Debug, Args)]
pub struct Yes {
    /// Do it without asking.
    #[arg(short, long, help_heading = "Edit options")]
    pub yes: bool,
}

/// Goes on if the user agrees: `--yes`, or an answer at the terminal.
///
/// `question` names what would be deleted. Without a terminal, `--yes` is required.
pub async fn confirm(question: String, yes: &Yes) -> Result<(), Error> {
    if yes.yes {
        return Ok(());
    }
    if !can_ask() {
        return Err(
            Error::new(Exit::Declined, format!("{question}: not confirmed"))
                .hint("there is no terminal to ask at; add --yes if this is meant"),
        );
    }
    // On a thread of its own, so that Ctrl-C ends the question.
    let answer = tokio::task::spawn_blocking(move || {
        ask(&question, &mut io::stdin().lock(), &mut io::stderr().lock())
    });
    match answer.await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Error::new(Exit::Declined, "declined; nothing was changed")),
        Ok(Err(error)) => Err(Error::new(
            Exit::Declined,
            format!("cannot ask at the terminal: {error}"),
        )),
        Err(error) => Err(Error::new(Exit::Declined, format!("cannot ask: {error}"))),
    }
}

/// Whether stdin and stderr are a terminal.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks until the answer is yes or no. The end of the input counts as no.
fn ask(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<bool> {
    loop {
        write!(output, "{question}? [y/N] ")?;
        output.flush()?;
        let mut answer = String::new();
        if input.read_line(&mut answer)? == 0 {
            writeln!(output)?;
            return Ok(false);
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "" | "n" | "no" => return Ok(false),
            _ => writeln!(output, "please answer y or n")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(typed: &str) -> (bool, String) {
        let mut shown = Vec::new();
        let yes = ask("delete it", &mut typed.as_bytes(), &mut shown).unwrap();
        (yes, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        assert_eq!(answer("y\n"), (true, "delete it? [y/N] ".into()));
        assert!(answer(" YES \n").0);
        assert!(!answer("\n").0);
        assert!(!answer("no\n").0);
    }

    #[test]
    fn the_end_of_the_input_is_a_no() {
        assert_eq!(answer(""), (false, "delete it? [y/N] \n".into()));
    }

    #[test]
    fn anything_else_is_asked_again() {
        let (yes, shown) = answer("per-user\ny\n");
        assert!(yes);
        assert_eq!(shown.matches("[y/N]").count(), 2);
    }
}
