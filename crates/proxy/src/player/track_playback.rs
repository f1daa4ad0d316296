//! Playback of successive segments as one track: the player's position and buffer, and how much of the rendition
//! follows.
//!
//! From the segments that a player requests, and how much of each has arrived and was read, it derives the input for
//! the stream of each segment ([`PlayerInput::MediaSegment`]).
//!
//! 1. The clock of a track is the time of the video since the first segment. A request for an expected segment
//!    continues the clock. Any other one is a seek, which restarts it.
//! 2. The player model is that of a film, with milliseconds in place of bytes, because the size of a segment is known
//!    only when it arrives. Playback starts with one second of video and cannot exceed what the player has read.
//! 3. The bytes that follow a segment are estimated: their playing time in the playlist times the mean rate of
//!    completed segments, plus a tenth. If the player may choose between renditions, the margin is one half, so that
//!    standby links do not make the player choose a lower rendition. The rest of a live playlist is unknown, so
//!    [`LIVE_HORIZON`] is used.
//! 4. Link rates belong to the player ([`PlaylistPlayback`]), not to a segment, which ends before it has learnt any.
//!
//! One stream over all segments is not used: each segment is a resource with its own size, validator and redirects,
//! which is what a download handles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::proxy::SegmentRates;
use marline_core::stream::{PlayerInput, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::playlist::segment_index::{MediaSegment, SegmentTiming};

/// Everything that one player plays from playlists.
#[derive(Debug, Default)]
pub(crate) struct PlaylistPlayback {
    pub(crate) rates: RefCell<SegmentRates>,
    /// By playlist (or multivariant playlist) and set of renditions.
    tracks: RefCell<BTreeMap<(String, usize), Rc<TrackPlayback>>>,
}

/// A track: the video, or the audio, whichever rendition is selected.
#[derive(Debug, Default)]
pub(crate) struct TrackPlayback(RefCell<TrackState>);

#[derive(Debug, Default)]
struct TrackState {
    player: Option<Player>,
    /// The start of each segment that may come next, and the time that follows it; `None`: unknown (live).
    expected_starts: BTreeMap<SegmentKey, (Duration, Option<Duration>)>,
    /// The segments that the player has not finished yet, by their start.
    segments: BTreeMap<Duration, Rc<TrackSegment>>,
    /// Bytes and playing time of segments that have arrived completely.
    completed: (u64, Duration),
    /// The player may choose between several renditions.
    can_choose: bool,
    /// The end of the last segment of the playlist; `None`: unknown.
    end: Option<Duration>,
    last_request_at: Instant,
}

type SegmentKey = (String, Option<(u64, u64)>);

/// One segment of a track.
#[derive(Debug)]
pub(crate) struct TrackSegment {
    track: Weak<TrackPlayback>,
    /// Its start on the clock of the track.
    start: Duration,
    duration: Duration,
    /// Playing time of all segments after it; `None`: unknown (live).
    time_after: Option<Duration>,
    /// Bytes that have arrived in order.
    received: Cell<u64>,
    /// Bytes that the player has read.
    read: Cell<u64>,
    /// Size of the segment, once it is known.
    length: Cell<Option<u64>>,
}

/// A segment, and the playback that it belongs to.
pub(crate) type PlaylistSegment = (Rc<PlaylistPlayback>, Rc<TrackSegment>);

/// The state of a track for the status.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TrackStatus {
    pub(crate) state: PlayerState,
    /// Playing time that is buffered beyond the position.
    pub(crate) buffer: Duration,
    pub(crate) stalls: u32,
    pub(crate) rate: Bitrate,
}

impl PlaylistPlayback {
    /// The track of a playlist (or of the multivariant playlist, if the player chooses between several) and a set of
    /// renditions.
    pub(crate) fn track(&self, family_url: &str, rendition_set: usize) -> Rc<TrackPlayback> {
        let mut tracks = self.tracks.borrow_mut();
        if tracks.len() >= MAX_TRACKS {
            tracks.clear();
        }
        Rc::clone(tracks.entry((family_url.to_owned(), rendition_set)).or_default())
    }

    /// The memory that this uses, in bytes.
    pub(crate) fn memory_size(&self) -> usize {
        let tracks = self.tracks.borrow();
        let track_sizes = tracks.iter().map(|((family, _), track)| {
            let state = track.0.borrow();
            let urls = state.expected_starts.keys().map(|(url, _)| url.len() + MAP_ENTRY_SIZE);
            family.len()
                + MAP_ENTRY_SIZE
                + state.segments.len() * (size_of::<TrackSegment>() + MAP_ENTRY_SIZE)
                + urls.sum::<usize>()
        });
        size_of::<Self>()
            + self.rates.borrow().memory_size()
            + track_sizes.sum::<usize>()
            + tracks.len() * size_of::<TrackState>()
    }

    /// Notes that a segment is requested, and which segments may follow it. A seek activates all links.
    pub(crate) fn on_request(
        &self,
        track: &Rc<TrackPlayback>,
        now: Instant,
        (segment, timing): (&MediaSegment, SegmentTiming),
        next: &[MediaSegment],
        can_choose: bool,
    ) -> Rc<TrackSegment> {
        let (track_segment, is_seek) = track.on_request(now, (segment, timing), next, can_choose);
        if is_seek {
            self.rates.borrow_mut().activate_all();
        }
        track_segment
    }

    /// The update that the stream of a segment needs. It includes the rates of the player's other tracks.
    pub(crate) fn update_for_stream(
        &self,
        segment: &TrackSegment,
        now: Instant,
        from: u64,
        total: Option<u64>,
        stream: &Stream,
    ) -> Option<PlayerInput> {
        let track = segment.track.upgrade()?;
        let other_rate = self
            .tracks
            .borrow()
            .values()
            .filter(|other| !Rc::ptr_eq(other, &track))
            .map(|other| other.current_rate(now))
            .sum();
        track.update_for_stream(segment, now, (from, total), other_rate, stream)
    }
}

impl TrackPlayback {
    fn on_request(
        self: &Rc<Self>,
        now: Instant,
        (segment, timing): (&MediaSegment, SegmentTiming),
        next: &[MediaSegment],
        can_choose: bool,
    ) -> (Rc<TrackSegment>, bool) {
        let mut state = self.0.borrow_mut();
        state.update_player(now);
        let expected_start = state.expected_starts.get(&segment_key(segment)).map(|(at, _)| *at);
        let start = expected_start
            .filter(|at| state.player.as_ref().is_some_and(|player| player.position() <= *at + timing.duration));
        let is_seek = start.is_none();
        if is_seek {
            let (completed, choice) = (state.completed, state.can_choose);
            *state = TrackState {
                completed,
                can_choose: choice,
                player: Some(new_player(now)),
                ..TrackState::default()
            };
        }
        let start = start.unwrap_or_default();
        state.expected_starts.clear();
        let (mut next_start, mut time_after) = (start, timing.time_left);
        state.expected_starts.insert(segment_key(segment), (next_start, time_after));
        next_start += timing.duration;
        for following in next {
            time_after = time_after.map(|left| left.saturating_sub(following.duration));
            state.expected_starts.insert(segment_key(following), (next_start, time_after));
            next_start += following.duration;
        }
        (state.can_choose, state.last_request_at) = (can_choose, now);
        state.end = timing.time_left.map(|left| start + timing.duration + left);
        let position = state.player.as_ref().map_or(Duration::ZERO, Player::position);
        state.segments.retain(|_, part| part.start + part.duration >= position);
        let time_after = timing.time_left;
        let track_segment = state
            .segments
            .entry(start)
            .or_insert_with(|| Rc::new(TrackSegment::new(self, start, timing.duration, time_after)));
        (Rc::clone(track_segment), is_seek)
    }

    /// The segment for a prefetch before the player's request; `None`: it does not follow the last one.
    pub(crate) fn prefetched_segment(self: &Rc<Self>, segment: &MediaSegment) -> Option<Rc<TrackSegment>> {
        let mut state = self.0.borrow_mut();
        let (start, time_after) = *state.expected_starts.get(&segment_key(segment))?;
        let track_segment = state
            .segments
            .entry(start)
            .or_insert_with(|| Rc::new(TrackSegment::new(self, start, segment.duration, time_after)));
        Some(Rc::clone(track_segment))
    }

    /// The state of the track; `None`: nothing was requested.
    pub(crate) fn status(&self, now: Instant) -> Option<TrackStatus> {
        let mut track = self.0.borrow_mut();
        track.update_player(now);
        let player = track.player.as_ref()?;
        let (mut state, buffer, mut stalls) = (player.state(), player.buffered_time(), player.stalls());
        // After the end of the last segment the player is not stalled.
        if state == PlayerState::Buffering && track.end.is_some_and(|end| player.position() >= end) {
            (state, stalls) = (PlayerState::Ended, stalls.saturating_sub(1));
        }
        Some(TrackStatus { state, buffer, stalls, rate: track.mean_rate().unwrap_or_default() })
    }

    /// The rate that this track needs over the same links, if it is being played.
    fn current_rate(&self, now: Instant) -> Bitrate {
        let state = self.0.borrow();
        state.mean_rate().filter(|_| now.since(state.last_request_at) < TRACK_TIMEOUT).unwrap_or_default()
    }

    fn update_for_stream(
        &self,
        segment: &TrackSegment,
        now: Instant,
        (from, total): (u64, Option<u64>),
        other_rate: Bitrate,
        stream: &Stream,
    ) -> Option<PlayerInput> {
        let mut state = self.0.borrow_mut();
        state.update_player(now);
        // A segment from before a seek is ignored.
        state
            .segments
            .get(&segment.start)
            .filter(|current| std::ptr::eq(current.as_ref(), segment) && !segment.duration.is_zero())?;
        let known_rate = match segment.length.get() {
            Some(len) if state.completed.1.is_zero() => Some(DataSize::from_bytes(len) / segment.duration),
            _ => state.mean_rate(),
        };
        // While the sizes are unknown, no link may go on standby.
        let rate = known_rate?;
        let length = segment.length.get().unwrap_or((rate * segment.duration).bytes()).max(1);
        // The profile describes this segment alone. Bytes of the resource before and after it get a negligible
        // duration.
        let bytes_after = total.unwrap_or(from + length).saturating_sub(from + length);
        let pieces =
            [(PLACEHOLDER_DURATION, from), (segment.duration, length), (PLACEHOLDER_DURATION, bytes_after)];
        let profile = MediaProfile::variable(pieces.map(|(time, size)| (time, DataSize::from_bytes(size)))).ok()?;
        let playback_time_left = segment.time_after.unwrap_or(LIVE_HORIZON);
        let margin = if state.can_choose { 15 } else { 11 };
        // Bytes of later segments that have already arrived need not be downloaded any more.
        let following_bytes = state
            .segments
            .range(segment.start + PLACEHOLDER_DURATION..)
            .map(|(_, after)| DataSize::from_bytes(after.received.get()))
            .sum();
        let following_size = ((rate + other_rate) * playback_time_left).bytes() / 10 * margin;
        let following = DataSize::from_bytes(following_size) - following_bytes;
        let player = state.player.as_ref()?;
        let (lead_time, position) = (
            segment.start.saturating_sub(player.position()),
            player.position().saturating_sub(segment.start).min(segment.duration),
        );
        let is_playing = player.state() == PlayerState::Playing;
        let start_threshold = profile.mean_rate() * Duration::from_secs(1);
        if let Some(modelled) = stream.player().filter(|seen| *seen.profile() == profile) {
            let buffered = lead_time + profile.time_at(from + segment.received.get()).saturating_sub(position);
            let position_differs = modelled.buffered_time().abs_diff(buffered) > MIN_POSITION_CHANGE
                || (modelled.state() == PlayerState::Playing) != is_playing;
            let following_differs =
                stream.following_bytes().bytes().abs_diff(following.bytes()) > following.bytes() / 20;
            if !(position_differs || following_differs) {
                return None;
            }
        }
        Some(PlayerInput::MediaSegment {
            video: profile,
            player: BufferThresholds { low: start_threshold, high: None },
            lead_time,
            position,
            is_playing,
            following_bytes: following,
            following_time: playback_time_left,
        })
    }
}

impl TrackState {
    /// Applies to the model what has arrived and what the player has read.
    fn update_player(&mut self, now: Instant) {
        let Some(player) = &mut self.player else { return };
        // The time up to which segments are complete without a gap, by their fraction of bytes.
        let playback_end = |bytes_of: fn(&TrackSegment) -> u64| {
            let mut end = Duration::ZERO;
            for segment in self.segments.values().skip_while(|part| part.start + part.duration < player.position())
            {
                if end != Duration::ZERO && segment.start != end {
                    break;
                }
                let fraction =
                    segment.length.get().map_or(0.0, |len| bytes_of(segment) as f64 / len.max(1) as f64).min(1.0);
                end = segment.start + segment.duration.mul_f64(fraction);
                if fraction < 1.0 {
                    break;
                }
            }
            end
        };
        let (received_until, read_until) =
            (playback_end(|part| part.received.get()), playback_end(|part| part.read.get()));
        player.on_arrival(now, received_until.as_millis() as u64);
        // As for films: what has not been read cannot have been played, so the player has paused.
        if received_until > read_until && player.position() > read_until && player.state() == PlayerState::Playing {
            player.on_report(now, read_until, true);
        }
    }

    fn mean_rate(&self) -> Option<Bitrate> {
        let (bytes, time) = self.completed;
        (!time.is_zero()).then(|| DataSize::from_bytes(bytes) / time)
    }
}

impl TrackSegment {
    fn new(track: &Rc<TrackPlayback>, start: Duration, duration: Duration, time_after: Option<Duration>) -> Self {
        let track = Rc::downgrade(track);
        Self {
            track,
            start,
            duration,
            time_after,
            received: Cell::new(0),
            read: Cell::new(0),
            length: Cell::new(None),
        }
    }

    /// Updates the segment from the buffer of its response, which covers `range`.
    pub(crate) fn on_buffered(&self, range: &Range<u64>, total: Option<u64>, (read_end, in_order): (u64, u64)) {
        let end = total.map_or(range.end, |total| range.end.min(total));
        let length = (end != u64::MAX).then(|| end.saturating_sub(range.start));
        self.update(
            read_end.saturating_sub(range.start),
            (read_end + in_order).saturating_sub(range.start),
            length,
        );
    }

    /// Notes how much of it the player has read, and whether that is all.
    pub(crate) fn on_read(&self, bytes: u64, is_complete: bool) {
        self.update(bytes, bytes, is_complete.then_some(bytes));
    }

    fn update(&self, read: u64, received: u64, length: Option<u64>) {
        let was_complete = self.is_complete();
        self.length.set(length.or(self.length.get()));
        self.read.set(self.read.get().max(read));
        self.received.set(self.received.get().max(received));
        if self.is_complete()
            && !was_complete
            && let Some(track) = self.track.upgrade()
        {
            let mut state = track.0.borrow_mut();
            let (bytes, time) = &mut state.completed;
            if *time > MEAN_RATE_WINDOW {
                (*bytes, *time) = (*bytes / 2, *time / 2);
            }
            *bytes += self.received.get();
            *time += self.duration;
        }
    }

    fn is_complete(&self) -> bool {
        self.length.get().is_some_and(|len| self.received.get() >= len)
    }
}

fn segment_key(segment: &MediaSegment) -> SegmentKey {
    (segment.url.to_string(), segment.range.as_ref().map(|span| (span.start, span.end)))
}

/// A model of the player whose bytes are milliseconds of video.
fn new_player(now: Instant) -> Player {
    let (millisecond_rate, start_threshold) = (Bitrate::from_bits_per_sec(8000), DataSize::from_bytes(1000));
    let profile = MediaProfile::constant(millisecond_rate, MAX_DURATION).expect("a month has some milliseconds");
    Player::new(profile, BufferThresholds { low: start_threshold, high: None }, now)
}

/// How much of a live playlist is assumed to follow. Our choice: long enough to justify the energy of a radio's tail.
const LIVE_HORIZON: Duration = Duration::from_secs(60);
/// The mean rate is taken over about this playing time, because renditions change.
const MEAN_RATE_WINDOW: Duration = Duration::from_secs(60);
/// Length of the video in the model of a player: longer than any playback.
const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);
/// A track without requests is not being played. Our choice: a player with a full buffer requests the next segment
/// within the duration of one.
const TRACK_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest deviation of a stream's model that is not corrected.
const MIN_POSITION_CHANGE: Duration = Duration::from_millis(250);
/// The duration of bytes that do not belong to the segment.
const PLACEHOLDER_DURATION: Duration = Duration::from_nanos(1);
/// Our choice: more tracks than a player plays at once.
const MAX_TRACKS: usize = 50;
/// Approximate overhead of a map entry, in bytes.
const MAP_ENTRY_SIZE: usize = 64;

#[cfg(test)]
mod tests {
    use marline_core::stream::Config;
    use url::Url;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn test_segment(n: u64) -> MediaSegment {
        MediaSegment { url: Url::parse(&format!("http://h/{n}")).unwrap(), range: None, duration: SECOND * 2 }
    }

    /// Requests segment `n` of twenty (from 0) with two seconds each. `is_final`: the playlist is not live.
    fn request_segment(
        playback: &PlaylistPlayback,
        track: &Rc<TrackPlayback>,
        now: Instant,
        n: u64,
        is_final: bool,
    ) -> Rc<TrackSegment> {
        let next: Vec<MediaSegment> = (n + 1..20).take(3).map(test_segment).collect();
        let time_left = is_final.then_some(SECOND * 2 * (19 - n as u32));
        playback.on_request(
            track,
            now,
            (&test_segment(n), SegmentTiming { duration: SECOND * 2, time_left }),
            &next,
            false,
        )
    }

    /// The update of the segment's stream: lead time, position, whether it plays, following bytes and following time.
    fn update_of(
        playback: &PlaylistPlayback,
        segment: &TrackSegment,
        now: Instant,
    ) -> (Duration, Duration, bool, u64, Duration) {
        let stream = Stream::new(Config::default());
        match playback.update_for_stream(segment, now, 0, None, &stream) {
            Some(PlayerInput::MediaSegment {
                lead_time: lead,
                position,
                is_playing,
                following_bytes: beyond,
                following_time: plays_on,
                ..
            }) => (lead, position, is_playing, beyond.bytes(), plays_on),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_segment_reports_the_player_s_buffer_and_the_bytes_that_follow() {
        let playback = PlaylistPlayback::default();
        let track = playback.track("list", 0);
        let first = request_segment(&playback, &track, at(0), 0, true);
        // 1000 bytes per two seconds, 38 s to follow, a margin of a tenth.
        first.on_buffered(&(0..1000), None, (0, 100));
        assert_eq!(
            update_of(&playback, &first, at(100)),
            (Duration::ZERO, Duration::ZERO, false, 20_900, SECOND * 38)
        );
        first.on_buffered(&(0..1000), None, (1000, 0));
        // It plays from here on.
        assert_eq!(track.status(at(1000)).unwrap().state, PlayerState::Playing);
        let second = track.prefetched_segment(&test_segment(1)).unwrap();
        let third = track.prefetched_segment(&test_segment(2)).unwrap();
        second.on_buffered(&(0..2000), None, (0, 1000));
        assert!(track.prefetched_segment(&test_segment(9)).is_none());
        // 1000 bytes per two seconds, 36 s to follow, a margin of a tenth.
        assert_eq!(
            update_of(&playback, &second, at(1500)),
            (SECOND * 3 / 2, Duration::ZERO, true, 19_800, SECOND * 36)
        );
        assert_eq!(update_of(&playback, &third, at(1500)).0, SECOND * 7 / 2);
        // Half of the second segment has arrived, and none of it was read.
        assert_eq!(track.status(at(3500)).unwrap().buffer, SECOND);
        assert!(Rc::ptr_eq(&request_segment(&playback, &track, at(3600), 1, true), &second), "it was expected");
        // Any other segment is a seek, for which all links are active.
        playback.rates.borrow_mut().set_standby("lte", true);
        let after_seek = request_segment(&playback, &track, at(3700), 15, true);
        assert_eq!(
            update_of(&playback, &after_seek, at(3700)),
            (Duration::ZERO, Duration::ZERO, false, 4400, SECOND * 8)
        );
        assert!(!playback.rates.borrow().is_standby("lte"));
        let last = request_segment(&playback, &track, at(4000), 19, true);
        last.on_buffered(&(0..1000), None, (1000, 0));
        let status_at = |millis| track.status(at(millis)).map(|status| (status.state, status.stalls));
        assert_eq!(
            (status_at(4500), status_at(9000)),
            (Some((PlayerState::Playing, 0)), Some((PlayerState::Ended, 0)))
        );
        let stream = Stream::new(Config::default());
        assert_eq!(
            playback.update_for_stream(&second, at(3700), 0, None, &stream),
            None,
            "a segment from before a seek is ignored"
        );
    }

    #[test]
    fn for_live_playlists_the_next_minute_of_all_tracks_counts() {
        let playback = PlaylistPlayback::default();
        let (pictures, sound) = (playback.track("list", 0), playback.track("list", 1));
        let part = request_segment(&playback, &pictures, at(0), 0, false);
        part.on_buffered(&(0..1000), None, (1000, 0));
        assert_eq!(update_of(&playback, &part, at(0)).3, 500 * 60 / 10 * 11);
        let other = request_segment(&playback, &sound, at(0), 0, false);
        other.on_buffered(&(0..100), None, (100, 0));
        assert_eq!(update_of(&playback, &part, at(0)).3, 550 * 60 / 10 * 11);
        assert_eq!(update_of(&playback, &part, at(40_000)).3, 500 * 60 / 10 * 11, "the other track has ended");
    }
}
