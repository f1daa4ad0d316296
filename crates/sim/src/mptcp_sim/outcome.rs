//! Outcome of a simulated MPTCP scenario.

use marline_core::energy::EnergyBreakdown;
use marline_core::units::{DataSize, Duration, Energy, Instant};

/// Result of a run; all times count from its start.
#[derive(Clone, PartialEq, Debug)]
pub struct MptcpOutcome {
    /// When the last byte of the last response arrived; `None` if the time limit came first.
    pub finished_at: Option<Duration>,
    /// Payload delivered in order, over all connections.
    pub delivered: DataSize,
    /// Payload received more than once.
    pub duplicate_bytes: DataSize,
    /// The part of each link, in the order of the scenario.
    pub links: Vec<MptcpLinkOutcome>,
    /// Energy of the radios, including the tails after the end.
    pub breakdown: EnergyBreakdown,
    /// Number of commands: joins, priority changes, removals.
    pub command_counts: [u32; 3],
    /// Time of each command, in order.
    pub command_times: Vec<Instant>,
    /// Progress at the scenario's sample interval.
    pub samples: Vec<ProgressSample>,
    /// Notes of the machine, with their times.
    pub notes: Vec<(Instant, String)>,
    /// Commands and polls about subflows or connections that were never reported, as text.
    pub invalid_commands: Vec<String>,
    /// Longest time for which a suspended subflow delivered data because MP_PRIO had not arrived at the server.
    pub max_prio_lag: Duration,
    /// When each flow received its last byte; `None` if the time limit came first.
    pub flow_times: Vec<Option<Duration>>,
}

/// One link's part in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MptcpLinkOutcome {
    /// Name of the link in the scenario.
    pub name: String,
    /// Payload received over this link, duplicates included.
    pub bytes: DataSize,
    /// Number of times its radio left the idle state.
    pub promotions: u32,
    /// Energy of its radio, including the tail.
    pub energy: Energy,
    /// Payload that a suspended subflow delivered although the server knew that it was a backup and another link
    /// worked. Data assigned before is not counted.
    pub leaked: DataSize,
}

/// Cumulative progress at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgressSample {
    /// Time of the sample.
    pub at: Instant,
    /// Payload delivered in order so far.
    pub delivered: DataSize,
    /// Payload received over each link so far.
    pub links: Vec<DataSize>,
    /// Energy so far, without future tails.
    pub energy_so_far: Energy,
}

impl MptcpOutcome {
    /// Energy of all radios, including the tails after the end.
    pub fn energy(&self) -> Energy {
        self.breakdown.total()
    }

    /// Payload delivered in order between two times, by the samples at or before them.
    pub fn delivered_between(&self, from: Duration, to: Duration) -> DataSize {
        let until = |at: Duration| {
            let sample = self.samples.iter().rfind(|sample| sample.at <= Instant::ZERO + at);
            sample.map_or(DataSize::ZERO, |sample| sample.delivered)
        };
        until(to) - until(from)
    }
}
