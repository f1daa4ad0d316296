//! SIGHUP handler of the daemons: the signal requests a reload of files and never ends the process.
//!
//! A terminal that closes sends SIGHUP to its programs, and `systemctl reload` sends it to a unit. Every daemon registers
//! the handler before it changes anything on the host. Each daemon decides itself which files it reloads.

use std::convert::Infallible;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::CliError;
use crate::output::print_notice;

/// Stream of SIGHUP signals. Once it is registered, SIGHUP does not end this process.
pub(crate) struct ReloadSignal(Signal);

impl ReloadSignal {
    /// Registers the handler. Must be called inside a tokio runtime.
    pub(crate) fn register() -> Result<Self, CliError> {
        let signals = signal(SignalKind::hangup());
        Ok(Self(signals.map_err(|error| CliError::failed(format!("cannot register signal handlers: {error}")))?))
    }

    /// Waits for the next SIGHUP.
    pub(crate) async fn recv(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ignores each SIGHUP, with a notice unless `is_quiet`. For daemons that have no files to reload.
    pub(crate) async fn ignore_with_notice(mut self, is_quiet: bool) -> Infallible {
        loop {
            self.recv().await;
            if !is_quiet {
                print_notice("SIGHUP: nothing to reload; restart to apply a changed configuration");
            }
        }
    }
}
