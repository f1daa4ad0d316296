//! Applies the decisions of [`LivePriority`] to flows: each flow gets a [`Pacer`] that grants or delays its pieces.
//!
//! 1. Live flows are never delayed. Of bulk flows only the upload is limited: their download competes with the live stream only by the few
//!    bytes of its ACKs.
//! 2. While there is a live flow, and only then, its unacknowledged bytes are sampled as often as the machine requests it. They include
//!    what the peer has not acknowledged, and what is not yet read from the client because another pacer keeps the send queue short.
//! 3. The pacer wraps another pacer, which is also called for every piece.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use marline_core::fleet::live_priority::{FlowSample, Input, LivePriority, Output};
use marline_core::machine::Machine as _;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::mptcp_send_queue::unacknowledged;
use tokio::sync::Notify;

use super::live_match::LiveMatch;
use crate::tunnel::{PaceGrant, Pacer, Target};

/// Shaper of all flows of an edge.
#[derive(Debug)]
pub(super) struct Shaper {
    live_matches: Vec<LiveMatch>,
    epoch: std::time::Instant,
    state: Mutex<ShaperState>,
    live_flow_added: Notify,
}

#[derive(Debug)]
struct ShaperState {
    priority: LivePriority,
    /// The rate that all bulk flows together may send at; `None`: unlimited.
    allowance: Option<Bitrate>,
    next_id: u64,
    /// The live flows: their sockets, and the bytes sent.
    live_flows: BTreeMap<u64, LiveFlow>,
}

#[derive(Debug)]
struct LiveFlow {
    upstream: OwnedFd,
    client: OwnedFd,
    sent: DataSize,
}

impl LiveFlow {
    /// The total bytes that the client has sent, and how many of them are unacknowledged. If the kernel does not report a count, it is
    /// taken as zero, so that no bulk flow is limited.
    fn sample(&self, flow: u64) -> FlowSample {
        let unread = DataSize::from_bytes(rustix::io::ioctl_fionread(&self.client).unwrap_or(0));
        let unacknowledged = unread + unacknowledged(&self.upstream).unwrap_or_default();
        FlowSample { flow, sent: self.sent + unread, unacknowledged }
    }
}

impl ShaperState {
    /// Passes an input to the machine and carries out what results; returns the grant if the input was a request.
    fn handle(&mut self, now: Instant, input: Input) -> Option<PaceGrant> {
        self.priority.handle(now, input);
        self.run_outputs(now)
    }

    fn run_outputs(&mut self, now: Instant) -> Option<PaceGrant> {
        let (mut reply, mut is_sample_due) = (None, false);
        while let Some(output) = self.priority.poll() {
            match output {
                Output::Grant(grant) => reply = Some(grant),
                Output::Allowance(allowance) => {
                    let was_unlimited = std::mem::replace(&mut self.allowance, allowance).is_none();
                    if let Some(allowance) = allowance.filter(|_| was_unlimited) {
                        tracing::debug!(%allowance, "live stream is delayed: limiting the other flows");
                    }
                }
                Output::Sample => is_sample_due = true,
            }
        }
        if is_sample_due {
            let samples = self.live_flows.iter().map(|(flow, live_flow)| live_flow.sample(*flow)).collect();
            self.handle(now, Input::Samples(samples));
        }
        reply
    }
}

impl Shaper {
    pub(super) fn new(live: Vec<LiveMatch>) -> Self {
        let state = ShaperState {
            priority: LivePriority::default(),
            allowance: None,
            next_id: 0,
            live_flows: BTreeMap::new(),
        };
        Self {
            live_matches: live,
            epoch: std::time::Instant::now(),
            state: Mutex::new(state),
            live_flow_added: Notify::new(),
        }
    }

    /// Whether a flow to this target is a live stream.
    pub(super) fn is_live(&self, target: &Target) -> bool {
        self.live_matches.iter().any(|live| live.matches(target))
    }

    /// The pacer of a flow between the socket `client` and the socket `upstream`, around the pacer `inner`.
    pub(super) fn shape<P: Pacer>(
        &self,
        target: &Target,
        upstream: BorrowedFd<'_>,
        client: BorrowedFd<'_>,
        inner: P,
    ) -> ShapedFlow<'_, P> {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let clone_fds =
            || Some((upstream.as_fd().try_clone_to_owned().ok()?, client.as_fd().try_clone_to_owned().ok()?));
        // Without duplicated descriptors a live flow cannot be sampled, and is treated as bulk.
        let fds = self.is_live(target).then(clone_fds).flatten();
        let is_live = fds.is_some();
        if let Some((upstream, client)) = fds {
            state.handle(self.now(), Input::LiveFlowStarted(id));
            state.live_flows.insert(id, LiveFlow { upstream, client, sent: DataSize::ZERO });
            self.live_flow_added.notify_one();
        }
        ShapedFlow { shaper: self, id, is_live, inner }
    }

    /// Samples the live flows until dropped.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            let deadline = self.lock().priority.deadline();
            let Some((at, _)) = deadline else {
                self.live_flow_added.notified().await;
                continue;
            };
            tokio::time::sleep(at.since(self.now())).await;
            let mut state = self.lock();
            state.priority.tick(self.now());
            state.run_outputs(self.now());
        }
    }

    /// The rate that all bulk flows together may send at; `None`: unlimited.
    pub(super) fn allowance(&self) -> Option<Bitrate> {
        self.lock().allowance
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, ShaperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pacer of one flow: limits it if it is a bulk flow, and counts it if it is live.
#[derive(Debug)]
pub(super) struct ShapedFlow<'a, P> {
    shaper: &'a Shaper,
    id: u64,
    is_live: bool,
    inner: P,
}

impl<P: Pacer> Pacer for ShapedFlow<'_, P> {
    fn request(&mut self, is_up: bool, wanted: DataSize) -> PaceGrant {
        let wanted = match self.inner.request(is_up, wanted) {
            PaceGrant::Granted(wanted) if is_up && !self.is_live => wanted,
            other => return other,
        };
        let now = self.shaper.now();
        let request = Input::Request { flow: self.id, wanted };
        let granted = self.shaper.lock().handle(now, request).unwrap_or(PaceGrant::Granted(DataSize::ZERO));
        // The inner pacer gets back what this one does not grant.
        let unused = wanted - if let PaceGrant::Granted(size) = granted { size } else { DataSize::ZERO };
        if !unused.is_zero() {
            self.inner.settle(is_up, unused, DataSize::ZERO);
        }
        granted
    }

    fn settle(&mut self, is_up: bool, granted: DataSize, sent: DataSize) {
        if is_up {
            let mut state = self.shaper.lock();
            if self.is_live {
                if let Some(watched) = state.live_flows.get_mut(&self.id) {
                    watched.sent += sent;
                }
            } else {
                let now = self.shaper.now();
                state.handle(now, Input::Settle { flow: self.id, granted, sent });
            }
        }
        self.inner.settle(is_up, granted, sent);
    }
}

impl<P> Drop for ShapedFlow<'_, P> {
    fn drop(&mut self) {
        let mut state = self.shaper.lock();
        state.live_flows.remove(&self.id);
        let now = self.shaper.now();
        state.handle(now, Input::FlowEnded(self.id));
    }
}
