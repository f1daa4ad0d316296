//! The player model in random histories, compared with a naive player that advances in milliseconds.
//!
//! `PROPTEST_RNG_SEED=n` runs other histories.

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState, Timing};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use proptest::prelude::*;

/// Segments with whole bytes per millisecond, so that the naive player counts without rounding.
fn videos() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1..400_u64, 1..50_u64), 1..6)
}

fn media_profile(pieces: &[(u64, u64)]) -> MediaProfile {
    let piece = |(millis, bytes_per_ms): &(u64, u64)| {
        (Duration::from_millis(*millis), DataSize::from_bytes(millis * bytes_per_ms))
    };
    MediaProfile::variable(pieces.iter().map(piece)).expect("a video")
}

/// Pairs of a gap in milliseconds and the number of bytes that arrive after it.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..300_u64, 0..4000_u64), 0..40)
}

/// The player of GreenBag §II-B, in steps of one millisecond.
struct NaivePlayer {
    rates: Vec<u64>,
    low: u64,
    millisecond: usize,
    arrived: u64,
    decoded: u64,
    playing: bool,
    waited: u64,
    stalls: u32,
    ended: Option<u64>,
}

impl NaivePlayer {
    fn new(pieces: &[(u64, u64)], low: u64) -> Self {
        let rates = pieces.iter().flat_map(|(millis, each)| (0..*millis).map(|_| *each)).collect();
        Self {
            rates,
            low,
            millisecond: 0,
            arrived: 0,
            decoded: 0,
            playing: false,
            waited: 0,
            stalls: 0,
            ended: None,
        }
    }

    fn total(&self) -> u64 {
        self.rates.iter().sum()
    }

    fn arrive(&mut self, upto: u64) {
        self.arrived = self.arrived.max(upto.min(self.total()));
        self.playing |= self.ended.is_none()
            && (self.arrived == self.total() || self.arrived - self.decoded >= self.low)
            && self.arrived > self.decoded;
    }

    /// Plays the millisecond that starts at `time`. In the histories, arrivals end at a whole millisecond of the
    /// video.
    fn step(&mut self, time: u64) {
        if self.ended.is_some() {
            return;
        }
        if !self.playing {
            self.waited += 1;
            return;
        }
        self.decoded += self.rates[self.millisecond];
        self.millisecond += 1;
        if self.millisecond == self.rates.len() {
            self.ended = Some(time + 1);
        } else if self.decoded == self.arrived {
            self.playing = false;
            self.stalls += 1;
        }
    }

    /// The largest number of bytes up to `bytes` that ends at a whole millisecond of the video.
    fn aligned_end(&self, bytes: u64) -> u64 {
        let mut sum = 0;
        for rate in &self.rates {
            if sum + rate > bytes {
                break;
            }
            sum += rate;
        }
        sum
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_player_agrees_with_a_naive_player(pieces in videos(), low in 1..3000_u64, arrivals in arrivals()) {
        let mut naive = NaivePlayer::new(&pieces, low);
        let thresholds = BufferThresholds { low: DataSize::from_bytes(low), high: None };
        let mut player = Player::new(media_profile(&pieces), thresholds, Instant::ZERO);
        let (mut now, mut arrived) = (0, 0);
        for (gap, bytes) in arrivals {
            for t in now..now + gap {
                naive.step(t);
            }
            now += gap;
            arrived += bytes;
            let aligned_end = naive.aligned_end(arrived);
            naive.arrive(aligned_end);
            player.on_arrival(Instant::from_millis(now), aligned_end);
            prop_assert_eq!(player.decoded(), naive.decoded);
            prop_assert_eq!(player.stalls(), naive.stalls);
            prop_assert_eq!(player.buffering_time(), Duration::from_millis(naive.waited));
            prop_assert_eq!(player.playback_time(), naive.ended.map(Duration::from_millis));
        }
    }

    #[test]
    fn time_is_conserved_and_missing_data_is_never_played(
        pieces in videos(), low in 0..3000_u64, high in prop::option::of(0..6000_u64),
        arrivals in arrivals(), jump in prop::option::of((0..40_usize, 0..20_000_u64)),
    ) {
        let thresholds = BufferThresholds { low: DataSize::from_bytes(low), high: high.map(DataSize::from_bytes) };
        let mut player = Player::new(media_profile(&pieces), thresholds, Instant::ZERO);
        let (mut now, mut before, mut ended) = (Instant::ZERO, 0, false);
        for (i, (gap, bytes)) in arrivals.into_iter().enumerate() {
            now += Duration::from_micros(gap * 997);
            player.advance(now);
            ended |= player.state() == PlayerState::Ended;
            if let Some((_, to)) = jump.filter(|(when, _)| *when == i) {
                player.seek(now, to);
                before = 0;
            }
            let read_limit = player.read_limit();
            prop_assert!(read_limit >= player.arrived() && read_limit <= player.profile().size().bytes());
            player.on_arrival(now, (player.arrived() + bytes).min(read_limit));
            prop_assert!(player.decoded() >= before && player.decoded() <= player.arrived());
            before = player.decoded();
            prop_assert!(player.next_change().is_none_or(|at| at >= now));
            ended |= player.state() == PlayerState::Ended;
            if !ended {
                prop_assert_eq!(player.playing_time() + player.buffering_time(), now.since(Instant::ZERO));
            }
        }
        let seeks = jump.is_some();
        player.on_arrival(now, u64::MAX);
        player.advance(now + Duration::from_secs(3600));
        prop_assert_eq!(player.state(), PlayerState::Ended);
        if !seeks {
            let duration = player.profile().duration();
            prop_assert_eq!(player.playback_time(), Some(duration + player.buffering_time()));
        }
    }

    #[test]
    fn deadlines_increase_and_are_exact(pieces in videos(), a in 0..20_000_u64, b in 0..20_000_u64) {
        let video = media_profile(&pieces);
        let (low, high) = (a.min(b), a.max(b));
        let player = Player::new(video.clone(), BufferThresholds::default(), Instant::ZERO);
        prop_assert!(player.deadline(low) <= player.deadline(high));
        // The first nanosecond by which this many bytes are decoded.
        let due = video.time_at(low);
        prop_assert!(video.bytes_at(due) >= low.min(video.size().bytes()));
        if let Some(sooner) = due.checked_sub(Duration::from_nanos(1)) {
            prop_assert!(video.bytes_at(sooner) < low);
        }
    }

    #[test]
    fn a_sufficient_rate_causes_no_stall(pieces in videos(), kbps in 1..600_u64, head in 1..4000_u64) {
        let video = media_profile(&pieces);
        let rate = Bitrate::from_bits_per_sec(kbps * 1000);
        let total = video.size().bytes();
        let head = head.min(total);
        let thresholds = BufferThresholds { low: DataSize::from_bytes(1), high: None };
        let mut player = Player::new(video.clone(), thresholds, Instant::ZERO);
        player.on_arrival(Instant::ZERO, head);
        let timing = video.timing_at_rate(head, rate, Duration::ZERO);
        for upto in head + 1..=total {
            player.on_arrival(Instant::ZERO + DataSize::from_bytes(upto - head) / rate, upto);
        }
        let end = Instant::ZERO + Duration::from_secs(100_000);
        player.advance(end);
        // With a start threshold of one byte, a stall ends at once, so the interruption equals the delay up to one
        // byte's time.
        match timing {
            Timing::InTime(spare) if spare > DataSize::from_bytes(1) / rate => prop_assert_eq!(player.stalls(), 0),
            Timing::InTime(_) => {}
            Timing::Late(late) => {
                let byte = DataSize::from_bytes(2) / rate;
                let waited = player.buffering_time();
                prop_assert!(waited + byte >= late && waited <= late + byte, "{waited:?} {late:?}");
            }
        }
    }
}
