//! Task that checks the host periodically while a gateway runs ([`ObstructionChecker`]). It is a separate task, and
//! `nft` runs on a thread for blocking work, so that connections of the LAN are accepted meanwhile.

use tokio::sync::watch::{Receiver, Sender};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use super::obstructions::{ObstructionChecker, Obstructions, POLL_INTERVAL};
use super::standing_firewall::FirewallReinstaller;

/// Handle of the watching task, which ends with it.
#[derive(Debug)]
pub(super) struct ObstructionWatch {
    receiver: Receiver<Obstructions>,
    firewall_reinstaller: FirewallReinstaller,
    task: JoinHandle<()>,
}

impl ObstructionWatch {
    /// Starts the task. Needs a tokio runtime with time.
    pub(super) fn new(firewall_reinstaller: FirewallReinstaller, checker: ObstructionChecker) -> Self {
        // The gateway has just installed its firewall.
        let (sender, receiver) =
            tokio::sync::watch::channel(Obstructions { is_closed: true, ..Obstructions::default() });
        Self { receiver, firewall_reinstaller, task: tokio::spawn(watch_loop(checker, sender)) }
    }

    pub(super) fn subscribe(&self) -> Receiver<Obstructions> {
        self.receiver.clone()
    }

    /// Stops the task. No repair happens after this has returned. Blocks while nft runs.
    pub(super) fn end(&self) {
        self.task.abort();
        self.firewall_reinstaller.end();
    }
}

async fn watch_loop(mut checker: ObstructionChecker, sender: Sender<Obstructions>) {
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let result = spawn_blocking(move || {
            let current = checker.check();
            (checker, current)
        });
        let current = match result.await {
            Ok((returned, current)) => {
                checker = returned;
                current
            }
            Err(error) => return tracing::error!(%error, "the firewall check of this host failed and stopped"),
        };
        sender.send_if_modified(|last| {
            let Obstructions { repaired, obstructions, unchecked, is_closed: closed } = &current;
            let is_new = !repaired.is_empty()
                || (&last.obstructions, &last.unchecked, &last.is_closed) != (obstructions, unchecked, closed);
            if is_new {
                *last = current;
            }
            is_new
        });
    }
}
