//! SIGHUP for daemons: a request to read files again, never an end.
//!
//! A terminal that closes sends it to all programs in it, and `systemctl reload` to a unit. Every daemon registers it before it changes
//! anything; what there is to read again is the daemon's own matter.

use std::convert::Infallible;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Exit;
use crate::output::say;

/// The signal, which ends this process no longer.
pub(crate) struct Hangup(Signal);

impl Hangup {
    /// From now on. Needs a tokio runtime.
    pub(crate) fn caught() -> Result<Self, Exit> {
        let caught = signal(SignalKind::hangup());
        Ok(Self(caught.map_err(|error| Exit::failed(format!("signals cannot be caught: {error}")))?))
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// For a daemon that holds nothing from files that could be read again: a line for each signal, unless `quiet`.
    pub(crate) async fn changes_nothing(mut self, quiet: bool) -> Infallible {
        loop {
            self.next().await;
            if !quiet {
                say("SIGHUP: there is nothing to read again; a changed configuration counts after a restart");
            }
        }
    }
}
