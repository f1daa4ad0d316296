//! HLS playlists (RFC 8216): the text with addresses that lead to the proxy, and the segments in their order.
//!
//! 1. The text is changed in place, line by line, so that tags which are not known here survive to the byte. Addresses
//!    stand in lines of their own, and in the attributes URI, X-ASSET-URI, X-ASSET-LIST and SERVER-URI of any tag: keys,
//!    maps, renditions, I-frames, parts, hints, and tags to come.
//! 2. A playlist with syntax errors is an error here; the caller passes it on unchanged.
//! 3. Every step is charged to a [`Cost`]. Segments that cannot be remembered within its bounds are not fetched ahead; the
//!    player gets the rewritten playlist all the same, and the status has a note.
//!
//! A parser of a crate is not used: m3u8-rs builds several hundred bytes for each segment before anything can be counted,
//! and of what it reads only durations, ranges and the kind of playlist are needed.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use url::Url;

use super::address::Place;
use super::cost::{Cost, LONGEST_EXPANDED, ListError, limit, malformed, quoted};
use super::named::Named;
use super::pieces::{List, MOST_PIECES, Pieces, Rendition};
use super::playlist_answer::Kind;
use super::recognize::{Look, look};

/// A playlist or manifest for the player.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// How many addresses are others now.
    pub(super) moved: usize,
    /// What it offers, one after the other.
    pub(super) renditions: Vec<Rendition>,
    /// Other playlists, of which the player takes one at a time.
    pub(super) variants: Vec<Url>,
    /// The player may choose between several.
    pub(super) choice: bool,
    /// Why nothing, or not everything, is fetched ahead.
    pub(super) note: Option<&'static str>,
    /// The longest that a segment may last (EXT-X-TARGETDURATION).
    pub(super) target: Option<Duration>,
    /// All addresses.
    pub(super) named: Named,
    /// Parts that do not exist yet, which the player may request all the same (EXT-X-PRELOAD-HINT).
    pub(super) hints: Vec<Url>,
}

/// Reads a playlist.
///
/// # Errors
/// It is none, or has errors, or costs too much.
pub(super) fn rewrite(text: &str, place: &Place, cost: &mut Cost) -> Result<Rewritten, ListError> {
    if look(text.as_bytes()) != Look::Is(Kind::Playlist) {
        return Err(malformed("it does not begin with #EXTM3U"));
    }
    let variables = Variables::of(text, cost)?;
    let mut reading = Reading { place, variables, out: Rewritten::default(), segments: Segments::default() };
    for (at, line) in text.split_inclusive('\n').enumerate() {
        cost.work(line.len())?;
        let bare = line.trim_end_matches(['\r', '\n']);
        reading.line(at, bare, cost)?;
        cost.write(&mut reading.out.text, line.get(bare.len()..).unwrap_or_default())?;
    }
    reading.out.named = std::mem::take(&mut cost.named);
    Ok(reading.done())
}

struct Reading<'a> {
    place: &'a Place,
    variables: Variables<'a>,
    out: Rewritten,
    segments: Segments,
}

/// What is known of the segments.
#[derive(Default)]
struct Segments {
    list: List,
    /// Of the next address: how long it lasts, and which bytes of it are meant.
    duration: Option<Duration>,
    range: Option<ByteRange>,
    /// The next address is of a variant.
    is_variant: bool,
    /// There is a tag that only a master playlist has.
    is_master: bool,
    /// Pictures for winding: no player takes one after the other.
    only_pictures: bool,
    ends: bool,
    /// They are not remembered, for this reason.
    given_up: Option<&'static str>,
}

/// A length, and the offset if it is given.
#[derive(Clone, Copy)]
struct ByteRange(u64, Option<u64>);

impl<'a> Reading<'a> {
    /// Writes a line for the player, without its end.
    fn line(&mut self, at: usize, line: &str, cost: &mut Cost) -> Result<(), ListError> {
        if let Some(tag) = line.strip_prefix("#EXT") {
            return self.tag(at, line, tag, cost);
        }
        let reference = line.trim();
        let mut other = None;
        if !(reference.is_empty() || reference.trim_start_matches('\u{feff}').starts_with('#')) {
            let reference = self.variables.expanded(reference, cost)?;
            self.resource(&reference, cost)?;
            other = self.place.moved(&reference, cost)?;
        }
        self.out.moved += usize::from(other.is_some());
        cost.write(&mut self.out.text, other.as_deref().unwrap_or(line))
    }

    fn tag(&mut self, at: usize, line: &str, tag: &str, cost: &mut Cost) -> Result<(), ListError> {
        let fault = |why: String| malformed(format!("line {}: {why}", at + 1));
        let segments = &mut self.segments;
        if let Some(rest) = tag.strip_prefix("INF:") {
            // Lists of television channels have attributes behind the duration, and -1 for it.
            let duration = rest.trim_start().split([',', ' ', '\t']).next().unwrap_or_default();
            let seconds = duration.parse::<f32>().ok().filter(|seconds| seconds.is_finite());
            let seconds = seconds.ok_or_else(|| fault(format!("`{}` is no duration", quoted(duration))))?;
            segments.duration = Duration::try_from_secs_f32(seconds).ok();
            if segments.duration.is_none() {
                segments.given_up = Some("entries without a duration");
            }
        }
        // No other tag has attributes (RFC 8216 section 4.3).
        let Some(tag) = tag.strip_prefix("-X-") else { return cost.write(&mut self.out.text, line) };
        if line.bytes().filter(|byte| *byte == b'"').count() % 2 == 1 {
            // It would go on in the next line, which RFC 8216 section 4.2 forbids.
            return Err(fault("a quoted value does not end".to_owned()));
        }
        let (name, value) = tag.split_once(':').unwrap_or((tag, ""));
        match name.trim_end() {
            "BYTERANGE" => {
                segments.range = byte_range(value.trim());
                if segments.range.is_none() {
                    segments.given_up = Some("a byte range that is none");
                }
            }
            "STREAM-INF" => (segments.is_variant, segments.is_master) = (true, true),
            "MEDIA" | "I-FRAME-STREAM-INF" => segments.is_master = true,
            "I-FRAMES-ONLY" => segments.only_pictures = true,
            "ENDLIST" => segments.ends = true,
            "TARGETDURATION" => {
                let seconds = value.trim().parse::<f32>().ok();
                self.out.target = seconds.and_then(|seconds| Duration::try_from_secs_f32(seconds).ok());
            }
            "PRELOAD-HINT" => self.hint(line, cost)?,
            _ => {}
        }
        self.attributes(line, cost)
    }

    /// Writes a tag's line, with other addresses in its attributes.
    fn attributes(&mut self, line: &str, cost: &mut Cost) -> Result<(), ListError> {
        let mut copied = 0;
        for (name, value) in values(line) {
            let reference = line.get(value.clone()).unwrap_or_default();
            if reference.is_empty() || !ADDRESSES.contains(&name) {
                continue;
            }
            let reference = self.variables.expanded(reference, cost)?;
            if let Some(other) = self.place.moved(&reference, cost)? {
                self.out.moved += 1;
                cost.write(&mut self.out.text, line.get(copied..value.start).unwrap_or_default())?;
                cost.write(&mut self.out.text, &other)?;
                copied = value.end;
            }
        }
        cost.write(&mut self.out.text, line.get(copied..).unwrap_or_default())
    }

    /// A part that the server is about to make.
    fn hint(&mut self, line: &str, cost: &mut Cost) -> Result<(), ListError> {
        let uri = values(line).find(|(name, _)| *name == "URI").and_then(|(_, span)| line.get(span));
        if let Some(uri) = uri.filter(|_| self.out.hints.len() < MOST_HINTS) {
            let uri = self.variables.expanded(uri, cost)?;
            self.out.hints.extend(self.place.resource(&uri, cost)?);
        }
        Ok(())
    }

    /// An address in a line of its own.
    fn resource(&mut self, reference: &str, cost: &mut Cost) -> Result<(), ListError> {
        let segments = &mut self.segments;
        let (duration, range) = (segments.duration.take(), segments.range.take());
        let is_variant = std::mem::take(&mut segments.is_variant);
        if segments.given_up.is_some() || segments.only_pictures || !(is_variant || duration.is_some()) {
            return Ok(());
        }
        let Some(url) = self.place.resource(reference, cost)? else {
            segments.given_up = Some("addresses that are too long");
            return Ok(());
        };
        if segments.list.len() + self.out.variants.len() >= MOST_PIECES || !cost.remember(List::cost(&url)) {
            segments.given_up = Some("too many segments");
            segments.list = List::default();
        } else if is_variant {
            self.out.variants.push(url);
        } else if let Some(duration) = duration {
            // Without an offset a range follows the one before it (RFC 8216 section 4.3.2.2).
            let follows = || segments.list.last_span(&url).map_or(0, |span| span.end);
            let span = range.map(|ByteRange(length, offset)| {
                let from = offset.unwrap_or_else(follows);
                from..from.saturating_add(length)
            });
            segments.list.push(&url, span, duration);
        }
        Ok(())
    }

    fn done(self) -> Rewritten {
        let Self { mut out, segments, .. } = self;
        out.note = segments.given_up;
        if segments.given_up.is_some() {
            out.variants = Vec::new();
        } else if !segments.only_pictures && !segments.is_master {
            let pieces = Pieces::List(segments.list.done());
            out.renditions.push(Rendition { set: 0, pieces, ends: segments.ends });
        }
        out.choice = out.variants.len() > 1;
        out
    }
}

/// `LENGTH` or `LENGTH@OFFSET`, quoted or not.
fn byte_range(value: &str) -> Option<ByteRange> {
    let value = value.trim_matches('"');
    match value.split_once('@') {
        Some((length, offset)) => Some(ByteRange(length.parse().ok()?, Some(offset.parse().ok()?))),
        None => Some(ByteRange(value.parse().ok()?, None)),
    }
}

/// What EXT-X-DEFINE says (draft RFC 8216bis section 4.4.2.3).
struct Variables<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Variables<'a> {
    fn of(text: &'a str, cost: &mut Cost) -> Result<Self, ListError> {
        cost.work(text.len())?;
        let mut all = Vec::new();
        for line in text.lines().filter(|line| line.starts_with("#EXT-X-DEFINE:")) {
            let (mut name, mut value) = (None, None);
            for (attribute, span) in values(line) {
                match attribute {
                    "NAME" => name = name.or(line.get(span)),
                    "VALUE" => value = value.or(line.get(span)),
                    _ => {}
                }
            }
            all.extend(name.zip(value));
            if all.len() > MOST_VARIABLES {
                return Err(limit(format!("it defines more than {MOST_VARIABLES} variables")));
            }
        }
        Ok(Self(all))
    }

    /// A reference with its variables replaced, as far as they are known. The values are taken as they stand: the draft
    /// knows no variables within values, and with them a few lines would become gigabytes.
    fn expanded<'r>(&self, reference: &'r str, cost: &mut Cost) -> Result<Cow<'r, str>, ListError> {
        if self.0.is_empty() || !reference.contains("{$") {
            return Ok(Cow::Borrowed(reference));
        }
        let (mut out, mut rest) = (String::new(), reference);
        while let Some(open) = rest.find("{$") {
            let (before, from) = rest.split_at(open);
            // Without a bound on names, many that do not end would each be searched to the end of the line.
            let end = from.bytes().take(LONGEST_NAME).position(|byte| byte == b'}');
            let known = end.and_then(|end| {
                let name = from.get("{$".len()..end)?;
                let (_, value) = self.0.iter().find(|(defined, _)| *defined == name)?;
                Some((*value, from.get(end + 1..)?))
            });
            // A name that is not defined stays.
            let (value, behind) = known.unwrap_or_else(|| from.split_at("{$".len()));
            cost.work(before.len() + value.len() + LONGEST_NAME + MOST_VARIABLES)?;
            out.push_str(before);
            out.push_str(value);
            rest = behind;
            if out.len() > LONGEST_EXPANDED {
                return Err(limit(format!("an address with variables has more than {LONGEST_EXPANDED} bytes")));
            }
        }
        out.push_str(rest);
        Ok(Cow::Owned(out))
    }
}

/// The quoted values of a tag's attribute list (RFC 8216 section 4.2), each with its name and where it stands.
fn values(line: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    let mut next = line.find(':').map(|at| at + 1);
    std::iter::from_fn(move || {
        loop {
            let at = next.take()?;
            let rest = line.get(at..).filter(|rest| !rest.is_empty())?;
            let equals = rest.find('=')?;
            let name = rest.get(..equals).unwrap_or_default().trim();
            let from = at + equals + 1;
            let value = line.get(from..).unwrap_or_default();
            let (quoted, len) = match value.strip_prefix('"') {
                Some(quoted) => {
                    let len = quoted.find('"')?;
                    let behind = quoted.get(len + 1..).unwrap_or_default().trim_start();
                    // With something else behind it, where such a value ends would be a guess.
                    (behind.is_empty() || behind.starts_with(',')).then_some(())?;
                    (Some(from + 1..from + 1 + len), len + 2)
                }
                None => (None, value.find(',').unwrap_or(value.len())),
            };
            let comma = line.get(from + len..).and_then(|rest| rest.find(','));
            next = comma.map(|comma| from + len + comma + 1);
            if let Some(span) = quoted {
                return Some((name, span));
            }
        }
    })
}

/// Attributes whose value is an address.
const ADDRESSES: [&str; 4] = ["URI", "X-ASSET-URI", "X-ASSET-LIST", "SERVER-URI"];
/// chosen: many times what published playlists have.
const MOST_VARIABLES: usize = 64;
const LONGEST_NAME: usize = 256;
/// The draft allows one hint of each of two types.
const MOST_HINTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::address::tests::{VIA, affordable, at};
    use super::super::pieces::{Piece, Spot};
    use super::*;

    fn rewrite(text: &str, place: &Place) -> Result<Rewritten, ListError> {
        super::rewrite(text, place, &mut affordable())
    }

    #[test]
    fn a_quoted_value_with_nothing_in_it_or_with_more_behind_it_is_no_address() {
        for line in
            ["#EXT-X-KEY:URI=\"\"", "#EXT-X-MEDIA:URI=\"\"{a}/b\"\"", "#EXT-X-MAP:URI=\"/b\"c,SERVER-URI=\"/d\""]
        {
            let text = format!("#EXTM3U\n{line}\n");
            assert_eq!(rewrite(&text, &at("https://h/a/list.m3u8")).unwrap().text, text);
        }
    }

    #[test]
    fn a_quoted_value_ends_in_its_line() {
        let text = "#EXTM3U\n#EXT-X-MAP:URI=\"/a\n\"\n#EXTINF:1,12\"\n/b.ts\n";
        assert_eq!(rewrite(text, &at("https://h/l.m3u8")), Err(malformed("line 2: a quoted value does not end")));
        assert!(rewrite(&text.replace("/a\n", "/a"), &at("https://h/l.m3u8")).is_ok());
    }

    #[test]
    fn all_that_is_no_address_survives_to_the_byte() {
        let text = "#EXTM3U\r\n#EXT-X-VERSION:9\r\n#EXT-X-TARGETDURATION:4\n#EXT-X-NEW-THING:A=\"b,c\",URI=\"/k\",Z=1\n\
            # a comment with URI=\"/no\"\n\n#EXT-X-KEY:METHOD=AES-128,URI=\"https://keys/1?a=b,c\",IV=0x01\n\
            #EXT-X-MAP:URI=\"/init.mp4\",BYTERANGE=\"10@0\"\n#EXT-X-PART:DURATION=0.3,URI=\"/p.1.mp4\",INDEPENDENT=YES\n\
            #EXTINF:4.0,Title, with /slashes\nseg1.m4s\n#EXTINF:4.0,\n/x/seg2.m4s\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"n.mp4\"";
        let out = rewrite(text, &at("https://h/a/list.m3u8")).unwrap();
        let want = text
            .replace("URI=\"/k\"", &format!("URI=\"{VIA}https://h/k\""))
            .replace("https://keys", &format!("{VIA}https://keys"))
            .replace("\"/init.mp4", &format!("\"{VIA}https://h/init.mp4"))
            .replace("\"/p.1.mp4", &format!("\"{VIA}https://h/p.1.mp4"))
            .replace("\n/x/", &format!("\n{VIA}https://h/x/"));
        assert_eq!((out.text.as_str(), out.moved), (want.as_str(), 5));
    }

    #[test]
    fn a_master_playlist_offers_a_choice_and_no_segments() {
        let text = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"de\",URI=\"/audio.m3u8\"\n\
            #EXT-X-STREAM-INF:BANDWIDTH=1000,AUDIO=\"a\"\nlow.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=9000,AUDIO=\"a\"\n\
            https://cdn/high.m3u8\n#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=10,URI=\"/iframe.m3u8\"\n";
        let out = rewrite(text, &at("https://h/m.m3u8")).unwrap();
        assert_eq!((out.moved, out.choice, out.renditions.len()), (3, true, 0));
        assert!(out.text.contains(&format!("\n{VIA}https://cdn/high.m3u8\n")) && out.text.contains("\nlow.m3u8\n"));
    }

    #[test]
    fn what_follows_a_segment_is_known_by_address_and_range() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4.0,\n#EXT-X-BYTERANGE:100@10\nall.ts\n#EXTINF:3.5,\n\
            #EXT-X-BYTERANGE:50\nall.ts\n#EXTINF:2,\nlast.ts\n#EXT-X-ENDLIST\n";
        let out = rewrite(text, &at("https://h/l.m3u8")).unwrap();
        let all = Url::parse("https://h/all.ts").unwrap();
        let next = out.renditions[0].pieces.after(&all, Some(&(10..110)), 5).unwrap();
        assert_eq!(
            next[0],
            Piece { url: all.clone(), span: Some(110..160), duration: Duration::from_millis(3500) }
        );
        assert_eq!((next.len(), next[1].url.as_str()), (2, "https://h/last.ts"));
        let spot = |text: &str, span: &Range<u64>| {
            let out = rewrite(text, &at("https://h/l.m3u8")).unwrap();
            out.renditions[0].spot(&all, Some(span))
        };
        let lasts = Duration::from_millis(3500);
        assert_eq!(spot(text, &(110..160)), Some(Spot { lasts, left: Some(Duration::from_secs(2)) }));
        assert_eq!(spot(text, &(110..161)), None);
        let live = text.replace("#EXT-X-ENDLIST\n", "");
        assert_eq!(spot(&live, &(110..160)), Some(Spot { lasts, left: None }));
    }

    #[test]
    fn variables_are_known_where_the_playlist_defines_them() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-DEFINE:NAME=\"host\",VALUE=\"https://cdn\"\n\
            #EXTINF:4,\n{$host}/a.ts\n#EXTINF:4,\n{$other}{$host}/{$host\n";
        let out = rewrite(text, &at("https://h/l.m3u8")).unwrap();
        assert!(out.text.contains(&format!("\n{VIA}https://cdn/a.ts\n")), "{}", out.text);
        assert!(out.text.ends_with("\n{$other}{$host}/{$host\n"), "{}", out.text);
    }

    #[test]
    fn values_of_variables_are_taken_as_they_stand() {
        let text =
            "#EXTM3U\n#EXT-X-DEFINE:NAME=\"a\",VALUE=\"/{$b}\"\n#EXT-X-DEFINE:NAME=\"b\",VALUE=\"/c\"\n{$a}{$b}\n";
        let out = rewrite(text, &at("https://h/l.m3u8")).unwrap();
        assert!(out.text.ends_with(&format!("\n{VIA}https://h/%7B$b%7D/c\n")), "{}", out.text);
    }

    #[test]
    fn a_list_of_channels_is_rewritten_and_its_entries_are_no_segments() {
        let text = "#EXTM3U\n#EXTINF:-1 tvg-id=\"a\",A channel\nhttp://h/1\n#EXTINF:0,Radio\nhttp://h/2\n";
        let out = rewrite(text, &at("http://h/l.m3u")).unwrap();
        let radio = Url::parse("http://h/2").unwrap();
        let is_segment = out.renditions.iter().any(|rendition| rendition.spot(&radio, None).is_some());
        assert!(out.moved == 2 && !is_segment && out.note.is_some(), "{out:?}");
    }

    #[test]
    fn what_a_server_will_hold_back_is_known() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"/p.3.mp4\"\n";
        let out = rewrite(text, &at("https://h/a/l.m3u8")).unwrap();
        assert_eq!(out.target, Some(Duration::from_secs(4)));
        assert_eq!(out.hints.iter().map(Url::as_str).collect::<Vec<_>>(), ["https://h/p.3.mp4"]);
        assert!(out.text.contains(&format!("\"{VIA}https://h/p.3.mp4\"")));
    }

    #[test]
    fn what_is_no_playlist_is_an_error() {
        for text in
            ["", "<html>", "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:abc,\nx\n", "#EXTM3U\n#EXTINF:inf,\nx\n"]
        {
            let refused = rewrite(text, &at("https://h/l.m3u8"));
            assert!(matches!(refused, Err(ListError::Malformed(_))), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "(#EXTM3U\n)?(#EXT[A-Z-]{0,12}[:=\",a-zA-Z0-9é]{0,20}\n|[a-z/.:{$}]{0,12}\n){0,8}") {
            let _ = rewrite(&text, &at("https://h/l.m3u8"));
        }
    }
}
