//! An emulated player at the proxy: it reads as a player reads, and reckons when it would have shown what.
//!
//! In: an answer of the proxy. Out: when the first picture came, how often and how long it stood still, when it was over.
//!
//! 1. It starts, and starts again, with a second of the film, and reads on until 20 MB wait (GreenBag §IV-C's high
//!    threshold): most players have more patience at the start and less memory.
//! 2. Every byte is compared with the film.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use marline_core::playback::{BufferThresholds, Player, PlayerState};
use marline_core::units::{self, DataSize};

use super::film::Film;
use super::world::Answer;

/// A film and where the proxy has it.
#[derive(Clone, Copy)]
pub(super) struct Showing<'a> {
    pub(super) proxy: SocketAddr,
    pub(super) url: &'a str,
    pub(super) film: &'a Film,
}

/// What a viewer saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// From the request to the first picture, in seconds.
    pub(super) start: f64,
    /// How often it stood still after that.
    pub(super) stalls: u32,
    /// How long it waited in all, the start included.
    pub(super) waited: f64,
}

impl Showing<'_> {
    /// Plays from the beginning until the end, or until `until` says so; `until` hears of the player each few
    /// milliseconds.
    pub(super) fn play(&self, mut until: impl FnMut(&Player) -> bool) -> io::Result<Seen> {
        let thresholds = BufferThresholds { low: self.film.second(), high: Some(DataSize::from_mib(20)) };
        let began = Instant::now();
        let now = || units::Instant::ZERO + began.elapsed();
        let mut player = Player::new(self.film.profile()?, thresholds, units::Instant::ZERO);
        let mut answer = Answer::ask(self.proxy, self.url, 0, AGENT)?.good()?;
        answer.wait_at_most(LOOK)?;
        let mut buffer = vec![0; 64 * 1024];
        let (mut last, size) = (Instant::now(), self.film.bytes.len() as u64);
        while player.state() != PlayerState::Ended && !until(&player) {
            let more = player.read_limit().min(size).saturating_sub(answer.at);
            if more == 0 {
                std::thread::sleep(LOOK);
                player.advance(now());
                last = Instant::now();
                continue;
            }
            let most = buffer.len().min(usize::try_from(more).unwrap_or(usize::MAX));
            match self.read(&mut answer, &mut buffer[..most]) {
                Ok(()) => {
                    player.on_arrival(now(), answer.at);
                    last = Instant::now();
                }
                Err(error) if is_early(&error) && last.elapsed() < TOO_LONG => player.advance(now()),
                Err(error) => return Err(error),
            }
        }
        let start = player.first_frame().map_or(f64::NAN, |at| at.since(units::Instant::ZERO).as_secs_f64());
        Ok(Seen { start, stalls: player.stalls(), waited: player.buffering_time().as_secs_f64() })
    }

    /// Reads for this long as fast as it comes.
    pub(super) fn load(&self, answer: &mut Answer, time: Duration) -> io::Result<()> {
        answer.wait_at_most(LOOK)?;
        let (began, mut buffer) = (Instant::now(), vec![0; 64 * 1024]);
        while began.elapsed() < time {
            match self.read(answer, &mut buffer) {
                Err(error) if !is_early(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Asks for the film from an offset on.
    pub(super) fn ask(&self, from: u64) -> io::Result<Answer> {
        Answer::ask(self.proxy, self.url, from, AGENT)?.good()
    }

    /// Leaves an answer and asks for another offset; how long its first byte took.
    pub(super) fn seek(&self, old: Answer, to: u64) -> io::Result<(Answer, Duration)> {
        let began = Instant::now();
        drop(old);
        let mut answer = self.ask(to)?;
        self.read(&mut answer, &mut [0; 1])?;
        Ok((answer, began.elapsed()))
    }

    /// Reads some bytes and compares them.
    pub(super) fn read(&self, answer: &mut Answer, buffer: &mut [u8]) -> io::Result<()> {
        let from = answer.at;
        match answer.read(buffer)? {
            0 => Err(io::Error::other(format!("the film broke off at byte {from}"))),
            length if self.film.has(from, &buffer[..length]) => Ok(()),
            _ => Err(io::Error::other(format!("wrong bytes behind {from}"))),
        }
    }
}

/// Nothing has come yet.
pub(super) fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// One player: the proxy tells players apart by what they say of themselves.
const AGENT: &str = "marline-lab bench";
/// As often as the player's state is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Nothing takes so long.
const TOO_LONG: Duration = Duration::from_secs(60);
