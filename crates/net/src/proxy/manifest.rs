//! DASH manifests (ISO/IEC 23009-1), so that a player stays with the proxy, and what comes next of each representation.
//!
//! In: the text of a manifest and its [`Place`]. Out: the text with other addresses where they are needed, and the
//! segments of each representation.
//!
//! 1. roxmltree says where each value stands; only these bytes are changed, and only if the player would otherwise ask
//!    for something else than the manifest means.
//! 2. Addresses are: the text of BaseURL, Location and PatchLocation; the attributes media, initialization, index,
//!    sourceURL, xlink:href and href. A base counts for what stands below it (§5.6), at the origin and for the player.
//! 3. Segments are known from SegmentTemplate (numbers, or a timeline) and SegmentList. With SegmentBase the player
//!    asks for ranges of one file, which need nothing of this.
//! 4. A document type declaration is refused, as everywhere where XML comes from strangers.

use std::ops::Range;
use std::time::Duration;

use roxmltree::{Document, Node, ParsingOptions};

use super::playlist::{Piece, Pieces, Place, Rendition, Rewritten};

/// Reads a manifest.
///
/// # Errors
/// It is none, in words.
pub(super) fn rewrite(text: &str, place: &Place) -> Result<Rewritten, String> {
    let options = ParsingOptions { nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|why| format!("it is no XML: {why}"))?;
    let root = document.root_element();
    if !matches!(root.tag_name().name(), "MPD" | "Period" | "AdaptationSet") {
        return Err(format!("a `{}` is no manifest", root.tag_name().name()));
    }
    // A dynamic one is read again and again (§5.3.1.2).
    let ends = root.attribute("type") != Some("dynamic");
    let mut reading = Reading {
        source: text,
        changes: Vec::new(),
        renditions: Vec::new(),
        sets: 0,
        choice: false,
        ends,
        too_deep: false,
    };
    let whole = root.attribute("mediaPresentationDuration").and_then(duration);
    reading.element(root, place, &Inherited { duration: whole, ..Inherited::default() });
    if reading.too_deep {
        return Err(format!("elements within elements, more than {MOST_DEPTH} deep"));
    }
    reading.changes.sort_by_key(|(span, _)| span.start);
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let mut copied = 0;
    for (span, other) in &reading.changes {
        out.push_str(text.get(copied..span.start).unwrap_or_default());
        out.push_str(&escaped(other));
        copied = span.end;
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    let Reading { changes, renditions, choice, .. } = reading;
    Ok(Rewritten { text: out, moved: changes.len(), renditions, variants: Vec::new(), choice })
}

struct Reading<'a> {
    source: &'a str,
    changes: Vec<(Range<usize>, String)>,
    renditions: Vec<Rendition>,
    /// Adaptation sets so far.
    sets: usize,
    choice: bool,
    ends: bool,
    too_deep: bool,
}

/// What an element has from those above it.
#[derive(Clone, Default)]
struct Inherited<'a> {
    /// How long the period lasts.
    duration: Option<Duration>,
    /// How many there are.
    depth: u32,
    /// Templates and lists, the innermost last.
    templates: Vec<Node<'a, 'a>>,
    lists: Vec<Node<'a, 'a>>,
}

impl<'a> Reading<'a> {
    fn element(&mut self, node: Node<'a, 'a>, outer: &Place, inherited: &Inherited<'a>) {
        let name = node.tag_name().name();
        let bases = || node.children().filter(|child| child.is_a("BaseURL"));
        for base in bases() {
            self.text_of(base, outer);
        }
        // Of several bases the first one stands for all: what is fetched ahead must be one of them.
        let first = bases().next().and_then(|base| base.text()).map(str::trim);
        let place = first.and_then(|base| outer.based(base)).unwrap_or_else(|| outer.clone());
        let mut inherited = inherited.clone();
        inherited.depth += 1;
        if inherited.depth > MOST_DEPTH {
            self.too_deep = true;
            return;
        }
        if name == "Period" {
            inherited.duration = node.attribute("duration").and_then(duration).or(inherited.duration);
        }
        let own = |name: &str| node.children().find(|child| child.is_a(name));
        inherited.templates.extend(own("SegmentTemplate"));
        inherited.lists.extend(own("SegmentList"));
        for attribute in node.attributes().filter(|attribute| ADDRESSES.contains(&attribute.name())) {
            // An identification is no address, and `resolve-to-zero` is a word of xlink.
            let is_address = !(attribute.value().is_empty() || attribute.value().starts_with("urn:"));
            if let Some(other) = is_address.then(|| place.moved(attribute.value())).flatten() {
                self.changes.push((attribute.range_value(), other));
            }
        }
        match name {
            "Location" | "PatchLocation" => self.text_of(node, outer),
            "AdaptationSet" => {
                self.sets += 1;
                self.choice |= node.children().filter(|child| child.is_a("Representation")).count() > 1;
            }
            "Representation" => {
                let (set, ends) = (self.sets, self.ends);
                let pieces = pieces(node, &place, &inherited);
                self.renditions.extend(pieces.map(|pieces| Rendition { set, pieces, ends }));
            }
            _ => {}
        }
        for child in node.children().filter(|child| child.is_element() && !child.is_a("BaseURL")) {
            self.element(child, &place, &inherited);
        }
    }

    /// An element whose text is an address.
    fn text_of(&mut self, node: Node<'a, 'a>, place: &Place) {
        if node.children().any(|child| child.is_element()) {
            // An address has none within it, and what stands there may be changed itself.
            return;
        }
        let Some(other) = node.text().map(str::trim).filter(|text| !text.is_empty()).and_then(|t| place.moved(t))
        else {
            return;
        };
        // From the end of the start tag to the end tag, whatever is between: text, character data, a comment.
        let span = node.range();
        let last = node.attributes().map(|attribute| attribute.range().end).max().unwrap_or(span.start);
        let within = |from: usize, to: usize| self.source.get(from..to).unwrap_or_default();
        let (Some(start), Some(end)) = (within(last, span.end).find('>'), within(last, span.end).rfind("</"))
        else {
            return;
        };
        self.changes.push((last + start + 1..last + end, other));
    }
}

/// Names without a look at their namespace: manifests in the wild have several.
trait Named {
    fn is_a(&self, name: &str) -> bool;
}

impl Named for Node<'_, '_> {
    fn is_a(&self, name: &str) -> bool {
        self.is_element() && self.tag_name().name() == name
    }
}

/// The segments of a representation.
fn pieces(node: Node<'_, '_>, place: &Place, inherited: &Inherited<'_>) -> Option<Pieces> {
    if let Some(list) = inherited.lists.last() {
        return Some(Pieces::List(listed(*list, place)));
    }
    let templates = &inherited.templates;
    // What an inner template does not say, an outer one does (§5.3.9.1).
    let said = |name: &str| templates.iter().rev().find_map(|template| template.attribute(name));
    let media = said("media")?
        .replace("$RepresentationID$", node.attribute("id").unwrap_or_default())
        .replace("$Bandwidth$", node.attribute("bandwidth").unwrap_or_default());
    let number = |name: &str| said(name).and_then(|text| text.parse::<u64>().ok());
    let timescale = number("timescale").unwrap_or(1).max(1);
    let first = number("startNumber").unwrap_or(1);
    let timeline =
        templates.iter().rev().find_map(|template| template.children().find(|child| child.is_a("SegmentTimeline")));
    let lasting = |ticks: u64| Duration::try_from_secs_f64(ticks as f64 / timescale as f64).unwrap_or_default();
    if let Some(timeline) = timeline {
        let (before, name, width, after) = parted(&media)?;
        let spans = spans(timeline, inherited.duration.map(|whole| whole.as_secs_f64() * timescale as f64));
        let piece = |(at, (start, ticks)): (u64, (u64, u64))| {
            let value = if name == "Time" { start } else { first.checked_add(at)? };
            let url = place.resource(&plain(&format!("{before}{value:0width$}{after}")))?;
            Some(Piece { url, span: None, duration: lasting(ticks) })
        };
        return Some(Pieces::List((0..).zip(spans).filter_map(piece).collect()));
    }
    let ticks = number("duration").filter(|ticks| *ticks > 0)?;
    let (before, "Number", width, after) = parted(&media)? else { return None };
    // The address is resolved with a mark in the place of the number, so that both halves are known.
    let whole = place.resource(&plain(&format!("{before}{MARK}{after}")))?;
    let (before, after) = whole.as_str().split_once(MARK)?;
    let count = inherited.duration.map(|whole| (whole.as_secs_f64() / lasting(ticks).as_secs_f64()).ceil() as u64);
    let last = count.and_then(|count| first.checked_add(count)).map(|end| end.saturating_sub(1));
    let (before, after, duration) = (before.to_owned(), after.to_owned(), lasting(ticks));
    Some(Pieces::Numbered { before, after, width, last, duration })
}

/// The segments of a list.
fn listed(list: Node<'_, '_>, place: &Place) -> Vec<Piece> {
    let number = |name: &str| list.attribute(name).and_then(|text| text.parse::<u64>().ok());
    let (ticks, scale) = (number("duration").unwrap_or_default(), number("timescale").unwrap_or(1).max(1));
    let duration = Duration::try_from_secs_f64(ticks as f64 / scale as f64).unwrap_or_default();
    let piece = |segment: Node<'_, '_>| {
        let url = match segment.attribute("media") {
            Some(media) => place.resource(media)?,
            None => place.resource("")?,
        };
        let span = segment.attribute("mediaRange").and_then(|range| {
            let (from, last) = range.split_once('-')?;
            Some(from.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
        });
        Some(Piece { url, span, duration })
    };
    list.children().filter(|child| child.is_a("SegmentURL")).filter_map(piece).collect()
}

/// The start and length of each segment of a timeline (§5.3.9.6), in ticks.
fn spans(timeline: Node<'_, '_>, end: Option<f64>) -> Vec<(u64, u64)> {
    let mut spans = Vec::new();
    let mut at = 0_u64;
    let entries: Vec<_> = timeline.children().filter(|child| child.is_a("S")).collect();
    for (index, entry) in entries.iter().enumerate() {
        let number = |entry: &Node<'_, '_>, name| entry.attribute(name).and_then(|text| text.parse::<u64>().ok());
        at = number(entry, "t").unwrap_or(at);
        let Some(ticks) = number(entry, "d").filter(|ticks| *ticks > 0) else { return spans };
        let until = entries.get(index + 1).and_then(|next| number(next, "t"));
        let repeats = match entry.attribute("r").map(str::parse::<i64>) {
            // Until the next entry, or the end of the period; of a period without an end nothing is guessed.
            Some(Ok(negative)) if negative < 0 => {
                let until = until.or(end.map(|end| end as u64)).unwrap_or(at);
                until.saturating_sub(at).div_ceil(ticks).max(1)
            }
            Some(Ok(more)) => more.unsigned_abs().saturating_add(1),
            _ => 1,
        };
        for _ in 0..repeats {
            if spans.len() >= MOST_PIECES {
                return spans;
            }
            spans.push((at, ticks));
            at = at.saturating_add(ticks);
        }
    }
    spans
}

/// A template around its `$Number$` or `$Time$`: what stands before, which of the two, how many digits, what follows.
fn parted(media: &str) -> Option<(&str, &str, usize, &str)> {
    let mut from = 0;
    loop {
        let open = from + media.get(from..)?.find('$')?;
        let close = open + 1 + media.get(open + 1..)?.find('$')?;
        let inner = media.get(open + 1..close)?;
        let (name, format) = inner.split_once('%').unwrap_or((inner, "01d"));
        if matches!(name, "Number" | "Time") {
            let width = format.strip_suffix('d')?.strip_prefix('0')?.parse().ok().filter(|width| *width <= 20)?;
            return Some((media.get(..open)?, name, width, media.get(close + 1..)?));
        }
        from = close + 1;
    }
}

/// Two dollars stand for one.
fn plain(text: &str) -> String {
    text.replace("$$", "$")
}

/// A duration of XML Schema (`PT1H2M3.5S`), without years and months, which no film has.
fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut digits, mut in_time) = (0.0, String::new(), false);
    for c in text.strip_prefix('P')?.chars() {
        let unit = match (c, in_time) {
            ('T', _) => {
                in_time = true;
                continue;
            }
            ('0'..='9' | '.', _) => {
                digits.push(c);
                continue;
            }
            ('D', false) => 86_400.0,
            ('H', true) => 3600.0,
            ('M', true) => 60.0,
            ('S', true) => 1.0,
            ('Y' | 'M', false) if digits.parse() == Ok(0.0) => 0.0,
            _ => return None,
        };
        total += unit * digits.parse::<f64>().ok()?;
        digits.clear();
    }
    Duration::try_from_secs_f64(total).ok().filter(|_| digits.is_empty())
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c => out.push(c),
        }
    }
    out
}

/// Attributes whose value is an address.
const ADDRESSES: [&str; 5] = ["media", "initialization", "index", "sourceURL", "href"];
const MARK: &str = "marline-number";
/// The standard needs six. Whoever nests deeper is after our stack.
const MOST_DEPTH: u32 = 32;
/// chosen: a day of live television in segments of two seconds, described one by one, with all its renditions.
const MOST_NODES: u32 = 1_000_000;
/// chosen: eleven hours in segments of two seconds.
const MOST_PIECES: usize = 20_000;

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    const VIA: &str = "http://127.0.0.1:8480/";

    fn at(url: &str) -> Place {
        let player = Url::parse(&format!("{VIA}{url}")).unwrap();
        Place { origin: Url::parse(url).unwrap(), player, via: VIA.to_owned() }
    }

    fn addresses(rendition: &Rendition, first: &str, most: usize) -> Vec<String> {
        let next = rendition.pieces.after(&Url::parse(first).unwrap(), None, most).unwrap();
        next.iter().map(|piece| piece.url.as_str().to_owned()).collect()
    }

    const NUMBERS: &str = r#"<?xml version="1.0"?>
<!-- kept -->
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" xmlns:xlink="http://www.w3.org/1999/xlink" mediaPresentationDuration="PT10S">
 <Location>https://h/d/live.mpd?a=1&amp;b=2</Location>
 <BaseURL serviceLocation="a>b"><![CDATA[https://cdn/x/]]></BaseURL>
 <Period xlink:href="/period.xml"><AdaptationSet>
  <SegmentTemplate timescale="1000" duration="4000" startNumber="5" media="$RepresentationID$/$Number%04d$.m4s?a=1&amp;b"
    initialization="/init-$RepresentationID$.mp4"/>
  <Representation id="v1" bandwidth="1000"><BaseURL>low/</BaseURL></Representation>
  <Representation id="v2" bandwidth="2000"/>
 </AdaptationSet></Period>
</MPD>"#;

    #[test]
    fn addresses_are_changed_and_the_rest_survives_to_the_byte() {
        let out = rewrite(NUMBERS, &at("https://h/d/live.mpd")).unwrap();
        let want = NUMBERS
            .replace("https://h/d", &format!("{VIA}https://h/d"))
            .replace("<![CDATA[https://cdn/x/]]>", &format!("{VIA}https://cdn/x/"))
            .replace("\"/period.xml", &format!("\"{VIA}https://cdn/period.xml"))
            .replace("\"/init-", &format!("\"{VIA}https://cdn/init-"));
        assert_eq!((out.text.as_str(), out.moved, out.choice), (want.as_str(), 4, true));
        // What was read once reads the same again, through the proxy's own addresses.
        assert_eq!(Document::parse(&out.text).unwrap().root_element().tag_name().name(), "MPD");
    }

    #[test]
    fn segments_by_number_follow_until_the_period_ends() {
        let out = rewrite(NUMBERS, &at("https://h/d/live.mpd")).unwrap();
        let next = addresses(&out.renditions[0], "https://cdn/x/low/v1/0005.m4s?a=1&b", 9);
        assert_eq!(next, ["https://cdn/x/low/v1/0006.m4s?a=1&b", "https://cdn/x/low/v1/0007.m4s?a=1&b"]);
        let next = addresses(&out.renditions[1], "https://cdn/x/v2/0006.m4s?a=1&b", 9);
        assert_eq!(next, ["https://cdn/x/v2/0007.m4s?a=1&b"]);
    }

    #[test]
    fn segments_by_time_follow_their_timeline() {
        let text = r#"<MPD mediaPresentationDuration="PT10S"><Period><AdaptationSet>
          <SegmentTemplate timescale="10" media="a-$Time$.m4s"><SegmentTimeline><S t="5" d="20" r="1"/><S d="30" r="-1"/>
          </SegmentTimeline></SegmentTemplate><Representation id="a"/></AdaptationSet></Period></MPD>"#;
        let out = rewrite(text, &at("https://h/m.mpd")).unwrap();
        assert_eq!((out.text.as_str(), out.moved, out.choice), (text, 0, false));
        let next = addresses(&out.renditions[0], "https://h/a-5.m4s", 9);
        assert_eq!(next, ["https://h/a-25.m4s", "https://h/a-45.m4s", "https://h/a-75.m4s"]);
    }

    #[test]
    fn segments_of_a_list_follow_their_order() {
        let text = r#"<MPD><Period><AdaptationSet><Representation id="a"><BaseURL>/all.mp4</BaseURL>
          <SegmentList timescale="2" duration="5"><Initialization sourceURL="/i.mp4"/><SegmentURL mediaRange="0-99"/>
          <SegmentURL mediaRange="100-149"/><SegmentURL media="x.mp4"/></SegmentList></Representation></AdaptationSet>
          </Period></MPD>"#;
        let out = rewrite(text, &at("https://h/d/m.mpd")).unwrap();
        assert_eq!(out.moved, 2);
        let all = Url::parse("https://h/all.mp4").unwrap();
        let next = out.renditions[0].pieces.after(&all, Some(&(0..100)), 9).unwrap();
        assert_eq!((next[0].span.clone(), next[0].duration), (Some(100..150), Duration::from_millis(2500)));
        assert_eq!(next[1].url.as_str(), "https://h/x.mp4");
    }

    #[test]
    fn an_address_with_elements_in_it_is_none() {
        let text = "<MPD><Location>https://h/a<Location>https://h/b</Location>https://h/c</Location></MPD>";
        let out = rewrite(text, &at("https://h/m.mpd")).unwrap();
        assert_eq!(out.text, text.replace("https://h/b", &format!("{VIA}https://h/b")));
    }

    #[test]
    fn what_is_no_manifest_is_an_error() {
        let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><MPD>&b;</MPD>";
        for text in ["", "{}", "<html/>", "<MPD>", bomb] {
            assert!(rewrite(text, &at("https://h/m.mpd")).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_xml_schema() {
        for (text, want) in [
            ("PT1H2M3.5S", Some(3723.5)),
            ("P1DT1S", Some(86_401.0)),
            ("P0Y0M0DT10S", Some(10.0)),
            ("P1Y", None),
            ("10", None),
            ("PT1", None),
            ("PT-1S", None),
            ("PT99999999999999999999999S", None),
        ] {
            assert_eq!(duration(text).map(|duration| duration.as_secs_f64()), want, "{text}");
        }
    }

    #[test]
    fn templates_have_two_dollars_for_one() {
        assert_eq!(parted("a$$b$Number$c"), Some(("a$$b", "Number", 1, "c")));
        assert_eq!(parted("$Time%09d$"), Some(("", "Time", 9, "")));
        for bad in ["abc", "$Number", "$Other$", "$Number%x$", "$Number%0999d$"] {
            assert_eq!(parted(bad), None, "{bad}");
        }
    }
}
