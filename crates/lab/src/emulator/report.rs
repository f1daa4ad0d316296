//! What the emulator saw during a run.

use std::time::Duration;

use marline_core::link::LinkKind;
use marline_core::units::DataSize;
use marline_sim::link::DirectionStats;

use super::Lateness;

/// What one link did.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Its access technology.
    pub kind: LinkKind,
    /// Towards the client.
    pub downlink: DirectionStats,
    /// From the client.
    pub uplink: DirectionStats,
    /// IP bytes that reached the client, by slots of [`Emulation::SLOT`] since the start of the command.
    pub down_timeline: Vec<DataSize>,
    /// IP bytes that reached the server.
    pub up_timeline: Vec<DataSize>,
    /// When the first and the last packet reached the client, since the start of the command.
    pub down_span: Option<(Duration, Duration)>,
    /// Packets that the kernel dropped before the emulator saw them.
    pub dropped_before_emulator: u64,
    /// Every moment in which a packet passed the client's end.
    pub traffic_samples: Vec<TrafficSample>,
    /// Requests for another priority of an MPTCP subflow that the client sent over it.
    pub mp_prio_requests: Vec<MpPrioRequest>,
}

/// Bytes of IP packets that passed the client's end of a link within a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficSample {
    /// When the first of them did, since the start of the command.
    pub at: Duration,
    /// They came.
    pub down: u32,
    /// They went, whether or not they arrived.
    pub up: u32,
    /// How much of both was payload of TCP.
    pub payload: u32,
}

/// A request that a subflow be a backup, or no longer be one (MP_PRIO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpPrioRequest {
    /// When it was sent, since the start of the command.
    pub at: Duration,
    /// A backup.
    pub backup: bool,
    /// The emulator was told to lose it.
    pub is_dropped: bool,
}

/// What all links did, and how well the emulation kept time.
#[derive(Clone, Debug)]
pub struct EmulationReport {
    /// In the order of the description.
    pub links: Vec<LinkReport>,
    /// How late packets left.
    pub lateness: Lateness,
    /// Processor time of the emulator's thread.
    pub cpu_time: Duration,
    /// Whether the thread ran with real-time priority.
    pub is_real_time: bool,
}

impl EmulationReport {
    /// The length of a slot of the timelines.
    pub const SLOT: Duration = Duration::from_millis(100);
    /// Later than this in one packet of a hundred, and the links were not what they were said to be.
    const MAX_P99_LATENESS: Duration = Duration::from_millis(1);

    /// Why the figures of this run should not be trusted, if so.
    pub fn unreliable_reason(&self) -> Option<String> {
        let unseen: u64 = self.links.iter().map(|link| link.dropped_before_emulator).sum();
        if unseen > 0 {
            return Some(format!("{unseen} packets were lost before the emulator saw them"));
        }
        let p99 = self.lateness.p99;
        (p99 > Self::MAX_P99_LATENESS).then(|| format!("one packet in a hundred was {p99:.1?} late or more"))
    }
}
