//! HLS playlists (RFC 8216), so that a player stays with the proxy, and what comes next of one.
//!
//! In: the text of a playlist, where it came from, what the player took it for. Out: the text with other addresses where
//! they are needed, and the segments in their order.
//!
//! 1. The crate m3u8-rs says whether it is a playlist, and which segments it has; the text itself is changed in place,
//!    so that tags which nobody here knows survive to the byte.
//! 2. An address is changed if the player would otherwise ask for something else than the playlist means
//!    ([`Place::moved`]). Relative ones mostly stay: fewer changes, fewer surprises.
//! 3. Addresses stand in lines of their own, and in the attributes URI, X-ASSET-URI, X-ASSET-LIST and SERVER-URI of any
//!    tag: keys, maps, renditions, I-frames, parts, hints, and tags to come.
//! 4. A playlist with errors is an error here; who asked passes it on as it is.
//!
//! Writing the playlist anew from what the crate has read was not done: it would lose what the crate does not know.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use m3u8_rs::Playlist;
use url::Url;

/// Where a playlist or manifest came from, and where the player believes it to be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Behind all redirects.
    pub(super) origin: Url,
    /// The address at the proxy that the player asked for.
    pub(super) player: Url,
    /// What stands before a URL at the proxy: `http://127.0.0.1:8480/`.
    pub(super) via: String,
}

/// A playlist or manifest for the player.
#[derive(Clone, PartialEq, Debug)]
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
}

/// One of those that a player may choose between.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rendition {
    /// Of those with the same number the player takes one at a time.
    pub(super) set: usize,
    pub(super) pieces: Pieces,
    /// Whether it ends with the last of them; otherwise more will be known later (a live one).
    pub(super) ends: bool,
}

/// Where a piece stands among the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    /// How long it lasts.
    pub(super) lasts: Duration,
    /// How long all that follow it last; none: nobody knows.
    pub(super) left: Option<Duration>,
}

impl Rendition {
    /// Where a piece stands; none: it is not of this rendition.
    pub(super) fn spot(&self, url: &Url, span: Option<&Range<u64>>) -> Option<Spot> {
        match &self.pieces {
            Pieces::List(pieces) => {
                let at = pieces.iter().position(|piece| piece.url == *url && piece.span.as_ref() == span)?;
                let lasts = pieces.get(at)?.duration;
                let left = pieces.iter().skip(at + 1).map(|piece| piece.duration).sum();
                Some(Spot { lasts, left: self.ends.then_some(left) })
            }
            Pieces::Numbered { last, duration, .. } => {
                let number = self.pieces.number(url).filter(|_| span.is_none())?;
                let left = last.filter(|_| self.ends).map(|last| {
                    u32::try_from(last.saturating_sub(number))
                        .map_or(Duration::MAX, |left| duration.saturating_mul(left))
                });
                Some(Spot { lasts: *duration, left })
            }
        }
    }
}

/// Pieces that follow one another.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pieces {
    /// Each by its name.
    List(Vec<Piece>),
    /// By numbers in an address.
    Numbered {
        /// The address before the number.
        before: String,
        /// And behind it.
        after: String,
        /// How many digits at least.
        width: usize,
        /// The last one, where there is one.
        last: Option<u64>,
        /// How long one lasts.
        duration: Duration,
    },
}

/// One segment.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Piece {
    pub(super) url: Url,
    /// Which bytes of it; none: all.
    pub(super) span: Option<Range<u64>>,
    pub(super) duration: Duration,
}

impl Place {
    /// The same within another base of the same document.
    pub(super) fn based(&self, reference: &str) -> Option<Self> {
        let origin = self.origin.join(reference).ok()?;
        let player = self.moved(reference).and_then(|moved| Url::parse(&moved).ok());
        let player = player.or_else(|| self.player.join(reference).ok())?;
        Some(Self { origin, player, via: self.via.clone() })
    }

    /// What a reference means, without a login: as the proxy knows its resources.
    pub(super) fn resource(&self, reference: &str) -> Option<Url> {
        let mut url = self.origin.join(reference).ok()?;
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Some(url)
    }

    /// The address that must stand in the place of a reference; none: it leads the player to the right place.
    pub(super) fn moved(&self, reference: &str) -> Option<String> {
        let mut meant = self.origin.join(reference).ok()?;
        if !matches!(meant.scheme(), "http" | "https") {
            return None;
        }
        if meant.username().is_empty() && meant.origin() == self.origin.origin() {
            // The login with which the player came, for all that is of the same host.
            let _ = meant.set_username(self.origin.username());
            let _ = meant.set_password(self.origin.password());
        }
        let right = format!("{}{meant}", self.via);
        let taken = self.player.join(reference).ok();
        (taken.as_ref().map(Url::as_str) != Some(right.as_str())).then_some(right)
    }
}

impl Pieces {
    /// What follows a piece, at most so many; none: the piece is not of this rendition.
    pub(super) fn after(&self, url: &Url, span: Option<&Range<u64>>, most: usize) -> Option<Vec<Piece>> {
        match self {
            Self::List(pieces) => {
                let at = pieces.iter().position(|piece| piece.url == *url && piece.span.as_ref() == span)?;
                Some(pieces.iter().skip(at + 1).take(most).cloned().collect())
            }
            Self::Numbered { before, after, width, last, duration } => {
                let number = self.number(url).filter(|_| span.is_none())?;
                let next = (number.saturating_add(1)..=last.unwrap_or(u64::MAX)).take(most);
                let url = |n: u64| Url::parse(&format!("{before}{n:0width$}{after}", width = *width)).ok();
                let piece = |n| Some(Piece { url: url(n)?, span: None, duration: *duration });
                Some(next.filter_map(piece).collect())
            }
        }
    }
}

impl Pieces {
    /// The number in the address of a piece.
    fn number(&self, url: &Url) -> Option<u64> {
        let Self::Numbered { before, after, width, .. } = self else { return None };
        let digits = url.as_str().strip_prefix(before.as_str())?.strip_suffix(after.as_str())?;
        let is_number = digits.len() >= *width && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse().ok() } else { None }
    }
}

/// Reads a playlist.
///
/// # Errors
/// It is none, in words.
pub(super) fn rewrite(text: &str, place: &Place) -> Result<Rewritten, String> {
    if !text.trim_start_matches('\u{feff}').starts_with("#EXTM3U") {
        return Err("it does not begin with #EXTM3U".to_owned());
    }
    let plain = without_titles(text.trim_start_matches('\u{feff}'))?;
    let playlist =
        m3u8_rs::parse_playlist_res(plain.as_bytes()).map_err(|_| "its tags cannot be understood".to_owned())?;
    let lines = plain.lines().map(str::trim).filter(|line| !(line.is_empty() || line.starts_with('#')));
    let all_read = match &playlist {
        Playlist::MasterPlaylist(master) => {
            let variants = master.variants.iter().filter(|variant| !variant.is_i_frame);
            lines.eq(variants.map(|variant| variant.uri.trim()))
        }
        Playlist::MediaPlaylist(media) => lines.eq(media.segments.iter().map(|segment| segment.uri.trim())),
    };
    if !all_read {
        return Err("not all of its addresses can be understood".to_owned());
    }
    let names = names(text);
    let mut moved = 0;
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\r', '\n']);
        let end = line.get(bare.len()..).unwrap_or_default();
        out.push_str(&line_for(bare, place, &names, &mut moved));
        out.push_str(end);
    }
    let (mut variants, mut renditions) = (Vec::new(), Vec::new());
    match playlist {
        Playlist::MasterPlaylist(master) => {
            let all = master.variants.iter().filter(|variant| !variant.is_i_frame);
            variants = all.filter_map(|variant| place.resource(&defined(&variant.uri, &names))).collect();
        }
        // Pictures for winding: nobody takes one after the other.
        Playlist::MediaPlaylist(media) if media.i_frames_only => {}
        Playlist::MediaPlaylist(media) => {
            let pieces = Pieces::List(pieces(&media, place, &names));
            renditions.push(Rendition { set: 0, pieces, ends: media.end_list });
        }
    }
    let choice = variants.len() > 1;
    Ok(Rewritten { text: out, moved, renditions, variants, choice })
}

/// The playlist as the crate reads it without mistakes: it takes what follows a comma in a title for an address, and a
/// last line without an end as well.
fn without_titles(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 1);
    for (at, line) in text.lines().enumerate() {
        match line.strip_prefix("#EXTINF:") {
            Some(rest) => {
                let duration = rest.split(',').next().unwrap_or_default().trim();
                if !duration.parse::<f32>().is_ok_and(|duration| duration.is_finite() && duration >= 0.0) {
                    return Err(format!("line {}: `{duration}` is no duration", at + 1));
                }
                out.extend(["#EXTINF:", duration, ","]);
            }
            // The crate would read on in the next line (RFC 8216 §4.2 forbids it).
            None if line.starts_with("#EXT-X-") && line.matches('"').count() % 2 == 1 => {
                return Err(format!("line {}: a quoted value does not end", at + 1));
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    Ok(out)
}

fn pieces(media: &m3u8_rs::MediaPlaylist, place: &Place, names: &[(String, String)]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(media.segments.len());
    for segment in &media.segments {
        let Some(url) = place.resource(&defined(&segment.uri, names)) else { continue };
        // Without an offset a range follows the one before it (RFC 8216 §4.3.2.2).
        let follows = pieces.last().filter(|last| last.url == url).and_then(|last| last.span.as_ref());
        let from = |range: &m3u8_rs::ByteRange| range.offset.unwrap_or(follows.map_or(0, |span| span.end));
        let span = segment.byte_range.as_ref().map(|range| from(range)..from(range).saturating_add(range.length));
        let duration = Duration::try_from_secs_f32(segment.duration).unwrap_or_default();
        pieces.push(Piece { url, span, duration });
    }
    pieces
}

fn line_for<'a>(line: &'a str, place: &Place, names: &[(String, String)], moved: &mut usize) -> Cow<'a, str> {
    // No other tag has attributes (RFC 8216 §4.3).
    if line.starts_with("#EXT-X-") {
        return attributes(line, place, names, moved);
    }
    let reference = line.trim();
    if reference.is_empty() || reference.starts_with('#') {
        return Cow::Borrowed(line);
    }
    match place.moved(&defined(reference, names)) {
        Some(other) => {
            *moved += 1;
            Cow::Owned(other)
        }
        None => Cow::Borrowed(line),
    }
}

/// A tag's line, with other addresses in its attributes.
fn attributes<'a>(line: &'a str, place: &Place, names: &[(String, String)], moved: &mut usize) -> Cow<'a, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (name, value) in values(line) {
        let reference = line.get(value.clone()).unwrap_or_default();
        if reference.is_empty() || !ADDRESSES.contains(&name) {
            continue;
        }
        if let Some(other) = place.moved(&defined(reference, names)) {
            *moved += 1;
            out.push_str(line.get(copied..value.start).unwrap_or_default());
            out.push_str(&other);
            copied = value.end;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(line.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// The quoted values of a tag's attribute list (RFC 8216 §4.2), each with its name and where it stands.
fn values(line: &str) -> Vec<(&str, Range<usize>)> {
    let mut found = Vec::new();
    let Some(mut at) = line.find(':').map(|at| at + 1) else { return found };
    while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(equals) = rest.find('=') else { break };
        let name = rest.get(..equals).unwrap_or_default().trim();
        let from = at + equals + 1;
        let value = line.get(from..).unwrap_or_default();
        let len = match value.strip_prefix('"') {
            Some(quoted) => {
                let Some(len) = quoted.find('"') else { break };
                let behind = quoted.get(len + 1..).unwrap_or_default().trim_start();
                if !(behind.is_empty() || behind.starts_with(',')) {
                    // Where such a value ends is anybody's guess.
                    break;
                }
                found.push((name, from + 1..from + 1 + len));
                len + 2
            }
            None => value.find(',').unwrap_or(value.len()),
        };
        let Some(comma) = line.get(from + len..).and_then(|rest| rest.find(',')) else { break };
        at = from + len + comma + 1;
    }
    found
}

/// What EXT-X-DEFINE says (draft RFC 8216bis §4.4.2.3).
fn names(text: &str) -> Vec<(String, String)> {
    let definitions = text.lines().filter(|line| line.starts_with("#EXT-X-DEFINE:"));
    let pair = |line: &str| {
        let all = values(line);
        let value = |wanted: &str| {
            let (_, span) = all.iter().find(|(name, _)| *name == wanted)?;
            line.get(span.clone()).map(str::to_owned)
        };
        Some((value("NAME")?, value("VALUE")?))
    };
    definitions.filter_map(pair).collect()
}

/// A reference with its variables replaced, as far as they are known.
fn defined<'a>(reference: &'a str, names: &[(String, String)]) -> Cow<'a, str> {
    if !reference.contains("{$") {
        return Cow::Borrowed(reference);
    }
    let mut out = reference.to_owned();
    for (name, value) in names {
        out = out.replace(&format!("{{${name}}}"), value);
    }
    Cow::Owned(out)
}

/// Attributes whose value is an address.
const ADDRESSES: [&str; 4] = ["URI", "X-ASSET-URI", "X-ASSET-LIST", "SERVER-URI"];

#[cfg(test)]
mod tests {
    use super::*;

    const VIA: &str = "http://127.0.0.1:8480/";

    fn place(asked: &str, origin: &str) -> Place {
        let player = Url::parse(&format!("{VIA}{asked}")).unwrap();
        Place { origin: Url::parse(origin).unwrap(), player, via: VIA.to_owned() }
    }

    fn at(url: &str) -> Place {
        place(url, url)
    }

    #[test]
    fn a_player_stays_with_the_proxy_whatever_the_form_of_an_address() {
        let place = at("https://h/a/b/list.m3u8?x=1");
        for (reference, moved) in [
            ("seg1.ts", None),
            ("seg1.ts?y=2", None),
            ("sub/seg1.ts", None),
            ("../c/seg1.ts", None),
            ("https://h/a/seg1.ts", Some("https://h/a/seg1.ts")),
            ("http://other:81/x", Some("http://other:81/x")),
            ("/root/seg1.ts", Some("https://h/root/seg1.ts")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            // More steps up than there are: the origin stops at its root, the proxy's address would lose the host.
            ("../../../../x.ts", Some("https://h/x.ts")),
            ("data:text/plain,x", None),
            ("skd://key", None),
        ] {
            assert_eq!(place.moved(reference), moved.map(|url| format!("{VIA}{url}")), "{reference}");
        }
    }

    #[test]
    fn a_login_goes_with_everything_of_its_host_and_nothing_else() {
        let place = at("https://me:pw@h/a/list.m3u8");
        assert_eq!(place.moved("seg.ts"), None);
        assert_eq!(place.moved("/seg.ts").unwrap(), format!("{VIA}https://me:pw@h/seg.ts"));
        assert_eq!(place.moved("https://cdn/seg.ts").unwrap(), format!("{VIA}https://cdn/seg.ts"));
        assert_eq!(place.resource("/seg.ts#x").unwrap().as_str(), "https://h/seg.ts");
    }

    #[test]
    fn behind_a_redirect_relative_addresses_are_of_the_place_it_led_to() {
        let place = place("https://h/live", "https://edge.example/1/list.m3u8");
        assert_eq!(place.moved("seg.ts").unwrap(), format!("{VIA}https://edge.example/1/seg.ts"));
        let within = super::tests::place("https://h/old/list.m3u8", "https://h/old/other.m3u8");
        assert_eq!(within.moved("seg.ts"), None);
    }

    #[test]
    fn a_quoted_value_with_nothing_in_it_or_with_more_behind_it_is_no_address() {
        let place = at("https://h/a/list.m3u8");
        for line in
            ["#EXT-X-KEY:URI=\"\"", "#EXT-X-MEDIA:URI=\"\"{a}/b\"", "#EXT-X-MAP:URI=\"/b\"c,SERVER-URI=\"/d\""]
        {
            assert_eq!(attributes(line, &place, &[], &mut 0), line);
        }
    }

    #[test]
    fn a_quoted_value_ends_in_its_line() {
        let text = "#EXTM3U\n#EXT-X-MAP:URI=\"/a\n\"\n#EXTINF:1,12\"\n/b.ts\n";
        assert_eq!(rewrite(text, &at("https://h/l.m3u8")), Err("line 2: a quoted value does not end".to_owned()));
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
        assert_eq!(out.renditions[0].pieces.after(&all, Some(&(10..110)), 1).unwrap().len(), 1);
        assert_eq!(out.renditions[0].pieces.after(&all, None, 5), None);
        assert_eq!(out.renditions[0].pieces.after(&next[1].url, None, 5), Some(Vec::new()));
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
    fn numbers_go_on_with_their_zeros() {
        let rendition = Pieces::Numbered {
            before: "https://h/v-".to_owned(),
            after: ".m4s".to_owned(),
            width: 3,
            last: Some(10),
            duration: Duration::from_secs(2),
        };
        let after = |url: &str| {
            let pieces = rendition.after(&Url::parse(url).unwrap(), None, 2)?;
            Some(pieces.iter().map(|piece| piece.url.as_str().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(after("https://h/v-008.m4s").unwrap(), ["https://h/v-009.m4s", "https://h/v-010.m4s"]);
        assert_eq!(after("https://h/v-010.m4s").unwrap(), [""; 0]);
        let rendition = Rendition { set: 0, pieces: rendition.clone(), ends: true };
        let spot = rendition.spot(&Url::parse("https://h/v-007.m4s").unwrap(), None);
        assert_eq!(spot, Some(Spot { lasts: Duration::from_secs(2), left: Some(Duration::from_secs(6)) }));
        for other in ["https://h/v-8.m4s", "https://h/v-+08.m4s", "https://h/w-008.m4s", "https://h/v-008.mp4"] {
            assert_eq!(after(other), None, "{other}");
        }
    }

    #[test]
    fn variables_are_known_where_the_playlist_defines_them() {
        let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-DEFINE:NAME=\"host\",VALUE=\"https://cdn\"\n\
            #EXTINF:4,\n{$host}/a.ts\n";
        let out = rewrite(text, &at("https://h/l.m3u8")).unwrap();
        assert!(out.text.ends_with(&format!("\n{VIA}https://cdn/a.ts\n")), "{}", out.text);
    }

    #[test]
    fn what_is_no_playlist_is_an_error() {
        for text in ["", "<html>", "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:abc,\nx\n"] {
            assert!(rewrite(text, &at("https://h/l.m3u8")).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "(#EXTM3U\n)?(#EXT[A-Z-]{0,12}[:=\",a-zA-Z0-9é]{0,20}\n|[a-z/.:{$}]{0,12}\n){0,8}") {
            let _ = rewrite(&text, &at("https://h/l.m3u8"));
        }
    }
}
