//! Data: MPTCP's scheduler at the server, pieces on their way, reassembly, acknowledgements, failure.
//!
//! 1. The scheduler is upstream's (net/mptcp/protocol.c, `mptcp_subflow_get_send`): of the subflows that are no backups
//!    and not stale, the one whose queue lasts shortest at its pacing rate gets a burst of 64 KB; if that one has no
//!    room, nobody gets anything. Backups count where there is nothing else.
//! 2. Not more is out than the client's window, nor than the send buffers of all subflows hold; both count from the oldest
//!    byte that the client has not acknowledged in order. So a burst on a slow link holds everything back (head of line).
//! 3. What a stale or reset subflow held is given to others; a stale one keeps it as well, and sends it when it can.

use marline_core::energy::Direction;
use marline_core::link::LinkId;
use marline_core::units::DataSize;

use super::super::Data;
use super::super::lane::Fate;
use super::super::sender::Piece;
use super::{Event, Kernel, Stage};

/// MPTCP_SEND_BURST_SIZE.
const BURST: u64 = 65_536;
/// What a subflow may bring before anybody can tell that its MP_PRIO was lost.
const UNHEARD: u64 = 3000;

impl Kernel {
    /// Gives data to subflows, and lets them send.
    pub(super) fn push(&mut self, at: usize) {
        while let Some((sub, data)) = self.schedule(at) {
            let chosen = &mut self.subs[sub];
            chosen.given += data.len;
            chosen.mapped.push_back(data);
            // A backup gets something only where nothing else works.
            chosen.drained = chosen.drained.map(|_| chosen.given);
            self.subs[sub].sender.take(data);
            self.pump(sub);
        }
        for sub in self.conns[at].subs.clone() {
            self.pump(sub);
        }
    }

    fn schedule(&mut self, at: usize) -> Option<(usize, Data)> {
        let conn = &self.conns[at];
        let usable = |sub: &&usize| self.subs[**sub].there && !self.subs[**sub].sender.is_stale();
        let active = || conn.subs.iter().filter(usable);
        let any = active().any(|sub| !self.subs[*sub].heard);
        let room: u64 = active().map(|sub| self.subs[*sub].sender.room()).sum();
        let room = room.min(self.scene.server.window.bytes());
        let lingers = |sub: usize| {
            let sender = &self.subs[sub].sender;
            sender.holds() as f64 / sender.pace.max(1.0)
        };
        let best = active().copied().filter(|sub| !any || !self.subs[*sub].heard);
        let best = best.min_by(|a, b| lingers(*a).total_cmp(&lingers(*b)))?;
        let holds = self.subs[best].sender.holds();
        if holds >= self.subs[best].sender.room() {
            return None;
        }
        let conn = &mut self.conns[at];
        let acknowledged = conn.acknowledged;
        while conn.again.front().is_some_and(|data| data.at + data.len <= acknowledged) {
            conn.again.pop_front();
        }
        let data = if let Some(first) = conn.again.front_mut() {
            let len = first.len.min(BURST);
            let data = Data { at: first.at, len };
            first.at += len;
            first.len -= len;
            if first.len == 0 {
                conn.again.pop_front();
            }
            data
        } else {
            let out = conn.next - conn.acknowledged;
            let len = BURST.min(conn.ready - conn.next).min(room.saturating_sub(out));
            let data = Data { at: conn.next, len };
            conn.next += len;
            data
        };
        if data.len == 0 {
            return None;
        }
        let sender = &mut self.subs[best].sender;
        let (held, new) = (holds as f64, data.len as f64);
        sender.pace = (sender.pace * held + sender.rate() * new) / (held + new);
        Some((best, data))
    }

    /// A subflow sends what it may.
    pub(super) fn pump(&mut self, at: usize) {
        if !self.subs[at].there {
            return;
        }
        let mss = self.mss();
        let link = self.subs[at].link;
        while let Some(piece) = self.subs[at].sender.next(self.now) {
            let number = self.subs[at].sender.number();
            let packets = piece.data.len.div_ceil(mss);
            let wire = piece.data.len + packets * (1500 - mss);
            if let Fate::Arrives(then) = self.links[link].send(self.now, wire, packets) {
                self.plan(then, Event::Arrives(at, piece, number));
            }
        }
        self.set_timer(at);
    }

    pub(super) fn arrives(&mut self, at: usize, piece: Piece, number: u64) {
        let (link, conn, mss) = (self.subs[at].link, self.subs[at].conn, self.mss());
        if !self.links[link].carrier {
            return;
        }
        let wire = piece.data.len + piece.data.len.div_ceil(mss) * (1500 - mss);
        self.links[link].received += wire;
        let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
        self.meter.on_bytes(self.now, id, Direction::Down, DataSize::from_bytes(wire));
        if !self.subs[at].here {
            if self.subs[at].there
                && let Some(then) = self.links[link].ask(self.now)
            {
                self.plan(then, Event::Reset(at));
            }
            return;
        }
        self.came[link] += piece.data.len;
        if let Some((bytes, since)) = &mut self.subs[at].unheard {
            *bytes += piece.data.len;
            if *bytes > UNHEARD {
                let since = since.get_or_insert(self.now);
                self.unheard = self.unheard.max(self.now.since(*since));
            }
        }
        if self.subs[at].drained.is_some_and(|from| piece.seq >= from) {
            self.leaked[link] += piece.data.len;
        }
        for data in self.subs[at].receiver.take(piece.seq, piece.data) {
            self.conns[conn].reassembly.take(data);
        }
        let upto = self.conns[conn].reassembly.next();
        if let Some(then) = self.links[link].ask(self.now) {
            self.plan(then, Event::Acked(at, number, upto));
        }
        let conn = &mut self.conns[conn];
        if conn.stage != Stage::Closed && upto == conn.asked && conn.answered < conn.asked {
            conn.answered = conn.asked;
            self.next_request(self.subs[at].conn);
        }
    }

    pub(super) fn acked(&mut self, at: usize, number: u64, upto: u64) {
        let conn = self.subs[at].conn;
        self.conns[conn].acknowledged = self.conns[conn].acknowledged.max(upto);
        let (acknowledged, sub) = (self.conns[conn].acknowledged, &mut self.subs[at]);
        if sub.there {
            sub.sender.on_ack(self.now, number);
            while sub.mapped.front().is_some_and(|data| data.at + data.len <= acknowledged) {
                sub.mapped.pop_front();
            }
        }
        if self.conns[conn].stage != Stage::Closed {
            self.push(conn);
        }
    }

    fn set_timer(&mut self, at: usize) {
        if !self.subs[at].timer
            && let Some(then) = self.subs[at].sender.deadline()
        {
            self.subs[at].timer = true;
            self.plan(then, Event::Timer(at));
        }
    }

    pub(super) fn timer(&mut self, at: usize) {
        self.subs[at].timer = false;
        if !self.subs[at].there {
            return;
        }
        if self.subs[at].sender.on_deadline(self.now) {
            self.give_back(at);
        }
        self.push(self.subs[at].conn);
        self.set_timer(at);
    }

    /// The server learns that a subflow is gone.
    pub(super) fn reset(&mut self, at: usize) {
        if std::mem::take(&mut self.subs[at].there) {
            self.give_back(at);
            // What had come out of order was acknowledged to the subflow's sender, and is gone with the subflow.
            let waiting: Vec<Data> = self.subs[at].receiver.waiting().collect();
            let conn = &mut self.conns[self.subs[at].conn];
            conn.again.extend(waiting);
            conn.again.make_contiguous().sort_by_key(|data| data.at);
            self.push(self.subs[at].conn);
        }
    }

    /// What a subflow was given goes to others, also what has come there behind a gap and was acknowledged selectively.
    fn give_back(&mut self, at: usize) {
        let conn = &mut self.conns[self.subs[at].conn];
        let acknowledged = conn.acknowledged;
        for data in &self.subs[at].mapped {
            let from = data.at.max(acknowledged);
            let end = data.at + data.len;
            if end > from {
                conn.again.push_back(Data { at: from, len: end - from });
            }
        }
        conn.again.make_contiguous().sort_by_key(|data| data.at);
    }

    pub(super) fn prio(&mut self, at: usize, backup: bool) {
        let sub = &mut self.subs[at];
        sub.heard = backup;
        sub.unheard = sub.unheard.filter(|_| !backup);
        sub.drained = backup.then_some(sub.given);
        self.push(self.subs[at].conn);
    }
}
