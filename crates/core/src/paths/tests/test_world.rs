//! Minimal simulation for one machine: links with constant rates that change at given times, and a server that
//! sends data over the subflows that it does not regard as backups.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::energy::Model;
use crate::link::{LinkId, LinkKind};
use crate::machine::Machine;
use crate::paths::*;
use crate::units::{DataSize, Duration, Instant};

pub(super) const WIFI: LinkId = LinkId(0);
pub(super) const LTE: LinkId = LinkId(1);

pub(super) fn model() -> Model {
    crate::energy::tests::emptcp()
}

pub(super) fn config() -> Config {
    let link_config =
        |link, name: &str, kind| LinkConfig { id: link, name: name.into(), kind, metered: false, budget: None };
    Config::new(
        model(),
        alloc::vec![link_config(WIFI, "wifi", LinkKind::Wifi), link_config(LTE, "lte", LinkKind::Lte)],
    )
}

/// A subflow as the server and the kernel see it.
#[derive(Clone, Debug)]
struct TestSubflow {
    conn: ConnId,
    link: LinkId,
    received: f64,
    /// The server's view of the priority.
    backup: bool,
    requested_backup: bool,
    /// Bytes queued at the server when the subflow was suspended.
    queued: f64,
    backoff: Option<Backoff>,
    /// Time since when its full-sized packets are lost.
    vanishes_since: Option<Instant>,
    /// Position in the connection's data that it has delivered, and whether it was given data that was lost.
    data_seq: Option<f64>,
    was_given_lost_data: bool,
}

/// Retransmissions of a sender during an outage.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    since: Instant,
    /// Time of the next retransmission.
    due: Instant,
    fired: u8,
    /// Time at which the ACK of a retransmission that was not lost arrives.
    ack_at: Option<Instant>,
}

/// Data that the server has sent on a connection, and how much of it was lost and is sent again from
/// `retransmit_at` on.
#[derive(Clone, Copy, Default, Debug)]
struct ServerSent {
    next: f64,
    lost: f64,
    retransmit_at: Instant,
}

/// One machine, its links and the server of all its connections.
pub(super) struct World {
    pub(super) paths: Paths,
    pub(super) now: Instant,
    rtt: BTreeMap<LinkId, Duration>,
    /// Bytes per second that each link carries for all connections together; a link without a rate carries nothing.
    rates: BTreeMap<LinkId, f64>,
    subflows: BTreeMap<SubflowId, TestSubflow>,
    /// Connections that send instead of receive.
    pub(super) uploads: BTreeSet<ConnId>,
    /// Bytes of requests sent so far.
    request_bytes: BTreeMap<ConnId, u64>,
    /// Bytes that are yet to be sent on each connection.
    unsent: BTreeMap<ConnId, f64>,
    scheduled: BTreeMap<(Instant, u64), Input>,
    next: u64,
    /// Path MTUs of links that lose larger packets, and the MTUs to which links were lowered.
    pub(super) path_mtus: BTreeMap<LinkId, u16>,
    pub(super) mtus: BTreeMap<LinkId, u16>,
    /// Each MTU that was requested, and the log lines about them.
    pub(super) mtu_steps: Vec<(Instant, Option<u16>)>,
    pub(super) mtu_log: Vec<String>,
    /// Connections whose server sends at most this many bytes per second and subflow, all of it over Wi-Fi.
    pub(super) rate_limits: BTreeMap<ConnId, f64>,
    sent: BTreeMap<ConnId, ServerSent>,
    /// Whether the kernel reports data sequence numbers.
    pub(super) reports_seq: bool,
    /// Whether a small packet passes before the full-sized ones that are lost.
    pub(super) small_passes: bool,
    /// Whether a sender whose packets are lost backs off exponentially (RFC 6298).
    pub(super) backs_off: bool,
    /// Links that lose all packets.
    pub(super) unresponsive: BTreeSet<LinkId>,
    /// Number of priorities (MP_PRIO) that are lost before one arrives.
    pub(super) lost_priorities: u32,
    /// Link to which these losses are limited; `None`: all links.
    pub(super) lost_priorities_link: Option<LinkId>,
    /// Links over which the server resets further subflows 36 ms after their handshake.
    pub(super) refusing: BTreeSet<LinkId>,
    /// Whether the server at once resets a second subflow over a link.
    pub(super) refuses_second: bool,
    /// Number of joins whose SYNs are all lost.
    pub(super) lost_joins: u32,
    /// Number of joins whose first SYN is lost. The kernel sends it again a second later.
    pub(super) delayed_joins: u32,
    /// Joins over these links fail with this error.
    pub(super) refused_commands: BTreeMap<LinkId, CommandError>,
    /// One direction of each connection is closed: the driver adds no subflows, and rejects the first command to
    /// close one.
    pub(super) half_closed: bool,
    refused_end: bool,
    /// Unacknowledged bytes on each subflow of an unresponsive link.
    pub(super) unanswered: u64,
    pub(super) commands: Vec<(Instant, Command)>,
    pub(super) notes: Vec<String>,
    pub(super) polls: usize,
    pub(super) finished: BTreeMap<ConnId, Instant>,
}

/// Size of the last packet of a burst.
const SMALL_PACKET: f64 = 216.0;
/// Initial window of ten segments.
const WINDOW: f64 = 14_600.0;
const STEP: Duration = Duration::from_millis(10);

impl TestSubflow {
    fn new(conn: ConnId, link: LinkId, backup: bool, vanish: Option<Instant>) -> Self {
        let (received, queued) = (0.0, 0.0);
        let (backed_off, reached, given) = (None, None, false);
        Self {
            conn,
            link,
            received,
            backup,
            requested_backup: backup,
            queued,
            backoff: backed_off,
            vanishes_since: vanish,
            data_seq: reached,
            was_given_lost_data: given,
        }
    }
}

impl World {
    /// Starts at time 0 with Wi-Fi (RTT 30 ms) and LTE (60 ms) up, without rates and without connections.
    pub(super) fn new(config: Config) -> Self {
        let mut paths = Paths::new(config);
        for link in [WIFI, LTE] {
            paths.handle(Instant::ZERO, Input::LinkUp { link });
        }
        Self {
            paths,
            now: Instant::ZERO,
            rtt: BTreeMap::from([(WIFI, Duration::from_millis(30)), (LTE, Duration::from_millis(60))]),
            rates: BTreeMap::new(),
            subflows: BTreeMap::new(),
            uploads: BTreeSet::new(),
            request_bytes: BTreeMap::new(),
            unsent: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            next: 1,
            path_mtus: BTreeMap::new(),
            mtus: BTreeMap::new(),
            mtu_steps: Vec::new(),
            mtu_log: Vec::new(),
            rate_limits: BTreeMap::new(),
            sent: BTreeMap::new(),
            reports_seq: true,
            small_passes: false,
            backs_off: false,
            unresponsive: BTreeSet::new(),
            lost_priorities: 0,
            lost_priorities_link: None,
            refusing: BTreeSet::new(),
            refuses_second: false,
            lost_joins: 0,
            delayed_joins: 0,
            refused_commands: BTreeMap::new(),
            half_closed: false,
            refused_end: false,
            unanswered: 0,
            commands: Vec::new(),
            notes: Vec::new(),
            polls: 0,
            finished: BTreeMap::new(),
        }
    }

    pub(super) fn set_rate(&mut self, link: LinkId, mbps: f64) {
        self.rates.insert(link, mbps * 125_000.0);
    }

    pub(super) fn set_rtt(&mut self, link: LinkId, ms: u64) {
        self.rtt.insert(link, Duration::from_millis(ms));
    }

    /// Opens a connection whose initial subflow is on `link` and over which the server sends `bytes` at once, as fast
    /// as the links carry them (or this host, if the connection is in `uploads`).
    pub(super) fn open(&mut self, token: u32, link: LinkId, bytes: u64) -> ConnId {
        self.open_to(token, link, bytes, false)
    }

    pub(super) fn open_to(&mut self, token: u32, link: LinkId, bytes: u64, only_announced: bool) -> ConnId {
        let conn = ConnId(token);
        self.unsent.insert(conn, bytes as f64);
        self.handle(Input::Opened { conn, adopted: false, deny_join_id0: only_announced });
        self.subflow_up(conn, link, true, false);
        conn
    }

    /// A connection that existed before: it began on Wi-Fi; one of Wi-Fi and LTE carries it, the other one is a
    /// backup.
    pub(super) fn adopt(&mut self, token: u32, carrying_link: LinkId, bytes: u64) -> ConnId {
        let conn = ConnId(token);
        self.unsent.insert(conn, bytes as f64);
        self.handle(Input::Opened { conn, adopted: true, deny_join_id0: false });
        self.subflow_up(conn, WIFI, true, carrying_link != WIFI);
        self.subflow_up(conn, LTE, false, carrying_link != LTE);
        conn
    }

    pub(super) fn add_data(&mut self, conn: ConnId, bytes: u64) {
        *self.unsent.entry(conn).or_default() += bytes as f64;
    }

    /// The application requests this number of bytes.
    pub(super) fn request(&mut self, conn: ConnId, bytes: u64) {
        *self.request_bytes.entry(conn).or_default() += 300;
        self.add_data(conn, bytes);
    }

    /// The server has no more data to send.
    pub(super) fn stop(&mut self, conn: ConnId) {
        self.unsent.insert(conn, 0.0);
    }

    /// The server has no more data, and the application closes the connection.
    pub(super) fn close(&mut self, conn: ConnId) {
        self.stop(conn);
        self.subflows.retain(|_, flow| flow.conn != conn);
        self.handle(Input::Closed { conn });
    }

    fn subflow_up(&mut self, conn: ConnId, link: LinkId, initial: bool, backup: bool) {
        let id = SubflowId(self.next);
        self.next += 1;
        let vanish = self.vanishes_from(link);
        self.subflows.insert(id, TestSubflow::new(conn, link, backup, vanish));
        let rtt = self.rtt.get(&link).copied();
        self.handle(Input::SubflowUp {
            conn,
            subflow: EstablishedSubflow { id, link: Some(link), initial, backup, rtt },
        });
        if self.refusing.contains(&link) && !initial {
            self.subflows.remove(&id);
            self.schedule(
                Duration::from_millis(36),
                Input::SubflowDown { conn, subflow: id, reason: CloseReason::Reset },
            );
        }
    }

    fn schedule(&mut self, time: Duration, input: Input) {
        self.next += 1;
        self.scheduled.insert((self.now + time, self.next), input);
    }

    pub(super) fn handle(&mut self, input: Input) {
        self.paths.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.paths.poll() {
            match output {
                Output::Poll { conn } => {
                    self.polls += 1;
                    let flows = self.subflows.iter().filter(|(_, flow)| flow.conn == conn);
                    let polled: Vec<_> = flows.map(|(id, flow)| (*id, flow.clone())).collect();
                    for (subflow, flow) in polled {
                        let size = DataSize::from_bytes(flow.received as u64);
                        let (received, sent) = if self.uploads.contains(&conn) {
                            (DataSize::ZERO, size)
                        } else {
                            (size, DataSize::from_bytes(self.request_bytes.get(&conn).copied().unwrap_or(0)))
                        };
                        let uploads = self.uploads.contains(&conn);
                        let lost = self.unresponsive.contains(&flow.link) || uploads && flow.backoff.is_some();
                        let waits = if lost { self.unanswered } else { 0 };
                        let outstanding = DataSize::from_bytes(waits);
                        let backup = flow.requested_backup;
                        // Retransmissions at 0.25, 0.75 and 1.75 s, if this host sends data.
                        let vanish = flow.vanishes_since.filter(|_| uploads && !backup);
                        let lost_for = vanish.map_or(0, |since| self.now.since(since).as_millis());
                        let timeouts = [250, 750, 1750].iter().filter(|at| lost_for >= **at).count() as u8;
                        let outstanding = if timeouts > 0 { DataSize::from_bytes(64_000) } else { outstanding };
                        let fired = flow.backoff.filter(|_| uploads && waits > 0).map_or(0, |off| off.fired);
                        let timeouts = timeouts.max(fired);
                        let reached = flow.data_seq.filter(|_| !uploads && self.reports_seq);
                        let reached = reached.map(|bytes| DataSize::from_bytes(bytes as u64));
                        let base = Counters { received, sent, outstanding, backup, ..Counters::default() };
                        let counters = Counters { timeouts, data_seq: reached, ..base };
                        self.schedule(Duration::ZERO, Input::Counters { conn, subflow, counters });
                    }
                }
                Output::Command { id: command, conn, command: action } => self.execute(command, conn, action),
                Output::Note { reason, .. } => self.notes.push(reason),
                Output::SetMtu { link, mtu, reason } => {
                    match mtu {
                        Some(mtu) => self.mtus.insert(link, mtu),
                        None => self.mtus.remove(&link),
                    };
                    self.mtu_steps.push((self.now, mtu));
                    self.mtu_log.extend(reason);
                }
            }
        }
    }

    fn execute(&mut self, command: CommandId, conn: ConnId, command_kind: Command) {
        self.commands.push((self.now, command_kind));
        let link = if let Command::Join { link, .. } = command_kind { Some(link) } else { None };
        let is_closed = self.half_closed
            && match command_kind {
                Command::Join { .. } => true,
                Command::Destroy { .. } => !core::mem::replace(&mut self.refused_end, true),
                Command::SetBackup { .. } => false,
            };
        let refused = link.and_then(|link| self.refused_commands.get(&link).copied());
        let refused = is_closed.then_some(CommandError::HalfClosed).or(refused);
        self.schedule(Duration::ZERO, Input::CommandDone { command, error: refused });
        match command_kind {
            Command::Join { .. } if refused.is_some() => {}
            Command::Join { .. } if self.lost_joins > 0 => self.lost_joins -= 1,
            Command::Join { link, backup } => {
                if !self.unresponsive.contains(&link) && !self.is_down(link) {
                    let id = SubflowId(1_000_000 + self.next);
                    self.next += 1;
                    // Only the event is scheduled; the subflow is created when the event is delivered.
                    let rtt = self.rtt.get(&link).copied();
                    let subflow = EstablishedSubflow { id, link: Some(link), initial: false, backup, rtt };
                    let extra_delay = Duration::from_secs(u64::from(self.delayed_joins > 0));
                    self.delayed_joins = self.delayed_joins.saturating_sub(1);
                    let time = rtt.unwrap_or_default().mul_f64(1.5) + extra_delay;
                    self.schedule(time, Input::SubflowUp { conn, subflow });
                }
            }
            Command::SetBackup { subflow, backup } => {
                if let Some(flow) = self.subflows.get_mut(&subflow) {
                    flow.requested_backup = backup;
                    if self.lost_priorities > 0 && self.lost_priorities_link.is_none_or(|link| link == flow.link) {
                        self.lost_priorities -= 1;
                    } else if !self.unresponsive.contains(&flow.link) {
                        if backup && !flow.backup {
                            let left = self.unsent.get(&conn).copied().unwrap_or_default();
                            flow.queued = (self.rates.get(&flow.link).copied().unwrap_or(0.0) * 0.1).min(left);
                        }
                        flow.backup = backup;
                    }
                } else {
                    panic!("{command_kind:?} of an unknown subflow");
                }
            }
            Command::Destroy { .. } if refused.is_some() => {}
            Command::Destroy { subflow } => {
                // The server may have reset it earlier.
                let existed = self.subflows.remove(&subflow).is_some();
                assert!(existed || self.refuses_second, "{command_kind:?} of an unknown subflow");
                self.schedule(Duration::ZERO, Input::SubflowDown { conn, subflow, reason: CloseReason::Closed });
            }
        }
    }

    /// Removes the link and its subflows.
    pub(super) fn unplug(&mut self, link: LinkId) {
        self.handle(Input::LinkDown { link });
        let closing: Vec<_> =
            self.subflows.iter().filter(|(_, flow)| flow.link == link).map(|(id, _)| *id).collect();
        for subflow in closing {
            if let Some(flow) = self.subflows.remove(&subflow) {
                self.handle(Input::SubflowDown { conn: flow.conn, subflow, reason: CloseReason::Unreachable });
            }
        }
    }

    /// Ends the subflows of a link, which itself stays as it is.
    pub(super) fn end_subflows(&mut self, link: LinkId, why: CloseReason) {
        let closing: Vec<_> =
            self.subflows.iter().filter(|(_, flow)| flow.link == link).map(|(id, _)| *id).collect();
        for subflow in closing {
            if let Some(flow) = self.subflows.remove(&subflow) {
                self.handle(Input::SubflowDown { conn: flow.conn, subflow, reason: why });
            }
        }
    }

    /// Whether full-sized packets of a subflow established now are lost.
    fn vanishes_from(&self, link: LinkId) -> Option<Instant> {
        let path_mtu = self.path_mtus.get(&link)?;
        (self.mtus.get(&link).copied().unwrap_or(1500) > *path_mtu).then_some(self.now)
    }

    fn is_down(&self, link: LinkId) -> bool {
        self.paths.link_statuses().any(|view| view.link == link && !view.up)
    }

    /// Lets senders whose packets are lost back off; a sender continues after the ACK of a retransmission.
    fn retransmit(&mut self) {
        if !self.backs_off {
            return;
        }
        let (now, first) = (self.now, Duration::from_millis(300));
        let down_links: BTreeSet<LinkId> = self.rates.keys().copied().filter(|link| self.is_down(*link)).collect();
        for flow in self.subflows.values_mut() {
            let vanishes = down_links.contains(&flow.link) || self.unresponsive.contains(&flow.link);
            match &mut flow.backoff {
                None if vanishes => {
                    flow.backoff = Some(Backoff { since: now, due: now + first, fired: 0, ack_at: None });
                }
                Some(backoff) if backoff.ack_at.is_some_and(|at| now >= at) => flow.backoff = None,
                Some(backoff) if now >= backoff.due && backoff.ack_at.is_none() => {
                    let rtt = self.rtt.get(&flow.link).copied().unwrap_or_default();
                    backoff.fired += 1;
                    backoff.due += (backoff.due - backoff.since).min(Duration::from_secs(120));
                    backoff.ack_at = (!vanishes).then(|| now + rtt);
                }
                _ => {}
            }
        }
    }

    /// Loses the first window of subflows that cannot carry it; the server sends the data over another subflow
    /// later.
    fn lose_first_window(&mut self, conns: &BTreeSet<ConnId>) {
        for flow in self
            .subflows
            .values_mut()
            .filter(|flow| !flow.was_given_lost_data && !flow.backup && flow.received == 0.0)
        {
            let limited = self.rate_limits.contains_key(&flow.conn) && flow.link != WIFI;
            let vanishes = flow.vanishes_since.is_some() || self.unresponsive.contains(&flow.link);
            if vanishes && !limited && conns.contains(&flow.conn) {
                let sent = self.sent.entry(flow.conn).or_default();
                (sent.next, sent.lost) = (sent.next + WINDOW, sent.lost + WINDOW);
                (sent.retransmit_at, flow.was_given_lost_data) = (self.now + Duration::from_millis(300), true);
                if self.small_passes {
                    flow.received += SMALL_PACKET;
                    sent.lost -= SMALL_PACKET;
                    flow.data_seq = Some(sent.next - WINDOW + SMALL_PACKET);
                }
            }
        }
    }

    /// Transfers the bytes of one step.
    fn step(&mut self) {
        let seconds = STEP.as_secs_f64();
        self.retransmit();
        let conns: BTreeSet<ConnId> =
            self.unsent.iter().filter(|(_, left)| **left > 0.0).map(|(conn, _)| *conn).collect();
        self.lose_first_window(&conns);
        for (link, rate) in self.rates.clone() {
            if self.unresponsive.contains(&link) || self.is_down(link) {
                continue;
            }
            let is_alive = |flow: &TestSubflow| !self.unresponsive.contains(&flow.link) && flow.backoff.is_none();
            let carrying_conns: BTreeSet<ConnId> = self
                .subflows
                .values()
                .filter(|flow| !flow.backup && is_alive(flow))
                .map(|flow| flow.conn)
                .collect();
            let receivers: Vec<SubflowId> = self
                .subflows
                .iter()
                .filter(|(_, flow)| {
                    flow.link == link
                        && conns.contains(&flow.conn)
                        && flow.backoff.is_none()
                        && flow.vanishes_since.is_none()
                        && (link == WIFI || !self.rate_limits.contains_key(&flow.conn))
                })
                .filter(|(_, flow)| !flow.backup || !carrying_conns.contains(&flow.conn) || flow.queued > 0.0)
                .map(|(id, _)| *id)
                .collect();
            for id in &receivers {
                let Some(flow) = self.subflows.get_mut(id) else { continue };
                let mut bytes = rate * seconds / receivers.len() as f64;
                if flow.backup && carrying_conns.contains(&flow.conn) {
                    bytes = bytes.min(flow.queued);
                    flow.queued -= bytes;
                }
                let left = self.unsent.entry(flow.conn).or_default();
                let limit = self.rate_limits.get(&flow.conn).map_or(f64::INFINITY, |rate| rate * seconds);
                let bytes = bytes.min(*left).min(limit);
                *left -= bytes;
                flow.received += bytes;
                let sent = self.sent.entry(flow.conn).or_default();
                let again = if self.now >= sent.retransmit_at { bytes.min(sent.lost) } else { 0.0 };
                sent.lost -= again;
                if bytes > again {
                    sent.next += bytes - again;
                    flow.data_seq = Some(sent.next);
                }
                if *left <= 0.0 {
                    self.finished.insert(flow.conn, self.now);
                }
            }
        }
    }

    /// Lets this much time pass, in steps of 10 ms.
    pub(super) fn run(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while self.now < end {
            self.step();
            self.now += STEP;
            while let Some((key, input)) =
                self.scheduled.first_key_value().map(|(key, input)| (*key, input.clone()))
            {
                if key.0 > self.now {
                    break;
                }
                self.scheduled.remove(&key);
                if let Input::SubflowUp { conn, subflow } = &input {
                    let link = subflow.link.unwrap();
                    if self.unresponsive.contains(&link) {
                        continue;
                    }
                    let flow = TestSubflow::new(*conn, link, subflow.backup, self.vanishes_from(link));
                    let is_second = self.subflows.values().any(|flow| flow.conn == *conn && flow.link == link);
                    if self.refusing.contains(&link) || is_second && self.refuses_second {
                        let (conn, id) = (*conn, subflow.id);
                        self.schedule(
                            Duration::from_millis(36),
                            Input::SubflowDown { conn, subflow: id, reason: CloseReason::Reset },
                        );
                    } else {
                        self.subflows.insert(subflow.id, flow);
                    }
                }
                self.handle(input);
            }
            if self.paths.deadline().is_some_and(|(at, _)| at <= self.now) {
                self.paths.tick(self.now);
                self.drain();
                let next = self.paths.deadline();
                assert!(next.is_none_or(|(at, _)| at > self.now), "{next:?} at {:?}", self.now);
            }
        }
    }

    /// Runs until all data has arrived, at most for `seconds`; returns the duration in seconds, or infinity if no
    /// connection has received all its data.
    pub(super) fn finish(&mut self, seconds: f64) -> f64 {
        let begin = self.now;
        while self.unsent.values().any(|left| *left > 0.0) && self.now.since(begin).as_secs_f64() < seconds {
            self.run(0.1);
        }
        self.finished.values().max().map_or(f64::INFINITY, |end| end.since(begin).as_secs_f64())
    }

    pub(super) fn joules(&self) -> f64 {
        self.paths.energy_until_idle(self.now).total().as_joules_f64()
    }

    /// Bytes that all connections together have carried over a link, in both directions, by the machine's count.
    pub(super) fn received(&self, link: LinkId) -> u64 {
        self.paths.link_statuses().find(|view| view.link == link).map_or(0, |view| view.carried.bytes())
    }

    pub(super) fn join_count(&self, link: LinkId) -> usize {
        self.commands
            .iter()
            .filter(|(_, command)| matches!(command, Command::Join { link: to, .. } if *to == link))
            .count()
    }

    /// Number of subflows over a link.
    pub(super) fn subflow_count(&self, link: LinkId) -> usize {
        self.subflows.values().filter(|flow| flow.link == link).count()
    }

    pub(super) fn state(&self, conn: ConnId) -> String {
        self.paths.conn_status(conn).unwrap().state
    }
}
