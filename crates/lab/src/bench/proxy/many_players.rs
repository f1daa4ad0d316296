//! Case `crowd` of `bench proxy`: many players at once, clients that do not read, and a player that pauses.
//! Measured are memory and rejected requests.
//!
//! 1. It uses plain veth pairs: the number of clients is the load, not the links.
//! 2. Two hundred players read at [`PLAYBACK_RATE`]; none may stall or get wrong bytes.
//! 3. Six hundred clients send a request and do not read: their windows (the data that the proxy reads ahead) fill up to the memory limit,
//!    and further requests are answered with 503.
//! 4. One player reads, pauses, and reads on to the end; every byte must be correct.

use std::io;
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;

use super::playback::new_fixture;
use super::player::Playback;
use super::testbed::{OriginProtocol, ProxyProcess, ProxyResponse, ProxyTestbed};
use super::{ProxyReport, Threshold};
use crate::LabError;
use crate::http::is_timeout;
use crate::interrupt::is_interrupted;
use crate::mp4_fixture::Mp4Fixture;

const DEVICES: [&str; 2] = ["eth0", "eth1"];

pub(super) fn run(report: &mut ProxyReport, runs: u32, pause: Duration) -> Result<(), LabError> {
    let fixture = new_fixture(PLAYBACK_RATE, 400)?;
    for run in 0..runs {
        for case in [run_players, run_idle_clients] {
            case(report, &fixture, run)?;
            if is_interrupted() {
                return Ok(());
            }
        }
        run_paused_player(report, &fixture, run, pause)?;
    }
    Ok(())
}

/// Runs `count` threads in the client namespace, each with its number, and returns their results.
fn run_threads<T: Send>(
    testbed: &ProxyTestbed,
    count: u32,
    work: impl Fn(u32) -> io::Result<T> + Sync,
) -> io::Result<Vec<io::Result<T>>> {
    testbed.run_at_client(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let work = &work;
                    std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, move || work(number))
                })
                .collect::<Result<_, _>>()?;
            let thread_failed = || Err(io::Error::other("a player's thread panicked"));
            Ok(threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| thread_failed())).collect())
        })
    })
}

fn run_players(report: &mut ProxyReport, fixture: &Mp4Fixture, run: u32) -> Result<(), LabError> {
    const CASE: &str = "200 players, 2 Mbit/s each";
    let testbed = ProxyTestbed::start_veth(&DEVICES, &fixture.path())?;
    let proxy = ProxyProcess::start(&testbed, &DEVICES, &[])?;
    let (url, before) = (testbed.url(OriginProtocol::Http), proxy.peak_rss());
    let playback = Playback { proxy: proxy.address, url: &url, fixture };
    let results = run_threads(&testbed, PLAYERS, |number| play_at_rate(&playback, number))
        .map_err(LabError::at_step("players"))?;
    for reason in results.iter().filter_map(|result| result.as_ref().err()) {
        report.problem(CASE, run, reason);
    }
    let was_late: Vec<bool> = results.into_iter().flatten().collect();
    let row = report.row_mut(CASE, "that play", "players", Threshold::AtLeast { times: 1.0 });
    row.add(true, was_late.len() as f64, None);
    row.add(false, PLAYERS.into(), None);
    let row = report.row_mut(CASE, "that stood still", "none", Threshold::AtMost { times: 1.0, plus: 0.0 });
    row.add(true, was_late.iter().filter(|late| **late).count() as f64, None);
    row.add(false, 0.0, None);
    add_memory_row(report, CASE, proxy.peak_rss());
    let mb_per_player = (proxy.peak_rss() - before) as f64 / 1e6 / f64::from(PLAYERS);
    report.row_mut(CASE, "MB per player", "", Threshold::Stated).add(true, mb_per_player, None);
    proxy.stop()?;
    Ok(())
}

/// Reads a video at its rate for a while; returns whether the buffer ever ran empty.
fn play_at_rate(playback: &Playback<'_>, number: u32) -> io::Result<bool> {
    // Start the players one after the other, because real players do not all start at once.
    std::thread::sleep(Duration::from_millis(u64::from(number) * 5));
    let mut response =
        ProxyResponse::request(playback.proxy, playback.url, 0, &format!("player {number}"))?.expect_success()?;
    let (start, mut was_late) = (Instant::now(), false);
    let mut buffer = vec![0; 64 * 1024];
    while start.elapsed() < PLAY_TIME {
        let due_bytes = (PLAYBACK_RATE * start.elapsed()).bytes();
        // The player buffers one second.
        was_late |= response.offset + (PLAYBACK_RATE * Duration::from_secs(1)).bytes() < due_bytes;
        if response.offset > due_bytes + (PLAYBACK_RATE * Duration::from_secs(1)).bytes() {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        playback.read(&mut response, &mut buffer)?;
    }
    Ok(was_late)
}

fn run_idle_clients(report: &mut ProxyReport, fixture: &Mp4Fixture, run: u32) -> Result<(), LabError> {
    const CASE: &str = "600 that do not read";
    let testbed = ProxyTestbed::start_veth(&DEVICES, &fixture.path())?;
    let proxy = ProxyProcess::start(&testbed, &DEVICES, &[])?;
    let url = testbed.url(OriginProtocol::Http);
    let results = run_threads(&testbed, IDLE_CLIENTS, |number| {
        std::thread::sleep(Duration::from_millis(u64::from(number) * 5));
        let response = ProxyResponse::request(proxy.address, &url, 0, &format!("sleeper {number}"))?;
        // Wait while the windows fill up.
        std::thread::sleep(IDLE_TIME);
        Ok(response.status)
    });
    let results = results.map_err(LabError::at_step("players"))?;
    for reason in results.iter().filter_map(|answer| answer.as_ref().err()) {
        report.problem(CASE, run, reason);
    }
    let count =
        |statuses: &[u16]| results.iter().flatten().filter(|status| statuses.contains(status)).count() as f64;
    let row = report.row_mut(CASE, "served", "players", Threshold::AtLeast { times: 1.0 });
    row.add(true, count(&[200, 206]), None);
    row.add(false, PLAYERS.into(), None);
    let row = report.row_mut(CASE, "served or 503", "all", Threshold::AtLeast { times: 1.0 });
    row.add(true, count(&[200, 206, 503]), None);
    row.add(false, IDLE_CLIENTS.into(), None);
    add_memory_row(report, CASE, proxy.peak_rss());
    proxy.stop()?;
    Ok(())
}

fn run_paused_player(
    report: &mut ProxyReport,
    fixture: &Mp4Fixture,
    run: u32,
    pause: Duration,
) -> Result<(), LabError> {
    const CASE: &str = "a player that pauses";
    let testbed = ProxyTestbed::start_veth(&DEVICES, &fixture.path())?;
    let proxy = ProxyProcess::start(&testbed, &DEVICES, &[])?;
    let url = testbed.url(OriginProtocol::Http);
    let playback = Playback { proxy: proxy.address, url: &url, fixture };
    let result = testbed.run_at_client(|| {
        let mut response = playback.request(0)?;
        let (mut buffer, size) = (vec![0; 64 * 1024], fixture.video().size().bytes());
        while response.offset < size / 10 {
            playback.read(&mut response, &mut buffer)?;
        }
        std::thread::sleep(pause);
        let resumed = Instant::now();
        while response.offset < size {
            match playback.read(&mut response, &mut buffer) {
                Err(error) if !is_timeout(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(resumed.elapsed())
    });
    match result {
        Ok(time) => {
            let row = report.row_mut(CASE, "s for the other 90 %", "", Threshold::Stated);
            row.add(true, time.as_secs_f64(), None);
        }
        Err(reason) => report.problem(CASE, run, &reason),
    }
    let row = report.row_mut(
        CASE,
        "MB in the proxy",
        "a window, and itself",
        Threshold::AtMost { times: 1.0, plus: 0.0 },
    );
    row.add(true, proxy.peak_rss() as f64 / 1e6, None);
    row.add(false, 32.0 + PROXY_BASE_MB, None);
    proxy.stop()?;
    Ok(())
}

/// Adds the peak memory of the proxy, compared with its limit.
fn add_memory_row(report: &mut ProxyReport, case: &str, memory: u64) {
    let row = report.row_mut(
        case,
        "MB in the proxy",
        "the bound, and itself",
        Threshold::AtMost { times: 1.0, plus: 0.0 },
    );
    row.add(true, memory as f64 / 1e6, None);
    row.add(false, 512.0 + PROXY_BASE_MB, None);
}

/// Rate at which players read.
const PLAYBACK_RATE: Bitrate = Bitrate::from_mbps(2);
const PLAYERS: u32 = 200;
const IDLE_CLIENTS: u32 = 600;
/// Our choice: long enough for the proxy's windows to fill and for links to be measured.
const PLAY_TIME: Duration = Duration::from_secs(15);
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Memory of the program itself, its certificates and its accounting in MB, besides data that waits for players.
const PROXY_BASE_MB: f64 = 20.0;
