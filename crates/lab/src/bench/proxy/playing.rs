//! The cases in which somebody watches: start, seek, a link that dies, a link that is slow.
//!
//! 1. Links as in other benches: Wi-Fi of 20 ms and a queue of 50 ms, LTE of 50 ms and 100 ms.
//! 2. A loaded round trip is a link's own, and its queue when it is full; of two links the shorter one counts.
//! 3. Not later means: within [`RESOLUTION`] in the median.

use std::io;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};

use marline_sim::spec::{Change, LinkSpec, QueueLimit};

use super::film::Film;
use super::player::{Seen, Showing};
use super::world::{Origin, Proxy, World};
use super::{Floor, Sheet, is_stopped};
use crate::LabError;

/// Starts a proxy over these links in a fresh lab, and does something with it.
fn show<T: Send>(
    links: &[&str],
    film: &Film,
    run: u32,
    origin: Origin,
    words: &[&str],
    work: impl FnOnce(&Showing<'_>, &World) -> io::Result<T> + Send,
) -> Result<(io::Result<T>, Option<String>), LabError> {
    let specs: Vec<LinkSpec> = links.iter().map(|link| parsed(link)).collect::<Result<_, _>>()?;
    let world = World::lab(&specs, &film.path(), u64::from(run) + 1)?;
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let proxy = Proxy::start(&world, &names, words)?;
    let url = world.url(origin);
    let showing = Showing { proxy: proxy.address, url: &url, film };
    let done = world.inside(|| work(&showing, &world));
    let suspect = world.suspect();
    proxy.end()?;
    Ok((done, suspect))
}

fn parsed(link: &str) -> Result<LinkSpec, LabError> {
    link.parse().map_err(|why| LabError::Spec(format!("{link}: {why}")))
}

fn film(rate: Bitrate, seconds: u64) -> Result<Film, LabError> {
    Film::new(rate, Duration::from_secs(seconds)).map_err(LabError::at("a film in memory"))
}

/// Ours first in even runs, the reference first in odd ones.
fn turns(run: u32) -> [bool; 2] {
    [run.is_multiple_of(2), !run.is_multiple_of(2)]
}

/// Two links against the better one alone.
pub(super) fn start(sheet: &mut Sheet, runs: u32) -> Result<(), LabError> {
    for (wifi, lte, better, rate) in STARTS {
        let case = format!("start {wifi} + {lte} Mbit/s, film of {rate}");
        let film = film(Bitrate::from_mbps(rate), 60)?;
        let links = [format!("wifi,rate={wifi}Mbit/s,rtt=20ms"), format!("lte,rate={lte}Mbit/s,rtt=50ms")];
        let both = [links[0].as_str(), links[1].as_str()];
        for run in 0..runs {
            for ours in turns(run) {
                let links = if ours { &both[..] } else { &both[better..=better] };
                // One link cannot carry most of these films: held back for that, it would be no match.
                let words = if ours { &[][..] } else { &["--start", "fast"][..] };
                let (seen, suspect) = show(links, &film, run, Origin::Http, words, |showing, _| {
                    showing.play(|player| player.first_frame().is_some())
                })?;
                match seen {
                    Ok(seen) => {
                        let floor = Floor::AtMost { times: 1.0, plus: RESOLUTION };
                        let row = sheet.row(&case, "first picture s", "better link", floor);
                        row.add(ours, seen.start, suspect);
                    }
                    Err(why) => sheet.problem(&case, run, &why),
                }
                if is_stopped() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Another offset while both links are busy.
pub(super) fn seek(sheet: &mut Sheet, runs: u32) -> Result<(), LabError> {
    for (rate, seconds) in [(3, 120), (20, 40)] {
        let film = film(Bitrate::from_mbps(rate * 8 / 5), seconds)?;
        let links = [format!("wifi,rate={rate}Mbit/s,rtt=20ms"), format!("lte,rate={rate}Mbit/s,rtt=50ms")];
        let links = [links[0].as_str(), links[1].as_str()];
        let loaded = loaded(&links)?;
        for origin in [Origin::Http, Origin::Https, Origin::H2] {
            let case = format!("seek {}, {rate} + {rate} Mbit/s", origin.name());
            for run in 0..runs {
                let (took, suspect) = show(&links, &film, run, origin, &[], |showing, _| seeks(showing))?;
                match took {
                    Ok(took) => {
                        let floor = Floor::AtMost { times: 1.0, plus: 50.0 };
                        let row = sheet.row(&case, "first byte ms", "loaded round trip", floor);
                        row.add(false, loaded * 1e3, None);
                        took.iter().for_each(|took| row.add(true, took.as_secs_f64() * 1e3, suspect.clone()));
                    }
                    Err(why) => sheet.problem(&case, run, &why),
                }
                if is_stopped() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// How long the first byte of each of three other offsets takes.
fn seeks(showing: &Showing<'_>) -> io::Result<Vec<Duration>> {
    let mut answer = showing.ask(0)?;
    let size = showing.film.bytes.len() as u64;
    let mut took = Vec::new();
    for share in [6, 2, 8] {
        showing.load(&mut answer, LOADS)?;
        let (next, first) = showing.seek(answer, size / 10 * share)?;
        took.push(first);
        answer = next;
    }
    Ok(took)
}

/// The shorter round trip of some links whose queues are full, in seconds.
fn loaded(links: &[&str]) -> Result<f64, LabError> {
    let mut least = f64::INFINITY;
    for link in links {
        let spec = parsed(link)?;
        let queue = match spec.queue_limit() {
            QueueLimit::Time(time) => time,
            QueueLimit::Size(_) => Duration::ZERO,
        };
        least = least.min((spec.rtt + queue).as_secs_f64());
    }
    Ok(least)
}

/// One of two links falls silent once 4 MB wait in the player.
pub(super) fn death(sheet: &mut Sheet, runs: u32) -> Result<(), LabError> {
    for (links, rate, seconds) in DEATHS {
        let film = film(rate, seconds)?;
        for dies in ["wifi", "lte"] {
            let case = format!("{dies} of two dies, film of {rate}");
            for run in 0..runs {
                let (seen, suspect) = show(&links, &film, run, Origin::Http, &[], |showing, world| {
                    let mut died = false;
                    showing.play(|player| {
                        if !died && player.buffered() >= BUFFERED {
                            died = true;
                            if let World::Lab(lab) = world {
                                // The emulator's end would be seen by its report.
                                let _ = lab.change(dies, Change::Down);
                            }
                        }
                        false
                    })
                })?;
                match seen {
                    Ok(seen) => {
                        let none = Floor::AtMost { times: 1.0, plus: 0.0 };
                        let row = sheet.row(&case, "stalls", "none", none);
                        row.add(true, seen.stalls.into(), suspect);
                        row.add(false, 0.0, None);
                        let waited = sheet.row(&case, "stood still s", "none", none);
                        waited.add(true, seen.waited - seen.start, None);
                        waited.add(false, 0.0, None);
                    }
                    Err(why) => sheet.problem(&case, run, &why),
                }
                if is_stopped() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// A good link with a slow one beside it, against the good one alone.
pub(super) fn slow(sheet: &mut Sheet, runs: u32) -> Result<(), LabError> {
    for (rate, share) in [(4, 80), (20, 80)] {
        let film = film(Bitrate::from_bits_per_sec(rate * 10_000 * share), if rate < 10 { 60 } else { 40 })?;
        let good = format!("wifi,rate={rate}Mbit/s,rtt=20ms");
        let both = [good.as_str(), "lte,rate=300kbit/s,rtt=400ms"];
        let case = format!("slow link beside {rate} Mbit/s, film at {share} %");
        for run in 0..runs {
            for ours in turns(run) {
                let links = if ours { &both[..] } else { &both[..1] };
                let (seen, suspect) = show(links, &film, run, Origin::Http, &[], |showing, _| {
                    let seen = showing.play(|_| false)?;
                    let mut answer = showing.ask(0)?;
                    showing.load(&mut answer, LOADS)?;
                    let (_, took) = showing.seek(answer, film.bytes.len() as u64 / 2)?;
                    Ok((seen, took))
                })?;
                match seen {
                    Ok((seen, took)) => compare(sheet, &case, ours, seen, took, suspect),
                    Err(why) => sheet.problem(&case, run, &why),
                }
                if is_stopped() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn compare(sheet: &mut Sheet, case: &str, ours: bool, seen: Seen, took: Duration, suspect: Option<String>) {
    let later = |plus| Floor::AtMost { times: 1.0, plus };
    let of = "without it";
    sheet.row(case, "first picture s", of, later(RESOLUTION)).add(ours, seen.start, suspect);
    sheet.row(case, "stalls", of, later(0.0)).add(ours, seen.stalls.into(), None);
    sheet.row(case, "waited s", of, later(RESOLUTION)).add(ours, seen.waited, None);
    sheet.row(case, "seek ms", of, later(RESOLUTION * 1e3)).add(ours, took.as_secs_f64() * 1e3, None);
}

/// Rates of Wi-Fi and LTE, which of them is the better one, and the film's rate, in Mbit/s.
const STARTS: [(u64, u64, usize, u64); 4] = [(3, 3, 0, 5), (20, 20, 0, 32), (8, 2, 0, 8), (2, 8, 1, 8)];
/// Links of which each carries the film, the film's rate, and how many seconds it lasts.
const DEATHS: [([&str; 2], Bitrate, u64); 2] = [
    (["wifi,rate=3Mbit/s,rtt=20ms", "lte,rate=3Mbit/s,rtt=50ms"], Bitrate::from_bits_per_sec(2_400_000), 40),
    (["wifi,rate=20Mbit/s,rtt=20ms", "lte,rate=20Mbit/s,rtt=50ms"], Bitrate::from_mbps(16), 20),
];
const BUFFERED: DataSize = DataSize::from_bytes(4_000_000);
/// Until the links' queues are full.
const LOADS: Duration = Duration::from_secs(4);
/// What the emulation, two busy cores and the emulated player's own turns blur, in seconds.
const RESOLUTION: f64 = 0.01;
