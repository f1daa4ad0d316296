//! Configuration of one case of GreenBag: a video, two links and a policy; its simulation in virtual time; and the
//! comparison with a clairvoyant.
//!
//! 1. Rates are those of payload. GreenBag's traffic shaper counted frames, but the paper gives the video's rate as
//!    a percentage of the bandwidth, which is only correct for payload. On the wire a link is 1500/1448 as fast.
//! 2. RTTs are 60 ms on LTE and 30 ms on Wi-Fi, queues 100 ms and 50 ms at the mean rate. The paper only states
//!    that LTE's delay was higher.
//! 3. The player is the paper's (section II-B, B = 4 MB of 2^20 bytes), without a high threshold, as in the
//!    emulated player.
//! 4. Energy follows Table I, with the whole tail after the last byte.
//! 5. The clairvoyant has both links, whatever the policy; its energy is the minimum at the policy's own playback
//!    time.

use std::path::PathBuf;

use marline_core::link::LinkKind;
use marline_core::playback::{BufferThresholds, MediaProfile, Player};
use marline_core::stream::{Config, GreenBagParams, GreenBagRadio, Policy, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::clairvoyant::{CapacityCurve, Grid, PlaybackCase};
use marline_sim::http_sim::{HttpScenario, HttpSim};
use marline_sim::lower_bound::PayloadCurve;
use marline_sim::scenario;
use marline_sim::spec::{Downlink, LinkSpec, QueueLimit};

/// Links, video, and segment size.
#[derive(Clone, Debug)]
pub(super) struct RunConfig {
    links: Vec<(LinkSpec, CapacityCurve)>,
    video: MediaProfile,
    segment: DataSize,
}

/// The policy that downloads the video.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GreenBagPolicy {
    /// GreenBag over LTE only.
    LteOnly,
    /// GreenBag over Wi-Fi only.
    WifiOnly,
    /// GreenBag without its energy-saving link mode.
    GreenbagP,
    /// GreenBag with its link-mode chooser.
    GreenbagE,
    /// marline's policy.
    Marline,
    /// GreenBag-P with equal subsegments (figure 10).
    EqualSubsegments,
    /// GreenBag-P without recovery (figures 11 and 12).
    WithoutRecovery,
}

impl GreenBagPolicy {
    /// Name in rows.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::LteOnly => "single:lte",
            Self::WifiOnly => "single:wifi",
            Self::GreenbagP => "greenbag-p",
            Self::GreenbagE => "greenbag-e",
            Self::Marline => "marline",
            Self::EqualSubsegments => "greenbag-p 1:1",
            Self::WithoutRecovery => "greenbag-p unrecovered",
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

/// Results of a playback, and those of a clairvoyant. Times are in seconds, energies in joules.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PlaybackMetrics {
    /// Playback time (P in the paper).
    pub(super) playback_time: f64,
    /// Total buffering time (I in the paper), including the startup.
    pub(super) buffering_time: f64,
    /// Interruptions after the start.
    pub(super) stalls: u32,
    /// Energy of the radios.
    pub(super) energy: f64,
    /// Minimum playback time.
    pub(super) min_playback: f64,
    /// Minimum buffering time.
    pub(super) min_buffering: f64,
    /// Minimum energy for this playback time; `None` if it was not computed.
    pub(super) min_energy: Option<f64>,
}

impl RunConfig {
    /// Links with these constant rates.
    pub(super) fn constant(lte: Bitrate, wifi: Bitrate, video: MediaProfile) -> Self {
        Self::from_rates(vec![lte], vec![wifi], video)
    }

    /// Links with one rate per second; the last one stays.
    pub(super) fn from_rates(lte: Vec<Bitrate>, wifi: Vec<Bitrate>, video: MediaProfile) -> Self {
        let links = vec![
            link("lte", &lte, Duration::from_millis(60), Duration::from_millis(100)),
            link("wifi", &wifi, Duration::from_millis(30), Duration::from_millis(50)),
        ];
        let supplies = [lte, wifi].map(|rates| CapacityCurve::from_steps(SECOND, rates));
        Self {
            links: links.into_iter().zip(supplies).collect(),
            video,
            segment: GreenBagParams::default().segment_size,
        }
    }

    /// A pair of recorded links. The video's rate is this share of their mean rate during the video's duration.
    pub(super) fn from_trace_case(
        case: &scenario::Case,
        traces: &[PathBuf],
        duration: Duration,
        share: f64,
    ) -> Result<Self, marline_sim::trace::TraceError> {
        let mut case = case.clone();
        case.load(traces)?;
        let curves: Vec<PayloadCurve> =
            case.links.iter().map(|link| PayloadCurve::new(link, &case.events)).collect();
        let carried: DataSize = curves.iter().map(|curve| curve.carried(duration)).sum();
        let rate = (carried.bytes() as f64 * 8.0 / duration.as_secs_f64() * share) as u64;
        let step = Duration::from_millis(500);
        let supply = |curve: &PayloadCurve| CapacityCurve::from_payload_curve(curve, step, duration * 4);
        let supplies: Vec<CapacityCurve> = curves.iter().map(supply).collect();
        Ok(Self {
            links: case.links.into_iter().zip(supplies).collect(),
            video: video(Bitrate::from_bits_per_sec(rate.max(1)), duration),
            segment: GreenBagParams::default().segment_size,
        })
    }

    /// Sets the segment size.
    #[must_use]
    pub(super) const fn with_segment_size(mut self, segment: DataSize) -> Self {
        self.segment = segment;
        self
    }

    pub(super) fn specs(&self) -> impl Iterator<Item = &LinkSpec> {
        self.links.iter().map(|(spec, _)| spec)
    }

    pub(super) const fn video(&self) -> &MediaProfile {
        &self.video
    }

    /// Parameters of GreenBag for this policy.
    pub(super) fn greenbag(&self, policy: GreenBagPolicy) -> GreenBagParams {
        GreenBagParams {
            segment_size: self.segment,
            adaptive_subsegments: policy != GreenBagPolicy::EqualSubsegments,
            recovery_enabled: policy != GreenBagPolicy::WithoutRecovery,
            ..GreenBagParams::default()
        }
    }

    /// Simulates the playback. `energy`: whether to compute the minimum energy too, which takes longer than the
    /// simulation.
    pub(super) fn simulate(&self, policy: GreenBagPolicy, energy: bool) -> Result<PlaybackMetrics, String> {
        let used = self.specs().filter(|spec| policy.uses(spec.kind)).cloned();
        let scenario = HttpScenario::new(self.video.size(), used);
        let config = Config {
            policy: policy.policy(),
            greenbag: self.greenbag(policy),
            video: Some(self.video.clone()),
            ..Config::default()
        };
        let player = Player::new(self.video.clone(), PLAYER_THRESHOLDS, Instant::ZERO);
        let (outcome, stream) =
            HttpSim::new(scenario, Stream::new(config)).with_player(player).run_and_return_machine(TIME_LIMIT);
        if let Some((failure, at)) = &outcome.failed {
            return Err(format!("{failure:?} after {:.1} s", at.as_secs_f64()));
        }
        let playback_result = outcome.playback.as_ref().ok_or("the simulation has no player")?;
        let playback = playback_result.playback_time.ok_or("not played to the end in time")?;
        if !outcome.is_complete() {
            return Err("the video is incomplete".into());
        }
        let joules = stream.energy_meter().energy_until_idle(Instant::ZERO + TIME_LIMIT).total().as_joules_f64();
        let (interrupted, stalls) = (playback_result.buffering_time.as_secs_f64(), playback_result.stalls);
        self.with_optimum(playback.as_secs_f64(), interrupted, stalls, joules, energy)
    }

    /// Adds the clairvoyant's results to those of a playback. `energy`: whether to compute the minimum energy.
    pub(super) fn with_optimum(
        &self,
        playback: f64,
        interruption: f64,
        stalls: u32,
        joules: f64,
        energy: bool,
    ) -> Result<PlaybackMetrics, String> {
        let case = self.case();
        let least = case.min_playback_time().ok_or("the links never carry the video")?;
        let by_clairvoyant = || {
            let by = Duration::from_secs_f64(playback).max(least);
            Some(case.min_energy(&radios(&self.links), by, self.grid())?.energy.as_joules_f64())
        };
        Ok(PlaybackMetrics {
            playback_time: playback,
            buffering_time: interruption,
            stalls,
            energy: joules,
            min_playback: least.as_secs_f64(),
            min_buffering: least.saturating_sub(self.video.duration()).as_secs_f64(),
            min_energy: if energy { by_clairvoyant() } else { None },
        })
    }

    fn case(&self) -> PlaybackCase {
        let links = self.links.iter().map(|(_, supply)| supply.clone()).collect();
        PlaybackCase { links, video: self.video.clone(), start_threshold: PLAYER_THRESHOLDS.low }
    }

    /// Resolution of the clairvoyant: as for a video of a few Mbit/s, whatever its rate.
    fn grid(&self) -> Grid {
        let grain = (self.video.size() / GRAINS_PER_VIDEO).max(Grid::default().grain);
        Grid { grain, ..Grid::default() }
    }
}

/// A video of constant bit rate.
pub(super) fn video(rate: Bitrate, duration: Duration) -> MediaProfile {
    MediaProfile::constant(rate, duration).expect("a rate and a duration above zero")
}

fn link(name: &str, rates: &[Bitrate], rtt: Duration, queue: Duration) -> LinkSpec {
    let wire: Vec<Bitrate> = rates.iter().map(|rate| wire_rate(*rate)).collect();
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
    spec.downlink = Downlink::Rate { initial: first, steps };
    spec.uplink = marline_sim::spec::Uplink::Rate(UPLINK_RATE);
    spec.queue = Some(QueueLimit::Size(mean * queue));
    spec
}

/// Rate on the wire for this payload rate: 1448 of 1500 bytes are payload.
fn wire_rate(payload: Bitrate) -> Bitrate {
    Bitrate::from_bits_per_sec((payload.bits_per_sec() * 1500).div_ceil(1448))
}

/// The radios of GreenBag (Table I).
fn radios(links: &[(LinkSpec, CapacityCurve)]) -> Vec<GreenBagRadio> {
    let model_of = |kind: LinkKind| {
        if kind == LinkKind::Lte { GreenBagRadio::GREENBAG_LTE } else { GreenBagRadio::GREENBAG_WIFI }
    };
    links.iter().map(|(spec, _)| model_of(spec.kind)).collect()
}

/// Thresholds of the emulated player.
pub(super) const PLAYER_THRESHOLDS: BufferThresholds =
    BufferThresholds { high: None, ..BufferThresholds::GREENBAG };
const SECOND: Duration = Duration::from_secs(1);
/// Uplink of both links: enough for requests and ACKs.
const UPLINK_RATE: Bitrate = Bitrate::from_mbps(5);
/// More than twice the time that any case needs.
const TIME_LIMIT: Duration = Duration::from_secs(2000);
/// Grains per video: for 90 MB they have the default size.
const GRAINS_PER_VIDEO: u64 = 7200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_playback_is_compared_with_its_clairvoyant() {
        let rate = Bitrate::from_mbps(3);
        let run =
            RunConfig::constant(rate, rate, video(Bitrate::from_bits_per_sec(4_800_000), Duration::from_secs(30)));
        let both = run.simulate(GreenBagPolicy::GreenbagP, true).unwrap();
        assert!((both.min_playback - 35.59).abs() < 0.01, "{both:?}");
        assert!(
            both.playback_time >= both.min_playback && both.playback_time < both.min_playback + 0.5,
            "{both:?}"
        );
        assert!(both.energy > 0.98 * both.min_energy.unwrap(), "{both:?}");
        assert!((both.playback_time - both.buffering_time - 30.0).abs() < 1e-6);
        let alone = run.simulate(GreenBagPolicy::WifiOnly, false).unwrap();
        assert!(
            alone.playback_time > 48.0 && alone.energy < both.energy && alone.min_energy.is_none(),
            "{alone:?}"
        );
        assert_eq!(alone.min_playback, both.min_playback);
    }

    #[test]
    fn steps_are_only_where_the_rate_changes() {
        let mbps = Bitrate::from_mbps;
        let spec = link("wifi", &[mbps(3), mbps(3), mbps(1), mbps(1), mbps(3)], SECOND, SECOND);
        let Downlink::Rate { steps, .. } = spec.downlink else { panic!("a rate") };
        assert_eq!(steps.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), vec![2, 4]);
    }
}
