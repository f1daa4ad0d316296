//! The player itself: two states, one buffer, and the clock that it stops when the buffer is empty.
//!
//! In: in-order bytes and the time. Out: its state, A(t), D(t), X(t), I(t), the deadline of every byte.
//!
//! 1. Buffering ends when the low threshold is reached or the rest of the video is there.
//! 2. Playing ends at the very nanosecond at which X(t) = 0, whenever the player is next asked; or with the video.
//! 3. A player with a high threshold stops reading there and goes on at the low one (GreenBag §IV-C: 4 MB and 20 MB).
//! 4. `playback time = duration + interruption` for a video that is played from its start to its end, to the
//!    nanosecond.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::MediaProfile;
use crate::units::{DataSize, Instant};

/// When a player starts, and when it has enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferThresholds {
    /// B: it plays once so much waits.
    pub low: DataSize,
    /// It stops reading when so much waits, and reads again at `low`; none: it takes what it is given.
    pub high: Option<DataSize>,
}

impl BufferThresholds {
    /// GreenBag §IV-C: 4 MB and 20 MB, whose kilo is 2^10 (§V-A). Its measured start-up times say the same: 5.6 s at
    /// 6 Mbit/s.
    pub const GREENBAG: Self = Self { low: DataSize::from_mib(4), high: Some(DataSize::from_mib(20)) };
}

impl Default for BufferThresholds {
    /// GreenBag's low threshold, and no high one.
    fn default() -> Self {
        Self { high: None, ..Self::GREENBAG }
    }
}

/// What a player does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlayerState {
    /// It waits for its low threshold: an interruption.
    Buffering,
    /// It decodes at the video's rate.
    Playing,
    /// It has shown everything.
    Ended,
}

/// A player of one video. See the [module](super).
#[derive(Clone, Debug)]
pub struct Player {
    profile: MediaProfile,
    thresholds: BufferThresholds,
    began: Instant,
    now: Instant,
    state: PlayerState,
    /// What it has yet to play before the first byte of this video: other parts, which it has already.
    lead_time: Duration,
    /// Time of the video that is played next.
    position: Duration,
    /// One past the last byte that it has without a gap: A(t).
    arrived: u64,
    is_reading: bool,
    playing_time: Duration,
    buffering_time: Duration,
    stalls: u32,
    first_frame: Option<Instant>,
    ended: Option<Instant>,
}

impl Player {
    /// A player that starts to wait at `now`.
    pub fn new(profile: MediaProfile, thresholds: BufferThresholds, now: Instant) -> Self {
        Self {
            profile,
            thresholds,
            began: now,
            now,
            state: PlayerState::Buffering,
            lead_time: Duration::ZERO,
            position: Duration::ZERO,
            arrived: 0,
            is_reading: true,
            playing_time: Duration::ZERO,
            buffering_time: Duration::ZERO,
            stalls: 0,
            first_frame: None,
            ended: None,
        }
    }

    /// Time has reached `now`: plays what there is to play.
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

    /// Everything before `upto` has reached the player.
    pub fn on_arrival(&mut self, now: Instant, upto: u64) {
        self.advance(now);
        self.arrived = self.arrived.max(upto.min(self.profile.size().bytes()));
        self.start_if_buffered();
        self.update_reading();
    }

    /// The viewer jumps to where the byte at `offset` is played. What was in the buffer is gone.
    pub fn seek(&mut self, now: Instant, offset: u64) {
        self.advance(now);
        self.arrived = offset.min(self.profile.size().bytes());
        self.lead_time = Duration::ZERO;
        self.position = self.profile.time_at(self.arrived);
        self.state = PlayerState::Buffering;
        self.ended = None;
        self.start_if_buffered();
        self.update_reading();
    }

    /// A player that has been playing before anybody modelled it: it has everything before `upto`, and stands at
    /// `position`.
    pub fn resume_at(&mut self, now: Instant, upto: u64, position: Duration, is_playing: bool) {
        self.advance(now);
        self.arrived = upto.min(self.profile.size().bytes());
        self.position = position.min(self.profile.time_at(self.arrived));
        if is_playing {
            self.start_playing();
            self.stop_if_empty();
        } else {
            self.start_if_buffered();
        }
        self.update_reading();
    }

    /// A player of which this video is one part: it has `lead` to play before the first byte of it, or stands at
    /// `position`.
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

    /// What a real player says of itself: it stands at `position` and plays, or does not. A player that says that it
    /// plays what it cannot have is taken to have just run dry.
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

    /// What it does.
    pub const fn state(&self) -> PlayerState {
        self.state
    }

    /// What it plays.
    pub const fn profile(&self) -> &MediaProfile {
        &self.profile
    }

    /// A(t): one past the last byte that it has without a gap.
    pub const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// D(t): one past the last byte that is decoded.
    pub fn decoded(&self) -> u64 {
        self.profile.bytes_at(self.position).min(self.arrived)
    }

    /// X(t) = A(t) − D(t).
    pub fn buffered(&self) -> DataSize {
        DataSize::from_bytes(self.arrived - self.decoded())
    }

    /// The time of the video that is played next.
    pub const fn position(&self) -> Duration {
        self.position
    }

    /// How long it plays on if nothing more comes: GreenBag's T_P(t).
    pub fn buffered_time(&self) -> Duration {
        self.lead_time + self.profile.time_at(self.arrived).saturating_sub(self.position)
    }

    /// The moment by which the first `upto` bytes must be there so that nothing is interrupted from now on. While it
    /// buffers this moves with the time, as I(t) grows.
    pub fn deadline(&self, upto: u64) -> Instant {
        let due = self.profile.time_at(upto);
        self.now + self.lead_time + due.saturating_sub(self.position) - self.position.saturating_sub(due)
    }

    /// One past the last byte that it reads as things stand: it stops at the high threshold.
    pub fn read_limit(&self) -> u64 {
        let end = self.profile.size().bytes();
        match self.thresholds.high {
            _ if !self.is_reading => self.arrived,
            Some(high) => self.decoded().saturating_add(self.high_bytes(high)).min(end),
            None => end,
        }
    }

    /// When its state or its reading changes by itself; none: only bytes change anything.
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

    /// I(t): all time spent waiting, from the beginning.
    pub const fn buffering_time(&self) -> Duration {
        self.buffering_time
    }

    /// All time spent playing.
    pub const fn playing_time(&self) -> Duration {
        self.playing_time
    }

    /// How often it ran dry after it had begun to play.
    pub const fn stalls(&self) -> u32 {
        self.stalls
    }

    /// When it first began to play.
    pub const fn first_frame(&self) -> Option<Instant> {
        self.first_frame
    }

    /// P, once the end has been shown.
    pub fn playback_time(&self) -> Option<Duration> {
        self.ended.map(|ended| ended - self.began)
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
        self.first_frame.get_or_insert(self.now);
    }

    fn stop_if_empty(&mut self) {
        if self.state != PlayerState::Playing || !self.buffered_time().is_zero() {
            return;
        }
        if self.arrived >= self.profile.size().bytes() {
            self.state = PlayerState::Ended;
            self.ended = Some(self.now);
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

    /// A high threshold below the low one would never let it start.
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

    /// 10 MB in 10 s, a byte a microsecond; plays from 2 MB on.
    fn player() -> Player {
        let video = MediaProfile::constant(Bitrate::from_mbps(8), ms(10_000)).unwrap();
        Player::new(video, BufferThresholds { low: DataSize::from_bytes(2 * MB), high: None }, Instant::ZERO)
    }

    #[test]
    fn a_part_is_played_behind_what_the_player_has_of_others() {
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
    fn the_walk_of_figure_6() {
        let mut player = player();
        // t0 = 0: buffering. t1 = 1 s: B has come.
        player.on_arrival(at(999), 2 * MB - 1);
        assert_eq!(player.state(), PlayerState::Buffering);
        player.on_arrival(at(1000), 2 * MB);
        assert_eq!((player.state(), player.buffering_time()), (PlayerState::Playing, ms(1000)));
        player.on_arrival(at(2000), 3 * MB);
        assert_eq!((player.decoded(), player.buffered().bytes()), (MB, 2 * MB));
        // t2 = 4 s: X = 0. It is noticed late and counted from the right moment.
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
        // t4: the playback time is the duration and the interruption.
        assert_eq!((player.state(), player.playback_time()), (PlayerState::Ended, Some(ms(12_500))));
        assert_eq!(player.buffering_time() + player.playing_time(), ms(12_500));
    }

    #[test]
    fn byte_k_is_due_at_k_by_q_and_the_interruption() {
        let mut player = player();
        assert_eq!(player.deadline(5 * MB), at(5000));
        player.advance(at(400));
        assert_eq!(player.deadline(5 * MB), at(5400));
        player.on_arrival(at(1000), 2 * MB);
        assert_eq!((player.deadline(2 * MB), player.deadline(5 * MB)), (at(3000), at(6000)));
        // While it plays the deadlines stand still, also those that are over.
        player.advance(at(2500));
        assert_eq!((player.deadline(MB), player.deadline(5 * MB)), (at(2000), at(6000)));
        assert_eq!(player.buffered_time(), ms(500));
    }

    #[test]
    fn what_comes_by_its_deadline_interrupts_nothing() {
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
    fn a_rest_below_the_threshold_is_enough() {
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
    fn at_the_high_threshold_it_stops_reading_until_the_low_one() {
        let thresholds =
            BufferThresholds { low: DataSize::from_bytes(2 * MB), high: Some(DataSize::from_bytes(5 * MB)) };
        let mut player = Player::new(player().profile().clone(), thresholds, Instant::ZERO);
        assert_eq!(player.read_limit(), 5 * MB);
        player.on_arrival(at(1000), 5 * MB);
        player.advance(at(2000));
        // 4 MB wait: it does not read before 2 MB.
        assert_eq!((player.read_limit(), player.next_change()), (5 * MB, Some(at(4000))));
        player.advance(at(3999));
        assert_eq!(player.read_limit(), 5 * MB);
        player.advance(at(4000));
        assert_eq!(player.read_limit(), 8 * MB);
        assert_eq!(player.next_change(), Some(at(6000)));
    }

    #[test]
    fn a_seek_empties_the_buffer_and_waits() {
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
    fn what_a_real_player_says_of_itself_counts() {
        let mut player = player();
        player.on_arrival(at(1000), 3 * MB);
        player.on_report(at(2000), ms(800), true);
        assert_eq!((player.position(), player.buffered_time()), (ms(800), ms(2200)));
        player.on_report(at(2500), ms(1000), false);
        assert_eq!((player.state(), player.stalls()), (PlayerState::Buffering, 1));
        // It cannot have played what it does not have.
        player.on_report(at(3000), ms(7000), true);
        assert_eq!((player.position(), player.state(), player.stalls()), (ms(3000), PlayerState::Buffering, 2));
    }

    #[test]
    fn greenbag_starts_after_five_and_a_half_seconds_at_six_megabits() {
        // The start-up that every point of figure 13(a) contains.
        let wait = BufferThresholds::GREENBAG.low / Bitrate::from_mbps(6);
        assert!((5.5..5.7).contains(&wait.as_secs_f64()), "{wait:?}");
    }
}
