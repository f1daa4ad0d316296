//! Case `faults` of `bench paths`: a fault during a download. Measured are the time to recovery and whether the
//! download is complete.
//!
//! | row | fault | recovered when |
//! |---|---|---|
//! | `carrier` | the Wi-Fi device goes down | payload arrives over LTE |
//! | `silence` | Wi-Fi drops all packets, at an RTT of 150 ms; no figure if LTE was in use before | payload arrives over LTE |
//! | `silence of one with a standby` | the same, with LTE suspended | payload arrives over LTE |
//! | `priority` | the first packet that suspends or resumes a link (MP_PRIO) is lost | it is sent again |
//! | `killed` | the daemon is killed with `kill -9` and started again | it manages the connection |
//! | `events` | the daemon is stopped while thousands of connections come and go | it manages a new connection |

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use marline_sim::spec::{LinkEvent, LinkEventKind, LinkSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::super::report::{ReportTable, Threshold};
use super::{PathsBench, parse_link};
use crate::interrupt::is_interrupted;
use crate::mptcp::daemon::PathsDaemon;
use crate::mptcp::http_client::{self, Connection, DownloadResult, SocketProtocol, StopCondition};
use crate::mptcp::testbed::PathVariant;
use crate::runner::command::notice;
use crate::server::Payload;
use crate::{EmulationReport, Lab, LabError};

/// One kind of fault.
struct FaultCase {
    name: &'static str,
    links: [&'static str; 2],
    events: &'static [&'static str],
    /// When the fault occurs, since the start of the download.
    starts_at: Duration,
    /// Largest permitted time to recovery, in seconds.
    threshold_s: f64,
    metric: &'static str,
    inject: fn(&Lab, &mut PathsDaemon, Duration) -> Result<Recovery, String>,
}

/// How the time of recovery is determined.
enum Recovery {
    /// It is known: recovery took this time.
    After(Duration),
    /// Recovery is the first payload over LTE after this time of the download.
    OverLte(Duration),
    /// Recovery is the repetition of a lost MP_PRIO request.
    PrioResent,
}

const FAULTS: [FaultCase; 6] = [
    FaultCase {
        name: "carrier",
        links: ["wifi,rate=16Mbit/s,up=5Mbit/s,rtt=40ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        starts_at: Duration::from_secs(5),
        threshold_s: 1.0,
        metric: "s until LTE is in use",
        inject: lose_carrier,
    },
    FaultCase {
        name: "silence",
        links: ["wifi,rate=16Mbit/s,up=5Mbit/s,rtt=150ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=150ms"],
        events: &[],
        starts_at: Duration::from_secs(6),
        threshold_s: 3.0,
        metric: "s until LTE is in use",
        inject: drop_silently,
    },
    FaultCase {
        name: "silence of one with a standby",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=150ms,queue=60kB", "lte,rate=8Mbit/s,up=5Mbit/s,rtt=150ms"],
        events: &["8s:wifi=rate=20Mbit/s"],
        starts_at: Duration::from_secs(18),
        threshold_s: 3.0,
        metric: "s until LTE is in use",
        inject: drop_silently,
    },
    FaultCase {
        name: "priority",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB", "lte,rate=8Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &["10s:wifi=rate=20Mbit/s"],
        starts_at: Duration::from_secs(1),
        // The promised retransmission time: half a second, and twice a drain time of 100 ms queue plus one RTT.
        threshold_s: 0.5 + 2.0 * 0.17,
        metric: "s until it is asked again",
        inject: lose_mp_prio,
    },
    FaultCase {
        name: "killed",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        starts_at: Duration::from_secs(8),
        threshold_s: 1.0,
        metric: "s until it is adopted",
        inject: kill_daemon,
    },
    FaultCase {
        name: "events",
        links: ["wifi,rate=30Mbit/s,up=30Mbit/s,rtt=4ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        starts_at: Duration::from_secs(2),
        threshold_s: 1.0,
        metric: "s until a new connection is known",
        inject: overflow_events,
    },
];

pub(super) fn run(bench: &PathsBench<'_>, report: &mut ReportTable) -> Result<(), LabError> {
    let payload =
        Payload::new(DataSize::from_bytes(DOWNLOAD_BYTES)).map_err(LabError::at_step("a file in memory"))?;
    for fault in FAULTS.iter().filter(|fault| bench.is_selected("faults", fault.name)) {
        for run in 0..bench.args.runs {
            for variant in [PathVariant::MARLINE, PathVariant::EMPTCP] {
                if is_interrupted() {
                    return Ok(());
                }
                run_fault(bench, report, fault, &payload, (variant, run))?;
            }
        }
    }
    Ok(())
}

/// Runs one fault with one variant and adds its figures.
fn run_fault(
    bench: &PathsBench<'_>,
    report: &mut ReportTable,
    fault: &FaultCase,
    payload: &Payload,
    (variant, run): (PathVariant, u32),
) -> Result<(), LabError> {
    let case = format!("faults {}", fault.name);
    let links: Vec<LinkSpec> = fault.links.iter().map(|spec| parse_link(spec)).collect();
    let events: Vec<LinkEvent> = fault.events.iter().map(|text| text.parse().expect("an event")).collect();
    let file = payload.path();
    let variant_name = variant.name(&links);
    let config = bench.testbed_config(&links, &events, &file, run);
    let Some(mut testbed) = bench.start_testbed(report, &case, &config, (variant, run)) else { return Ok(()) };
    let (lab, Some(daemon)) = testbed.lab_and_daemon() else { return Ok(()) };
    let (recovery, download) = inject_during_download(lab, daemon, fault, &file)?;
    let emulation = testbed.emulation_report()?;
    let got = match download {
        Ok(finished) => finished,
        Err(reason) => {
            report.problem(&case, &variant_name, run, &format!("the download did not finish: {reason}"));
            // A download that ends with an error counts as a failure of the whole run.
            return Ok(());
        }
    };
    if got.sha256.as_deref() != Some(payload.sha256()) {
        report.problem(&case, &variant_name, run, &"wrong bytes");
        return Ok(());
    }
    let recovery_time = recovery.and_then(|mended| recovery_time(&mended, &emulation));
    let marline_name = PathVariant::MARLINE.name(&links);
    match recovery_time {
        Ok(Some(time)) => {
            report.add(
                &case,
                fault.metric,
                (&marline_name, &Threshold::AtMost(fault.threshold_s)),
                &variant_name,
                time.as_secs_f64(),
            );
        }
        Ok(None) => notice(&format!("{case}, {variant_name}, run {run}: LTE was in use already")),
        Err(reason) => report.problem(&case, &variant_name, run, &reason),
    }
    report.add(
        &case,
        "s in which nothing came",
        (&marline_name, &Threshold::Stated),
        &variant_name,
        got.longest_pause.as_secs_f64(),
    );
    if let Some(reason) = emulation.unreliable_reason() {
        report.mark_unreliable(&case, &reason);
    }
    Ok(())
}

type FaultResult = (Result<Recovery, String>, Result<DownloadResult, String>);

/// Runs a download and injects the fault during it.
fn inject_during_download(
    lab: &Lab,
    daemon: &mut PathsDaemon,
    fault: &FaultCase,
    file: &Path,
) -> Result<FaultResult, LabError> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stop = StopCondition { limit: Duration::from_secs(180), stop_after: None, wants_sha256: true };
    lab.start_links()?;
    let start = Instant::now();
    Ok(std::thread::scope(|scope| {
        let download =
            scope.spawn(|| lab.run_at_client(|| http_client::download(SocketProtocol::Mptcp, &name, stop)));
        while start.elapsed() < fault.starts_at && !is_interrupted() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mended = (fault.inject)(lab, daemon, start.elapsed());
        let result = download.join().unwrap_or_else(|_| Err(io::Error::other("the client's thread panicked")));
        (mended, result.map_err(|error| error.to_string()))
    }))
}

/// Time to recovery; `None` if LTE was already in use when Wi-Fi failed, so that nothing had to recover.
fn recovery_time(recovery: &Recovery, emulation: &EmulationReport) -> Result<Option<Duration>, String> {
    let lte = emulation.links.get(1).ok_or("there is no LTE")?;
    match recovery {
        Recovery::After(time) => Ok(Some(*time)),
        Recovery::OverLte(failed_at) => {
            let payload_samples =
                || lte.traffic_samples.iter().filter(|sample| sample.down > 0 && sample.payload > 0);
            if payload_samples().any(|traffic| traffic.at <= *failed_at && traffic.at + IN_USE_WINDOW > *failed_at)
            {
                return Ok(None);
            }
            // The first payload sample after the failure marks the switch to LTE.
            let first_sample =
                payload_samples().find(|traffic| traffic.at > *failed_at).ok_or("no payload arrived over LTE")?;
            Ok(Some(first_sample.at - *failed_at))
        }
        Recovery::PrioResent => {
            // The time from a dropped request to the next one with the same content, for the link that lost one first.
            let losses = emulation.links.iter().filter_map(|link| {
                let lost_request = link.mp_prio_requests.iter().find(|request| request.is_dropped)?;
                let mut later_requests =
                    link.mp_prio_requests.iter().filter(|other| other.at > lost_request.at && !other.is_dropped);
                Some((
                    lost_request.at,
                    later_requests
                        .find(|other| other.backup == lost_request.backup)
                        .map(|next_request| next_request.at - lost_request.at),
                ))
            });
            let (_, delay) = losses.min_by_key(|(at, _)| *at).ok_or("no MP_PRIO was sent")?;
            delay.map(Some).ok_or_else(|| "MP_PRIO was not sent again".into())
        }
    }
}

/// A link without payload for this long is not in use.
const IN_USE_WINDOW: Duration = Duration::from_secs(1);

fn lose_carrier(lab: &Lab, _: &mut PathsDaemon, now: Duration) -> Result<Recovery, String> {
    lab.set_device_up("wifi", false).map(|()| Recovery::OverLte(now)).map_err(|error| error.to_string())
}

fn drop_silently(lab: &Lab, _: &mut PathsDaemon, now: Duration) -> Result<Recovery, String> {
    lab.change_link("wifi", LinkEventKind::Down).map(|()| Recovery::OverLte(now)).map_err(|error| error.to_string())
}

fn lose_mp_prio(lab: &Lab, _: &mut PathsDaemon, _: Duration) -> Result<Recovery, String> {
    let result = ["wifi", "lte"].into_iter().try_for_each(|link| lab.lose_mp_prio(link, 1));
    result.map(|()| Recovery::PrioResent).map_err(|error| error.to_string())
}

fn kill_daemon(lab: &Lab, daemon: &mut PathsDaemon, _: Duration) -> Result<Recovery, String> {
    daemon.kill();
    std::thread::sleep(Duration::from_secs(1));
    let restarted_at = Instant::now();
    daemon.restart(lab).map_err(|error| error.to_string())?;
    wait_until_managed(lab, daemon, restarted_at)
}

/// Stops the daemon (SIGSTOP), opens and closes many connections so that netlink events are lost, opens one that
/// stays, and continues the daemon.
fn overflow_events(lab: &Lab, daemon: &mut PathsDaemon, _: Duration) -> Result<Recovery, String> {
    let pid = daemon.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or("the daemon is gone")?;
    let tokens_before = managed_tokens(lab, daemon);
    kill_process(pid, Signal::STOP).map_err(|error| error.to_string())?;
    let open_connection = || -> io::Result<Connection> {
        let mut connection = Connection::open(SocketProtocol::Mptcp, Duration::from_secs(10))?;
        // The kernel announces an MPTCP connection only after it has sent data.
        let stop = StopCondition { limit: Duration::from_secs(10), stop_after: None, wants_sha256: false };
        match connection.get("nothing-of-this-name", Instant::now(), stop) {
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(connection),
            Err(error) => Err(error),
            Ok(_) => Ok(connection),
        }
    };
    let connection = lab.run_at_client(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..FLOOD_THREADS_AND_CONNECTIONS.0)
                .map(|_| {
                    scope.spawn(|| {
                        (0..FLOOD_THREADS_AND_CONNECTIONS.1).try_for_each(|_| open_connection().map(drop))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })?;
        open_connection()
    });
    let resumed_at = Instant::now();
    kill_process(pid, Signal::CONT).map_err(|error| error.to_string())?;
    let _connection = connection.map_err(|error| format!("many connections: {error}"))?;
    let deadline = resumed_at + Duration::from_secs(20);
    while Instant::now() < deadline {
        // The download may have ended meanwhile, so their number is not conclusive: search for a new token.
        if managed_tokens(lab, daemon).iter().any(|token| !tokens_before.contains(token)) {
            return Ok(Recovery::After(resumed_at.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the daemon does not manage the new connection after 20 s".into())
}

/// Tokens of the connections that the daemon manages.
fn managed_tokens(lab: &Lab, daemon: &PathsDaemon) -> Vec<String> {
    let status = daemon.status(lab).unwrap_or_default();
    let connections = status["connections"].as_array().cloned().unwrap_or_default();
    connections.iter().filter_map(|connection| connection["token"].as_str().map(str::to_owned)).collect()
}

/// Number of connections that the daemon manages.
fn managed_count(lab: &Lab, daemon: &PathsDaemon) -> u64 {
    daemon.status(lab).unwrap_or_default()["counts"]["managed"].as_u64().unwrap_or(0)
}

fn wait_until_managed(lab: &Lab, daemon: &PathsDaemon, since: Instant) -> Result<Recovery, String> {
    while since.elapsed() < Duration::from_secs(20) {
        if managed_count(lab, daemon) > 0 {
            return Ok(Recovery::After(since.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the daemon did not adopt the connection within 20 s".into())
}

/// Enough for half a minute over both links.
const DOWNLOAD_BYTES: u64 = 40_000_000;
/// Number of threads, and of connections per thread: more events than the netlink socket's buffer holds.
const FLOOD_THREADS_AND_CONNECTIONS: (u32, u32) = (20, 200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_and_events_of_every_fault_parse() {
        for fault in &FAULTS {
            assert!(fault.links.iter().all(|words| words.parse::<LinkSpec>().is_ok()), "{}", fault.name);
            assert!(fault.events.iter().all(|words| words.parse::<LinkEvent>().is_ok()), "{}", fault.name);
        }
    }
}
