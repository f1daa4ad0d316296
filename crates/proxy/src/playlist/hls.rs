//! Rewrites HLS playlists (RFC 8216) so that their URLs lead to the proxy, and extracts the segments in their order.
//!
//! 1. The text is changed in place, line by line, so that unknown tags are preserved to the byte. URLs occur in lines
//!    of their own, and in the attributes URI, X-ASSET-URI, X-ASSET-LIST and SERVER-URI of any tag: keys, maps,
//!    renditions, I-frames, parts, hints, and future tags.
//! 2. Syntax errors are tolerated as players do: a carriage return also ends a line, and values may lack their quotes.
//!    Text that cannot be parsed is kept, except for the mark that keeps players from following it into local networks
//!    ([`marks`](super::marks)).
//! 3. Variables are expanded in URLs, including those that are imported from a multivariant playlist or from the query.
//! 4. Every step is charged to a [`ParseBudget`]. If the segments exceed its limit for the index, they are not
//!    prefetched; the player still gets the rewritten playlist, and the status has a note.
//!
//! The parser of m3u8-rs is not used: it builds several hundred bytes for each segment before anything can be counted,
//! and only durations, ranges and the kind of playlist are needed of its result.

mod variables;

use std::ops::Range;
use std::time::Duration;

use url::Url;

use super::listed_urls::ListedUrls;
use super::marks::TextForm;
use super::parse_budget::{ParseBudget, PlaylistError};
use super::segment_index::{MAX_SEGMENTS, Rendition, SegmentIndex, SegmentUrls};
use super::url_rewrite::{RewriteContext, RewriteResult};
use variables::{ExpandedUrl, Variables};

/// A playlist or manifest as it is sent to the player, and its contents.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct RewrittenPlaylist {
    pub(crate) text: String,
    /// How many URLs were changed.
    pub(crate) changed_urls: usize,
    /// The renditions, each with its segments.
    pub(crate) renditions: Vec<Rendition>,
    /// Other playlists, of which the player selects one at a time.
    pub(crate) variants: Vec<Url>,
    /// Whether the player may choose between several renditions.
    pub(crate) can_choose: bool,
    /// Why some or all segments are not prefetched.
    pub(crate) note: Option<&'static str>,
    /// The maximum duration of a segment (EXT-X-TARGETDURATION).
    pub(crate) target_duration: Option<Duration>,
    /// Why the text was passed on unparsed; `None`: it was parsed.
    pub(crate) parse_error: Option<String>,
    pub(crate) urls: ListedUrls,
    /// Parts that do not exist yet, which the player may request all the same (EXT-X-PRELOAD-HINT).
    pub(crate) preload_hints: Vec<Url>,
    /// Variables that it defines for the playlists that it names (EXT-X-DEFINE).
    pub(crate) variables: Vec<(String, String)>,
}

/// Rewrites a playlist. Without `#EXTM3U` it is a list of URLs, as radio stations send it. `imported` holds the
/// variables of the multivariant playlist that names it.
///
/// # Errors
/// The budget is exhausted.
pub(crate) fn rewrite(
    text: &str,
    context: &RewriteContext,
    imported: &[(String, String)],
    budget: &mut ParseBudget,
) -> Result<RewrittenPlaylist, PlaylistError> {
    let variables = Variables::parse(text, &context.source_url, imported, budget)?;
    let mut rewriter =
        HlsRewriter { context, variables, out: RewrittenPlaylist::default(), segments: SegmentState::default() };
    for (line, end) in lines(text) {
        budget.charge_work(line.len())?;
        rewriter.write_line(line, budget)?;
        budget.write(&mut rewriter.out.text, end)?;
    }
    rewriter.out.urls = std::mem::take(&mut budget.urls);
    let mut out = rewriter.finish();
    let variables_size = out.variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if !budget.charge_index(variables_size) {
        (out.variables, out.note) = (Vec::new(), Some("variables that are too long"));
    }
    Ok(out)
}

/// The lines of a text, each with its terminator. Players also end a line at a lone carriage return, and ffmpeg at a
/// NUL.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut remaining = text;
    std::iter::from_fn(move || {
        if remaining.is_empty() {
            return None;
        }
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r' | 0);
        let at = remaining.as_bytes().iter().position(is_end).unwrap_or(remaining.len());
        let (line, tail) = remaining.split_at(at);
        let end_len = if tail.starts_with("\r\n") { 2 } else { tail.len().min(1) };
        let (end, following) = tail.split_at(end_len);
        remaining = following;
        Some((line, end))
    })
}

struct HlsRewriter<'a> {
    context: &'a RewriteContext,
    variables: Variables<'a>,
    out: RewrittenPlaylist,
    segments: SegmentState,
}

/// What has been parsed of the segments.
#[derive(Default)]
struct SegmentState {
    index: SegmentUrls,
    /// Duration of the segment whose URL follows.
    duration: Option<Duration>,
    /// Byte range of the segment whose URL follows.
    byte_range: Option<ByteRange>,
    /// The next URL is that of a variant.
    next_is_variant: bool,
    /// There is a tag that only a multivariant playlist has.
    is_multivariant: bool,
    /// I-frames for fast forward, which no player fetches one after the other.
    is_iframes_only: bool,
    has_end: bool,
    /// The segments are not remembered, for this reason.
    skip_reason: Option<&'static str>,
}

/// The length of a byte range, and its offset if given.
#[derive(Clone, Copy)]
struct ByteRange(u64, Option<u64>);

impl<'a> HlsRewriter<'a> {
    /// Writes a line for the player, without its terminator.
    fn write_line(&mut self, line: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        if let Some(tag) = line.strip_prefix("#EXT") {
            return self.write_tag(line, tag, budget);
        }
        let reference = line.trim();
        if reference.is_empty() || reference.trim_start_matches('\u{feff}').starts_with('#') {
            return self.write_unparsed(line, budget);
        }
        let expanded = self.variables.expand(reference, budget)?;
        self.add_url(&expanded.text, budget)?;
        self.write_url(line, &expanded, budget)
    }

    /// Writes a URL for the player. `original` is its text in the playlist.
    fn write_url(
        &mut self,
        original: &str,
        expanded: &ExpandedUrl<'_>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        match self.context.rewrite(&expanded.text, budget)? {
            RewriteResult::Changed(replacement) => {
                self.out.changed_urls += 1;
                budget.write(&mut self.out.text, &replacement)
            }
            // A player may take an unusual first character for a quote, and the rest for the URL.
            RewriteResult::Unchanged if !expanded.text.starts_with(is_url_start) => {
                self.write_unparsed(original, budget)
            }
            RewriteResult::Unchanged if expanded.is_imported => {
                self.out.changed_urls += 1;
                budget.write(&mut self.out.text, &expanded.text)
            }
            RewriteResult::Unchanged => budget.write(&mut self.out.text, original),
            RewriteResult::NotAUrl => self.write_unparsed(original, budget),
        }
    }

    fn write_unparsed(&mut self, text: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        self.out.changed_urls +=
            self.context.write_unparsed(&mut self.out.text, (text, TextForm::Lines), budget)?;
        Ok(())
    }

    fn write_tag(&mut self, line: &str, tag: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        let segments = &mut self.segments;
        if let Some(parameters) = tag.strip_prefix("INF:") {
            // Lists of television channels have attributes after the duration, and -1 as the duration.
            let duration = parameters.trim_start().split([',', ' ', '\t']).next().unwrap_or_default();
            let seconds = duration.parse::<f32>().ok();
            segments.duration = seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
            if segments.duration.is_none() {
                segments.skip_reason = Some("entries without a duration");
            }
        }
        // Only tags of the form EXT-X-… have attributes (RFC 8216 section 4.3).
        let Some(tag) = tag.strip_prefix("-X-") else { return self.write_unparsed(line, budget) };
        let (name, value) = tag.split_once(':').unwrap_or((tag, ""));
        match name.trim_end() {
            "BYTERANGE" => {
                segments.byte_range = parse_byte_range(value.trim());
                if segments.byte_range.is_none() {
                    segments.skip_reason = Some("a byte range that cannot be parsed");
                }
            }
            "STREAM-INF" => (segments.next_is_variant, segments.is_multivariant) = (true, true),
            "MEDIA" | "I-FRAME-STREAM-INF" => segments.is_multivariant = true,
            "I-FRAMES-ONLY" => segments.is_iframes_only = true,
            "ENDLIST" => segments.has_end = true,
            "TARGETDURATION" => {
                let seconds = value.trim().parse::<f32>().ok();
                self.out.target_duration = seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
            }
            "PRELOAD-HINT" => self.add_preload_hint(line, budget)?,
            _ => {}
        }
        self.write_attributes(line, budget)
    }

    /// Writes the line of a tag, and rewrites the URLs in its attributes.
    fn write_attributes(&mut self, line: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        let mut copied_until = 0;
        for (name, value) in attribute_values(line) {
            let original = line.get(value.clone()).unwrap_or_default();
            if original.is_empty() || !URL_ATTRIBUTES.contains(&name) {
                continue;
            }
            let expanded = self.variables.expand(original, budget)?;
            self.write_unparsed(line.get(copied_until..value.start).unwrap_or_default(), budget)?;
            self.write_url(original, &expanded, budget)?;
            copied_until = value.end;
        }
        self.write_unparsed(line.get(copied_until..).unwrap_or_default(), budget)
    }

    /// Remembers the URL of a part that the server is about to produce.
    fn add_preload_hint(&mut self, line: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        let uri = attribute_values(line).find(|(name, _)| *name == "URI").and_then(|(_, range)| line.get(range));
        if let Some(uri) = uri.filter(|_| self.out.preload_hints.len() < MAX_PRELOAD_HINTS) {
            let uri = self.variables.expand(uri, budget)?;
            self.out.preload_hints.extend(self.context.resolve(&uri.text, budget)?);
        }
        Ok(())
    }

    /// Registers a URL in a line of its own as a segment or variant.
    fn add_url(&mut self, reference: &str, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        let segments = &mut self.segments;
        let (duration, byte_range) = (segments.duration.take(), segments.byte_range.take());
        let is_variant = std::mem::take(&mut segments.next_is_variant);
        if segments.skip_reason.is_some() || segments.is_iframes_only || !(is_variant || duration.is_some()) {
            return Ok(());
        }
        let Some(url) = self.context.resolve(reference, budget)? else {
            segments.skip_reason = Some("URLs that are too long");
            return Ok(());
        };
        if segments.index.len() + self.out.variants.len() >= MAX_SEGMENTS
            || !budget.charge_index(SegmentUrls::entry_size(&url))
        {
            segments.skip_reason = Some("too many segments");
            segments.index = SegmentUrls::default();
        } else if is_variant {
            self.out.variants.push(url);
        } else if let Some(duration) = duration {
            // A range without an offset follows the previous one (RFC 8216 section 4.3.2.2).
            let previous_end = || segments.index.last_range(&url).map_or(0, |range| range.end);
            let range = byte_range.map(|ByteRange(length, offset)| {
                let from = offset.unwrap_or_else(previous_end);
                from..from.saturating_add(length)
            });
            segments.index.push(&url, range, duration);
        }
        Ok(())
    }

    fn finish(self) -> RewrittenPlaylist {
        let Self { mut out, segments, variables, .. } = self;
        out.note = segments.skip_reason;
        out.variables = if segments.is_multivariant { variables.defined() } else { Vec::new() };
        if segments.skip_reason.is_some() {
            out.variants = Vec::new();
        } else if !segments.is_iframes_only && !segments.is_multivariant {
            let index = SegmentIndex::List(segments.index.shrink());
            out.renditions.push(Rendition { set: 0, index, is_final: segments.has_end });
        }
        out.can_choose = out.variants.len() > 1;
        out
    }
}

/// Parses `LENGTH` or `LENGTH@OFFSET`, quoted or not.
fn parse_byte_range(value: &str) -> Option<ByteRange> {
    let value = value.trim_matches('"');
    match value.split_once('@') {
        Some((length, offset)) => Some(ByteRange(length.parse().ok()?, Some(offset.parse().ok()?))),
        None => Some(ByteRange(value.parse().ok()?, None)),
    }
}

/// The values of a tag's attribute list (RFC 8216 section 4.2), each with its name and position. Quotes are excluded.
/// Text after a quoted value is ignored.
fn attribute_values(line: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    let mut next_start = line.find(':').map(|at| at + 1);
    std::iter::from_fn(move || {
        let start = next_start.take()?;
        let list = line.get(start..).filter(|remaining| !remaining.is_empty())?;
        let equals = list.find('=')?;
        let name = list.get(..equals).unwrap_or_default();
        // Text before the comma is an attribute without a value.
        let name = name.rsplit(',').next().unwrap_or_default().trim();
        let value = line.get(start + equals + 1..).unwrap_or_default();
        let value_start = start + equals + 1 + (value.len() - value.trim_start().len());
        let value = value.trim_start();
        let (range, consumed) = match value.strip_prefix('"').and_then(|quoted| quoted.find('"')) {
            Some(len) => (value_start + 1..value_start + 1 + len, len + 2),
            None => {
                let end = value.find(',').unwrap_or(value.len());
                match value.strip_prefix('"') {
                    // An unterminated quote ends with the line.
                    Some(unterminated) => {
                        (value_start + 1..value_start + 1 + unterminated.trim_end().len(), value.len())
                    }
                    None => (value_start..value_start + value.get(..end).unwrap_or_default().trim_end().len(), end),
                }
            }
        };
        let comma = line.get(value_start + consumed..).and_then(|remaining| remaining.find(','));
        next_start = comma.map(|comma| value_start + consumed + comma + 1);
        Some((name, range))
    })
}

/// Whether URLs that servers write begin with this character.
fn is_url_start(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/.?#_~-+@$!=".contains(c)
}

const DEFINE_TAG: &str = "#EXT-X-DEFINE:";
/// Attributes whose value is a URL.
const URL_ATTRIBUTES: [&str; 4] = ["URI", "X-ASSET-URI", "X-ASSET-LIST", "SERVER-URI"];
/// Maximum number of hints that are remembered. The draft allows one for each of two types; servers may send more.
const MAX_PRELOAD_HINTS: usize = 4;

#[cfg(test)]
mod tests;
