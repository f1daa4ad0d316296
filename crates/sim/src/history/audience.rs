//! Somebody who watches, at random: takes what is delivered at a pace of its own, seeks, pauses, and says things of its
//! player that may be true or not.
//!
//! In: a seed and the weather. Out: the stream's configuration, and what the player does next.
//!
//! 1. Chance is its own: a history of downloads is the same whether somebody could have watched or not.
//! 2. It takes only what was delivered, and only what it has taken makes room in the window.
//! 3. Its words are those that a driver may say: a video of any size and rate at any time, a position that the model
//!    does not expect, a seek to anywhere. They end after a while, and so do its pauses, so that each history ends.

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::stream::{Config, GreenBagParams, InitialEstimate, LinkPrice, Objective, PlayerInput, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};

use super::judge::Judge;
use super::weather::{Weather, magnitude, one_in};
use crate::rng::{Purpose, Stream};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Audience {
    random: Stream,
    kinds: Vec<(LinkKind, bool)>,
    /// What it may take.
    pub(super) offered: u64,
    pub(super) taken: u64,
    /// It takes no more than this; none: all that it may.
    pace: Option<Bitrate>,
    /// It takes nothing until then.
    pub(super) pauses: Instant,
    /// Its next taking is planned.
    pub(super) takes: bool,
    words: u64,
    size: u64,
    sum: Bitrate,
    /// Whether it gets what it was promised.
    pub(super) judge: Judge,
}

/// What it does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Act {
    /// It tells the machine.
    Says(PlayerInput),
    /// It stops taking for so long.
    Pauses(Duration),
}

impl Audience {
    /// Draws who watches, and for whom. The weather is made such that there is something to watch, in most histories.
    pub(super) fn new(seed: u64, weather: &mut Weather, policy: Policy) -> (Self, Config) {
        let mut random = Stream::new(seed, "audience", 0, Purpose::Other);
        if !one_in(&mut random, 3) {
            weather.lasts(&mut random);
        }
        let size = weather.server.editions.first().map_or(0, |edition| edition.size.bytes());
        let sum: Bitrate = weather.links.iter().map(|manner| manner.rate).sum();
        let kinds = weather.links.iter().map(|_| (pick(&mut random, &KINDS), one_in(&mut random, 3))).collect();
        let config = config(&mut random, weather, policy, size, sum);
        let pace = one_in(&mut random, 2).then(|| {
            let least = DataSize::from_bytes(size) / LONGEST_TAKING;
            least.max(share(sum, 20 + random.below(150)))
        });
        let words = random.below(10);
        let audience = Self {
            random,
            kinds,
            offered: 0,
            taken: 0,
            pace,
            pauses: Instant::ZERO,
            takes: false,
            words,
            size,
            sum,
            judge: Judge::new(&config),
        };
        (audience, config)
    }

    /// What is known of a link.
    pub(super) fn profile(&self, link: usize) -> LinkProfile {
        let (kind, metered) = self.kinds.get(link).copied().unwrap_or_default();
        LinkProfile { metered, ..LinkProfile::new(&format!("link{link}"), kind) }
    }

    /// When it does something else than watch; none: never again.
    pub(super) fn next_act(&mut self) -> Option<Duration> {
        self.words = self.words.checked_sub(1)?;
        Some(Duration::from_millis(magnitude(&mut self.random, 4, 12)))
    }

    /// What it does now. `seen` is the machine's model of it.
    pub(super) fn act(&mut self, seen: Option<&Player>) -> Act {
        let random = &mut self.random;
        match random.below(9) {
            0 | 1 => {
                let most = if one_in(random, 10) { self.size.saturating_mul(2) } else { self.size };
                Act::Says(PlayerInput::Seek { offset: random.below(most + 1) })
            }
            2..5 => {
                let player = thresholds(random, self.size);
                let position = Duration::from_millis(magnitude(random, 0, 18));
                let plays = one_in(random, 2);
                match video(random, self.size, self.sum) {
                    Some(video) => Act::Says(PlayerInput::Video { video, player, position, is_playing: plays }),
                    None => Act::Says(PlayerInput::Position { position, is_playing: plays }),
                }
            }
            5..8 => {
                let position = seen.map_or(Duration::ZERO, Player::position);
                let off = Duration::from_millis(magnitude(random, 0, 16));
                let position = if one_in(random, 2) { position + off } else { position.saturating_sub(off) };
                let plays = match seen.map(Player::state) {
                    Some(state) if !one_in(random, 3) => state == PlayerState::Playing,
                    _ => one_in(random, 2),
                };
                Act::Says(PlayerInput::Position { position, is_playing: plays })
            }
            _ => Act::Pauses(Duration::from_millis(magnitude(random, 8, 11))),
        }
    }

    /// It takes something of what it may; says how long it then takes for that.
    pub(super) fn take(&mut self) -> Duration {
        let waits = self.offered - self.taken;
        let Some(pace) = self.pace else {
            self.taken = self.offered;
            return Duration::from_millis(self.random.below(30));
        };
        let some = waits.min(1 + self.random.below(1 << 17));
        self.taken += some;
        DataSize::from_bytes(some) / pace
    }

    /// It reads on from here.
    pub(super) fn goes_to(&mut self, offset: u64) {
        (self.offered, self.taken) = (offset, offset);
    }
}

fn config(random: &mut Stream, weather: &Weather, policy: Policy, size: u64, sum: Bitrate) -> Config {
    let mut fetch = Config::default().fetch;
    fetch.reader_window = (!one_in(random, 3)).then(|| DataSize::from_kib(64 << random.below(10)));
    fetch.resume.clone_from(&weather.config.resume);
    let links = 0..u16::try_from(weather.links.len()).unwrap_or(0);
    let expected = links.clone().filter(|_| one_in(random, 6)).collect::<Vec<u16>>();
    let expected = expected.into_iter().map(|link| {
        let rate = share(sum, random.below(120));
        InitialEstimate { link: LinkId(link), rate, is_standby: one_in(random, 2) }
    });
    let expected = expected.collect();
    let prices =
        links.map(|link| LinkPrice { link: LinkId(link), micros_per_gb: random.below(20_000_000) }).collect();
    Config {
        fetch,
        policy,
        video: if one_in(random, 3) { None } else { video(random, size, sum) },
        may_delay_start: one_in(random, 2),
        player: thresholds(random, size),
        objective: pick(random, &[Objective::Energy, Objective::MeteredBytes, Objective::Cost]),
        prices,
        initial_estimates: expected,
        greenbag: greenbag(random),
        ..Config::default()
    }
}

fn greenbag(random: &mut Stream) -> GreenBagParams {
    let ratio = |random: &mut Stream| Ratio::from_percent(u32::try_from(random.below(101)).unwrap_or(0));
    if one_in(random, 2) {
        return GreenBagParams::default();
    }
    GreenBagParams {
        segment_size: DataSize::from_kib(10 << random.below(8)),
        recovery_weight: ratio(random),
        fall_back_weight: ratio(random),
        goodput_margin: ratio(random),
        alpha: ratio(random),
        recovery_enabled: !one_in(random, 4),
        adaptive_subsegments: !one_in(random, 4),
    }
}

fn thresholds(random: &mut Stream, size: u64) -> BufferThresholds {
    let some = |random: &mut Stream| {
        let most = size / (1 + random.below(30));
        DataSize::from_bytes(random.below(most + 1))
    };
    let high = one_in(random, 4).then(|| some(random));
    BufferThresholds { low: some(random), high }
}

/// A video that is about as long as the file, in most cases, and at a rate that is near to what the links carry.
fn video(random: &mut Stream, size: u64, sum: Bitrate) -> Option<MediaProfile> {
    let size = match random.below(8) {
        0 => random.below(size.saturating_mul(2) + 1),
        1 => random.below(1000),
        _ => size,
    };
    let pieces = 1 + random.below(6);
    let each = (0..pieces).map(|_| {
        let bytes = DataSize::from_bytes(size / pieces);
        (bytes / share(sum, 10 + random.below(130)), bytes)
    });
    MediaProfile::variable(each).ok()
}

fn share(rate: Bitrate, percent: u64) -> Bitrate {
    (rate * percent) / 100
}

fn pick<T: Copy>(random: &mut Stream, from: &[T]) -> T {
    from[usize::try_from(random.below(from.len() as u64)).unwrap_or(0)]
}

/// Radios that sleep, one that does not, and one of which nothing is known.
const KINDS: [LinkKind; 4] = [LinkKind::Wifi, LinkKind::Lte, LinkKind::Lte, LinkKind::Other];
/// However slowly it takes, it has taken all after so long.
const LONGEST_TAKING: Duration = Duration::from_secs(200);
