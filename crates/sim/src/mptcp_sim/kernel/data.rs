//! Data transfer: the server's MPTCP scheduler, chunks in transit, reassembly, acknowledgements, reinjection.
//!
//! 1. The scheduler is the upstream kernel's (`mptcp_subflow_get_send` in net/mptcp/protocol.c). Of the subflows
//!    that are neither backups nor stale, the one whose queue drains first at its pacing rate gets a burst of 64
//!    KB. If its send buffer is full, no subflow gets data. Backups are used only if there is nothing else.
//! 2. The outstanding data is limited by the client's window and by the sum of the send buffers of all subflows.
//!    Both count from the oldest byte that the client has not acknowledged in order. So a burst on a slow link
//!    blocks everything (head-of-line blocking).
//! 3. Data of a stale or reset subflow is reinjected on others; a stale subflow also keeps it and sends it when it
//!    can.

use marline_core::energy::Direction;
use marline_core::link::LinkId;
use marline_core::units::DataSize;

use super::super::DataRange;
use super::super::link::SendOutcome;
use super::super::sender::Chunk;
use super::{ConnStage, Event, KernelModel};

/// MPTCP_SEND_BURST_SIZE of the Linux kernel.
const SEND_BURST: u64 = 65_536;
/// Bytes that a subflow may deliver before a lost MP_PRIO can be noticed.
const MAX_BYTES_BEFORE_PRIO: u64 = 3000;

impl KernelModel {
    /// Assigns data to subflows and lets them send.
    pub(super) fn schedule_data(&mut self, conn: usize) {
        while let Some((sub, data)) = self.next_data(conn) {
            let chosen = &mut self.subflows[sub];
            chosen.assigned_bytes += data.len;
            chosen.unacked.push_back(data);
            // A backup gets data only if nothing else works; this data is not counted as leaked.
            chosen.backup_since = chosen.backup_since.map(|_| chosen.assigned_bytes);
            self.subflows[sub].sender.enqueue(data);
            self.send_pending(sub);
        }
        for sub in self.conns[conn].subflows.clone() {
            self.send_pending(sub);
        }
    }

    fn next_data(&mut self, conn_index: usize) -> Option<(usize, DataRange)> {
        let conn = &self.conns[conn_index];
        let usable =
            |sub: &&usize| self.subflows[**sub].is_open_at_server && !self.subflows[**sub].sender.is_stale();
        let open_subflows = || conn.subflows.iter().filter(usable);
        let any_non_backup = open_subflows().any(|sub| !self.subflows[*sub].server_backup);
        let send_space: u64 = open_subflows().map(|sub| self.subflows[*sub].sender.send_buffer()).sum();
        let send_space = send_space.min(self.scenario.server.receive_window.bytes());
        let drain_time = |sub: usize| {
            let sender = &self.subflows[sub].sender;
            sender.buffered_bytes() as f64 / sender.pacing_rate.max(1.0)
        };
        let best = open_subflows().copied().filter(|sub| !any_non_backup || !self.subflows[*sub].server_backup);
        let best = best.min_by(|a, b| drain_time(*a).total_cmp(&drain_time(*b)))?;
        let buffered = self.subflows[best].sender.buffered_bytes();
        if buffered >= self.subflows[best].sender.send_buffer() {
            return None;
        }
        let conn = &mut self.conns[conn_index];
        let acknowledged = conn.acknowledged;
        // Data that was acknowledged over another subflow meanwhile is not reinjected.
        while conn.retransmit_queue.front().is_some_and(|data| data.offset + data.len <= acknowledged) {
            conn.retransmit_queue.pop_front();
        }
        let data = if let Some(first) = conn.retransmit_queue.front_mut() {
            let len = first.len.min(SEND_BURST);
            let data = DataRange { offset: first.offset, len };
            first.offset += len;
            first.len -= len;
            if first.len == 0 {
                conn.retransmit_queue.pop_front();
            }
            data
        } else {
            let outstanding = conn.next_offset - conn.acknowledged;
            let len =
                SEND_BURST.min(conn.sendable_end - conn.next_offset).min(send_space.saturating_sub(outstanding));
            let data = DataRange { offset: conn.next_offset, len };
            conn.next_offset += len;
            data
        };
        if data.len == 0 {
            return None;
        }
        // As in the kernel, the mean of both rates is weighted by the queued and the new data.
        let sender = &mut self.subflows[best].sender;
        let (buffered_bytes, new) = (buffered as f64, data.len as f64);
        sender.pacing_rate =
            (sender.pacing_rate * buffered_bytes + sender.current_pacing_rate() * new) / (buffered_bytes + new);
        Some((best, data))
    }

    /// Sends as much as the subflow's congestion window allows.
    pub(super) fn send_pending(&mut self, sub: usize) {
        if !self.subflows[sub].is_open_at_server {
            return;
        }
        let mss = self.mss();
        let link = self.subflows[sub].link;
        while let Some(chunk) = self.subflows[sub].sender.next_chunk(self.now) {
            let number = self.subflows[sub].sender.last_transmission();
            let packets = chunk.data.len.div_ceil(mss);
            let wire_bytes = chunk.data.len + packets * (1500 - mss);
            if let SendOutcome::Arrives(arrival) = self.links[link].send(self.now, wire_bytes, packets) {
                self.schedule_event(arrival, Event::DataArrived(sub, chunk, number));
            }
        }
        self.arm_timer(sub);
    }

    pub(super) fn on_data(&mut self, sub: usize, chunk: Chunk, number: u64) {
        let (link, conn, mss) = (self.subflows[sub].link, self.subflows[sub].conn, self.mss());
        if !self.links[link].has_carrier {
            return;
        }
        let wire_bytes = chunk.data.len + chunk.data.len.div_ceil(mss) * (1500 - mss);
        self.links[link].received += wire_bytes;
        let id = LinkId(u16::try_from(link).unwrap_or(u16::MAX));
        self.meter.on_bytes(self.now, id, Direction::Down, DataSize::from_bytes(wire_bytes));
        // The kernel responds to data of a destroyed subflow with a reset.
        if !self.subflows[sub].is_open_at_client {
            if self.subflows[sub].is_open_at_server
                && let Some(arrival) = self.links[link].send_control(self.now)
            {
                self.schedule_event(arrival, Event::ResetArrived(sub));
            }
            return;
        }
        self.link_payload[link] += chunk.data.len;
        if let Some((bytes, since)) = &mut self.subflows[sub].prio_lag {
            *bytes += chunk.data.len;
            if *bytes > MAX_BYTES_BEFORE_PRIO {
                let since = since.get_or_insert(self.now);
                self.max_prio_lag = self.max_prio_lag.max(self.now.since(*since));
            }
        }
        if self.subflows[sub].backup_since.is_some_and(|from| chunk.seq >= from) {
            self.leaked_payload[link] += chunk.data.len;
        }
        for data in self.subflows[sub].receiver.on_data(chunk.seq, chunk.data) {
            self.conns[conn].reassembly.insert(data);
        }
        let next_offset = self.conns[conn].reassembly.next_offset();
        if let Some(arrival) = self.links[link].send_control(self.now) {
            self.schedule_event(arrival, Event::AckArrived(sub, number, next_offset));
        }
        // When the response is complete, the application sends its next request.
        let conn = &mut self.conns[conn];
        if conn.stage != ConnStage::Closed
            && next_offset == conn.requested_end
            && conn.response_end < conn.requested_end
        {
            conn.response_end = conn.requested_end;
            self.next_request(self.subflows[sub].conn);
        }
    }

    pub(super) fn on_ack(&mut self, sub_index: usize, number: u64, next_offset: u64) {
        let conn = self.subflows[sub_index].conn;
        self.conns[conn].acknowledged = self.conns[conn].acknowledged.max(next_offset);
        let (acknowledged, sub) = (self.conns[conn].acknowledged, &mut self.subflows[sub_index]);
        if sub.is_open_at_server {
            sub.sender.on_ack(self.now, number);
            while sub.unacked.front().is_some_and(|data| data.offset + data.len <= acknowledged) {
                sub.unacked.pop_front();
            }
        }
        if self.conns[conn].stage != ConnStage::Closed {
            self.schedule_data(conn);
        }
    }

    fn arm_timer(&mut self, sub: usize) {
        if !self.subflows[sub].is_timer_armed
            && let Some(deadline) = self.subflows[sub].sender.deadline()
        {
            self.subflows[sub].is_timer_armed = true;
            self.schedule_event(deadline, Event::Timer(sub));
        }
    }

    pub(super) fn on_timer(&mut self, sub: usize) {
        self.subflows[sub].is_timer_armed = false;
        if !self.subflows[sub].is_open_at_server {
            return;
        }
        if self.subflows[sub].sender.on_deadline(self.now) {
            self.requeue_data(sub);
        }
        self.schedule_data(self.subflows[sub].conn);
        self.arm_timer(sub);
    }

    /// The server learns that a subflow is gone.
    pub(super) fn on_reset(&mut self, sub: usize) {
        if std::mem::take(&mut self.subflows[sub].is_open_at_server) {
            self.requeue_data(sub);
            // Out-of-order data was acknowledged to the subflow's sender, but is lost with the subflow.
            let out_of_order: Vec<DataRange> = self.subflows[sub].receiver.out_of_order().collect();
            let conn = &mut self.conns[self.subflows[sub].conn];
            conn.retransmit_queue.extend(out_of_order);
            conn.retransmit_queue.make_contiguous().sort_by_key(|data| data.offset);
            self.schedule_data(self.subflows[sub].conn);
        }
    }

    /// Reinjects a subflow's data on others, including data that arrived behind a gap and was selectively
    /// acknowledged.
    fn requeue_data(&mut self, sub: usize) {
        let conn = &mut self.conns[self.subflows[sub].conn];
        let acknowledged = conn.acknowledged;
        for data in &self.subflows[sub].unacked {
            let from = data.offset.max(acknowledged);
            let end = data.offset + data.len;
            if end > from {
                conn.retransmit_queue.push_back(DataRange { offset: from, len: end - from });
            }
        }
        conn.retransmit_queue.make_contiguous().sort_by_key(|data| data.offset);
    }

    pub(super) fn on_mp_prio(&mut self, sub_index: usize, backup: bool) {
        let sub = &mut self.subflows[sub_index];
        sub.server_backup = backup;
        sub.prio_lag = sub.prio_lag.filter(|_| !backup);
        sub.backup_since = backup.then_some(sub.assigned_bytes);
        self.schedule_data(self.subflows[sub_index].conn);
    }
}
