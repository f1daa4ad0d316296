//! Driver that fulfils its obligations towards the fetch machine; everything else comes from the input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::LazyLock;

use marline_core::fetch::{
    ByteRange, Config, ConnError, ConnErrorKind, ConnId, Fetch, Input, Output, PathSample, Policy, Protocol, ReqId,
    RequestRange, ResponseHead,
};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::machine::Machine;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::contract::{ContractChecker, DecisionLog};
use marline_sim::fuzz_fetch::reference::{ByteSource, CheckResult, ReferenceModel, ResponseTruth};

use super::{LINK_KINDS, MAX_OUTPUTS, head};
use crate::bytes::Bytes;

/// A running download.
pub(super) struct Driver {
    machine: ContractChecker<Config, Fetch>,
    config: Config,
    /// Size of the file on the correct server.
    size: u64,
    protocol: Protocol,
    /// Ticks come exactly at deadlines. Otherwise [`Driver::advance`] skips them, so that the machine is called late, as
    /// on a busy host.
    is_punctual: bool,
    now: Instant,
    links: BTreeMap<LinkId, LinkProfile>,
    conns: BTreeMap<ConnId, Conn>,
    reference: ReferenceModel,
    total: Option<DataSize>,
    consumed: u64,
    /// Range of the last [`Output::Verify`] without a result.
    unverified: Option<ByteRange>,
    is_finished: bool,
}

#[derive(Debug)]
struct Conn {
    is_open: bool,
    responses: VecDeque<Response>,
}

#[derive(Debug)]
struct Response {
    req: ReqId,
    requested: RequestRange,
    head: Option<ResponseHead>,
    /// Bytes that may still be delivered; none: the body has not been accepted.
    accepted: Option<u64>,
    /// Bytes of the body that have not been delivered; none: the length is unknown.
    body_left: Option<u64>,
}

impl Driver {
    pub(super) fn new(config: Config, size: u64, bytes: &mut Bytes<'_>) -> Self {
        let flags = bytes.u8();
        let mut reference = ReferenceModel::default();
        if let Some(resume) = &config.resume {
            let file = ByteRange::at(0, resume.total);
            let ranges: Vec<_> = resume.ranges.iter().map(|range| range.intersect(file)).collect();
            reference.resume(resume.total, &ranges);
        }
        Self {
            machine: ContractChecker::new(config.clone(), Fetch::new(config.clone())),
            total: config.resume.as_ref().map(|resume| resume.total),
            config,
            size,
            protocol: if flags & 1 == 0 { Protocol::Http1 } else { Protocol::Http2 },
            is_punctual: flags & 2 == 0,
            now: Instant::ZERO,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            reference,
            consumed: 0,
            unverified: None,
            is_finished: false,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Returns the log so far, and the same driver with an empty log.
    pub(super) fn split_log(self) -> (Self, DecisionLog<Config, Fetch>) {
        let (machine, log) = self.machine.into_parts();
        (Self { machine: ContractChecker::new(self.config.clone(), machine), ..self }, log)
    }

    /// Distinct bytes received as the machine counts them, and as the reference model does.
    pub(super) fn received_and_covered(self) -> (DataSize, DataSize) {
        (self.machine.into_parts().0.status().received, self.reference.covered())
    }

    /// Reads one operation from the input and performs it.
    pub(super) fn step(&mut self, bytes: &mut Bytes<'_>) {
        let (operation, which) = (bytes.u8(), bytes.u8());
        // Time advances first: not at all, a little, or beyond every pause of the machine.
        let elapsed = match operation >> 5 {
            0..=2 => Duration::ZERO,
            3 => Duration::from_micros(u64::from(bytes.u8())),
            4 | 5 => Duration::from_millis(u64::from(bytes.u8())),
            6 => Duration::from_millis(u64::from(bytes.u8()) * 50),
            _ => Duration::from_secs(u64::from(bytes.u8())),
        };
        self.advance(elapsed);
        self.report_verified(which & 3 != 3);
        match operation & 31 {
            0 | 1 => self.link_up(which, bytes),
            2 => self.link_down(which),
            3..=5 => self.connected(which, bytes),
            6..=8 => self.head(which, None),
            9..=12 => self.head(which, Some(bytes)),
            13..=16 => {
                let limit = bytes.size();
                self.data(which, limit);
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
            _ => (0..which % 32).for_each(|_| self.progress_normally(bytes.u8())),
        }
    }

    /// Ticks at a thousand deadlines without any event. Outputs must stay within their limit and time must advance.
    pub(super) fn run_without_events(&mut self) {
        let start = self.now;
        let passed = self.pass_deadlines(DEADLINES_WITHOUT_EVENTS);
        if self.is_finished || self.machine.deadline().is_none() {
            // marline's own policy may wait without a deadline only for the reader, or for an unrestricted link.
            let may_wait = self.config.reader_window.is_some() || !self.links.values().any(is_unrestricted);
            let is_stuck = !self.is_finished && self.config.policy == Policy::Marline && !may_wait;
            assert!(!is_stuck, "at {} the machine has no deadline and would wait forever", self.now);
            return;
        }
        assert_eq!(passed, DEADLINES_WITHOUT_EVENTS);
        assert!(self.now - start >= Duration::from_secs(1), "a thousand deadlines in {:?}", self.now - start);
    }

    /// Ticks at up to `limit` deadlines and returns their number.
    fn pass_deadlines(&mut self, limit: u32) -> u32 {
        for n in 0..limit {
            self.report_verified(true);
            let Some((at, _)) = self.machine.deadline().filter(|_| !self.is_finished) else { return n };
            self.now = self.now.max(at);
            self.machine.tick(self.now);
            self.drain();
        }
        limit
    }

    /// Reports the result of each pending [`Output::Verify`].
    fn report_verified(&mut self, matches: bool) {
        while let Some(range) = self.unverified.take() {
            self.report(Input::Verified { range, matches });
        }
    }

    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let mut ticks = 0;
        while let Some((at, _)) = self.machine.deadline().filter(|(at, _)| *at <= end && self.is_punctual) {
            self.now = self.now.max(at);
            self.machine.tick(self.now);
            self.drain();
            ticks += 1;
            if ticks > 200 {
                break;
            }
        }
        self.now = end;
    }

    fn report(&mut self, input: Input) {
        if self.is_finished {
            return;
        }
        log_event(self.now, '>', &input);
        check(self.reference.on_input(&input));
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        let (mut outputs, mut must_close) = (0, BTreeSet::new());
        while let Some(output) = self.machine.poll() {
            log_event(self.now, '<', &output);
            outputs += 1;
            assert!(
                outputs <= MAX_OUTPUTS,
                "more than {MAX_OUTPUTS} outputs at {}, the last one {output:?}",
                self.now
            );
            assert!(!self.is_finished, "{output:?} after the end");
            check(self.reference.on_output(&output));
            self.execute(output, &mut must_close);
        }
        let open = must_close.iter().find(|conn| self.conns.contains_key(conn));
        assert!(open.is_none(), "a response on {open:?} was cancelled, but the connection was not closed");
    }

    /// Executes one command. Connections whose responses can be cancelled only by closing them go to `must_close`.
    fn execute(&mut self, output: Output, must_close: &mut BTreeSet<ConnId>) {
        match output {
            Output::Connect { conn, link, .. } => {
                assert!(self.links.contains_key(&link), "{conn:?} over {link:?}, which was never reported");
                self.conns.insert(conn, Conn { is_open: false, responses: VecDeque::new() });
            }
            Output::Request { req, conn, range, .. } => {
                let conn = self.conns.get_mut(&conn).expect("checked by the reference model");
                conn.responses.push_back(Response {
                    req,
                    requested: range,
                    head: None,
                    accepted: None,
                    body_left: None,
                });
            }
            Output::AcceptBody { req, offset, len, .. } => {
                let end = offset.saturating_add(len.map_or(0, DataSize::bytes));
                assert!(
                    self.total.is_none_or(|total| end <= total.bytes()),
                    "the body of {req:?} is accepted up to {end}, beyond the end"
                );
                let response = self.response_mut(req);
                assert!(
                    response.head.is_some() && response.accepted.is_none(),
                    "{req:?} accepted before its head, or twice"
                );
                response.accepted = Some(len.map_or(u64::MAX, DataSize::bytes));
            }
            Output::Cancel { req } => {
                let conn = self.conns.iter_mut().find(|(_, conn)| conn.responses.iter().any(|r| r.req == req));
                let (id, conn) = conn.expect("only pending requests are cancelled");
                conn.responses.retain(|response| response.req != req);
                if self.protocol == Protocol::Http1 {
                    must_close.insert(*id);
                }
            }
            Output::Close { conn } => {
                assert!(self.conns.remove(&conn).is_some(), "closes {conn:?}, which does not exist");
            }
            Output::Identified { total, .. } => self.total = total,
            Output::Restart => (self.total, self.consumed) = (None, 0),
            Output::Done => {
                let end = self.reference.in_order_end();
                check(self.reference.on_done(&[DataSize::from_bytes(end)], false));
                assert!(self.total.is_none_or(|total| total.bytes() == end), "done with {end} of {:?}", self.total);
                self.is_finished = true;
            }
            Output::Verify { range } => self.unverified = Some(range),
            Output::Failed(_) => self.is_finished = true,
            Output::Notice(notice) => drop(format!("{notice:?}")),
        }
    }

    fn response_mut(&mut self, req: ReqId) -> &mut Response {
        let mut all = self.conns.values_mut().flat_map(|conn| conn.responses.iter_mut());
        all.find(|response| response.req == req).expect("checked by the reference model")
    }

    /// Version of the file that a response belongs to. If the configuration permits combining responses without equal
    /// validators (checksum, several mirrors), all of them carry the same version.
    fn source(&self, req: ReqId, head: &ResponseHead) -> ByteSource {
        if self.config.has_checksum || self.config.mirrors > 1 {
            return ByteSource::Version(0);
        }
        match &head.validator {
            Some(validator) => {
                ByteSource::Version((0..4).position(|n| super::validator(n) == *validator).unwrap_or(9))
            }
            None => ByteSource::Unverified(req, ResponseTruth::File),
        }
    }

    fn pick_conn(&self, which: u8, wanted: impl Fn(&Conn) -> bool) -> Option<ConnId> {
        let found: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| wanted(conn)).map(|(id, _)| *id).collect();
        found.get(usize::from(which) % found.len().max(1)).copied()
    }

    /// Picks a response that may have an event: with HTTP/1.1 only the first one of each connection.
    fn pick_response(&self, which: u8, wanted: impl Fn(&Response) -> bool) -> Option<(ConnId, usize)> {
        let limit = if self.protocol == Protocol::Http1 { 1 } else { usize::MAX };
        let open = self.conns.iter().filter(|(_, conn)| conn.is_open);
        let all =
            open.flat_map(|(id, conn)| conn.responses.iter().take(limit).enumerate().map(|(n, r)| (*id, n, r)));
        let found: Vec<_> = all.filter(|(.., response)| wanted(response)).map(|(id, n, _)| (id, n)).collect();
        found.get(usize::from(which) % found.len().max(1)).copied()
    }

    fn link_up(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let link = LinkId(u16::from(which & 3));
        let mut profile =
            LinkProfile::new(&format!("link{}", link.0), LINK_KINDS[usize::from(which >> 2) % LINK_KINDS.len()]);
        profile.metered = which & 16 != 0;
        profile.budget = (which & 32 != 0).then(|| DataSize::from_bytes(bytes.size()));
        profile.rate_limit = (which & 64 != 0).then(|| Bitrate::from_bits_per_sec(bytes.size()));
        self.links.insert(link, profile.clone());
        self.report(Input::LinkUp { link, profile });
    }

    fn link_down(&mut self, which: u8) {
        let link = LinkId(u16::from(which & 3));
        if self.links.contains_key(&link) {
            self.report(Input::LinkDown { link });
            // From now on `is_unrestricted` must not count this link.
            self.links.entry(link).and_modify(|profile| profile.metered = true);
        }
    }

    fn connected(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let Some(id) = self.pick_conn(which, |conn| !conn.is_open) else { return };
        self.open(id, Duration::from_micros(bytes.size()));
    }

    fn open(&mut self, id: ConnId, handshake_rtt: Duration) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.is_open = true;
            self.report(Input::Connected { conn: id, protocol: self.protocol, handshake_rtt, peer: None });
        }
    }

    /// Reports the head of a response: the correct one, or one that the input changes.
    fn head(&mut self, which: u8, changes: Option<&mut Bytes<'_>>) {
        let Some((id, index)) = self.pick_response(which, |response| response.head.is_none()) else { return };
        let Some(response) = self.conns.get(&id).map(|conn| &conn.responses[index]) else { return };
        let (req, requested) = (response.req, response.requested);
        let mut head = match changes {
            Some(bytes) => head::modified(bytes, requested, self.size, self.config.mirrors),
            None => head::correct(requested, self.size),
        };
        match self.protocol {
            Protocol::Http1 => head.closes_connection |= head.length.is_none() && which & 128 != 0,
            Protocol::Http2 => head.closes_connection = false,
        }
        let start =
            head.range.and_then(|range| range.range).filter(|_| head.status == 206).map_or(0, |range| range.start);
        let source = self.source(req, &head);
        let response = self.response_mut(req);
        response.body_left = head.length.map(DataSize::bytes);
        response.head = Some(head.clone());
        self.reference.on_head(req, source, start);
        self.report(Input::Head { req, head });
    }

    /// Delivers up to `limit` bytes of a body. A body longer than accepted ends its connection (HTTP/1.1) or stream.
    fn data(&mut self, which: u8, limit: u64) {
        let can_deliver = |response: &Response| response.accepted.is_some() && response.body_left != Some(0);
        let Some((id, index)) = self.pick_response(which, can_deliver) else { return };
        let Some(response) = self.conns.get_mut(&id).map(|conn| &mut conn.responses[index]) else { return };
        let accepted = response.accepted.unwrap_or(0);
        if accepted == 0 {
            return self.excess_data(id, index);
        }
        // A body of unknown length comes in pieces, too.
        let piece = response.body_left.unwrap_or(1 << 20).min(accepted).min(limit.max(1));
        response.accepted = Some(accepted - piece);
        response.body_left = response.body_left.map(|left| left - piece);
        let (req, len) = (response.req, DataSize::from_bytes(piece));
        self.report(Input::Data { req, len });
    }

    fn excess_data(&mut self, id: ConnId, index: usize) {
        if self.protocol == Protocol::Http1 {
            return self.close(id, ConnErrorKind::Protocol);
        }
        let response = self.conns.get_mut(&id).and_then(|conn| conn.responses.remove(index));
        if let Some(Response { req, .. }) = response {
            self.report(Input::Aborted { req, error: error(ConnErrorKind::Protocol) });
        }
    }

    fn end(&mut self, which: u8) {
        let can_end = |response: &Response| response.accepted.is_some() && response.body_left.unwrap_or(0) == 0;
        let Some((id, index)) = self.pick_response(which, can_end) else { return };
        let response = self.conns.get_mut(&id).and_then(|conn| conn.responses.remove(index));
        let Some(Response { req, head, .. }) = response else { return };
        self.report(Input::End { req });
        if head.is_some_and(|head| head.closes_connection) {
            self.close(id, ConnErrorKind::CleanClose);
        }
    }

    fn aborted(&mut self, which: u8) {
        if self.protocol == Protocol::Http2
            && let Some((id, index)) = self.pick_response(which, |_| true)
            && let Some(Response { req, .. }) =
                self.conns.get_mut(&id).and_then(|conn| conn.responses.remove(index))
        {
            self.report(Input::Aborted { req, error: error(ConnErrorKind::Reset) });
        }
    }

    fn closed(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        use ConnErrorKind::*;
        let Some(id) = self.pick_conn(which, |_| true) else { return };
        let kinds = [CleanClose, Truncated, Reset, Refused, Unreachable, TimedOut, Dns, Tls, Protocol];
        let kind = bytes.one_of(&kinds);
        self.close(id, kind);
    }

    fn close(&mut self, id: ConnId, kind: ConnErrorKind) {
        if self.conns.remove(&id).is_some() {
            self.report(Input::Closed { conn: id, error: error(kind) });
        }
    }

    fn sample(&mut self, which: u8, bytes: &mut Bytes<'_>) {
        let Some(conn) = self.pick_conn(which, |conn| conn.is_open) else { return };
        let mut time = || Duration::from_micros(bytes.size());
        let (rtt, min_rtt, rcv_rtt) = (time(), time(), time());
        let path = PathSample { rtt, min_rtt, rcv_rtt, out_of_order: u32::from(bytes.u8()) };
        self.report(Input::Sample { conn, path });
    }

    /// The in-order reader consumes everything that it can.
    fn consume(&mut self) {
        let end = self.reference.in_order_end();
        if self.config.reader_window.is_some() && end > self.consumed {
            self.consumed = end;
            self.report(Input::Consumed { end });
        }
    }

    /// Moves one connection and one response forward as a correct network and server would.
    fn progress_normally(&mut self, which: u8) {
        self.advance(Duration::from_millis(u64::from(which & 15)));
        self.consume();
        if let Some(id) = self.pick_conn(which >> 4, |conn| !conn.is_open) {
            self.open(id, Duration::from_millis(20));
        }
        self.head(which >> 4, None);
        self.data(which >> 4, 1 << 16);
        self.end(which >> 4);
    }
}

/// Prints an input (`>`) or output (`<`) if `MARLINE_FUZZ_LOG` is set, for debugging a failing fuzz input.
fn log_event(now: Instant, direction: char, event: &dyn Debug) {
    static IS_ENABLED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("MARLINE_FUZZ_LOG").is_some());
    if *IS_ENABLED {
        eprintln!("{now} {direction} {event:?}");
    }
}

/// Panics with the violation that the reference model has found.
fn check(result: CheckResult) {
    if let Err(violation) = result {
        panic!("{violation}");
    }
}

/// Whether nothing restricts the use of a link.
fn is_unrestricted(profile: &LinkProfile) -> bool {
    !profile.metered && profile.budget.is_none() && profile.rate_limit.is_none()
}

fn error(kind: ConnErrorKind) -> ConnError {
    ConnError { kind, text: format!("{kind:?}") }
}

/// Number of deadlines that [`Driver::run_without_events`] lets pass.
const DEADLINES_WITHOUT_EVENTS: u32 = 1000;
