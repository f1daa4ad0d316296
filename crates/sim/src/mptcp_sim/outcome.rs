//! What came of a scene.

use marline_core::energy::EnergyBreakdown;
use marline_core::units::{DataSize, Duration, Energy, Instant};

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct MptcpOutcome {
    /// When the last byte of the last answer had come; none: the limit was first.
    pub finished_at: Option<Duration>,
    /// Payload that came in order, over all connections.
    pub delivered: DataSize,
    /// Payload that came twice.
    pub duplicate_bytes: DataSize,
    /// By link, in their order.
    pub links: Vec<MptcpLinkOutcome>,
    /// What the radios drew, with the tails after the end.
    pub breakdown: EnergyBreakdown,
    /// Commands: joins, priorities, ends of subflows.
    pub command_counts: [u32; 3],
    /// When each command was given.
    pub command_times: Vec<Instant>,
    /// How it went on, in steps of the scene's `sample`.
    pub samples: Vec<ProgressSample>,
    /// What the machine said of itself.
    pub notes: Vec<(Instant, String)>,
    /// What the machine asked for that makes no sense: subflows and connections that it was never told of, or that it was
    /// told the end of.
    pub invalid_commands: Vec<String>,
    /// The longest time for which a suspended subflow went on to bring data because the server had not heard of it.
    pub max_prio_lag: Duration,
    /// When each flow had its last byte.
    pub flow_times: Vec<Option<Duration>>,
}

/// One link's part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MptcpLinkOutcome {
    /// Its name.
    pub name: String,
    /// Payload that came over it.
    pub bytes: DataSize,
    /// How often its radio left idle.
    pub promotions: u32,
    /// What its radio drew, with its tail.
    pub energy: Energy,
    /// Payload that a subflow brought although the server had heard that it is a backup and something else worked; what it
    /// held before is not counted.
    pub leaked: DataSize,
}

/// How everything stood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgressSample {
    /// When.
    pub at: Instant,
    /// Payload in order so far.
    pub delivered: DataSize,
    /// Payload by link so far.
    pub links: Vec<DataSize>,
    /// Joules so far, without tails to come.
    pub energy_so_far: Energy,
}

impl MptcpOutcome {
    /// All joules, tails included.
    pub fn energy(&self) -> Energy {
        self.breakdown.total()
    }

    /// Payload that came in order between two moments, by the samples around them.
    pub fn delivered_between(&self, from: Duration, to: Duration) -> DataSize {
        let until = |at: Duration| {
            let sample = self.samples.iter().rfind(|sample| sample.at <= Instant::ZERO + at);
            sample.map_or(DataSize::ZERO, |sample| sample.delivered)
        };
        until(to) - until(from)
    }
}
