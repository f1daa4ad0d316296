//! `marline accel repair`: the process that outlives a run, and fills holes that the run has acknowledged early.
//!
//! Its standard input is a pipe whose other end the run holds. When that end closes, however the run ended, the repair process
//! reads the pending file (the data that was acknowledged early and has not arrived); each flow listed there receives the
//! acknowledged bytes, or is reset.
//!
//! 1. It sleeps until then, and ignores signals that end the run: Ctrl-C in a terminal goes to both processes.
//! 2. A run starts it, with the names of its links. The next run starts it again for a run that was killed together with
//!    its repair process.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use marline_accel::{AccelLink, LinkDevices, RepairReport, orphaned_path, run_repair};
use marline_core::link::LinkId;
use tokio::signal::unix::{SignalKind, signal};

use super::args::RepairArgs;
use super::{exit, print_notice};
use crate::CliError;
use crate::privileges::{Daemon, drop_privileges};

/// Waits for the end of the run, and repairs its flows.
pub(super) fn run(args: &RepairArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Accel);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| CliError::failed(format!("the event loop cannot be started: {error}")))?;
    let _inside = runtime.enter();
    // A signal that is handled does not end the process any more.
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let _signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    // Nothing is ever written to it; an error counts as its end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let devices = args.links.iter().cloned().zip(0..).map(|(name, number)| (LinkId(number), name)).collect();
    let devices = LinkDevices { devices, ..LinkDevices::of(&[]) };
    let report = runtime.block_on(run_repair(&args.file, devices)).map_err(exit)?;
    if report != RepairReport::default() {
        let RepairReport { filled, reset: ended } = report;
        print_notice(&format!(
            "repair after the end of a run: {filled} holes were filled, {ended} flows were reset, as their bytes could not be fetched"
        ));
    }
    Ok(())
}

/// Starts the repair process beside this one. It acts when its standard input is closed, explicitly or by the end of this process.
pub(super) fn start(file: &Path, links: &[AccelLink]) -> Result<Child, CliError> {
    spawn(file, links, Stdio::piped())
        .map_err(|error| CliError::failed(format!("the repair process cannot be started: {error}")))
}

/// Starts a repair process for the flows of the last run with this primary link, if that run was killed together with its own repair
/// process.
///
/// # Errors
/// Another user can write the run directory.
pub(super) fn repair_orphan(dir: &Path, primary: &str, links: &[AccelLink]) -> Result<(), CliError> {
    let orphan = orphaned_path(dir, primary).map_err(|error| {
        CliError::failed(format!("{error}: it cannot be the run directory; choose another one with --run-dir"))
    })?;
    let Some(orphan) = orphan else { return Ok(()) };
    match spawn(&orphan, links, Stdio::null()) {
        // Nothing waits for its end; the thread only prevents a zombie.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => tracing::warn!(file = %orphan.display(), %error, "flows of a killed run are not repaired"),
    }
    Ok(())
}

fn spawn(file: &Path, links: &[AccelLink], input: Stdio) -> std::io::Result<Child> {
    // The running program, even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.args(["accel", "repair", "--file"]).arg(file);
    // One argument each: a name may begin with a hyphen.
    command.args(links.iter().map(|link| format!("--link={}", link.name)));
    command.stdin(input).stdout(Stdio::null()).spawn()
}
