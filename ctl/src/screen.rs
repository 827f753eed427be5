//! Takes over the whole terminal, and restores it afterwards.

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

/// The terminal in full-screen mode. Dropping it restores the terminal, and so does a panic.
#[derive(Debug)]
pub struct Screen {
    /// The terminal to draw on.
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Whether there is a terminal to take, to draw on and to read keys from.
    pub fn is_there() -> bool {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        io::stdout().is_terminal() && io::stdin().is_terminal() && !dumb
    }

    /// Switches the terminal to full-screen mode.
    ///
    /// # Errors
    /// The terminal's error; the terminal is then as before.
    pub fn take() -> io::Result<Self> {
        give_back_at_panic();
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        enable_raw_mode()?;
        // From here on the terminal has to be restored.
        TAKEN.store(true, Ordering::SeqCst);
        let screen = Self { terminal };
        // Not `Terminal::clear`: it asks the terminal for the cursor's position, and some terminals
        // do not answer, or not in time.
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

/// Restores the terminal, once: a second time would move the cursor back over later output. Errors
/// are ignored, as the terminal may be closed.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic's message, which would vanish with the full screen.
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
