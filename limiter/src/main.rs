//! The limiter's program: flags in, `limiter::run`, an exit code out.

use std::{process::ExitCode, sync::Arc};

use clap::{CommandFactory, Parser};
use limiter::{AsRatelimit, Flags, Listeners, Traces, run, start_log};
use store::StoreUrl;

/// A request makes some dozens of small allocations on whichever thread is free, which is what
/// this allocator is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
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
    for note in notes {
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
        tracing::info!(
            listen = %listeners.data.local_addr()?,
            admin = ?flags.admin,
            store = %store.address(),
            "starting"
        );
        run(
            flags.settings(),
            listeners,
            Arc::clone(&store),
            told_to_end(),
        )
        .await?;
        Ok(())
    })
}

/// SIGTERM or SIGINT; the second one ends the process at once.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals cannot be heeded; only SIGKILL ends this process");
        return std::future::pending().await;
    };
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
