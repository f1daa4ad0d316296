//! A run of `marline accel`, until it is stopped.
//!
//! 1. Signals are heard before anything is changed: whoever starts it may stop it at once.
//! 2. However it ends here, the engine is dropped, which puts everything back. What `kill -9` leaves lets packets pass.
//! 3. Where bytes may be acknowledged ahead, somebody is there first who outlives this process (`repair`).

use std::sync::Arc;

use marline_accel::{
    AccelError, Engine, EngineConfig, FlowFilter, LinkDevices, control, pending_path, resolve_links,
    run_range_client, status::Status,
};
use marline_net::links::survey;
use marline_paths::ground;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::args::RunArgs;
use super::{exit, json_of, options, print, repair, run_dir, say};
use crate::Exit;
use crate::confine::{Daemon, confine};
use crate::hangup::Hangup;

/// Helps flows until stopped.
pub(super) fn run(args: RunArgs) -> Result<(), Exit> {
    let mut config = options::config(&args)?;
    let link_args = options::link_args(&args)?;
    confine(Daemon::Accel);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let _inside = runtime.enter();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        signals.push(signal(kind).map_err(|error| Exit::failed(format!("signals cannot be caught: {error}")))?);
    }
    let hangup = Hangup::caught()?;
    let survey = survey().map_err(|error| exit(error.into()))?;
    let links = resolve_links(&survey, &link_args).map_err(exit)?;
    for (secondary, link) in config.secondary_links.iter_mut().zip(links.iter().skip(1)) {
        secondary.families = link.families;
    }
    let flow_filter: FlowFilter = args.flows.unwrap_or_default();
    let names: Vec<&str> = link_args.iter().map(|link_args| link_args.name.as_str()).collect();
    let (primary, others) = names.split_first().map_or(("", &[][..]), |(primary, others)| (*primary, others));
    let with = if others.is_empty() { "alone".to_owned() } else { format!("with {}", others.join(" and ")) };
    let beginning = format!("helping {flow_filter} of {primary} {with}: {}; Ctrl-C stops it", config.mechanisms);
    let dir = run_dir(args.run_dir.as_deref());
    if control::is_taken(&dir, primary) {
        return Err(exit(AccelError::already_running(primary)));
    }
    let made = ground::run_directory(&dir).map_err(|error| Exit::failed(error.to_string()))?;
    let (fetch_commands, fetch_receiver) = tokio::sync::mpsc::unbounded_channel();
    let devices = LinkDevices::of(&links);
    repair::repair_orphan(&dir, primary, &links)?;
    let pending_file = config.mechanisms.acknowledge_early().then(|| pending_path(&dir, primary));
    // Closes its input when this is dropped, as any end of this process does.
    let repairer = pending_file.as_ref().map(|file| repair::start(file, &links)).transpose();
    let setup = EngineConfig {
        config,
        links,
        flow_filter,
        trace: args.trace,
        pending_file,
        fetch_commands: Some(fetch_commands),
    };
    let ended = (|| {
        let repairer = repairer?;
        let mut engine = Engine::start(setup).map_err(exit)?;
        let handle = engine.handle();
        // Ends with the engine, which alone sends errands.
        let callback = Arc::new(move |fetch, range, bytes| handle.fetched(fetch, range, bytes));
        tokio::spawn(run_range_client(devices, fetch_receiver, callback));
        let stop = Arc::new(Notify::new());
        let listener = control::listen(&dir, primary, engine.handle(), Arc::clone(&stop));
        let listener = listener.map_err(|error| {
            Exit::failed(format!(
                "{}: {error}: the control socket cannot be made; name another directory with --run-dir",
                dir.display()
            ))
        })?;
        if !args.quiet {
            say(&beginning);
        }
        let (lost, last) = runtime.block_on(async {
            let lost = tokio::select! {
                error = engine.failed() => Some(error),
                () = stop.notified() => None,
                never = hangup.changes_nothing(args.quiet) => match never {},
                () = std::future::poll_fn(|cx| {
                    let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                    if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }) => None,
            };
            (lost, engine.handle().status().await)
        });
        // `stop` waits for the socket to go: by then everything is put back.
        drop(engine);
        drop(repairer);
        if lost.is_none() {
            // Its answer is on its way to whoever wanted the end.
            runtime.block_on(async { tokio::task::yield_now().await });
        }
        drop(listener);
        lost.map_or(Ok(last), |error| Err(exit(error)))
    })();
    if made {
        // Where something is left in it, it is needed.
        let _ = std::fs::remove_dir(&dir);
    }
    let last: Option<Status> = ended?;
    if !args.quiet {
        say("stopped; everything is as it was before");
    }
    match last {
        Some(last) if args.json => print(&json_of(&last)?),
        _ => Ok(()),
    }
}
