//! Estimates the player of a session from what it reads: the video that it plays, its position, and its buffer.
//!
//! From the bytes that the player reads and those that wait in its window, it derives the inputs of the stream
//! ([`PlayerInput`]) and figures for the status.
//!
//! 1. The driver finds the duration or rate of the video in its container, or by another program. If both fail, it is
//!    estimated from reads: a player with enough data reads at the video's rate while bytes wait that it does not take.
//!    Until one of these succeeds, all links are used.
//! 2. The buffer is never overestimated: playback is assumed to start once one second of video has arrived, so the
//!    position is never too early. But the player cannot have played bytes that it has not read. If bytes wait and the
//!    model's buffer is empty, the player is paused or has a small buffer.
//! 3. A response that begins between the playback position and the end of the bytes read so far belongs to the same
//!    playback; any other one is a seek.
//! 4. The stream is updated only if its position differs by more than [`MIN_POSITION_CHANGE`].
//!
//! The start of a requested range is not taken for the playback position, because players read ahead by whole files.

use crate::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use crate::stream::PlayerInput;
use crate::units::{DataSize, Duration, Instant, Ratio};

/// Model of one player.
#[derive(Debug, Default)]
pub struct PlayerEstimator {
    source: Option<&'static str>,
    player: Option<Player>,
    /// One past the last byte that the player has read.
    read_end: u64,
    /// When the first byte of this playback was read. Nothing can have been played before.
    first_byte_at: Option<Instant>,
    read_rate: ReadRateDetector,
    /// Stalls of player models that were replaced.
    earlier_stalls: u32,
    /// Counted stalls that were in fact pauses.
    discounted_stalls: u32,
    /// The startup gate withholds the video itself.
    is_held: bool,
    /// The stream must receive the video and the state again.
    must_resend: bool,
    /// No response is in progress. The player requests nothing, so it cannot stall.
    is_idle: bool,
}

/// Measures how fast the player reads while data is waiting for it.
#[derive(Debug, Default)]
struct ReadRateDetector {
    /// Start of the measurement, and the read offset at that time.
    window_start: Option<(Instant, u64)>,
}

/// The estimated state for the status.
#[derive(Clone, PartialEq, Debug)]
pub struct PlayerStatus {
    /// Where the duration or the rate of the video comes from.
    pub source: &'static str,
    /// Duration of the video.
    pub duration: Duration,
    /// Mean rate of the video, in bits per second.
    pub rate_bps: u64,
    /// Time of the video at the playback position.
    pub position: Duration,
    /// What the player has buffered, including bytes that wait in its window.
    pub buffer: Duration,
    /// Whether it plays.
    pub state: PlayerState,
    /// Stalls since the first picture, without pauses.
    pub stalls: u32,
}

impl PlayerEstimator {
    /// Notes that the player has read all bytes before `read_end`.
    pub fn on_bytes_read(&mut self, now: Instant, read_end: u64) {
        self.read_end = read_end;
        self.first_byte_at.get_or_insert(now);
    }

    /// Notes a request for the bytes from here on: it continues the playback, or is a seek.
    pub fn on_request(&mut self, now: Instant, from: u64) {
        self.read_rate.window_start = None;
        let Some(player) = &mut self.player else {
            if from != self.read_end {
                self.first_byte_at = None;
            }
            self.read_end = from;
            return;
        };
        let stalls_before = player.stalls();
        player.advance(now);
        // The model ran out of data without any request, so the player was paused.
        let pause_stalls = if core::mem::take(&mut self.is_idle) { player.stalls() - stalls_before } else { 0 };
        let is_continuation = from <= self.read_end && from >= player.decoded();
        let position = if is_continuation { player.position() } else { player.profile().time_at(from) };
        let is_playing = is_continuation && player.state() == PlayerState::Playing;
        let profile = player.profile().clone();
        self.replace_player(now, profile, from, position, is_playing);
        self.discounted_stalls += pause_stalls;
        self.read_end = from;
    }

    /// Whether the model is playing, and bytes from this offset on continue its playback.
    pub fn is_continuing_at(&self, from: u64) -> bool {
        let is_continuation = |player: &Player| from <= self.read_end && from >= player.decoded();
        self.player.as_ref().is_some_and(|player| is_continuation(player) && player.state() == PlayerState::Playing)
    }

    /// Notes that the player has closed its last response.
    pub fn on_last_response_ended(&mut self, now: Instant) {
        self.is_idle = true;
        self.read_rate.window_start = None;
        if let Some(player) = &mut self.player {
            player.advance(now);
        }
    }

    /// Updates the model: the player has read up to `read_end`, and all bytes before `in_order_end` have arrived. `found`
    /// is the profile of the video with its source, if it was found since the last update. Does nothing while the size of
    /// the resource is unknown.
    pub fn update(
        &mut self,
        now: Instant,
        (read_end, in_order_end): (u64, u64),
        total: Option<DataSize>,
        found: Option<(MediaProfile, &'static str)>,
    ) {
        self.read_end = read_end;
        let Some(total) = total else { return };
        self.estimate_from_reads(now, in_order_end > read_end, total);
        if let Some((profile, source)) = found {
            self.source = Some(source);
            self.set_profile(now, profile, in_order_end);
        }
        let Some(player) = &mut self.player else { return };
        let (stalls_before, was_playing) = (player.stalls(), player.state() == PlayerState::Playing);
        player.on_arrival(now, in_order_end);
        // Rule 2: bytes wait and the model is past them, so the player is not stalled but paused.
        let max_position = player.profile().time_at(read_end);
        if in_order_end > read_end && player.position() > max_position && was_playing {
            self.discounted_stalls += player.stalls() - stalls_before;
            player.on_report(now, max_position, true);
        }
    }

    /// Applies a position that the player itself reports, and whether it has enough data.
    pub fn on_reported_position(&mut self, now: Instant, position: Duration, is_playing: bool) {
        if let Some(player) = &mut self.player {
            player.on_report(now, position, is_playing);
        }
    }

    /// The profile of the video, if known.
    pub fn profile(&self) -> Option<&MediaProfile> {
        self.player.as_ref().map(Player::profile)
    }

    /// Notes whether the startup gate withholds the video.
    pub fn set_held(&mut self, now: Instant, is_held: bool) {
        if core::mem::replace(&mut self.is_held, is_held) == is_held {
            return;
        }
        if let Some(player) = &self.player {
            let (profile, position, received_end) = (player.profile().clone(), player.position(), player.arrived());
            self.replace_player(now, profile, received_end, position, false);
            self.must_resend = true;
        }
    }

    /// The update that a stream needs whose own model of the player is `modelled`.
    pub fn update_for_stream(&mut self, modelled: Option<&Player>) -> Option<PlayerInput> {
        let player = self.player.as_ref()?;
        let (position, is_playing) = (player.position(), player.state() == PlayerState::Playing);
        let current = modelled.filter(|modelled| modelled.profile() == player.profile() && !self.must_resend);
        let Some(modelled) = current else {
            self.must_resend = false;
            let (video, player) = (player.profile().clone(), self.default_thresholds(player.profile()));
            return Some(PlayerInput::Video { video, player, position, is_playing });
        };
        let difference = position.abs_diff(modelled.position());
        let differs =
            difference > MIN_POSITION_CHANGE || (is_playing && modelled.state() == PlayerState::Buffering);
        differs.then_some(PlayerInput::Position { position, is_playing })
    }

    /// The estimate for the status; `None`: nothing is known of the video.
    pub fn status(&self) -> Option<PlayerStatus> {
        let player = self.player.as_ref()?;
        Some(PlayerStatus {
            source: self.source?,
            duration: player.profile().duration(),
            rate_bps: player.profile().mean_rate().bits_per_sec(),
            position: player.position(),
            buffer: player.buffered_time(),
            state: player.state(),
            stalls: (self.earlier_stalls + player.stalls()).saturating_sub(self.discounted_stalls),
        })
    }

    /// Estimates the rate of the video from reads (second half of rule 1).
    fn estimate_from_reads(&mut self, now: Instant, has_backlog: bool, total: DataSize) {
        let has_source = self.source.is_some_and(|source| source != SOURCE_READ_RATE);
        let Some((since, start)) = self.read_rate.window_start.filter(|_| has_backlog && !has_source) else {
            self.read_rate.window_start = (has_backlog && !has_source).then_some((now, self.read_end));
            return;
        };
        let elapsed = now.since(since);
        if elapsed < READ_RATE_WINDOW {
            return;
        }
        self.read_rate.window_start = Some((now, self.read_end));
        let rate = DataSize::from_bytes(self.read_end - start.min(self.read_end)) / elapsed;
        let rate = rate + rate.share(ESTIMATE_MARGIN);
        let is_not_faster = self.player.as_ref().is_some_and(|player| player.profile().mean_rate() >= rate);
        // The player has paused, or the known rate is already high enough.
        if rate.is_zero() || is_not_faster {
            return;
        }
        if let Ok(profile) = MediaProfile::variable([(total / rate, total)]) {
            self.source = Some(SOURCE_READ_RATE);
            // The player's buffer is unknown, so everything that it has read counts as played.
            let position = profile.time_at(self.read_end);
            self.replace_player(now, profile, self.read_end, position, true);
        }
    }

    fn set_profile(&mut self, now: Instant, profile: MediaProfile, in_order_end: u64) {
        let (position, is_playing) = match &self.player {
            Some(player) => (player.position(), player.state() == PlayerState::Playing),
            // Playback may have begun with the first byte.
            None => {
                let since_first_byte = self.first_byte_at.map_or(Duration::ZERO, |began| now.since(began));
                (since_first_byte.min(profile.time_at(self.read_end)), false)
            }
        };
        self.replace_player(now, profile, in_order_end, position, is_playing);
    }

    fn replace_player(
        &mut self,
        now: Instant,
        profile: MediaProfile,
        received_end: u64,
        position: Duration,
        is_playing: bool,
    ) {
        self.earlier_stalls += self.player.as_ref().map_or(0, Player::stalls);
        let thresholds = self.default_thresholds(&profile);
        let mut player = Player::new(profile, thresholds, now);
        player.resume_at(now, received_end, position, is_playing);
        self.player = Some(player);
    }

    /// While the gate withholds the video, the model must not start to play.
    fn default_thresholds(&self, profile: &MediaProfile) -> BufferThresholds {
        if self.is_held { BufferThresholds { low: DataSize::MAX, high: None } } else { thresholds(profile) }
    }
}

/// Playback starts with one second of video: as much as mpv waits for after a stall, and more than browsers need.
fn thresholds(profile: &MediaProfile) -> BufferThresholds {
    BufferThresholds { low: profile.mean_rate() * Duration::from_secs(1), high: None }
}

/// Source of a rate that was estimated from reads.
const SOURCE_READ_RATE: &str = "how fast the player reads";
/// How long reads are measured. Our choice: players read in bursts of some seconds.
const READ_RATE_WINDOW: Duration = Duration::from_secs(10);
/// Safety margin of the estimate.
const ESTIMATE_MARGIN: Ratio = Ratio::from_percent(20);
/// The largest deviation of a stream's model that is not corrected.
const MIN_POSITION_CHANGE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: DataSize = DataSize::from_bytes(10_000_000);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Ten seconds, of which the player has read the first hundred bytes.
    fn new_estimator() -> PlayerEstimator {
        let mut estimator = PlayerEstimator::default();
        estimator.on_request(at(0), 0);
        estimator.on_bytes_read(at(100), 100);
        let profile = MediaProfile::variable([(Duration::from_secs(10), TOTAL)]).unwrap();
        estimator.update(at(100), (100, 100), Some(TOTAL), Some((profile, "mp4 mvhd")));
        estimator
    }

    #[test]
    fn the_stream_gets_the_video_once_and_the_position_when_it_differs() {
        let mut estimator = new_estimator();
        let Some(PlayerInput::Video { video, position, is_playing: plays, .. }) = estimator.update_for_stream(None)
        else {
            panic!()
        };
        assert_eq!((video.duration(), position, plays), (Duration::from_secs(10), Duration::ZERO, false));
        let mut modelled = Player::new(video.clone(), thresholds(&video), at(100));
        assert_eq!(estimator.update_for_stream(Some(&modelled)), None);
        for upto in [2_000_000, 4_000_000] {
            estimator.update(at(200), (upto, upto), Some(TOTAL), None);
            modelled.on_arrival(at(200), upto);
        }
        modelled.advance(at(1000));
        estimator.update(at(1000), (4_000_000, 4_000_000), Some(TOTAL), None);
        assert_eq!(estimator.update_for_stream(Some(&modelled)), None);
        assert_eq!(estimator.status().unwrap().position, Duration::from_millis(800));
        assert_eq!(estimator.status().unwrap().source, "mp4 mvhd");
    }

    #[test]
    fn a_player_that_leaves_bytes_unread_is_paused() {
        let mut estimator = new_estimator();
        estimator.update(at(200), (2_000_000, 6_000_000), Some(TOTAL), None);
        estimator.update(at(9000), (2_000_000, 6_000_000), Some(TOTAL), None);
        let status = estimator.status().unwrap();
        assert_eq!(
            (status.position, status.state, status.stalls),
            (Duration::from_secs(2), PlayerState::Playing, 0)
        );
        assert_eq!(status.buffer, Duration::from_secs(4));
        // When no more bytes wait, it stalls.
        estimator.update(at(20_000), (6_000_000, 6_000_000), Some(TOTAL), None);
        assert_eq!(estimator.status().unwrap().stalls, 1);
    }

    #[test]
    fn a_response_that_continues_is_no_seek_and_any_other_is() {
        let mut estimator = new_estimator();
        estimator.update(at(200), (3_000_000, 5_000_000), Some(TOTAL), None);
        estimator.on_request(at(1200), 3_000_000);
        let status = estimator.status().unwrap();
        assert_eq!((status.position, status.buffer), (Duration::from_secs(1), Duration::from_secs(2)));
        assert_eq!(status.state, PlayerState::Playing);
        estimator.on_request(at(1300), 8_000_000);
        let status = estimator.status().unwrap();
        assert_eq!((status.position, status.state), (Duration::from_secs(8), PlayerState::Buffering));
        assert_eq!(status.stalls, 0);
    }

    #[test]
    fn without_container_timing_the_rate_is_estimated_from_reads() {
        let mut estimator = PlayerEstimator::default();
        estimator.on_request(at(0), 0);
        estimator.on_bytes_read(at(0), 5000);
        for n in 0..=100_u64 {
            estimator.update(at(n * 100), (1_000_000 + n * 10_000, 5_000_000), Some(TOTAL), None);
        }
        let status = estimator.status().unwrap();
        // 100,000 bytes a second, and a margin of a fifth.
        assert_eq!((status.source, status.rate_bps.div_ceil(1000)), (SOURCE_READ_RATE, 960));
        // A pause changes nothing.
        for n in 100..=300_u64 {
            estimator.update(at(n * 100), (2_000_000, 5_000_000), Some(TOTAL), None);
        }
        assert_eq!(estimator.status().unwrap().rate_bps, status.rate_bps);
        // While the player waits for bytes, it reads at the rate of the links.
        let mut estimator = PlayerEstimator::default();
        for n in 0..=200_u64 {
            estimator.update(at(n * 100), (n * 10_000, n * 10_000), Some(TOTAL), None);
        }
        assert_eq!(estimator.status(), None);
    }
}
