//! The loop that drives sim's links in real time: read what the TUNs have, push it; pop what is due, write it; sleep.
//!
//! 1. One thread sleeps in `epoll` on all TUNs, a timer set to the absolute time of the next event, and a bell for
//!    orders. It never spins: a real-time thread that does is stopped for 50 ms in each second, and a normal one takes
//!    the processor from the programs it serves (both measured).
//! 2. At most [`BATCH`] packets are read from a TUN before what is due is delivered.
//! 3. Until the first [`Order::Begin`] nothing passes: what is read is thrown away.
//! 4. Each run begins with fresh links at time zero, so that traces, schedules and seeds start with the command.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use marline_core::units::{DataSize, Instant};
use marline_sim::link::{Direction, Link};
use marline_sim::spec::{Change, LinkSpec};
use marline_sys::clock::{self, Timer};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::lateness::Histogram;
use super::{Emulation, LinkRun, Priority, Sign, segment};
use crate::network::TunPair;

/// Packets read from one TUN in one turn (measured: more delays the others, fewer costs wake-ups).
const BATCH: usize = 32;
/// No IP packet is longer.
const LONGEST: usize = 65_536;

/// What the thread is told to do.
#[derive(Debug)]
pub(super) enum Order {
    /// A command starts at this time of the clock: fresh links, fresh counters.
    Begin(u64, SyncSender<()>),
    /// Change a link now.
    Change(usize, Change),
    /// Lose the next so many requests of the client for another priority over this link.
    Lose(usize, u32),
    /// Tell what was seen since the last `Begin`.
    Report(SyncSender<Emulation>),
    /// End the thread.
    Stop,
}

/// Everything that belongs to one link.
struct Port {
    spec: LinkSpec,
    tuns: TunPair,
    link: Option<Link<Vec<u8>>>,
    /// Bytes delivered down and up, by slot.
    timeline: Vec<[u64; 2]>,
    down_span: Option<(Instant, Instant)>,
    signs: Vec<Sign>,
    priorities: Vec<Priority>,
    /// So many requests for another priority are still to be lost.
    to_lose: u32,
}

/// The loop's state.
pub(super) struct Engine {
    ports: Vec<Port>,
    events: Vec<(Duration, usize, Change)>,
    seed: u64,
    epoll: OwnedFd,
    timer: Timer,
    armed: Option<u64>,
    bell: Arc<OwnedFd>,
    orders: Receiver<Order>,
    zero: u64,
    began: Duration,
    histogram: Histogram,
    real_time: bool,
    buffer: Vec<u8>,
}

/// Tokens of the two descriptors that are no TUN; a TUN's token is twice its link's place, plus one at the server.
const TIMER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

impl Engine {
    pub(super) fn new(
        links: Vec<(LinkSpec, TunPair)>,
        events: Vec<(Duration, usize, Change)>,
        seed: u64,
        bell: Arc<OwnedFd>,
        orders: Receiver<Order>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        for (at, (_, pair)) in links.iter().enumerate() {
            let token = 2 * at as u64;
            epoll::add(&epoll, &pair.client, EventData::new_u64(token), EventFlags::IN)?;
            epoll::add(&epoll, &pair.server, EventData::new_u64(token + 1), EventFlags::IN)?;
        }
        let port = |(spec, tuns)| Port {
            spec,
            tuns,
            link: None,
            timeline: Vec::new(),
            down_span: None,
            signs: Vec::new(),
            priorities: Vec::new(),
            to_lose: 0,
        };
        Ok(Self {
            ports: links.into_iter().map(port).collect(),
            events,
            seed,
            epoll,
            timer,
            armed: None,
            bell,
            orders,
            zero: clock::now(),
            began: Duration::ZERO,
            histogram: Histogram::new(),
            real_time: false,
            buffer: vec![0; LONGEST],
        })
    }

    /// Works until told to stop.
    pub(super) fn run(mut self, real_time: bool) -> io::Result<()> {
        self.real_time = real_time;
        let mut ready = Vec::with_capacity(64);
        loop {
            self.arm()?;
            ready.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for event in &ready {
                match event.data.u64() {
                    // Arming it again is what clears it.
                    TIMER => self.armed = None,
                    BELL => {
                        if !self.obey()? {
                            return Ok(());
                        }
                    }
                    token => self.read(token),
                }
            }
            self.deliver();
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.zero))
    }

    /// Sets the timer to the next event, if that has changed.
    fn arm(&mut self) -> io::Result<()> {
        let next = self.ports.iter().filter_map(|port| port.link.as_ref()?.next_event()).min();
        let at = next.map_or(u64::MAX, |at| self.zero.saturating_add(at.as_nanos()));
        if self.armed != Some(at) {
            self.timer.arm(next.is_some().then_some(at))?;
            self.armed = Some(at);
        }
        Ok(())
    }

    fn read(&mut self, token: u64) {
        let zero = self.zero;
        let Some(port) = self.ports.get_mut((token / 2) as usize) else { return };
        let (tun, direction) = match token % 2 {
            0 => (&port.tuns.client, Direction::Up),
            _ => (&port.tuns.server, Direction::Down),
        };
        for _ in 0..BATCH {
            let Ok(length) = tun.receive(&mut self.buffer) else { return };
            let packet = self.buffer.get(..length).unwrap_or(&[]);
            let Some(link) = &mut port.link else { continue };
            let now = Instant::from_nanos(clock::now().saturating_sub(zero));
            if direction == Direction::Up {
                sign(&mut port.signs, direction, now, packet);
                if let Some(backup) = segment::asked(packet) {
                    let lost = port.to_lose > 0;
                    port.to_lose = port.to_lose.saturating_sub(1);
                    port.priorities.push(Priority { at: now.since(Instant::ZERO), backup, lost });
                    if lost {
                        continue;
                    }
                }
            }
            link.push(direction, packet.to_vec(), now);
        }
    }

    fn deliver(&mut self) {
        for at in 0..self.ports.len() {
            let now = self.now();
            let Some(port) = self.ports.get_mut(at) else { return };
            let Some(link) = &mut port.link else { continue };
            while let Some((due, direction, packet)) = link.pop_due(now) {
                let tun = if direction == Direction::Down { &port.tuns.client } else { &port.tuns.server };
                // A full or refusing device is a lost packet, as on any network; nothing else is to be done.
                let _ = tun.send(&packet);
                let written = Instant::from_nanos(clock::now().saturating_sub(self.zero));
                self.histogram.record(written.since(due));
                count(&mut port.timeline, direction, due, packet.len());
                if direction == Direction::Down {
                    sign(&mut port.signs, direction, due, &packet);
                    let first = port.down_span.map_or(due, |(first, _)| first);
                    port.down_span = Some((first, due));
                }
            }
        }
    }

    /// Carries out what waits; false to stop.
    fn obey(&mut self) -> io::Result<bool> {
        let _ = rustix::io::read(&*self.bell, &mut [0_u8; 8]);
        loop {
            match self.orders.try_recv() {
                Ok(Order::Begin(zero, done)) => {
                    self.begin(zero);
                    // Whoever no longer waits for an answer does not need it.
                    let _ = done.send(());
                }
                Ok(Order::Change(at, change)) => {
                    let now = self.now();
                    if let Some(link) = self.ports.get_mut(at).and_then(|port| port.link.as_mut()) {
                        link.change(&change, now);
                    }
                }
                Ok(Order::Lose(at, count)) => {
                    if let Some(port) = self.ports.get_mut(at) {
                        port.to_lose = count;
                    }
                }
                Ok(Order::Report(to)) => {
                    let _ = to.send(self.report());
                }
                Ok(Order::Stop) => return Ok(false),
                Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(true),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn begin(&mut self, zero: u64) {
        self.zero = zero;
        self.armed = None;
        self.began = clock::thread_time();
        self.histogram = Histogram::new();
        for (at, port) in self.ports.iter_mut().enumerate() {
            let mut link = Link::new(&port.spec, self.seed);
            for (time, _, change) in self.events.iter().filter(|(_, link, _)| *link == at) {
                link.schedule(Instant::ZERO + *time, *change);
            }
            port.link = Some(link);
            port.timeline.clear();
            port.down_span = None;
            port.signs.clear();
            port.priorities.clear();
            port.to_lose = 0;
        }
    }

    fn report(&mut self) -> Emulation {
        let link = |port: &Port| LinkRun {
            name: port.spec.name.clone(),
            kind: port.spec.kind,
            down: port.link.as_ref().map(|link| link.stats(Direction::Down)).unwrap_or_default(),
            up: port.link.as_ref().map(|link| link.stats(Direction::Up)).unwrap_or_default(),
            down_timeline: port.timeline.iter().map(|slot| DataSize::from_bytes(slot[0])).collect(),
            up_timeline: port.timeline.iter().map(|slot| DataSize::from_bytes(slot[1])).collect(),
            down_span: port.down_span.map(|(a, b)| (a.since(Instant::ZERO), b.since(Instant::ZERO))),
            unseen: 0,
            signs: port.signs.clone(),
            priorities: port.priorities.clone(),
        };
        Emulation {
            links: self.ports.iter().map(link).collect(),
            lateness: self.histogram.lateness(),
            cpu: clock::thread_time().saturating_sub(self.began),
            real_time: self.real_time,
        }
    }
}

fn count(timeline: &mut Vec<[u64; 2]>, direction: Direction, at: Instant, bytes: usize) {
    let slot =
        usize::try_from(at.since(Instant::ZERO).as_nanos() / Emulation::SLOT.as_nanos()).unwrap_or(usize::MAX);
    // A day of slots; what comes later is still in the sums.
    if slot >= 864_000 {
        return;
    }
    if timeline.len() <= slot {
        timeline.resize(slot + 1, [0, 0]);
    }
    if let Some(slot) = timeline.get_mut(slot) {
        slot[usize::from(direction == Direction::Up)] += bytes as u64;
    }
}

/// Joins what passes within a millisecond.
fn sign(signs: &mut Vec<Sign>, direction: Direction, at: Instant, packet: &[u8]) {
    let at = at.since(Instant::ZERO);
    let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    let payload = u32::try_from(segment::payload(packet)).unwrap_or(u32::MAX);
    let (down, up) = if direction == Direction::Down { (bytes, 0) } else { (0, bytes) };
    let full = signs.len() >= MOST_SIGNS;
    match signs.last_mut() {
        Some(last) if last.at.as_millis() >= at.as_millis() => {
            last.down = last.down.saturating_add(down);
            last.up = last.up.saturating_add(up);
            last.payload = last.payload.saturating_add(payload);
        }
        _ if full => {}
        _ => signs.push(Sign { at, down, up, payload }),
    }
}

/// Signs that are kept of a link: hours of a busy one.
const MOST_SIGNS: usize = 8_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_within_a_millisecond_is_one_sign() {
        let mut signs = Vec::new();
        let mut put = |micros: u64, direction, bytes| {
            sign(&mut signs, direction, Instant::from_nanos(micros * 1000), &vec![0; bytes]);
        };
        put(1_200, Direction::Down, 1500);
        put(1_900, Direction::Up, 52);
        put(1_100, Direction::Down, 100);
        put(2_000, Direction::Down, 1500);
        let at = Duration::from_micros;
        assert_eq!(
            signs,
            [
                Sign { at: at(1_200), down: 1600, up: 52, payload: 0 },
                Sign { at: at(2_000), down: 1500, up: 0, payload: 0 }
            ]
        );
    }

    #[test]
    fn bytes_are_counted_in_the_slot_of_their_time() {
        let mut timeline = Vec::new();
        count(&mut timeline, Direction::Down, Instant::from_millis(99), 10);
        count(&mut timeline, Direction::Up, Instant::from_millis(250), 7);
        count(&mut timeline, Direction::Down, Instant::FAR_FUTURE, 7);
        assert_eq!(timeline, [[10, 0], [0, 0], [0, 7]]);
    }
}
