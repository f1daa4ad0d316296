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
pub enum ByteSource {
    /// An edition of the server's file, by its validator.
    Version(usize),
    /// Something that no validator proves, in an answer to this request: the file, or a portal's page.
    Unverified(ReqId, ResponseTruth),
}

/// Whether an unproven answer is the file at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ResponseTruth {
    /// The server's file.
    File,
    /// Something else.
    OtherPage,
}

/// The books.
#[derive(Debug, Default)]
pub struct ReferenceModel {
    /// Where each run of bytes comes from: start to (end, source).
    sources: BTreeMap<u64, (u64, ByteSource)>,
    responses: BTreeMap<ReqId, OpenResponse>,
    open_conns: BTreeSet<ConnId>,
    used_conns: BTreeSet<ConnId>,
    used_requests: BTreeSet<ReqId>,
    file_size: Option<DataSize>,
    /// Nothing before it is wanted: the reader has jumped there.
    wanted_from: u64,
    delivered_end: u64,
    /// No request may go beyond it; none: no window.
    request_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct OpenResponse {
    conn: ConnId,
    source: Option<(ByteSource, u64)>,
    cursor: Option<(u64, Option<u64>)>,
}

/// Something that must not be.
pub type CheckResult = Result<(), String>;

impl ReferenceModel {
    /// Begins with what an earlier run left of edition zero.
    pub fn resume(&mut self, total: DataSize, ranges: &[ByteRange]) {
        self.file_size = Some(total);
        for span in ranges {
            self.record_bytes(*span, ByteSource::Version(0));
        }
    }

    /// The reader jumps: nothing before `to` is wanted, and nothing that was asked for.
    pub fn seek(&mut self, offset: u64) {
        let to = offset.min(self.file_end());
        self.sources.clear();
        (self.wanted_from, self.delivered_end) = (to, to);
    }

    /// From now on no request for a range may go beyond this offset.
    pub fn set_request_limit(&mut self, offset: u64) {
        self.request_limit = Some(offset);
    }

    /// The machine lets the reader have everything before `upto`.
    pub fn on_deliver(&mut self, upto: u64) -> CheckResult {
        if upto <= self.delivered_end {
            return Err(format!("delivers up to {upto} after {}", self.delivered_end));
        }
        if upto > self.in_order_end() {
            return Err(format!("delivers up to {upto}, in place is all before {}", self.in_order_end()));
        }
        self.delivered_end = upto;
        Ok(())
    }

    /// One past the last byte that may be asked for.
    pub fn request_limit(&self) -> u64 {
        self.request_limit.unwrap_or(u64::MAX)
    }

    /// How far the reader has been let.
    pub const fn delivered_end(&self) -> u64 {
        self.delivered_end
    }

    /// One past the last byte that the reader will ever want, as far as anybody knows.
    pub fn file_end(&self) -> u64 {
        self.file_size.map_or(u64::MAX, DataSize::bytes)
    }

    /// A head that the machine is about to be told: whose bytes follow, and from which offset.
    pub fn on_head(&mut self, req: ReqId, source: ByteSource, offset: u64) {
        if let Some(open) = self.responses.get_mut(&req) {
            open.source = Some((source, offset));
        }
    }

    /// Something that the machine is about to be told.
    pub fn on_input(&mut self, input: &Input) -> CheckResult {
        match input {
            Input::Connected { conn, .. } => {
                self.open_conns.insert(*conn);
            }
            Input::Data { req, len } => {
                let Some(open) = self.responses.get_mut(req) else {
                    return Err(format!("data for unknown {req:?}"));
                };
                let (Some((source, _)), Some((at, _))) = (open.source, &mut open.cursor) else {
                    return Err(format!("data for unaccepted {req:?}"));
                };
                let span = ByteRange::at(*at, *len);
                *at = span.end;
                self.record_bytes(span, source);
            }
            Input::End { req } | Input::Aborted { req, .. } => {
                self.responses.remove(req);
            }
            Input::Closed { conn, .. } => self.remove_conn(*conn),
            _ => {}
        }
        Ok(())
    }

    /// Something that the machine orders.
    pub fn on_output(&mut self, output: &Output) -> CheckResult {
        match output {
            Output::Connect { conn, .. } if !self.used_conns.insert(*conn) => Err(format!("{conn:?} used twice")),
            Output::Request { req, conn, range, .. } => self.on_request(*req, *conn, *range),
            Output::AcceptBody { req, offset: at, len, .. } => self.on_accept(*req, *at, *len),
            Output::Cancel { req } => {
                self.responses.remove(req);
                Ok(())
            }
            Output::Close { conn } => {
                self.remove_conn(*conn);
                Ok(())
            }
            Output::Identified { total, .. } => {
                self.file_size = *total;
                // Nobody could know before that the reader has jumped beyond the end.
                self.wanted_from = self.wanted_from.min(self.file_end());
                self.delivered_end = self.delivered_end.min(self.file_end());
                Ok(())
            }
            Output::Restart => {
                self.sources.clear();
                self.file_size = None;
                (self.wanted_from, self.delivered_end) = (0, 0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Different bytes in place.
    pub fn covered(&self) -> DataSize {
        DataSize::from_bytes(self.sources.iter().map(|(start, (end, _))| end - start).sum())
    }

    /// The same with what the reader has jumped over.
    pub fn covered_with_skipped(&self) -> DataSize {
        self.covered() + DataSize::from_bytes(self.wanted_from)
    }

    /// Everything before this offset is in place.
    pub fn in_order_end(&self) -> u64 {
        let mut in_order_end = self.wanted_from;
        for (start, (end, _)) in &self.sources {
            if *start > in_order_end {
                break;
            }
            in_order_end = in_order_end.max(*end);
        }
        in_order_end
    }

    /// The machine says that it is done: is it? `sizes` are the editions'. Who hears only one link is `gullible`: it has
    /// no way to tell a portal's page from the file.
    pub fn on_done(&self, sizes: &[DataSize], accepts_any_page: bool) -> CheckResult {
        let frontier = self.in_order_end();
        let sources: BTreeSet<ByteSource> = self.sources.values().map(|(_, source)| *source).collect();
        if self.covered_with_skipped() != DataSize::from_bytes(frontier) {
            return Err(format!("done with a hole at {frontier}"));
        }
        let mut sources = sources.into_iter();
        let is_size = |size: &DataSize| size.bytes() == frontier;
        match (sources.next(), sources.next()) {
            (Some(first), Some(second)) => Err(format!("done with a mixture of {first:?} and {second:?}")),
            // An edition that the server does not have is another edge's.
            (Some(ByteSource::Version(edition)), None) if sizes.get(edition).is_none_or(is_size) => Ok(()),
            (Some(ByteSource::Unverified(_, ResponseTruth::File)) | None, None) if sizes.iter().any(is_size) => {
                Ok(())
            }
            (Some(ByteSource::Unverified(_, ResponseTruth::OtherPage)), None) if accepts_any_page => Ok(()),
            (source, _) => {
                Err(format!("done with {frontier} bytes of {source:?}, but the editions have {sizes:?}"))
            }
        }
    }

    fn on_request(&mut self, req: ReqId, conn: ConnId, range: RequestRange) -> CheckResult {
        if !self.used_requests.insert(req) {
            return Err(format!("{req:?} used twice"));
        }
        if !self.open_conns.contains(&conn) {
            return Err(format!("{req:?} on {conn:?}, which does not stand"));
        }
        let total = self.file_size.map_or(u64::MAX, DataSize::bytes);
        match range {
            RequestRange::Bounded(span) if span.is_empty() || span.end > total => {
                return Err(format!("{req:?} asks for {span} of {total} bytes"));
            }
            RequestRange::Bounded(span) if self.request_limit.is_some_and(|limit| span.end > limit) => {
                return Err(format!("{req:?} asks for {span}, the window ends at {:?}", self.request_limit));
            }
            RequestRange::From(start) if start >= total => {
                return Err(format!("{req:?} asks from {start} of {total} bytes"));
            }
            _ => {}
        }
        self.responses.insert(req, OpenResponse { conn, source: None, cursor: None });
        Ok(())
    }

    fn on_accept(&mut self, req: ReqId, offset: u64, len: Option<DataSize>) -> CheckResult {
        let Some(open) = self.responses.get_mut(&req) else { return Err(format!("accepts unknown {req:?}")) };
        let Some((source, start)) = open.source else { return Err(format!("accepts {req:?} before its head")) };
        if open.cursor.is_some() {
            return Err(format!("accepts {req:?} twice"));
        }
        if start != offset {
            return Err(format!("accepts {req:?}, which begins at {start}, for {offset}"));
        }
        open.cursor = Some((offset, len.map(DataSize::bytes)));
        let open = self.responses.values().filter(|open| open.cursor.is_some()).filter_map(|open| open.source);
        let sources: BTreeSet<ByteSource> = open.map(|(source, _)| source).chain([source]).collect();
        if sources.len() > 1 { Err(format!("open answers of {sources:?}")) } else { Ok(()) }
    }

    fn remove_conn(&mut self, conn: ConnId) {
        self.open_conns.remove(&conn);
        self.responses.retain(|_, open| open.conn != conn);
    }

    /// Whoever writes last owns the byte. What the reader has jumped over is nobody's.
    fn record_bytes(&mut self, span: ByteRange, source: ByteSource) {
        let span = ByteRange::new(span.start.max(self.wanted_from), span.end);
        if span.is_empty() {
            return;
        }
        let preceding = self.sources.range(..span.start).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, (end, source_before))) = preceding.filter(|(_, (end, _))| *end > span.start) {
            self.sources.insert(start, (span.start, source_before));
            if end > span.end {
                self.sources.insert(span.end, (end, source_before));
            }
        }
        let starts: Vec<u64> = self.sources.range(span.start..span.end).map(|(start, _)| *start).collect();
        for start in starts {
            if let Some((end, source_before)) = self.sources.remove(&start)
                && end > span.end
            {
                self.sources.insert(span.end, (end, source_before));
            }
        }
        self.sources.insert(span.start, (span.end, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ByteSource = ByteSource::Version(0);
    const TWO: ByteSource = ByteSource::Version(1);

    #[test]
    fn the_last_writer_owns_the_byte() {
        let mut ledger = ReferenceModel::default();
        ledger.record_bytes(ByteRange::new(0, 100), ONE);
        ledger.record_bytes(ByteRange::new(40, 60), TWO);
        let runs: Vec<_> = ledger.sources.iter().map(|(start, (end, source))| (*start, *end, *source)).collect();
        assert_eq!(runs, [(0, 40, ONE), (40, 60, TWO), (60, 100, ONE)]);
        ledger.record_bytes(ByteRange::new(30, 70), ONE);
        assert_eq!((ledger.covered().bytes(), ledger.in_order_end()), (100, 100));
        assert!(ledger.on_done(&[DataSize::from_bytes(100)], false).is_ok());
    }

    #[test]
    fn a_mixture_a_hole_and_a_page_are_found() {
        let sizes = [DataSize::from_bytes(100)];
        let done = |runs: &[(u64, u64, ByteSource)]| {
            let mut ledger = ReferenceModel::default();
            runs.iter().for_each(|(start, end, source)| ledger.record_bytes(ByteRange::new(*start, *end), *source));
            ledger.on_done(&sizes, false).is_ok()
        };
        let page = ByteSource::Unverified(ReqId(1), ResponseTruth::OtherPage);
        assert!(done(&[(0, 100, ONE)]));
        assert!(!done(&[(0, 50, ONE), (50, 100, TWO)]));
        assert!(!done(&[(0, 50, ONE), (60, 100, ONE)]));
        assert!(!done(&[(0, 100, page)]));
        assert!(!done(&[(0, 99, ONE)]));
    }
}
