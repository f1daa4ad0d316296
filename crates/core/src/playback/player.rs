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

use super::Profile;
use crate::units::{DataSize, Instant};

/// When a player starts, and when it has enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// B: it plays once so much waits.
    pub low: DataSize,
    /// It stops reading when so much waits, and reads again at `low`; none: it takes what it is given.
    pub high: Option<DataSize>,
}

impl Thresholds {
    /// GreenBag §IV-C: 4 MB and 20 MB, whose kilo is 2^10 (§V-A). Its measured start-up times say the same: 5.6 s at
    /// 6 Mbit/s.
    pub const GREENBAG: Self = Self { low: DataSize::from_mib(4), high: Some(DataSize::from_mib(20)) };
}

impl Default for Thresholds {
    /// GreenBag's low threshold, and no high one.
    fn default() -> Self {
        Self { high: None, ..Self::GREENBAG }
    }
}

/// What a player does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
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
    profile: Profile,
    thresholds: Thresholds,
    began: Instant,
    now: Instant,
    state: State,
    /// What it has yet to play before the first byte of this video: other parts, which it has already.
    lead: Duration,
    /// Time of the video that is played next.
    position: Duration,
    /// One past the last byte that it has without a gap: A(t).
    arrived: u64,
    reads: bool,
    played: Duration,
    interrupted: Duration,
    stalls: u32,
    first_picture: Option<Instant>,
    ended: Option<Instant>,
}

impl Player {
    /// A player that starts to wait at `now`.
    pub fn new(profile: Profile, thresholds: Thresholds, now: Instant) -> Self {
        Self {
            profile,
            thresholds,
            began: now,
            now,
            state: State::Buffering,
            lead: Duration::ZERO,
            position: Duration::ZERO,
            arrived: 0,
            reads: true,
            played: Duration::ZERO,
            interrupted: Duration::ZERO,
            stalls: 0,
            first_picture: None,
            ended: None,
        }
    }

    /// Time has reached `now`: plays what there is to play.
    pub fn advance(&mut self, now: Instant) {
        while self.now < now {
            let left = now - self.now;
            match self.state {
                State::Buffering => {
                    self.interrupted += left;
                    self.now = now;
                }
                State::Ended => self.now = now,
                State::Playing => {
                    let step = self.runs_for().min(left);
                    let before = step.min(self.lead);
                    self.now += step;
                    self.lead -= before;
                    self.position += step - before;
                    self.played += step;
                    self.stop_if_dry();
                }
            }
        }
        self.choose_reading();
    }

    /// Everything before `upto` has reached the player.
    pub fn arrive(&mut self, now: Instant, upto: u64) {
        self.advance(now);
        self.arrived = self.arrived.max(upto.min(self.profile.size().bytes()));
        self.start_if_enough();
        self.choose_reading();
    }

    /// The viewer jumps to where the byte at `offset` is played. What was in the buffer is gone.
    pub fn seek(&mut self, now: Instant, offset: u64) {
        self.advance(now);
        self.arrived = offset.min(self.profile.size().bytes());
        self.lead = Duration::ZERO;
        self.position = self.profile.time_of(self.arrived);
        self.state = State::Buffering;
        self.ended = None;
        self.start_if_enough();
        self.choose_reading();
    }

    /// A player that has been playing before anybody modelled it: it has everything before `upto`, and stands at
    /// `position`.
    pub fn resume(&mut self, now: Instant, upto: u64, position: Duration, plays: bool) {
        self.advance(now);
        self.arrived = upto.min(self.profile.size().bytes());
        self.position = position.min(self.profile.time_of(self.arrived));
        if plays {
            self.play();
            self.stop_if_dry();
        } else {
            self.start_if_enough();
        }
        self.choose_reading();
    }

    /// A player of which this video is one part: it has `lead` to play before the first byte of it, or stands at
    /// `position`.
    pub fn follow(&mut self, now: Instant, upto: u64, lead: Duration, position: Duration, plays: bool) {
        self.lead = lead;
        self.resume(now, upto, position, plays);
    }

    /// What a real player says of itself: it stands at `position` and plays, or does not. A player that says that it
    /// plays what it cannot have is taken to have just run dry.
    pub fn observe(&mut self, now: Instant, position: Duration, plays: bool) {
        self.advance(now);
        if self.state == State::Ended {
            return;
        }
        self.lead = Duration::ZERO;
        self.position = position.min(self.profile.time_of(self.arrived));
        match (self.state, plays) {
            (State::Buffering, true) => self.play(),
            (State::Playing, false) => {
                self.state = State::Buffering;
                self.stalls += 1;
            }
            _ => {}
        }
        self.stop_if_dry();
        self.choose_reading();
    }

    /// What it does.
    pub const fn state(&self) -> State {
        self.state
    }

    /// What it plays.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// A(t): one past the last byte that it has without a gap.
    pub const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// D(t): one past the last byte that is decoded.
    pub fn decoded(&self) -> u64 {
        self.profile.bytes_by(self.position).min(self.arrived)
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
    pub fn runs_for(&self) -> Duration {
        self.lead + self.profile.time_of(self.arrived).saturating_sub(self.position)
    }

    /// The moment by which the first `upto` bytes must be there so that nothing is interrupted from now on. While it
    /// buffers this moves with the time, as I(t) grows.
    pub fn deadline(&self, upto: u64) -> Instant {
        let due = self.profile.time_of(upto);
        self.now + self.lead + due.saturating_sub(self.position) - self.position.saturating_sub(due)
    }

    /// One past the last byte that it reads as things stand: it stops at the high threshold.
    pub fn reads_upto(&self) -> u64 {
        let end = self.profile.size().bytes();
        match self.thresholds.high {
            _ if !self.reads => self.arrived,
            Some(high) => self.decoded().saturating_add(self.most(high)).min(end),
            None => end,
        }
    }

    /// When its state or its reading changes by itself; none: only bytes change anything.
    pub fn next_change(&self) -> Option<Instant> {
        if self.state != State::Playing {
            return None;
        }
        let dry = self.now + self.runs_for();
        if self.reads {
            return Some(dry);
        }
        let low = self.profile.time_of(self.arrived.saturating_sub(self.thresholds.low.bytes()));
        Some(dry.min(self.now + self.lead + low.saturating_sub(self.position)))
    }

    /// I(t): all time spent waiting, from the beginning.
    pub const fn interrupted(&self) -> Duration {
        self.interrupted
    }

    /// All time spent playing.
    pub const fn played(&self) -> Duration {
        self.played
    }

    /// How often it ran dry after it had begun to play.
    pub const fn stalls(&self) -> u32 {
        self.stalls
    }

    /// When it first began to play.
    pub const fn first_picture(&self) -> Option<Instant> {
        self.first_picture
    }

    /// P, once the end has been shown.
    pub fn playback_time(&self) -> Option<Duration> {
        self.ended.map(|ended| ended - self.began)
    }

    fn start_if_enough(&mut self) {
        let all = self.arrived >= self.profile.size().bytes();
        if self.state == State::Buffering && (all || self.buffered() >= self.thresholds.low) {
            self.play();
            self.stop_if_dry();
        }
    }

    fn play(&mut self) {
        self.state = State::Playing;
        self.first_picture.get_or_insert(self.now);
    }

    fn stop_if_dry(&mut self) {
        if self.state != State::Playing || !self.runs_for().is_zero() {
            return;
        }
        if self.arrived >= self.profile.size().bytes() {
            self.state = State::Ended;
            self.ended = Some(self.now);
        } else {
            self.state = State::Buffering;
            self.stalls += 1;
        }
    }

    fn choose_reading(&mut self) {
        let waits = self.buffered();
        if self.state == State::Buffering || waits <= self.thresholds.low {
            self.reads = true;
        } else if self.thresholds.high.is_some_and(|high| waits.bytes() >= self.most(high)) {
            self.reads = false;
        }
    }

    /// A high threshold below the low one would never let it start.
    fn most(&self, high: DataSize) -> u64 {
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
        let video = Profile::constant(Bitrate::from_mbps(8), ms(10_000)).unwrap();
        Player::new(video, Thresholds { low: DataSize::from_bytes(2 * MB), high: None }, Instant::ZERO)
    }

    #[test]
    fn a_part_is_played_behind_what_the_player_has_of_others() {
        let mut part = player();
        part.follow(at(1000), 0, ms(4000), ms(0), true);
        assert_eq!((part.state(), part.runs_for(), part.deadline(MB)), (State::Playing, ms(4000), at(6000)));
        part.arrive(at(3000), MB);
        assert_eq!((part.position(), part.runs_for()), (Duration::ZERO, ms(3000)));
        part.advance(at(5500));
        assert_eq!((part.position(), part.stalls()), (ms(500), 0));
        part.advance(at(7000));
        assert_eq!((part.state(), part.stalls()), (State::Buffering, 1));
    }

    #[test]
    fn the_walk_of_figure_6() {
        let mut player = player();
        // t0 = 0: buffering. t1 = 1 s: B has come.
        player.arrive(at(999), 2 * MB - 1);
        assert_eq!(player.state(), State::Buffering);
        player.arrive(at(1000), 2 * MB);
        assert_eq!((player.state(), player.interrupted()), (State::Playing, ms(1000)));
        player.arrive(at(2000), 3 * MB);
        assert_eq!((player.decoded(), player.buffered().bytes()), (MB, 2 * MB));
        // t2 = 4 s: X = 0. It is noticed late and counted from the right moment.
        assert_eq!(player.next_change(), Some(at(4000)));
        player.arrive(at(4700), 4 * MB);
        assert_eq!((player.state(), player.stalls(), player.decoded()), (State::Buffering, 1, 3 * MB));
        // t3 = 5.5 s: I = (t3 − t2) + (t1 − t0).
        player.arrive(at(5500), 5 * MB);
        assert_eq!((player.state(), player.interrupted()), (State::Playing, ms(2500)));
        // D(t) = Q (t − I(t)).
        player.advance(at(6200));
        assert_eq!(player.decoded(), 3_700_000);
        player.arrive(at(6200), 10 * MB);
        player.advance(at(60_000));
        // t4: the playback time is the duration and the interruption.
        assert_eq!((player.state(), player.playback_time()), (State::Ended, Some(ms(12_500))));
        assert_eq!(player.interrupted() + player.played(), ms(12_500));
    }

    #[test]
    fn byte_k_is_due_at_k_by_q_and_the_interruption() {
        let mut player = player();
        assert_eq!(player.deadline(5 * MB), at(5000));
        player.advance(at(400));
        assert_eq!(player.deadline(5 * MB), at(5400));
        player.arrive(at(1000), 2 * MB);
        assert_eq!((player.deadline(2 * MB), player.deadline(5 * MB)), (at(3000), at(6000)));
        // While it plays the deadlines stand still, also those that are over.
        player.advance(at(2500));
        assert_eq!((player.deadline(MB), player.deadline(5 * MB)), (at(2000), at(6000)));
        assert_eq!(player.runs_for(), ms(500));
    }

    #[test]
    fn what_comes_by_its_deadline_interrupts_nothing() {
        let mut player = player();
        player.arrive(at(1000), 2 * MB);
        for upto in [3 * MB, 5 * MB, 10 * MB] {
            let tight = player.deadline(player.arrived());
            player.arrive(tight - Duration::from_nanos(1), upto);
            assert_eq!(player.stalls(), 0);
        }
        player.advance(at(11_000));
        assert_eq!(player.playback_time(), Some(ms(11_000)));
    }

    #[test]
    fn a_rest_below_the_threshold_is_enough() {
        let mut player = player();
        player.arrive(at(0), 2 * MB);
        player.arrive(at(1000), 9 * MB);
        player.advance(at(9500));
        assert_eq!(player.state(), State::Buffering);
        player.arrive(at(9600), 10 * MB);
        player.advance(at(20_000));
        assert_eq!(player.playback_time(), Some(ms(10_600)));
    }

    #[test]
    fn at_the_high_threshold_it_stops_reading_until_the_low_one() {
        let thresholds = Thresholds { low: DataSize::from_bytes(2 * MB), high: Some(DataSize::from_bytes(5 * MB)) };
        let mut player = Player::new(player().profile().clone(), thresholds, Instant::ZERO);
        assert_eq!(player.reads_upto(), 5 * MB);
        player.arrive(at(1000), 5 * MB);
        player.advance(at(2000));
        // 4 MB wait: it does not read before 2 MB.
        assert_eq!((player.reads_upto(), player.next_change()), (5 * MB, Some(at(4000))));
        player.advance(at(3999));
        assert_eq!(player.reads_upto(), 5 * MB);
        player.advance(at(4000));
        assert_eq!(player.reads_upto(), 8 * MB);
        assert_eq!(player.next_change(), Some(at(6000)));
    }

    #[test]
    fn a_seek_empties_the_buffer_and_waits() {
        let mut player = player();
        player.arrive(at(1000), 6 * MB);
        player.seek(at(2000), 8 * MB);
        assert_eq!((player.state(), player.position()), (State::Buffering, ms(8000)));
        assert_eq!((player.buffered(), player.deadline(9 * MB)), (DataSize::ZERO, at(3000)));
        player.arrive(at(2500), 10 * MB);
        player.advance(at(9000));
        assert_eq!((player.state(), player.playback_time()), (State::Ended, Some(ms(4500))));
        assert_eq!(player.stalls(), 0);
    }

    #[test]
    fn what_a_real_player_says_of_itself_counts() {
        let mut player = player();
        player.arrive(at(1000), 3 * MB);
        player.observe(at(2000), ms(800), true);
        assert_eq!((player.position(), player.runs_for()), (ms(800), ms(2200)));
        player.observe(at(2500), ms(1000), false);
        assert_eq!((player.state(), player.stalls()), (State::Buffering, 1));
        // It cannot have played what it does not have.
        player.observe(at(3000), ms(7000), true);
        assert_eq!((player.position(), player.state(), player.stalls()), (ms(3000), State::Buffering, 2));
    }

    #[test]
    fn greenbag_starts_after_five_and_a_half_seconds_at_six_megabits() {
        // The start-up that every point of figure 13(a) contains.
        let wait = Thresholds::GREENBAG.low / Bitrate::from_mbps(6);
        assert!((5.5..5.7).contains(&wait.as_secs_f64()), "{wait:?}");
    }
}
