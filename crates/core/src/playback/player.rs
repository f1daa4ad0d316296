//! The player model: three states, one buffer, and a media clock that stops when the buffer is empty.
//!
//! From in-order bytes and the time it computes the state, A(t), D(t), X(t), I(t) and the deadline of every byte.
//!
//! 1. Buffering ends when the low threshold is reached or the rest of the video has arrived.
//! 2. Playing ends at the exact nanosecond at which X(t) = 0, however late the model is advanced, or at the end of the
//!    video.
//! 3. A player with a high threshold stops reading there and resumes at the low one (GreenBag §IV-C: 4 MB and 20 MB).
//! 4. `playback time = duration + interruption` holds to the nanosecond for a video that is played from start to end.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::MediaProfile;
use crate::units::{DataSize, Instant};

/// Buffer levels at which a player starts playing and stops reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferThresholds {
    /// B: playback starts once this much is buffered.
    pub low: DataSize,
    /// Reading stops at this level and resumes at `low`. `None`: the player reads everything it gets.
    pub high: Option<DataSize>,
}

impl BufferThresholds {
    /// GreenBag §IV-C: 4 MB and 20 MB, whose kilo is 2^10 (§V-A). The paper's start-up time of 5.6 s at 6 Mbit/s
    /// agrees.
    pub const GREENBAG: Self = Self { low: DataSize::from_mib(4), high: Some(DataSize::from_mib(20)) };
}

impl Default for BufferThresholds {
    /// GreenBag's low threshold, and no high one.
    fn default() -> Self {
        Self { high: None, ..Self::GREENBAG }
    }
}

/// State of a player.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlayerState {
    /// The player waits for its low threshold: an interruption.
    Buffering,
    /// The player decodes at the video's rate.
    Playing,
    /// The whole video has been played.
    Ended,
}

/// Player of one video; see the [module documentation](super).
#[derive(Clone, Debug)]
pub struct Player {
    profile: MediaProfile,
    thresholds: BufferThresholds,
    started_at: Instant,
    now: Instant,
    state: PlayerState,
    /// Playing time of earlier parts that the player still has before the first byte of this video.
    lead_time: Duration,
    /// Media time of the current playback position.
    position: Duration,
    /// A(t): one past the last byte that has arrived without a gap.
    arrived: u64,
    is_reading: bool,
    playing_time: Duration,
    buffering_time: Duration,
    stalls: u32,
    first_frame_at: Option<Instant>,
    ended_at: Option<Instant>,
}

impl Player {
    /// Creates a player that starts buffering at `now`.
    pub fn new(profile: MediaProfile, thresholds: BufferThresholds, now: Instant) -> Self {
        Self {
            profile,
            thresholds,
            started_at: now,
            now,
            state: PlayerState::Buffering,
            lead_time: Duration::ZERO,
            position: Duration::ZERO,
            arrived: 0,
            is_reading: true,
            playing_time: Duration::ZERO,
            buffering_time: Duration::ZERO,
            stalls: 0,
            first_frame_at: None,
            ended_at: None,
        }
    }

    /// Advances the model to `now`, playing what is buffered.
    pub fn advance(&mut self, now: Instant) {
        while self.now < now {
            let left = now - self.now;
            match self.state {
                PlayerState::Buffering => {
                    self.buffering_time += left;
                    self.now = now;
                }
                PlayerState::Ended => self.now = now,
                PlayerState::Playing => {
                    let step = self.buffered_time().min(left);
                    let lead_step = step.min(self.lead_time);
                    self.now += step;
                    self.lead_time -= lead_step;
                    self.position += step - lead_step;
                    self.playing_time += step;
                    self.stop_if_empty();
                }
            }
        }
        self.update_reading();
    }

    /// Everything before `end` has arrived at the player.
    pub fn on_arrival(&mut self, now: Instant, end: u64) {
        self.advance(now);
        self.arrived = self.arrived.max(end.min(self.profile.size().bytes()));
        self.start_if_buffered();
        self.update_reading();
    }

    /// Seeks to where the byte at `offset` is played. The buffer is dropped.
    pub fn seek(&mut self, now: Instant, offset: u64) {
        self.advance(now);
        self.arrived = offset.min(self.profile.size().bytes());
        self.lead_time = Duration::ZERO;
        self.position = self.profile.time_at(self.arrived);
        self.state = PlayerState::Buffering;
        self.ended_at = None;
        self.start_if_buffered();
        self.update_reading();
    }

    /// Continues a player that was playing before the model existed: everything before `end` has arrived, and the
    /// playback position is `position`.
    pub fn resume_at(&mut self, now: Instant, end: u64, position: Duration, is_playing: bool) {
        self.advance(now);
        self.arrived = end.min(self.profile.size().bytes());
        self.position = position.min(self.profile.time_at(self.arrived));
        if is_playing {
            self.start_playing();
            self.stop_if_empty();
        } else {
            self.start_if_buffered();
        }
        self.update_reading();
    }

    /// Continues a player of which this video is one part: everything before `upto` has arrived, and `lead_time` of earlier
    /// parts is still to be played before its first byte, or its position is `position`.
    pub fn resume_part(
        &mut self,
        now: Instant,
        upto: u64,
        lead_time: Duration,
        position: Duration,
        is_playing: bool,
    ) {
        self.lead_time = lead_time;
        self.resume_at(now, upto, position, is_playing);
    }

    /// Takes over the position and state that a real player reports. A report of playing bytes that have not arrived
    /// counts as a stall that has just begun.
    pub fn on_report(&mut self, now: Instant, position: Duration, is_playing: bool) {
        self.advance(now);
        if self.state == PlayerState::Ended {
            return;
        }
        self.lead_time = Duration::ZERO;
        self.position = position.min(self.profile.time_at(self.arrived));
        match (self.state, is_playing) {
            (PlayerState::Buffering, true) => self.start_playing(),
            (PlayerState::Playing, false) => {
                self.state = PlayerState::Buffering;
                self.stalls += 1;
            }
            _ => {}
        }
        self.stop_if_empty();
        self.update_reading();
    }

    /// The present state.
    pub const fn state(&self) -> PlayerState {
        self.state
    }

    /// The video that is played.
    pub const fn profile(&self) -> &MediaProfile {
        &self.profile
    }

    /// A(t): one past the last byte that has arrived without a gap.
    pub const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// D(t): one past the last decoded byte.
    pub fn decoded(&self) -> u64 {
        self.profile.bytes_at(self.position).min(self.arrived)
    }

    /// X(t) = A(t) − D(t).
    pub fn buffered(&self) -> DataSize {
        DataSize::from_bytes(self.arrived - self.decoded())
    }

    /// Media time of the current playback position.
    pub const fn position(&self) -> Duration {
        self.position
    }

    /// How long playback continues if nothing more arrives: GreenBag's T_P(t).
    pub fn buffered_time(&self) -> Duration {
        self.lead_time + self.profile.time_at(self.arrived).saturating_sub(self.position)
    }

    /// When the first `end` bytes must have arrived so that playback is not interrupted from now on. While the player
    /// is buffering, the deadline moves with the time, as I(t) grows.
    pub fn deadline(&self, end: u64) -> Instant {
        let due = self.profile.time_at(end);
        self.now + self.lead_time + due.saturating_sub(self.position) - self.position.saturating_sub(due)
    }

    /// One past the last byte that the player reads at present; it stops at the high threshold.
    pub fn read_limit(&self) -> u64 {
        let end = self.profile.size().bytes();
        match self.thresholds.high {
            _ if !self.is_reading => self.arrived,
            Some(high) => self.decoded().saturating_add(self.high_bytes(high)).min(end),
            None => end,
        }
    }

    /// When the state or the reading changes without further input; `None` if only arriving bytes change anything.
    pub fn next_change(&self) -> Option<Instant> {
        if self.state != PlayerState::Playing {
            return None;
        }
        let empty_at = self.now + self.buffered_time();
        if self.is_reading {
            return Some(empty_at);
        }
        let low = self.profile.time_at(self.arrived.saturating_sub(self.thresholds.low.bytes()));
        Some(empty_at.min(self.now + self.lead_time + low.saturating_sub(self.position)))
    }

    /// I(t): all time spent buffering since the beginning.
    pub const fn buffering_time(&self) -> Duration {
        self.buffering_time
    }

    /// All time spent playing.
    pub const fn playing_time(&self) -> Duration {
        self.playing_time
    }

    /// Number of stalls after playback first started.
    pub const fn stalls(&self) -> u32 {
        self.stalls
    }

    /// When playback first started.
    pub const fn first_frame(&self) -> Option<Instant> {
        self.first_frame_at
    }

    /// P: total playback time, once the video has ended.
    pub fn playback_time(&self) -> Option<Duration> {
        self.ended_at.map(|ended| ended - self.started_at)
    }

    fn start_if_buffered(&mut self) {
        let is_complete = self.arrived >= self.profile.size().bytes();
        if self.state == PlayerState::Buffering && (is_complete || self.buffered() >= self.thresholds.low) {
            self.start_playing();
            self.stop_if_empty();
        }
    }

    fn start_playing(&mut self) {
        self.state = PlayerState::Playing;
        self.first_frame_at.get_or_insert(self.now);
    }

    fn stop_if_empty(&mut self) {
        if self.state != PlayerState::Playing || !self.buffered_time().is_zero() {
            return;
        }
        if self.arrived >= self.profile.size().bytes() {
            self.state = PlayerState::Ended;
            self.ended_at = Some(self.now);
        } else {
            self.state = PlayerState::Buffering;
            self.stalls += 1;
        }
    }

    fn update_reading(&mut self) {
        let buffered = self.buffered();
        if self.state == PlayerState::Buffering || buffered <= self.thresholds.low {
            self.is_reading = true;
        } else if self.thresholds.high.is_some_and(|high| buffered.bytes() >= self.high_bytes(high)) {
            self.is_reading = false;
        }
    }

    /// A high threshold below the low one would prevent playback from ever starting.
    fn high_bytes(&self, high: DataSize) -> u64 {
        high.max(self.thresholds.low).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bitrate;

    const MB: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// 10 MB in 10 s, one byte per microsecond; playback starts at 2 MB.
    fn player() -> Player {
        let video = MediaProfile::constant(Bitrate::from_mbps(8), ms(10_000)).unwrap();
        Player::new(video, BufferThresholds { low: DataSize::from_bytes(2 * MB), high: None }, Instant::ZERO)
    }

    #[test]
    fn a_part_is_played_after_the_buffered_earlier_parts() {
        let mut part = player();
        part.resume_part(at(1000), 0, ms(4000), ms(0), true);
        assert_eq!(
            (part.state(), part.buffered_time(), part.deadline(MB)),
            (PlayerState::Playing, ms(4000), at(6000))
        );
        part.on_arrival(at(3000), MB);
        assert_eq!((part.position(), part.buffered_time()), (Duration::ZERO, ms(3000)));
        part.advance(at(5500));
        assert_eq!((part.position(), part.stalls()), (ms(500), 0));
        part.advance(at(7000));
        assert_eq!((part.state(), part.stalls()), (PlayerState::Buffering, 1));
    }

    #[test]
    fn the_states_of_figure_6_are_reproduced() {
        let mut player = player();
        // t0 = 0: buffering. t1 = 1 s: B has arrived.
        player.on_arrival(at(999), 2 * MB - 1);
        assert_eq!(player.state(), PlayerState::Buffering);
        player.on_arrival(at(1000), 2 * MB);
        assert_eq!((player.state(), player.buffering_time()), (PlayerState::Playing, ms(1000)));
        player.on_arrival(at(2000), 3 * MB);
        assert_eq!((player.decoded(), player.buffered().bytes()), (MB, 2 * MB));
        // t2 = 4 s: X = 0. The model is advanced late and still counts from the right time.
        assert_eq!(player.next_change(), Some(at(4000)));
        player.on_arrival(at(4700), 4 * MB);
        assert_eq!((player.state(), player.stalls(), player.decoded()), (PlayerState::Buffering, 1, 3 * MB));
        // t3 = 5.5 s: I = (t3 − t2) + (t1 − t0).
        player.on_arrival(at(5500), 5 * MB);
        assert_eq!((player.state(), player.buffering_time()), (PlayerState::Playing, ms(2500)));
        // D(t) = Q (t − I(t)).
        player.advance(at(6200));
        assert_eq!(player.decoded(), 3_700_000);
        player.on_arrival(at(6200), 10 * MB);
        player.advance(at(60_000));
        // t4: the playback time is the duration plus the interruption.
        assert_eq!((player.state(), player.playback_time()), (PlayerState::Ended, Some(ms(12_500))));
        assert_eq!(player.buffering_time() + player.playing_time(), ms(12_500));
    }

    #[test]
    fn byte_k_is_due_at_k_divided_by_q_plus_the_interruption() {
        let mut player = player();
        assert_eq!(player.deadline(5 * MB), at(5000));
        player.advance(at(400));
        assert_eq!(player.deadline(5 * MB), at(5400));
        player.on_arrival(at(1000), 2 * MB);
        assert_eq!((player.deadline(2 * MB), player.deadline(5 * MB)), (at(3000), at(6000)));
        // While playing, the deadlines are fixed, including those that have passed.
        player.advance(at(2500));
        assert_eq!((player.deadline(MB), player.deadline(5 * MB)), (at(2000), at(6000)));
        assert_eq!(player.buffered_time(), ms(500));
    }

    #[test]
    fn bytes_that_arrive_by_their_deadline_cause_no_stall() {
        let mut player = player();
        player.on_arrival(at(1000), 2 * MB);
        for upto in [3 * MB, 5 * MB, 10 * MB] {
            let tight = player.deadline(player.arrived());
            player.on_arrival(tight - Duration::from_nanos(1), upto);
            assert_eq!(player.stalls(), 0);
        }
        player.advance(at(11_000));
        assert_eq!(player.playback_time(), Some(ms(11_000)));
    }

    #[test]
    fn the_end_of_the_video_is_played_even_below_the_low_threshold() {
        let mut player = player();
        player.on_arrival(at(0), 2 * MB);
        player.on_arrival(at(1000), 9 * MB);
        player.advance(at(9500));
        assert_eq!(player.state(), PlayerState::Buffering);
        player.on_arrival(at(9600), 10 * MB);
        player.advance(at(20_000));
        assert_eq!(player.playback_time(), Some(ms(10_600)));
    }

    #[test]
    fn reading_stops_at_the_high_threshold_and_resumes_at_the_low_one() {
        let thresholds =
            BufferThresholds { low: DataSize::from_bytes(2 * MB), high: Some(DataSize::from_bytes(5 * MB)) };
        let mut player = Player::new(player().profile().clone(), thresholds, Instant::ZERO);
        assert_eq!(player.read_limit(), 5 * MB);
        player.on_arrival(at(1000), 5 * MB);
        player.advance(at(2000));
        // 4 MB are buffered: the player does not read until 2 MB are left.
        assert_eq!((player.read_limit(), player.next_change()), (5 * MB, Some(at(4000))));
        player.advance(at(3999));
        assert_eq!(player.read_limit(), 5 * MB);
        player.advance(at(4000));
        assert_eq!(player.read_limit(), 8 * MB);
        assert_eq!(player.next_change(), Some(at(6000)));
    }

    #[test]
    fn a_seek_drops_the_buffer_and_starts_buffering() {
        let mut player = player();
        player.on_arrival(at(1000), 6 * MB);
        player.seek(at(2000), 8 * MB);
        assert_eq!((player.state(), player.position()), (PlayerState::Buffering, ms(8000)));
        assert_eq!((player.buffered(), player.deadline(9 * MB)), (DataSize::ZERO, at(3000)));
        player.on_arrival(at(2500), 10 * MB);
        player.advance(at(9000));
        assert_eq!((player.state(), player.playback_time()), (PlayerState::Ended, Some(ms(4500))));
        assert_eq!(player.stalls(), 0);
    }

    #[test]
    fn the_report_of_a_real_player_overrides_the_model() {
        let mut player = player();
        player.on_arrival(at(1000), 3 * MB);
        player.on_report(at(2000), ms(800), true);
        assert_eq!((player.position(), player.buffered_time()), (ms(800), ms(2200)));
        player.on_report(at(2500), ms(1000), false);
        assert_eq!((player.state(), player.stalls()), (PlayerState::Buffering, 1));
        // The player cannot have played bytes that have not arrived.
        player.on_report(at(3000), ms(7000), true);
        assert_eq!((player.position(), player.state(), player.stalls()), (ms(3000), PlayerState::Buffering, 2));
    }

    #[test]
    fn greenbag_starts_after_five_and_a_half_seconds_at_six_megabits() {
        // The start-up time that every point of figure 13(a) contains.
        let wait = BufferThresholds::GREENBAG.low / Bitrate::from_mbps(6);
        assert!((5.5..5.7).contains(&wait.as_secs_f64()), "{wait:?}");
    }
}
