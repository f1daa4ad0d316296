//! Counters of the emulator for one run.

use std::time::Duration;

use marline_core::link::LinkKind;
use marline_core::units::DataSize;
use marline_sim::link::DirectionStats;

use super::Lateness;

/// Counters of one link.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Name of the link.
    pub name: String,
    /// Access technology.
    pub kind: LinkKind,
    /// Counters towards the client.
    pub downlink: DirectionStats,
    /// Counters towards the server.
    pub uplink: DirectionStats,
    /// IP bytes that reached the client, per slot of [`EmulationReport::SLOT`] since the start of the command.
    pub down_timeline: Vec<DataSize>,
    /// IP bytes that reached the server, per slot.
    pub up_timeline: Vec<DataSize>,
    /// When the first and the last packet reached the client, since the start of the command.
    pub down_span: Option<(Duration, Duration)>,
    /// Packets that the kernel dropped before they reached the emulator.
    pub dropped_before_emulator: u64,
    /// Packets that passed the client's end, grouped by millisecond.
    pub traffic_samples: Vec<TrafficSample>,
    /// MP_PRIO requests (changes of a subflow's priority) that the client sent over this link.
    pub mp_prio_requests: Vec<MpPrioRequest>,
}

#[cfg(test)]
impl LinkReport {
    /// A report without any packet.
    pub(crate) fn without_packets(name: &str, kind: LinkKind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            downlink: DirectionStats::default(),
            uplink: DirectionStats::default(),
            down_timeline: Vec::new(),
            up_timeline: Vec::new(),
            down_span: None,
            dropped_before_emulator: 0,
            traffic_samples: Vec::new(),
            mp_prio_requests: Vec::new(),
        }
    }
}

/// IP packets that passed the client's end of a link within one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficSample {
    /// Time of the first packet since the start of the command.
    pub at: Duration,
    /// IP bytes towards the client.
    pub down: u32,
    /// IP bytes from the client, whether or not they arrived.
    pub up: u32,
    /// TCP payload in both directions, in bytes.
    pub payload: u32,
}

/// A request to make a subflow a backup or a regular one (MP_PRIO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpPrioRequest {
    /// When the client sent it, since the start of the command.
    pub at: Duration,
    /// True: backup; false: regular.
    pub backup: bool,
    /// Whether the emulator dropped it on request.
    pub is_dropped: bool,
}

/// Counters of all links, and the timing accuracy of the emulation.
#[derive(Clone, Debug)]
pub struct EmulationReport {
    /// The links, in the order of the lab's description.
    pub links: Vec<LinkReport>,
    /// How late packets left the emulator.
    pub lateness: Lateness,
    /// CPU time of the emulator's thread.
    pub cpu_time: Duration,
    /// Whether the thread ran with real-time priority.
    pub is_real_time: bool,
}

impl EmulationReport {
    /// Length of a slot of the timelines.
    pub const SLOT: Duration = Duration::from_millis(100);
    /// Largest p99 lateness at which the links still count as emulated correctly.
    const MAX_P99_LATENESS: Duration = Duration::from_millis(1);

    /// Why the figures of this run are unreliable; `None` if they are reliable.
    pub fn unreliable_reason(&self) -> Option<String> {
        let unseen: u64 = self.links.iter().map(|link| link.dropped_before_emulator).sum();
        if unseen > 0 {
            return Some(format!("{unseen} packets were dropped before they reached the emulator"));
        }
        let p99 = self.lateness.p99;
        (p99 > Self::MAX_P99_LATENESS).then(|| format!("one packet in a hundred was {p99:.1?} late or more"))
    }
}
