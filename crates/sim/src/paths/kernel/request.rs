//! Requests: what the client sends, until the server has heard it.
//!
//! 1. A request is one packet. One that is not acknowledged is sent again on its subflow after a retransmission timeout,
//!    doubled each time; after [`STALE`] of them it goes over another subflow as well, a backup if there is nothing else.
//! 2. Whoever waits for an answer of which nothing has come for [`PATIENCE`] asks whether anybody is there, as protocols
//!    with pings do. This is what tells of a path that died while the server had something to send over it.

use marline_core::units::{DataSize, Duration};

use super::{Event, Kernel, Stage};

impl Kernel {
    pub(super) fn ask(&mut self, conn: usize, size: DataSize) {
        let state = &mut self.conns[conn];
        state.asked += size.bytes();
        state.requested = Some(size);
        let then = [state.asked, state.reassembly.next()];
        self.plan(self.now + PATIENCE, Event::Ping(conn, then));
        self.request(conn);
    }

    /// A request goes over the subflow that looks best: no stale one, and a backup only if there is nothing else.
    fn request(&mut self, conn: usize) {
        let best = self.conns[conn].subs.iter().copied().filter(|sub| self.subs[*sub].here);
        let best = best.min_by_key(|sub| (self.subs[*sub].timeouts >= STALE, self.subs[*sub].backup));
        if let Some(sub) = best.filter(|sub| self.subs[*sub].waiting == 0) {
            self.send_request(sub, 0);
        }
    }

    fn send_request(&mut self, sub: usize, tries: u32) {
        self.subs[sub].waiting = REQUEST;
        if let Some(then) = self.control(self.subs[sub].link) {
            self.plan(then, Event::Asked(sub));
        }
        let timeout = (self.subs[sub].rtt + LEAST_TIMEOUT) * (1 << tries.min(MOST_BACKOFF));
        self.plan(self.now + timeout, Event::Again(sub, tries));
    }

    /// The server has got a request, perhaps not for the first time.
    pub(super) fn asked(&mut self, sub: usize) {
        let (conn, link) = (self.subs[sub].conn, self.subs[sub].link);
        if let Some(size) = self.conns[conn].requested.take() {
            self.conns[conn].ready += size.bytes();
            self.push(conn);
        }
        if self.links[link].answers(self.now) {
            self.plan(self.now + self.links[link].way(), Event::Heard(sub));
        }
    }

    /// A retransmission timeout of the client.
    pub(super) fn again(&mut self, sub: usize, tries: u32) {
        let conn = self.subs[sub].conn;
        if self.conns[conn].stage == Stage::Closed {
            return;
        }
        if self.subs[sub].here && self.subs[sub].waiting > 0 {
            self.subs[sub].timeouts = self.subs[sub].timeouts.saturating_add(1);
            self.send_request(sub, tries + 1);
        }
        if self.conns[conn].requested.is_some() {
            self.request(conn);
        }
    }

    pub(super) fn ping(&mut self, conn: usize, then: [u64; 2]) {
        let state = &self.conns[conn];
        if state.stage == Stage::Closed || state.asked != then[0] || state.answered == state.asked {
            return;
        }
        let now = [state.asked, state.reassembly.next()];
        if now == then {
            self.request(conn);
        }
        self.plan(self.now + PATIENCE, Event::Ping(conn, now));
    }
}

/// Bytes of a request.
const REQUEST: u64 = 300;
/// Linux's TCP_RTO_MIN.
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);
/// Doublings: 200 ms become 102 s.
const MOST_BACKOFF: u32 = 9;
/// Timeouts after which the data goes over another subflow as well.
const STALE: u8 = 2;
/// chosen: what HTTP/2 and WebSocket clients use.
const PATIENCE: Duration = Duration::from_secs(30);
