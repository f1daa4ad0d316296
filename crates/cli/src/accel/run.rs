//! A run of `marline accel`, until it is stopped.
//!
//! 1. Signals are handled before anything is changed, so that it can be stopped at any time.
//! 2. However it ends here, the engine is dropped, which restores everything. Rules that `kill -9` leaves let packets pass.
//! 3. If bytes may be acknowledged early, the repair process (`repair`) is started first.

use std::sync::Arc;

use marline_accel::{
    AccelError, Engine, EngineConfig, FlowFilter, LinkDevices, control, pending_path, resolve_links,
    run_range_client, status::Status,
};
use marline_core::accel::Mechanism;
use marline_net::links::list_interfaces;
use marline_paths::host_config;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::args::RunArgs;
use super::{exit, options, print_notice, repair, run_dir};
use crate::CliError;
use crate::output::{print_result, to_json};
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

/// Accelerates flows until it is stopped.
pub(super) fn run(args: RunArgs) -> Result<(), CliError> {
    let mut config = options::config(&args)?;
    let link_args = options::link_args(&args)?;
    drop_privileges(Daemon::Accel);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| CliError::failed(format!("the event loop cannot be started: {error}")))?;
    let _inside = runtime.enter();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        signals.push(signal(kind).map_err(|error| CliError::failed(format!("signals cannot be caught: {error}")))?);
    }
    let hangup = ReloadSignal::register()?;
    let survey = list_interfaces().map_err(|error| exit(error.into()))?;
    let links = resolve_links(&survey, &link_args).map_err(exit)?;
    for (secondary, link) in config.secondary_links.iter_mut().zip(links.iter().skip(1)) {
        secondary.families = link.families;
    }
    let flow_filter: FlowFilter = args.flows.unwrap_or_default();
    let names: Vec<&str> = link_args.iter().map(|link_args| link_args.name.as_str()).collect();
    let (primary, others) = names.split_first().map_or(("", &[][..]), |(primary, others)| (*primary, others));
    let with = if others.is_empty() { "alone".to_owned() } else { format!("with {}", others.join(" and ")) };
    let beginning =
        format!("accelerating {flow_filter} of {primary} {with}: {}; press Ctrl-C to stop", config.mechanisms);
    let dir = run_dir(args.run_dir_args.run_dir.as_deref());
    if control::is_taken(&dir, primary) {
        return Err(exit(AccelError::already_running(primary)));
    }
    let made = host_config::ensure_run_dir(&dir).map_err(|error| CliError::failed(error.to_string()))?;
    let (fetch_commands, fetch_receiver) = tokio::sync::mpsc::unbounded_channel();
    let devices = LinkDevices::of(&links);
    repair::repair_orphan(&dir, primary, &links)?;
    let pending_file =
        config.mechanisms.iter().any(Mechanism::acknowledges_early).then(|| pending_path(&dir, primary));
    // Dropping it closes its input, as any end of this process does.
    let repairer = pending_file.as_ref().map(|file| repair::start(file, &links)).transpose();
    let setup = EngineConfig {
        config,
        links,
        flow_filter,
        trace: args.log.trace,
        pending_file,
        fetch_commands: Some(fetch_commands),
    };
    let ended = (|| {
        let repairer = repairer?;
        let mut engine = Engine::start(setup).map_err(exit)?;
        let handle = engine.handle();
        // Ends with the engine, the only sender of fetch commands.
        let callback = Arc::new(move |fetch, range, bytes| handle.fetched(fetch, range, bytes));
        tokio::spawn(run_range_client(devices, fetch_receiver, callback));
        let stop = Arc::new(Notify::new());
        let listener = control::listen(&dir, primary, engine.handle(), Arc::clone(&stop));
        let listener = listener.map_err(|error| {
            CliError::failed(format!(
                "{}: {error}: the control socket cannot be created; choose another directory with --run-dir",
                dir.display()
            ))
        })?;
        if !args.quiet {
            print_notice(&beginning);
        }
        let (lost, last) = runtime.block_on(async {
            let lost = tokio::select! {
                error = engine.failed() => Some(error),
                () = stop.notified() => None,
                never = hangup.ignore_with_notice(args.quiet) => match never {},
                () = std::future::poll_fn(|cx| {
                    let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                    if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }) => None,
            };
            (lost, engine.handle().status().await)
        });
        // `marline accel stop` waits until the socket is removed: everything must be restored before.
        drop(engine);
        drop(repairer);
        if lost.is_none() {
            // Lets the response to `marline accel stop` be sent.
            runtime.block_on(async { tokio::task::yield_now().await });
        }
        drop(listener);
        lost.map_or(Ok(last), |error| Err(exit(error)))
    })();
    if made {
        // Fails if a file is left in it, and that file is still needed.
        let _ = std::fs::remove_dir(&dir);
    }
    let last: Option<Status> = ended?;
    if !args.quiet {
        print_notice("stopped; everything is as it was before");
    }
    match last {
        Some(last) if args.format.json => print_result(&to_json(&last)?),
        _ => Ok(()),
    }
}
