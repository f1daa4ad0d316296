//! DASH manifests (ISO/IEC 23009-1): the text with addresses that lead to the proxy, and the segments of each
//! representation.
//!
//! 1. The [`Tree`] says where each value stands; only these bytes are changed, and only if the player would otherwise
//!    request something else than the manifest means.
//! 2. Addresses are: the text of BaseURL, Location, PatchLocation, ContentSteering and ImportedMPD; the attributes media,
//!    initialization, index, sourceURL, xlink:href, href and dvb:reportingUrl. A base counts for what stands below it
//!    (section 5.6), at the origin and for the player.
//!    Text that is no address gets the mark that keeps players from following it into local networks ([`marks`](super::marks)):
//!    every other attribute and text as players read it, without references, CDATA sections and comments.
//! 3. Where the identification of a representation would make another address out of a template than the manifest means, the
//!    representation gets a template of its own, which goes before the ones of the elements above it (section 5.3.9.1).
//! 4. Servers that tell the time (UTCTiming) are asked through the proxy, except where their header field Date counts.
//! 5. Segments are known from SegmentTemplate (numbers, or a timeline) and SegmentList. With SegmentBase the player
//!    requests ranges of one file, which need nothing of this.
//! 6. Every step is charged to a [`Cost`]. Representations whose segments cannot be remembered within its bounds are not
//!    fetched ahead; the player gets the rewritten manifest all the same, and the status has a note.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Address, Place};
use super::cost::{Cost, LONGEST_EXPANDED, ListError, limit, malformed, quoted};
use super::marks::Form;
use super::named::Named;
use super::pieces::{List, MOST_PIECES, Pieces, Rendition, Template, Timeline, lasting};
use super::playlist::Rewritten;
use super::xml::{Attribute, Id, Tree, odd_reference};

/// Reads a manifest.
///
/// # Errors
/// It is none, or has errors, or costs too much.
pub(super) fn rewrite(text: &str, place: &Place, cost: &mut Cost) -> Result<Rewritten, ListError> {
    // Players make addresses out of templates and bases.
    cost.named = Named::by_host();
    let tree = Tree::read(text, cost)?;
    cost.work(tree.len())?;
    if let Some(name) = odd_reference(text) {
        return Err(limit(format!("it has the reference `{}`", quoted(name))));
    }
    if let Some(odd) = (0..tree.len()).map(|id| tree.name(id)).find(|name| is_odd(name)) {
        return Err(limit(format!("`{}` is the name of an element in another case", quoted(odd))));
    }
    if !matches!(tree.name(Tree::ROOT), "MPD" | "Period" | "AdaptationSet") {
        return Err(malformed(format!("a `{}` is no manifest", quoted(tree.name(Tree::ROOT)))));
    }
    let (origin, place) = (place.origin.clone(), Rc::new(place.clone()));
    let text_place = Rc::clone(&place);
    // A part of another manifest may be resolved in the bases of that one.
    let several = tree.name(Tree::ROOT) != "MPD";
    let (outer, inherited) = (Rc::clone(&place), Rc::default());
    let outermost =
        Frame { end: tree.len(), outer, place, several, above: several, is_final: false, bases: 0, inherited };
    // A dynamic one is read again and again (section 5.3.1.2).
    let ends = tree.attribute(Tree::ROOT, "type").as_deref() != Some("dynamic");
    let mut reading = Reading {
        tree: &tree,
        source: text,
        out: Rewritten::default(),
        copied: 0,
        pieces: 0,
        sets: 0,
        ends,
        timelines: BTreeMap::new(),
        attributes: BTreeMap::new(),
        pending: BTreeMap::new(),
        text_place: Rc::clone(&text_place),
    };
    // Elements may be nested as deep as the text is long: their frames are on no call stack.
    let mut open = vec![outermost];
    for id in 0..tree.len() {
        while open.last().is_some_and(|frame| frame.end <= id) {
            open.pop();
        }
        let Some(frame) = open.last() else { break };
        let own = reading.element(id, frame, cost)?;
        open.push(own);
    }
    reading.copy(text.len(), cost)?;
    cost.named.add(&origin);
    reading.out.named = std::mem::take(&mut cost.named);
    Ok(reading.out)
}

struct Reading<'a> {
    tree: &'a Tree<'a>,
    source: &'a str,
    out: Rewritten,
    /// Up to where the text is in the output.
    copied: usize,
    /// Segments of lists so far.
    pieces: usize,
    /// Adaptation sets so far.
    sets: usize,
    ends: bool,
    /// Those that were read, by their element: representations share them.
    timelines: BTreeMap<Id, Arc<Timeline>>,
    /// Attributes of elements that are not reached yet, which must have this value.
    attributes: BTreeMap<(Id, &'static str), String>,
    /// What must stand in the place of parts of the text that are not reached yet, by their first bytes.
    pending: BTreeMap<usize, (usize, String)>,
    /// For text that is no address.
    text_place: Rc<Place>,
}

/// An element that is open.
struct Frame<'a> {
    end: Id,
    /// The base in which its own bases are resolved, and the one of what stands below it.
    outer: Rc<Place>,
    place: Rc<Place>,
    /// The player may resolve what stands below it in another base than this place.
    several: bool,
    /// The same of what stands beside it: its own bases.
    above: bool,
    /// No base comes below it: it is a representation, or within one.
    is_final: bool,
    /// How many bases are within each other.
    bases: usize,
    inherited: Rc<Inherited<'a>>,
}

/// What an element has from those above it.
#[derive(Clone, Default)]
struct Inherited<'a> {
    /// How long the period lasts.
    duration: Option<Duration>,
    /// The innermost templates, the innermost last.
    templates: Vec<Segments<'a>>,
    list: Option<Id>,
}

/// A template and its timeline.
#[derive(Clone)]
struct Segments<'a> {
    tree: &'a Tree<'a>,
    template: Id,
    timeline: Option<Id>,
    /// In which its addresses are resolved when they are written.
    place: Rc<Place>,
    several: bool,
}

impl<'a> Reading<'a> {
    fn element(&mut self, id: Id, parent: &Frame<'a>, cost: &mut Cost) -> Result<Frame<'a>, ListError> {
        let (tree, name) = (self.tree, self.tree.name(id));
        // Its children are gone through several times below.
        cost.work(4 * tree.children(id).count())?;
        let outer = Rc::clone(&parent.place);
        let mut frame = Frame {
            end: tree.next(id),
            place: Rc::clone(&outer),
            outer,
            several: parent.several,
            above: parent.several,
            is_final: parent.is_final || name == "Representation",
            bases: parent.bases,
            inherited: Rc::clone(&parent.inherited),
        };
        // Of several bases the first one stands for all: what is fetched ahead must be one of them.
        let mut bases = tree.named(id, "BaseURL");
        let first = bases.next();
        frame.several |= bases.next().is_some();
        if let Some(base) = first
            && let Some((base, _)) = tree.text(base, cost)?
            && let Some(place) = frame.outer.based(&base, cost)?
        {
            frame.place = Rc::new(place);
            frame.bases += 1;
            if frame.bases > MOST_BASES {
                return Err(limit(format!("more than {MOST_BASES} bases within each other")));
            }
        } else {
            frame.several |= first.is_some();
        }
        self.inherit(id, &mut frame);
        if name == "Representation" {
            self.own_template(id, &frame, cost)?;
        }
        for attribute in tree.attributes(id) {
            let value = attribute.value();
            if name == "UTCTiming" && attribute.name == "value" {
                self.clock(id, &frame.place, attribute, cost)?;
                continue;
            }
            let address = ADDRESSES.iter().find(|address| **address == attribute.name);
            let imported = Some(&"uri").filter(|uri| name == "ImportedMPD" && attribute.name == **uri);
            // An identification is no address, and `resolve-to-zero` is a word of xlink.
            let Some(address) = address.or(imported).filter(|_| !value.starts_with("urn:")) else {
                self.unread(&value, attribute.span(), cost)?;
                continue;
            };
            if value.is_empty() {
                continue;
            }
            match self.attributes.remove(&(id, address)) {
                Some(other) => self.change(attribute.span(), &other, cost)?,
                None => {
                    // Templates above a representation get one of its own where its base matters ([`own_template`]).
                    let is_inherited = !frame.is_final && name != "SegmentTemplate" && *address != "href";
                    let several = frame.several || is_inherited;
                    self.address((&frame.place, several), &value, attribute.span(), cost)?;
                }
            }
        }
        let texts = match name {
            // A base is not within itself, nor within its siblings.
            "BaseURL" => Some((&*parent.outer, parent.above)),
            "Location" | "PatchLocation" => Some((&*frame.outer, frame.several)),
            // Players differ in the base.
            "ContentSteering" | "ImportedMPD" => Some((&*frame.outer, true)),
            _ => None,
        };
        if texts.is_some() && tree.next(id) != id + 1 {
            // Players put the texts in it together.
            return Err(limit(format!("a `{name}` has elements in it")));
        }
        if tree.has_text(id) {
            self.text(id, texts, cost)?;
        }
        match name {
            "AdaptationSet" => {
                self.sets += 1;
                self.out.choice |= tree.named(id, "Representation").nth(1).is_some();
            }
            "Representation" => self.representation(id, &frame, cost)?,
            _ => {}
        }
        Ok(frame)
    }

    /// Adds what an element says for those below it.
    fn inherit(&self, id: Id, frame: &mut Frame<'a>) {
        let tree = self.tree;
        let lasts = match tree.name(id) {
            "MPD" => tree.attribute(id, "mediaPresentationDuration").as_deref().and_then(duration),
            "Period" => tree.attribute(id, "duration").as_deref().and_then(duration),
            _ => None,
        };
        let template = tree.named(id, "SegmentTemplate").next();
        let list = tree.named(id, "SegmentList").next();
        if lasts.is_none() && template.is_none() && list.is_none() {
            return;
        }
        let inherited = Rc::make_mut(&mut frame.inherited);
        inherited.duration = lasts.or(inherited.duration);
        inherited.list = list.or(inherited.list);
        if let Some(template) = template {
            let timeline = tree.named(template, "SegmentTimeline").next();
            let (place, several) = (Rc::clone(&frame.place), frame.several);
            inherited.templates.push(Segments { tree, template, timeline, place, several });
            if inherited.templates.len() > MOST_TEMPLATES {
                inherited.templates.remove(0);
            }
        }
    }

    /// Writes the text of an element, which is an address in one of these places, or none.
    fn text(&mut self, id: Id, place: Option<(&Place, bool)>, cost: &mut Cost) -> Result<(), ListError> {
        let tree = self.tree;
        if let Some((text, span)) = tree.text(id, cost)? {
            return match place.filter(|_| !text.is_empty()) {
                Some(place) => self.address(place, &text, span, cost),
                None => self.unread(&text, span, cost),
            };
        }
        for text in tree.texts(id, cost)? {
            if self.text_place.marked(&text, cost)?.is_some() {
                return Err(limit(format!("a `{}` has an address with elements in it", quoted(tree.name(id)))));
            }
        }
        Ok(())
    }

    /// Writes a value that is no address with the marks that it needs.
    fn unread(&mut self, value: &str, span: Range<usize>, cost: &mut Cost) -> Result<(), ListError> {
        match self.text_place.marked(value, cost)? {
            Some(marked) => self.change(span, &marked, cost),
            None => Ok(()),
        }
    }

    /// Writes an address as the player needs it.
    fn address(
        &mut self,
        (place, several): (&Place, bool),
        text: &str,
        span: Range<usize>,
        cost: &mut Cost,
    ) -> Result<(), ListError> {
        match place.moved(text, cost)? {
            Address::Other(other) => self.change(span, &other, cost),
            Address::Stays if is_risky(text, several) => {
                cost.work(text.len())?;
                match place.player.join(text) {
                    Ok(whole) => self.change(span, whole.as_str(), cost),
                    Err(_) => Ok(()),
                }
            }
            Address::Stays if span.start >= self.copied => {
                self.copy(span.start, cost)?;
                cost.write(&mut self.out.text, self.source.get(span.clone()).unwrap_or_default())?;
                self.copied = span.end;
                Ok(())
            }
            Address::Stays => Ok(()),
            Address::Unread => self.unread(text, span, cost),
        }
    }

    /// The servers of UTCTiming (section 5.8.4.11): a list of addresses for the schemes over HTTP.
    fn clock(&mut self, id: Id, place: &Place, value: &Attribute<'_>, cost: &mut Cost) -> Result<(), ListError> {
        let scheme = self.tree.attribute(id, "schemeIdUri").unwrap_or_default();
        let (text, mut others) = (value.value(), Vec::new());
        let Some(kind) = scheme.strip_prefix("urn:mpeg:dash:utc:http-") else {
            return self.unread(&text, value.span(), cost);
        };
        for address in text.split_ascii_whitespace() {
            let unread = if kind.starts_with("head") {
                // The answer's Date counts, which would be the proxy's.
                place.resource(address, cost)?.map_or_else(|| address.to_owned(), String::from)
            } else {
                match place.moved(address, cost)? {
                    Address::Other(other) => {
                        others.push(other);
                        continue;
                    }
                    Address::Stays if is_risky(address, true) => {
                        others.extend(place.player.join(address).ok().map(String::from));
                        continue;
                    }
                    Address::Stays | Address::Unread => address.to_owned(),
                }
            };
            // It may still lead to the proxy.
            others.push(self.text_place.marked(&unread, cost)?.unwrap_or(unread));
        }
        let other = others.join(" ");
        if other == text { Ok(()) } else { self.change(value.span(), &other, cost) }
    }

    /// Gives a representation a template of its own where the player would make another address out of one of an element
    /// above it than is meant.
    fn own_template(&mut self, id: Id, frame: &Frame<'a>, cost: &mut Cost) -> Result<(), ListError> {
        let tree = self.tree;
        let own = |name| tree.attribute(id, name).unwrap_or_default();
        let (identification, bandwidth) = (own("id"), own("bandwidth"));
        let is_plain = |text: &str| !text.contains(['/', '\\', ':', '?', '#', '%', '.', '\t', '\n', '\r']);
        let is_plain = is_plain(&identification) && is_plain(&bandwidth);
        let made = |template: &str| {
            let template = replaced(template, "$RepresentationID$", &identification)?;
            replaced(&template, "$Bandwidth$", &bandwidth)
        };
        let (mut missing, inherited) = (String::new(), Rc::clone(&frame.inherited));
        let inner = tree.named(id, "SegmentTemplate").next();
        cost.work(inherited.templates.len() * 3)?;
        for name in TEMPLATES {
            let from =
                inherited.templates.iter().rev().find_map(|of| Some((of, tree.attribute(of.template, name)?)));
            let Some((of, template)) = from.filter(|(_, template)| !template.is_empty()) else { continue };
            let is_elsewhere = frame.several && !of.several || !Rc::ptr_eq(&of.place, &frame.place);
            let lacks = |name: &str, value: &str| value.is_empty() && template.contains(name);
            let is_plain =
                is_plain && !lacks("$RepresentationID$", &identification) && !lacks("$Bandwidth$", &bandwidth);
            if is_plain && !is_elsewhere {
                continue;
            }
            let written = match of.place.moved(&template, cost)? {
                Address::Other(other) => Cow::Owned(other),
                Address::Stays if is_plain && !is_risky(&template, true) => continue,
                Address::Stays | Address::Unread => Cow::Borrowed(&*template),
            };
            let (Some(means), Some(gets)) = (made(&template), made(&written)) else {
                return Err(limit("the identification of a representation makes an address too long"));
            };
            let resolved = |text: &str| frame.place.player.join(text).ok().map(String::from);
            let right = match frame.place.moved(&means, cost)? {
                Address::Other(other) => Some(other),
                Address::Stays => resolved(&means),
                Address::Unread => None,
            };
            cost.work(written.len() + means.len())?;
            let is_risky = is_risky(&template, frame.several) || is_risky(&means, frame.several);
            let Some(right) = right.filter(|right| is_risky || resolved(&gets).as_ref() != Some(right)) else {
                continue;
            };
            if inner == Some(of.template) {
                self.attributes.insert((of.template, name), right);
            } else {
                missing.push_str(&format!(" {name}=\"{}\"", quick_xml::escape::escape(&right)));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.out.moved += 1;
        if let Some(inner) = inner {
            let at = tree.name_end(inner);
            self.pending.insert(at, (at, missing));
            return Ok(());
        }
        let name = tree.qualified_name(id);
        let template = match name.rsplit_once(':') {
            Some((prefix, _)) => format!("<{prefix}:SegmentTemplate{missing}/>"),
            None => format!("<SegmentTemplate{missing}/>"),
        };
        let content = tree.content(id);
        let before = content.start.saturating_sub("/>".len());
        if self.source.get(before..content.start) == Some("/>") {
            self.pending.insert(before, (content.start, format!(">{template}</{name}>")));
        } else {
            self.pending.insert(content.end, (content.end, template));
        }
        Ok(())
    }

    /// Writes another text in the place of a part of the source, behind all that was changed before.
    fn change(&mut self, span: Range<usize>, other: &str, cost: &mut Cost) -> Result<(), ListError> {
        if span.start < self.copied {
            // Within what was changed already.
            return Ok(());
        }
        self.copy(span.start, cost)?;
        cost.write(&mut self.out.text, &quick_xml::escape::escape(other))?;
        self.copied = span.end;
        self.out.moved += 1;
        Ok(())
    }

    /// Copies the source up to there.
    fn copy(&mut self, to: usize, cost: &mut Cost) -> Result<(), ListError> {
        while let Some((at, (end, text))) = self.pending.first_key_value().map(|(at, edit)| (*at, edit.clone())) {
            if at > to || end > to {
                break;
            }
            self.pending.pop_first();
            if at >= self.copied {
                self.copy_text(at, cost)?;
                cost.write(&mut self.out.text, &text)?;
                self.copied = end;
            }
        }
        self.copy_text(to, cost)
    }

    fn copy_text(&mut self, to: usize, cost: &mut Cost) -> Result<(), ListError> {
        let text = self.source.get(self.copied..to).unwrap_or_default();
        self.out.moved += self.text_place.write_unread(&mut self.out.text, (text, Form::Value), cost)?;
        self.copied = to;
        Ok(())
    }

    /// The segments of a representation, as far as they are known.
    fn representation(&mut self, id: Id, frame: &Frame<'a>, cost: &mut Cost) -> Result<(), ListError> {
        if self.out.note.is_some() {
            return Ok(());
        }
        let pieces = match frame.inherited.list {
            Some(list) => self.listed(list, &frame.place, cost)?.map(Pieces::List),
            None => self.templated(id, frame, cost)?,
        };
        if let Some(pieces) = pieces {
            if cost.remember(pieces.size()) {
                self.out.renditions.push(Rendition { set: self.sets, pieces, ends: self.ends });
            } else {
                self.out.note = Some(TOO_MANY);
            }
        }
        Ok(())
    }

    fn templated(&mut self, id: Id, frame: &Frame<'a>, cost: &mut Cost) -> Result<Option<Pieces>, ListError> {
        let tree = self.tree;
        let Inherited { duration: whole, templates, .. } = &*frame.inherited;
        // What an inner template does not say, an outer one does (section 5.3.9.1).
        let said = |name: &str| templates.iter().rev().find_map(|own| own.tree.attribute(own.template, name));
        let number = |name: &str| said(name).and_then(|text| text.parse::<u64>().ok());
        cost.work(templates.len() * 128)?;
        let Some(media) = said("media") else { return Ok(None) };
        let own = |name| tree.attribute(id, name).unwrap_or_default();
        let media = replaced(&media, "$RepresentationID$", &own("id"))
            .and_then(|media| replaced(&media, "$Bandwidth$", &own("bandwidth")));
        let Some(media) = media else {
            self.out.note = Some("addresses that are too long");
            return Ok(None);
        };
        cost.work(media.len())?;
        let Some((before, name, width, after)) = parted(&media) else { return Ok(None) };
        // The address is resolved with a mark in the place of the number, so that both halves are known.
        let marked = format!("{before}{MARK}{after}").replace("$$", "$");
        let Some(address) = frame.place.resource(&marked, cost)? else { return Ok(None) };
        let Some((before, after)) = address.as_str().split_once(MARK) else { return Ok(None) };
        let template = Template { before: before.to_owned(), after: after.to_owned(), width };
        let timescale = number("timescale").unwrap_or(1).max(1);
        let first = number("startNumber").unwrap_or(1);
        if let Some(timeline) = templates.iter().rev().find_map(|own| own.timeline) {
            let end = whole.map(|whole| (whole.as_secs_f64() * timescale as f64) as u64);
            let Some(timeline) = self.timeline(timeline, end, cost)? else { return Ok(None) };
            return Ok(Some(Pieces::Timed { template, by_time: name == "Time", first, timeline, timescale }));
        }
        let Some(duration) = number("duration").filter(|ticks| *ticks > 0).map(|ticks| lasting(ticks, timescale))
        else {
            return Ok(None);
        };
        if name != "Number" {
            return Ok(None);
        }
        let count = whole.map(|whole| (whole.as_secs_f64() / duration.as_secs_f64()).ceil() as u64);
        let last = count.and_then(|count| first.checked_add(count)).map(|end| end.saturating_sub(1));
        Ok(Some(Pieces::Numbered { template, last, duration }))
    }

    /// A timeline (section 5.3.9.6); none: it is too long to be remembered.
    fn timeline(&mut self, id: Id, end: Option<u64>, cost: &mut Cost) -> Result<Option<Arc<Timeline>>, ListError> {
        if let Some(known) = self.timelines.get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let tree = self.tree;
        let (mut timeline, mut at) = (Timeline::default(), 0_u64);
        let mut entries = tree.named(id, "S").peekable();
        while let Some(entry) = entries.next() {
            cost.work(tree.attributes(entry).len())?;
            let number =
                |entry: Id, name: &str| tree.attribute(entry, name).and_then(|text| text.parse::<u64>().ok());
            at = number(entry, "t").unwrap_or(at);
            let Some(ticks) = number(entry, "d").filter(|ticks| *ticks > 0) else { break };
            let repeats = tree.attribute(entry, "r").and_then(|text| text.parse::<i64>().ok());
            let count = match repeats {
                // Until the next entry, or the end of the period; of a period without an end nothing is guessed.
                Some(negative) if negative < 0 => {
                    let until = entries.peek().and_then(|next| number(*next, "t")).or(end).unwrap_or(at);
                    until.saturating_sub(at).div_ceil(ticks).max(1)
                }
                more => more.unwrap_or(0).unsigned_abs().saturating_add(1),
            };
            if !cost.remember(Timeline::cost()) {
                self.out.note = Some(TOO_MANY);
                return Ok(None);
            }
            timeline.push(at, ticks, count);
            at = at.saturating_add(ticks.saturating_mul(count));
        }
        let timeline = Arc::new(timeline);
        self.timelines.insert(id, Arc::clone(&timeline));
        Ok(Some(timeline))
    }

    /// The segments of a list; none: they are too many.
    fn listed(&mut self, id: Id, place: &Place, cost: &mut Cost) -> Result<Option<List>, ListError> {
        let tree = self.tree;
        let number = |name| tree.attribute(id, name).and_then(|text| text.parse::<u64>().ok());
        let duration = lasting(number("duration").unwrap_or_default(), number("timescale").unwrap_or(1));
        let mut list = List::default();
        cost.work(tree.children(id).count())?;
        for segment in tree.named(id, "SegmentURL") {
            let media = tree.attribute(segment, "media").unwrap_or_default();
            let Some(url) = place.resource(&media, cost)? else { continue };
            let range = tree.attribute(segment, "mediaRange");
            self.pieces += 1;
            if self.pieces > MOST_PIECES || !cost.remember(List::cost(&url)) {
                self.out.note = Some(TOO_MANY);
                return Ok(None);
            }
            list.push(&url, range.as_deref().and_then(byte_range), duration);
        }
        Ok(Some(list.done()))
    }
}

/// Whether a relative address could be a request to the proxy for something else if the player resolves it in another base
/// than the proxy, or with another text in the place of a name. `several`: such bases there may be.
fn is_risky(text: &str, several: bool) -> bool {
    let climbs = || ["..", "%2e", "%2E"].iter().any(|up| text.contains(up)) || text.contains(char::is_control);
    text.contains(':') || several && climbs()
}

fn is_odd(name: &str) -> bool {
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known) && name != *known)
}

/// `FIRST-LAST`.
fn byte_range(text: &str) -> Option<Range<u64>> {
    let (from, last) = text.split_once('-')?;
    Some(from.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

/// A text with a value in the place of a name; none: it would become too long.
fn replaced(text: &str, name: &str, value: &str) -> Option<String> {
    let places = text.matches(name).count();
    let len = text.len().checked_add(places.checked_mul(value.len())?)?;
    (len <= LONGEST_EXPANDED + places * name.len()).then(|| text.replace(name, value))
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

/// Attributes whose value is an address.
const ADDRESSES: [&str; 6] = ["media", "initialization", "index", "sourceURL", "href", "reportingUrl"];
/// Those of SegmentTemplate.
const TEMPLATES: [&str; 3] = ["media", "initialization", "index"];
/// Elements that matter here. Some players ignore the case of their names.
const NAMES: [&str; 17] = [
    "MPD",
    "Period",
    "AdaptationSet",
    "Representation",
    "BaseURL",
    "Location",
    "PatchLocation",
    "SegmentTemplate",
    "SegmentTimeline",
    "SegmentList",
    "SegmentURL",
    "SegmentBase",
    "Initialization",
    "RepresentationIndex",
    "UTCTiming",
    "ContentSteering",
    "ImportedMPD",
];
const MARK: &str = "marline-number";
const TOO_MANY: &str = "too many segments";
/// The standard has four levels with bases. Each one within another costs as much memory as the address is long.
const MOST_BASES: usize = 16;
/// The standard has three levels with templates.
const MOST_TEMPLATES: usize = 4;

#[cfg(test)]
mod tests;
