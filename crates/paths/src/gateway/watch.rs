//! The task that looks at the host while a gateway runs ([`Obstacles`]). It is a task of its own, and `nft` runs on a thread for blocking
//! work: connections of the LAN are accepted meanwhile.

use tokio::sync::watch::{Receiver, Sender};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use super::block::Keeper;
use super::obstacles::{EACH, Found, Obstacles};

/// Looks while this lives.
#[derive(Debug)]
pub(super) struct Watch {
    found: Receiver<Found>,
    keeper: Keeper,
    task: JoinHandle<()>,
}

impl Watch {
    /// Begins. Needs a tokio runtime with time.
    pub(super) fn new(keeper: Keeper, obstacles: Obstacles) -> Self {
        // The gateway has just put its firewall in force.
        let (sender, found) = tokio::sync::watch::channel(Found { closed: true, ..Found::default() });
        Self { found, keeper, task: tokio::spawn(look(obstacles, sender)) }
    }

    pub(super) fn found(&self) -> Receiver<Found> {
        self.found.clone()
    }

    /// Nothing is put back any more once this has returned. Blocks for as long as nft runs.
    pub(super) fn end(&self) {
        self.task.abort();
        self.keeper.end();
    }
}

async fn look(mut obstacles: Obstacles, found: Sender<Found>) {
    let mut tick = interval(EACH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let looked = spawn_blocking(move || {
            let now = obstacles.look();
            (obstacles, now)
        });
        let now = match looked.await {
            Ok((again, now)) => {
                obstacles = again;
                now
            }
            Err(error) => return tracing::error!(%error, "the firewalls of this host are not looked at any more"),
        };
        found.send_if_modified(|found| {
            let Found { mended, stops, unchecked, closed } = &now;
            let is_new =
                !mended.is_empty() || (&found.stops, &found.unchecked, &found.closed) != (stops, unchecked, closed);
            if is_new {
                *found = now;
            }
            is_new
        });
    }
}
