//! `rlctl top` in a terminal: what it draws, what keys do, and how it leaves the terminal.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod support;

use std::{
    io::{Read, Write},
    num::NonZeroU16,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use ctl::screen::Screen;
use harness::until;
use policy::Name;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use protocol::{DecidedBy, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use store::{
    Activity, BucketActivity, Denial, LimitActivity, Note, Noted, Options, Sighting, Stretch, open,
};
use support::{Server, VALKEY, rlctl};

const PATIENCE: Duration = Duration::from_secs(20);

/// A terminal of 80 columns, with a program in it.
struct Terminal {
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
    fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let size = PtySize {
            rows: 24,
            cols: 80,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size)?;
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
        // Ends with the program, whose end closes the terminal. The slave is kept open until then
        // by whoever holds the pair.
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

    async fn shows(&self, what: &str) -> Result<String> {
        let shown = until(what, PATIENCE, async || {
            let text = self.text();
            text.contains(what).then_some(text)
        });
        shown
            .await
            .with_context(|| format!("the screen is\n{}", self.text()))
    }

    async fn shows_no_more(&self, what: &str) -> Result<()> {
        until(what, PATIENCE, async || {
            (!self.text().contains(what)).then_some(())
        })
        .await
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(self.keys.flush()?)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.process_id().context("it runs")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for the end; the exit code, with the terminal as it was before.
    async fn ends(mut self) -> Result<u32> {
        let status = until("the program ends", PATIENCE, async || {
            self.child.try_wait().ok().flatten()
        })
        .await?;
        until("the screen is given back", PATIENCE, async || {
            let parser = self.parser.lock().unwrap();
            let screen = parser.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        })
        .await?;
        assert_eq!(mode(&*self.master), self.before, "how keys are treated");
        let written = self.written.lock().unwrap();
        assert!(
            String::from_utf8_lossy(&written).contains("\u{1b}[?1049h"),
            "it had a screen of its own"
        );
        Ok(status.exit_code())
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn bucket(user: &str, requests: u64, denied: u64) -> BucketActivity {
    BucketActivity {
        limit: name("per-user"),
        bucket: vec![(name("user"), Some(user.as_bytes().to_vec()))],
        requests,
        denied,
        last: (denied > 0).then(|| Denial {
            at_ms: 1,
            outcome: Outcome::Denied,
            by: DecidedBy::DenyCache,
            proxy: None,
            descriptor: vec![(name("path"), format!("/of/{user}").into_bytes())],
        }),
    }
}

/// A server on which a limiter told of some decisions.
async fn server() -> Result<Server> {
    let server = tokio::task::spawn_blocking(|| Server::start(VALKEY, &[])).await??;
    let url = server.url();
    let edit = ["--redis", &url, "--domain", "shop", "set-limit", "per-user"];
    let edit = rlctl(&edit)
        .args(["--per", "user", "--rate", "1/s"])
        .output()?;
    assert!(edit.status.success());
    let store = open(&url.parse()?, Options::default())?;
    store
        .note("a", &[Note::Fleet(&Sighting::default())])
        .await?;
    let mut limit = LimitActivity::default();
    limit.add(Outcome::Denied, DecidedBy::DenyCache, 4000);
    let noted = Noted {
        covered_ms: 10_000,
        activity: Activity {
            limits: [(name("per-user"), limit)].into(),
            buckets: vec![bucket("alice", 400, 300), bucket("bob", 9000, 0)],
            ..Activity::default()
        },
    };
    let note = Note::Activity {
        domain: &name("shop"),
        slot: Stretch::Short.slot(store.about_now_ms()),
        noted: &noted,
    };
    store.note("web-1:8090/00aa", &[note]).await?;
    Ok(server)
}

const RLCTL: &str = env!("CARGO_BIN_EXE_rlctl");

#[tokio::test]
async fn it_shows_who_is_denied_and_obeys_keys() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    // A minute, so that what was told does not run out of the picture.
    let arguments = ["top", "--redis", &url, "--over", "1m"];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    let text = terminal.shows("user=alice").await?;
    assert!(text.contains("per-user") && text.contains("400"), "{text}");
    assert!(
        text.contains("answers in") && text.contains("path=/of/alice"),
        "{text}"
    );
    let place = |text: &str, what: &str| text.find(what).expect("it is shown");
    assert!(place(&text, "user=alice") < place(&text, "user=bob"));
    terminal.press("r")?;
    let text = terminal.shows("REQ/S▼").await?;
    assert!(
        place(&text, "user=bob") < place(&text, "user=alice"),
        "{text}"
    );
    terminal.press("/bob\r")?;
    terminal.shows_no_more("user=alice").await?;
    terminal.shows("filter: bob").await?;
    terminal.press("\u{1b}")?;
    terminal.shows("user=alice").await?;
    terminal.press("?")?;
    terminal.shows("Any key closes this").await?;
    terminal.press("x")?;
    terminal.shows_no_more("Any key closes this").await?;
    terminal.press("q")?;
    assert_eq!(terminal.ends().await?, 0);
    Ok(())
}

#[tokio::test]
async fn however_it_ends_the_terminal_is_as_it_was() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    let arguments = ["top", "--redis", &url];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    terminal.shows("answers in").await?;
    terminal.press("\u{3}")?;
    assert_eq!(terminal.ends().await?, 130);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let terminal = Terminal::run(RLCTL, &arguments, &[])?;
        terminal.shows("answers in").await?;
        terminal.signal(signal)?;
        assert_eq!(terminal.ends().await?, 130);
    }
    Ok(())
}

#[tokio::test]
async fn it_goes_on_when_redis_goes_and_in_a_smaller_window() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    let arguments = ["top", "--redis", &url, "--over", "1m", "--timeout", "200ms"];
    let mut terminal = Terminal::run(RLCTL, &arguments, &[])?;
    terminal.shows("user=alice").await?;
    server.process().pause()?;
    terminal.shows("no answer").await?;
    terminal.shows("user=alice").await?;
    server.process().resume()?;
    terminal.shows("answers in").await?;
    let small = PtySize {
        rows: 6,
        cols: 30,
        pixel_width: 0,
        pixel_height: 0,
    };
    terminal
        .parser
        .lock()
        .unwrap()
        .screen_mut()
        .set_size(cells(6), cells(30));
    terminal.master.resize(small)?;
    terminal.shows("rlctl top  shop").await?;
    terminal.press("q")?;
    assert_eq!(terminal.ends().await?, 0);
    Ok(())
}

#[tokio::test]
async fn no_color_means_none() -> Result<()> {
    let server = server().await?;
    let url = server.url();
    for (variables, colored) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let arguments = ["top", "--redis", &url, "--over", "1m"];
        let mut terminal = Terminal::run(RLCTL, &arguments, variables)?;
        terminal.shows("user=alice").await?;
        terminal.press("q")?;
        let written = Arc::clone(&terminal.written);
        assert_eq!(terminal.ends().await?, 0);
        let written = String::from_utf8_lossy(&written.lock().unwrap()).into_owned();
        // Red, as the 256 colors have it.
        assert_eq!(written.contains("\u{1b}[38;5;1"), colored, "{variables:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_from_the_start_is_said_without_a_screen() -> Result<()> {
    let port = harness::free_port()?;
    let url = format!("redis://127.0.0.1:{port}");
    let terminal = Terminal::run(RLCTL, &["top", "--redis", &url], &[])?;
    terminal.shows("cannot reach").await?;
    let written = String::from_utf8_lossy(&terminal.written.lock().unwrap()).into_owned();
    assert!(!written.contains("\u{1b}[?1049h"), "{written}");
    Ok(())
}

/// Not a test: what the next one runs in a terminal.
#[test]
#[ignore = "panics on a terminal, as the test after it wants"]
fn panics_with_a_screen() {
    let _screen = Screen::take().expect("a terminal");
    panic!("something is wrong");
}

#[tokio::test]
async fn a_panic_gives_the_terminal_back_and_is_read() -> Result<()> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("a path")?;
    let arguments = [
        "--exact",
        "panics_with_a_screen",
        "--ignored",
        "--nocapture",
    ];
    let terminal = Terminal::run(own, &arguments, &[])?;
    terminal.shows("something is wrong").await?;
    assert_ne!(terminal.ends().await?, 0);
    Ok(())
}
