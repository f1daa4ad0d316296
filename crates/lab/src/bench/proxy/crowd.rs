//! Many players at once, players that do not read, one that pauses: memory, and who is turned away.
//!
//! 1. On plain wires: the crowd is the load, not the links.
//! 2. Two hundred players read as films are read, at [`RATE`]; nobody may stand still or get other bytes.
//! 3. Six hundred ask and read nothing: windows fill until the bound, and whoever finds no room is told so (503).
//! 4. One reads, pauses, and reads on to the end: every byte as it is.

use std::io;
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;

use super::film::Film;
use super::player::{Showing, is_early};
use super::world::{Answer, Origin, Proxy, World};
use super::{Floor, Sheet, is_stopped};
use crate::LabError;

const WIRES: [&str; 2] = ["eth0", "eth1"];

pub(super) fn run(sheet: &mut Sheet, runs: u32, pause: Duration) -> Result<(), LabError> {
    let film = Film::new(RATE, Duration::from_secs(400)).map_err(LabError::at("a film in memory"))?;
    for run in 0..runs {
        for work in [players, sleepers] {
            work(sheet, &film, run)?;
            if is_stopped() {
                return Ok(());
            }
        }
        paused(sheet, &film, run, pause)?;
    }
    Ok(())
}

/// So many threads at the client's end, each with its number; their results.
fn crowd<T: Send>(
    world: &World,
    count: u32,
    work: impl Fn(u32) -> io::Result<T> + Sync,
) -> io::Result<Vec<io::Result<T>>> {
    world.inside(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let work = &work;
                    std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, move || work(number))
                })
                .collect::<Result<_, _>>()?;
            let broken = || Err(io::Error::other("a player broke down"));
            Ok(threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken())).collect())
        })
    })
}

fn players(sheet: &mut Sheet, film: &Film, run: u32) -> Result<(), LabError> {
    const CASE: &str = "200 players, 2 Mbit/s each";
    let world = World::wires(&WIRES, &film.path())?;
    let proxy = Proxy::start(&world, &WIRES, &[])?;
    let (url, before) = (world.url(Origin::Http), proxy.memory());
    let showing = Showing { proxy: proxy.address, url: &url, film };
    let late = crowd(&world, PLAYERS, |number| watch(&showing, number)).map_err(LabError::at("players"))?;
    for why in late.iter().filter_map(|late| late.as_ref().err()) {
        sheet.problem(CASE, run, why);
    }
    let late: Vec<bool> = late.into_iter().flatten().collect();
    let row = sheet.row(CASE, "that play", "players", Floor::AtLeast { times: 1.0 });
    row.add(true, late.len() as f64, None);
    row.add(false, PLAYERS.into(), None);
    let row = sheet.row(CASE, "that stood still", "none", Floor::AtMost { times: 1.0, plus: 0.0 });
    row.add(true, late.iter().filter(|late| **late).count() as f64, None);
    row.add(false, 0.0, None);
    bounded(sheet, CASE, proxy.memory());
    let each = (proxy.memory() - before) as f64 / 1e6 / f64::from(PLAYERS);
    sheet.row(CASE, "MB per player", "", Floor::Stated).add(true, each, None);
    proxy.end()?;
    Ok(())
}

/// Reads a film at its rate for a while; whether it ever had less than it should.
fn watch(showing: &Showing<'_>, number: u32) -> io::Result<bool> {
    // Not all of them at once, which no player does.
    std::thread::sleep(Duration::from_millis(u64::from(number) * 5));
    let mut answer = Answer::ask(showing.proxy, showing.url, 0, &format!("player {number}"))?.good()?;
    let (began, mut late) = (Instant::now(), false);
    let mut buffer = vec![0; 64 * 1024];
    while began.elapsed() < WATCHES {
        let due = (RATE * began.elapsed()).bytes();
        // It has a second in hand.
        late |= answer.at + (RATE * Duration::from_secs(1)).bytes() < due;
        if answer.at > due + (RATE * Duration::from_secs(1)).bytes() {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        showing.read(&mut answer, &mut buffer)?;
    }
    Ok(late)
}

fn sleepers(sheet: &mut Sheet, film: &Film, run: u32) -> Result<(), LabError> {
    const CASE: &str = "600 that do not read";
    let world = World::wires(&WIRES, &film.path())?;
    let proxy = Proxy::start(&world, &WIRES, &[])?;
    let url = world.url(Origin::Http);
    let answers = crowd(&world, SLEEPERS, |number| {
        std::thread::sleep(Duration::from_millis(u64::from(number) * 5));
        let answer = Answer::ask(proxy.address, &url, 0, &format!("sleeper {number}"))?;
        // Windows fill meanwhile.
        std::thread::sleep(SLEEPS);
        Ok(answer.status)
    });
    let answers = answers.map_err(LabError::at("players"))?;
    for why in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        sheet.problem(CASE, run, why);
    }
    let count = |wanted: &[u16]| answers.iter().flatten().filter(|status| wanted.contains(status)).count() as f64;
    let row = sheet.row(CASE, "served", "players", Floor::AtLeast { times: 1.0 });
    row.add(true, count(&[200, 206]), None);
    row.add(false, PLAYERS.into(), None);
    let row = sheet.row(CASE, "served or 503", "all", Floor::AtLeast { times: 1.0 });
    row.add(true, count(&[200, 206, 503]), None);
    row.add(false, SLEEPERS.into(), None);
    bounded(sheet, CASE, proxy.memory());
    proxy.end()?;
    Ok(())
}

fn paused(sheet: &mut Sheet, film: &Film, run: u32, pause: Duration) -> Result<(), LabError> {
    const CASE: &str = "a player that pauses";
    let world = World::wires(&WIRES, &film.path())?;
    let proxy = Proxy::start(&world, &WIRES, &[])?;
    let url = world.url(Origin::Http);
    let showing = Showing { proxy: proxy.address, url: &url, film };
    let played = world.inside(|| {
        let mut answer = showing.ask(0)?;
        let (mut buffer, size) = (vec![0; 64 * 1024], film.bytes.len() as u64);
        while answer.at < size / 10 {
            showing.read(&mut answer, &mut buffer)?;
        }
        std::thread::sleep(pause);
        let resumed = Instant::now();
        while answer.at < size {
            match showing.read(&mut answer, &mut buffer) {
                Err(error) if !is_early(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(resumed.elapsed())
    });
    match played {
        Ok(took) => {
            let row = sheet.row(CASE, "s for the other 90 %", "", Floor::Stated);
            row.add(true, took.as_secs_f64(), None);
        }
        Err(why) => sheet.problem(CASE, run, &why),
    }
    let row = sheet.row(CASE, "MB in the proxy", "a window, and itself", Floor::AtMost { times: 1.0, plus: 0.0 });
    row.add(true, proxy.memory() as f64 / 1e6, None);
    row.add(false, 32.0 + ITSELF, None);
    proxy.end()?;
    Ok(())
}

/// The most that the proxy has held.
fn bounded(sheet: &mut Sheet, case: &str, memory: u64) {
    let row = sheet.row(case, "MB in the proxy", "the bound, and itself", Floor::AtMost { times: 1.0, plus: 0.0 });
    row.add(true, memory as f64 / 1e6, None);
    row.add(false, 512.0 + ITSELF, None);
}

/// What players read.
const RATE: Bitrate = Bitrate::from_mbps(2);
const PLAYERS: u32 = 200;
const SLEEPERS: u32 = 600;
/// chosen: long enough for windows to fill and for links to be measured.
const WATCHES: Duration = Duration::from_secs(15);
const SLEEPS: Duration = Duration::from_secs(5);
/// The program, its certificates and its books, in MB, beside what waits for players.
const ITSELF: f64 = 20.0;
