//! SIGHUP for daemons: a request to read files again, never an end.
//!
//! A terminal that closes sends it to all programs in it, and `systemctl reload` to a unit. Every daemon registers it before it changes
//! anything; what there is to read again is the daemon's own matter.

use std::convert::Infallible;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::CliError;
use crate::output::say;

/// The signal, which ends this process no longer.
pub(crate) struct ReloadSignal(Signal);

impl ReloadSignal {
    /// From now on. Needs a tokio runtime.
    pub(crate) fn register() -> Result<Self, CliError> {
        let signals = signal(SignalKind::hangup());
        Ok(Self(signals.map_err(|error| CliError::failed(format!("signals cannot be caught: {error}")))?))
    }

    /// The next one.
    pub(crate) async fn recv(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// For a daemon that holds nothing from files that could be read again: a line for each signal, unless `quiet`.
    pub(crate) async fn ignore_with_notice(mut self, is_quiet: bool) -> Infallible {
        loop {
            self.recv().await;
            if !is_quiet {
                say("SIGHUP: there is nothing to read again; a changed configuration counts after a restart");
            }
        }
    }
}
