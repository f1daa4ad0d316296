//! Trouble in mid-download: how long until it is mended, and whether the download is whole in the end.
//!
//! | row | the trouble | mended |
//! |---|---|---|
//! | `carrier` | Wi-Fi's device goes down | payload comes over LTE |
//! | `silence` | Wi-Fi loses everything, at 150 ms of round trip; LTE was never used | payload comes over LTE |
//! | `silence of one with a standby` | the same; LTE is suspended | payload comes over LTE |
//! | `priority` | the first packet that suspends a link or takes it up again is lost | it is sent again |
//! | `killed` | the daemon is killed with `kill -9` and started again | the connection is among its own |
//! | `events` | the daemon is stopped while thousands of connections come and go | a new connection is among its own |

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use marline_sim::spec::{Change, Event, LinkSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::mptcp::daemon::Daemon;
use crate::mptcp::fetch::{self, Connection, Got, Speaks, Until};
use crate::mptcp::stage::Who;
use crate::runner::command::say;
use crate::server::Payload;
use crate::{Emulation, Lab, LabError};

/// One kind of trouble.
struct Fault {
    name: &'static str,
    links: [&'static str; 2],
    events: &'static [&'static str],
    /// When it comes.
    at: Duration,
    /// How long it may take to mend.
    floor: f64,
    what: &'static str,
    work: fn(&Lab, &mut Daemon, Duration) -> Result<Mended, String>,
}

/// When the trouble was mended.
enum Mended {
    /// After this time.
    After(Duration),
    /// When payload came over LTE after this time of the download.
    OverLte(Duration),
    /// When a request for another priority that was lost is sent again.
    Asked,
}

const FAULTS: [Fault; 6] = [
    Fault {
        name: "carrier",
        links: ["wifi,rate=16Mbit/s,up=5Mbit/s,rtt=40ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        at: Duration::from_secs(5),
        floor: 1.0,
        what: "s until LTE is in use",
        work: carrier,
    },
    Fault {
        name: "silence",
        links: ["wifi,rate=16Mbit/s,up=5Mbit/s,rtt=150ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=150ms"],
        events: &[],
        at: Duration::from_secs(6),
        floor: 3.0,
        what: "s until LTE is in use",
        work: silence,
    },
    Fault {
        name: "silence of one with a standby",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=150ms,queue=60kB", "lte,rate=8Mbit/s,up=5Mbit/s,rtt=150ms"],
        events: &["8s:wifi=rate=20Mbit/s"],
        at: Duration::from_secs(18),
        floor: 3.0,
        what: "s until LTE is in use",
        work: silence,
    },
    Fault {
        name: "priority",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB", "lte,rate=8Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &["10s:wifi=rate=20Mbit/s"],
        at: Duration::from_secs(1),
        // What was promised: half a second and two drains, of 100 ms of queue and a round trip.
        floor: 0.5 + 2.0 * 0.17,
        what: "s until it is asked again",
        work: priority,
    },
    Fault {
        name: "killed",
        links: ["wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        at: Duration::from_secs(8),
        floor: 1.0,
        what: "s until it is adopted",
        work: killed,
    },
    Fault {
        name: "events",
        links: ["wifi,rate=30Mbit/s,up=30Mbit/s,rtt=4ms", "lte,rate=12Mbit/s,up=5Mbit/s,rtt=70ms"],
        events: &[],
        at: Duration::from_secs(2),
        floor: 1.0,
        what: "s until a new connection is known",
        work: events,
    },
];

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    let payload = Payload::new(DataSize::from_bytes(SIZE)).map_err(LabError::at("a file in memory"))?;
    for fault in FAULTS.iter().filter(|fault| bench.wants("faults", fault.name)) {
        for run in 0..bench.args.runs {
            for who in [Who::MARLINE, Who::EMPTCP] {
                if is_stopped() {
                    return Ok(());
                }
                one(bench, sheet, fault, &payload, (who, run))?;
            }
        }
    }
    Ok(())
}

fn one(
    bench: &Bench<'_>,
    sheet: &mut Sheet,
    fault: &Fault,
    payload: &Payload,
    (who, run): (Who, u32),
) -> Result<(), LabError> {
    let case = format!("faults {}", fault.name);
    let links: Vec<LinkSpec> = fault.links.iter().map(|words| link(words)).collect();
    let events: Vec<Event> = fault.events.iter().map(|words| words.parse().expect("an event")).collect();
    let file = payload.path();
    let name_of = who.name(&links);
    let scene = bench.scene(&links, &events, &file, run);
    let Some(mut stage) = bench.stage(sheet, &case, &scene, (who, run)) else { return Ok(()) };
    let (lab, Some(daemon)) = stage.parts() else { return Ok(()) };
    let (mended, got) = in_the_middle(lab, daemon, fault, &file)?;
    let emulation = stage.emulation()?;
    let got = match got {
        Ok(got) => got,
        Err(why) => {
            sheet.problem(&case, &name_of, run, &format!("the download did not finish: {why}"));
            return Ok(());
        }
    };
    if got.sha256.as_deref() != Some(payload.sha256()) {
        sheet.problem(&case, &name_of, run, &"the bytes are others");
        return Ok(());
    }
    let time = mended.and_then(|mended| when(&mended, &emulation));
    let ours = Who::MARLINE.name(&links);
    match time {
        Ok(Some(time)) => {
            sheet.add(&case, fault.what, (&ours, &Floor::AtMost(fault.floor)), &name_of, time.as_secs_f64());
        }
        Ok(None) => say(&format!("{case}, {name_of}, run {run}: LTE was in use already")),
        Err(why) => sheet.problem(&case, &name_of, run, &why),
    }
    sheet.add(&case, "s in which nothing came", (&ours, &Floor::Stated), &name_of, got.pause.as_secs_f64());
    if let Some(why) = emulation.suspect() {
        sheet.suspect(&case, &why);
    }
    Ok(())
}

type Outcome = (Result<Mended, String>, Result<Got, String>);

/// A download, and the trouble in its middle.
fn in_the_middle(lab: &Lab, daemon: &mut Daemon, fault: &Fault, file: &Path) -> Result<Outcome, LabError> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let until = Until { limit: Duration::from_secs(180), stay: None, sum: true };
    lab.begin()?;
    let began = Instant::now();
    Ok(std::thread::scope(|scope| {
        let download = scope.spawn(|| lab.inside(|| fetch::download(Speaks::Mptcp, &name, until)));
        while began.elapsed() < fault.at && !is_stopped() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mended = (fault.work)(lab, daemon, began.elapsed());
        let got = download.join().unwrap_or_else(|_| Err(io::Error::other("the client broke down")));
        (mended, got.map_err(|error| error.to_string()))
    }))
}

/// How long it took; none: LTE was in use when Wi-Fi failed, so that nothing was to be mended.
fn when(mended: &Mended, emulation: &Emulation) -> Result<Option<Duration>, String> {
    let lte = emulation.links.get(1).ok_or("there is no LTE")?;
    match mended {
        Mended::After(time) => Ok(Some(*time)),
        Mended::OverLte(since) => {
            let payload = || lte.signs.iter().filter(|sign| sign.down > 0 && sign.payload > 0);
            if payload().any(|sign| sign.at <= *since && sign.at + JUST_NOW > *since) {
                return Ok(None);
            }
            let first = payload().find(|sign| sign.at > *since).ok_or("nothing came over LTE")?;
            Ok(Some(first.at - *since))
        }
        Mended::Asked => {
            let lost = emulation.links.iter().filter_map(|link| {
                let lost = link.priorities.iter().find(|asked| asked.lost)?;
                let mut later = link.priorities.iter().filter(|other| other.at > lost.at && !other.lost);
                Some((lost.at, later.find(|other| other.backup == lost.backup).map(|again| again.at - lost.at)))
            });
            let (_, again) = lost.min_by_key(|(at, _)| *at).ok_or("nobody asked for another priority")?;
            again.map(Some).ok_or_else(|| "it was not asked again".into())
        }
    }
}

/// A link over which nothing came for so long is not in use.
const JUST_NOW: Duration = Duration::from_secs(1);

fn carrier(lab: &Lab, _: &mut Daemon, now: Duration) -> Result<Mended, String> {
    lab.set_device("wifi", false).map(|()| Mended::OverLte(now)).map_err(|error| error.to_string())
}

fn silence(lab: &Lab, _: &mut Daemon, now: Duration) -> Result<Mended, String> {
    lab.change("wifi", Change::Down).map(|()| Mended::OverLte(now)).map_err(|error| error.to_string())
}

fn priority(lab: &Lab, _: &mut Daemon, _: Duration) -> Result<Mended, String> {
    let lost = ["wifi", "lte"].into_iter().try_for_each(|link| lab.lose_priorities(link, 1));
    lost.map(|()| Mended::Asked).map_err(|error| error.to_string())
}

fn killed(lab: &Lab, daemon: &mut Daemon, _: Duration) -> Result<Mended, String> {
    daemon.kill();
    std::thread::sleep(Duration::from_secs(1));
    let again = Instant::now();
    daemon.start_again(lab).map_err(|error| error.to_string())?;
    known(lab, daemon, again)
}

/// Stops the daemon, lets many connections come and go, begins one that stays, and lets it go on.
fn events(lab: &Lab, daemon: &mut Daemon, _: Duration) -> Result<Mended, String> {
    let pid = daemon.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or("the daemon is gone")?;
    let before = tokens(lab, daemon);
    kill_process(pid, Signal::STOP).map_err(|error| error.to_string())?;
    let open = || -> io::Result<Connection> {
        let mut connection = Connection::open(Speaks::Mptcp, Duration::from_secs(10))?;
        // It is told of once it has sent something.
        let until = Until { limit: Duration::from_secs(10), stay: None, sum: false };
        match connection.get("nothing-of-this-name", Instant::now(), until) {
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(connection),
            Err(error) => Err(error),
            Ok(_) => Ok(connection),
        }
    };
    let many = lab.inside(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..FLOOD.0).map(|_| scope.spawn(|| (0..FLOOD.1).try_for_each(|_| open().map(drop)))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
        })?;
        open()
    });
    let again = Instant::now();
    kill_process(pid, Signal::CONT).map_err(|error| error.to_string())?;
    let _stays = many.map_err(|error| format!("many connections: {error}"))?;
    let until = again + Duration::from_secs(20);
    while Instant::now() < until {
        // The download may have ended meanwhile: not how many there are decides, but who.
        if tokens(lab, daemon).iter().any(|token| !before.contains(token)) {
            return Ok(Mended::After(again.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the new connection is not known after 20 s".into())
}

/// The connections that the daemon knows, by their tokens.
fn tokens(lab: &Lab, daemon: &Daemon) -> Vec<String> {
    let status = daemon.status(lab).unwrap_or_default();
    let connections = status["connections"].as_array().cloned().unwrap_or_default();
    connections.iter().filter_map(|connection| connection["token"].as_str().map(str::to_owned)).collect()
}

/// Connections that the daemon steers.
fn count(lab: &Lab, daemon: &Daemon) -> u64 {
    daemon.status(lab).unwrap_or_default()["counts"]["managed"].as_u64().unwrap_or(0)
}

fn known(lab: &Lab, daemon: &Daemon, since: Instant) -> Result<Mended, String> {
    while since.elapsed() < Duration::from_secs(20) {
        if count(lab, daemon) > 0 {
            return Ok(Mended::After(since.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("it was not adopted within 20 s".into())
}

/// Enough for half a minute of both links.
const SIZE: u64 = 40_000_000;
/// Threads, and connections of each: more events than a socket's buffer holds.
const FLOOD: (u32, u32) = (20, 200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_written_as_the_lab_understands_it() {
        for fault in &FAULTS {
            assert!(fault.links.iter().all(|words| words.parse::<LinkSpec>().is_ok()), "{}", fault.name);
            assert!(fault.events.iter().all(|words| words.parse::<Event>().is_ok()), "{}", fault.name);
        }
    }
}
