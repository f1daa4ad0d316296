//! The driver of a download: one task that owns all sockets, reports events to the machine and executes its
//! outputs.
//!
//! It waits for sockets, timers, link changes and, for a stream, the reader. It writes body bytes to the store,
//! sends messages and progress to the observer, and ends with a result.
//!
//! 1. Everything happens in [`DownloadDriver::poll`], on one thread, without channels or locks. The machine's
//!    contract (drain after each call) is kept in [`DownloadDriver::drain_outputs`].
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

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{
    ConnError, ConnErrorKind, ConnId, DigestScope, Input, Notice, Output, ReqId, RequestRange, UrlId, Validator,
};
use marline_core::link::LinkId;
use marline_core::stream::{LinkMode, StreamEvent};
use marline_core::units::{DataSize, Instant};
use marline_net::http::{Event, ResponseMeta};
use marline_sys::mptcp::MptcpStatus;
use tokio::time::Sleep;

use super::body_sink::BodySink;
use super::connections::{ConnTable, DialError, SocketEvent};
use super::digest_verifier::Verifier;
use super::link_stats::{self, LinkStats};
use super::log::Logged;
use super::machine::{DownloadMachine, MachineOutput};
use super::mptcp::MptcpGate;
use super::rate_limit::DownloadLimiter;
use super::uplinks::Uplinks;
use super::url_table::UrlTable;
use super::{DownloadError, DownloadObserver, html_page, messages};

/// Event loop of one download or stream; see the [module documentation](self).
pub(super) struct DownloadDriver<'a, M: DownloadMachine> {
    pub(super) started_at: std::time::Instant,
    pub(super) logged: Logged<M>,
    pub(super) body: BodySink,
    pub(super) link_stats: Vec<LinkStats>,
    pub(super) urls: UrlTable,
    pub(super) uplinks: Uplinks,
    pub(super) observer: &'a mut dyn DownloadObserver,
    pub(super) resumed_bytes: u64,
    /// Content-Disposition of the first usable response; the caller decides whether it names the file.
    pub(super) disposition: Option<String>,
    /// Metadata of the last usable response (200 or 206), with its URL and the address of the server.
    pub(super) response_meta: Option<(UrlId, Option<IpAddr>, ResponseMeta)>,
    /// Stream events that the observer has not taken yet.
    pub(super) stream_events: Vec<StreamEvent>,
    /// Whether an encoded body is saved as received, instead of being rejected.
    pub(super) accepts_encoded: bool,
    /// Whether mirrors and digests that the server advertises are used (RFC 6249); only until its final response.
    pub(super) accepts_mirrors: bool,
    pub(super) conns: ConnTable,
    pub(super) limiter: DownloadLimiter,
    /// Verifies the pieces that are complete in the store.
    pub(super) verifier: Verifier,
    /// Whether the Last-Modified of the first response was compared with that of the earlier run.
    is_date_checked: bool,
    /// Size and validator of the file, once the first usable response has arrived.
    pub(super) identity: Option<(Option<DataSize>, Option<Validator>)>,
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
    consumed_end: u64,
    /// Completes when the reader of a stream has consumed bytes.
    reader_wait: Option<ReaderWait>,
    /// The machine has emitted an output that takes effect only when the sockets are polled again.
    has_new_outputs: bool,
    /// Inputs for the machine in the next iteration.
    pending_inputs: Vec<Input>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: Instant,
    /// Whether the machine or the store has shown a message about the current event, so that the driver shows none.
    notice_shown: bool,
    /// Whether the user was informed that the body is encoded.
    encoding_reported: bool,
    /// The connection that last delivered bytes.
    last_served: ConnId,
    /// Set once: the download is complete, or why it is not.
    result: Option<Result<(), DownloadError>>,
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
            body,
            link_stats: Vec::new(),
            urls,
            uplinks,
            observer,
            resumed_bytes: 0,
            disposition: None,
            response_meta: None,
            stream_events: Vec::new(),
            accepts_encoded: false,
            accepts_mirrors: false,
            encoding_reported: false,
            // Larger than every ID: the polling begins with the first connection.
            last_served: ConnId(u32::MAX),
            conns,
            limiter: DownloadLimiter::default(),
            verifier: Verifier::default(),
            is_date_checked: false,
            identity: None,
            budget_leases: None,
            mptcp_gate: MptcpGate::default(),
            unreported: Vec::new(),
            unreported_since: Instant::ZERO,
            next_sample: Instant::ZERO,
            next_progress: Instant::ZERO,
            consumed_end: 0,
            reader_wait: None,
            has_new_outputs: false,
            pending_inputs: Vec::new(),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            sleep_until: Instant::ZERO,
            notice_shown: false,
            result: None,
        }
    }

    /// Time since the start of the run.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started_at.elapsed()
    }

    /// Makes a link available to the machine, unless the MPTCP gate or the budget of the batch holds it back.
    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(mut profile) = self.uplinks.profile(link).cloned() else { return };
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
        if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
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
            self.consumed_end = from;
            self.feed_machine(Input::Consumed { end: from });
        }
    }

    /// Adds the counters of a link. Links are added in the order of their numbers.
    pub(super) fn add_link_stats(&mut self, link: LinkId) {
        let Some(profile) = self.uplinks.profile(link) else { return };
        if usize::from(link.0) == self.link_stats.len() {
            self.limiter.add_link(link, profile);
            self.link_stats.push(LinkStats::new(profile.clone()));
        }
    }

    /// Runs until the download has a result.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DownloadError>> {
        loop {
            let busy = self.poll_once(cx);
            if let Some(result) = self.result.take() {
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
        for input in std::mem::take(&mut self.pending_inputs) {
            self.feed_machine(input);
        }
        // Sockets are polled below, so that outputs of earlier calls take effect now. Outputs emitted from here on
        // may come after the polling of their socket, and need another iteration.
        self.has_new_outputs = false;
        let mut busy = self.poll_conns(cx);
        busy |= self.verify();
        busy |= self.poll_links(cx);
        busy |= self.poll_store(cx, now);
        // The tick follows all inputs: data that has already arrived must not count as a timeout.
        if self.logged.machine().deadline().is_some_and(|(at, _)| at <= now) {
            self.flush_progress();
            self.logged.tick(now);
            self.drain_outputs();
        }
        if !self.unreported.is_empty() && now >= self.unreported_since + DATA_REPORT_INTERVAL {
            self.flush_progress();
        }
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_INTERVAL;
            self.sample_paths();
        }
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_INTERVAL;
            self.show_progress(now);
        }
        busy || self.has_new_outputs || !self.pending_inputs.is_empty()
    }

    /// Reads the next step of the pieces to be verified. Returns whether there was something to do.
    fn verify(&mut self) -> bool {
        if !self.verifier.is_busy() || self.result.is_some() {
            return false;
        }
        match self.verifier.step(&mut self.body.store) {
            Ok(Some((span, is_valid))) => self.feed_machine(Input::Verified { range: span, matches: is_valid }),
            Ok(None) => {}
            Err(error) => self.result = Some(Err(error)),
        }
        true
    }

    /// Reports the progress to the observer.
    pub(super) fn show_progress(&mut self, now: Instant) {
        let status = self.logged.machine().status();
        let opening_phase = |link| self.conns.opening_phase(link);
        let mut progress = link_stats::progress(&status, &self.link_stats, opening_phase, self.resumed_bytes, now);
        progress.checked_bytes = self.verifier.checked_bytes();
        self.observer.on_progress(&progress);
    }

    /// Reports the progress of the checksum verification, which reads the complete file again.
    pub(super) fn show_checksum_progress(&mut self, checked: u64) {
        let now = self.now();
        if now >= self.next_progress {
            self.next_progress = now + PROGRESS_INTERVAL;
            let status = self.logged.machine().status();
            let mut progress = link_stats::progress(&status, &self.link_stats, |_| None, self.resumed_bytes, now);
            progress.checked_bytes = Some(checked);
            self.observer.on_progress(&progress);
        }
    }

    /// When the next iteration is due if no socket becomes ready before.
    fn next_deadline(&self) -> Instant {
        let now = self.now();
        let mut at = self.next_sample.min(self.next_progress);
        if let Some((deadline, _)) = self.logged.machine().deadline() {
            at = at.min(deadline);
        }
        if let Some(deadline) = self.body.store.deadline() {
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
        for id in rotated_after(self.last_served, self.conns.ids()) {
            for _ in 0..READS_PER_POLL {
                match self.poll_conn(id, cx) {
                    Poll::Ready(()) => busy = true,
                    Poll::Pending => break,
                }
                if self.result.is_some() {
                    return false;
                }
            }
        }
        busy
    }

    /// Processes the next event of one connection.
    fn poll_conn(&mut self, id: ConnId, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        let Some((link, url_id)) = self.conns.link_and_url(id) else { return Poll::Pending };
        // The rate limit and the capacity of a stream's reorder buffer bound what is read from the socket. Unread
        // bytes stay in the kernel, and the shrinking receive window slows the sender down.
        let readable = self.readable(id);
        let limits = &self.limiter;
        let polled = self.conns.poll_conn(id, cx, &mut self.body, |link| limits.available(link, now).min(readable));
        let Poll::Ready(socket_event) = polled else { return Poll::Pending };
        if let Some(error) = self.body.take_error() {
            self.result = Some(Err(error.into()));
            return Poll::Ready(());
        }
        match socket_event {
            SocketEvent::Open { protocol, handshake, peer, mptcp_status } => {
                if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
                    stats.connections += 1;
                    stats.on_rtt(handshake);
                    stats.dns_source = self.conns.dns_source(id);
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
                self.notice_shown = false;
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
            self.observer.on_message(message);
        }
        self.enable_links(links);
    }

    /// The connection that was to carry all links has failed, so the links that were held back are used separately.
    fn release_links(&mut self) {
        let links = self.mptcp_gate.release_links();
        self.enable_links(links);
    }

    fn enable_links(&mut self, links: Vec<LinkId>) {
        self.conns.mptcp = self.mptcp_gate.is_single_conn();
        links.into_iter().for_each(|link| self.link_up(link));
    }

    /// The number of bytes that the store accepts for the responses of a connection. At zero, [`Self::poll_store`]
    /// schedules another iteration once the reader has consumed bytes.
    fn readable(&self, conn: ConnId) -> DataSize {
        if self.body.store.window().is_none() {
            return DataSize::MAX;
        }
        let readable = self.conns.open_requests(conn).filter_map(|req| self.body.readable(req));
        readable.min().unwrap_or(DataSize::MAX)
    }

    /// Processes an HTTP event of an open connection: updates the counters, and reports it to the machine.
    fn on_event(&mut self, conn: ConnId, link: LinkId, url_id: UrlId, event: Event) {
        let now = self.now();
        match event {
            Event::Data { req, len } => {
                if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
                    stats.on_data(now, len);
                }
                self.limiter.consume(link, len);
                self.last_served = conn;
                self.add_unreported(now, req, len);
            }
            Event::Head { req, mut head, location, content_disposition: disposition, meta } => {
                // Cookies and redirect targets are stored before the machine sees the response, because its next
                // request may need them.
                self.urls.store_cookies(url_id, &meta.set_cookies);
                if let Some(location) = location {
                    if self.urls.is_full() {
                        self.urls.evict_redirects(&self.conns.url_ids());
                    }
                    match self.urls.resolve_redirect(url_id, &location, self.conns.server_addr(conn)) {
                        Ok(id) => head.location = Some(id),
                        Err(why) => self.observer.on_message(&why),
                    }
                }
                head.is_html_page = matches!(head.status, 200 | 206) && self.is_unexpected_page(url_id, &meta);
                let mirror_inputs = self.advertised_mirrors(url_id, conn, head.status, &meta);
                // Compared only for a range (206): a full response does not continue an earlier run.
                let date_validators = (head.status == 206 && !self.is_date_checked)
                    .then(|| meta.etag.clone().zip(meta.last_modified.clone()));
                if matches!(head.status, 200 | 206) {
                    self.accept_encoded(&mut head.is_encoded, meta.content_encoding.as_deref());
                    self.disposition = self.disposition.take().or(disposition);
                    self.response_meta = Some((url_id, self.conns.server_addr(conn), *meta));
                }
                // The response first: its mirrors and digest describe the file that it identifies.
                self.feed_machine(Input::Head { req, head });
                mirror_inputs.into_iter().for_each(|input| self.feed_machine(input));
                if let Some((etag, modified)) = date_validators.flatten() {
                    self.check_last_modified(&etag, &modified);
                }
            }
            Event::End { req, unconfirmed } => {
                if unconfirmed {
                    self.observer.on_message(UNCONFIRMED_END);
                }
                self.conns.on_request_done(req);
                self.feed_machine(Input::End { req });
                self.body.forget(req);
            }
            Event::Aborted { req, error } => {
                self.conns.on_request_done(req);
                self.body.forget(req);
                let why = error.clone();
                self.notice_shown = false;
                self.feed_machine(Input::Aborted { req, error });
                self.on_failure(link, &why, false);
            }
            Event::Closed { error } => {
                self.close_conn(conn);
                let why = error.clone();
                self.notice_shown = false;
                self.feed_machine(Input::Closed { conn, error });
                self.on_failure(link, &why, false);
            }
        }
    }

    /// Mirrors and the digest that a server named by the user advertises (RFC 6249, RFC 9530). A digest that the
    /// user gave has priority.
    fn advertised_mirrors(&mut self, url_id: UrlId, conn: ConnId, status: u16, meta: &ResponseMeta) -> Vec<Input> {
        let is_final = matches!(status, 200 | 206 | 301 | 302 | 303 | 307 | 308);
        if !self.accepts_mirrors || !is_final || !self.urls.is_from_user(url_id) {
            return Vec::new();
        }
        let Some(base) = self.urls.url(url_id).cloned() else { return Vec::new() };
        let mut inputs = Vec::new();
        let server = self.conns.server_addr(conn);
        for url in meta.mirrors(&base) {
            let mirror = self.urls.add_mirror(url_id, &url, server);
            inputs.extend(mirror.map(|url_id| Input::Mirror { mirror: url_id }));
        }
        let is_usable = self.verifier.has_no_digest() && self.body.store.supports_late_checksum();
        if let Some(checksum) = meta.full_digest().filter(|_| is_usable) {
            self.body.store.expect_checksum(checksum.clone());
            self.verifier.set_full_digest(checksum);
            inputs.push(Input::Digest { scope: DigestScope::File });
        }
        // A redirect describes the same file, so the next response may add to it. The final response is the last
        // one used.
        self.accepts_mirrors = matches!(status, 300..=399);
        inputs
    }

    /// Compares Last-Modified with the value of an earlier run. A strong ETag decides whether two responses are of
    /// one version (RFC 9110 section 8.8). If the date has changed under the same ETag, the user gets a message,
    /// because the server may reuse ETags by mistake.
    fn check_last_modified(&mut self, etag: &str, modified: &str) {
        self.is_date_checked = true;
        match self.body.store.set_last_modified(etag, modified) {
            Ok(None) => {}
            Ok(Some(before)) => self.observer.on_message(&format!(
                "the server's Last-Modified is {modified} and was {before}, under the same ETag: the ETag decides, \
                 the download goes on"
            )),
            Err(error) => self.result = Some(Err(error.into())),
        }
    }

    /// Whether a response is an HTML page although its URL does not suggest one.
    fn is_unexpected_page(&self, url_id: UrlId, meta: &ResponseMeta) -> bool {
        let content_type = meta.content_type.as_deref();
        self.urls.url(url_id).is_some_and(|url| html_page::may_be_error_page(url, content_type))
    }

    /// Accepts an encoded body although the request excluded encodings. Such servers often mean the file itself:
    /// for a .tgz they derive the encoding from the extension. Ranges and validators refer to the encoded bytes
    /// (RFC 9110 §8.4, §14.2), so responses fit together. The user gets a message.
    fn accept_encoded(&mut self, encoded: &mut bool, encoding: Option<&str>) {
        if !self.accepts_encoded || !std::mem::take(encoded) || std::mem::replace(&mut self.encoding_reported, true)
        {
            return;
        }
        let encoding = encoding.unwrap_or("unknown coding");
        self.observer.on_message(&format!(
            "the server reports that the file is encoded ({encoding}), although no encoding was accepted; it is saved as received"
        ));
    }

    /// A failure that the machine has already processed. If the machine has shown a notice, no second line follows.
    fn on_failure(&mut self, link: LinkId, error: &ConnError, denied: bool) {
        let is_usual = matches!(
            error.kind,
            ConnErrorKind::CleanClose
                | ConnErrorKind::ClosedLocally
                | ConnErrorKind::Http1Required
                | ConnErrorKind::StreamRefused
        );
        if is_usual {
            return;
        }
        let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) else { return };
        let is_first = stats.on_failure(error, denied);
        if self.result.is_some() {
            return;
        }
        if denied && self.is_unknown_host(error) {
            let url = self.urls.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
            self.result = Some(Err(DownloadError::UnknownHost { url, why: error.text.clone() }));
        } else if is_first && !self.notice_shown {
            self.observer.on_message(&messages::conn_error_message(&self.link_stats, link, error));
        }
    }

    /// Whether every link that tried to resolve the name received an authoritative denial. The machine does not
    /// decide this: the links work, the server is not unresponsive, and there is only one URL.
    fn is_unknown_host(&self, error: &ConnError) -> bool {
        let denied = |stats: &LinkStats| stats.is_name_denied || (stats.retries == 0 && stats.connections == 0);
        error.kind == ConnErrorKind::Dns
            && self.urls.has_single_url()
            && self.conns.ids().is_empty()
            && self.link_stats.iter().all(|stats| stats.connections == 0 && denied(stats))
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
            self.logged.handle(now, Input::Data { req, len });
            self.drain_outputs();
        }
        self.unreported = progress;
    }

    /// Passes an event to the machine, after the bytes that arrived before it.
    pub(super) fn feed_machine(&mut self, input: Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.handle(now, input);
        self.drain_outputs();
    }

    /// Passes an input that only streams know.
    pub(super) fn feed_own_input(&mut self, input: M::Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.handle_own(now, input);
        self.drain_outputs();
    }

    /// Executes all outputs of the machine. Handlers do not call the machine; their results go to
    /// [`Self::pending_inputs`], because the machine must be drained before its next input.
    fn drain_outputs(&mut self) {
        while let Some(machine_output) = self.logged.poll() {
            // The run has ended: outputs are still drained (and recorded), but no longer executed.
            if self.result.is_some() {
                continue;
            }
            let output = match machine_output {
                MachineOutput::Fetch(output) => output,
                // Nothing to do: the reader takes bytes from the store when they are in order.
                MachineOutput::Stream(StreamEvent::Deliver { .. }) => continue,
                MachineOutput::Stream(event) => {
                    self.set_standby(&event);
                    self.stream_events.push(event);
                    continue;
                }
            };
            self.has_new_outputs |= !matches!(output, Output::Notice(_));
            match output {
                Output::Connect { conn, link, url: url_id, address: at } => self.connect(conn, link, url_id, at),
                Output::Request { req, conn, range, if_range } => self.request(req, conn, range, if_range),
                Output::AcceptBody { req, offset: at, len, .. } => {
                    self.body.accept(req, at, len);
                    self.conns.accept(req, len);
                }
                Output::Cancel { req } => {
                    self.body.forget(req);
                    self.conns.cancel(req);
                }
                Output::Close { conn } => self.close_conn(conn),
                Output::Identified { total, validator } => self.on_identified(total, validator.as_ref()),
                Output::Restart => {
                    // The file has changed: everything that describes its previous version is discarded.
                    self.consumed_end = 0;
                    self.is_date_checked = false;
                    self.resumed_bytes = 0;
                    self.body.prefix.clear();
                    if let Err(error) = self.body.store.restart() {
                        self.result = Some(Err(error.into()));
                    }
                }
                Output::Verify { range: span } => self.verifier.start(span),
                Output::Notice(notice) => self.show_notice(&notice),
                Output::Done => self.result = Some(Ok(())),
                Output::Failed(failure) => {
                    let url = self.urls.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
                    self.result = Some(Err(DownloadError::Failed { url, failure }));
                }
            }
        }
    }

    /// Closes the idle connections of links that become standby. Later use or closing would wake the radio.
    fn set_standby(&self, event: &StreamEvent) {
        let is_standby = |id: LinkId| match *event {
            StreamEvent::Standby { link, standby: true, .. } => id == link,
            StreamEvent::Mode { mode: LinkMode::Only(link), .. } => id != link,
            _ => false,
        };
        let standby_ids = self.uplinks.ids().filter(|id| is_standby(*id));
        standby_ids
            .filter_map(|id| self.uplinks.interface(id))
            .for_each(|interface| self.conns.on_standby(interface));
    }

    fn connect(&mut self, conn: ConnId, link: LinkId, url_id: UrlId, at: Option<IpAddr>) {
        match (self.urls.url(url_id), self.urls.egress(url_id)) {
            (Some(url), Some(egress)) => {
                self.conns.connect(conn, link, url_id, (url, at, egress), self.uplinks.interface(link).cloned());
            }
            _ => self.reject_output(conn, "its URL ID is unknown"),
        }
    }

    fn request(&mut self, req: ReqId, conn: ConnId, range: RequestRange, if_range: Option<Validator>) {
        let Some((link, url_id)) = self.conns.link_and_url(conn) else {
            return self.reject_output(conn, "it does not exist");
        };
        let Some(get) = self.urls.request_for(url_id, range, if_range) else {
            return self.reject_output(conn, "its URL has no host");
        };
        if !self.conns.request(req, conn, &get) {
            return self.reject_output(conn, "it is not open");
        }
        if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
            stats.requests += 1;
        }
    }

    /// Reports a connection whose output cannot be executed as closed, so that the machine gets a result for each
    /// output (rule 6 of its contract).
    fn reject_output(&mut self, conn: ConnId, why: &str) {
        self.close_conn(conn);
        let error =
            ConnError { kind: ConnErrorKind::ClosedLocally, text: format!("the connection cannot be used: {why}") };
        self.pending_inputs.push(Input::Closed { conn, error });
    }

    fn close_conn(&mut self, conn: ConnId) {
        for req in self.conns.close(conn) {
            self.body.forget(req);
        }
    }

    fn on_identified(&mut self, total: Option<DataSize>, validator: Option<&Validator>) {
        if let Some(suggested) = self.uplinks.server_name(self.disposition.as_deref(), self.urls.url(UrlId(0))) {
            self.body.store.suggest_name(suggested.name.as_ref());
            if let Some(note) = suggested.note {
                self.observer.on_message(&note);
            }
        }
        self.identity = Some((total, validator.cloned()));
        if let Err(error) = self.body.store.on_identified(total, validator) {
            self.result = Some(Err(error.into()));
        }
        self.forward_notes();
    }

    /// The file name that the server suggests, if server names are enabled.
    pub(super) fn suggested_name(&self) -> Option<String> {
        let name = self.uplinks.server_name(self.disposition.as_deref(), self.urls.url(UrlId(0)));
        name.map(|suggested| suggested.name)
    }

    /// Passes the messages of the store to the user.
    fn forward_notes(&mut self) {
        while let Some(note) = self.body.store.take_note() {
            self.observer.on_message(&note);
            self.notice_shown = true;
        }
    }

    fn show_notice(&mut self, notice: &Notice) {
        // From now on the journal belongs to the URL of the new mirror.
        if let Notice::MirrorSwitched { next, .. } = notice
            && let Some(url) = self.urls.url(*next)
        {
            self.body.store.set_url(url);
        }
        let message =
            messages::notice_message(notice, &self.link_stats, &self.urls, |link| self.conns.opening_phase(link));
        self.observer.on_message(&message);
        self.notice_shown = true;
    }

    /// Applies interfaces that appeared, disappeared or changed.
    fn poll_links(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(changes) = self.uplinks.poll_changes(cx) else { return false };
        self.conns.clear_dns();
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
        while let Some(notify) = self.body.store.reader_notify() {
            let reader = self.reader_wait.get_or_insert_with(|| Box::pin(async move { notify.notified().await }));
            if reader.as_mut().poll(cx).is_pending() {
                break;
            }
            self.reader_wait = None;
        }
        let store = &mut self.body.store;
        let due = store.deadline().is_some_and(|at| at <= now) || store.window().is_some();
        if due && let Err(error) = store.tick(now) {
            self.result = Some(Err(error.into()));
            return false;
        }
        if due {
            self.forward_notes();
        }
        let end = self.body.store.consumed();
        let more = end > self.consumed_end;
        if more {
            self.consumed_end = end;
            self.feed_machine(Input::Consumed { end });
        }
        more
    }

    fn sample_paths(&mut self) {
        if self.conns.has_fallen_back() {
            self.on_mptcp_status(MptcpStatus::FellBack);
        }
        for (conn, link, path) in self.conns.path_samples() {
            if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
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

/// Shown for a body that ends with the connection. Other downloaders accept it without a message.
const UNCONFIRMED_END: &str = "the server closed the connection without closing TLS and stated no length: the file may \
                               be truncated (verify it with --checksum)";
/// Reads on one connection before the next one is polled.
const READS_PER_POLL: usize = 4;
/// Interval of the reports of received bytes to the machine. Shorter ones cost CPU time and change no decision.
const DATA_REPORT_INTERVAL: Duration = Duration::from_millis(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
