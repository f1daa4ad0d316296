//! The live stream's lane and the others': what [`Priority`] decides, done to flows.
//!
//! In: flows as they begin, their pieces, the kernel's word on what waits. Out: a [`Pace`] for each flow.
//!
//! 1. Live flows go as fast as they can. Of bulk flows only what they send upward is held back: what they receive competes with the
//!    live stream for nothing but the acknowledgements' few bytes.
//! 2. While there is a live flow, and only then, it is looked each [`LOOK`] at what of it is not acknowledged yet: by the other
//!    end of its way, or, where its pace keeps its queue short, not even read from the program.
//! 3. A lane is around another pace, which hears of every piece as well.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::queue::unacknowledged;
use tokio::sync::Notify;

use super::live::Live;
use super::priority::{LOOK, Priority};
use crate::tunnel::{Grant, Pace, Target};

/// All lanes of an edge.
#[derive(Debug)]
pub(super) struct Lanes {
    live: Vec<Live>,
    began: std::time::Instant,
    state: Mutex<State>,
    came: Notify,
}

#[derive(Debug)]
struct State {
    priority: Priority,
    next: u64,
    /// The live flows: their sockets, and what they were given.
    watched: BTreeMap<u64, Watched>,
}

#[derive(Debug)]
struct Watched {
    far: OwnedFd,
    near: OwnedFd,
    given: DataSize,
}

impl Watched {
    /// What the program has sent in all, and what of it is not acknowledged. A kernel that does not tell keeps nobody waiting.
    fn look(&self) -> (DataSize, DataSize) {
        let unread = DataSize::from_bytes(rustix::io::ioctl_fionread(&self.near).unwrap_or(0));
        (self.given + unread, unread + unacknowledged(&self.far).unwrap_or_default())
    }
}

impl Lanes {
    pub(super) fn new(live: Vec<Live>) -> Self {
        let state = State { priority: Priority::new(), next: 0, watched: BTreeMap::new() };
        Self { live, began: std::time::Instant::now(), state: Mutex::new(state), came: Notify::new() }
    }

    /// Whether a flow that goes there is a live stream.
    pub(super) fn is_live(&self, target: &Target) -> bool {
        self.live.iter().any(|live| live.is(target))
    }

    /// The lane of a flow over the socket `far`, whose program is at `near`.
    pub(super) fn lane<P: Pace>(
        &self,
        target: &Target,
        far: BorrowedFd<'_>,
        near: BorrowedFd<'_>,
        inner: P,
    ) -> Lane<'_, P> {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        let own = || Some((far.as_fd().try_clone_to_owned().ok()?, near.as_fd().try_clone_to_owned().ok()?));
        // Without descriptors of its own it cannot be watched, and goes with the others.
        let own = self.is_live(target).then(own).flatten();
        let is_live = own.is_some();
        if let Some((far, near)) = own {
            state.priority.begin(id);
            state.watched.insert(id, Watched { far, near, given: DataSize::ZERO });
            self.came.notify_one();
        }
        Lane { lanes: self, id, is_live, inner }
    }

    /// Looks at the live flows until dropped.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            if self.lock().watched.is_empty() {
                self.came.notified().await;
            }
            tokio::time::sleep(LOOK).await;
            let (mut state, now) = (self.lock(), self.now());
            let State { priority, watched, .. } = &mut *state;
            let before = priority.allowance();
            for (id, watched) in watched.iter() {
                let (given, waits) = watched.look();
                priority.look(now, *id, given, waits);
            }
            priority.decide(now);
            if let Some(allowance) = priority.allowance().filter(|_| before.is_none()) {
                tracing::debug!(%allowance, "a live stream waits: other flows are held back");
            }
        }
    }

    /// What bulk flows may send together; none: as much as they can.
    pub(super) fn allowance(&self) -> Option<Bitrate> {
        self.lock().priority.allowance()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One flow's.
#[derive(Debug)]
pub(super) struct Lane<'a, P> {
    lanes: &'a Lanes,
    id: u64,
    is_live: bool,
    inner: P,
}

impl<P: Pace> Pace for Lane<'_, P> {
    fn ask(&mut self, is_up: bool, wanted: DataSize) -> Grant {
        let wanted = match self.inner.ask(is_up, wanted) {
            Grant::Now(wanted) if is_up && !self.is_live => wanted,
            other => return other,
        };
        let now = self.lanes.now();
        let granted = self.lanes.lock().priority.ask(now, self.id, wanted);
        // What is not granted here is given back there.
        let unused = wanted - if let Grant::Now(size) = granted { size } else { DataSize::ZERO };
        if !unused.is_zero() {
            self.inner.passed(is_up, unused, DataSize::ZERO);
        }
        granted
    }

    fn passed(&mut self, is_up: bool, granted: DataSize, passed: DataSize) {
        if is_up {
            let mut state = self.lanes.lock();
            if self.is_live {
                if let Some(watched) = state.watched.get_mut(&self.id) {
                    watched.given += passed;
                }
            } else {
                state.priority.passed(self.id, granted, passed);
            }
        }
        self.inner.passed(is_up, granted, passed);
    }
}

impl<P> Drop for Lane<'_, P> {
    fn drop(&mut self) {
        let mut state = self.lanes.lock();
        state.watched.remove(&self.id);
        state.priority.end(self.id);
        if state.watched.is_empty() {
            // Nobody looks any more who could give it back.
            let now = self.lanes.now();
            state.priority.decide(now);
        }
    }
}
