//! A run of `marline accel`, until it is stopped.
//!
//! 1. Signals are heard before anything is changed: whoever starts it may stop it at once.
//! 2. However it ends here, the engine is dropped, which puts everything back. What `kill -9` leaves lets packets pass.
//! 3. Where bytes may be acknowledged ahead, somebody is there first who outlives this process (`keep`).

use std::sync::Arc;

use marline_accel::{AccelError, Engine, Flows, Outfit, Setup, control, ledger, roads, run_fills, status::Status};
use marline_net::links::list_interfaces;
use marline_paths::ground;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::args::RunArgs;
use super::{exit, json_of, keep, print_result, run_dir, say, terms};
use crate::CliError;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

/// Helps flows until stopped.
pub(super) fn run(args: RunArgs) -> Result<(), CliError> {
    let mut config = terms::config(&args)?;
    let wanted = terms::wanted(&args)?;
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
    let roads = roads(&survey, &wanted).map_err(exit)?;
    for (helper, road) in config.helpers.iter_mut().zip(roads.iter().skip(1)) {
        helper.families = road.families;
    }
    let flows: Flows = args.flows.unwrap_or_default();
    let names: Vec<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
    let (primary, others) = names.split_first().map_or(("", &[][..]), |(primary, others)| (*primary, others));
    let with = if others.is_empty() { "alone".to_owned() } else { format!("with {}", others.join(" and ")) };
    let beginning = format!("helping {flows} of {primary} {with}: {}; Ctrl-C stops it", config.mechanisms);
    let dir = run_dir(args.run_dir.as_deref());
    if control::is_taken(&dir, primary) {
        return Err(exit(AccelError::taken(primary)));
    }
    let made = ground::run_directory(&dir).map_err(|error| CliError::failed(error.to_string()))?;
    let (errands, ordered) = tokio::sync::mpsc::unbounded_channel();
    let outfit = Outfit::of(&roads);
    keep::settle(&dir, primary, &roads)?;
    let ledger = config.mechanisms.acknowledge_ahead().then(|| ledger(&dir, primary));
    // Closes its input when this is dropped, as any end of this process does.
    let keeper = ledger.as_ref().map(|ledger| keep::start(ledger, &roads)).transpose();
    let setup = Setup { config, roads, flows, trace: args.trace, ledger, errands: Some(errands) };
    let ended = (|| {
        let keeper = keeper?;
        let mut engine = Engine::start(setup).map_err(exit)?;
        let bell = engine.bell();
        // Ends with the engine, which alone sends errands.
        let answer = Arc::new(move |fetch, range, bytes| bell.fetched(fetch, range, bytes));
        tokio::spawn(run_fills(outfit, ordered, answer));
        let stop = Arc::new(Notify::new());
        let ear = control::listen(&dir, primary, engine.bell(), Arc::clone(&stop));
        let ear = ear.map_err(|error| {
            CliError::failed(format!(
                "{}: {error}: the control socket cannot be made; name another directory with --run-dir",
                dir.display()
            ))
        })?;
        if !args.quiet {
            say(&beginning);
        }
        let (lost, last) = runtime.block_on(async {
            let lost = tokio::select! {
                error = engine.lost() => Some(error),
                () = stop.notified() => None,
                never = hangup.ignore_with_notice(args.quiet) => match never {},
                () = std::future::poll_fn(|cx| {
                    let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                    if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }) => None,
            };
            (lost, engine.bell().status().await)
        });
        // `stop` waits for the socket to go: by then everything is put back.
        drop(engine);
        drop(keeper);
        if lost.is_none() {
            // Its answer is on its way to whoever wanted the end.
            runtime.block_on(async { tokio::task::yield_now().await });
        }
        drop(ear);
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
        Some(last) if args.json => print_result(&json_of(&last)?),
        _ => Ok(()),
    }
}
