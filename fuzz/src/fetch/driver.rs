//! A driver that keeps its obligations and lets everything else happen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::LazyLock;

use marline_core::fetch::{
    Ask, Config, ConnId, Fetch, Head, Input, Output, PathSample, Policy, Protocol, ReqId, Span, Trouble,
    TroubleKind,
};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::machine::Machine;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::contract::{Checked, Log};
use marline_sim::fuzz_fetch::reference::{Ledger, Page, Source, Wrong};

use super::{KINDS, MOST_OUTPUTS, head};
use crate::bytes::Bytes;

/// A download under way.
pub(super) struct Driver {
    machine: Checked<Config, Fetch>,
    config: Config,
    /// Bytes of the honest server's file.
    size: u64,
    protocol: Protocol,
    /// Deadlines are kept to the nanosecond; otherwise they are heard late, as on a busy machine.
    punctual: bool,
    now: Instant,
    links: BTreeMap<LinkId, LinkProfile>,
    conns: BTreeMap<ConnId, Conn>,
    ledger: Ledger,
    total: Option<DataSize>,
    consumed: u64,
    /// Bytes that the machine wants to be compared with their digest.
    unverified: Option<Span>,
    over: bool,
}

#[derive(Debug)]
struct Conn {
    open: bool,
    answers: VecDeque<Answer>,
}

#[derive(Debug)]
struct Answer {
    req: ReqId,
    ask: Ask,
    head: Option<Head>,
    /// Bytes that may still be taken of it, once it is accepted.
    room: Option<u64>,
    /// Bytes of its body that are still to come; none: until it ends.
    left: Option<u64>,
}

impl Driver {
    pub(super) fn new(config: Config, size: u64, bytes: &mut Bytes<'_>) -> Self {
        let manner = bytes.u8();
        let mut ledger = Ledger::default();
        if let Some(resume) = &config.resume {
            let whole = Span::at(0, resume.total);
            let have: Vec<_> = resume.have.iter().map(|have| have.intersect(whole)).collect();
            ledger.resume(resume.total, &have);
        }
        Self {
            machine: Checked::new(config.clone(), Fetch::new(config.clone())),
            total: config.resume.as_ref().map(|resume| resume.total),
            config,
            size,
            protocol: if manner & 1 == 0 { Protocol::Http1 } else { Protocol::Http2 },
            punctual: manner & 2 == 0,
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            ledger,
            consumed: 0,
            unverified: None,
            over: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// The log so far, and the same driver with a new one.
    pub(super) fn cut(self) -> (Self, Log<Config, Fetch>) {
        let (machine, log) = self.machine.into_parts();
        (Self { machine: Checked::new(self.config.clone(), machine), ..self }, log)
    }

    /// Useful bytes as the machine counts them, and different bytes in place.
    pub(super) fn useful(self) -> (DataSize, DataSize) {
        (self.machine.into_parts().0.status().done, self.ledger.covered())
    }

    /// One thing happens.
    pub(super) fn step(&mut self, bytes: &mut Bytes<'_>) {
        let (what, which) = (bytes.u8(), bytes.u8());
        // Time passes before it: none, a little, or long enough for every pause.
        let passes = match what >> 5 {
            0..=2 => Duration::ZERO,
            3 => Duration::from_micros(u64::from(bytes.u8())),
            4 | 5 => Duration::from_millis(u64::from(bytes.u8())),
            6 => Duration::from_millis(u64::from(bytes.u8()) * 50),
            _ => Duration::from_secs(u64::from(bytes.u8())),
        };
        self.pass(passes);
        self.verify(which & 3 != 3);
        match what & 31 {
            0 | 1 => self.link_up(which, bytes),
            2 => self.link_down(which),
            3..=5 => self.connected(which, bytes),
            6..=8 => self.head(which, None),
            9..=12 => self.head(which, Some(bytes)),
            13..=16 => {
                let most = bytes.size();
                self.data(which, most);
            }
            17..=18 => self.data(which, u64::MAX),
            19 | 20 => self.end(which),
            21 => self.aborted(which),
            22 => self.closed(which, bytes),
            23 => self.sample(which, bytes),
            24 | 25 => self.consume(),
            26 => {
                self.machine.tick(self.now);
                self.drain();
            }
            27 => drop(self.pass_deadlines(u32::from(which))),
            _ => (0..which % 32).for_each(|_| self.go_well(bytes.u8())),
        }
    }

    /// Everybody is silent for ever: a thousand deadlines, no flood, and time goes on.
    pub(super) fn silence(&mut self) {
        let start = self.now;
        let passed = self.pass_deadlines(SILENT);
        if self.over || self.machine.deadline().is_none() {
            let waits = self.config.window.is_some() || !self.links.values().any(is_plain);
            let stuck = !self.over && self.config.policy == Policy::Marline && !waits;
            assert!(!stuck, "at {} nothing is planned, and nothing will ever happen", self.now);
            return;
        }
        assert_eq!(passed, SILENT);
        assert!(self.now - start >= Duration::from_secs(1), "a thousand deadlines in {:?}", self.now - start);
    }

    /// Ticks at up to so many deadlines; says how many there were.
    fn pass_deadlines(&mut self, most: u32) -> u32 {
        for n in 0..most {
            self.verify(true);
            let Some((at, _)) = self.machine.deadline().filter(|_| !self.over) else { return n };
            self.now = self.now.max(at);
            self.machine.tick(self.now);
            self.drain();
        }
        most
    }

    /// Answers what the machine wants to know of bytes in their place.
    fn verify(&mut self, good: bool) {
        while let Some(span) = self.unverified.take() {
            self.tell(Input::Verified { span, good });
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut ticks = 0;
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= until && self.punctual) {
            self.now = self.now.max(at);
            self.machine.tick(self.now);
            self.drain();
            ticks += 1;
            if ticks > 200 {
                break;
            }
        }
        self.now = until;
    }

    fn tell(&mut self, input: Input) {
        if self.over {
            return;
        }
        show(self.now, '>', &input);
        judge(self.ledger.on_input(&input));
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        let (mut outputs, mut closing) = (0, BTreeSet::new());
        while let Some(output) = self.machine.poll() {
            show(self.now, '<', &output);
            outputs += 1;
            assert!(
                outputs <= MOST_OUTPUTS,
                "more than {MOST_OUTPUTS} orders at {}, the last {output:?}",
                self.now
            );
            assert!(!self.over, "{output:?} after the end");
            judge(self.ledger.on_output(&output));
            self.perform(output, &mut closing);
        }
        let left = closing.iter().find(|conn| self.conns.contains_key(conn));
        assert!(left.is_none(), "an answer of {left:?} was cancelled, and the connection was not closed");
    }

    fn perform(&mut self, output: Output, closing: &mut BTreeSet<ConnId>) {
        match output {
            Output::Connect { conn, link, .. } => {
                assert!(self.links.contains_key(&link), "{conn:?} over {link:?}, which was never there");
                self.conns.insert(conn, Conn { open: false, answers: VecDeque::new() });
            }
            Output::Request { req, conn, range, .. } => {
                let conn = self.conns.get_mut(&conn).expect("the ledger has looked");
                conn.answers.push_back(Answer { req, ask: range, head: None, room: None, left: None });
            }
            Output::Accept { req, at, len, .. } => {
                let end = at.saturating_add(len.map_or(0, DataSize::bytes));
                assert!(
                    self.total.is_none_or(|total| end <= total.bytes()),
                    "{req:?} may go beyond the end, to {end}"
                );
                let answer = self.answer(req);
                assert!(answer.head.is_some() && answer.room.is_none(), "{req:?} accepted out of turn");
                answer.room = Some(len.map_or(u64::MAX, DataSize::bytes));
            }
            Output::Cancel { req } => {
                let conn = self.conns.iter_mut().find(|(_, conn)| conn.answers.iter().any(|a| a.req == req));
                let (id, conn) = conn.expect("cancels what does not live");
                conn.answers.retain(|answer| answer.req != req);
                if self.protocol == Protocol::Http1 {
                    closing.insert(*id);
                }
            }
            Output::Close { conn } => {
                assert!(self.conns.remove(&conn).is_some(), "closes {conn:?}, which is not there");
            }
            Output::Identified { total, .. } => self.total = total,
            Output::Restart => (self.total, self.consumed) = (None, 0),
            Output::Done => {
                let end = self.ledger.frontier();
                judge(self.ledger.on_done(&[DataSize::from_bytes(end)], false));
                assert!(self.total.is_none_or(|total| total.bytes() == end), "done with {end} of {:?}", self.total);
                self.over = true;
            }
            Output::Verify { span } => self.unverified = Some(span),
            Output::Failed(_) => self.over = true,
            Output::Notice(notice) => drop(format!("{notice:?}")),
        }
    }

    fn answer(&mut self, req: ReqId) -> &mut Answer {
        let mut all = self.conns.values_mut().flat_map(|conn| conn.answers.iter_mut());
        all.find(|answer| answer.req == req).expect("the ledger has looked")
    }

    /// Whose bytes these are. Where bytes of several answers may be put together on purpose, all are of one file.
    fn source(&self, req: ReqId, head: &Head) -> Source {
        if self.config.proven || self.config.origins > 1 {
            return Source::Edition(0);
        }
        match &head.validator {
            Some(validator) => Source::Edition((0..4).position(|n| super::validator(n) == *validator).unwrap_or(9)),
            None => Source::Unproven(req, Page::File),
        }
    }

    fn nth(&self, which: u8, wanted: impl Fn(&Conn) -> bool) -> Option<ConnId> {
        let found: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| wanted(conn)).map(|(id, _)| *id).collect();
        found.get(usize::from(which) % found.len().max(1)).copied()
    }

    /// An answer of which something can be said: in HTTP/1.1 the first of its connection.
    fn pick(&self, which: u8, wanted: impl Fn(&Answer) -> bool) -> Option<(ConnId, usize)> {
        let turn = if self.protocol == Protocol::Http1 { 1 } else { usize::MAX };
        let open = self.conns.iter().filter(|(_, conn)| conn.open);
        let all = open.flat_map(|(id, conn)| conn.answers.iter().take(turn).enumerate().map(|(n, a)| (*id, n, a)));
        let found: Vec<_> = all.filter(|(.., answer)| wanted(answer)).map(|(id, n, _)| (id, n)).collect();
        found.get(usize::from(which) % found.len().max(1)).copied()
    }

    fn link_up(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let link = LinkId(u16::from(which & 3));
        let mut profile =
            LinkProfile::new(&format!("link{}", link.0), KINDS[usize::from(which >> 2) % KINDS.len()]);
        profile.metered = which & 16 != 0;
        profile.budget = (which & 32 != 0).then(|| DataSize::from_bytes(bytes.size()));
        profile.limit = (which & 64 != 0).then(|| Bitrate::from_bits_per_sec(bytes.size()));
        self.links.insert(link, profile.clone());
        self.tell(Input::LinkUp { link, profile });
    }

    fn link_down(&mut self, which: u8) {
        let link = LinkId(u16::from(which & 3));
        if self.links.contains_key(&link) {
            self.tell(Input::LinkDown { link });
            self.links.entry(link).and_modify(|profile| profile.metered = true);
        }
    }

    fn connected(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let Some(id) = self.nth(which, |conn| !conn.open) else { return };
        self.open(id, Duration::from_micros(bytes.size()));
    }

    fn open(&mut self, id: ConnId, handshake: Duration) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.open = true;
            self.tell(Input::Connected { conn: id, protocol: self.protocol, handshake, peer: None });
        }
    }

    fn head(&mut self, which: u8, lies: Option<&mut Bytes<'_>>) {
        let Some((id, place)) = self.pick(which, |answer| answer.head.is_none()) else { return };
        let Some(answer) = self.conns.get(&id).map(|conn| &conn.answers[place]) else { return };
        let (req, ask) = (answer.req, answer.ask);
        let mut head = match lies {
            Some(bytes) => head::hostile(bytes, ask, self.size, self.config.origins),
            None => head::honest(ask, self.size),
        };
        match self.protocol {
            Protocol::Http1 => head.closes |= head.length.is_none() && which & 128 != 0,
            Protocol::Http2 => head.closes = false,
        }
        let start =
            head.range.and_then(|range| range.span).filter(|_| head.status == 206).map_or(0, |span| span.start);
        let source = self.source(req, &head);
        let answer = self.answer(req);
        answer.left = head.length.map(DataSize::bytes);
        answer.head = Some(head.clone());
        self.ledger.on_head(req, source, start);
        self.tell(Input::Head { req, head });
    }

    /// Up to `most` bytes of a body. What is more than was allowed ends the connection, or the stream.
    fn data(&mut self, which: u8, most: u64) {
        let Some((id, place)) = self.pick(which, |answer| answer.room.is_some() && answer.left != Some(0)) else {
            return;
        };
        let Some(answer) = self.conns.get_mut(&id).map(|conn| &mut conn.answers[place]) else { return };
        let room = answer.room.unwrap_or(0);
        if room == 0 {
            return self.too_much(id, place);
        }
        // An endless body comes in pieces too.
        let piece = answer.left.unwrap_or(1 << 20).min(room).min(most.max(1));
        answer.room = Some(room - piece);
        answer.left = answer.left.map(|left| left - piece);
        let (req, len) = (answer.req, DataSize::from_bytes(piece));
        self.tell(Input::Data { req, len });
    }

    fn too_much(&mut self, id: ConnId, place: usize) {
        if self.protocol == Protocol::Http1 {
            return self.close(id, TroubleKind::Protocol);
        }
        let answer = self.conns.get_mut(&id).and_then(|conn| conn.answers.remove(place));
        if let Some(Answer { req, .. }) = answer {
            self.tell(Input::Aborted { req, trouble: trouble(TroubleKind::Protocol) });
        }
    }

    fn end(&mut self, which: u8) {
        let Some((id, place)) = self.pick(which, |answer| answer.room.is_some() && answer.left.unwrap_or(0) == 0)
        else {
            return;
        };
        let answer = self.conns.get_mut(&id).and_then(|conn| conn.answers.remove(place));
        let Some(Answer { req, head, .. }) = answer else { return };
        self.tell(Input::End { req });
        if head.is_some_and(|head| head.closes) {
            self.close(id, TroubleKind::Finished);
        }
    }

    fn aborted(&mut self, which: u8) {
        if self.protocol == Protocol::Http2
            && let Some((id, place)) = self.pick(which, |_| true)
            && let Some(Answer { req, .. }) = self.conns.get_mut(&id).and_then(|conn| conn.answers.remove(place))
        {
            self.tell(Input::Aborted { req, trouble: trouble(TroubleKind::Reset) });
        }
    }

    fn closed(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        use TroubleKind::*;
        let Some(id) = self.nth(which, |_| true) else { return };
        let kinds = [Finished, Truncated, Reset, Refused, Unreachable, TimedOut, Name, Tls, Protocol];
        let kind = bytes.one_of(&kinds);
        self.close(id, kind);
    }

    fn close(&mut self, id: ConnId, kind: TroubleKind) {
        if self.conns.remove(&id).is_some() {
            self.tell(Input::Closed { conn: id, trouble: trouble(kind) });
        }
    }

    fn sample(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let Some(conn) = self.nth(which, |conn| conn.open) else { return };
        let mut time = || Duration::from_micros(bytes.size());
        let (rtt, min_rtt, rcv_rtt) = (time(), time(), time());
        let path = PathSample { rtt, min_rtt, rcv_rtt, out_of_order: u32::from(bytes.u8()) };
        self.tell(Input::Sample { conn, path });
    }

    fn consume(&mut self) {
        let upto = self.ledger.frontier();
        if self.config.window.is_some() && upto > self.consumed {
            self.consumed = upto;
            self.tell(Input::Consumed { upto });
        }
    }

    /// The network does what it should for a moment.
    fn go_well(&mut self, which: u8) {
        self.pass(Duration::from_millis(u64::from(which & 15)));
        self.consume();
        if let Some(id) = self.nth(which >> 4, |conn| !conn.open) {
            self.open(id, Duration::from_millis(20));
        }
        self.head(which >> 4, None);
        self.data(which >> 4, 1 << 16);
        self.end(which >> 4);
    }
}

/// Says what happens, for the person who looks into an input with `MARLINE_FUZZ_LOG=1`.
fn show(now: Instant, way: char, what: &dyn Debug) {
    static ASKED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("MARLINE_FUZZ_LOG").is_some());
    if *ASKED {
        eprintln!("{now} {way} {what:?}");
    }
}

/// An input is judged before the machine hears it, an output when it is given.
fn judge(wrong: Wrong) {
    if let Err(wrong) = wrong {
        panic!("{wrong}");
    }
}

/// A link that nothing keeps from being used.
fn is_plain(profile: &LinkProfile) -> bool {
    !profile.metered && profile.budget.is_none() && profile.limit.is_none()
}

fn trouble(kind: TroubleKind) -> Trouble {
    Trouble { kind, text: format!("{kind:?}") }
}

/// Deadlines that pass in the silence at the end.
const SILENT: u32 = 1000;
