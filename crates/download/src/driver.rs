//! The pump: one task that owns every socket, tells the machine what happens, and does what it asks.
//!
//! In: readiness of sockets, time, changes of links, the user's interrupt. Out: bytes in the store, lines and progress
//! for the watcher, and in the end a verdict.
//!
//! 1. Everything happens in [`Pump::poll`], on one thread; there are no channels and no locks, and the machine's
//!    contract (drain after each call) is kept in one place, [`Pump::act`].
//! 2. Bytes go once from the socket's buffer to the store. The machine hears of them at most once a millisecond, and
//!    always before it hears of anything else.
//! 3. What the machine asks for is done at once; what comes of it is an input of the next turn. An order that cannot be
//!    carried out is answered, too: its connection is over.
//! 4. Sockets write only when they are looked at. So a turn in which something was ordered is followed by another one.
//! 5. Connections have their turns one behind the other, so that a limit is shared.
//! 6. A stream that is full stops the reading of the answers that would overfill it ([`Place::room`]).
//!
//! A task per connection was not used: at 10 Gbit/s on one core the hand-over of buffers would cost more than all
//! decisions together.

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
use marline_sys::mptcp::Spoken;
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

/// See the [module](self).
pub(super) struct DownloadDriver<'a, M: DownloadMachine> {
    pub(super) started_at: std::time::Instant,
    pub(super) logged: Logged<M>,
    pub(super) body: BodySink,
    pub(super) link_stats: Vec<LinkStats>,
    pub(super) urls: UrlTable,
    pub(super) uplinks: Uplinks,
    pub(super) observer: &'a mut dyn DownloadObserver,
    pub(super) resumed_bytes: u64,
    /// The suggested name of the first good answer; what becomes of it is the run's matter.
    pub(super) disposition: Option<String>,
    /// What the last good answer said of its body, whose it was, and the server's address.
    pub(super) response_meta: Option<(UrlId, Option<IpAddr>, ResponseMeta)>,
    /// What a stream has said, for whoever watches it.
    pub(super) stream_events: Vec<StreamEvent>,
    /// Whether an encoded body is taken as it comes, instead of being refused.
    pub(super) accepts_encoded: bool,
    /// Whether copies and a digest that the user's server names are used.
    pub(super) accepts_mirrors: bool,
    pub(super) conns: ConnTable,
    pub(super) limiter: DownloadLimiter,
    /// Compares what is in its place with its digest.
    pub(super) verifier: Verifier,
    /// The date of a first response was compared with that of the last run.
    is_date_checked: bool,
    /// The first good answer has come: name and size are known.
    pub(super) identity: Option<(Option<DataSize>, Option<Validator>)>,
    /// Links with a budget that this download may use, and how much it may carry there; none: each has its own.
    pub(super) budget_leases: Option<BTreeMap<LinkId, DataSize>>,
    /// Which links wait because one connection may carry all of them.
    pub(super) mptcp_gate: MptcpGate,
    /// Bytes that the machine has not heard of yet, and since when.
    unreported: Vec<(ReqId, DataSize)>,
    unreported_since: Instant,
    next_sample: Instant,
    next_progress: Instant,
    consumed_end: u64,
    /// Told when a stream's reader has taken something.
    reader_wait: Option<ReaderWait>,
    /// The machine has ordered something that waits for a look at the sockets.
    has_new_outputs: bool,
    /// What the machine is to hear in the next turn.
    pending_inputs: Vec<Input>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: Instant,
    /// A notice was shown.
    notice_shown: bool,
    /// It was said that the body is encoded.
    encoding_reported: bool,
    /// The connection that brought bytes last.
    last_served: ConnId,
    /// Set once: everything is there, or why it will not be.
    result: Option<Result<(), DownloadError>>,
}

/// Waits for the reader of a stream.
type ReaderWait = Pin<Box<dyn Future<Output = ()>>>;

impl<'a, M: DownloadMachine> DownloadDriver<'a, M> {
    pub(super) fn new(
        logged: Logged<M>,
        body: BodySink,
        sockets: ConnTable,
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
            // Nobody yet: the first one comes first.
            last_served: ConnId(u32::MAX),
            conns: sockets,
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

    /// A link can be used from now on.
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

    /// A link with a budget may be used, as far as so much.
    pub(super) fn lease_link(&mut self, link: LinkId, max_bytes: DataSize) {
        if let Some(leases) = &mut self.budget_leases {
            leases.insert(link, max_bytes);
            self.link_up(link);
        }
    }

    /// The reader wants nothing before this offset. To be told before the first link comes.
    pub(super) fn set_start(&mut self, from: u64) {
        if from > 0 {
            self.consumed_end = from;
            self.feed_machine(Input::Consumed { end: from });
        }
    }

    /// Books for a link, in the order of the links' numbers.
    pub(super) fn add_link_stats(&mut self, link: LinkId) {
        let Some(profile) = self.uplinks.profile(link) else { return };
        if usize::from(link.0) == self.link_stats.len() {
            self.limiter.add_link(link, profile);
            self.link_stats.push(LinkStats::new(profile.clone()));
        }
    }

    /// Runs until there is a verdict.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DownloadError>> {
        loop {
            let busy = self.poll_once(cx);
            if let Some(result) = self.result.take() {
                return Poll::Ready(result);
            }
            if busy {
                continue;
            }
            // Armed last: everything above may have moved the next moment of interest.
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

    /// One look at everything. Tells whether there may be more to see at once.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.now();
        for input in std::mem::take(&mut self.pending_inputs) {
            self.feed_machine(input);
        }
        // What was ordered before this look is seen to by it.
        self.has_new_outputs = false;
        let mut busy = self.poll_conns(cx);
        busy |= self.verify();
        busy |= self.poll_links(cx);
        busy |= self.poll_store(cx, now);
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

    /// Reads on what is to be verified. Tells whether there is more.
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

    /// Shows how it goes.
    pub(super) fn show_progress(&mut self, now: Instant) {
        let status = self.logged.machine().status();
        let opening_phase = |link| self.conns.opening_phase(link);
        let mut progress = link_stats::progress(&status, &self.link_stats, opening_phase, self.resumed_bytes, now);
        progress.checked_bytes = self.verifier.checked_bytes();
        self.observer.on_progress(&progress);
    }

    /// All bytes are there, and so many of them have been read again for the checksum.
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

    /// The next that happens on one connection.
    fn poll_conn(&mut self, id: ConnId, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        let Some((link, url_id)) = self.conns.link_and_url(id) else { return Poll::Pending };
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
                self.notice_shown = false;
                self.feed_machine(Input::Closed { conn: id, error: failure });
                self.on_failure(link, &why, denied);
                self.release_links();
            }
            SocketEvent::Event(event) => self.on_event(id, link, url_id, event),
        }
        Poll::Ready(())
    }

    /// What a connection speaks may let further links in.
    fn on_mptcp_status(&mut self, mptcp_status: Spoken) {
        let (links, message) = self.mptcp_gate.on_mptcp_status(mptcp_status);
        if let Some(message) = message {
            self.observer.on_message(message);
        }
        self.enable_links(links);
    }

    /// What one link was to carry does not come.
    fn release_links(&mut self) {
        let links = self.mptcp_gate.release_links();
        self.enable_links(links);
    }

    fn enable_links(&mut self, links: Vec<LinkId>) {
        self.conns.mptcp = self.mptcp_gate.is_single_conn();
        links.into_iter().for_each(|link| self.link_up(link));
    }

    /// How many bytes the store takes of what comes on a connection. When there is none, the look at the store sees to
    /// it that the connection is looked at again.
    fn readable(&self, conn: ConnId) -> DataSize {
        if self.body.store.window().is_none() {
            return DataSize::MAX;
        }
        let readable = self.conns.open_requests(conn).filter_map(|req| self.body.readable(req));
        readable.min().unwrap_or(DataSize::MAX)
    }

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
                let sources = self.advertised_mirrors(url_id, conn, head.status, &meta);
                let date_validators = (head.status == 206 && !self.is_date_checked)
                    .then(|| meta.etag.clone().zip(meta.last_modified.clone()));
                if matches!(head.status, 200 | 206) {
                    self.accept_encoded(&mut head.is_encoded, meta.content_encoding.as_deref());
                    self.disposition = self.disposition.take().or(disposition);
                    self.response_meta = Some((url_id, self.conns.server_addr(conn), *meta));
                }
                self.feed_machine(Input::Head { req, head });
                sources.into_iter().for_each(|input| self.feed_machine(input));
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

    /// What the server that the user has named says of other sources, once. A digest that the user gave comes first.
    fn advertised_mirrors(&mut self, url_id: UrlId, conn: ConnId, status: u16, meta: &ResponseMeta) -> Vec<Input> {
        let is_final = matches!(status, 200 | 206 | 301 | 302 | 303 | 307 | 308);
        if !self.accepts_mirrors || !is_final || !self.urls.is_from_user(url_id) {
            return Vec::new();
        }
        let Some(base) = self.urls.url(url_id).cloned() else { return Vec::new() };
        let mut inputs = Vec::new();
        let server = self.conns.server_addr(conn);
        for url in meta.mirrors(&base) {
            let source = self.urls.add_mirror(url_id, &url, server);
            inputs.extend(source.map(|url_id| Input::Mirror { mirror: url_id }));
        }
        let is_usable = self.verifier.has_no_digest() && self.body.store.supports_late_checksum();
        if let Some(checksum) = meta.full_digest().filter(|_| is_usable) {
            self.body.store.expect_checksum(checksum.clone());
            self.verifier.set_full_digest(checksum);
            inputs.push(Input::Digest { scope: DigestScope::File });
        }
        // Redirects go on speaking of the same file; the file's own server has the last word.
        self.accepts_mirrors = matches!(status, 300..=399);
        inputs
    }

    /// A strong ETag decides whether two responses are of one version (RFC 9110 section 8.8). A date that has changed under it
    /// since the last run is worth a line: the server may not mean what it says.
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

    /// Whether a response is an HTML page although its URL does not name one.
    fn is_unexpected_page(&self, url_id: UrlId, meta: &ResponseMeta) -> bool {
        let content_type = meta.content_type.as_deref();
        self.urls.url(url_id).is_some_and(|url| html_page::may_be_error_page(url, content_type))
    }

    /// Servers that were asked for the file as it is and send it encoded often mean the file itself (a .tgz whose server
    /// takes its ending for an encoding). Ranges and validators are of the encoded bytes (RFC 9110 §8.4, §14.2), so
    /// they fit together; what they are is told.
    fn accept_encoded(&mut self, encoded: &mut bool, encoding: Option<&str>) {
        if !self.accepts_encoded || !std::mem::take(encoded) || std::mem::replace(&mut self.encoding_reported, true)
        {
            return;
        }
        let encoding = encoding.unwrap_or("somehow");
        self.observer.on_message(&format!(
            "the server says that the file is encoded ({encoding}), though it was not asked to; it is taken as it comes"
        ));
    }

    /// Something failed on a link, and the machine has heard of it. What it had to say of it needs no second line.
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

    /// Whether every link that has tried was told that there is no such name. This is no matter for the machine: the
    /// links work, the server is not silent, and there is only one place to ask.
    fn is_unknown_host(&self, error: &ConnError) -> bool {
        let denied = |stats: &LinkStats| stats.is_name_denied || (stats.retries == 0 && stats.connections == 0);
        error.kind == ConnErrorKind::Dns
            && self.urls.has_single_url()
            && self.conns.ids().is_empty()
            && self.link_stats.iter().all(|stats| stats.connections == 0 && denied(stats))
    }

    /// Bytes that the machine will hear of.
    fn add_unreported(&mut self, now: Instant, req: ReqId, len: DataSize) {
        if self.unreported.is_empty() {
            self.unreported_since = now;
        }
        match self.unreported.iter_mut().find(|(other, _)| *other == req) {
            Some((_, sum)) => *sum += len,
            None => self.unreported.push((req, len)),
        }
    }

    /// The machine hears of the bytes that have come.
    fn flush_progress(&mut self) {
        let now = self.now();
        let mut unheard = std::mem::take(&mut self.unreported);
        for (req, len) in unheard.drain(..) {
            self.logged.handle(now, Input::Data { req, len });
            self.drain_outputs();
        }
        self.unreported = unheard;
    }

    /// The machine hears of something else than bytes.
    pub(super) fn feed_machine(&mut self, input: Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.handle(now, input);
        self.drain_outputs();
    }

    /// The machine hears of something of which a download knows nothing.
    pub(super) fn feed_own_input(&mut self, input: M::Input) {
        self.flush_progress();
        let now = self.now();
        self.logged.handle_own(now, input);
        self.drain_outputs();
    }

    /// Does what the machine asks for.
    fn drain_outputs(&mut self) {
        while let Some(machine_output) = self.logged.poll() {
            if self.result.is_some() {
                continue;
            }
            let output = match machine_output {
                MachineOutput::Fetch(output) => output,
                // The reader takes what is in order by itself.
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

    /// What stands over links that rest from now on must not wake them later.
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
            _ => self.reject_output(conn, "no URL has this number"),
        }
    }

    fn request(&mut self, req: ReqId, conn: ConnId, range: RequestRange, if_range: Option<Validator>) {
        let Some((link, url_id)) = self.conns.link_and_url(conn) else {
            return self.reject_output(conn, "it is not there");
        };
        let Some(get) = self.urls.request_for(url_id, range, if_range) else {
            return self.reject_output(conn, "its URL names no host");
        };
        if !self.conns.request(req, conn, &get) {
            return self.reject_output(conn, "it is not open");
        }
        if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
            stats.requests += 1;
        }
    }

    /// An order for a connection cannot be carried out: the machine hears that it is over, as of any other that ends
    /// (rule 6 of its contract).
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

    /// What the server calls the file, if it may.
    pub(super) fn suggested_name(&self) -> Option<String> {
        let name = self.uplinks.server_name(self.disposition.as_deref(), self.urls.url(UrlId(0)));
        name.map(|suggested| suggested.name)
    }

    /// What the store has to tell the user.
    fn forward_notes(&mut self) {
        while let Some(note) = self.body.store.take_note() {
            self.observer.on_message(&note);
            self.notice_shown = true;
        }
    }

    fn show_notice(&mut self, notice: &Notice) {
        // From now on the journal is of another URL.
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

    /// Interfaces that came, went or changed.
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

    /// Tells whether a stream's reader has made room.
    fn poll_store(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
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
            self.on_mptcp_status(Spoken::FellBack);
        }
        for (conn, link, path) in self.conns.path_samples() {
            if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
                stats.on_rtt(path.min_rtt);
            }
            self.feed_machine(Input::Sample { conn, path });
        }
    }
}

/// The connections, in the order of their numbers, from the one behind `served` on: under a limit the first one takes what
/// there is, and whoever came behind it each time would look silent.
fn rotated_after(served: ConnId, mut ids: Vec<ConnId>) -> Vec<ConnId> {
    let after = ids.partition_point(|id| *id <= served);
    ids.rotate_left(after);
    ids
}

/// Other downloaders say nothing of it.
const UNCONFIRMED_END: &str = "the server ended the connection without closing TLS, and told no length: the file may \
                               be cut short (--checksum would tell)";
/// Reads on one connection before the others have their turn.
const READS_PER_POLL: usize = 4;
/// The machine hears of bytes this often; finer steps cost time and change no decision.
const DATA_REPORT_INTERVAL: Duration = Duration::from_millis(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
