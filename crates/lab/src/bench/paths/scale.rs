//! What the daemon itself needs: many connections, a hundred of them active.
//!
//! In: how many. Out: its processor time as a share of a core, and its memory.
//!
//! 1. Each connection is a real one of the kernel's, to nginx, which keeps it. All but a hundred have had one small answer
//!    and are idle. The hundred read a long answer slowly, at [`EACH`].
//! 2. Memory is counted when all are there; the processor over [`WATCHED`] from then on.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::{Bitrate, DataSize};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::mptcp::fetch::{Connection, Speaks, Until};
use crate::mptcp::stage::{Stage, Who};
use crate::runner::command::say;
use crate::runner::sampler;
use crate::server::Payload;
use crate::{Lab, LabError};

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    let small = Payload::new(DataSize::from_kib(1)).map_err(LabError::at("a file in memory"))?;
    let large = small.directory().join("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(LARGE)).map_err(LabError::at("a file in memory"))?;
    let name = small.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let links = [
        link("wifi,rate=100Mbit/s,up=50Mbit/s,rtt=20ms,queue=1MB"),
        link("lte,rate=50Mbit/s,up=50Mbit/s,rtt=40ms,queue=1MB"),
    ];
    if let Some(limit) = as_many_descriptors_as_may_be() {
        say(&format!("scale: at most {limit} descriptors"));
    }
    for count in &bench.args.connections {
        let case = format!("scale {count}");
        let (cpu, memory) = if *count <= 1000 { (3.0, 15.0) } else { (10.0, 60.0) };
        for run in 0..bench.args.runs {
            for who in [Who::MARLINE, Who::EMPTCP] {
                if is_stopped() {
                    return Ok(());
                }
                let scene = bench.scene(&links, &[], small.directory(), run);
                let Some(stage) = bench.stage(sheet, &case, &scene, (who, run)) else { continue };
                stage.lab().begin()?;
                let (ours, name_of) = (Who::MARLINE.name(&links), who.name(&links));
                let mut add = |what, floor, figure| sheet.add(&case, what, (&ours, &floor), &name_of, figure);
                match crowd(&stage, *count, &name) {
                    Ok(seen) => {
                        add("% of a core", Floor::AtMost(cpu), seen.cpu * 100.0);
                        add("MB", Floor::AtMost(memory), seen.memory / 1e6);
                        add("connections that it knows", Floor::Stated, seen.known);
                        add("Mbit/s carried meanwhile", Floor::Stated, seen.carried);
                    }
                    Err(why) => sheet.problem(&case, &name_of, run, &why),
                }
            }
        }
    }
    Ok(())
}

/// Raises the bound of open files to what is permitted; says what that is where it is little.
fn as_many_descriptors_as_may_be() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    limit.maximum.filter(|most| *most < 12_000)
}

/// What was seen of the daemon.
struct Seen {
    cpu: f64,
    memory: f64,
    known: f64,
    carried: f64,
}

fn crowd(stage: &Stage, count: u32, name: &str) -> Result<Seen, String> {
    let pid = stage.pid().ok_or("the daemon is gone")?;
    let lab = stage.lab();
    let idle = open(lab, count.saturating_sub(ACTIVE), name).map_err(|error| format!("connections: {error}"))?;
    let over = AtomicBool::new(false);
    let seen = lab.inside(|| {
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            for _ in 0..ACTIVE {
                let read = || Connection::open(Speaks::Mptcp, PATIENCE)?.trickle("large", EACH, &over);
                readers.push(std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, read)?);
            }
            std::thread::sleep(SETTLES);
            let gone = || io::Error::other("the daemon is gone");
            let (before, _) = sampler::used(pid).ok_or_else(gone)?;
            let began = Instant::now();
            while began.elapsed() < WATCHED && !is_stopped() {
                std::thread::sleep(Duration::from_millis(100));
            }
            let (after, memory) = sampler::used(pid).ok_or_else(gone)?;
            let (cpu, memory) = ((after - before) / began.elapsed().as_secs_f64(), memory as f64);
            let known = stage.said().and_then(|said| said["counts"]["managed"].as_u64());
            over.store(true, Ordering::Relaxed);
            let mut bytes = 0;
            for reader in readers {
                bytes += reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader broke down")))?;
            }
            let carried = bytes as f64 * 8.0 / 1e6 / (SETTLES + WATCHED).as_secs_f64();
            Ok(Seen { cpu, memory, known: known.unwrap_or(0) as f64, carried })
        })
    });
    drop(idle);
    seen.map_err(|error| error.to_string())
}

/// So many connections that have had one answer.
fn open(lab: &Lab, count: u32, name: &str) -> io::Result<Vec<Connection>> {
    let all = Mutex::new(Vec::with_capacity(count as usize));
    lab.inside(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..OPENERS)
                .map(|at| {
                    let all = &all;
                    scope.spawn(move || {
                        for _ in (at..count).step_by(OPENERS as usize) {
                            let mut connection = Connection::open(Speaks::Mptcp, PATIENCE)?;
                            let until = Until { limit: PATIENCE, stay: None, sum: false };
                            connection.get(name, Instant::now(), until)?;
                            all.lock().map_err(|_| io::Error::other("another one broke down"))?.push(connection);
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread broke down")))
            })
        })
    })?;
    all.into_inner().map_err(|_| io::Error::other("a thread broke down"))
}

/// Active connections.
const ACTIVE: u32 = 100;
/// What each of them reads.
const EACH: Bitrate = Bitrate::from_bits_per_sec(200_000);
const LARGE: u64 = 1_000_000_000;
const OPENERS: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(30);
/// Until all readers have joined whatever they join.
const SETTLES: Duration = Duration::from_secs(6);
const WATCHED: Duration = Duration::from_secs(20);
