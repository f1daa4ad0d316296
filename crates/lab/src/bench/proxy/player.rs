//! Emulated player of `bench proxy`: it reads from the proxy like a player and computes when it would have shown
//! which frame.
//!
//! 1. It starts, and restarts after a stall, with one second of the video, and reads on until 20 MB are buffered
//!    (the high threshold of GreenBag, section IV-C). Most players start later and buffer less.
//! 2. Every byte is compared with the video.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use marline_core::playback::{BufferThresholds, Player, PlayerState};
use marline_core::units::{self, DataSize};

use super::testbed::ProxyResponse;
use crate::http::is_timeout;
use crate::mp4_fixture::Mp4Fixture;

/// A video and the proxy that serves it.
#[derive(Clone, Copy)]
pub(super) struct Playback<'a> {
    pub(super) proxy: SocketAddr,
    pub(super) url: &'a str,
    pub(super) fixture: &'a Mp4Fixture,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PlaybackSummary {
    /// Time from the request to the first frame, in seconds.
    pub(super) first_frame_s: f64,
    /// Number of stalls after that.
    pub(super) stalls: u32,
    /// Total buffering time in seconds, including the start.
    pub(super) waited_s: f64,
}

impl Playback<'_> {
    /// Plays from the beginning to the end, or until `until` returns true. `until` is called every few
    /// milliseconds.
    pub(super) fn play_until(&self, mut until: impl FnMut(&Player) -> bool) -> io::Result<PlaybackSummary> {
        let video = self.fixture.video();
        // A player needs the first second to show the first frame.
        let first_second = DataSize::from_bytes(video.bytes_at(Duration::from_secs(1)));
        let thresholds = BufferThresholds { low: first_second, high: Some(DataSize::from_mib(20)) };
        let start = Instant::now();
        let elapsed = || units::Instant::ZERO + start.elapsed();
        let mut player = Player::new(video.clone(), thresholds, units::Instant::ZERO);
        let mut response = ProxyResponse::request(self.proxy, self.url, 0, USER_AGENT)?.expect_success()?;
        response.set_timeout(POLL_INTERVAL)?;
        let mut buffer = vec![0; 64 * 1024];
        let (mut last_data, size) = (Instant::now(), video.size().bytes());
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

    /// Reads at full speed for this time.
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

    /// Requests the video from an offset.
    pub(super) fn request(&self, offset: u64) -> io::Result<ProxyResponse> {
        ProxyResponse::request(self.proxy, self.url, offset, USER_AGENT)?.expect_success()
    }

    /// Drops a response and requests another offset. Returns the new response and the time to its first byte.
    pub(super) fn seek(&self, previous: ProxyResponse, offset: u64) -> io::Result<(ProxyResponse, Duration)> {
        let start = Instant::now();
        drop(previous);
        let mut response = self.request(offset)?;
        self.read(&mut response, &mut [0; 1])?;
        Ok((response, start.elapsed()))
    }

    /// Reads some bytes and compares them with the video.
    pub(super) fn read(&self, response: &mut ProxyResponse, buffer: &mut [u8]) -> io::Result<()> {
        let offset = response.offset;
        match response.read(buffer)? {
            0 => Err(io::Error::other(format!("the video ended at byte {offset}"))),
            length if Mp4Fixture::matches_at(offset, &buffer[..length], self.fixture.video()) => Ok(()),
            _ => Err(io::Error::other(format!("wrong bytes after offset {offset}"))),
        }
    }
}

/// Identifies one player: the proxy distinguishes players by their User-Agent.
const USER_AGENT: &str = "marline-lab bench";
/// Interval at which the player's state is updated.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Longest time without data; nothing in these cases takes so long.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
