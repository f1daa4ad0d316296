//! What is known of the player behind a session: what it plays, where it stands, how much it has.
//!
//! In: the bytes that it takes, the windows that wait for it, time. Out: the words by which a stream knows its player
//! ([`Viewer`]), and figures for the status.
//!
//! 1. The video is known from its container ([`Scan`]), or by [`super::probe`]; if those say nothing, from how fast the
//!    player reads once it has enough: while bytes wait and it does not take them, it reads at the video's rate. Until
//!    then nothing is known, and all links work.
//! 2. Where it stands is reckoned, never too early: it plays as soon as it has a second of the video, and so it has less
//!    in its buffer than it may really have. It cannot have played what it has not taken: if bytes wait and its model
//!    has nothing left, it pauses, or its buffer is small.
//! 3. An answer that goes on where the last one ended is the same playing; any other one is a seek.
//! 4. A stream that already plays is told only of what differs by more than [`WORTH`].
//!
//! The wish of a player for a range was not taken for its position: players read ahead by whole files.

use std::cell::Cell;

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::stream::PlayerInput;
use marline_core::units::{DataSize, Duration, Instant, Ratio};

use super::container::{Scan, Video};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Watching {
    scan: Scan,
    source: Option<&'static str>,
    /// Something new is known of the video.
    fresh: bool,
    player: Option<Player>,
    /// One past the last byte that the player has taken.
    taken: u64,
    /// When the first byte of a playing was taken: nothing can have been played before.
    began: Option<Instant>,
    reads: Reads,
    /// Stalls of models that were replaced.
    stalls: u32,
    /// Stalls that were pauses.
    forgiven: u32,
    /// It is served nothing of the video itself yet.
    held: bool,
    /// The stream should hear of the player anew.
    anew: Cell<bool>,
    /// No answer is under way: it cannot stall, for it asks for nothing.
    away: bool,
}

/// How fast it reads while it need not wait.
#[derive(Debug, Default)]
struct Reads {
    since: Option<(Instant, u64)>,
}

/// How things stand, for people.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Standing {
    pub(super) source: &'static str,
    pub(super) duration: Duration,
    pub(super) rate_bps: u64,
    pub(super) position: Duration,
    /// What it has, with what waits for it.
    pub(super) buffer: Duration,
    pub(super) state: PlayerState,
    pub(super) stalls: u32,
}

impl Watching {
    /// The player takes these bytes.
    pub(super) fn takes(&mut self, now: Instant, at: u64, bytes: &[u8]) {
        self.taken = at + bytes.len() as u64;
        self.began.get_or_insert(now);
        if self.scan.take(at, bytes) {
            self.fresh = true;
        }
    }

    /// The head of a file that it plays and that is in no container of ours, once.
    pub(super) fn strange(&mut self) -> Option<Vec<u8>> {
        self.scan.strange()
    }

    /// Somebody else knows what it plays.
    pub(super) fn told(&mut self, video: Video, source: &'static str) {
        self.scan.told(video, source);
        self.fresh = true;
    }

    /// It asks for the bytes from here on: it goes on, or it seeks.
    pub(super) fn asks(&mut self, now: Instant, from: u64) {
        self.reads.since = None;
        let Some(player) = &mut self.player else {
            if from != self.taken {
                self.began = None;
            }
            self.taken = from;
            return;
        };
        let before = player.stalls();
        player.advance(now);
        // It asked for nothing while it ran dry: it paused.
        let paused = if std::mem::take(&mut self.away) { player.stalls() - before } else { 0 };
        let goes_on = from <= self.taken && from >= player.decoded();
        let position = if goes_on { player.position() } else { player.profile().time_at(from) };
        let plays = goes_on && player.state() == PlayerState::Playing;
        let profile = player.profile().clone();
        self.replace(now, profile, from, position, plays);
        self.forgiven += paused;
        self.taken = from;
    }

    /// Whether a model of it plays, and goes on with the bytes from here on.
    pub(super) fn plays_on(&self, from: u64) -> bool {
        let goes_on = |player: &Player| from <= self.taken && from >= player.decoded();
        self.player.as_ref().is_some_and(|player| goes_on(player) && player.state() == PlayerState::Playing)
    }

    /// It has let go of its last answer.
    pub(super) fn leaves(&mut self, now: Instant) {
        self.away = true;
        self.reads.since = None;
        if let Some(player) = &mut self.player {
            player.advance(now);
        }
    }

    /// How things stand now: everything before `frontier` is there. Without a size nothing can be said.
    pub(super) fn look(&mut self, now: Instant, taken: u64, frontier: u64, total: Option<DataSize>) {
        self.taken = taken;
        let Some(total) = total else { return };
        self.estimate(now, frontier > taken, total);
        if std::mem::take(&mut self.fresh) {
            let found = self.scan.found();
            let profile = found.and_then(|(video, source)| Some((video.profile(total)?, source)));
            if let Some((profile, source)) = profile {
                self.source = Some(source);
                self.learn(now, profile, frontier);
            }
        }
        let Some(player) = &mut self.player else { return };
        let (before, played) = (player.stalls(), player.state() == PlayerState::Playing);
        player.on_arrival(now, frontier);
        let most = player.profile().time_at(taken);
        if frontier > taken && player.position() > most && played {
            self.forgiven += player.stalls() - before;
            player.on_report(now, most, true);
        }
    }

    /// The player says of itself where it stands, and whether it has what it needs.
    pub(super) fn stands(&mut self, now: Instant, position: Duration, plays: bool) {
        if let Some(player) = &mut self.player {
            player.on_report(now, position, plays);
        }
    }

    /// Where the video itself begins, once it is known how long it is.
    pub(super) fn media(&self, total: Option<DataSize>) -> Option<u64> {
        let (video, _) = self.scan.found()?;
        video.profile(total?)?;
        self.scan.media()
    }

    /// The video, if it is known.
    pub(super) fn video(&self) -> Option<&MediaProfile> {
        self.player.as_ref().map(Player::profile)
    }

    /// It is held back from its first picture, or no longer.
    pub(super) fn hold(&mut self, now: Instant, held: bool) {
        if std::mem::replace(&mut self.held, held) == held {
            return;
        }
        if let Some(player) = &self.player {
            let (profile, position, upto) = (player.profile().clone(), player.position(), player.arrived());
            self.replace(now, profile, upto, position, false);
            self.anew.set(true);
        }
    }

    /// What a stream should hear that stands as `seen`.
    pub(super) fn news(&self, seen: Option<&Player>) -> Option<PlayerInput> {
        let own = self.player.as_ref()?;
        let (position, plays) = (own.position(), own.state() == PlayerState::Playing);
        let known = seen.filter(|seen| seen.profile() == own.profile() && !self.anew.get());
        let Some(seen) = known else {
            self.anew.set(false);
            let (video, player) = (own.profile().clone(), self.thresholds(own.profile()));
            return Some(PlayerInput::Video { video, player, position, is_playing: plays });
        };
        let apart = position.abs_diff(seen.position());
        let differs = apart > WORTH || (plays && seen.state() == PlayerState::Buffering);
        differs.then_some(PlayerInput::Position { position, is_playing: plays })
    }

    /// For the status; none: nothing is known of the video.
    pub(super) fn standing(&self) -> Option<Standing> {
        let player = self.player.as_ref()?;
        Some(Standing {
            source: self.source?,
            duration: player.profile().duration(),
            rate_bps: player.profile().mean_rate().bits_per_sec(),
            position: player.position(),
            buffer: player.buffered_time(),
            state: player.state(),
            stalls: (self.stalls + player.stalls()).saturating_sub(self.forgiven),
        })
    }

    /// Rule 1's second half.
    fn estimate(&mut self, now: Instant, waits: bool, total: DataSize) {
        let knows = self.source.is_some_and(|source| source != ESTIMATE);
        let Some((since, from)) = self.reads.since.filter(|_| waits && !knows) else {
            self.reads.since = (waits && !knows).then_some((now, self.taken));
            return;
        };
        let time = now.since(since);
        if time < LONG_ENOUGH {
            return;
        }
        self.reads.since = Some((now, self.taken));
        let rate = DataSize::from_bytes(self.taken - from.min(self.taken)) / time;
        let rate = rate + rate.share(MARGIN);
        let slower = self.player.as_ref().is_some_and(|player| player.profile().mean_rate() >= rate);
        // It pauses, or what is known is on the safe side.
        if rate.is_zero() || slower {
            return;
        }
        if let Ok(profile) = MediaProfile::variable([(total / rate, total)]) {
            self.source = Some(ESTIMATE);
            // What it takes it plays: nobody knows what it has.
            let position = profile.time_at(self.taken);
            self.replace(now, profile, self.taken, position, true);
        }
    }

    fn learn(&mut self, now: Instant, profile: MediaProfile, frontier: u64) {
        let (position, plays) = match &self.player {
            Some(player) => (player.position(), player.state() == PlayerState::Playing),
            // It may have played since it had its first byte.
            None => {
                let most = self.began.map_or(Duration::ZERO, |began| now.since(began));
                (most.min(profile.time_at(self.taken)), false)
            }
        };
        self.replace(now, profile, frontier, position, plays);
    }

    fn replace(&mut self, now: Instant, profile: MediaProfile, upto: u64, position: Duration, plays: bool) {
        self.stalls += self.player.as_ref().map_or(0, Player::stalls);
        let thresholds = self.thresholds(&profile);
        let mut player = Player::new(profile, thresholds, now);
        player.resume_at(now, upto, position, plays);
        self.player = Some(player);
    }

    /// A player that is held never has enough.
    fn thresholds(&self, profile: &MediaProfile) -> BufferThresholds {
        if self.held { BufferThresholds { low: DataSize::MAX, high: None } } else { thresholds(profile) }
    }
}

/// It plays once it has a second of the video: what mpv waits for after a stall, and more than browsers do.
fn thresholds(profile: &MediaProfile) -> BufferThresholds {
    BufferThresholds { low: profile.mean_rate() * Duration::from_secs(1), high: None }
}

/// The source of a rate that is nobody's word.
const ESTIMATE: &str = "how fast the player reads";
/// A player that has enough is looked at for so long. chosen: players read in bursts of some seconds.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
/// On the safe side of an estimate.
const MARGIN: Ratio = Ratio::from_percent(20);
/// A stream's model may be this far off before it is told.
const WORTH: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: DataSize = DataSize::from_bytes(10_000_000);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// The head of an MP4 file of ten seconds.
    fn head() -> Vec<u8> {
        let mut body = vec![0; 12];
        body.extend(600_u32.to_be_bytes());
        body.extend(6000_u32.to_be_bytes());
        body.extend([0; 80]);
        let boxed = |name: &[u8; 4], body: &[u8]| [&(body.len() as u32 + 8).to_be_bytes()[..], name, body].concat();
        [boxed(b"ftyp", b"isom"), boxed(b"moov", &boxed(b"mvhd", &body))].concat()
    }

    fn watching() -> Watching {
        let mut watching = Watching::default();
        watching.asks(at(0), 0);
        watching.takes(at(100), 0, &head());
        watching.look(at(100), head().len() as u64, head().len() as u64, Some(TOTAL));
        watching
    }

    #[test]
    fn a_stream_hears_of_the_video_once_and_of_the_player_when_it_differs() {
        let mut watching = watching();
        let Some(PlayerInput::Video { video, position, is_playing: plays, .. }) = watching.news(None) else {
            panic!()
        };
        assert_eq!((video.duration(), position, plays), (Duration::from_secs(10), Duration::ZERO, false));
        let mut seen = Player::new(video.clone(), thresholds(&video), at(100));
        assert_eq!(watching.news(Some(&seen)), None);
        for upto in [2_000_000, 4_000_000] {
            watching.look(at(200), upto, upto, Some(TOTAL));
            seen.on_arrival(at(200), upto);
        }
        seen.advance(at(1000));
        watching.look(at(1000), 4_000_000, 4_000_000, Some(TOTAL));
        assert_eq!(watching.news(Some(&seen)), None);
        assert_eq!(watching.standing().unwrap().position, Duration::from_millis(800));
        assert_eq!(watching.standing().unwrap().source, "mp4 mvhd");
    }

    #[test]
    fn a_player_that_does_not_take_what_waits_stands_still() {
        let mut watching = watching();
        watching.look(at(200), 2_000_000, 6_000_000, Some(TOTAL));
        watching.look(at(9000), 2_000_000, 6_000_000, Some(TOTAL));
        let standing = watching.standing().unwrap();
        assert_eq!(
            (standing.position, standing.state, standing.stalls),
            (Duration::from_secs(2), PlayerState::Playing, 0)
        );
        assert_eq!(standing.buffer, Duration::from_secs(4));
        // With nothing that waits it stalls.
        watching.look(at(20_000), 6_000_000, 6_000_000, Some(TOTAL));
        assert_eq!(watching.standing().unwrap().stalls, 1);
    }

    #[test]
    fn an_answer_that_goes_on_is_no_seek_and_any_other_is() {
        let mut watching = watching();
        watching.look(at(200), 3_000_000, 5_000_000, Some(TOTAL));
        watching.asks(at(1200), 3_000_000);
        let standing = watching.standing().unwrap();
        assert_eq!((standing.position, standing.buffer), (Duration::from_secs(1), Duration::from_secs(2)));
        assert_eq!(standing.state, PlayerState::Playing);
        watching.asks(at(1300), 8_000_000);
        let standing = watching.standing().unwrap();
        assert_eq!((standing.position, standing.state), (Duration::from_secs(8), PlayerState::Buffering));
        assert_eq!(standing.stalls, 0);
    }

    #[test]
    fn without_a_word_of_the_container_the_players_pace_tells() {
        let mut watching = Watching::default();
        watching.asks(at(0), 0);
        watching.takes(at(0), 0, &[0x20; 5000]);
        for n in 0..=100_u64 {
            watching.look(at(n * 100), 1_000_000 + n * 10_000, 5_000_000, Some(TOTAL));
        }
        let standing = watching.standing().unwrap();
        // 100,000 bytes a second, and a fifth to be sure.
        assert_eq!((standing.source, standing.rate_bps.div_ceil(1000)), (ESTIMATE, 960));
        // A pause changes nothing.
        for n in 100..=300_u64 {
            watching.look(at(n * 100), 2_000_000, 5_000_000, Some(TOTAL));
        }
        assert_eq!(watching.standing().unwrap().rate_bps, standing.rate_bps);
        // While it waits for bytes its pace is that of the links.
        let mut watching = Watching::default();
        for n in 0..=200_u64 {
            watching.look(at(n * 100), n * 10_000, n * 10_000, Some(TOTAL));
        }
        assert_eq!(watching.standing(), None);
    }
}
