//! A world that is just large enough for one machine: links of steady rates that change at given times, a server that
//! sends what it has over the subflows that it believes to be no backups.

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
    let terms = |link, name: &str, kind| LinkTerms { link, name: name.into(), kind, metered: false, budget: None };
    Config::new(model(), alloc::vec![terms(WIFI, "wifi", LinkKind::Wifi), terms(LTE, "lte", LinkKind::Lte)])
}

/// A subflow as the server and the kernel have it.
#[derive(Clone, Debug)]
struct Flow {
    conn: ConnId,
    link: LinkId,
    received: f64,
    /// As the server believes.
    backup: bool,
    asked: bool,
    /// Bytes already queued at the server.
    queued: f64,
    backed_off: Option<Backoff>,
    /// Its full-sized packets vanish, since then.
    vanish: Option<Instant>,
    /// How far the data reach that it has brought, and whether it was given data that were lost.
    reached: Option<f64>,
    given: bool,
}

/// A sender's retransmissions in an outage.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    since: Instant,
    /// When the next one is due.
    due: Instant,
    fired: u8,
    /// When the answer to one that was not lost comes.
    answer: Option<Instant>,
}

/// What the server has sent of a connection, and what was lost and is sent again from then on.
#[derive(Clone, Copy, Default, Debug)]
struct Sent {
    next: f64,
    lost: f64,
    again: Instant,
}

pub(super) struct World {
    pub(super) paths: Paths,
    pub(super) now: Instant,
    rtt: BTreeMap<LinkId, Duration>,
    rates: BTreeMap<LinkId, f64>,
    flows: BTreeMap<SubflowId, Flow>,
    /// Connections that send what the others receive.
    pub(super) uploads: BTreeSet<ConnId>,
    /// Bytes of requests.
    asked: BTreeMap<ConnId, u64>,
    /// What each connection has yet to send.
    left: BTreeMap<ConnId, f64>,
    later: BTreeMap<(Instant, u64), Input>,
    next: u64,
    /// Links whose larger packets vanish, and the MTUs that they were lowered to.
    pub(super) path_mtus: BTreeMap<LinkId, u16>,
    pub(super) mtus: BTreeMap<LinkId, u16>,
    /// Each MTU that was asked for, and the lines about them.
    pub(super) steps: Vec<(Instant, Option<u16>)>,
    pub(super) lines: Vec<String>,
    /// Connections whose server sends no faster than so many bytes per second, all of it over Wi-Fi.
    pub(super) limited: BTreeMap<ConnId, f64>,
    sent: BTreeMap<ConnId, Sent>,
    /// Whether the kernel reports data sequence numbers.
    pub(super) reports_seq: bool,
    /// Whether a small packet passes before the full-sized ones that vanish.
    pub(super) small_passes: bool,
    /// Whether a sender whose packets vanish waits ever longer before it sends again (RFC 6298).
    pub(super) backs_off: bool,
    /// Links whose packets vanish.
    pub(super) silent: BTreeSet<LinkId>,
    /// How many priorities are lost before one arrives.
    pub(super) lose: u32,
    /// Only those for this link; none: all.
    pub(super) links_lost: Option<LinkId>,
    pub(super) refuse: BTreeSet<LinkId>,
    /// Whether the server resets a second subflow over a link at once.
    pub(super) refuse_second: bool,
    /// How many joins lose their SYN before one arrives.
    pub(super) lose_joins: u32,
    /// How many joins lose their first SYN. The kernel sends it again a second later.
    pub(super) delay_joins: u32,
    /// Links without an address of the server's family.
    pub(super) refuses: BTreeMap<LinkId, Refusal>,
    /// One direction of each connection is closed: the driver adds no subflows, and refuses the first command to end one.
    pub(super) half_closed: bool,
    refused_end: bool,
    /// What waits for an acknowledgement, on each subflow of a silent link.
    pub(super) unanswered: u64,
    pub(super) commands: Vec<(Instant, Command)>,
    pub(super) notes: Vec<String>,
    pub(super) looks: usize,
    pub(super) ended: BTreeMap<ConnId, Instant>,
}

/// The last packet of a burst.
const SMALL: f64 = 216.0;
/// The initial window of ten segments.
const WINDOW: f64 = 14_600.0;
const STEP: Duration = Duration::from_millis(10);

impl Flow {
    fn new(conn: ConnId, link: LinkId, backup: bool, vanish: Option<Instant>) -> Self {
        let (received, queued) = (0.0, 0.0);
        let (backed_off, reached, given) = (None, None, false);
        Self { conn, link, received, backup, asked: backup, queued, backed_off, vanish, reached, given }
    }
}

impl World {
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
            flows: BTreeMap::new(),
            uploads: BTreeSet::new(),
            asked: BTreeMap::new(),
            left: BTreeMap::new(),
            later: BTreeMap::new(),
            next: 1,
            path_mtus: BTreeMap::new(),
            mtus: BTreeMap::new(),
            steps: Vec::new(),
            lines: Vec::new(),
            limited: BTreeMap::new(),
            sent: BTreeMap::new(),
            reports_seq: true,
            small_passes: false,
            backs_off: false,
            silent: BTreeSet::new(),
            lose: 0,
            links_lost: None,
            refuse: BTreeSet::new(),
            refuse_second: false,
            lose_joins: 0,
            delay_joins: 0,
            refuses: BTreeMap::new(),
            half_closed: false,
            refused_end: false,
            unanswered: 0,
            commands: Vec::new(),
            notes: Vec::new(),
            looks: 0,
            ended: BTreeMap::new(),
        }
    }

    pub(super) fn rate(&mut self, link: LinkId, mbps: f64) {
        self.rates.insert(link, mbps * 125_000.0);
    }

    pub(super) fn rtt(&mut self, link: LinkId, ms: u64) {
        self.rtt.insert(link, Duration::from_millis(ms));
    }

    pub(super) fn open(&mut self, token: u32, link: LinkId, bytes: u64) -> ConnId {
        self.open_to(token, link, bytes, false)
    }

    pub(super) fn open_to(&mut self, token: u32, link: LinkId, bytes: u64, only_announced: bool) -> ConnId {
        let conn = ConnId(token);
        self.left.insert(conn, bytes as f64);
        self.tell(Input::Opened { conn, adopted: false, only_announced });
        self.up(conn, link, true, false);
        conn
    }

    /// One that ran before: it began on Wi-Fi, which stands by or carries, and so does LTE.
    pub(super) fn adopt(&mut self, token: u32, carries: LinkId, bytes: u64) -> ConnId {
        let conn = ConnId(token);
        self.left.insert(conn, bytes as f64);
        self.tell(Input::Opened { conn, adopted: true, only_announced: false });
        self.up(conn, WIFI, true, carries != WIFI);
        self.up(conn, LTE, false, carries != LTE);
        conn
    }

    pub(super) fn more(&mut self, conn: ConnId, bytes: u64) {
        *self.left.entry(conn).or_default() += bytes as f64;
    }

    /// The application asks for so much.
    pub(super) fn ask(&mut self, conn: ConnId, bytes: u64) {
        *self.asked.entry(conn).or_default() += 300;
        self.more(conn, bytes);
    }

    /// The server has no more to send.
    pub(super) fn stop(&mut self, conn: ConnId) {
        self.left.insert(conn, 0.0);
    }

    /// And the application closes the connection.
    pub(super) fn close(&mut self, conn: ConnId) {
        self.stop(conn);
        self.flows.retain(|_, flow| flow.conn != conn);
        self.tell(Input::Closed { conn });
    }

    fn up(&mut self, conn: ConnId, link: LinkId, initial: bool, backup: bool) {
        let id = SubflowId(self.next);
        self.next += 1;
        let vanish = self.vanishes(link);
        self.flows.insert(id, Flow::new(conn, link, backup, vanish));
        let rtt = self.rtt.get(&link).copied();
        self.tell(Input::SubflowUp { conn, subflow: Subflow { id, link: Some(link), initial, backup, rtt } });
        if self.refuse.contains(&link) && !initial {
            self.flows.remove(&id);
            self.after(Duration::from_millis(36), Input::SubflowDown { conn, subflow: id, why: Why::Reset });
        }
    }

    fn after(&mut self, time: Duration, input: Input) {
        self.next += 1;
        self.later.insert((self.now + time, self.next), input);
    }

    pub(super) fn tell(&mut self, input: Input) {
        self.paths.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.paths.poll() {
            match output {
                Output::Look { conn } => {
                    self.looks += 1;
                    let flows = self.flows.iter().filter(|(_, flow)| flow.conn == conn);
                    let seen: Vec<_> = flows.map(|(id, flow)| (*id, flow.clone())).collect();
                    for (subflow, flow) in seen {
                        let size = DataSize::from_bytes(flow.received as u64);
                        let (received, sent) = if self.uploads.contains(&conn) {
                            (DataSize::ZERO, size)
                        } else {
                            (size, DataSize::from_bytes(self.asked.get(&conn).copied().unwrap_or(0)))
                        };
                        let uploads = self.uploads.contains(&conn);
                        let lost = self.silent.contains(&flow.link) || uploads && flow.backed_off.is_some();
                        let waits = if lost { self.unanswered } else { 0 };
                        let outstanding = DataSize::from_bytes(waits);
                        let backup = flow.asked;
                        // Retransmissions at 0.25, 0.75 and 1.75 s, if it has data of its own to send.
                        let vanish = flow.vanish.filter(|_| uploads && !backup);
                        let lost = vanish.map_or(0, |since| self.now.since(since).as_millis());
                        let timeouts = [250, 750, 1750].iter().filter(|at| lost >= **at).count() as u8;
                        let outstanding = if timeouts > 0 { DataSize::from_bytes(64_000) } else { outstanding };
                        let fired = flow.backed_off.filter(|_| uploads && waits > 0).map_or(0, |off| off.fired);
                        let timeouts = timeouts.max(fired);
                        let reached = flow.reached.filter(|_| !uploads && self.reports_seq);
                        let reached = reached.map(|bytes| DataSize::from_bytes(bytes as u64));
                        let told = Counters { received, sent, outstanding, backup, ..Counters::default() };
                        let counters = Counters { timeouts, reached, ..told };
                        self.after(Duration::ZERO, Input::Seen { conn, subflow, counters });
                    }
                }
                Output::Do { command, conn, what } => self.carry_out(command, conn, what),
                Output::Note { reason, .. } => self.notes.push(reason),
                Output::Mtu { link, mtu, reason } => {
                    match mtu {
                        Some(mtu) => self.mtus.insert(link, mtu),
                        None => self.mtus.remove(&link),
                    };
                    self.steps.push((self.now, mtu));
                    self.lines.extend(reason);
                }
            }
        }
    }

    fn carry_out(&mut self, command: CommandId, conn: ConnId, what: Command) {
        self.commands.push((self.now, what));
        let link = if let Command::Join { link, .. } = what { Some(link) } else { None };
        let is_closed = self.half_closed
            && match what {
                Command::Join { .. } => true,
                Command::Destroy { .. } => !core::mem::replace(&mut self.refused_end, true),
                Command::Prioritise { .. } => false,
            };
        let refused = link.and_then(|link| self.refuses.get(&link).copied());
        let refused = is_closed.then_some(Refusal::HalfClosed).or(refused);
        self.after(Duration::ZERO, Input::Done { command, refused });
        match what {
            Command::Join { .. } if refused.is_some() => {}
            Command::Join { .. } if self.lose_joins > 0 => self.lose_joins -= 1,
            Command::Join { link, backup } => {
                if !self.silent.contains(&link) && !self.down(link) {
                    let id = SubflowId(1_000_000 + self.next);
                    self.next += 1;
                    // A marker: the flow is made when it is up.
                    let rtt = self.rtt.get(&link).copied();
                    let subflow = Subflow { id, link: Some(link), initial: false, backup, rtt };
                    let late = Duration::from_secs(u64::from(self.delay_joins > 0));
                    self.delay_joins = self.delay_joins.saturating_sub(1);
                    let time = rtt.unwrap_or_default().mul_f64(1.5) + late;
                    self.after(time, Input::SubflowUp { conn, subflow });
                }
            }
            Command::Prioritise { subflow, backup } => {
                if let Some(flow) = self.flows.get_mut(&subflow) {
                    flow.asked = backup;
                    if self.lose > 0 && self.links_lost.is_none_or(|link| link == flow.link) {
                        self.lose -= 1;
                    } else if !self.silent.contains(&flow.link) {
                        if backup && !flow.backup {
                            let left = self.left.get(&conn).copied().unwrap_or_default();
                            flow.queued = (self.rates.get(&flow.link).copied().unwrap_or(0.0) * 0.1).min(left);
                        }
                        flow.backup = backup;
                    }
                } else {
                    panic!("{what:?} of no subflow");
                }
            }
            Command::Destroy { .. } if refused.is_some() => {}
            Command::Destroy { subflow } => {
                // The server may have reset it before.
                let there = self.flows.remove(&subflow).is_some();
                assert!(there || self.refuse_second, "{what:?} of no subflow");
                self.after(Duration::ZERO, Input::SubflowDown { conn, subflow, why: Why::Closed });
            }
        }
    }

    /// The link is gone, and what went over it.
    pub(super) fn unplug(&mut self, link: LinkId) {
        self.tell(Input::LinkDown { link });
        let gone: Vec<_> = self.flows.iter().filter(|(_, flow)| flow.link == link).map(|(id, _)| *id).collect();
        for subflow in gone {
            if let Some(flow) = self.flows.remove(&subflow) {
                self.tell(Input::SubflowDown { conn: flow.conn, subflow, why: Why::Unreachable });
            }
        }
    }

    /// Its subflows end, and the link is as it was.
    pub(super) fn kill(&mut self, link: LinkId, why: Why) {
        let gone: Vec<_> = self.flows.iter().filter(|(_, flow)| flow.link == link).map(|(id, _)| *id).collect();
        for subflow in gone {
            if let Some(flow) = self.flows.remove(&subflow) {
                self.tell(Input::SubflowDown { conn: flow.conn, subflow, why });
            }
        }
    }

    /// Whether full-sized packets of a subflow that begins now vanish.
    fn vanishes(&self, link: LinkId) -> Option<Instant> {
        let most = self.path_mtus.get(&link)?;
        (self.mtus.get(&link).copied().unwrap_or(1500) > *most).then_some(self.now)
    }

    fn down(&self, link: LinkId) -> bool {
        self.paths.links().any(|view| view.link == link && !view.up)
    }

    /// Senders whose packets vanish back off; one whose retransmission arrives goes on.
    fn retransmit(&mut self) {
        if !self.backs_off {
            return;
        }
        let (now, first) = (self.now, Duration::from_millis(300));
        let gone: BTreeSet<LinkId> = self.rates.keys().copied().filter(|link| self.down(*link)).collect();
        for flow in self.flows.values_mut() {
            let vanishes = gone.contains(&flow.link) || self.silent.contains(&flow.link);
            match &mut flow.backed_off {
                None if vanishes => {
                    flow.backed_off = Some(Backoff { since: now, due: now + first, fired: 0, answer: None });
                }
                Some(off) if off.answer.is_some_and(|at| now >= at) => flow.backed_off = None,
                Some(off) if now >= off.due && off.answer.is_none() => {
                    let rtt = self.rtt.get(&flow.link).copied().unwrap_or_default();
                    off.fired += 1;
                    off.due += (off.due - off.since).min(Duration::from_secs(120));
                    off.answer = (!vanishes).then(|| now + rtt);
                }
                _ => {}
            }
        }
    }

    /// The server gives a subflow that cannot carry its first window, and sends it over another one later.
    fn lose_first_window(&mut self, conns: &BTreeSet<ConnId>) {
        for flow in self.flows.values_mut().filter(|flow| !flow.given && !flow.backup && flow.received == 0.0) {
            let limited = self.limited.contains_key(&flow.conn) && flow.link != WIFI;
            let vanishes = flow.vanish.is_some() || self.silent.contains(&flow.link);
            if vanishes && !limited && conns.contains(&flow.conn) {
                let sent = self.sent.entry(flow.conn).or_default();
                (sent.next, sent.lost) = (sent.next + WINDOW, sent.lost + WINDOW);
                (sent.again, flow.given) = (self.now + Duration::from_millis(300), true);
                if self.small_passes {
                    flow.received += SMALL;
                    sent.lost -= SMALL;
                    flow.reached = Some(sent.next - WINDOW + SMALL);
                }
            }
        }
    }

    /// Moves bytes for one step.
    fn flow(&mut self) {
        let seconds = STEP.as_secs_f64();
        self.retransmit();
        let conns: BTreeSet<ConnId> =
            self.left.iter().filter(|(_, left)| **left > 0.0).map(|(conn, _)| *conn).collect();
        self.lose_first_window(&conns);
        for (link, rate) in self.rates.clone() {
            if self.silent.contains(&link) || self.down(link) {
                continue;
            }
            let alive = |flow: &Flow| !self.silent.contains(&flow.link) && flow.backed_off.is_none();
            let front: BTreeSet<ConnId> =
                self.flows.values().filter(|flow| !flow.backup && alive(flow)).map(|flow| flow.conn).collect();
            let takers: Vec<SubflowId> = self
                .flows
                .iter()
                .filter(|(_, flow)| {
                    flow.link == link
                        && conns.contains(&flow.conn)
                        && flow.backed_off.is_none()
                        && flow.vanish.is_none()
                        && (link == WIFI || !self.limited.contains_key(&flow.conn))
                })
                .filter(|(_, flow)| !flow.backup || !front.contains(&flow.conn) || flow.queued > 0.0)
                .map(|(id, _)| *id)
                .collect();
            for id in &takers {
                let Some(flow) = self.flows.get_mut(id) else { continue };
                let mut bytes = rate * seconds / takers.len() as f64;
                if flow.backup && front.contains(&flow.conn) {
                    bytes = bytes.min(flow.queued);
                    flow.queued -= bytes;
                }
                let left = self.left.entry(flow.conn).or_default();
                let limit = self.limited.get(&flow.conn).map_or(f64::INFINITY, |rate| rate * seconds);
                let bytes = bytes.min(*left).min(limit);
                *left -= bytes;
                flow.received += bytes;
                let sent = self.sent.entry(flow.conn).or_default();
                let again = if self.now >= sent.again { bytes.min(sent.lost) } else { 0.0 };
                sent.lost -= again;
                if bytes > again {
                    sent.next += bytes - again;
                    flow.reached = Some(sent.next);
                }
                if *left <= 0.0 {
                    self.ended.insert(flow.conn, self.now);
                }
            }
        }
    }

    pub(super) fn run(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while self.now < end {
            self.flow();
            self.now += STEP;
            while let Some((key, input)) = self.later.first_key_value().map(|(key, input)| (*key, input.clone())) {
                if key.0 > self.now {
                    break;
                }
                self.later.remove(&key);
                if let Input::SubflowUp { conn, subflow } = &input {
                    let link = subflow.link.unwrap();
                    if self.silent.contains(&link) {
                        continue;
                    }
                    let flow = Flow::new(*conn, link, subflow.backup, self.vanishes(link));
                    let second = self.flows.values().any(|flow| flow.conn == *conn && flow.link == link);
                    if self.refuse.contains(&link) || second && self.refuse_second {
                        let (conn, id) = (*conn, subflow.id);
                        self.after(
                            Duration::from_millis(36),
                            Input::SubflowDown { conn, subflow: id, why: Why::Reset },
                        );
                    } else {
                        self.flows.insert(subflow.id, flow);
                    }
                }
                self.tell(input);
            }
            if self.paths.deadline().is_some_and(|(at, _)| at <= self.now) {
                self.paths.tick(self.now);
                self.drain();
                let next = self.paths.deadline();
                assert!(next.is_none_or(|(at, _)| at > self.now), "{next:?} at {:?}", self.now);
            }
        }
    }

    /// Until everything is there.
    pub(super) fn finish(&mut self, seconds: f64) -> f64 {
        let begin = self.now;
        while self.left.values().any(|left| *left > 0.0) && self.now.since(begin).as_secs_f64() < seconds {
            self.run(0.1);
        }
        self.ended.values().max().map_or(f64::INFINITY, |end| end.since(begin).as_secs_f64())
    }

    pub(super) fn joules(&self) -> f64 {
        self.paths.finish(self.now).total().as_joules_f64()
    }

    pub(super) fn received(&self, link: LinkId) -> u64 {
        self.paths.links().find(|view| view.link == link).map_or(0, |view| view.carried.bytes())
    }

    pub(super) fn joins(&self, link: LinkId) -> usize {
        self.commands
            .iter()
            .filter(|(_, what)| matches!(what, Command::Join { link: to, .. } if *to == link))
            .count()
    }

    /// Subflows over a link that there are.
    pub(super) fn subflows(&self, link: LinkId) -> usize {
        self.flows.values().filter(|flow| flow.link == link).count()
    }

    pub(super) fn state(&self, conn: ConnId) -> String {
        self.paths.view(conn).unwrap().state
    }
}
