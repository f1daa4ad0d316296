//! The driver of a download: one task that owns all sockets, reports events to the machine and executes its
//! outputs.
//!
//! It waits for sockets, timers, link changes and, for a stream, the reader. It writes body bytes to the store,
//! sends messages and progress to the observer, and ends with a result.
//!
//! 1. Everything happens in [`DownloadDriver::poll`], on one thread, without channels or locks. Each event is one
//!    step of the machine (`marline_net::recorded_machine`), whose outputs [`Transfer::execute`] executes. The loop
//!    is this driver's own, because it owns the buffers between sockets and file.
//! 2. Bytes are copied once, from the socket's buffer to the store. The machine is informed of them at most once a
//!    millisecond, and always before any other event.
//! 3. Outputs are executed at once. Their results are inputs of the next iteration. An output that cannot be
//!    executed has a result, too: its connection is reported as closed.
//! 4. A socket sends its queued requests only when it is polled. So an iteration that executed an output is
//!    followed by another one.
//! 5. Connections are polled round-robin, so that they share a rate limit fairly.
//! 6. If the reorder buffer of a stream is full, the driver stops reading the responses that would overfill it
//!    ([`BodySink::readable`]).
//!
//! One task per connection was rejected: at 10 Gbit/s on one core, passing buffers between tasks would cost more
//! than all decisions together.

mod responses;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{ConnId, Input, ReqId, UrlId};
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};
use marline_net::http::ResponseMeta;
use marline_net::recorded_machine::MachineEvent;
use marline_sys::mptcp::MptcpStatus;
use tokio::time::Sleep;

pub(super) use self::transfer::Transfer;
use super::body_sink::BodySink;
use super::connections::{ConnTable, DialError, SocketEvent};
use super::error::DownloadError;
use super::link_stats::{self, LinkStats};
use super::log::Logged;
use super::machine::DownloadMachine;
use super::mptcp::MptcpGate;
use super::rate_limit::DownloadLimiter;
use super::request::DownloadObserver;
use super::uplinks::Uplinks;
use super::url_table::UrlTable;

/// Event loop of one download or stream; see the [module documentation](self).
pub(super) struct DownloadDriver<'a, M: DownloadMachine> {
    pub(super) started_at: std::time::Instant,
    pub(super) logged: Logged<M>,
    /// What the outputs of the machine act on.
    pub(super) transfer: Transfer<'a>,
    /// Metadata of the last usable response (200 or 206), with its URL and the address of the server.
    pub(super) response_meta: Option<(UrlId, Option<IpAddr>, ResponseMeta)>,
    /// Whether an encoded body is saved as received, instead of being rejected.
    pub(super) accepts_encoded: bool,
    /// Whether mirrors and digests that the server advertises are used (RFC 6249); only until its final response.
    pub(super) accepts_mirrors: bool,
    pub(super) limiter: DownloadLimiter,
    /// Links with a data budget that this download may use, and the bytes it may carry there; none: the budgets are
    /// not divided among downloads.
    pub(super) budget_leases: Option<BTreeMap<LinkId, DataSize>>,
    /// Links that are held back while one MPTCP connection may carry all of them.
    pub(super) mptcp_gate: MptcpGate,
    /// Bytes that were not reported to the machine yet, and since when.
    unreported: Vec<(ReqId, DataSize)>,
    unreported_since: Instant,
    next_sample: Instant,
    next_progress: Instant,
    /// Completes when the reader of a stream has consumed bytes.
    reader_wait: Option<ReaderWait>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: Instant,
    /// Whether the user was informed that the body is encoded.
    encoding_reported: bool,
    /// The connection that last delivered bytes.
    last_served: ConnId,
}

/// Waits for the reader of a stream to consume bytes.
type ReaderWait = Pin<Box<dyn Future<Output = ()>>>;

impl<'a, M: DownloadMachine> DownloadDriver<'a, M> {
    pub(super) fn new(
        logged: Logged<M>,
        body: BodySink,
        conns: ConnTable,
        urls: UrlTable,
        uplinks: Uplinks,
        observer: &'a mut dyn DownloadObserver,
        started: std::time::Instant,
    ) -> Self {
        Self {
            started_at: started,
            logged,
            transfer: Transfer::new(body, conns, urls, uplinks, observer),
            response_meta: None,
            accepts_encoded: false,
            accepts_mirrors: false,
            encoding_reported: false,
            // Larger than every ID: the polling begins with the first connection.
            last_served: ConnId(u32::MAX),
            limiter: DownloadLimiter::default(),
            budget_leases: None,
            mptcp_gate: MptcpGate::default(),
            unreported: Vec::new(),
            unreported_since: Instant::ZERO,
            next_sample: Instant::ZERO,
            next_progress: Instant::ZERO,
            reader_wait: None,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            sleep_until: Instant::ZERO,
        }
    }

    /// Time since the start of the transfer.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started_at.elapsed()
    }

    /// Makes a link available to the machine, unless the MPTCP gate or the budget of the batch holds it back.
    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(mut profile) = self.transfer.uplinks.profile(link).cloned() else { return };
        self.add_link_stats(link);
        if !self.mptcp_gate.admits(link) {
            return;
        }
        if let (Some(leases), Some(budget)) = (&self.budget_leases, &mut profile.budget) {
            match leases.get(&link) {
                Some(remaining) => *budget = *remaining,
                None => return,
            }
        }
        if let Some(stats) = self.transfer.link_stats.get_mut(usize::from(link.0)) {
            stats.profile = profile.clone();
        }
        self.feed_machine(Input::LinkUp { link, profile });
    }

    /// Grants a link with a data budget to this download, for at most `max_bytes`.
    pub(super) fn lease_link(&mut self, link: LinkId, max_bytes: DataSize) {
        if let Some(leases) = &mut self.budget_leases {
            leases.insert(link, max_bytes);
            self.link_up(link);
        }
    }

    /// Sets the first offset that the reader needs. Call it before the first link is added.
    pub(super) fn set_start(&mut self, from: u64) {
        if from > 0 {
            self.transfer.consumed_end = from;
            self.feed_machine(Input::Consumed { end: from });
        }
    }

    /// Adds the counters of a link. Links are added in the order of their numbers.
    pub(super) fn add_link_stats(&mut self, link: LinkId) {
        let Some(profile) = self.transfer.uplinks.profile(link) else { return };
        if usize::from(link.0) == self.transfer.link_stats.len() {
            self.limiter.add_link(link, profile);
            self.transfer.link_stats.push(LinkStats::new(profile.clone()));
        }
    }

    /// Runs until the download has a result.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DownloadError>> {
        loop {
            let busy = self.poll_once(cx);
            if let Some(result) = self.transfer.result.take() {
                return Poll::Ready(result);
            }
            if busy {
                continue;
            }
            // The timer is armed last, because everything above may have changed the next deadline.
            let at = self.next_deadline();
            if at != self.sleep_until {
                self.sleep_until = at;
                self.sleep.as_mut().reset((self.started_at + Duration::from_nanos(at.as_nanos())).into());
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep_until = Instant::ZERO;
        }
    }

    /// One iteration over all event sources. Returns whether another one may find more to do at once.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        // Results of the previous iteration come first: the machine may react with outputs for the sockets below.
        for input in std::mem::take(&mut self.transfer.pending_inputs) {
            self.feed_machine(input);
        }
        // Sockets are polled below, so that outputs of earlier calls take effect now. Outputs emitted from here on
        // may come after the polling of their socket, and need another iteration.
        self.transfer.has_new_outputs = false;
        let mut busy = self.poll_conns(cx);
        // After the sockets, whose bytes may have completed a piece.
        busy |= self.verify();
        // Also after the sockets: what has arrived over a link that is gone still counts as delivered by it.
        busy |= self.poll_links(cx);
        // The store follows the writes above: it records and syncs them, and reports what a reader has consumed since.
        busy |= self.poll_store(cx, now);
        // The tick follows all inputs: data that has already arrived must not count as a timeout.
        if self.logged.is_due(now) {
            // Bytes that are not reported yet arrived before the deadline as well.
            self.flush_progress();
            self.logged.step(now, MachineEvent::Tick, |output| self.transfer.execute(output));
        }
        if !self.unreported.is_empty() && now >= self.unreported_since + DATA_REPORT_INTERVAL {
            self.flush_progress();
        }
        // Samples are inputs like any other, but nothing waits for them, so they come after the tick.
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_INTERVAL;
            self.sample_paths();
        }
        // Last, so that the user sees the state after everything above.
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_INTERVAL;
            self.show_progress(now);
        }
        busy || self.transfer.has_new_outputs || !self.transfer.pending_inputs.is_empty()
    }

    /// Reads the next step of the pieces to be verified. Returns whether there was something to do.
    fn verify(&mut self) -> bool {
        if !self.transfer.verifier.is_busy() || self.transfer.result.is_some() {
            return false;
        }
        match self.transfer.verifier.step(&mut self.transfer.body.store) {
            Ok(Some((span, is_valid))) => self.feed_machine(Input::Verified { range: span, matches: is_valid }),
            Ok(None) => {}
            Err(error) => self.transfer.result = Some(Err(error)),
        }
        true
    }

    /// Reports the progress to the observer.
    pub(super) fn show_progress(&mut self, now: Instant) {
        let status = self.logged.machine().status();
        let opening_phase = |link| self.transfer.conns.opening_phase(link);
        let mut progress = link_stats::progress(
            &status,
            &self.transfer.link_stats,
            opening_phase,
            self.transfer.resumed_bytes,
            now,
        );
        progress.checked_bytes = self.transfer.verifier.checked_bytes();
        self.transfer.observer.on_progress(&progress);
    }

    /// Reports the progress of the checksum verification, which reads the complete file again.
    pub(super) fn show_checksum_progress(&mut self, checked: u64) {
        let now = self.now();
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_INTERVAL;
            let status = self.logged.machine().status();
            let mut progress = link_stats::progress(
                &status,
                &self.transfer.link_stats,
                |_| None,
                self.transfer.resumed_bytes,
                now,
            );
            progress.checked_bytes = Some(checked);
            self.transfer.observer.on_progress(&progress);
        }
    }

    /// When the next iteration is due if no socket becomes ready before.
    fn next_deadline(&self) -> Instant {
        let now = self.now();
        let mut at = self.next_sample.min(self.next_progress);
        if let Some(deadline) = self.logged.deadline() {
            at = at.min(deadline);
        }
        if let Some(deadline) = self.transfer.body.store.deadline() {
            at = at.min(deadline);
        }
        if !self.unreported.is_empty() {
            at = at.min(self.unreported_since + DATA_REPORT_INTERVAL);
        }
        if let Some(next) = self.limiter.next_at(now) {
            at = at.min(next);
        }
        at
    }

    /// Polls all connections, a few reads each, beginning after the one that was served last. Returns whether there
    /// may be more to read.
    fn poll_conns(&mut self, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        for id in rotated_after(self.last_served, self.transfer.conns.ids()) {
            for _ in 0..READS_PER_POLL {
                match self.poll_conn(id, cx) {
                    Poll::Ready(()) => busy = true,
                    Poll::Pending => break,
                }
                if self.transfer.result.is_some() {
                    return false;
                }
            }
        }
        busy
    }

    /// Processes the next event of one connection.
    fn poll_conn(&mut self, id: ConnId, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        let Some((link, url_id)) = self.transfer.conns.link_and_url(id) else { return Poll::Pending };
        // The rate limit and the capacity of a stream's reorder buffer bound what is read from the socket. Unread
        // bytes stay in the kernel, and the shrinking receive window slows the sender down.
        let readable = self.readable(id);
        let limits = &self.limiter;
        let polled = self
            .transfer
            .conns
            .poll_conn(id, cx, &mut self.transfer.body, |link| limits.available(link, now).min(readable));
        let Poll::Ready(socket_event) = polled else { return Poll::Pending };
        if let Some(error) = self.transfer.body.take_error() {
            self.transfer.result = Some(Err(error.into()));
            return Poll::Ready(());
        }
        match socket_event {
            SocketEvent::Open { protocol, handshake, peer, mptcp_status } => {
                if let Some(stats) = self.transfer.link_stats.get_mut(usize::from(link.0)) {
                    stats.connections += 1;
                    stats.on_rtt(handshake);
                    stats.dns_source = self.transfer.conns.dns_source(id);
                }
                self.feed_machine(Input::Connected {
                    conn: id,
                    protocol,
                    handshake_rtt: handshake,
                    peer: Some(peer),
                });
                self.on_mptcp_status(mptcp_status);
            }
            SocketEvent::Failed(DialError { error: failure, is_name_denied: denied }) => {
                let why = failure.clone();
                // The machine decides first: if it shows a notice about this failure, a second line is superfluous.
                self.transfer.notice_shown = false;
                self.feed_machine(Input::Closed { conn: id, error: failure });
                self.on_failure(link, &why, denied);
                self.release_links();
            }
            SocketEvent::Event(event) => self.on_event(id, link, url_id, event),
        }
        Poll::Ready(())
    }

    /// Passes the MPTCP status of a connection to the gate, which may release further links.
    fn on_mptcp_status(&mut self, mptcp_status: MptcpStatus) {
        let (links, message) = self.mptcp_gate.on_mptcp_status(mptcp_status);
        if let Some(message) = message {
            self.transfer.observer.on_message(message);
        }
        self.enable_links(links);
    }

    /// The connection that was to carry all links has failed, so the links that were held back are used separately.
    fn release_links(&mut self) {
        let links = self.mptcp_gate.release_links();
        self.enable_links(links);
    }

    fn enable_links(&mut self, links: Vec<LinkId>) {
        self.transfer.conns.mptcp = self.mptcp_gate.is_single_conn();
        links.into_iter().for_each(|link| self.link_up(link));
    }

    /// The number of bytes that the store accepts for the responses of a connection. At zero, [`Self::poll_store`]
    /// schedules another iteration once the reader has consumed bytes.
    fn readable(&self, conn: ConnId) -> DataSize {
        if self.transfer.body.store.window().is_none() {
            return DataSize::MAX;
        }
        let readable = self.transfer.conns.open_requests(conn).filter_map(|req| self.transfer.body.readable(req));
        readable.min().unwrap_or(DataSize::MAX)
    }

    /// Adds bytes to those that [`Self::flush_progress`] reports to the machine.
    fn add_unreported(&mut self, now: Instant, req: ReqId, len: DataSize) {
        if self.unreported.is_empty() {
            self.unreported_since = now;
        }
        match self.unreported.iter_mut().find(|(other, _)| *other == req) {
            Some((_, sum)) => *sum += len,
            None => self.unreported.push((req, len)),
        }
    }

    /// Reports the received bytes to the machine.
    fn flush_progress(&mut self) {
        let now = self.now();
        let mut progress = std::mem::take(&mut self.unreported);
        for (req, len) in progress.drain(..) {
            let input = Input::Data { req, len };
            self.logged.step(now, MachineEvent::Input(input), |output| self.transfer.execute(output));
        }
        self.unreported = progress;
    }

    /// Passes an event to the machine, after the bytes that arrived before it.
    pub(super) fn feed_machine(&mut self, input: Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.step(now, MachineEvent::Input(input), |output| self.transfer.execute(output));
    }

    /// Passes an input that only streams know.
    pub(super) fn feed_own_input(&mut self, input: M::Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.step_own(now, MachineEvent::Input(input), |output| self.transfer.execute(output));
    }

    /// Applies interfaces that appeared, disappeared or changed.
    fn poll_links(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(changes) = self.transfer.uplinks.poll_changes(cx) else { return false };
        self.transfer.conns.clear_dns();
        for link in changes.removed {
            self.feed_machine(Input::LinkDown { link });
            let others = self.mptcp_gate.on_link_removed(link);
            self.enable_links(others);
        }
        for link in changes.added {
            self.link_up(link);
        }
        true
    }

    /// Runs the due work of the store. Returns whether the reader of a stream has consumed bytes.
    fn poll_store(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // A notification is polled until it is pending: only then is the waker registered for the next one.
        while let Some(notify) = self.transfer.body.store.reader_notify() {
            let reader = self.reader_wait.get_or_insert_with(|| Box::pin(async move { notify.notified().await }));
            if reader.as_mut().poll(cx).is_pending() {
                break;
            }
            self.reader_wait = None;
        }
        let store = &mut self.transfer.body.store;
        let due = store.deadline().is_some_and(|at| at <= now) || store.window().is_some();
        if due && let Err(error) = store.tick(now) {
            self.transfer.result = Some(Err(error.into()));
            return false;
        }
        if due {
            self.transfer.forward_notes();
        }
        let end = self.transfer.body.store.consumed();
        let has_more = end > self.transfer.consumed_end;
        if has_more {
            self.transfer.consumed_end = end;
            self.feed_machine(Input::Consumed { end });
        }
        has_more
    }

    fn sample_paths(&mut self) {
        if self.transfer.conns.has_fallen_back() {
            self.on_mptcp_status(MptcpStatus::FellBack);
        }
        for (conn, link, path) in self.transfer.conns.path_samples() {
            if let Some(stats) = self.transfer.link_stats.get_mut(usize::from(link.0)) {
                stats.on_rtt(path.min_rtt);
            }
            self.feed_machine(Input::Sample { conn, path });
        }
    }
}

/// The connections in the order of their IDs, beginning after `served`. Without the rotation, the first connection
/// would use up a rate limit in each iteration, and those behind it would look stalled.
fn rotated_after(served: ConnId, mut ids: Vec<ConnId>) -> Vec<ConnId> {
    let after = ids.partition_point(|id| *id <= served);
    ids.rotate_left(after);
    ids
}

/// Reads on one connection before the next one is polled.
const READS_PER_POLL: usize = 4;
/// Interval of the reports of received bytes to the machine. Shorter ones cost CPU time and change no decision.
const DATA_REPORT_INTERVAL: Duration = Duration::from_millis(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
