//! Cases of `bench proxy` with an emulated player: start, seek, a link that fails, a link that is slow.
//!
//! 1. The links are as in the other benchmarks: Wi-Fi with an RTT of 20 ms and a queue of 50 ms, LTE with 50 ms and
//!    100 ms.
//! 2. The loaded RTT of a link is its RTT plus its full queue; of two links the smaller one counts.
//! 3. "Not later" means within [`RESOLUTION`] in the median.

use std::io;
use std::time::Duration;

use marline_core::playback::MediaProfile;
use marline_core::units::{Bitrate, DataSize};
use marline_sim::spec::{LinkEventKind, LinkSpec, QueueLimit};

use super::player::{Playback, PlaybackSummary};
use super::testbed::{OriginProtocol, ProxyProcess, ProxyTestbed};
use super::{ProxyReport, Threshold};
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::mp4_fixture::Mp4Fixture;

/// Starts a proxy over these links in a fresh lab, and runs `work` with it.
fn with_proxy<T: Send>(
    links: &[&str],
    fixture: &Mp4Fixture,
    run: u32,
    origin: OriginProtocol,
    proxy_args: &[&str],
    work: impl FnOnce(&Playback<'_>, &ProxyTestbed) -> io::Result<T> + Send,
) -> Result<(io::Result<T>, Option<String>), LabError> {
    let specs: Vec<LinkSpec> = links.iter().map(|link| parse_link(link)).collect::<Result<_, _>>()?;
    let testbed = ProxyTestbed::start_lab(&specs, &fixture.path(), u64::from(run) + 1)?;
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let proxy = ProxyProcess::start(&testbed, &names, proxy_args)?;
    let url = testbed.url(origin);
    let playback = Playback { proxy: proxy.address, url: &url, fixture };
    let result = testbed.run_at_client(|| work(&playback, &testbed));
    let unreliable_reason = testbed.unreliable_reason();
    proxy.stop()?;
    Ok((result, unreliable_reason))
}

fn parse_link(link: &str) -> Result<LinkSpec, LabError> {
    link.parse().map_err(|reason| LabError::Spec(format!("{link}: {reason}")))
}

pub(super) fn new_fixture(rate: Bitrate, seconds: u64) -> Result<Mp4Fixture, LabError> {
    let video = MediaProfile::constant(rate, Duration::from_secs(seconds)).map_err(io::Error::other);
    video.and_then(|video| Mp4Fixture::new(&video)).map_err(LabError::at_step("a video in memory"))
}

/// marline first in even runs, the reference first in odd ones.
fn run_order(run: u32) -> [bool; 2] {
    [run.is_multiple_of(2), !run.is_multiple_of(2)]
}

/// Case `start`: two links against the better one alone.
pub(super) fn start(report: &mut ProxyReport, runs: u32) -> Result<(), LabError> {
    for (wifi, lte, best_index, rate) in START_CASES {
        let case = format!("start {wifi} + {lte} Mbit/s, film of {rate}");
        let fixture = new_fixture(Bitrate::from_mbps(rate), 60)?;
        let links = [format!("wifi,rate={wifi}Mbit/s,rtt=20ms"), format!("lte,rate={lte}Mbit/s,rtt=50ms")];
        let both = [links[0].as_str(), links[1].as_str()];
        for run in 0..runs {
            for marline in run_order(run) {
                let links = if marline { &both[..] } else { &both[best_index..=best_index] };
                // One link cannot carry most of these videos. Without this option the proxy would delay the start
                // for that reason, and the comparison would be unfair.
                let proxy_args = if marline { &[][..] } else { &["--start", "fast"][..] };
                let (result, unreliable_reason) =
                    with_proxy(links, &fixture, run, OriginProtocol::Http, proxy_args, |playback, _| {
                        playback.play_until(|player| player.first_frame().is_some())
                    })?;
                match result {
                    Ok(played) => {
                        let threshold = Threshold::AtMost { times: 1.0, plus: RESOLUTION };
                        let row = report.row_mut(&case, "first picture s", "better link", threshold);
                        row.add(marline, played.first_frame_s, unreliable_reason);
                    }
                    Err(reason) => report.problem(&case, run, &reason),
                }
                if is_interrupted() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Case `seek`: another offset is requested while both links are busy.
pub(super) fn seek(report: &mut ProxyReport, runs: u32) -> Result<(), LabError> {
    for (rate, seconds) in [(3, 120), (20, 40)] {
        let fixture = new_fixture(Bitrate::from_mbps(rate * 8 / 5), seconds)?;
        let links = [format!("wifi,rate={rate}Mbit/s,rtt=20ms"), format!("lte,rate={rate}Mbit/s,rtt=50ms")];
        let links = [links[0].as_str(), links[1].as_str()];
        let loaded_rtt = loaded_rtt(&links)?;
        for origin in [OriginProtocol::Http, OriginProtocol::Https, OriginProtocol::H2] {
            let case = format!("seek {}, {rate} + {rate} Mbit/s", origin.name());
            for run in 0..runs {
                let (times, unreliable_reason) =
                    with_proxy(&links, &fixture, run, origin, &[], |playback, _| seek_times(playback))?;
                match times {
                    Ok(seek_times) => {
                        let threshold = Threshold::AtMost { times: 1.0, plus: 50.0 };
                        let row = report.row_mut(&case, "first byte ms", "loaded round trip", threshold);
                        row.add(false, loaded_rtt * 1e3, None);
                        seek_times
                            .iter()
                            .for_each(|time| row.add(true, time.as_secs_f64() * 1e3, unreliable_reason.clone()));
                    }
                    Err(reason) => report.problem(&case, run, &reason),
                }
                if is_interrupted() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Time to the first byte of each of three other offsets.
fn seek_times(playback: &Playback<'_>) -> io::Result<Vec<Duration>> {
    let mut response = playback.request(0)?;
    let size = playback.fixture.video().size().bytes();
    let mut times = Vec::new();
    for tenth in [6, 2, 8] {
        playback.read_for(&mut response, LOAD_TIME)?;
        let (next_response, first_byte) = playback.seek(response, size / 10 * tenth)?;
        times.push(first_byte);
        response = next_response;
    }
    Ok(times)
}

/// The smallest RTT of these links with full queues, in seconds.
fn loaded_rtt(links: &[&str]) -> Result<f64, LabError> {
    let mut min = f64::INFINITY;
    for link in links {
        let spec = parse_link(link)?;
        let queue = match spec.queue_limit() {
            QueueLimit::Time(time) => time,
            QueueLimit::Size(_) => Duration::ZERO,
        };
        min = min.min((spec.rtt + queue).as_secs_f64());
    }
    Ok(min)
}

/// Case `death`: one of two links drops all packets once the player has buffered 4 MB.
pub(super) fn link_failure(report: &mut ProxyReport, runs: u32) -> Result<(), LabError> {
    for (links, rate, seconds) in FAILURE_CASES {
        let fixture = new_fixture(rate, seconds)?;
        for failing in ["wifi", "lte"] {
            let case = format!("{failing} of two dies, film of {rate}");
            for run in 0..runs {
                let (result, unreliable_reason) =
                    with_proxy(&links, &fixture, run, OriginProtocol::Http, &[], |playback, testbed| {
                        let mut has_failed = false;
                        playback.play_until(|player| {
                            if !has_failed && player.buffered() >= BUFFERED_BEFORE_FAILURE {
                                has_failed = true;
                                if let ProxyTestbed::Lab(lab) = testbed {
                                    // If the emulator has ended, its report will show that.
                                    let _ = lab.change_link(failing, LinkEventKind::Down);
                                }
                            }
                            false
                        })
                    })?;
                match result {
                    Ok(played) => {
                        let no_stall = Threshold::AtMost { times: 1.0, plus: 0.0 };
                        let row = report.row_mut(&case, "stalls", "none", no_stall);
                        row.add(true, played.stalls.into(), unreliable_reason);
                        row.add(false, 0.0, None);
                        let waited = report.row_mut(&case, "stood still s", "none", no_stall);
                        waited.add(true, played.waited_s - played.first_frame_s, None);
                        waited.add(false, 0.0, None);
                    }
                    Err(reason) => report.problem(&case, run, &reason),
                }
                if is_interrupted() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Case `slow`: a good link together with a slow one, against the good one alone.
pub(super) fn slow(report: &mut ProxyReport, runs: u32) -> Result<(), LabError> {
    for (rate, share) in [(4, 80), (20, 80)] {
        let fixture =
            new_fixture(Bitrate::from_bits_per_sec(rate * 10_000 * share), if rate < 10 { 60 } else { 40 })?;
        let good = format!("wifi,rate={rate}Mbit/s,rtt=20ms");
        let both = [good.as_str(), "lte,rate=300kbit/s,rtt=400ms"];
        let case = format!("slow link beside {rate} Mbit/s, film at {share} %");
        for run in 0..runs {
            for marline in run_order(run) {
                let links = if marline { &both[..] } else { &both[..1] };
                let (result, unreliable_reason) =
                    with_proxy(links, &fixture, run, OriginProtocol::Http, &[], |playback, _| {
                        let played = playback.play_until(|_| false)?;
                        let mut response = playback.request(0)?;
                        playback.read_for(&mut response, LOAD_TIME)?;
                        let (_, seek_time) = playback.seek(response, fixture.video().size().bytes() / 2)?;
                        Ok((played, seek_time))
                    })?;
                match result {
                    Ok((played, seek_time)) => {
                        add_rows(report, &case, marline, played, seek_time, unreliable_reason)
                    }
                    Err(reason) => report.problem(&case, run, &reason),
                }
                if is_interrupted() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Adds the figures of one run of `slow`.
fn add_rows(
    report: &mut ProxyReport,
    case: &str,
    marline: bool,
    result: PlaybackSummary,
    seek_time: Duration,
    unreliable_reason: Option<String>,
) {
    let threshold = |plus| Threshold::AtMost { times: 1.0, plus };
    let reference = "without it";
    report.row_mut(case, "first picture s", reference, threshold(RESOLUTION)).add(
        marline,
        result.first_frame_s,
        unreliable_reason,
    );
    report.row_mut(case, "stalls", reference, threshold(0.0)).add(marline, result.stalls.into(), None);
    report.row_mut(case, "waited s", reference, threshold(RESOLUTION)).add(marline, result.waited_s, None);
    report.row_mut(case, "seek ms", reference, threshold(RESOLUTION * 1e3)).add(
        marline,
        seek_time.as_secs_f64() * 1e3,
        None,
    );
}

/// Rates of Wi-Fi and LTE, index of the better one, and rate of the video, in Mbit/s.
const START_CASES: [(u64, u64, usize, u64); 4] = [(3, 3, 0, 5), (20, 20, 0, 32), (8, 2, 0, 8), (2, 8, 1, 8)];
/// Two links each of which carries the video, the video's rate, and its length in seconds.
const FAILURE_CASES: [([&str; 2], Bitrate, u64); 2] = [
    (["wifi,rate=3Mbit/s,rtt=20ms", "lte,rate=3Mbit/s,rtt=50ms"], Bitrate::from_bits_per_sec(2_400_000), 40),
    (["wifi,rate=20Mbit/s,rtt=20ms", "lte,rate=20Mbit/s,rtt=50ms"], Bitrate::from_mbps(16), 20),
];
const BUFFERED_BEFORE_FAILURE: DataSize = DataSize::from_bytes(4_000_000);
/// Time until the queues of the links are full.
const LOAD_TIME: Duration = Duration::from_secs(4);
/// Uncertainty in seconds, from the emulation, two busy cores and the polling of the emulated player.
const RESOLUTION: f64 = 0.01;
