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

use super::head_reassembler::{Head, Tap};
use super::http_head::{Answer, Refusal, Request};
use crate::accel::Sight;
use crate::accel::seq_space::{Stretch, first, near};
use crate::wire::packet::Seq;

/// A segment of the flow, either way, as far as it was shown.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
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
pub struct Place {
    /// Which.
    pub resource: Arc<Resource>,
    /// The offset of the stretch's first byte.
    pub offset: u64,
}

/// A flow's HTTP.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    taps: Option<Taps>,
    /// Requests without an answer, the oldest first.
    open: VecDeque<Request>,
    bodies: VecDeque<Body>,
    refusal: Option<Refusal>,
}

/// Both directions.
#[derive(Clone, Debug)]
struct Taps {
    up: Tap,
    down: Tap,
}

/// A body, in sequence space.
#[derive(Clone, Debug)]
struct Body {
    stretch: Stretch,
    /// Where in the resource it begins.
    offset: u64,
    resource: Result<Arc<Resource>, Refusal>,
    proof: Proof,
}

/// Whether a resource is what came.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Proof {
    /// No bytes to compare with were shown yet.
    Wanted,
    /// Some were, from this position on.
    Sample(u64, Vec<u8>),
    /// The same ones are being fetched.
    Asked(u64, Vec<u8>),
    /// They were the same.
    Same,
}

impl Mirror {
    /// A segment from here.
    pub fn asked(&mut self, seen: &Seen<'_>) {
        if self.refusal.is_some() || seen.length == 0 {
            return;
        }
        let Some(taps) = self.taps_at(seen) else { return };
        let at = near(taps.up.next(), seen.seq);
        taps.up.see(at, seen.payload, seen.length.into());
        self.read_requests();
    }

    /// A segment from the other end.
    pub fn answered(&mut self, seen: &Seen<'_>) {
        let Some(taps) = &mut self.taps else { return };
        if seen.length == 0 {
            return;
        }
        // Of a body of gigabytes the next head is further off than the half circle; the front is near.
        let at = near(taps.down.front(), seen.seq);
        taps.down.see(at, seen.payload, seen.length.into());
        if self.refusal.is_none() {
            self.read_answers();
        }
        self.sample(at, seen.payload);
    }

    /// Where a stretch lies, if it is within one body that was checked.
    pub fn place(&self, stretch: Stretch) -> Option<Place> {
        let body = self.body_of(stretch)?;
        let resource = body.resource.as_ref().ok().filter(|_| body.proof == Proof::Same)?;
        Some(Place { resource: Arc::clone(resource), offset: body.offset + (stretch.start - body.stretch.start) })
    }

    /// What is to be fetched and compared before anything else; told once for each resource.
    pub fn check(&mut self) -> Option<(Stretch, Place)> {
        for body in &mut self.bodies {
            if let (Ok(resource), Proof::Sample(at, bytes)) = (&body.resource, &body.proof) {
                let stretch = Stretch::new(*at, at.saturating_add(bytes.len() as u64));
                let offset = body.offset + (at - body.stretch.start);
                let place = Place { resource: Arc::clone(resource), offset };
                body.proof = Proof::Asked(*at, bytes.clone());
                return Some((stretch, place));
            }
        }
        None
    }

    /// Whether these bytes answer [`check`](Self::check); if so, they are compared.
    pub fn checked(&mut self, start: u64, bytes: &[u8]) -> bool {
        let asked = |body: &Body| matches!(&body.proof, Proof::Asked(at, _) if *at == start);
        let Some(body) = self.bodies.iter_mut().find(|body| asked(body)) else { return false };
        let Ok(resource) = body.resource.clone() else { return false };
        let is_same = matches!(&body.proof, Proof::Asked(_, sample) if sample == bytes);
        for body in self.bodies.iter_mut().filter(|body| body.resource.as_ref() == Ok(&resource)) {
            if is_same {
                body.proof = Proof::Same;
            } else {
                body.resource = Err(Refusal::Differs);
            }
        }
        if !is_same {
            self.refuse(Refusal::Differs);
        }
        true
    }

    /// Nobody has asked anything, and nobody looks any longer: what comes now cannot be followed.
    pub fn give_up(&mut self) {
        if self.is_silent() {
            self.refuse(Refusal::NotSeen);
        }
    }

    /// Whether nothing more is to be looked at: it was refused, or the own end has closed and has its answers; and everything
    /// before `position` has come.
    pub fn is_over(&self, position: u64, has_closed: bool) -> bool {
        let is_last = self.refusal.is_some() || (has_closed && self.open.is_empty());
        is_last && self.bodies.iter().all(|body| body.resource.is_err() || body.stretch.end <= position)
    }

    /// Nothing more is looked at, for this reason unless there was one.
    pub fn close(&mut self, why: Refusal) {
        let why = self.refusal.unwrap_or(why);
        *self = Self { refusal: Some(why), ..Self::default() };
    }

    /// Whether no request was seen, and one still may be.
    pub fn is_silent(&self) -> bool {
        self.taps.is_none() && self.refusal.is_none()
    }

    /// Whether the bytes from here on are being fetched for a comparison.
    pub fn awaits(&self, start: u64) -> bool {
        self.bodies.iter().any(|body| matches!(&body.proof, Proof::Asked(at, _) if *at == start))
    }

    /// Up to where the flow is known to carry data: the end of the last body. A FIN cannot lie before it.
    pub fn end(&self) -> Option<u64> {
        self.bodies.back().map(|body| body.stretch.end)
    }

    /// The position of a number from the other end, once one is known.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        self.taps.as_ref().map(|taps| near(taps.down.front(), seq))
    }

    /// Everything before this position has come; what is only about that is forgotten, but for the last body.
    pub fn forget_before(&mut self, position: u64) {
        while self.bodies.len() > 1 && self.bodies.front().is_some_and(|body| body.stretch.end <= position) {
            self.bodies.pop_front();
        }
    }

    /// How much it needs to be shown: all while a head or a sample is due, else nothing of its own.
    pub fn wants(&self) -> Sight {
        let Some(taps) = self.taps.as_ref().filter(|_| self.refusal.is_none()) else {
            return if self.refusal.is_some() { Sight::None } else { Sight::Whole };
        };
        let is_near = taps.down.front().saturating_add(NEAR) >= taps.down.next();
        let samples = self.bodies.iter().any(|body| body.resource.is_ok() && body.proof == Proof::Wanted);
        if is_near || samples { Sight::Whole } else { Sight::None }
    }

    /// Why nothing can be fetched of what comes now; none while it can, or may be found out yet.
    pub fn refusal(&self) -> Option<Refusal> {
        let last = self.bodies.back().filter(|body| {
            self.taps.as_ref().is_some_and(|taps| body.stretch.contains(taps.down.front().saturating_sub(1)))
        });
        last.and_then(|body| body.resource.as_ref().err().copied()).or(self.refusal)
    }

    /// The two directions; before the first request there are none.
    fn taps_at(&mut self, seen: &Seen<'_>) -> Option<&mut Taps> {
        if self.taps.is_none() {
            match seen.payload {
                [0x16, 3, ..] => self.refuse(Refusal::Secure),
                [b'A'..=b'Z', ..] => {
                    let (up, down) = (Tap::new(first(seen.seq)), Tap::new(first(seen.ack)));
                    self.taps = Some(Taps { up, down });
                }
                _ => self.refuse(Refusal::NotHttp),
            }
        }
        self.taps.as_mut()
    }

    fn read_requests(&mut self) {
        while let Some(taps) = &mut self.taps {
            let request = match taps.up.head() {
                Head::Whole(head) => Request::parse(&head),
                Head::Partial if could_be_request(taps.up.start()) => return,
                Head::Partial => Err(Refusal::NotHttp),
                Head::TooLong => Err(Refusal::TooMuch),
                Head::Lost => Err(Refusal::NotSeen),
            };
            match request {
                Ok(request) if self.open.len() < OPEN_MOST => {
                    taps.up.skip(request.body);
                    self.open.push_back(request);
                }
                Ok(_) => return self.refuse(Refusal::TooMuch),
                Err(refusal) => return self.refuse(refusal),
            }
        }
    }

    fn read_answers(&mut self) {
        while let Some(taps) = &mut self.taps {
            let head = match taps.down.head() {
                Head::Whole(head) => head,
                Head::Partial => return,
                Head::TooLong => return self.refuse(Refusal::TooMuch),
                Head::Lost => return self.refuse(Refusal::NotSeen),
            };
            let answer = match Answer::parse(&head) {
                Ok(answer) if answer.is_interim => continue,
                Ok(answer) => answer,
                Err(refusal) => return self.refuse(refusal),
            };
            let Some(request) = self.open.pop_front() else { return self.refuse(Refusal::Unasked) };
            let length = if request.is_head { 0 } else { answer.body };
            let start = taps.down.next();
            taps.down.skip(length);
            self.add(Stretch::new(start, start.saturating_add(length)), request, answer);
        }
    }

    fn add(&mut self, stretch: Stretch, request: Request, answer: Answer) {
        let resource = match (request.again, answer.part) {
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            _ if stretch.bytes() < SHORTEST => Err(Refusal::Short),
            (Ok(request), Ok(part)) => {
                Ok((Resource { request, etag: part.etag, length: part.length }, part.offset))
            }
        };
        let offset = resource.as_ref().map_or(0, |(_, offset)| *offset);
        let resource = resource.map(|(resource, _)| Arc::new(resource));
        // The next part of a resource that was checked already needs no other check.
        let known = self.bodies.iter().find(|body| body.resource == resource && body.proof == Proof::Same);
        let proof = known.map_or(Proof::Wanted, |_| Proof::Same);
        if self.bodies.len() >= BODIES_MOST {
            self.bodies.pop_front();
        }
        self.bodies.push_back(Body { stretch, offset, resource, proof });
    }

    /// Keeps bytes of bodies that have none to be compared with.
    fn sample(&mut self, at: u64, payload: &[u8]) {
        let shown = Stretch::new(at, at.saturating_add(payload.len() as u64));
        for body in self.bodies.iter_mut().filter(|body| body.proof == Proof::Wanted && body.resource.is_ok()) {
            let common = body.stretch.common(&shown);
            let from = usize::try_from(common.start - at).unwrap_or(usize::MAX);
            if let Some(bytes) =
                payload.get(from..).and_then(|rest| rest.get(..SAMPLE)).filter(|_| common.bytes() >= SAMPLE as u64)
            {
                body.proof = Proof::Sample(common.start, bytes.to_vec());
            }
        }
    }

    fn body_of(&self, stretch: Stretch) -> Option<&Body> {
        self.bodies.iter().find(|body| !stretch.is_empty() && body.stretch.encloses(&stretch))
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
        self.open.clear();
    }
}

/// Whether these bytes can begin a request: capital letters, then a blank.
fn could_be_request(bytes: &[u8]) -> bool {
    let word = bytes.iter().position(|b| !b.is_ascii_uppercase());
    word.is_none_or(|end| (3..=16).contains(&end) && bytes.get(end) == Some(&b' '))
        && (word.is_some() || bytes.len() <= 16)
}

/// chosen: more than clients pipeline.
const OPEN_MOST: usize = 64;
/// chosen: as many bodies may be partly missing at the same time.
const BODIES_MOST: usize = 64;
/// chosen: below this a body is over before a second connection stands.
const SHORTEST: u64 = 64 * 1024;
/// chosen: bytes that are compared; fewer than a segment has, so that the first one that is shown is enough.
const SAMPLE: usize = 512;
/// chosen: so near the end of a body all is shown, for the next head: more than comes between a decision and its effect.
const NEAR: u64 = 1024 * 1024;
