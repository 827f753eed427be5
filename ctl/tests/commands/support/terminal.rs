//! A terminal with a program in it.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

use std::{
    io::{Read, Write},
    num::NonZeroU16,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use harness::until;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use rustix::process::{Pid, Signal, kill_process};

/// The longest wait for something that a program should do.
pub const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: PtySize = PtySize {
    rows: 24,
    cols: 80,
    pixel_width: 0,
    pixel_height: 0,
};

/// A terminal of 80 columns, with a program in it.
pub struct Terminal {
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    parser: Arc<Mutex<vt100::Parser>>,
    /// Everything that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
    before: String,
}

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).expect("some")
}

/// How the terminal treats what is typed.
fn mode(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().expect("a terminal has a mode"))
}

impl Terminal {
    /// Starts a program with these arguments and variables.
    pub fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let pair = native_pty_system().openpty(SIZE)?;
        let before = mode(&*pair.master);
        let mut command = CommandBuilder::new(program);
        command.args(arguments);
        for (name, value) in [("TERM", "xterm-256color"), ("LC_ALL", "C.UTF-8")] {
            command.env(name, value);
        }
        for name in [
            "NO_COLOR",
            "COLUMNS",
            "RLCTL_DOMAIN",
            "RL_KEY_PREFIX",
            "RLCTL_TIMEOUT",
        ] {
            command.env_remove(name);
        }
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command)?;
        let mut output = pair.master.try_clone_reader()?;
        let parser = Arc::new(Mutex::new(vt100::Parser::new(cells(24), cells(80), 0)));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (screen, all) = (Arc::clone(&parser), Arc::clone(&written));
        // Ends with the program, whose exit closes the terminal. Until then the pair's owner keeps
        // the slave open.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let bytes = bytes.get(..count).unwrap_or_default();
                all.lock().unwrap().extend_from_slice(bytes);
                screen.lock().unwrap().process(bytes);
            }
        });
        Ok(Self {
            keys: pair.master.take_writer()?,
            master: pair.master,
            child,
            parser,
            written,
            before,
        })
    }

    fn text(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    /// Waits until this is on the screen, and returns the whole screen.
    pub async fn shows(&self, what: &str) -> Result<String> {
        let shown = until(what, PATIENCE, async || {
            let text = self.text();
            text.contains(what).then_some(text)
        });
        shown
            .await
            .with_context(|| format!("the screen is\n{}", self.text()))
    }

    /// Waits until this is not on the screen.
    pub async fn shows_no_more(&self, what: &str) -> Result<()> {
        until(what, PATIENCE, async || {
            (!self.text().contains(what)).then_some(())
        })
        .await
    }

    /// Types.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(self.keys.flush()?)
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.process_id().context("it runs")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Makes it smaller or larger.
    pub fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        let mut parser = self.parser.lock().unwrap();
        parser.screen_mut().set_size(cells(rows), cells(cols));
        self.master.resize(PtySize { rows, cols, ..SIZE })
    }

    /// Everything that was written to it, also after its end.
    pub fn written(&self) -> impl Fn() -> String + use<> {
        let written = Arc::clone(&self.written);
        move || String::from_utf8_lossy(&written.lock().unwrap()).into_owned()
    }

    /// Waits for the end of a program that has no screen of its own; the exit code.
    pub async fn code(&mut self) -> Result<u32> {
        let status = until("the program ends", PATIENCE, async || {
            self.child.try_wait().ok().flatten()
        });
        Ok(status.await?.exit_code())
    }

    /// Waits for the end and for the terminal to be as before; returns the exit code.
    pub async fn ends(mut self) -> Result<u32> {
        let code = self.code().await?;
        until("the screen is given back", PATIENCE, async || {
            let parser = self.parser.lock().unwrap();
            let screen = parser.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        })
        .await?;
        assert_eq!(mode(&*self.master), self.before, "how keys are treated");
        assert!(
            self.written()().contains("\u{1b}[?1049h"),
            "it had a screen of its own"
        );
        Ok(code)
    }
}
