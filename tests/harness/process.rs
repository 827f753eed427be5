//! A program that lives as long as the value that holds it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::until;

/// The time that a program may take to become ready, or to stop on request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Lines of a log that an error carries.
const TAIL_LINES: usize = 25;

/// A running program. It is killed when dropped, and by the kernel should this
/// process die first.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output goes to `dir/name.log`.
    ///
    /// Call it from a thread that outlives the program, such as a test's own: the kernel treats the
    /// end of the starting thread as the parent's death.
    pub fn start(name: &str, command: &mut Command, dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C must reach only this process, which stops its programs in order.
            .process_group(0);
        die_with_parent(command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", shown(command)))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Waits until `probe` returns something. If the program ends first, the error carries the end
    /// of its log.
    pub async fn ready<T>(&mut self, mut probe: impl AsyncFnMut() -> Option<T>) -> Result<T> {
        let what = format!("{} is ready", self.name);
        let mut ended = None;
        let found = until(&what, PATIENCE, async || {
            ended = self.child.try_wait().ok().flatten();
            if ended.is_some() {
                Some(None)
            } else {
                probe().await.map(Some)
            }
        })
        .await;
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) => {
                let status = ended.map_or_else(String::new, |status| format!(" ({status})"));
                bail!(
                    "{} ended instead of serving{status}; its log ends:\n{}",
                    self.name,
                    self.log_tail()
                )
            }
            Err(late) => Err(late.context(format!("its log ends:\n{}", self.log_tail()))),
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.ended().await.map(drop)
    }

    /// Waits until it has ended, for whatever reason.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let what = format!("{} stops when asked", self.name);
        until(&what, PATIENCE, async || {
            self.child.try_wait().ok().flatten()
        })
        .await
    }

    /// Stops it with SIGSTOP: it still accepts connections, and answers nothing.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Undoes [`Process::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to read its files again, as `systemctl reload` does.
    pub fn hang_up(&self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    /// Memory that it has in use, in bytes (Linux only).
    pub fn memory_bytes(&self) -> Result<u64> {
        Ok(self.status("VmRSS:")? * 1024)
    }

    /// Its threads (Linux only).
    pub fn threads(&self) -> Result<u64> {
        self.status("Threads:")
    }

    /// A number that the kernel shows of it.
    fn status(&self, name: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        let number = value.and_then(|value| value.split_whitespace().next());
        Ok(number.with_context(|| format!("no {name}"))?.parse()?)
    }

    /// CPU time that it has used, in microseconds, by the kernel's ticks of 10 ms (Linux only).
    pub fn cpu_us(&self) -> Result<u64> {
        cpu_us(self.child.id())
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines
            .get(lines.len().saturating_sub(TAIL_LINES)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.name))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A program that cannot be killed is left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- end of the log of {} ---\n{}",
                self.name,
                self.log_tail()
            );
        }
    }
}

/// Makes the kernel kill the program when the thread that started it ends, even if [`Drop`] does not
/// run.
#[expect(
    unsafe_code,
    reason = "pre_exec is unsafe: it runs between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: the closure makes one system call; it neither allocates nor locks.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

/// CPU time that a process has used, in microseconds, by the kernel's ticks of 10 ms (Linux only).
pub fn cpu_us(id: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let (user, system) = {
        let mut times = fields.split_whitespace().skip(11);
        (times.next(), times.next())
    };
    let ticks = |field: Option<&str>| Ok::<u64, anyhow::Error>(field.context("no times")?.parse()?);
    Ok((ticks(user)? + ticks(system)?) * 10_000)
}

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .map(|word| {
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}
