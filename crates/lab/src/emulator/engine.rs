//! Event loop that drives the link model in real time: reads packets from the TUN devices into the links, and
//! writes packets that are due to the other end.
//!
//! 1. One thread sleeps in `epoll` on all TUN devices, on a timer set to the absolute time of the next event, and
//!    on an eventfd for commands. It never spins: the kernel stops a spinning real-time thread for 50 ms in each
//!    second, and a normal thread that spins takes CPU from the programs that it serves (both measured).
//! 2. At most [`MAX_READ_BATCH`] packets are read from a TUN device before due packets are delivered.
//! 3. Packets that arrive before the first [`EmulatorCommand::Start`] are discarded.
//! 4. Each run begins with fresh links at time zero, so that traces, schedules and seeds start with the command.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use marline_core::units::{DataSize, Instant};
use marline_sim::link::{Direction, Link};
use marline_sim::spec::{LinkEventKind, LinkSpec};
use marline_sys::clock::{self, Timer};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::lateness::LatenessHistogram;
use super::{EmulationReport, LinkReport, MpPrioRequest, TrafficSample, mp_prio};
use crate::network::TunPair;

/// Packets read from one TUN device per wake-up. Measured: more delays the other devices, fewer costs wake-ups.
const MAX_READ_BATCH: usize = 32;
/// Largest possible IP packet.
const MAX_PACKET: usize = 65_536;

/// Commands to the emulator's thread.
#[derive(Debug)]
pub(super) enum EmulatorCommand {
    /// Start a run at this time of the monotonic clock (nanoseconds): fresh links, fresh counters.
    Start(u64, SyncSender<()>),
    /// Apply a change to the link with this index now.
    Change(usize, LinkEventKind),
    /// Drop the next n packets of the client that carry MP_PRIO over this link.
    LoseMpPrio(usize, u32),
    /// Send the counters since the last `Start`.
    Report(SyncSender<EmulationReport>),
    /// End the thread.
    Stop,
}

struct EmulatedLink {
    spec: LinkSpec,
    tun_pair: TunPair,
    link: Option<Link<Vec<u8>>>,
    /// Bytes delivered down and up, per slot of [`EmulationReport::SLOT`].
    timeline: Vec<[u64; 2]>,
    down_span: Option<(Instant, Instant)>,
    traffic_samples: Vec<TrafficSample>,
    mp_prio_requests: Vec<MpPrioRequest>,
    /// Number of MP_PRIO packets that are still to be dropped.
    mp_prio_to_lose: u32,
}

/// State of the event loop.
pub(super) struct Engine {
    links: Vec<EmulatedLink>,
    events: Vec<(Duration, usize, LinkEventKind)>,
    seed: u64,
    epoll: OwnedFd,
    timer: Timer,
    armed_at: Option<u64>,
    wakeup: Arc<OwnedFd>,
    commands: Receiver<EmulatorCommand>,
    start_time: u64,
    cpu_at_start: Duration,
    lateness: LatenessHistogram,
    real_time: bool,
    buffer: Vec<u8>,
}

/// `epoll` tokens of the two descriptors that are not TUN devices. The token of a TUN device is twice the index of
/// its link, plus one at the server.
const TIMER: u64 = u64::MAX;
const WAKEUP: u64 = u64::MAX - 1;

impl Engine {
    pub(super) fn new(
        links: Vec<(LinkSpec, TunPair)>,
        events: Vec<(Duration, usize, LinkEventKind)>,
        seed: u64,
        wakeup: Arc<OwnedFd>,
        commands: Receiver<EmulatorCommand>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        for (index, (_, pair)) in links.iter().enumerate() {
            let token = 2 * index as u64;
            epoll::add(&epoll, &pair.client, EventData::new_u64(token), EventFlags::IN)?;
            epoll::add(&epoll, &pair.server, EventData::new_u64(token + 1), EventFlags::IN)?;
        }
        let port = |(spec, tuns)| EmulatedLink {
            spec,
            tun_pair: tuns,
            link: None,
            timeline: Vec::new(),
            down_span: None,
            traffic_samples: Vec::new(),
            mp_prio_requests: Vec::new(),
            mp_prio_to_lose: 0,
        };
        Ok(Self {
            links: links.into_iter().map(port).collect(),
            events,
            seed,
            epoll,
            timer,
            armed_at: None,
            wakeup,
            commands,
            start_time: clock::now(),
            cpu_at_start: Duration::ZERO,
            lateness: LatenessHistogram::new(),
            real_time: false,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Runs until [`EmulatorCommand::Stop`].
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
                    // Setting the timer again clears its readiness, so `arm` must not skip it.
                    TIMER => self.armed_at = None,
                    WAKEUP => {
                        if !self.handle_commands()? {
                            return Ok(());
                        }
                    }
                    token => self.read_tun(token),
                }
            }
            self.deliver_due();
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.start_time))
    }

    /// Sets the timer to the next event of all links, if it has changed.
    fn arm(&mut self) -> io::Result<()> {
        let next_event = self.links.iter().filter_map(|port| port.link.as_ref()?.next_event()).min();
        let deadline = next_event.map_or(u64::MAX, |at| self.start_time.saturating_add(at.as_nanos()));
        if self.armed_at != Some(deadline) {
            self.timer.arm(next_event.is_some().then_some(deadline))?;
            self.armed_at = Some(deadline);
        }
        Ok(())
    }

    /// Moves packets from one TUN device into its link, and records them where they leave the client.
    fn read_tun(&mut self, token: u64) {
        let start_time = self.start_time;
        let Some(port) = self.links.get_mut((token / 2) as usize) else { return };
        let (tun, direction) = match token % 2 {
            0 => (&port.tun_pair.client, Direction::Up),
            _ => (&port.tun_pair.server, Direction::Down),
        };
        for _ in 0..MAX_READ_BATCH {
            let Ok(length) = tun.receive(&mut self.buffer) else { return };
            let packet = self.buffer.get(..length).unwrap_or(&[]);
            let Some(link) = &mut port.link else { continue };
            let now = Instant::from_nanos(clock::now().saturating_sub(start_time));
            if direction == Direction::Up {
                add_traffic_sample(&mut port.traffic_samples, direction, now, packet);
                if let Some(backup) = mp_prio::mp_prio_backup(packet) {
                    let is_lost = port.mp_prio_to_lose > 0;
                    port.mp_prio_to_lose = port.mp_prio_to_lose.saturating_sub(1);
                    port.mp_prio_requests.push(MpPrioRequest {
                        at: now.since(Instant::ZERO),
                        backup,
                        is_dropped: is_lost,
                    });
                    if is_lost {
                        continue;
                    }
                }
            }
            link.push(direction, packet.to_vec(), now);
        }
    }

    /// Writes all packets that are due to the TUN device at their destination.
    fn deliver_due(&mut self) {
        for index in 0..self.links.len() {
            let now = self.now();
            let Some(port) = self.links.get_mut(index) else { return };
            let Some(link) = &mut port.link else { continue };
            while let Some((due, direction, packet)) = link.pop_due(now) {
                let tun = if direction == Direction::Down { &port.tun_pair.client } else { &port.tun_pair.server };
                // A full device drops the packet, as a network would; there is nothing to repair.
                let _ = tun.send(&packet);
                let written = Instant::from_nanos(clock::now().saturating_sub(self.start_time));
                self.lateness.record(written.since(due));
                count_bytes(&mut port.timeline, direction, due, packet.len());
                if direction == Direction::Down {
                    add_traffic_sample(&mut port.traffic_samples, direction, due, &packet);
                    let first = port.down_span.map_or(due, |(first, _)| first);
                    port.down_span = Some((first, due));
                }
            }
        }
    }

    /// Executes the pending commands; returns false after `Stop`.
    fn handle_commands(&mut self) -> io::Result<bool> {
        let _ = rustix::io::read(&*self.wakeup, &mut [0_u8; 8]);
        loop {
            match self.commands.try_recv() {
                Ok(EmulatorCommand::Start(start_time, reply)) => {
                    self.start_run(start_time);
                    // The requester may have given up waiting; then the reply is not needed.
                    let _ = reply.send(());
                }
                Ok(EmulatorCommand::Change(index, change)) => {
                    let now = self.now();
                    if let Some(link) = self.links.get_mut(index).and_then(|port| port.link.as_mut()) {
                        link.change(&change, now);
                    }
                }
                Ok(EmulatorCommand::LoseMpPrio(index, count)) => {
                    if let Some(port) = self.links.get_mut(index) {
                        port.mp_prio_to_lose = count;
                    }
                }
                Ok(EmulatorCommand::Report(reply)) => {
                    let _ = reply.send(self.report());
                }
                Ok(EmulatorCommand::Stop) => return Ok(false),
                Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(true),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    /// Replaces all links and counters by fresh ones whose time zero is `start_time`.
    fn start_run(&mut self, start_time: u64) {
        self.start_time = start_time;
        self.armed_at = None;
        self.cpu_at_start = clock::thread_time();
        self.lateness = LatenessHistogram::new();
        for (index, port) in self.links.iter_mut().enumerate() {
            let mut link = Link::new(&port.spec, self.seed);
            for (time, _, change) in self.events.iter().filter(|(_, link, _)| *link == index) {
                link.schedule(Instant::ZERO + *time, *change);
            }
            port.link = Some(link);
            port.timeline.clear();
            port.down_span = None;
            port.traffic_samples.clear();
            port.mp_prio_requests.clear();
            port.mp_prio_to_lose = 0;
        }
    }

    fn report(&mut self) -> EmulationReport {
        let link = |port: &EmulatedLink| LinkReport {
            name: port.spec.name.clone(),
            kind: port.spec.kind,
            downlink: port.link.as_ref().map(|link| link.stats(Direction::Down)).unwrap_or_default(),
            uplink: port.link.as_ref().map(|link| link.stats(Direction::Up)).unwrap_or_default(),
            down_timeline: port.timeline.iter().map(|slot| DataSize::from_bytes(slot[0])).collect(),
            up_timeline: port.timeline.iter().map(|slot| DataSize::from_bytes(slot[1])).collect(),
            down_span: port.down_span.map(|(a, b)| (a.since(Instant::ZERO), b.since(Instant::ZERO))),
            dropped_before_emulator: 0,
            traffic_samples: port.traffic_samples.clone(),
            mp_prio_requests: port.mp_prio_requests.clone(),
        };
        EmulationReport {
            links: self.links.iter().map(link).collect(),
            lateness: self.lateness.lateness(),
            cpu_time: clock::thread_time().saturating_sub(self.cpu_at_start),
            is_real_time: self.real_time,
        }
    }
}

/// Adds a packet to the slot of its time.
fn count_bytes(timeline: &mut Vec<[u64; 2]>, direction: Direction, at: Instant, bytes: usize) {
    let index = usize::try_from(at.since(Instant::ZERO).as_nanos() / EmulationReport::SLOT.as_nanos())
        .unwrap_or(usize::MAX);
    // The timeline is limited to one day of slots; later packets count only in the totals.
    if index >= 864_000 {
        return;
    }
    if timeline.len() <= index {
        timeline.resize(index + 1, [0, 0]);
    }
    if let Some(slot) = timeline.get_mut(index) {
        slot[usize::from(direction == Direction::Up)] += bytes as u64;
    }
}

/// Adds a packet to the samples; packets within the same millisecond share one sample.
fn add_traffic_sample(samples: &mut Vec<TrafficSample>, direction: Direction, at: Instant, packet: &[u8]) {
    let at = at.since(Instant::ZERO);
    let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    let payload = u32::try_from(mp_prio::payload_len(packet)).unwrap_or(u32::MAX);
    let (down, up) = if direction == Direction::Down { (bytes, 0) } else { (0, bytes) };
    let is_full = samples.len() >= MAX_TRAFFIC_SAMPLES;
    match samples.last_mut() {
        Some(last) if last.at.as_millis() >= at.as_millis() => {
            last.down = last.down.saturating_add(down);
            last.up = last.up.saturating_add(up);
            last.payload = last.payload.saturating_add(payload);
        }
        _ if is_full => {}
        _ => samples.push(TrafficSample { at, down, up, payload }),
    }
}

/// Maximum number of samples per link: hours of a busy link.
const MAX_TRAFFIC_SAMPLES: usize = 8_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_within_a_millisecond_share_one_sample() {
        let mut samples = Vec::new();
        let mut push = |micros: u64, direction, bytes| {
            add_traffic_sample(&mut samples, direction, Instant::from_nanos(micros * 1000), &vec![0; bytes]);
        };
        push(1_200, Direction::Down, 1500);
        push(1_900, Direction::Up, 52);
        push(1_100, Direction::Down, 100);
        push(2_000, Direction::Down, 1500);
        let at = Duration::from_micros;
        assert_eq!(
            samples,
            [
                TrafficSample { at: at(1_200), down: 1600, up: 52, payload: 0 },
                TrafficSample { at: at(2_000), down: 1500, up: 0, payload: 0 }
            ]
        );
    }

    #[test]
    fn bytes_are_counted_in_the_slot_of_their_time() {
        let mut timeline = Vec::new();
        count_bytes(&mut timeline, Direction::Down, Instant::from_millis(99), 10);
        count_bytes(&mut timeline, Direction::Up, Instant::from_millis(250), 7);
        count_bytes(&mut timeline, Direction::Down, Instant::FAR_FUTURE, 7);
        assert_eq!(timeline, [[10, 0], [0, 0], [0, 7]]);
    }
}
