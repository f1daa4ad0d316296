//! The elements of an XML document, with the places in its text where attributes and contents stand.
//!
//! quick-xml finds the tags; what is built of them is a flat list with a few dozen bytes for each element and attribute, so
//! that its size can be bounded while it grows. Trees of other crates (roxmltree) were not used: they cannot be stopped, and
//! compare each attribute of an element with all others. Namespaces are ignored, because manifests in the wild have
//! several. A document type declaration is refused, as everywhere where XML comes from strangers.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::cost::{Cost, LONGEST_EXPANDED, ListError, limit, malformed};

/// A document.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    source: &'a str,
    /// In the order of their start tags.
    elements: Vec<Element<'a>>,
    attributes: Vec<Attribute<'a>>,
}

/// The number of an element in a tree.
pub(super) type Id = usize;

#[derive(Debug)]
struct Element<'a> {
    /// Without its prefix.
    name: &'a str,
    /// Of the tree's attributes, those of this element.
    attributes: Range<u32>,
    /// From behind the start tag to the end tag; empty for an element without an end tag.
    inner: Range<u32>,
    /// The first element that is not within this one.
    next: u32,
    /// There is text in it, beside its elements, that is not blank.
    has_text: bool,
}

/// An attribute.
#[derive(Debug)]
pub(super) struct Attribute<'a> {
    /// Without its prefix.
    pub(super) name: &'a str,
    value: &'a str,
    /// Where the value stands, within its quotes.
    start: u32,
}

impl<'a> Tree<'a> {
    /// Reads a document.
    ///
    /// # Errors
    /// It is not well-formed, or costs too much.
    pub(super) fn read(source: &'a str, cost: &mut Cost) -> Result<Self, ListError> {
        let mut tree = Self { source, elements: Vec::new(), attributes: Vec::new() };
        // The reader does not count a byte order mark.
        let mark = source.len() - source.trim_start_matches('\u{feff}').len();
        let mut reader = Reader::from_str(source.get(mark..).unwrap_or_default());
        // Of comments only the end matters.
        reader.config_mut().check_comments = false;
        let mut open: Vec<Id> = Vec::new();
        loop {
            let from = mark + reader.buffer_position() as usize;
            let event = reader.read_event();
            let at = mark + reader.buffer_position() as usize;
            cost.work(at.saturating_sub(from))?;
            match event.map_err(|_| fault(reader.error_position() as usize))? {
                Event::Start(start) => {
                    let id = tree.element(&start, from, at, open.is_empty())?;
                    open.push(id);
                }
                Event::Empty(start) => {
                    tree.element(&start, from, at, open.is_empty())?;
                }
                Event::End(_) => {
                    let next = tree.elements.len() as u32;
                    let closed = open.pop().and_then(|id| tree.elements.get_mut(id));
                    let closed = closed.ok_or_else(|| fault(from))?;
                    (closed.inner.end, closed.next) = (from as u32, next);
                }
                Event::DocType(_) => return Err(malformed("it has a document type declaration")),
                Event::Text(text) if is_blank(&text) => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    let within = open.last().and_then(|id| tree.elements.get_mut(*id));
                    within.ok_or_else(|| fault(from))?.has_text = true;
                }
                Event::Eof => break,
                _ => {}
            }
        }
        if !open.is_empty() || tree.elements.is_empty() {
            return Err(fault(source.len()));
        }
        Ok(tree)
    }

    /// The memory that the tree of a text takes up, at most.
    pub(super) fn size_of(text: &str) -> usize {
        let count = |of: u8| text.bytes().filter(|byte| *byte == of).count();
        let elements = count(b'<').min(MOST_ELEMENTS) * size_of::<Element<'_>>();
        elements + count(b'=').min(MOST_ATTRIBUTES) * size_of::<Attribute<'_>>()
    }

    /// Adds an element whose start tag is `from..to` of the text.
    fn element(
        &mut self,
        start: &BytesStart<'_>,
        from: usize,
        to: usize,
        is_outermost: bool,
    ) -> Result<Id, ListError> {
        if is_outermost && !self.elements.is_empty() {
            return Err(fault(from));
        }
        let first = self.attributes.len();
        // Its own check for equal names is left out: it compares or keeps them all.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|_| fault(from))?;
            if attribute.key.as_namespace_binding().is_some() {
                // `xmlns:media` is no attribute called media.
                continue;
            }
            let part = |part: &str| {
                let at = offset(self.source, part).ok_or_else(|| fault(from))?;
                let part = self.source.get(at..at + part.len()).ok_or_else(|| fault(from))?;
                Ok::<_, ListError>((part, at as u32))
            };
            let (name, _) = part(attribute.key.local_name().into_inner())?;
            let (value, start) = part(&attribute.value)?;
            push(&mut self.attributes, Attribute { name, value, start });
            if self.attributes.len() - first > MOST_OF_ONE {
                return Err(limit(format!("an element has more than {MOST_OF_ONE} attributes")));
            }
        }
        let name = start.local_name().into_inner();
        let at = offset(self.source, name).ok_or_else(|| fault(from))?;
        let name = self.source.get(at..at + name.len()).ok_or_else(|| fault(from))?;
        let id = self.elements.len();
        let attributes = first as u32..self.attributes.len() as u32;
        let (inner, next) = (to as u32..to as u32, id as u32 + 1);
        push(&mut self.elements, Element { name, attributes, inner, next, has_text: false });
        if self.elements.len() > MOST_ELEMENTS || self.attributes.len() > MOST_ATTRIBUTES {
            let bounds = format!("{MOST_ELEMENTS} elements or {MOST_ATTRIBUTES} attributes");
            return Err(limit(format!("it has more than {bounds}")));
        }
        Ok(id)
    }

    /// The outermost element.
    pub(super) const ROOT: Id = 0;

    /// How many elements there are; their numbers follow one another in the order of the text.
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    pub(super) fn name(&self, id: Id) -> &'a str {
        self.elements.get(id).map_or("", |element| element.name)
    }

    /// The name with its prefix.
    pub(super) fn qualified_name(&self, id: Id) -> &'a str {
        let end = self.name_end(id);
        let from = self.source.get(..end).and_then(|before| before.rfind('<')).map_or(end, |at| at + 1);
        self.source.get(from..end).unwrap_or_default()
    }

    /// Where the name in the start tag ends.
    pub(super) fn name_end(&self, id: Id) -> usize {
        let name = self.name(id);
        offset(self.source, name).map_or(0, |at| at + name.len())
    }

    /// From behind the start tag to the end tag; empty, and behind the tag, for an element without an end tag.
    pub(super) fn content(&self, id: Id) -> Range<usize> {
        self.elements.get(id).map_or(0..0, |element| element.inner.start as usize..element.inner.end as usize)
    }

    /// The first element behind this one and all within it.
    pub(super) fn next(&self, id: Id) -> Id {
        self.elements.get(id).map_or(usize::MAX, |element| element.next as usize)
    }

    pub(super) fn attributes(&self, id: Id) -> &[Attribute<'a>] {
        let span = self.elements.get(id).map_or(0..0, |element| element.attributes.clone());
        self.attributes.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    /// The value of an attribute; none: there is no such one, or it is so long that it makes no sense.
    pub(super) fn attribute(&self, id: Id, name: &str) -> Option<Cow<'a, str>> {
        let attribute = self.attributes(id).iter().find(|attribute| attribute.name == name)?;
        Some(attribute).filter(|attribute| attribute.value.len() <= LONGEST_EXPANDED).map(Attribute::value)
    }

    pub(super) fn children(&self, id: Id) -> impl Iterator<Item = Id> {
        let end = self.next(id);
        std::iter::successors(Some(id + 1), |child| Some(self.next(*child))).take_while(move |child| *child < end)
    }

    /// The children of this name.
    pub(super) fn named(&self, id: Id, name: &str) -> impl Iterator<Item = Id> {
        self.children(id).filter(move |child| self.name(*child) == name)
    }

    /// Whether there is text in an element, beside the elements in it, that is not blank.
    pub(super) fn has_text(&self, id: Id) -> bool {
        self.elements.get(id).is_some_and(|element| element.has_text)
    }

    /// All text in an element: without the elements in it, and with their text.
    pub(super) fn texts(&self, id: Id, cost: &mut Cost) -> Result<[String; 2], ListError> {
        let content = self.source.get(self.content(id)).unwrap_or_default();
        cost.work(2 * content.len())?;
        let (mut own, mut all, mut depth, mut reader) =
            (String::new(), String::new(), 0, Reader::from_str(content));
        reader.config_mut().check_comments = false;
        loop {
            let mut add = |part: &str| {
                all.push_str(part);
                if depth == 0 {
                    own.push_str(part);
                }
            };
            match reader.read_event() {
                Ok(Event::Text(part)) => add(&part),
                Ok(Event::CData(part)) => add(&part),
                Ok(Event::GeneralRef(part)) => add(&unescaped(&format!("&{};", &*part))),
                Ok(Event::Start(_)) => depth += 1,
                Ok(Event::End(_)) => depth -= 1,
                Ok(Event::Eof) | Err(_) => return Ok([own, all]),
                Ok(_) => {}
            }
        }
    }

    /// The text of an element without others in it, and where its content stands in the source.
    pub(super) fn text(&self, id: Id, cost: &mut Cost) -> Result<Option<(String, Range<usize>)>, ListError> {
        let Some(element) = self.elements.get(id).filter(|_| self.next(id) == id + 1) else { return Ok(None) };
        let inner = element.inner.start as usize..element.inner.end as usize;
        let Some(content) = self.source.get(inner.clone()) else { return Ok(None) };
        cost.work(content.len())?;
        let (mut text, mut reader) = (String::new(), Reader::from_str(content));
        reader.config_mut().check_comments = false;
        loop {
            match reader.read_event() {
                Ok(Event::Text(part)) => text.push_str(&part),
                Ok(Event::CData(part)) => text.push_str(&part),
                Ok(Event::GeneralRef(part)) => text.push_str(&unescaped(&format!("&{};", &*part))),
                Ok(Event::Eof) => break,
                Ok(_) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(Some((text.trim().to_owned(), inner)))
    }
}

impl<'a> Attribute<'a> {
    pub(super) fn value(&self) -> Cow<'a, str> {
        unescaped(self.value)
    }

    /// Where its value stands in the text.
    pub(super) fn span(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.value.len()
    }
}

/// One more item. Doubling would take up memory that nobody has counted.
fn push<T>(all: &mut Vec<T>, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(64 + all.len() / 8);
    }
    all.push(one);
}

/// A text without its references; what is no known reference stays.
fn unescaped(text: &str) -> Cow<'_, str> {
    use quick_xml::escape::unescape;
    // One unknown reference keeps the others from nothing.
    unescape(text).unwrap_or_else(|_| {
        let mut out = String::with_capacity(text.len());
        for part in text.split_inclusive(';') {
            let (before, reference) = part.split_at(part.rfind('&').unwrap_or(part.len()));
            out.push_str(before);
            out.push_str(&unescape(reference).unwrap_or(Cow::Borrowed(reference)));
        }
        Cow::Owned(out)
    })
}

/// A reference that XML parsers refuse and those of HTML take for a character that can be a part of an address.
pub(super) fn odd_reference(text: &str) -> Option<&str> {
    text.match_indices('&').find_map(|(at, _)| {
        let rest = text.get(at + 1..)?;
        let number = rest.strip_prefix('#');
        let name = number.unwrap_or(rest);
        let (name, after) = name.split_at(name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len()));
        let is_ended = after.starts_with(';');
        match number {
            Some(_) if !is_ended => Some("#"),
            None if is_ended && HTML_NAMES.contains(&name) => Some(name),
            _ => None,
        }
    })
}

/// What a text that is no XML means to a lenient parser: without comments, and without the bounds of CDATA sections.
pub(super) fn loosely_read(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("<!") {
        out.push_str(before);
        rest = if let Some(comment) = after.strip_prefix("--") {
            comment.split_once("-->").map_or("", |(_, rest)| rest)
        } else if let Some(inner) = after.strip_prefix("[CDATA[") {
            let (inner, rest) = inner.split_once("]]>").unwrap_or((inner, ""));
            out.push_str(inner);
            rest
        } else {
            out.push_str("<!");
            after
        };
    }
    out.push_str(rest);
    match unescaped(&out) {
        Cow::Borrowed(_) => out,
        Cow::Owned(text) => text,
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Where a part of a text stands in it.
fn offset(text: &str, part: &str) -> Option<usize> {
    let at = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    (at + part.len() <= text.len()).then_some(at)
}

fn fault(at: usize) -> ListError {
    malformed(format!("it is no XML from byte {at} on"))
}

/// chosen: a day of live television in segments of two seconds, described one by one, in three renditions.
const MOST_ELEMENTS: usize = 120_000;
const MOST_ATTRIBUTES: usize = 250_000;
/// HTML's names of characters that matter in addresses.
const HTML_NAMES: [&str; 10] =
    ["colon", "sol", "bsol", "Tab", "NewLine", "period", "percnt", "quest", "num", "commat"];
/// chosen: several times what the largest elements of ISO/IEC 23009-1 have.
const MOST_OF_ONE: usize = 128;

#[cfg(test)]
mod tests {
    use super::super::address::tests::affordable;
    use super::*;

    fn read(text: &str) -> Result<Tree<'_>, ListError> {
        Tree::read(text, &mut affordable())
    }

    #[test]
    fn elements_attributes_and_texts_are_where_they_are() {
        let text = "\u{feff}<?xml version='1.0'?><!-- a -- > --><m:MPD xmlns:m='u' a=\"1&amp;2\" b='>'>\n<B>x&lt;<![CDATA[<y>]]></B>\
            <C/><D><E f = 'g'></E></D></m:MPD> <!-- end -->";
        let tree = read(text).unwrap();
        let names: Vec<&str> = (0..tree.len()).map(|id| tree.name(id)).collect();
        assert_eq!(names, ["MPD", "B", "C", "D", "E"]);
        assert_eq!(tree.children(Tree::ROOT).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(tree.named(Tree::ROOT, "D").next(), Some(3));
        assert_eq!(tree.attribute(0, "a").as_deref(), Some("1&2"));
        let attribute = &tree.attributes(4)[0];
        assert_eq!((attribute.name, &text[attribute.span()]), ("f", "g"));
        let (content, span) = tree.text(1, &mut affordable()).unwrap().unwrap();
        assert_eq!((content.as_str(), &text[span]), ("x<<y>", "x&lt;<![CDATA[<y>]]>"));
        assert!(tree.text(3, &mut affordable()).unwrap().is_none());
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for text in [
            "",
            " ",
            "x",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "<a/>x",
            "<a b></a",
            "<a b=c/>",
            "<!DOCTYPE a><a/>",
        ] {
            assert!(matches!(read(text), Err(ListError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn attributes_and_elements_have_a_bound_and_depth_costs_nothing() {
        let many: String = (0..MOST_OF_ONE + 1).map(|n| format!(" a{n}=''")).collect();
        assert!(matches!(read(&format!("<a{many}/>")), Err(ListError::Limit(_))));
        assert!(matches!(read(&format!("<a>{}</a>", "<b/>".repeat(MOST_ELEMENTS))), Err(ListError::Limit(_))));
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        assert_eq!(read(&deep).unwrap().len(), 100_000);
    }
}
