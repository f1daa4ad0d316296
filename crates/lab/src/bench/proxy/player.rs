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

use super::mp4_fixture::Mp4Fixture;
use super::testbed::ProxyResponse;

/// A film and where the proxy has it.
#[derive(Clone, Copy)]
pub(super) struct Playback<'a> {
    pub(super) proxy: SocketAddr,
    pub(super) url: &'a str,
    pub(super) fixture: &'a Mp4Fixture,
}

/// What a viewer saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaybackSummary {
    /// From the request to the first picture, in seconds.
    pub(super) first_frame_s: f64,
    /// How often it stood still after that.
    pub(super) stalls: u32,
    /// How long it waited in all, the start included.
    pub(super) waited_s: f64,
}

impl Playback<'_> {
    /// Plays from the beginning until the end, or until `until` says so; `until` hears of the player each few
    /// milliseconds.
    pub(super) fn play_until(&self, mut until: impl FnMut(&Player) -> bool) -> io::Result<PlaybackSummary> {
        let thresholds = BufferThresholds { low: self.fixture.first_second(), high: Some(DataSize::from_mib(20)) };
        let start = Instant::now();
        let elapsed = || units::Instant::ZERO + start.elapsed();
        let mut player = Player::new(self.fixture.profile()?, thresholds, units::Instant::ZERO);
        let mut response = ProxyResponse::request(self.proxy, self.url, 0, USER_AGENT)?.expect_success()?;
        response.set_timeout(POLL_INTERVAL)?;
        let mut buffer = vec![0; 64 * 1024];
        let (mut last_data, size) = (Instant::now(), self.fixture.bytes.len() as u64);
        while player.state() != PlayerState::Ended && !until(&player) {
            let wanted = player.read_limit().min(size).saturating_sub(response.offset);
            if wanted == 0 {
                std::thread::sleep(POLL_INTERVAL);
                player.advance(elapsed());
                last_data = Instant::now();
                continue;
            }
            let max_len = buffer.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
            match self.read(&mut response, &mut buffer[..max_len]) {
                Ok(()) => {
                    player.on_arrival(elapsed(), response.offset);
                    last_data = Instant::now();
                }
                Err(error) if is_timeout(&error) && last_data.elapsed() < READ_TIMEOUT => player.advance(elapsed()),
                Err(error) => return Err(error),
            }
        }
        let start = player.first_frame().map_or(f64::NAN, |at| at.since(units::Instant::ZERO).as_secs_f64());
        Ok(PlaybackSummary {
            first_frame_s: start,
            stalls: player.stalls(),
            waited_s: player.buffering_time().as_secs_f64(),
        })
    }

    /// Reads for this long as fast as it comes.
    pub(super) fn read_for(&self, response: &mut ProxyResponse, time: Duration) -> io::Result<()> {
        response.set_timeout(POLL_INTERVAL)?;
        let (start, mut buffer) = (Instant::now(), vec![0; 64 * 1024]);
        while start.elapsed() < time {
            match self.read(response, &mut buffer) {
                Err(error) if !is_timeout(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Asks for the film from an offset on.
    pub(super) fn request(&self, offset: u64) -> io::Result<ProxyResponse> {
        ProxyResponse::request(self.proxy, self.url, offset, USER_AGENT)?.expect_success()
    }

    /// Leaves an answer and asks for another offset; how long its first byte took.
    pub(super) fn seek(&self, previous: ProxyResponse, offset: u64) -> io::Result<(ProxyResponse, Duration)> {
        let start = Instant::now();
        drop(previous);
        let mut response = self.request(offset)?;
        self.read(&mut response, &mut [0; 1])?;
        Ok((response, start.elapsed()))
    }

    /// Reads some bytes and compares them.
    pub(super) fn read(&self, response: &mut ProxyResponse, buffer: &mut [u8]) -> io::Result<()> {
        let offset = response.offset;
        match response.read(buffer)? {
            0 => Err(io::Error::other(format!("the film broke off at byte {offset}"))),
            length if self.fixture.matches_at(offset, &buffer[..length]) => Ok(()),
            _ => Err(io::Error::other(format!("wrong bytes behind {offset}"))),
        }
    }
}

/// Nothing has come yet.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// One player: the proxy tells players apart by what they say of themselves.
const USER_AGENT: &str = "marline-lab bench";
/// As often as the player's state is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Nothing takes so long.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
