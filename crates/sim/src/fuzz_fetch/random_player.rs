//! Random player: reads delivered data at its own pace, seeks, pauses, and reports plausible and implausible
//! states.
//!
//! It also draws the configuration of the stream.
//!
//! 1. It has its own random stream, so that the history of a download is the same with and without a player.
//! 2. It reads only what was delivered, and only reading moves the window forward.
//! 3. Its inputs are those that a driver may send: a video of any size and rate at any time, a position that the
//!    model does not expect, a seek to any offset. The numbers of inputs and pauses are limited, so that every
//!    history ends.

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::stream::{Config, GreenBagParams, InitialEstimate, LinkPrice, Objective, PlayerInput, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};

use super::fault_plan::{FaultPlan, magnitude, one_in};
use super::stream_invariants::StreamInvariants;
use crate::rng::{Purpose, RandomStream};

/// A random player; see the [module documentation](self).
#[derive(Debug)]
pub(super) struct RandomPlayer {
    rng: RandomStream,
    /// Of each link, its kind and whether it is metered.
    link_kinds: Vec<(LinkKind, bool)>,
    /// End of the bytes that it may read.
    pub(super) readable_end: u64,
    pub(super) read_end: u64,
    /// Maximum reading rate; `None` to read everything at once.
    read_rate: Option<Bitrate>,
    /// It reads nothing until this time.
    pub(super) paused_until: Instant,
    /// Whether its next read is in the event queue.
    pub(super) read_scheduled: bool,
    inputs_left: u64,
    file_size: u64,
    total_rate: Bitrate,
    /// Checks that the stream keeps its guarantees.
    pub(super) invariants: StreamInvariants,
}

/// Next action of the player.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PlayerAction {
    /// Sends an input to the machine.
    Input(PlayerInput),
    /// Stops reading for this long.
    Pause(Duration),
}

impl RandomPlayer {
    /// Draws a player and the configuration of its stream. In most histories the fault plan is changed so that the
    /// download lasts long enough to be watched.
    pub(super) fn new(seed: u64, fault_plan: &mut FaultPlan, policy: Policy) -> (Self, Config) {
        let mut rng = RandomStream::new(seed, "audience", 0, Purpose::Other);
        if !one_in(&mut rng, 3) {
            fault_plan.make_long(&mut rng);
        }
        let size = fault_plan.server.versions.first().map_or(0, |version| version.size.bytes());
        let sum: Bitrate = fault_plan.links.iter().map(|behavior| behavior.rate).sum();
        let kinds = fault_plan.links.iter().map(|_| (pick(&mut rng, &LINK_KINDS), one_in(&mut rng, 3))).collect();
        let config = config(&mut rng, fault_plan, policy, size, sum);
        let read_rate = one_in(&mut rng, 2).then(|| {
            let min_rate = DataSize::from_bytes(size) / MAX_READ_TIME;
            min_rate.max(percent_of(sum, 20 + rng.below(150)))
        });
        let inputs_left = rng.below(10);
        let player = Self {
            rng,
            link_kinds: kinds,
            readable_end: 0,
            read_end: 0,
            read_rate,
            paused_until: Instant::ZERO,
            read_scheduled: false,
            inputs_left,
            file_size: size,
            total_rate: sum,
            invariants: StreamInvariants::new(&config),
        };
        (player, config)
    }

    /// Kind and metering of a link.
    pub(super) fn link_profile(&self, link: usize) -> LinkProfile {
        let (kind, metered) = self.link_kinds.get(link).copied().unwrap_or_default();
        LinkProfile { metered, ..LinkProfile::new(&format!("link{link}"), kind) }
    }

    /// Time until the next action; `None` if there are no more.
    pub(super) fn next_action_delay(&mut self) -> Option<Duration> {
        self.inputs_left = self.inputs_left.checked_sub(1)?;
        Some(Duration::from_millis(magnitude(&mut self.rng, 4, 12)))
    }

    /// Draws the next action. `model` is the machine's model of this player.
    pub(super) fn next_action(&mut self, model: Option<&Player>) -> PlayerAction {
        let rng = &mut self.rng;
        match rng.below(9) {
            0 | 1 => {
                let max_offset = if one_in(rng, 10) { self.file_size.saturating_mul(2) } else { self.file_size };
                PlayerAction::Input(PlayerInput::Seek { offset: rng.below(max_offset + 1) })
            }
            2..5 => {
                let player = thresholds(rng, self.file_size);
                let position = Duration::from_millis(magnitude(rng, 0, 18));
                let plays = one_in(rng, 2);
                match video(rng, self.file_size, self.total_rate) {
                    Some(video) => {
                        PlayerAction::Input(PlayerInput::Video { video, player, position, is_playing: plays })
                    }
                    None => PlayerAction::Input(PlayerInput::Position { position, is_playing: plays }),
                }
            }
            5..8 => {
                let position = model.map_or(Duration::ZERO, Player::position);
                let error = Duration::from_millis(magnitude(rng, 0, 16));
                let position = if one_in(rng, 2) { position + error } else { position.saturating_sub(error) };
                let plays = match model.map(Player::state) {
                    Some(state) if !one_in(rng, 3) => state == PlayerState::Playing,
                    _ => one_in(rng, 2),
                };
                PlayerAction::Input(PlayerInput::Position { position, is_playing: plays })
            }
            _ => PlayerAction::Pause(Duration::from_millis(magnitude(rng, 8, 11))),
        }
    }

    /// Reads part of the readable bytes and returns the time until the next read.
    pub(super) fn read(&mut self) -> Duration {
        let unread = self.readable_end - self.read_end;
        let Some(read_rate) = self.read_rate else {
            self.read_end = self.readable_end;
            return Duration::from_millis(self.rng.below(30));
        };
        let bytes = unread.min(1 + self.rng.below(1 << 17));
        self.read_end += bytes;
        DataSize::from_bytes(bytes) / read_rate
    }

    /// Continues reading at `offset`; nothing behind it is readable yet.
    pub(super) fn seek_to(&mut self, offset: u64) {
        (self.readable_end, self.read_end) = (offset, offset);
    }
}

fn config(
    rng: &mut RandomStream,
    fault_plan: &FaultPlan,
    policy: Policy,
    size: u64,
    total_rate: Bitrate,
) -> Config {
    let mut fetch = Config::default().fetch;
    fetch.reader_window = (!one_in(rng, 3)).then(|| DataSize::from_kib(64 << rng.below(10)));
    fetch.resume.clone_from(&fault_plan.config.resume);
    let links = 0..u16::try_from(fault_plan.links.len()).unwrap_or(0);
    let expected = links.clone().filter(|_| one_in(rng, 6)).collect::<Vec<u16>>();
    let expected = expected.into_iter().map(|link| {
        let rate = percent_of(total_rate, rng.below(120));
        InitialEstimate { link: LinkId(link), rate, is_standby: one_in(rng, 2) }
    });
    let expected = expected.collect();
    let prices = links.map(|link| LinkPrice { link: LinkId(link), micros_per_gb: rng.below(20_000_000) }).collect();
    Config {
        fetch,
        policy,
        video: if one_in(rng, 3) { None } else { video(rng, size, total_rate) },
        may_delay_start: one_in(rng, 2),
        player: thresholds(rng, size),
        objective: pick(rng, &[Objective::Energy, Objective::MeteredBytes, Objective::Cost]),
        prices,
        initial_estimates: expected,
        greenbag: greenbag(rng),
        ..Config::default()
    }
}

fn greenbag(rng: &mut RandomStream) -> GreenBagParams {
    let ratio = |random: &mut RandomStream| Ratio::from_percent(u32::try_from(random.below(101)).unwrap_or(0));
    if one_in(rng, 2) {
        return GreenBagParams::default();
    }
    GreenBagParams {
        segment_size: DataSize::from_kib(10 << rng.below(8)),
        recovery_weight: ratio(rng),
        fall_back_weight: ratio(rng),
        goodput_margin: ratio(rng),
        alpha: ratio(rng),
        recovery_enabled: !one_in(rng, 4),
        adaptive_subsegments: !one_in(rng, 4),
    }
}

fn thresholds(rng: &mut RandomStream, size: u64) -> BufferThresholds {
    let some = |random: &mut RandomStream| {
        let max = size / (1 + random.below(30));
        DataSize::from_bytes(random.below(max + 1))
    };
    let high = one_in(rng, 4).then(|| some(rng));
    BufferThresholds { low: some(rng), high }
}

/// A video, in most cases as long as the file, at a rate close to what the links carry.
fn video(rng: &mut RandomStream, size: u64, total_rate: Bitrate) -> Option<MediaProfile> {
    let size = match rng.below(8) {
        0 => rng.below(size.saturating_mul(2) + 1),
        1 => rng.below(1000),
        _ => size,
    };
    let segments = 1 + rng.below(6);
    let segment_list = (0..segments).map(|_| {
        let bytes = DataSize::from_bytes(size / segments);
        (bytes / percent_of(total_rate, 10 + rng.below(130)), bytes)
    });
    MediaProfile::variable(segment_list).ok()
}

fn percent_of(rate: Bitrate, percent: u64) -> Bitrate {
    (rate * percent) / 100
}

fn pick<T: Copy>(rng: &mut RandomStream, choices: &[T]) -> T {
    choices[usize::try_from(rng.below(choices.len() as u64)).unwrap_or(0)]
}

/// LTE, whose radio sleeps, is drawn twice as often as Wi-Fi, whose radio does not, and as a link of unknown kind.
const LINK_KINDS: [LinkKind; 4] = [LinkKind::Wifi, LinkKind::Lte, LinkKind::Lte, LinkKind::Other];
/// Upper limit of the time to read the whole file.
const MAX_READ_TIME: Duration = Duration::from_secs(200);
