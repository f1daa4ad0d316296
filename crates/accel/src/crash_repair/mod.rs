//! Crash repair: finishes flows whose data was acknowledged early by a process that has ended; fills their holes, or
//! resets them at both ends.
//!
//! 1. Every hole is requested over the first link, then over the next ones, [`MAX_TRIES`] times at the most.
//! 2. What is injected into the local stack and when, and when a flow is reset, is decided by [`Repair`], one for each
//!    flow. It follows what the stack acknowledges (`local_segments`): injected bytes are not yet accepted ones.

mod local_segments;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use marline_core::accel::{Fetch, FetchId, Repair, RepairPacket, RepairState};
use marline_core::link::LinkId;
use marline_core::units::Instant;
use marline_core::wire::packet::Segment;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::local_segments::LocalSegments;
use super::{AccelError, FetchCommand, pending_file};
use crate::range_client::{FetchCallback, LinkDevices, run_range_client};
use crate::raw_socket::{LocalInjector, RawSocket};

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Holes that the local stack has acknowledged.
    pub filled: usize,
    /// Flows that were reset, because their bytes could not be fetched, or were not accepted.
    pub reset: usize,
}

/// A hole that is requested.
struct HoleRequest {
    flow: usize,
    hole: usize,
    tries: usize,
    is_finished: bool,
}

/// The result of a fetch.
type Fetched = (FetchId, Option<Vec<u8>>);

/// Repairs every flow in a pending file, and removes it. Runs on a tokio runtime.
///
/// # Errors
/// Packets cannot be injected into the local stack; the file stays.
pub async fn run_repair(path: &Path, devices: LinkDevices) -> Result<RepairReport, AccelError> {
    let failed = || AccelError::kernel(format!("{}: the bytes that are missing", path.display()));
    let pending = pending_file::read(path).map_err(failed())?;
    let report = if pending.is_empty() {
        RepairReport::default()
    } else {
        let begun = tokio::time::Instant::now();
        let repairs = pending.into_iter().map(|pending| Repair::new(Instant::ZERO, pending)).collect();
        CrashRepair::new(begun, repairs, devices)?.run().await
    };
    pending_file::remove(path);
    Ok(report)
}

struct CrashRepair {
    started: tokio::time::Instant,
    repairs: Vec<Repair>,
    requests: Vec<HoleRequest>,
    links: Vec<LinkId>,
    commands: UnboundedSender<FetchCommand>,
    fetched: UnboundedReceiver<Fetched>,
    local_stack: LocalInjector,
    /// Towards servers; none: the device is gone, and so are its flows.
    raw_socket: Option<RawSocket>,
    /// None: what the local stack sends cannot be captured.
    local_segments: Option<LocalSegments>,
}

impl CrashRepair {
    fn new(begun: tokio::time::Instant, repairs: Vec<Repair>, devices: LinkDevices) -> Result<Self, AccelError> {
        let primary = devices.devices.values().next().cloned().unwrap_or_default();
        let unseen = |error: std::io::Error| {
            tracing::warn!(link = %primary, %error, "acknowledgements of flows under repair cannot be captured");
        };
        let segments = LocalSegments::open(&primary).map_err(unseen).ok();
        let (commands, command_receiver) = unbounded_channel();
        let (sender, fetched) = unbounded_channel();
        let answer: FetchCallback =
            Arc::new(move |id: FetchId, _, bytes: Option<Vec<u8>>| drop(sender.send((id, bytes))));
        let mut requests = Vec::new();
        for (flow, repair) in repairs.iter().enumerate().filter(|(_, repair)| repair.pending().is_acked_known) {
            let hole = |hole| HoleRequest { flow, hole, tries: 0, is_finished: false };
            requests.extend((0..repair.pending().holes.len()).map(hole));
        }
        let links = devices.devices.keys().copied().collect();
        tokio::spawn(run_range_client(devices, command_receiver, answer));
        let (stack, out) = (LocalInjector::open()?, RawSocket::open(Some(&primary)).ok());
        Ok(Self {
            started: begun,
            repairs,
            requests,
            links,
            commands,
            fetched,
            local_stack: stack,
            raw_socket: out,
            local_segments: segments,
        })
    }

    async fn run(mut self) -> RepairReport {
        (0..self.requests.len()).for_each(|number| self.request(number));
        loop {
            let now = self.now();
            for repair in &mut self.repairs {
                for patch in repair.tick(now) {
                    // A packet that is lost is sent again.
                    let _ = match &patch {
                        RepairPacket::Deliver(packet) => self.local_stack.inject(&packet.0),
                        RepairPacket::Send(packet) => {
                            self.raw_socket.as_ref().map_or(Ok(()), |out| out.send(&packet.0))
                        }
                    };
                }
            }
            let Some(due) = self.repairs.iter().filter_map(Repair::deadline).min() else { break };
            let wait = Duration::from_nanos(u64::try_from(due.since(self.now()).as_nanos()).unwrap_or(u64::MAX));
            tokio::select! {
                fetched = self.fetched.recv() => {
                    if let Some(fetched) = fetched {
                        self.on_fetched(fetched);
                    }
                }
                () = local_segments::readable(self.local_segments.as_ref()) => self.on_local_segments(),
                () = tokio::time::sleep(wait.max(MIN_SLEEP)) => {}
            }
        }
        let ended = self.repairs.iter().filter(|repair| repair.state() == RepairState::Reset).count();
        RepairReport { filled: self.repairs.iter().map(Repair::filled).sum(), reset: ended }
    }

    /// Time since the start.
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn on_local_segments(&mut self) {
        let now = self.now();
        let flows: BTreeMap<_, usize> = self
            .repairs
            .iter()
            .enumerate()
            .map(|(at, repair)| ((repair.pending().local, repair.pending().server), at))
            .collect();
        let Some(segments) = &mut self.local_segments else { return };
        let received = segments.receive(|packet| {
            let Ok(segment) = Segment::parse_head(packet) else { return };
            let flow = segment.four_tuple();
            let known = flows.get(&(flow.source(), flow.destination()));
            if let Some(repair) = known.and_then(|at| self.repairs.get_mut(*at)) {
                repair.on_local_segment(now, &segment);
            }
        });
        if let Err(error) = received {
            tracing::warn!(%error, "acknowledgements of flows under repair cannot be captured any more");
            self.local_segments = None;
        }
    }

    fn on_fetched(&mut self, (FetchId(number), bytes): Fetched) {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(request) = self.requests.get_mut(number).filter(|request| !request.is_finished) else { return };
        if bytes.is_none() {
            request.tries += 1;
            return self.request(number);
        }
        request.is_finished = true;
        if let Some(repair) = self.repairs.get_mut(request.flow) {
            repair.on_fetched(request.hole, bytes);
        }
    }

    /// Requests a hole over the link whose turn it is; where none is left, its bytes cannot be fetched.
    fn request(&mut self, number: usize) {
        let Some(request) = self.requests.get_mut(number) else { return };
        let Some(repair) = self.repairs.get_mut(request.flow) else { return };
        let fetch = repair.pending().holes.get(request.hole).and_then(|hole| hole.fetch.as_ref());
        let link = self.links.get(request.tries % self.links.len().max(1)).filter(|_| request.tries < MAX_TRIES);
        let sent = fetch.zip(link).is_some_and(|(fetch, link)| {
            let fetch = Fetch { id: FetchId(number as u64), link: *link, ..fetch.clone() };
            self.commands.send(FetchCommand::Fetch(fetch)).is_ok()
        });
        if !sent {
            request.is_finished = true;
            repair.on_fetched(request.hole, None);
        }
    }
}

/// Our choice: each link twice where there are two.
const MAX_TRIES: usize = 4;
/// The resolution of the runtime's timer.
const MIN_SLEEP: Duration = Duration::from_millis(1);
