//! Mirroring Manager: which bytes of which resource a stretch of sequence numbers is (Super-aggregation §4.2).
//!
//! In: what a flow's two ends said to each other, as far as it was seen ([`Seen`]). Out: for any stretch the resource and
//! where in it the stretch begins ([`Mirror::place`]), so that the bytes can be got a second time; or why not.
//!
//! 1. The paper replays the connection. Here the second connection asks for ranges: nothing comes over the thin link
//!    that is not missing. So the flow must be HTTP/1.x in plain text, and [`heads`](super::http_head) says what else.
//! 2. Requests and answers are matched in order (RFC 9112 §9.3.2), so keep-alive and pipelining are followed. What
//!    cannot be followed ends it: bodies known before stay known, later ones are nobody's.
//! 3. Nothing is trusted unseen: before the first stretch of a resource is given away, bytes of it that came are fetched
//!    and compared ([`Mirror::check`], [`Mirror::checked`]). What differs is never asked for again.
//! 4. It begins with a request, at whose acknowledgement number the answer begins: the handshake need not be seen.
//! 5. All it keeps is bounded: one head each way, [`OPEN_MOST`] requests, [`BODIES_MOST`] bodies.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::head_reassembler::{Head, HeadReassembler};
use super::http_head::{NotFetchable, RequestHead, ResponseHead};
use crate::accel::CaptureLevel;
use crate::accel::seq_space::{PosRange, nearest_position, position_of};
use crate::wire::packet::Seq;

/// A segment of the flow, either way, as far as it was shown.
#[derive(Clone, Copy, Debug)]
pub struct ObservedSegment<'a> {
    /// The number of its first byte.
    pub seq: Seq,
    /// What it acknowledges.
    pub ack: Seq,
    /// How many bytes of payload it has.
    pub length: u32,
    /// The first of these, perhaps all.
    pub payload: &'a [u8],
}

/// What can be got a second time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    /// The request, as [`Fetch`](crate::accel::Fetch) has it.
    pub request: String,
    /// Its strong validator.
    pub etag: String,
    /// How long it is.
    pub length: u64,
}

/// Where a stretch lies in its resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceOffset {
    /// Which.
    pub resource: Arc<Resource>,
    /// The offset of the stretch's first byte.
    pub offset: u64,
}

/// A flow's HTTP.
#[derive(Clone, Debug, Default)]
pub struct HttpMap {
    reassemblers: Option<HeadReassemblers>,
    /// Requests without an answer, the oldest first.
    pending_requests: VecDeque<RequestHead>,
    bodies: VecDeque<Body>,
    not_fetchable: Option<NotFetchable>,
}

/// Both directions.
#[derive(Clone, Debug)]
struct HeadReassemblers {
    up: HeadReassembler,
    down: HeadReassembler,
}

/// A body, in sequence space.
#[derive(Clone, Debug)]
struct Body {
    range: PosRange,
    /// Where in the resource it begins.
    offset: u64,
    resource: Result<Arc<Resource>, NotFetchable>,
    verification: Verification,
}

/// Whether a resource is what came.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verification {
    /// No bytes to compare with were shown yet.
    NoSample,
    /// Some were, from this position on.
    Sample(u64, Vec<u8>),
    /// The same ones are being fetched.
    Requested(u64, Vec<u8>),
    /// They were the same.
    Verified,
}

impl HttpMap {
    /// A segment from here.
    pub fn on_request_segment(&mut self, segment: &ObservedSegment<'_>) {
        if self.not_fetchable.is_some() || segment.length == 0 {
            return;
        }
        let Some(taps) = self.reassemblers_for(segment) else { return };
        let at = nearest_position(taps.up.next(), segment.seq);
        taps.up.on_payload(at, segment.payload, segment.length.into());
        self.read_requests();
    }

    /// A segment from the other end.
    pub fn on_response_segment(&mut self, segment: &ObservedSegment<'_>) {
        let Some(taps) = &mut self.reassemblers else { return };
        if segment.length == 0 {
            return;
        }
        // Of a body of gigabytes the next head is further off than the half circle; the front is near.
        let at = nearest_position(taps.down.highest(), segment.seq);
        taps.down.on_payload(at, segment.payload, segment.length.into());
        if self.not_fetchable.is_none() {
            self.read_answers();
        }
        self.keep_sample(at, segment.payload);
    }

    /// Where a stretch lies, if it is within one body that was checked.
    pub fn locate(&self, range: PosRange) -> Option<ResourceOffset> {
        let body = self.body_of(range)?;
        let resource = body.resource.as_ref().ok().filter(|_| body.verification == Verification::Verified)?;
        Some(ResourceOffset {
            resource: Arc::clone(resource),
            offset: body.offset + (range.start - body.range.start),
        })
    }

    /// What is to be fetched and compared before anything else; told once for each resource.
    pub fn take_check(&mut self) -> Option<(PosRange, ResourceOffset)> {
        for body in &mut self.bodies {
            if let (Ok(resource), Verification::Sample(at, bytes)) = (&body.resource, &body.verification) {
                let range = PosRange::new(*at, at.saturating_add(bytes.len() as u64));
                let offset = body.offset + (at - body.range.start);
                let place = ResourceOffset { resource: Arc::clone(resource), offset };
                body.verification = Verification::Requested(*at, bytes.clone());
                return Some((range, place));
            }
        }
        None
    }

    /// Whether these bytes answer [`check`](Self::check); if so, they are compared.
    pub fn on_check_fetched(&mut self, start: u64, bytes: &[u8]) -> bool {
        let is_requested =
            |body: &Body| matches!(&body.verification, Verification::Requested(at, _) if *at == start);
        let Some(body) = self.bodies.iter_mut().find(|body| is_requested(body)) else { return false };
        let Ok(resource) = body.resource.clone() else { return false };
        let is_same = matches!(&body.verification, Verification::Requested(_, sample) if sample == bytes);
        for body in self.bodies.iter_mut().filter(|body| body.resource.as_ref() == Ok(&resource)) {
            if is_same {
                body.verification = Verification::Verified;
            } else {
                body.resource = Err(NotFetchable::Differs);
            }
        }
        if !is_same {
            self.set_not_fetchable(NotFetchable::Differs);
        }
        true
    }

    /// Nobody has asked anything, and nobody looks any longer: what comes now cannot be followed.
    pub fn give_up(&mut self) {
        if self.has_no_request() {
            self.set_not_fetchable(NotFetchable::NotCaptured);
        }
    }

    /// Whether nothing more is to be looked at: it was refused, or the own end has closed and has its answers; and everything
    /// before `position` has come.
    pub fn is_finished(&self, position: u64, has_closed: bool) -> bool {
        let is_last = self.not_fetchable.is_some() || (has_closed && self.pending_requests.is_empty());
        is_last && self.bodies.iter().all(|body| body.resource.is_err() || body.range.end <= position)
    }

    /// Nothing more is looked at, for this reason unless there was one.
    pub fn close(&mut self, why: NotFetchable) {
        let why = self.not_fetchable.unwrap_or(why);
        *self = Self { not_fetchable: Some(why), ..Self::default() };
    }

    /// Whether no request was seen, and one still may be.
    pub fn has_no_request(&self) -> bool {
        self.reassemblers.is_none() && self.not_fetchable.is_none()
    }

    /// Whether the bytes from here on are being fetched for a comparison.
    pub fn is_check(&self, start: u64) -> bool {
        self.bodies.iter().any(|body| matches!(&body.verification, Verification::Requested(at, _) if *at == start))
    }

    /// Up to where the flow is known to carry data: the end of the last body. A FIN cannot lie before it.
    pub fn end(&self) -> Option<u64> {
        self.bodies.back().map(|body| body.range.end)
    }

    /// The position of a number from the other end, once one is known.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        self.reassemblers.as_ref().map(|taps| nearest_position(taps.down.highest(), seq))
    }

    /// Everything before this position has come; what is only about that is forgotten, but for the last body.
    pub fn forget_before(&mut self, position: u64) {
        while self.bodies.len() > 1 && self.bodies.front().is_some_and(|body| body.range.end <= position) {
            self.bodies.pop_front();
        }
    }

    /// How much it needs to be shown: all while a head or a sample is due, else nothing of its own.
    pub fn capture_level(&self) -> CaptureLevel {
        let Some(taps) = self.reassemblers.as_ref().filter(|_| self.not_fetchable.is_none()) else {
            return if self.not_fetchable.is_some() { CaptureLevel::None } else { CaptureLevel::Full };
        };
        let is_near = taps.down.highest().saturating_add(NEXT_HEAD_DISTANCE) >= taps.down.next();
        let samples =
            self.bodies.iter().any(|body| body.resource.is_ok() && body.verification == Verification::NoSample);
        if is_near || samples { CaptureLevel::Full } else { CaptureLevel::None }
    }

    /// Why nothing can be fetched of what comes now; none while it can, or may be found out yet.
    pub fn not_fetchable(&self) -> Option<NotFetchable> {
        let last = self.bodies.back().filter(|body| {
            self.reassemblers
                .as_ref()
                .is_some_and(|taps| body.range.contains(taps.down.highest().saturating_sub(1)))
        });
        last.and_then(|body| body.resource.as_ref().err().copied()).or(self.not_fetchable)
    }

    /// The two directions; before the first request there are none.
    fn reassemblers_for(&mut self, segment: &ObservedSegment<'_>) -> Option<&mut HeadReassemblers> {
        if self.reassemblers.is_none() {
            match segment.payload {
                [0x16, 3, ..] => self.set_not_fetchable(NotFetchable::Encrypted),
                [b'A'..=b'Z', ..] => {
                    let (up, down) = (
                        HeadReassembler::new(position_of(segment.seq)),
                        HeadReassembler::new(position_of(segment.ack)),
                    );
                    self.reassemblers = Some(HeadReassemblers { up, down });
                }
                _ => self.set_not_fetchable(NotFetchable::NotHttp),
            }
        }
        self.reassemblers.as_mut()
    }

    fn read_requests(&mut self) {
        while let Some(taps) = &mut self.reassemblers {
            let request = match taps.up.take_head() {
                Head::Complete(head) => RequestHead::parse(&head),
                Head::Partial if could_be_request(taps.up.known_start()) => return,
                Head::Partial => Err(NotFetchable::NotHttp),
                Head::TooLong => Err(NotFetchable::TooLarge),
                Head::Lost => Err(NotFetchable::NotCaptured),
            };
            match request {
                Ok(request) if self.pending_requests.len() < MAX_REQUESTS => {
                    taps.up.skip(request.body);
                    self.pending_requests.push_back(request);
                }
                Ok(_) => return self.set_not_fetchable(NotFetchable::TooLarge),
                Err(refusal) => return self.set_not_fetchable(refusal),
            }
        }
    }

    fn read_answers(&mut self) {
        while let Some(taps) = &mut self.reassemblers {
            let head = match taps.down.take_head() {
                Head::Complete(head) => head,
                Head::Partial => return,
                Head::TooLong => return self.set_not_fetchable(NotFetchable::TooLarge),
                Head::Lost => return self.set_not_fetchable(NotFetchable::NotCaptured),
            };
            let answer = match ResponseHead::parse(&head) {
                Ok(answer) if answer.is_interim => continue,
                Ok(answer) => answer,
                Err(refusal) => return self.set_not_fetchable(refusal),
            };
            let Some(request) = self.pending_requests.pop_front() else {
                return self.set_not_fetchable(NotFetchable::NoRequest);
            };
            let length = if request.is_head { 0 } else { answer.body };
            let start = taps.down.next();
            taps.down.skip(length);
            self.add_body(PosRange::new(start, start.saturating_add(length)), request, answer);
        }
    }

    fn add_body(&mut self, range: PosRange, request: RequestHead, answer: ResponseHead) {
        let resource = match (request.repeated_request, answer.part) {
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            _ if range.len() < MIN_BODY => Err(NotFetchable::Short),
            (Ok(request), Ok(part)) => {
                Ok((Resource { request, etag: part.etag, length: part.length }, part.offset))
            }
        };
        let offset = resource.as_ref().map_or(0, |(_, offset)| *offset);
        let resource = resource.map(|(resource, _)| Arc::new(resource));
        // The next part of a resource that was checked already needs no other check.
        let known = self
            .bodies
            .iter()
            .find(|body| body.resource == resource && body.verification == Verification::Verified);
        let proof = known.map_or(Verification::NoSample, |_| Verification::Verified);
        if self.bodies.len() >= MAX_BODIES {
            self.bodies.pop_front();
        }
        self.bodies.push_back(Body { range, offset, resource, verification: proof });
    }

    /// Keeps bytes of bodies that have none to be compared with.
    fn keep_sample(&mut self, at: u64, payload: &[u8]) {
        let captured = PosRange::new(at, at.saturating_add(payload.len() as u64));
        for body in self
            .bodies
            .iter_mut()
            .filter(|body| body.verification == Verification::NoSample && body.resource.is_ok())
        {
            let common = body.range.intersection(&captured);
            let from = usize::try_from(common.start - at).unwrap_or(usize::MAX);
            if let Some(bytes) =
                payload.get(from..).and_then(|rest| rest.get(..SAMPLE)).filter(|_| common.len() >= SAMPLE as u64)
            {
                body.verification = Verification::Sample(common.start, bytes.to_vec());
            }
        }
    }

    fn body_of(&self, range: PosRange) -> Option<&Body> {
        self.bodies.iter().find(|body| !range.is_empty() && body.range.covers(&range))
    }

    fn set_not_fetchable(&mut self, refusal: NotFetchable) {
        self.not_fetchable = Some(refusal);
        self.pending_requests.clear();
    }
}

/// Whether these bytes can begin a request: capital letters, then a blank.
fn could_be_request(bytes: &[u8]) -> bool {
    let method_end = bytes.iter().position(|b| !b.is_ascii_uppercase());
    method_end.is_none_or(|end| (3..=16).contains(&end) && bytes.get(end) == Some(&b' '))
        && (method_end.is_some() || bytes.len() <= 16)
}

/// chosen: more than clients pipeline.
const MAX_REQUESTS: usize = 64;
/// chosen: as many bodies may be partly missing at the same time.
const MAX_BODIES: usize = 64;
/// chosen: below this a body is over before a second connection stands.
const MIN_BODY: u64 = 64 * 1024;
/// chosen: bytes that are compared; fewer than a segment has, so that the first one that is shown is enough.
const SAMPLE: usize = 512;
/// chosen: so near the end of a body all is shown, for the next head: more than comes between a decision and its effect.
const NEXT_HEAD_DISTANCE: u64 = 1024 * 1024;
