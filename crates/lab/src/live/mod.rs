//! A live broadcast through an edge: unmodified ffmpeg pushes RTMP, unmodified nginx receives it, and links fail
//! during the broadcast. The result ([`Broadcast`]) contains whether every packet arrived, the stalls, and the
//! bytes of each link.
//!
//! ```text
//! ffmpeg ─▶ [socat] ─▶ marline edge ═(links)═▶ marline relay ─▶ nginx with its RTMP module
//! ```
//!
//! 1. ffmpeg supports no proxy for RTMP, so unmodified socat connects it to the edge with CONNECT. Behind an edge
//!    that is the gateway of a LAN ([`EdgeAccess::Lan`]) there is no socat, and ffmpeg needs no configuration.
//! 2. A link fails in one of two ways: its device goes down and the kernel notices it
//!    ([`FailureMode::CarrierLost`]), or it drops all packets without notice ([`FailureMode::Silent`]).
//! 3. A stall is attributed to a failure if it overlaps the time from the start of the failure to [`IMPACT_WINDOW`] after its end, or to
//!    the next failure if that is earlier.
//! 4. After the last packet was sent, the recording ends when all sent packets are in it, or no new one has appeared for [`DRAIN_TIMEOUT`].

mod encoder;
mod flv;
mod ingest;
mod packet_diff;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use marline_sim::spec::{LinkEventKind, LinkSpec};
use serde::Serialize;

use crate::fleet::{EDGE_ADDRESS, EdgeAccess, FleetConfig, FleetProcess, LabFleet};
use crate::network::SERVER;
use crate::{EmulationReport, Lab, LabError};
pub(crate) use encoder::BroadcastConfig;
pub(crate) use ingest::check_installed;
use ingest::{Recording, RtmpIngest};
use packet_diff::{PacketComparison, TimedPacket, longest_stall, required_buffer};

/// How a link fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureMode {
    /// Its device goes down.
    CarrierLost,
    /// It drops all packets; the device stays up.
    Silent,
}

impl FailureMode {
    /// Name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CarrierLost => "carrier lost",
            Self::Silent => "silent",
        }
    }
}

/// A failure of one link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LinkFailure {
    /// Start, relative to the start of the stream.
    pub(crate) at: Duration,
    /// Duration of the failure.
    pub(crate) length: Duration,
    /// Index of the link.
    pub(crate) link: usize,
    pub(crate) mode: FailureMode,
}

/// Two failures in a stream of this length: first the first link, then the second one, each for a sixth of the
/// length.
pub(crate) fn two_failures(length: Duration, modes: [FailureMode; 2]) -> [LinkFailure; 2] {
    let [first, second] = modes;
    let failure =
        |position: f64, link, mode| LinkFailure { at: length.mul_f64(position), length: length / 6, link, mode };
    [failure(0.25, 0, first), failure(0.6, 1, second)]
}

/// Effect of a failure on the stream.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct FailureImpact {
    pub(crate) link: String,
    pub(crate) mode: FailureMode,
    /// Start of the failure, in seconds since the start of the stream.
    pub(crate) at_s: f64,
    /// Longest time without a received packet.
    pub(crate) stall_s: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Broadcast {
    #[serde(flatten)]
    pub(crate) received: PacketComparison,
    /// Frames dropped by ffmpeg, according to its progress report.
    pub(crate) dropped_frames: Option<u64>,
    /// Largest lag of the encoder behind the camera.
    pub(crate) encoder_lag_s: f64,
    /// Longest time without a received packet.
    pub(crate) stall_s: f64,
    /// Delay that a player must buffer to play without interruption.
    pub(crate) required_buffer_s: f64,
    /// Effect of each failure.
    pub(crate) failures: Vec<FailureImpact>,
    /// Name of each link and the bytes from the client that reached the server over it, in the order of the links.
    pub(crate) links: Vec<(String, u64)>,
    /// The bytes of each link per slot of 100 ms ([`EmulationReport::SLOT`]) since the start of the stream; the
    /// last entry has the packets received per slot.
    pub(crate) timeline: Vec<Vec<u64>>,
    /// RTMP connections that ended before the stream did.
    pub(crate) disconnects: usize,
    /// The relay in use at the end, according to the edge's log.
    pub(crate) relay: Option<String>,
    /// Error of ffmpeg, if it failed.
    pub(crate) failed: Option<String>,
    /// Why the figures are unreliable; `None` if they are reliable.
    pub(crate) unreliable_reason: Option<String>,
}

impl Broadcast {
    /// Whether every frame was sent and received, over one connection.
    pub(crate) fn is_complete(&self) -> bool {
        self.received.is_complete()
            && self.disconnects == 0
            && self.failed.is_none()
            && self.dropped_frames == Some(0)
    }

    /// A link's share of all bytes from the client, from 0 to 1.
    pub(crate) fn link_share(&self, at: usize) -> f64 {
        let total: u64 = self.links.iter().map(|(_, bytes)| bytes).sum();
        self.links.get(at).map_or(0.0, |(_, bytes)| *bytes as f64 / total.max(1) as f64)
    }
}

/// Runs a broadcast; `None` if the user interrupted it.
pub(crate) fn broadcast(
    config: &FleetConfig<'_>,
    broadcast_config: BroadcastConfig,
    failures: &[LinkFailure],
) -> Result<Option<Broadcast>, LabError> {
    let fleet = LabFleet::start(config)?;
    let lab = fleet.lab();
    let ingest = RtmpIngest::start(lab, fleet.folder())?;
    let (_socat, host) = match config.access {
        EdgeAccess::Proxy => (Some(start_socat(lab, &fleet)?), SOCAT_ADDRESS.to_owned()),
        EdgeAccess::Lan => (None, SERVER.to_string()),
    };
    // The fleet has caused traffic already: subtract it from the links' bytes later.
    let before = lab.emulation_report()?;
    let progress = fleet.folder().join("progress");
    let url = format!("rtmp://{host}/live/camera");
    let mut command = encoder::ffmpeg_command(broadcast_config, &url, &progress);
    let start = Instant::now();
    let child = fleet.spawn(&mut command);
    let mut ffmpeg = FfmpegProcess(child.map_err(|source| LabError::Start { program: "ffmpeg".into(), source })?);
    let stderr = read_stderr(&mut ffmpeg.0);
    let sent_packets = ffmpeg.0.stdout.take().map(encoder::collect_packets);
    if !run_failures(lab, config.links, failures, &mut ffmpeg.0, start, broadcast_config.length + FFMPEG_TIMEOUT)? {
        return Ok(None);
    }
    let status = ffmpeg.0.wait().map_err(LabError::at_step("ffmpeg's end"))?;
    let sent_packets = sent_packets
        .and_then(|receiver| receiver.recv_timeout(FFMPEG_TIMEOUT).ok())
        .unwrap_or_else(|| Err("ffmpeg sent no data".into()));
    let sent_packets = sent_packets.map_err(LabError::Server)?;
    // Packets may still be in flight or in buffers when ffmpeg ends.
    wait_for_recording(&ingest, sent_packets.len());
    let recorded = ingest.stop().map_err(LabError::Server)?;
    let stderr_text = stderr.recv_timeout(FFMPEG_TIMEOUT).unwrap_or_default();
    let failed = (!status.success())
        .then(|| format!("ffmpeg: {status}: {}", stderr_text.trim().lines().last().unwrap_or_default()));
    let dropped = encoder::dropped_frames(&std::fs::read_to_string(&progress).unwrap_or_default());
    let after = lab.emulation_report()?;
    let relay = fleet.relay_in_use().map(|at| format!("relay-{}", at + 1));
    let links = uplink_bytes(&before, &after);
    let timeline = timeline(&after, start - fleet.start_time(), &recorded, start);
    let max_lateness = after.lateness.max;
    let unreliable_reason = after
        .unreliable_reason()
        .or_else(|| (max_lateness > MAX_LATENESS).then(|| format!("a packet was {max_lateness:.1?} late")));
    // The zero values below are filled in by `with_comparison`.
    let link_failures = failure_impacts(config.links, failures, &recorded, start);
    Ok(Some(with_comparison(
        &sent_packets,
        recorded,
        Broadcast {
            received: PacketComparison::default(),
            dropped_frames: dropped,
            encoder_lag_s: required_buffer(&sent_packets).as_secs_f64(),
            stall_s: 0.0,
            required_buffer_s: 0.0,
            failures: link_failures,
            links,
            timeline,
            disconnects: 0,
            relay,
            failed,
            unreliable_reason,
        },
    )))
}

/// Fills in the fields that need both the sent and the recorded packets.
fn with_comparison(sent: &[TimedPacket], recorded: Recording, broadcast: Broadcast) -> Broadcast {
    let packets = &recorded.packets;
    let total_stall = packets
        .first()
        .zip(packets.last())
        .map(|(first, last)| longest_stall(packets, first.seen_at, last.seen_at));
    Broadcast {
        received: PacketComparison::compare(sent, packets),
        stall_s: total_stall.unwrap_or_default().as_secs_f64(),
        required_buffer_s: required_buffer(packets).as_secs_f64(),
        disconnects: recorded.connections.saturating_sub(1) + usize::from(broadcast.failed.is_some()),
        ..broadcast
    }
}

/// The stall of each failure (rule 3).
fn failure_impacts(
    links: &[LinkSpec],
    failures: &[LinkFailure],
    recorded: &Recording,
    start: Instant,
) -> Vec<FailureImpact> {
    let impact = |(index, failure): (usize, &LinkFailure)| {
        let failed_at = start + failure.at;
        let next = failures.get(index + 1).map_or(Duration::MAX, |next| next.at);
        let end = start + (failure.at + failure.length + IMPACT_WINDOW).min(next);
        let stall = longest_stall(&recorded.packets, failed_at, end);
        let link = links.get(failure.link).map_or("?", |link| &link.name).to_owned();
        FailureImpact { link, mode: failure.mode, at_s: failure.at.as_secs_f64(), stall_s: stall.as_secs_f64() }
    };
    failures.iter().enumerate().map(impact).collect()
}

/// Bytes of IP packets that reached the server over each link between the two reports.
fn uplink_bytes(before: &EmulationReport, after: &EmulationReport) -> Vec<(String, u64)> {
    let uplink_bytes = |emulation: &EmulationReport, at: usize| -> u64 {
        emulation.links.get(at).map_or(0, |link| link.up_timeline.iter().map(|slot| slot.bytes()).sum())
    };
    let link_bytes = |(at, link): (usize, &crate::LinkReport)| {
        (link.name.clone(), uplink_bytes(after, at).saturating_sub(uplink_bytes(before, at)))
    };
    after.links.iter().enumerate().map(link_bytes).collect()
}

/// See [`Broadcast::timeline`]; `offset` is the time from the start of the links to the start of the stream.
fn timeline(after: &EmulationReport, offset: Duration, recorded: &Recording, start: Instant) -> Vec<Vec<u64>> {
    let slot_of = |time: Duration| (time.as_secs_f64() / EmulationReport::SLOT.as_secs_f64()) as usize;
    let link =
        |link: &crate::LinkReport| link.up_timeline.iter().skip(slot_of(offset)).map(|size| size.bytes()).collect();
    let mut timelines: Vec<Vec<u64>> = after.links.iter().map(link).collect();
    let mut arrivals = Vec::new();
    for packet in &recorded.packets {
        let index = slot_of(packet.seen_at.saturating_duration_since(start));
        if arrivals.len() <= index {
            arrivals.resize(index + 1, 0);
        }
        if let Some(slot) = arrivals.get_mut(index) {
            *slot += 1;
        }
    }
    timelines.push(arrivals);
    timelines
}

/// Applies the failures at their times until ffmpeg ends; false if the user interrupted.
fn run_failures(
    lab: &Lab,
    links: &[LinkSpec],
    failures: &[LinkFailure],
    ffmpeg: &mut Child,
    start: Instant,
    limit: Duration,
) -> Result<bool, LabError> {
    let mut actions: Vec<(Duration, &LinkFailure, bool)> = failures
        .iter()
        .flat_map(|failure| [(failure.at, failure, false), (failure.at + failure.length, failure, true)])
        .collect();
    actions.sort_by_key(|(at, ..)| *at);
    let mut actions = actions.into_iter().peekable();
    while ffmpeg.try_wait().map_err(LabError::at_step("ffmpeg"))?.is_none() {
        if marline_sys::signal::last_caught().is_some() {
            return Ok(false);
        }
        if start.elapsed() > limit {
            // The exit status of the killed process is reported as a failure.
            let _ = ffmpeg.kill();
        }
        while let Some((_, failure, is_restored)) = actions.next_if(|(at, ..)| *at <= start.elapsed()) {
            let Some(link) = links.get(failure.link) else { continue };
            match failure.mode {
                FailureMode::CarrierLost => lab.set_device_up(&link.name, is_restored)?,
                FailureMode::Silent => lab.change_link(
                    &link.name,
                    if is_restored { LinkEventKind::Restore } else { LinkEventKind::Down },
                )?,
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Waits for the end of the recording (rule 4).
fn wait_for_recording(ingest: &RtmpIngest, sent: usize) {
    let (mut count, mut last_change) = (ingest.packet_count(), Instant::now());
    while count < sent && last_change.elapsed() < DRAIN_TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
        if ingest.packet_count() != count {
            (count, last_change) = (ingest.packet_count(), Instant::now());
        }
    }
}

/// Starts the socat of rule 1.
fn start_socat(lab: &Lab, fleet: &LabFleet) -> Result<FleetProcess, LabError> {
    let (edge, port) = EDGE_ADDRESS.split_once(':').unwrap_or_default();
    let mut command = Command::new("socat");
    // -t keeps the second direction open after the first has ended; -dd logs the line that shows readiness.
    command.args(["-dd", "-t", "60", &format!("TCP-LISTEN:1935,bind={SOCAT_ADDRESS},fork,reuseaddr")]);
    command.arg(format!("PROXY:{edge}:{SERVER}:1935,proxyport={port}"));
    FleetProcess::start("socat", fleet.folder(), &mut command, |command| lab.spawn(command))?
        .wait_until_ready("listening on")
}

fn read_stderr(ffmpeg: &mut Child) -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    if let Some(mut errors) = ffmpeg.stderr.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
            let _ = sender.send(text);
        });
    }
    receiver
}

/// A running ffmpeg; dropping it kills the process.
struct FfmpegProcess(Child);

impl Drop for FfmpegProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Address at which socat listens, in the client namespace.
const SOCAT_ADDRESS: &str = "127.0.0.1";
/// A pause of the machine of this length would distort the measured stalls.
const MAX_LATENESS: Duration = Duration::from_millis(200);
/// Our choice: as long as both thresholds for stalls together (1.5 s and 2.5 s).
const IMPACT_WINDOW: Duration = Duration::from_secs(4);
/// Our choice: longer than TCP's longest pause over a working link.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: an encoder that lags this far behind its stream is given up.
const FFMPEG_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_lie_within_the_stream_and_do_not_overlap() {
        let [first, second] =
            two_failures(Duration::from_secs(60), [FailureMode::CarrierLost, FailureMode::Silent]);
        assert_eq!((first.at, first.length), (Duration::from_secs(15), Duration::from_secs(10)));
        assert!(first.at + first.length < second.at && second.at + second.length < Duration::from_secs(60));
        assert_ne!(first.link, second.link);
    }

    #[test]
    fn a_broadcast_is_complete_only_without_any_loss_or_error() {
        let good = Broadcast {
            received: PacketComparison { packets_sent: 2, packets_received: 2, ..PacketComparison::default() },
            dropped_frames: Some(0),
            encoder_lag_s: 0.0,
            stall_s: 0.0,
            required_buffer_s: 0.0,
            failures: Vec::new(),
            links: vec![("a".into(), 30), ("b".into(), 10)],
            timeline: Vec::new(),
            disconnects: 0,
            relay: None,
            failed: None,
            unreliable_reason: None,
        };
        assert!(good.is_complete() && good.link_share(0) == 0.75 && good.link_share(2) == 0.0);
        let missing = PacketComparison { missing: 1, ..good.received };
        for bad in [
            Broadcast { received: missing, ..good.clone() },
            Broadcast { dropped_frames: Some(1), ..good.clone() },
            Broadcast { dropped_frames: None, ..good.clone() },
            Broadcast { disconnects: 1, ..good.clone() },
            Broadcast { failed: Some("x".into()), ..good.clone() },
        ] {
            assert!(!bad.is_complete(), "{bad:?}");
        }
    }
}
