//! The whole terminal, for as long as it is needed, and then as it was.

use std::{
    io::{self, IsTerminal, Stdout},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    cursor, execute,
    terminal::{
        Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
        enable_raw_mode,
    },
};
use ratatui::{Terminal, backend::CrosstermBackend};

/// Whether the terminal is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, taken. Dropping it gives it back, and so does a panic.
#[derive(Debug)]
pub struct Screen {
    /// What is drawn on.
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Whether there is a terminal to take, to draw on and to read keys from.
    pub fn is_there() -> bool {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb
    }

    /// Takes the terminal.
    ///
    /// # Errors
    /// What the terminal said; then it is as it was.
    pub fn take() -> io::Result<Self> {
        give_back_at_panic();
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        enable_raw_mode()?;
        // From here on there is something to give back.
        TAKEN.store(true, Ordering::SeqCst);
        let screen = Self { terminal };
        // Not `Terminal::clear`: that asks the terminal where its cursor is, and not every one
        // answers, nor in time.
        let all = Clear(ClearType::All);
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide, all)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// A terminal that does not listen any more needs nothing. Given back twice, its cursor would go
/// back over what was written in between.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// The message of a panic would vanish with the screen that it is written to.
fn give_back_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}
