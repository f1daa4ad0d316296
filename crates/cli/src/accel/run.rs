//! A run of `marline accel`, until it is stopped.
//!
//! 1. Signal handlers are installed before the host is changed, so that a signal at any time restores the host.
//! 2. Every way out of [`run`] drops the engine, which restores the host. After `kill -9` its iptables rules remain, but
//!    they let packets pass unchanged, because no process reads their queue (`--queue-bypass`).
//! 3. With early ACKs the server considers data delivered that the receiver does not have yet. The engine lists such data
//!    in the pending file. If this process dies, the repair process (`repair`) requests the listed data from the server
//!    and delivers it, or resets the flow. It is therefore started before the engine.

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
    let _runtime_guard = runtime.enter();
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
    let (primary, secondary_names) =
        names.split_first().map_or(("", &[][..]), |(primary, secondary)| (*primary, secondary));
    let assistance = if secondary_names.is_empty() {
        "alone".to_owned()
    } else {
        format!("with {}", secondary_names.join(" and "))
    };
    let start_notice = format!(
        "accelerating {flow_filter} of {primary} {assistance}: {}; press Ctrl-C to stop",
        config.mechanisms
    );
    let dir = run_dir(args.run_dir_args.run_dir.as_deref());
    if control::is_taken(&dir, primary) {
        return Err(exit(AccelError::already_running(primary)));
    }
    let created_run_dir = host_config::ensure_run_dir(&dir).map_err(|error| CliError::failed(error.to_string()))?;
    let (fetch_commands, fetch_receiver) = tokio::sync::mpsc::unbounded_channel();
    let devices = LinkDevices::of(&links);
    // The last run may have been killed together with its repair process.
    repair::repair_orphan(&dir, primary, &links)?;
    let pending_file =
        config.mechanisms.iter().any(Mechanism::acknowledges_early).then(|| pending_path(&dir, primary));
    // The repair process starts its work when its standard input closes: when `repairer` is dropped, or when this
    // process ends in any other way. An error is returned below, after the run directory was removed.
    let repairer = pending_file.as_ref().map(|file| repair::start(file, &links)).transpose();
    let setup = EngineConfig {
        config,
        links,
        flow_filter,
        trace: args.log.trace,
        pending_file,
        fetch_commands: Some(fetch_commands),
    };
    let outcome = (|| {
        let repairer = repairer?;
        let mut engine = Engine::start(setup).map_err(exit)?;
        let handle = engine.handle();
        // The range client ends with the engine, which holds the only sender of fetch commands.
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
            print_notice(&start_notice);
        }
        let (engine_error, final_status) = runtime.block_on(async {
            let engine_error = tokio::select! {
                error = engine.failed() => Some(error),
                () = stop.notified() => None,
                never = hangup.ignore_with_notice(args.quiet) => match never {},
                () = std::future::poll_fn(|cx| {
                    let was_received = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                    if was_received { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }) => None,
            };
            (engine_error, engine.handle().status().await)
        });
        // `marline accel stop` waits until the control socket is removed, so the host is restored first.
        drop(engine);
        drop(repairer);
        if engine_error.is_none() {
            // Runs the control task once more, so that it sends the response to `marline accel stop`. (After an error of the
            // engine no client waits for one.)
            runtime.block_on(async { tokio::task::yield_now().await });
        }
        drop(listener);
        engine_error.map_or(Ok(final_status), |error| Err(exit(error)))
    })();
    if created_run_dir {
        // Only an empty directory is removed. A remaining file is still needed: the pending file, or a socket of another run.
        let _ = std::fs::remove_dir(&dir);
    }
    let final_status: Option<Status> = outcome?;
    if !args.quiet {
        print_notice("stopped; everything is as it was before");
    }
    match final_status {
        Some(status) if args.format.json => print_result(&to_json(&status)?),
        _ => Ok(()),
    }
}
