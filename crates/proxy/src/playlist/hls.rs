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

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use url::Url;

use super::listed_urls::ListedUrls;
use super::marks::TextForm;
use super::parse_budget::{MAX_EXPANDED_URL, ParseBudget, PlaylistError, limit_error, quote_excerpt};
use super::segment_index::{MAX_SEGMENTS, Rendition, SegmentIndex, SegmentUrls};
use super::text_encoding::percent_encoded;
use super::url_rewrite::{RewriteContext, RewriteResult};

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
    /// All URLs in it.
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

/// The variables of EXT-X-DEFINE (draft RFC 8216bis section 4.4.2.3).
struct Variables<'a>(Vec<Variable<'a>>);

struct Variable<'a> {
    name: &'a str,
    /// `None`: it is imported, and the playlist that defines it is unknown.
    value: Option<Cow<'a, str>>,
    /// It comes from another playlist, or from the query. The player may have a different value.
    is_imported: bool,
}

/// A reference with its variables expanded.
struct ExpandedUrl<'a> {
    text: Cow<'a, str>,
    /// Imported variables were among them.
    is_imported: bool,
}

impl<'a> Variables<'a> {
    fn parse(
        text: &'a str,
        origin: &'a Url,
        imported: &'a [(String, String)],
        budget: &mut ParseBudget,
    ) -> Result<Self, PlaylistError> {
        budget.charge_work(text.len())?;
        let mut variables = Vec::new();
        if !text.contains(DEFINE_TAG) {
            return Ok(Self(variables));
        }
        for (line, _) in lines(text).filter(|(line, _)| line.starts_with(DEFINE_TAG)) {
            let (mut name, mut value) = (None, None);
            for (attribute, range) in attribute_values(line) {
                let text = line.get(range);
                match attribute {
                    "NAME" => name = name.or(text),
                    "VALUE" => value = value.or(text),
                    "IMPORT" | "QUERYPARAM" => {
                        let Some(name) = text else { continue };
                        budget.charge_work(imported.len() + origin.as_str().len())?;
                        let imported_value =
                            imported.iter().find(|(defined, _)| attribute == "IMPORT" && defined == name);
                        let imported_value = imported_value.map(|(_, value)| Cow::Borrowed(value.as_str()));
                        let mut query =
                            origin.query_pairs().filter(|(key, _)| attribute != "IMPORT" && key == name);
                        let value = imported_value.or_else(|| query.next().map(|(_, value)| value));
                        variables.push(Variable { name, value, is_imported: true });
                    }
                    _ => {}
                }
            }
            let defined = name.zip(value);
            variables.extend(defined.map(|(name, value)| Variable {
                name,
                value: Some(value.into()),
                is_imported: false,
            }));
            if variables.len() > MAX_VARIABLES {
                return Err(limit_error(format!("the playlist defines more than {MAX_VARIABLES} variables")));
            }
        }
        Ok(Self(variables))
    }

    /// Names and values, for the playlists that import them.
    fn defined(self) -> Vec<(String, String)> {
        let defined = self.0.into_iter().filter_map(|variable| Some((variable.name, variable.value?)));
        // No URL can contain a longer one.
        let short =
            defined.filter(|(name, value)| name.len() <= MAX_VARIABLE_NAME && value.len() <= MAX_EXPANDED_URL);
        short.map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
    }

    /// Expands the known variables in a reference. Values are not expanded again: the draft has no nested variables,
    /// and with them a few lines could become gigabytes.
    fn expand<'r>(&self, reference: &'r str, budget: &mut ParseBudget) -> Result<ExpandedUrl<'r>, PlaylistError> {
        if self.0.is_empty() || !reference.contains("{$") {
            return Ok(ExpandedUrl { text: percent_encoded(Cow::Borrowed(reference)), is_imported: false });
        }
        let (mut expanded, mut remaining, mut is_imported) = (String::new(), reference, false);
        while let Some(open) = remaining.find("{$") {
            let (literal, reference_start) = remaining.split_at(open);
            // The limit on the length of names bounds the search for unterminated ones.
            let end = reference_start.bytes().take(MAX_VARIABLE_NAME).position(|byte| byte == b'}');
            let resolved = end.and_then(|end| {
                let name = reference_start.get("{$".len()..end)?;
                let variable = self.0.iter().find(|variable| variable.name == name)?;
                Some((variable, reference_start.get(end + 1..)?))
            });
            let (value, following) = match resolved {
                Some((variable, following)) => {
                    is_imported |= variable.is_imported;
                    // The player may know the variable, and the proxy could not determine where the URL leads.
                    let value = variable.value.as_deref().ok_or_else(|| {
                        limit_error(format!(
                            "the variable `{}` is defined in a playlist that the proxy has not read",
                            quote_excerpt(variable.name)
                        ))
                    })?;
                    (value, following)
                }
                // Undefined variables are kept.
                None => reference_start.split_at("{$".len()),
            };
            budget.charge_work(literal.len() + value.len() + MAX_VARIABLE_NAME + MAX_VARIABLES)?;
            expanded.push_str(literal);
            expanded.push_str(value);
            remaining = following;
            if expanded.len() > MAX_EXPANDED_URL {
                return Err(limit_error(format!(
                    "a URL with expanded variables has more than {MAX_EXPANDED_URL} bytes"
                )));
            }
        }
        expanded.push_str(remaining);
        Ok(ExpandedUrl { text: percent_encoded(Cow::Owned(expanded)), is_imported })
    }
}

/// The values of a tag's attribute list (RFC 8216 section 4.2), each with its name and position. Quotes are excluded.
/// Text after a quoted value is ignored.
fn attribute_values(line: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    let mut next_start = line.find(':').map(|at| at + 1);
    std::iter::from_fn(move || {
        let start = next_start.take()?;
        let list = line.get(start..).filter(|rest| !rest.is_empty())?;
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
        let comma = line.get(value_start + consumed..).and_then(|rest| rest.find(','));
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
/// chosen: many times what published playlists define.
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLE_NAME: usize = 256;
/// The draft allows one hint for each of two types.
const MAX_PRELOAD_HINTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playlist::segment_index::{MediaSegment, SegmentTiming};
    use crate::playlist::url_rewrite::tests::{PROXY_PREFIX, same_url_context, test_budget};

    fn rewrite(text: &str, context: &RewriteContext) -> Result<RewrittenPlaylist, PlaylistError> {
        super::rewrite(text, context, &[], &mut test_budget())
    }

    #[test]
    fn attributes_are_parsed_as_players_do() {
        for (line, to) in [
            ("KEY:URI=\"\"", "KEY:URI=\"\""),
            ("MEDIA:URI=\"\"{a}/b\"\"", "MEDIA:URI=\"\"{a}/b\"\""),
            ("MAP:URI=\"/b\"c,SERVER-URI=\"/d\"", "MAP:URI=\"@h/b\"c,SERVER-URI=\"@h/d\""),
            ("MAP:URI=/b", "MAP:URI=@h/b"),
            ("KEY:METHOD=AES-128,URI=/b ,IV=0x1", "KEY:METHOD=AES-128,URI=@h/b ,IV=0x1"),
            ("MAP:X,URI=/b", "MAP:X,URI=@h/b"),
            ("MAP:URI=\"/a", "MAP:URI=\"@h/a"),
            ("KEY:X=\"", "KEY:X=\""),
        ] {
            let text = format!("#EXTM3U\n#EXT-X-{line}\n#EXTINF:1,12\"\n/b.ts\n");
            let want = format!("#EXTM3U\n#EXT-X-{to}\n#EXTINF:1,12\"\n@h/b.ts\n")
                .replace('@', &format!("{PROXY_PREFIX}https://"));
            assert_eq!(rewrite(&text, &same_url_context("https://h/a/list.m3u8")).unwrap().text, want);
        }
    }

    #[test]
    fn lines_end_where_players_end_them() {
        let text = "#EXTM3U\r#EXTINF:2,\r/a.ts\r\n#EXTINF:3,\0/b.ts\n\n/c.ts";
        let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
        let want = text.replace("/a.ts", &format!("{PROXY_PREFIX}https://h/a.ts"));
        let want = want.replace("/b.ts", &format!("{PROXY_PREFIX}https://h/b.ts"));
        assert_eq!(out.text, want.replace("/c.ts", &format!("{PROXY_PREFIX}https://h/c.ts")));
        assert!(out.renditions[0].timing(&Url::parse("https://h/b.ts").unwrap(), None).is_some());
    }

    #[test]
    fn unparsed_text_is_marked() {
        for line in ["#EXT-X-NEW:X='@'", "#EXT-X-KEY:METHOD=AES-128 URI=\"@\"", "# see @", "seg:@", "#EXTINF:x,@"] {
            let text = |address: &str| format!("#EXTM3U\n{}\n/b.ts\n", line.replace('@', address));
            let out = rewrite(&text("/http://10.0.0.1/x"), &same_url_context("https://h/l.m3u8")).unwrap();
            let want =
                text("/from-list/http://10.0.0.1/x").replace("\n/b", &format!("\n{PROXY_PREFIX}https://h/b"));
            assert_eq!((out.text.as_str(), out.changed_urls), (want.as_str(), 2));
            assert!(out.urls.contains(&Url::parse("http://10.0.0.1/y").unwrap()));
        }
        // A URL that was parsed stays, whatever it contains.
        let text = "#EXTM3U\nseg.ts?u=/http://10.0.0.1/x\n";
        assert_eq!(rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap().text, text);
        let out = rewrite("#EXTM3U\n/http://10.0.0.1/x\n", &same_url_context("https://h/l.m3u8")).unwrap();
        assert_eq!(out.text, format!("#EXTM3U\n{PROXY_PREFIX}https://h/http://10.0.0.1/x\n"));
        let is_listed = |url: &str| out.urls.contains(&Url::parse(url).unwrap());
        assert!(is_listed("http://10.0.0.1/y") && !is_listed("http://10.0.0.1:81/x") && !is_listed("https://g/"));
    }

    #[test]
    fn everything_but_urls_is_preserved_to_the_byte() {
        let text = "#EXTM3U\r\n#EXT-X-VERSION:9\r\n#EXT-X-TARGETDURATION:4\n#EXT-X-NEW-THING:A=\"b,c\",URI=\"/k\",Z=1\n\
            # a comment with URI=\"/no\"\n\n#EXT-X-KEY:METHOD=AES-128,URI=\"https://keys/1?a=b,c\",IV=0x01\n\
            #EXT-X-MAP:URI=\"/init.mp4\",BYTERANGE=\"10@0\"\n#EXT-X-PART:DURATION=0.3,URI=\"/p.1.mp4\",INDEPENDENT=YES\n\
            #EXTINF:4.0,Title, with /slashes\nseg1.m4s\n#EXTINF:4.0,\n/x/seg2.m4s\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"n.mp4\"";
        let out = rewrite(text, &same_url_context("https://h/a/list.m3u8")).unwrap();
        let want = text
            .replace("URI=\"/k\"", &format!("URI=\"{PROXY_PREFIX}https://h/k\""))
            .replace("https://keys", &format!("{PROXY_PREFIX}from-list/https://keys"))
            .replace("\"/init.mp4", &format!("\"{PROXY_PREFIX}https://h/init.mp4"))
            .replace("\"/p.1.mp4", &format!("\"{PROXY_PREFIX}https://h/p.1.mp4"))
            .replace("\n/x/", &format!("\n{PROXY_PREFIX}https://h/x/"));
        assert_eq!((out.text.as_str(), out.changed_urls), (want.as_str(), 5));
    }

    #[test]
    fn a_multivariant_playlist_has_variants_and_no_segments() {
        let text = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"de\",URI=\"/audio.m3u8\"\n\
            #EXT-X-STREAM-INF:BANDWIDTH=1000,AUDIO=\"a\"\nlow.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=9000,AUDIO=\"a\"\n\
            https://cdn/high.m3u8\n#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=10,URI=\"/iframe.m3u8\"\n";
        let out = rewrite(text, &same_url_context("https://h/m.m3u8")).unwrap();
        assert_eq!((out.changed_urls, out.can_choose, out.renditions.len()), (3, true, 0));
        assert!(
            out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/high.m3u8\n"))
                && out.text.contains("\nlow.m3u8\n")
        );
    }

    #[test]
    fn following_segments_are_found_by_url_and_range() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4.0,\n#EXT-X-BYTERANGE:100@10\nall.ts\n#EXTINF:3.5,\n\
            #EXT-X-BYTERANGE:50\nall.ts\n#EXTINF:2,\nlast.ts\n#EXT-X-ENDLIST\n";
        let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
        let all = Url::parse("https://h/all.ts").unwrap();
        let next = out.renditions[0].index.after(&all, Some(&(10..110)), 5).unwrap();
        assert_eq!(
            next[0],
            MediaSegment { url: all.clone(), range: Some(110..160), duration: Duration::from_millis(3500) }
        );
        assert_eq!((next.len(), next[1].url.as_str()), (2, "https://h/last.ts"));
        let timing_of = |text: &str, span: &Range<u64>| {
            let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
            out.renditions[0].timing(&all, Some(span))
        };
        let duration = Duration::from_millis(3500);
        assert_eq!(
            timing_of(text, &(110..160)),
            Some(SegmentTiming { duration, time_left: Some(Duration::from_secs(2)) })
        );
        assert_eq!(timing_of(text, &(110..161)), None);
        let live = text.replace("#EXT-X-ENDLIST\n", "");
        assert_eq!(timing_of(&live, &(110..160)), Some(SegmentTiming { duration, time_left: None }));
    }

    #[test]
    fn variables_that_the_playlist_defines_are_expanded() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-DEFINE:NAME=\"host\",VALUE=\"https://cdn\"\n\
            #EXTINF:4,\n{$host}/a.ts\n#EXTINF:4,\n{$other}{$host}/{$host\n";
        let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
        assert!(out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/a.ts\n")), "{}", out.text);
        assert!(out.text.ends_with("\n{$other}{$host}/{$host\n"), "{}", out.text);
    }

    #[test]
    fn values_of_variables_are_not_expanded_again() {
        let text =
            "#EXTM3U\n#EXT-X-DEFINE:NAME=\"a\",VALUE=\"/{$b}\"\n#EXT-X-DEFINE:NAME=\"b\",VALUE=\"/c\"\n{$a}{$b}\n";
        let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
        assert!(out.text.ends_with(&format!("\n{PROXY_PREFIX}https://h/%7B$b%7D/c\n")), "{}", out.text);
    }

    #[test]
    fn a_list_of_channels_is_rewritten_and_has_no_segments() {
        let text = "#EXTM3U\n#EXTINF:-1 tvg-id=\"a\",A channel\nhttp://h/1\n#EXTINF:0,Radio\nhttp://h/2\n";
        let out = rewrite(text, &same_url_context("http://h/l.m3u")).unwrap();
        let radio = Url::parse("http://h/2").unwrap();
        let is_segment = out.renditions.iter().any(|rendition| rendition.timing(&radio, None).is_some());
        assert!(out.changed_urls == 2 && !is_segment && out.note.is_some(), "{out:?}");
    }

    #[test]
    fn preload_hints_are_remembered() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"/p.3.mp4\"\n";
        let out = rewrite(text, &same_url_context("https://h/a/l.m3u8")).unwrap();
        assert_eq!(out.target_duration, Some(Duration::from_secs(4)));
        assert_eq!(out.preload_hints.iter().map(Url::as_str).collect::<Vec<_>>(), ["https://h/p.3.mp4"]);
        assert!(out.text.contains(&format!("\"{PROXY_PREFIX}https://h/p.3.mp4\"")));
    }

    #[test]
    fn without_a_header_the_lines_are_urls() {
        let text = "http://radio/stream\n\n# a comment\n/http://10.0.0.1/x\nother.mp3\n";
        let out = rewrite(text, &same_url_context("https://h/a/radio.m3u")).unwrap();
        let want = text.replace("http://radio", &format!("{PROXY_PREFIX}from-list/http://radio"));
        let want = want.replace("/http://10", &format!("{PROXY_PREFIX}https://h/http://10"));
        assert_eq!((out.text, out.changed_urls), (want, 2));
        assert!(out.urls.contains(&Url::parse("http://radio/stream").unwrap()));
        assert_eq!(rewrite("", &same_url_context("https://h/l.m3u")).unwrap().text, "");
    }

    #[test]
    fn unusual_quotes_hide_no_request_to_the_proxy() {
        for (open, close) in
            [("'", "'"), ("`", "`"), ("\u{2018}", "\u{2019}"), ("<", ">"), ("(", ")"), ("\"'", "'\"")]
        {
            let text = |address: &str| format!("#EXTM3U\n#EXT-X-MAP:URI={open}{address}{close}\n/b.ts\n");
            let out = rewrite(&text("/http://10.0.0.1/x"), &same_url_context("https://h/l.m3u8")).unwrap();
            let want =
                text("/from-list/http://10.0.0.1/x").replace("\n/b", &format!("\n{PROXY_PREFIX}https://h/b"));
            assert_eq!(out.text, want);
            let line = format!("#EXTM3U\n{open}/http://10.0.0.1/x{close}\n");
            let marked = line.replace("/http", "/from-list/http");
            assert_eq!(rewrite(&line, &same_url_context("https://h/l.m3u8")).unwrap().text, marked);
        }
        let text = "#EXTM3U\n#EXT-X-MAP:URI=web/2020/http://10.0.0.1/x\n";
        assert_eq!(rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap().text, text);
    }

    #[test]
    fn imported_and_query_variables_are_expanded() {
        let master =
            "#EXTM3U\n#EXT-X-DEFINE:NAME=\"cdn\",VALUE=\"https://cdn/x\"\n#EXT-X-STREAM-INF:BANDWIDTH=1\nl.m3u8\n";
        let defined = rewrite(master, &same_url_context("https://h/m.m3u8")).unwrap().variables;
        assert_eq!(defined, [("cdn".to_owned(), "https://cdn/x".to_owned())]);
        let text = "#EXTM3U\n#EXT-X-DEFINE:IMPORT=\"cdn\"\n#EXT-X-DEFINE:QUERYPARAM=\"t\"\n#EXTINF:4,\n{$cdn}/a.ts\n\
            #EXTINF:4,\nb.ts?t={$t}\n";
        let context = same_url_context("https://h/l.m3u8?t=a%2Fb");
        let out = super::rewrite(text, &context, &defined, &mut test_budget()).unwrap();
        assert!(out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/x/a.ts\n")), "{}", out.text);
        // The player may take the value from a different URL.
        assert!(out.text.ends_with("\nb.ts?t=a/b\n"), "{}", out.text);
        assert!(out.renditions[0].timing(&Url::parse("https://cdn/x/a.ts").unwrap(), None).is_some());
        let refused = rewrite(text, &context);
        assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("variable `cdn`")));
        // Unused variables are ignored.
        assert!(rewrite("#EXTM3U\n#EXT-X-DEFINE:IMPORT=\"x\"\na.ts\n", &context).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "(#EXTM3U\n)?(#EXT[A-Z-]{0,12}[:=\",a-zA-Z0-9é]{0,20}\n|[a-z/.:{$}]{0,12}\n){0,8}") {
            let _ = rewrite(&text, &same_url_context("https://h/l.m3u8"));
        }
    }
}
