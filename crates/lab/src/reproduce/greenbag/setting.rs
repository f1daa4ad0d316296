//! One video over two links, and who brings it: in virtual time, with the clairvoyant beside.
//!
//! In: a [`Setting`] and a [`Who`]. Out: [`Played`].
//!
//! 1. Rates are of payload: GreenBag's traffic shaper counted frames, but its video needs so many percent of "the
//!    bandwidth", and only in payload do the percentages mean what they say. On the wire a link is 1500/1448 as fast.
//! 2. Round trips are 60 ms on LTE and 30 ms on Wi-Fi, queues 100 ms and 50 ms of the mean rate. The paper says only
//!    that LTE's delay was the higher one.
//! 3. The player is the paper's (§II-B, B = 4 MB of 2^20 bytes), without a high threshold as in the emulated player.
//! 4. Energy is by Table I, with the whole tail after the last byte.
//! 5. The clairvoyant has both links, whoever plays; its energy is the least at the policy's own playback time.

use std::path::PathBuf;

use marline_core::link::LinkKind;
use marline_core::playback::{BufferThresholds, MediaProfile, Player};
use marline_core::stream::{Config, GreenBagParams, GreenBagRadio, Policy, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::ideal::Curve;
use marline_sim::optimum::{Case, Grid, Supply};
use marline_sim::scenario;
use marline_sim::spec::{Carrier, LinkSpec, QueueLimit};
use marline_sim::world::{Scene, World};

/// Links, a video, and the size of a segment.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    links: Vec<(LinkSpec, Supply)>,
    video: MediaProfile,
    segment: DataSize,
}

/// Who brings the video.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    /// GreenBag over LTE alone.
    LteOnly,
    /// GreenBag over Wi-Fi alone.
    WifiOnly,
    /// GreenBag that never saves.
    GreenbagP,
    /// GreenBag with its link-mode chooser.
    GreenbagE,
    /// Our own policy.
    Marline,
    /// GreenBag-P whose subsegments are always equal (figure 10).
    Equal,
    /// GreenBag-P without recovery (figures 11 and 12).
    Unrecovered,
}

impl Who {
    /// As rows name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::LteOnly => "single:lte",
            Self::WifiOnly => "single:wifi",
            Self::GreenbagP => "greenbag-p",
            Self::GreenbagE => "greenbag-e",
            Self::Marline => "marline",
            Self::Equal => "greenbag-p 1:1",
            Self::Unrecovered => "greenbag-p unrecovered",
        }
    }

    pub(super) const fn policy(self) -> Policy {
        match self {
            Self::GreenbagE => Policy::GreenbagE,
            Self::Marline => Policy::Marline,
            _ => Policy::GreenbagP,
        }
    }

    pub(super) fn uses(self, kind: LinkKind) -> bool {
        match self {
            Self::LteOnly => kind == LinkKind::Lte,
            Self::WifiOnly => kind == LinkKind::Wifi,
            _ => true,
        }
    }
}

/// How it was to watch, what it cost, and what a clairvoyant would have had. Times in seconds, energies in joules.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Played {
    /// P.
    pub(super) playback: f64,
    /// I, the first wait included.
    pub(super) interruption: f64,
    /// Interruptions after the start.
    pub(super) stalls: u32,
    /// What the radios drew.
    pub(super) energy: f64,
    /// The least playback time.
    pub(super) least_playback: f64,
    /// The least interruption.
    pub(super) least_interruption: f64,
    /// The least energy with which it could have been played as soon as it was; none: nobody asked.
    pub(super) least_energy: Option<f64>,
}

impl Setting {
    /// Links of these constant rates.
    pub(super) fn constant(lte: Bitrate, wifi: Bitrate, video: MediaProfile) -> Self {
        Self::stepped(vec![lte], vec![wifi], video)
    }

    /// Links with a rate for each second; the last one lasts.
    pub(super) fn stepped(lte: Vec<Bitrate>, wifi: Vec<Bitrate>, video: MediaProfile) -> Self {
        let links = vec![
            link("lte", &lte, Duration::from_millis(60), Duration::from_millis(100)),
            link("wifi", &wifi, Duration::from_millis(30), Duration::from_millis(50)),
        ];
        let supplies = [lte, wifi].map(|rates| Supply::stepped(SECOND, rates));
        Self {
            links: links.into_iter().zip(supplies).collect(),
            video,
            segment: GreenBagParams::default().segment_size,
        }
    }

    /// A pair of recorded links; the video needs this share of what they carry on the average in its duration.
    pub(super) fn recorded(
        case: &scenario::Case,
        traces: &[PathBuf],
        duration: Duration,
        share: f64,
    ) -> Result<Self, marline_sim::trace::TraceError> {
        let mut case = case.clone();
        case.load(traces)?;
        let curves: Vec<Curve> = case.links.iter().map(|link| Curve::new(link, &case.events)).collect();
        let carried: DataSize = curves.iter().map(|curve| curve.at(duration)).sum();
        let rate = (carried.bytes() as f64 * 8.0 / duration.as_secs_f64() * share) as u64;
        let step = Duration::from_millis(500);
        let supply = |curve: &Curve| Supply::sampled(curve, step, duration * 4);
        let supplies: Vec<Supply> = curves.iter().map(supply).collect();
        Ok(Self {
            links: case.links.into_iter().zip(supplies).collect(),
            video: video(Bitrate::from_bits_per_sec(rate.max(1)), duration),
            segment: GreenBagParams::default().segment_size,
        })
    }

    /// The same with segments of this size.
    #[must_use]
    pub(super) const fn in_segments(mut self, segment: DataSize) -> Self {
        self.segment = segment;
        self
    }

    /// The links.
    pub(super) fn specs(&self) -> impl Iterator<Item = &LinkSpec> {
        self.links.iter().map(|(spec, _)| spec)
    }

    /// What is played.
    pub(super) const fn video(&self) -> &MediaProfile {
        &self.video
    }

    /// GreenBag as this one has it.
    pub(super) fn greenbag(&self, who: Who) -> GreenBagParams {
        GreenBagParams {
            segment_size: self.segment,
            adaptive_subsegments: who != Who::Equal,
            recovery_enabled: who != Who::Unrecovered,
            ..GreenBagParams::default()
        }
    }

    /// Plays it in virtual time. `energy`: whether the least energy is looked for as well, which takes longer than the
    /// playing.
    pub(super) fn play(&self, who: Who, energy: bool) -> Result<Played, String> {
        let used = self.specs().filter(|spec| who.uses(spec.kind)).cloned();
        let scene = Scene::new(self.video.size(), used);
        let config = Config {
            policy: who.policy(),
            greenbag: self.greenbag(who),
            video: Some(self.video.clone()),
            ..Config::default()
        };
        let player = Player::new(self.video.clone(), THRESHOLDS, Instant::ZERO);
        let (outcome, stream) = World::new(scene, Stream::new(config)).watched_by(player).run_machine(LIMIT);
        if let Some((failure, at)) = &outcome.failed {
            return Err(format!("{failure:?} after {:.1} s", at.as_secs_f64()));
        }
        let viewing = outcome.viewing.as_ref().ok_or("nobody watched")?;
        let playback = viewing.playback_time.ok_or("not played to the end in time")?;
        if !outcome.is_good() {
            return Err("the video is not whole".into());
        }
        let joules = stream.energy_meter().energy_until_idle(Instant::ZERO + LIMIT).total().as_joules_f64();
        let (interrupted, stalls) = (viewing.interrupted.as_secs_f64(), viewing.stalls);
        self.judged(playback.as_secs_f64(), interrupted, stalls, joules, energy)
    }

    /// A playing beside the clairvoyant's. `energy`: whether the least energy is looked for.
    pub(super) fn judged(
        &self,
        playback: f64,
        interruption: f64,
        stalls: u32,
        joules: f64,
        energy: bool,
    ) -> Result<Played, String> {
        let case = self.case();
        let least = case.least_playback().ok_or("the links never carry the video")?;
        let by_clairvoyant = || {
            let by = Duration::from_secs_f64(playback).max(least);
            Some(case.least_energy(&radios(&self.links), by, self.grid())?.energy.as_joules_f64())
        };
        Ok(Played {
            playback,
            interruption,
            stalls,
            energy: joules,
            least_playback: least.as_secs_f64(),
            least_interruption: least.saturating_sub(self.video.duration()).as_secs_f64(),
            least_energy: if energy { by_clairvoyant() } else { None },
        })
    }

    fn case(&self) -> Case {
        let links = self.links.iter().map(|(_, supply)| supply.clone()).collect();
        Case { links, video: self.video.clone(), low: THRESHOLDS.low }
    }

    /// As fine as for a video of a few Mbit/s, whatever its rate.
    fn grid(&self) -> Grid {
        let grain = (self.video.size() / GRAINS).max(Grid::default().grain);
        Grid { grain, ..Grid::default() }
    }
}

/// A video of constant bit rate.
pub(super) fn video(rate: Bitrate, duration: Duration) -> MediaProfile {
    MediaProfile::constant(rate, duration).expect("a rate and a duration above zero")
}

fn link(name: &str, rates: &[Bitrate], rtt: Duration, queue: Duration) -> LinkSpec {
    let wire: Vec<Bitrate> = rates.iter().map(|rate| on_the_wire(*rate)).collect();
    let first = wire.first().copied().unwrap_or_default();
    let mut steps: Vec<(Duration, Bitrate)> = Vec::new();
    for (at, rate) in (0_u32..).zip(&wire).skip(1) {
        if steps.last().map_or(first, |(_, before)| *before) != *rate {
            steps.push((SECOND * at, *rate));
        }
    }
    let sum: f64 = wire.iter().map(|rate| rate.bits_per_sec() as f64).sum();
    let mean = Bitrate::from_bits_per_sec((sum / wire.len().max(1) as f64) as u64);
    let mut spec = LinkSpec::constant(name, first, rtt);
    spec.down = Carrier::Rate { first, steps };
    spec.up = marline_sim::spec::Uplink::Rate(UP);
    spec.queue = Some(QueueLimit::Size(mean * queue));
    spec
}

/// Of 1500 bytes of a packet 1448 are payload.
fn on_the_wire(payload: Bitrate) -> Bitrate {
    Bitrate::from_bits_per_sec((payload.bits_per_sec() * 1500).div_ceil(1448))
}

/// GreenBag's radios (Table I).
fn radios(links: &[(LinkSpec, Supply)]) -> Vec<GreenBagRadio> {
    let of = |kind: LinkKind| {
        if kind == LinkKind::Lte { GreenBagRadio::GREENBAG_LTE } else { GreenBagRadio::GREENBAG_WIFI }
    };
    links.iter().map(|(spec, _)| of(spec.kind)).collect()
}

/// The emulated player's.
pub(super) const THRESHOLDS: BufferThresholds = BufferThresholds { high: None, ..BufferThresholds::GREENBAG };
const SECOND: Duration = Duration::from_secs(1);
/// From the client: enough for requests and acknowledgements.
const UP: Bitrate = Bitrate::from_mbps(5);
/// Nothing here needs half of it.
const LIMIT: Duration = Duration::from_secs(2000);
/// Grains of a whole video: those of 90 MB in the usual size.
const GRAINS: u64 = 7200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_played_beside_its_clairvoyant() {
        let rate = Bitrate::from_mbps(3);
        let setting =
            Setting::constant(rate, rate, video(Bitrate::from_bits_per_sec(4_800_000), Duration::from_secs(30)));
        let both = setting.play(Who::GreenbagP, true).unwrap();
        assert!((both.least_playback - 35.59).abs() < 0.01, "{both:?}");
        assert!(both.playback >= both.least_playback && both.playback < both.least_playback + 0.5, "{both:?}");
        assert!(both.energy > 0.98 * both.least_energy.unwrap(), "{both:?}");
        assert!((both.playback - both.interruption - 30.0).abs() < 1e-6);
        let alone = setting.play(Who::WifiOnly, false).unwrap();
        assert!(alone.playback > 48.0 && alone.energy < both.energy && alone.least_energy.is_none(), "{alone:?}");
        assert_eq!(alone.least_playback, both.least_playback);
    }

    #[test]
    fn steps_are_only_where_the_rate_changes() {
        let mbps = Bitrate::from_mbps;
        let spec = link("wifi", &[mbps(3), mbps(3), mbps(1), mbps(1), mbps(3)], SECOND, SECOND);
        let Carrier::Rate { steps, .. } = spec.down else { panic!("a rate") };
        assert_eq!(steps.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), vec![2, 4]);
    }
}
