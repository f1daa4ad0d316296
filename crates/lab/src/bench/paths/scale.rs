//! Case `scale` of `bench paths`: CPU and memory of the daemon with many connections, a hundred of them active.
//!
//! 1. Each connection is a real kernel connection to nginx, which keeps it open. All but a hundred have received
//!    one small response and are idle. The hundred read a long response slowly, at [`RATE_PER_CONNECTION`].
//! 2. CPU is measured during [`MEASURE_TIME`], which begins [`SETTLE_TIME`] after the readers were started; memory at its end.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::report::{ReportTable, Threshold};
use super::{PathsBench, parse_link};
use crate::interrupt::is_interrupted;
use crate::mptcp::http_client::{Connection, SocketProtocol, StopCondition};
use crate::mptcp::testbed::{PathVariant, Testbed};
use crate::runner::command::notice;
use crate::runner::sampler;
use crate::server::Payload;
use crate::{Lab, LabError};

pub(super) fn run(bench: &PathsBench<'_>, report: &mut ReportTable) -> Result<(), LabError> {
    let small = Payload::new(DataSize::from_kib(1)).map_err(LabError::at_step("a file in memory"))?;
    let large = small.directory().join("large");
    std::fs::File::create(&large)
        .and_then(|file| file.set_len(LARGE_FILE_BYTES))
        .map_err(LabError::at_step("a file in memory"))?;
    let name = small.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let links = [
        parse_link("wifi,rate=100Mbit/s,up=50Mbit/s,rtt=20ms,queue=1MB"),
        parse_link("lte,rate=50Mbit/s,up=50Mbit/s,rtt=40ms,queue=1MB"),
    ];
    if let Some(limit) = raise_descriptor_limit() {
        notice(&format!("scale: at most {limit} descriptors"));
    }
    for count in &bench.args.connections {
        let case = format!("scale {count}");
        let (cpu, memory) = if *count <= 1000 { (3.0, 15.0) } else { (10.0, 60.0) };
        for run in 0..bench.args.runs {
            for variant in [PathVariant::MARLINE, PathVariant::EMPTCP] {
                if is_interrupted() {
                    return Ok(());
                }
                let config = bench.testbed_config(&links, &[], small.directory(), run);
                let Some(testbed) = bench.start_testbed(report, &case, &config, (variant, run)) else { continue };
                testbed.lab().start_links()?;
                let (marline_name, variant_name) = (PathVariant::MARLINE.name(&links), variant.name(&links));
                let mut add = |metric, threshold, figure| {
                    report.add(&case, metric, (&marline_name, &threshold), &variant_name, figure)
                };
                match measure(&testbed, *count, &name) {
                    Ok(usage) => {
                        add("% of a core", Threshold::AtMost(cpu), usage.cpu_share * 100.0);
                        add("MB", Threshold::AtMost(memory), usage.rss_bytes / 1e6);
                        add("connections that it knows", Threshold::Stated, usage.managed);
                        add("Mbit/s carried meanwhile", Threshold::Stated, usage.carried_mbps);
                    }
                    Err(reason) => report.problem(&case, &variant_name, run, &reason),
                }
            }
        }
    }
    Ok(())
}

/// Raises the limit of open files to the permitted maximum; returns that maximum if it may be too small.
fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.maximum.filter(|max| *max < 12_000)
}

/// Resources that the daemon used.
struct DaemonUsage {
    cpu_share: f64,
    rss_bytes: f64,
    managed: f64,
    carried_mbps: f64,
}

fn measure(testbed: &Testbed, count: u32, name: &str) -> Result<DaemonUsage, String> {
    let pid = testbed.pid().ok_or("the daemon is gone")?;
    let lab = testbed.lab();
    let idle = open_connections(lab, count.saturating_sub(ACTIVE_CONNECTIONS), name)
        .map_err(|error| format!("connections: {error}"))?;
    let is_over = AtomicBool::new(false);
    let usage = lab.run_at_client(|| {
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            for _ in 0..ACTIVE_CONNECTIONS {
                let read_slowly = || {
                    Connection::open(SocketProtocol::Mptcp, CLIENT_TIMEOUT)?.read_slowly(
                        "large",
                        RATE_PER_CONNECTION,
                        &is_over,
                    )
                };
                readers.push(std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, read_slowly)?);
            }
            std::thread::sleep(SETTLE_TIME);
            let daemon_gone = || io::Error::other("the daemon is gone");
            let (cpu_before, _) = sampler::usage_of(pid).ok_or_else(daemon_gone)?;
            let start = Instant::now();
            while start.elapsed() < MEASURE_TIME && !is_interrupted() {
                std::thread::sleep(Duration::from_millis(100));
            }
            let (cpu_after, memory) = sampler::usage_of(pid).ok_or_else(daemon_gone)?;
            let (cpu, memory) = ((cpu_after - cpu_before) / start.elapsed().as_secs_f64(), memory as f64);
            let managed = testbed.daemon_status().and_then(|status| status["counts"]["managed"].as_u64());
            is_over.store(true, Ordering::Relaxed);
            let mut bytes = 0;
            for reader in readers {
                bytes += reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader's thread panicked")))?;
            }
            let carried = bytes as f64 * 8.0 / 1e6 / (SETTLE_TIME + MEASURE_TIME).as_secs_f64();
            Ok(DaemonUsage {
                cpu_share: cpu,
                rss_bytes: memory,
                managed: managed.unwrap_or(0) as f64,
                carried_mbps: carried,
            })
        })
    });
    drop(idle);
    usage.map_err(|error| error.to_string())
}

/// Opens `count` connections, each of which receives one small response.
fn open_connections(lab: &Lab, count: u32, name: &str) -> io::Result<Vec<Connection>> {
    let connections = Mutex::new(Vec::with_capacity(count as usize));
    lab.run_at_client(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..OPENER_THREADS)
                .map(|thread_number| {
                    let connections = &connections;
                    scope.spawn(move || {
                        for _ in (thread_number..count).step_by(OPENER_THREADS as usize) {
                            let mut connection = Connection::open(SocketProtocol::Mptcp, CLIENT_TIMEOUT)?;
                            let stop =
                                StopCondition { limit: CLIENT_TIMEOUT, stop_after: None, wants_sha256: false };
                            connection.get(name, Instant::now(), stop)?;
                            connections
                                .lock()
                                .map_err(|_| io::Error::other("another thread panicked"))?
                                .push(connection);
                        }
                        Ok(())
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
        })
    })?;
    connections.into_inner().map_err(|_| io::Error::other("a thread panicked"))
}

const ACTIVE_CONNECTIONS: u32 = 100;
/// Rate at which each of them reads.
const RATE_PER_CONNECTION: Bitrate = Bitrate::from_bits_per_sec(200_000);
const LARGE_FILE_BYTES: u64 = 1_000_000_000;
const OPENER_THREADS: u32 = 32;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the daemon to add the subflows of all readers.
const SETTLE_TIME: Duration = Duration::from_secs(6);
const MEASURE_TIME: Duration = Duration::from_secs(20);
