//! The limiter's program: flags in, `limiter::run`, an exit code out.

use std::{process::ExitCode, sync::Arc};

use clap::{CommandFactory, Parser};
use limiter::{AsRatelimit, Flags, Listeners, Settings, Traces, run, start_log};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::StoreUrl;
use tokio::signal::unix::Signal;

/// A request makes a few dozen small allocations on whichever thread is free; this allocator is
/// fast at that. Without huge pages (`no_thp`), of which one small allocation keeps two megabytes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// After how many milliseconds the allocator returns freed memory to the system. At 10, strangers'
/// bodies of 43,000 names kept 25 MiB more at the same load; a check is a few per cent dearer at 1.
const PURGE_MS: std::ffi::c_long = 1;

/// Makes the allocator return memory soon. It keeps a second's freed memory otherwise: where limits of
/// many megabytes change every second, as much again as they take. A value of the environment
/// (`MIMALLOC_PURGE_DELAY`) stays.
#[expect(
    unsafe_code,
    reason = "reads and writes a number of the allocator's options"
)]
fn return_memory_soon() {
    // `mi_option_purge_delay` of mimalloc.h, which the crate does not name, and its default.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    const DEFAULT_MS: std::ffi::c_long = 1000;
    // SAFETY: both take numbers only, and ignore those of options that do not exist.
    unsafe {
        if libmimalloc_sys::mi_option_get(PURGE_DELAY) == DEFAULT_MS {
            libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_MS);
        }
    }
}

fn main() -> ExitCode {
    return_memory_soon();
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limiter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Box<dyn std::error::Error>> {
    let program = std::env::args_os().next().unwrap_or_default();
    if !AsRatelimit::is_meant(&program) {
        return serve(&Flags::parse(), &[]);
    }
    let meant = AsRatelimit::new(|name| std::env::var(name).ok())?;
    serve(&Flags::parse_from(&meant.arguments), &meant.notes)
}

fn serve(flags: &Flags, notes: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    if flags.man {
        let manual = clap_mangen::Man::new(Flags::command());
        return Ok(manual.render(&mut std::io::stdout())?);
    }
    start_log(flags.log_format, &flags.log)?;
    for note in notes.iter().chain(&Flags::unread(std::env::vars_os())) {
        tracing::warn!("{note}");
    }
    let traces = Traces::start()?;
    let served = serve_traced(flags);
    traces.end();
    served
}

fn serve_traced(flags: &Flags) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before a port opens: an earlier signal would end the process without a drain, or be
        // ignored if this is the first process of a container.
        let end = end_signal();
        let url = flags
            .store
            .0
            .as_ref()
            .map_err(|error| format!("--store: {error}"))?;
        let listeners = Listeners::bind(flags.listen, &flags.admin)?;
        let store = store::open(url, flags.store_options())?;
        if matches!(url, StoreUrl::Memory) {
            tracing::warn!("limits and buckets are in the memory of this process, where rlctl and other limiters cannot see them; set --store or RL_STORE to redis://HOST");
        }
        if flags.has_no_limits() {
            tracing::warn!("there are no limits: name a file with --limits, or a store with --store");
        }
        tracing::info!(
            listen = %listeners.data.local_addr()?,
            admin = ?flags.admin,
            store = %store.address(),
            "starting"
        );
        let mut settings = flags.settings();
        fit_open_files(&mut settings);
        run(
            settings,
            listeners,
            Arc::clone(&store),
            end,
        )
        .await?;
        Ok(())
    })
}

/// Descriptors of other things than connections to the data port: the admin port's, the store's, files.
const OTHER_FILES: u64 = 256;

/// Raises the limit on open files to what the system permits, which many systems leave at 1,024, and where that is too
/// little lowers the bound of connections: without descriptors a limiter reaches no store, and answers no probe.
fn fit_open_files(settings: &mut Settings) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit on open files");
    }
    let Some(files) = getrlimit(Resource::Nofile).current else {
        return;
    };
    let fit = files.saturating_sub(OTHER_FILES).max(1);
    let fit = usize::try_from(fit).unwrap_or(usize::MAX);
    if fit < settings.max_connections {
        tracing::warn!(
            files,
            max_connections = fit,
            "the system permits too few open files (ulimit -n) for --max-connections"
        );
        settings.max_connections = fit;
    }
}

/// Catches SIGTERM and SIGINT from the call on; a second one ends the process at once.
fn end_signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        let [Ok(terminate), Ok(interrupt)] = signals else {
            tracing::error!("cannot catch signals; only SIGKILL ends this process");
            return std::future::pending().await;
        };
        wait_for_end(terminate, interrupt).await;
    }
}

async fn wait_for_end(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::process::exit(130);
    });
}
