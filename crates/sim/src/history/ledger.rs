//! The naive reference: what a download may never do, whatever happens.
//!
//! In: what the machine orders and what it is told. Out: the first thing that is wrong.
//!
//! It keeps a list of every byte's source and does nothing cleverly: it is the judge, not a second implementation.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::fetch::{ByteRange, ConnId, Input, Output, ReqId, RequestRange};
use marline_core::units::DataSize;

/// Whose bytes an answer carries. Answers that are not provably of one file are each a source of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// An edition of the server's file, by its validator.
    Edition(usize),
    /// Something that no validator proves, in an answer to this request: the file, or a portal's page.
    Unproven(ReqId, Page),
}

/// Whether an unproven answer is the file at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Page {
    /// The server's file.
    File,
    /// Something else.
    Other,
}

/// The books.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where each run of bytes comes from: start to (end, source).
    bytes: BTreeMap<u64, (u64, Source)>,
    answers: BTreeMap<ReqId, Open>,
    conns: BTreeSet<ConnId>,
    known_conns: BTreeSet<ConnId>,
    known_reqs: BTreeSet<ReqId>,
    total: Option<DataSize>,
    /// Nothing before it is wanted: the reader has jumped there.
    from: u64,
    delivered: u64,
    /// No request may go beyond it; none: no window.
    limit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    conn: ConnId,
    source: Option<(Source, u64)>,
    cursor: Option<(u64, Option<u64>)>,
}

/// Something that must not be.
pub type Wrong = Result<(), String>;

impl Ledger {
    /// Begins with what an earlier run left of edition zero.
    pub fn resume(&mut self, total: DataSize, have: &[ByteRange]) {
        self.total = Some(total);
        for span in have {
            self.put(*span, Source::Edition(0));
        }
    }

    /// The reader jumps: nothing before `to` is wanted, and nothing that was asked for.
    pub fn seek(&mut self, to: u64) {
        let to = to.min(self.end());
        self.bytes.clear();
        (self.from, self.delivered) = (to, to);
    }

    /// From now on no request for a range may go beyond this offset.
    pub fn limit(&mut self, to: u64) {
        self.limit = Some(to);
    }

    /// The machine lets the reader have everything before `upto`.
    pub fn on_deliver(&mut self, upto: u64) -> Wrong {
        if upto <= self.delivered {
            return Err(format!("delivers up to {upto} after {}", self.delivered));
        }
        if upto > self.frontier() {
            return Err(format!("delivers up to {upto}, in place is all before {}", self.frontier()));
        }
        self.delivered = upto;
        Ok(())
    }

    /// One past the last byte that may be asked for.
    pub fn may_ask_upto(&self) -> u64 {
        self.limit.unwrap_or(u64::MAX)
    }

    /// How far the reader has been let.
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// One past the last byte that the reader will ever want, as far as anybody knows.
    pub fn end(&self) -> u64 {
        self.total.map_or(u64::MAX, DataSize::bytes)
    }

    /// A head that the machine is about to be told: whose bytes follow, and from which offset.
    pub fn on_head(&mut self, req: ReqId, source: Source, at: u64) {
        if let Some(open) = self.answers.get_mut(&req) {
            open.source = Some((source, at));
        }
    }

    /// Something that the machine is about to be told.
    pub fn on_input(&mut self, input: &Input) -> Wrong {
        match input {
            Input::Connected { conn, .. } => {
                self.conns.insert(*conn);
            }
            Input::Data { req, len } => {
                let Some(open) = self.answers.get_mut(req) else { return Err(format!("data for unknown {req:?}")) };
                let (Some((source, _)), Some((at, _))) = (open.source, &mut open.cursor) else {
                    return Err(format!("data for unaccepted {req:?}"));
                };
                let span = ByteRange::at(*at, *len);
                *at = span.end;
                self.put(span, source);
            }
            Input::End { req } | Input::Aborted { req, .. } => {
                self.answers.remove(req);
            }
            Input::Closed { conn, .. } => self.forget(*conn),
            _ => {}
        }
        Ok(())
    }

    /// Something that the machine orders.
    pub fn on_output(&mut self, output: &Output) -> Wrong {
        match output {
            Output::Connect { conn, .. } if !self.known_conns.insert(*conn) => Err(format!("{conn:?} used twice")),
            Output::Request { req, conn, range, .. } => self.on_request(*req, *conn, *range),
            Output::AcceptBody { req, offset: at, len, .. } => self.on_accept(*req, *at, *len),
            Output::Cancel { req } => {
                self.answers.remove(req);
                Ok(())
            }
            Output::Close { conn } => {
                self.forget(*conn);
                Ok(())
            }
            Output::Identified { total, .. } => {
                self.total = *total;
                // Nobody could know before that the reader has jumped beyond the end.
                self.from = self.from.min(self.end());
                self.delivered = self.delivered.min(self.end());
                Ok(())
            }
            Output::Restart => {
                self.bytes.clear();
                self.total = None;
                (self.from, self.delivered) = (0, 0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Different bytes in place.
    pub fn covered(&self) -> DataSize {
        DataSize::from_bytes(self.bytes.iter().map(|(start, (end, _))| end - start).sum())
    }

    /// The same with what the reader has jumped over.
    pub fn covered_with_skipped(&self) -> DataSize {
        self.covered() + DataSize::from_bytes(self.from)
    }

    /// Everything before this offset is in place.
    pub fn frontier(&self) -> u64 {
        let mut at = self.from;
        for (start, (end, _)) in &self.bytes {
            if *start > at {
                break;
            }
            at = at.max(*end);
        }
        at
    }

    /// The machine says that it is done: is it? `sizes` are the editions'. Who hears only one link is `gullible`: it has
    /// no way to tell a portal's page from the file.
    pub fn on_done(&self, sizes: &[DataSize], gullible: bool) -> Wrong {
        let frontier = self.frontier();
        let sources: BTreeSet<Source> = self.bytes.values().map(|(_, source)| *source).collect();
        if self.covered_with_skipped() != DataSize::from_bytes(frontier) {
            return Err(format!("done with a hole at {frontier}"));
        }
        let mut sources = sources.into_iter();
        let is_size = |size: &DataSize| size.bytes() == frontier;
        match (sources.next(), sources.next()) {
            (Some(one), Some(other)) => Err(format!("done with a mixture of {one:?} and {other:?}")),
            // An edition that the server does not have is another edge's.
            (Some(Source::Edition(edition)), None) if sizes.get(edition).is_none_or(is_size) => Ok(()),
            (Some(Source::Unproven(_, Page::File)) | None, None) if sizes.iter().any(is_size) => Ok(()),
            (Some(Source::Unproven(_, Page::Other)), None) if gullible => Ok(()),
            (source, _) => {
                Err(format!("done with {frontier} bytes of {source:?}, but the editions have {sizes:?}"))
            }
        }
    }

    fn on_request(&mut self, req: ReqId, conn: ConnId, range: RequestRange) -> Wrong {
        if !self.known_reqs.insert(req) {
            return Err(format!("{req:?} used twice"));
        }
        if !self.conns.contains(&conn) {
            return Err(format!("{req:?} on {conn:?}, which does not stand"));
        }
        let total = self.total.map_or(u64::MAX, DataSize::bytes);
        match range {
            RequestRange::Bounded(span) if span.is_empty() || span.end > total => {
                return Err(format!("{req:?} asks for {span} of {total} bytes"));
            }
            RequestRange::Bounded(span) if self.limit.is_some_and(|limit| span.end > limit) => {
                return Err(format!("{req:?} asks for {span}, the window ends at {:?}", self.limit));
            }
            RequestRange::From(start) if start >= total => {
                return Err(format!("{req:?} asks from {start} of {total} bytes"));
            }
            _ => {}
        }
        self.answers.insert(req, Open { conn, source: None, cursor: None });
        Ok(())
    }

    fn on_accept(&mut self, req: ReqId, at: u64, len: Option<DataSize>) -> Wrong {
        let Some(open) = self.answers.get_mut(&req) else { return Err(format!("accepts unknown {req:?}")) };
        let Some((source, from)) = open.source else { return Err(format!("accepts {req:?} before its head")) };
        if open.cursor.is_some() {
            return Err(format!("accepts {req:?} twice"));
        }
        if from != at {
            return Err(format!("accepts {req:?}, which begins at {from}, for {at}"));
        }
        open.cursor = Some((at, len.map(DataSize::bytes)));
        let open = self.answers.values().filter(|open| open.cursor.is_some()).filter_map(|open| open.source);
        let sources: BTreeSet<Source> = open.map(|(source, _)| source).chain([source]).collect();
        if sources.len() > 1 { Err(format!("open answers of {sources:?}")) } else { Ok(()) }
    }

    fn forget(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.answers.retain(|_, open| open.conn != conn);
    }

    /// Whoever writes last owns the byte. What the reader has jumped over is nobody's.
    fn put(&mut self, span: ByteRange, source: Source) {
        let span = ByteRange::new(span.start.max(self.from), span.end);
        if span.is_empty() {
            return;
        }
        let before = self.bytes.range(..span.start).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, (end, old))) = before.filter(|(_, (end, _))| *end > span.start) {
            self.bytes.insert(start, (span.start, old));
            if end > span.end {
                self.bytes.insert(span.end, (end, old));
            }
        }
        let within: Vec<u64> = self.bytes.range(span.start..span.end).map(|(start, _)| *start).collect();
        for start in within {
            if let Some((end, old)) = self.bytes.remove(&start)
                && end > span.end
            {
                self.bytes.insert(span.end, (end, old));
            }
        }
        self.bytes.insert(span.start, (span.end, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Source = Source::Edition(0);
    const TWO: Source = Source::Edition(1);

    #[test]
    fn the_last_writer_owns_the_byte() {
        let mut ledger = Ledger::default();
        ledger.put(ByteRange::new(0, 100), ONE);
        ledger.put(ByteRange::new(40, 60), TWO);
        let runs: Vec<_> = ledger.bytes.iter().map(|(start, (end, source))| (*start, *end, *source)).collect();
        assert_eq!(runs, [(0, 40, ONE), (40, 60, TWO), (60, 100, ONE)]);
        ledger.put(ByteRange::new(30, 70), ONE);
        assert_eq!((ledger.covered().bytes(), ledger.frontier()), (100, 100));
        assert!(ledger.on_done(&[DataSize::from_bytes(100)], false).is_ok());
    }

    #[test]
    fn a_mixture_a_hole_and_a_page_are_found() {
        let sizes = [DataSize::from_bytes(100)];
        let done = |runs: &[(u64, u64, Source)]| {
            let mut ledger = Ledger::default();
            runs.iter().for_each(|(start, end, source)| ledger.put(ByteRange::new(*start, *end), *source));
            ledger.on_done(&sizes, false).is_ok()
        };
        let page = Source::Unproven(ReqId(1), Page::Other);
        assert!(done(&[(0, 100, ONE)]));
        assert!(!done(&[(0, 50, ONE), (50, 100, TWO)]));
        assert!(!done(&[(0, 50, ONE), (60, 100, ONE)]));
        assert!(!done(&[(0, 100, page)]));
        assert!(!done(&[(0, 99, ONE)]));
    }
}
