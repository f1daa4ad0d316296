//! Naive reference model: what a download must never do, whatever happens.
//!
//! It receives the machine's outputs and inputs and returns the first violation.
//!
//! It records the source of every byte and nothing else. As an independent check it must stay simple, and must not
//! become a second implementation.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::fetch::{ByteRange, ConnId, Input, Output, ReqId, RequestRange};
use marline_core::units::DataSize;

/// Origin of the bytes of a response. Each response that does not provably belong to a file is a source of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ByteSource {
    /// A version of the server's file, proven by its validator.
    Version(usize),
    /// Unproven content of the response to this request: the file or another page.
    Unverified(ReqId, ResponseTruth),
}

/// Whether an unproven response is the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ResponseTruth {
    /// The server's file, sent without a validator.
    File,
    /// Another page, such as that of a captive portal.
    OtherPage,
}

/// Everything the reference model knows about a download.
#[derive(Debug, Default)]
pub struct ReferenceModel {
    /// Runs of bytes: start to (end, source).
    sources: BTreeMap<u64, (u64, ByteSource)>,
    responses: BTreeMap<ReqId, OpenResponse>,
    open_conns: BTreeSet<ConnId>,
    used_conns: BTreeSet<ConnId>,
    used_requests: BTreeSet<ReqId>,
    file_size: Option<DataSize>,
    /// Bytes before this offset are no longer wanted, because the reader has seeked past them.
    wanted_from: u64,
    delivered_end: u64,
    /// No request may extend beyond this offset; `None` without a window.
    request_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct OpenResponse {
    conn: ConnId,
    source: Option<(ByteSource, u64)>,
    cursor: Option<(u64, Option<u64>)>,
}

/// The first violation of a rule, as text.
pub type CheckResult = Result<(), String>;

impl ReferenceModel {
    /// Starts with the ranges of version 0 that an earlier run has saved.
    pub fn resume(&mut self, total: DataSize, ranges: &[ByteRange]) {
        self.file_size = Some(total);
        for range in ranges {
            self.record_bytes(*range, ByteSource::Version(0));
        }
    }

    /// The reader seeks: data before `offset` and outstanding requests are no longer wanted.
    pub fn seek(&mut self, offset: u64) {
        let offset = offset.min(self.file_end());
        self.sources.clear();
        (self.wanted_from, self.delivered_end) = (offset, offset);
    }

    /// Sets the end of the window: bounded requests must not extend beyond this offset.
    pub fn set_request_limit(&mut self, offset: u64) {
        self.request_limit = Some(offset);
    }

    /// Checks that everything before `end`, which the machine delivers to the reader, has arrived.
    pub fn on_deliver(&mut self, end: u64) -> CheckResult {
        if end <= self.delivered_end {
            return Err(format!("delivers up to {end} after {}", self.delivered_end));
        }
        if end > self.in_order_end() {
            return Err(format!(
                "delivers up to {end}, but only the bytes before {} have arrived",
                self.in_order_end()
            ));
        }
        self.delivered_end = end;
        Ok(())
    }

    /// End of the range that may be requested.
    pub fn request_limit(&self) -> u64 {
        self.request_limit.unwrap_or(u64::MAX)
    }

    /// End of the bytes delivered to the reader.
    pub const fn delivered_end(&self) -> u64 {
        self.delivered_end
    }

    /// End of the file; `u64::MAX` while its size is unknown.
    pub fn file_end(&self) -> u64 {
        self.file_size.map_or(u64::MAX, DataSize::bytes)
    }

    /// Records, before the machine gets a response head, the source of its body and the body's first offset.
    pub fn on_head(&mut self, req: ReqId, source: ByteSource, offset: u64) {
        if let Some(open) = self.responses.get_mut(&req) {
            open.source = Some((source, offset));
        }
    }

    /// Checks an input before the machine gets it.
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

    /// Checks an output of the machine.
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
                // Before the size was known, a seek beyond the end could not be detected.
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

    /// Number of distinct bytes that have arrived.
    pub fn covered(&self) -> DataSize {
        DataSize::from_bytes(self.sources.iter().map(|(start, (end, _))| end - start).sum())
    }

    /// [`Self::covered`], plus the bytes that the reader skipped.
    pub fn covered_with_skipped(&self) -> DataSize {
        self.covered() + DataSize::from_bytes(self.wanted_from)
    }

    /// End of the bytes that have arrived without a gap.
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

    /// Checks a finished download: complete, and from one source. `sizes` are the sizes of all versions.
    /// `accepts_any_page` is set for policies that use only one link and therefore cannot distinguish a captive
    /// portal's page from the file.
    pub fn on_done(&self, sizes: &[DataSize], accepts_any_page: bool) -> CheckResult {
        let in_order_end = self.in_order_end();
        let sources: BTreeSet<ByteSource> = self.sources.values().map(|(_, source)| *source).collect();
        if self.covered_with_skipped() != DataSize::from_bytes(in_order_end) {
            return Err(format!("done with a gap at {in_order_end}"));
        }
        let mut sources = sources.into_iter();
        let is_size = |size: &DataSize| size.bytes() == in_order_end;
        // Exactly one source is allowed, and the length must be that of this source.
        match (sources.next(), sources.next()) {
            (Some(first), Some(second)) => Err(format!("done with a mixture of {first:?} and {second:?}")),
            // A version that the server does not have comes from another CDN node.
            (Some(ByteSource::Version(version)), None) if sizes.get(version).is_none_or(is_size) => Ok(()),
            (Some(ByteSource::Unverified(_, ResponseTruth::File)) | None, None) if sizes.iter().any(is_size) => {
                Ok(())
            }
            (Some(ByteSource::Unverified(_, ResponseTruth::OtherPage)), None) if accepts_any_page => Ok(()),
            (source, _) => {
                Err(format!("done with {in_order_end} bytes of {source:?}, but the versions have {sizes:?}"))
            }
        }
    }

    fn on_request(&mut self, req: ReqId, conn: ConnId, range: RequestRange) -> CheckResult {
        if !self.used_requests.insert(req) {
            return Err(format!("{req:?} used twice"));
        }
        if !self.open_conns.contains(&conn) {
            return Err(format!("{req:?} on {conn:?}, which is not open"));
        }
        let total = self.file_size.map_or(u64::MAX, DataSize::bytes);
        match range {
            RequestRange::Bounded(range) if range.is_empty() || range.end > total => {
                return Err(format!("{req:?} requests {range} of {total} bytes"));
            }
            RequestRange::Bounded(span) if self.request_limit.is_some_and(|limit| span.end > limit) => {
                return Err(format!("{req:?} requests {span}, but the window ends at {:?}", self.request_limit));
            }
            RequestRange::From(start) if start >= total => {
                return Err(format!("{req:?} requests from {start} of {total} bytes"));
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
            return Err(format!("accepts {req:?}, which starts at {start}, at offset {offset}"));
        }
        open.cursor = Some((offset, len.map(DataSize::bytes)));
        let open = self.responses.values().filter(|open| open.cursor.is_some()).filter_map(|open| open.source);
        let sources: BTreeSet<ByteSource> = open.map(|(source, _)| source).chain([source]).collect();
        if sources.len() > 1 { Err(format!("open responses from different sources: {sources:?}")) } else { Ok(()) }
    }

    fn remove_conn(&mut self, conn: ConnId) {
        self.open_conns.remove(&conn);
        self.responses.retain(|_, open| open.conn != conn);
    }

    /// Records the source of a range; the last writer wins. Bytes that the reader skipped are ignored.
    fn record_bytes(&mut self, span: ByteRange, source: ByteSource) {
        let span = ByteRange::new(span.start.max(self.wanted_from), span.end);
        if span.is_empty() {
            return;
        }
        // Shorten a run that extends into the range, but keep its part behind the range.
        let preceding = self.sources.range(..span.start).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, (end, source_before))) = preceding.filter(|(_, (end, _))| *end > span.start) {
            self.sources.insert(start, (span.start, source_before));
            if end > span.end {
                self.sources.insert(span.end, (end, source_before));
            }
        }
        // Remove the runs that start within the range, except for their parts behind it.
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
    fn the_last_writer_determines_the_source_of_a_byte() {
        let mut reference = ReferenceModel::default();
        reference.record_bytes(ByteRange::new(0, 100), ONE);
        reference.record_bytes(ByteRange::new(40, 60), TWO);
        let runs: Vec<_> = reference.sources.iter().map(|(start, (end, source))| (*start, *end, *source)).collect();
        assert_eq!(runs, [(0, 40, ONE), (40, 60, TWO), (60, 100, ONE)]);
        reference.record_bytes(ByteRange::new(30, 70), ONE);
        assert_eq!((reference.covered().bytes(), reference.in_order_end()), (100, 100));
        assert!(reference.on_done(&[DataSize::from_bytes(100)], false).is_ok());
    }

    #[test]
    fn mixed_sources_gaps_and_portal_pages_are_detected() {
        let sizes = [DataSize::from_bytes(100)];
        let done = |runs: &[(u64, u64, ByteSource)]| {
            let mut reference = ReferenceModel::default();
            runs.iter()
                .for_each(|(start, end, source)| reference.record_bytes(ByteRange::new(*start, *end), *source));
            reference.on_done(&sizes, false).is_ok()
        };
        let page = ByteSource::Unverified(ReqId(1), ResponseTruth::OtherPage);
        assert!(done(&[(0, 100, ONE)]));
        assert!(!done(&[(0, 50, ONE), (50, 100, TWO)]));
        assert!(!done(&[(0, 50, ONE), (60, 100, ONE)]));
        assert!(!done(&[(0, 100, page)]));
        assert!(!done(&[(0, 99, ONE)]));
    }
}
