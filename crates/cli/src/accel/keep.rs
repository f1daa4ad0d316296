//! `marline accel keep`: the process that outlives a run, and pays what it has left owed.
//!
//! In: a ledger, and an input whose other end the run holds. Out: when that end closes, however the run ended, flows get the
//! bytes that they were told they have, or an error.
//!
//! 1. It sleeps until then, and signals that end the run do not end it: Ctrl-C in a terminal goes to both.
//! 2. Nobody has to start it: a run does, with the names of its links, and so does the next run for what is left of one that was
//!    killed together with its keeper.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use marline_accel::{Outfit, Paid, Road, orphan, run_keeper};
use marline_core::link::LinkId;
use tokio::signal::unix::{SignalKind, signal};

use super::args::KeepArgs;
use super::{exit, say};
use crate::CliError;
use crate::privileges::{Daemon, drop_privileges};

/// Waits for the run's end, and pays.
pub(super) fn run(args: &KeepArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Accel);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| CliError::failed(format!("the event loop cannot be started: {error}")))?;
    let _inside = runtime.enter();
    // Whoever is listened for does not end the process any more.
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let _signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    // Nothing is ever written there; an error is an end, too.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let devices = args.links.iter().cloned().zip(0..).map(|(name, number)| (LinkId(number), name)).collect();
    let outfit = Outfit { devices, ..Outfit::of(&[]) };
    let paid = runtime.block_on(run_keeper(&args.ledger, outfit)).map_err(exit)?;
    if paid != Paid::default() {
        let Paid { filled, ended } = paid;
        say(&format!(
            "what flows were owed: {filled} holes are filled, {ended} flows ended with an error as their bytes could not be restored"
        ));
    }
    Ok(())
}

/// Starts it beside this process. It acts when the child's input is closed, by hand or by this process's end.
pub(super) fn start(ledger: &Path, roads: &[Road]) -> Result<Child, CliError> {
    spawn(ledger, roads, Stdio::piped()).map_err(|error| {
        CliError::failed(format!("the process that pays what flows are owed cannot be started: {error}"))
    })
}

/// Repairs what the last run has left that was killed together with its keeper: one process at most for each primary link.
///
/// # Errors
/// Another user can write the directory.
pub(super) fn settle(dir: &Path, primary: &str, roads: &[Road]) -> Result<(), CliError> {
    let orphan = orphan(dir, primary).map_err(|error| {
        CliError::failed(format!("{error}: it cannot be the run directory; name another one with --run-dir"))
    })?;
    let Some(orphan) = orphan else { return Ok(()) };
    match spawn(&orphan, roads, Stdio::null()) {
        // Nothing waits for its end; the thread only spares a zombie.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => tracing::warn!(file = %orphan.display(), %error, "flows of a killed run are not repaired"),
    }
    Ok(())
}

fn spawn(ledger: &Path, roads: &[Road], input: Stdio) -> std::io::Result<Child> {
    // This very program, even if another has taken its place on the disk.
    let mut command = Command::new("/proc/self/exe");
    command.args(["accel", "keep", "--ledger"]).arg(ledger);
    // One word each: a name may begin with a hyphen.
    command.args(roads.iter().map(|road| format!("--link={}", road.name)));
    command.stdin(input).stdout(Stdio::null()).spawn()
}
