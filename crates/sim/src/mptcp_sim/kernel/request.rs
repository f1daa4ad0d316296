//! Requests from the client to the server, with retransmission and pings.
//!
//! 1. A request is one packet. Without an acknowledgement it is retransmitted on its subflow after a timeout that
//!    doubles each time. After `STALE_TIMEOUTS` timeouts it is also sent over another subflow, a backup if there is
//!    nothing else.
//! 2. A client that has received nothing of a response for `PING_INTERVAL` sends a ping, as protocols with pings
//!    do. This detects a path that died while the server had data to send over it.

use marline_core::units::{DataSize, Duration};

use super::{ConnStage, Event, KernelModel};

impl KernelModel {
    pub(super) fn client_request(&mut self, conn: usize, size: DataSize) {
        let state = &mut self.conns[conn];
        state.requested_end += size.bytes();
        state.pending_request = Some(size);
        let progress = [state.requested_end, state.reassembly.next_offset()];
        self.schedule_event(self.now + PING_INTERVAL, Event::Ping(conn, progress));
        self.send_on_best_subflow(conn);
    }

    /// Sends the request over the best subflow: preferably not stale, then preferably no backup.
    fn send_on_best_subflow(&mut self, conn: usize) {
        let best = self.conns[conn].subflows.iter().copied().filter(|sub| self.subflows[*sub].is_open_at_client);
        let best = best
            .min_by_key(|sub| (self.subflows[*sub].timeouts >= STALE_TIMEOUTS, self.subflows[*sub].client_backup));
        if let Some(sub) = best.filter(|sub| self.subflows[*sub].request_bytes_unacked == 0) {
            self.send_request(sub, 0);
        }
    }

    fn send_request(&mut self, sub: usize, attempt: u32) {
        self.subflows[sub].request_bytes_unacked = REQUEST_BYTES;
        if let Some(arrival) = self.send_control(self.subflows[sub].link) {
            self.schedule_event(arrival, Event::RequestArrived(sub));
        }
        let rto = (self.subflows[sub].rtt + MIN_RTO) * (1 << attempt.min(MAX_BACKOFF));
        self.schedule_event(self.now + rto, Event::RequestTimeout(sub, attempt));
    }

    /// The server has received a request, possibly a duplicate.
    pub(super) fn on_request(&mut self, sub: usize) {
        let (conn, link) = (self.subflows[sub].conn, self.subflows[sub].link);
        if let Some(size) = self.conns[conn].pending_request.take() {
            self.conns[conn].sendable_end += size.bytes();
            self.schedule_data(conn);
        }
        if self.links[link].carries_response(self.now) {
            self.schedule_event(self.now + self.links[link].one_way_delay(), Event::RequestAcked(sub));
        }
    }

    /// The client's retransmission timeout has expired.
    pub(super) fn on_request_timeout(&mut self, sub: usize, attempt: u32) {
        let conn = self.subflows[sub].conn;
        if self.conns[conn].stage == ConnStage::Closed {
            return;
        }
        if self.subflows[sub].is_open_at_client && self.subflows[sub].request_bytes_unacked > 0 {
            self.subflows[sub].timeouts = self.subflows[sub].timeouts.saturating_add(1);
            self.send_request(sub, attempt + 1);
        }
        if self.conns[conn].pending_request.is_some() {
            self.send_on_best_subflow(conn);
        }
    }

    pub(super) fn on_ping_due(&mut self, conn: usize, progress_before: [u64; 2]) {
        let state = &self.conns[conn];
        if state.stage == ConnStage::Closed
            || state.requested_end != progress_before[0]
            || state.response_end == state.requested_end
        {
            return;
        }
        let progress = [state.requested_end, state.reassembly.next_offset()];
        if progress == progress_before {
            self.send_on_best_subflow(conn);
        }
        self.schedule_event(self.now + PING_INTERVAL, Event::Ping(conn, progress));
    }
}

/// Size of a request.
const REQUEST_BYTES: u64 = 300;
/// Minimum variance term of the timeout: Linux's TCP_RTO_MIN.
const MIN_RTO: Duration = Duration::from_millis(200);
/// Maximum number of doublings: 200 ms become 102 s.
const MAX_BACKOFF: u32 = 9;
/// Timeouts after which the request is also sent over another subflow.
const STALE_TIMEOUTS: u8 = 2;
/// Our choice: usual for clients of HTTP/2 and WebSocket.
const PING_INTERVAL: Duration = Duration::from_secs(30);
