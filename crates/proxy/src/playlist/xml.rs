//! The elements of an XML document, with the positions of attributes and contents in its text.
//!
//! quick-xml finds the tags. They are stored in a flat list with a few dozen bytes for each element and attribute,
//! whose size can be bounded while it grows. Tree builders of other crates (roxmltree) cannot be stopped, and compare
//! each attribute of an element with all others. Namespaces are ignored, because manifests in the wild use several. A
//! document type declaration is refused, because the documents are untrusted.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::parse_budget::{MAX_EXPANDED_URL, ParseBudget, PlaylistError, limit_error, malformed_error};

/// A parsed document.
#[derive(Debug)]
pub(crate) struct XmlTree<'a> {
    source: &'a str,
    /// The elements, in the order of their start tags.
    elements: Vec<Element<'a>>,
    attributes: Vec<Attribute<'a>>,
}

/// The number of an element in its tree.
pub(crate) type ElementId = usize;

#[derive(Debug)]
struct Element<'a> {
    /// The name without its prefix.
    name: &'a str,
    /// Indices of this element's attributes in the tree.
    attributes: Range<u32>,
    /// From the end of the start tag to the end tag; empty for an element without an end tag.
    content: Range<u32>,
    /// The first element that is not within this one.
    next_outside: u32,
    /// The element directly contains text that is not blank.
    has_text: bool,
}

/// An attribute of an element.
#[derive(Debug)]
pub(crate) struct Attribute<'a> {
    /// The name without its prefix.
    pub(crate) name: &'a str,
    value: &'a str,
    /// The offset of the value, within its quotes.
    value_start: u32,
}

impl<'a> XmlTree<'a> {
    /// Parses a document.
    ///
    /// # Errors
    /// It is not well-formed, or the budget is exhausted.
    pub(crate) fn parse(source: &'a str, budget: &mut ParseBudget) -> Result<Self, PlaylistError> {
        let mut tree = Self { source, elements: Vec::new(), attributes: Vec::new() };
        // The reader's positions do not include a byte order mark.
        let bom_len = source.len() - source.trim_start_matches('\u{feff}').len();
        let mut reader = Reader::from_str(source.get(bom_len..).unwrap_or_default());
        // The syntax within comments does not matter, only their end.
        reader.config_mut().check_comments = false;
        let mut open_elements: Vec<ElementId> = Vec::new();
        loop {
            let event_start = bom_len + reader.buffer_position() as usize;
            let event = reader.read_event();
            let event_end = bom_len + reader.buffer_position() as usize;
            budget.charge_work(event_end.saturating_sub(event_start))?;
            match event.map_err(|_| syntax_error(reader.error_position() as usize))? {
                Event::Start(start) => {
                    let id = tree.add_element(&start, event_start, event_end, open_elements.is_empty())?;
                    open_elements.push(id);
                }
                Event::Empty(start) => {
                    tree.add_element(&start, event_start, event_end, open_elements.is_empty())?;
                }
                Event::End(_) => {
                    let next = tree.elements.len() as u32;
                    let closed = open_elements.pop().and_then(|id| tree.elements.get_mut(id));
                    let closed = closed.ok_or_else(|| syntax_error(event_start))?;
                    (closed.content.end, closed.next_outside) = (event_start as u32, next);
                }
                Event::DocType(_) => return Err(malformed_error("the manifest has a document type declaration")),
                Event::Text(text) if is_blank(&text) => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    let parent = open_elements.last().and_then(|id| tree.elements.get_mut(*id));
                    parent.ok_or_else(|| syntax_error(event_start))?.has_text = true;
                }
                Event::Eof => break,
                _ => {}
            }
        }
        if !open_elements.is_empty() || tree.elements.is_empty() {
            return Err(syntax_error(source.len()));
        }
        Ok(tree)
    }

    /// The maximum memory of the tree of a text.
    pub(crate) fn max_memory(text: &str) -> usize {
        let count_of = |wanted: u8| text.bytes().filter(|byte| *byte == wanted).count();
        let elements = count_of(b'<').min(MAX_ELEMENTS) * size_of::<Element<'_>>();
        elements + count_of(b'=').min(MAX_ATTRIBUTES) * size_of::<Attribute<'_>>()
    }

    /// Adds an element whose start tag is at `start_offset..end_offset` of the text.
    fn add_element(
        &mut self,
        start: &BytesStart<'_>,
        start_offset: usize,
        end_offset: usize,
        is_outermost: bool,
    ) -> Result<ElementId, PlaylistError> {
        if is_outermost && !self.elements.is_empty() {
            return Err(syntax_error(start_offset));
        }
        let first_attribute = self.attributes.len();
        // quick-xml's check for duplicate names compares or stores all names, so it is disabled.
        for attribute in start.attributes().with_checks(false) {
            let attribute = attribute.map_err(|_| syntax_error(start_offset))?;
            if attribute.key.as_namespace_binding().is_some() {
                // `xmlns:media` declares a namespace and is no attribute `media`.
                continue;
            }
            let locate = |slice: &str| {
                let offset_of_part = offset_in(self.source, slice).ok_or_else(|| syntax_error(start_offset))?;
                let part = self
                    .source
                    .get(offset_of_part..offset_of_part + slice.len())
                    .ok_or_else(|| syntax_error(start_offset))?;
                Ok::<_, PlaylistError>((part, offset_of_part as u32))
            };
            let (name, _) = locate(attribute.key.local_name().into_inner())?;
            let (value, start) = locate(&attribute.value)?;
            push_tight(&mut self.attributes, Attribute { name, value, value_start: start });
            if self.attributes.len() - first_attribute > MAX_ATTRIBUTES_OF_ELEMENT {
                return Err(limit_error(format!(
                    "an element has more than {MAX_ATTRIBUTES_OF_ELEMENT} attributes"
                )));
            }
        }
        let name = start.local_name().into_inner();
        let name_at = offset_in(self.source, name).ok_or_else(|| syntax_error(start_offset))?;
        let name = self.source.get(name_at..name_at + name.len()).ok_or_else(|| syntax_error(start_offset))?;
        let id = self.elements.len();
        let attributes = first_attribute as u32..self.attributes.len() as u32;
        let (content, next) = (end_offset as u32..end_offset as u32, id as u32 + 1);
        push_tight(&mut self.elements, Element { name, attributes, content, next_outside: next, has_text: false });
        if self.elements.len() > MAX_ELEMENTS || self.attributes.len() > MAX_ATTRIBUTES {
            let bounds = format!("{MAX_ELEMENTS} elements or {MAX_ATTRIBUTES} attributes");
            return Err(limit_error(format!("the manifest has more than {bounds}")));
        }
        Ok(id)
    }

    pub(crate) const ROOT: ElementId = 0;

    /// The number of elements. Their IDs are consecutive, in the order of the text.
    pub(crate) fn len(&self) -> usize {
        self.elements.len()
    }

    pub(crate) fn name(&self, id: ElementId) -> &'a str {
        self.elements.get(id).map_or("", |element| element.name)
    }

    /// The name with its prefix.
    pub(crate) fn qualified_name(&self, id: ElementId) -> &'a str {
        let end = self.name_end(id);
        let from = self.source.get(..end).and_then(|before| before.rfind('<')).map_or(end, |at| at + 1);
        self.source.get(from..end).unwrap_or_default()
    }

    /// The offset at which the name in the start tag ends.
    pub(crate) fn name_end(&self, id: ElementId) -> usize {
        let name = self.name(id);
        offset_in(self.source, name).map_or(0, |at| at + name.len())
    }

    /// From the end of the start tag to the end tag; empty, after the tag, for an element without an end tag.
    pub(crate) fn content(&self, id: ElementId) -> Range<usize> {
        self.elements.get(id).map_or(0..0, |element| element.content.start as usize..element.content.end as usize)
    }

    /// The first element after this one and all its descendants.
    pub(crate) fn next_outside(&self, id: ElementId) -> ElementId {
        self.elements.get(id).map_or(usize::MAX, |element| element.next_outside as usize)
    }

    pub(crate) fn attributes(&self, id: ElementId) -> &[Attribute<'a>] {
        let indices = self.elements.get(id).map_or(0..0, |element| element.attributes.clone());
        self.attributes.get(indices.start as usize..indices.end as usize).unwrap_or_default()
    }

    /// The value of an attribute; `None`: there is none, or it is implausibly long.
    pub(crate) fn attribute(&self, id: ElementId, name: &str) -> Option<Cow<'a, str>> {
        let attribute = self.attributes(id).iter().find(|attribute| attribute.name == name)?;
        Some(attribute).filter(|attribute| attribute.value.len() <= MAX_EXPANDED_URL).map(Attribute::value)
    }

    pub(crate) fn children(&self, id: ElementId) -> impl Iterator<Item = ElementId> {
        let end = self.next_outside(id);
        std::iter::successors(Some(id + 1), |child| Some(self.next_outside(*child)))
            .take_while(move |child| *child < end)
    }

    /// The children with this name.
    pub(crate) fn children_named(&self, id: ElementId, name: &str) -> impl Iterator<Item = ElementId> {
        self.children(id).filter(move |child| self.name(*child) == name)
    }

    /// Whether an element directly contains text that is not blank.
    pub(crate) fn has_text(&self, id: ElementId) -> bool {
        self.elements.get(id).is_some_and(|element| element.has_text)
    }

    /// The text of an element, first without its descendants and then with them.
    pub(crate) fn own_and_nested_text(
        &self,
        id: ElementId,
        budget: &mut ParseBudget,
    ) -> Result<[String; 2], PlaylistError> {
        let content = self.source.get(self.content(id)).unwrap_or_default();
        budget.charge_work(2 * content.len())?;
        let (mut own_text, mut all_text, mut depth, mut reader) =
            (String::new(), String::new(), 0, Reader::from_str(content));
        reader.config_mut().check_comments = false;
        loop {
            let mut append = |part: &str| {
                all_text.push_str(part);
                if depth == 0 {
                    own_text.push_str(part);
                }
            };
            match reader.read_event() {
                Ok(Event::Text(part)) => append(&part),
                Ok(Event::CData(part)) => append(&part),
                Ok(Event::GeneralRef(part)) => append(&unescape_lenient(&format!("&{};", &*part))),
                Ok(Event::Start(_)) => depth += 1,
                Ok(Event::End(_)) => depth -= 1,
                Ok(Event::Eof) | Err(_) => return Ok([own_text, all_text]),
                Ok(_) => {}
            }
        }
    }

    /// The text of an element without children, and the position of its content in the source.
    pub(crate) fn text(
        &self,
        id: ElementId,
        budget: &mut ParseBudget,
    ) -> Result<Option<(String, Range<usize>)>, PlaylistError> {
        let Some(element) = self.elements.get(id).filter(|_| self.next_outside(id) == id + 1) else {
            return Ok(None);
        };
        let content_range = element.content.start as usize..element.content.end as usize;
        let Some(content) = self.source.get(content_range.clone()) else { return Ok(None) };
        budget.charge_work(content.len())?;
        let (mut text, mut reader) = (String::new(), Reader::from_str(content));
        reader.config_mut().check_comments = false;
        loop {
            match reader.read_event() {
                Ok(Event::Text(part)) => text.push_str(&part),
                Ok(Event::CData(part)) => text.push_str(&part),
                Ok(Event::GeneralRef(part)) => text.push_str(&unescape_lenient(&format!("&{};", &*part))),
                Ok(Event::Eof) => break,
                Ok(_) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(Some((text.trim().to_owned(), content_range)))
    }
}

impl<'a> Attribute<'a> {
    pub(crate) fn value(&self) -> Cow<'a, str> {
        unescape_lenient(self.value)
    }

    /// The position of the value in the text.
    pub(crate) fn value_range(&self) -> Range<usize> {
        let start = self.value_start as usize;
        start..start + self.value.len()
    }
}

/// Appends an item. Doubling the capacity would allocate memory that is not accounted.
fn push_tight<T>(all: &mut Vec<T>, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(64 + all.len() / 8);
    }
    all.push(one);
}

/// Resolves the references in a text; unknown references are kept.
fn unescape_lenient(text: &str) -> Cow<'_, str> {
    use quick_xml::escape::unescape;
    // An unknown reference does not keep the others from being resolved.
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

/// Finds a reference that XML parsers reject, but HTML parsers resolve to a character that matters in URLs.
pub(crate) fn html_only_reference(text: &str) -> Option<&str> {
    text.match_indices('&').find_map(|(ampersand, _)| {
        let remaining = text.get(ampersand + 1..)?;
        let number = remaining.strip_prefix('#');
        let name = number.unwrap_or(remaining);
        let (name, after) = name.split_at(name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len()));
        let is_terminated = after.starts_with(';');
        match number {
            Some(_) if !is_terminated => Some("#"),
            None if is_terminated && HTML_REFERENCES.contains(&name) => Some(name),
            _ => None,
        }
    })
}

/// How a lenient parser reads a text that is no XML: comments are removed, and the contents of CDATA sections are kept.
pub(crate) fn lenient_text(text: &str) -> String {
    let (mut out, mut remaining) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = remaining.split_once("<!") {
        out.push_str(before);
        remaining = if let Some(comment) = after.strip_prefix("--") {
            comment.split_once("-->").map_or("", |(_, remaining)| remaining)
        } else if let Some(inner) = after.strip_prefix("[CDATA[") {
            let (inner, remaining) = inner.split_once("]]>").unwrap_or((inner, ""));
            out.push_str(inner);
            remaining
        } else {
            out.push_str("<!");
            after
        };
    }
    out.push_str(remaining);
    match unescape_lenient(&out) {
        Cow::Borrowed(_) => out,
        Cow::Owned(text) => text,
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The offset of a part within a text.
fn offset_in(text: &str, part: &str) -> Option<usize> {
    let start = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    (start + part.len() <= text.len()).then_some(start)
}

fn syntax_error(at: usize) -> PlaylistError {
    malformed_error(format!("it is not well-formed XML from byte {at} on"))
}

/// Our choice: 22 hours of live television in three renditions, with each segment of two seconds described
/// individually.
const MAX_ELEMENTS: usize = 120_000;
const MAX_ATTRIBUTES: usize = 250_000;
/// HTML's names of characters that matter in URLs.
const HTML_REFERENCES: [&str; 10] =
    ["colon", "sol", "bsol", "Tab", "NewLine", "period", "percnt", "quest", "num", "commat"];
/// Our choice: several times what the largest elements of ISO/IEC 23009-1 have.
const MAX_ATTRIBUTES_OF_ELEMENT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playlist::url_rewrite::tests::test_budget;

    fn read(text: &str) -> Result<XmlTree<'_>, PlaylistError> {
        XmlTree::parse(text, &mut test_budget())
    }

    #[test]
    fn elements_attributes_and_texts_are_located() {
        let text = "\u{feff}<?xml version='1.0'?><!-- a -- > --><m:MPD xmlns:m='u' a=\"1&amp;2\" b='>'>\n<B>x&lt;<![CDATA[<y>]]></B>\
            <C/><D><E f = 'g'></E></D></m:MPD> <!-- end -->";
        let tree = read(text).unwrap();
        let names: Vec<&str> = (0..tree.len()).map(|id| tree.name(id)).collect();
        assert_eq!(names, ["MPD", "B", "C", "D", "E"]);
        assert_eq!(tree.children(XmlTree::ROOT).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(tree.children_named(XmlTree::ROOT, "D").next(), Some(3));
        assert_eq!(tree.attribute(0, "a").as_deref(), Some("1&2"));
        let attribute = &tree.attributes(4)[0];
        assert_eq!((attribute.name, &text[attribute.value_range()]), ("f", "g"));
        let (content, span) = tree.text(1, &mut test_budget()).unwrap().unwrap();
        assert_eq!((content.as_str(), &text[span]), ("x<<y>", "x&lt;<![CDATA[<y>]]>"));
        assert!(tree.text(3, &mut test_budget()).unwrap().is_none());
    }

    #[test]
    fn malformed_documents_are_refused() {
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
            assert!(matches!(read(text), Err(PlaylistError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn attributes_and_elements_are_bounded_and_depth_is_not() {
        let many: String = (0..MAX_ATTRIBUTES_OF_ELEMENT + 1).map(|n| format!(" a{n}=''")).collect();
        assert!(matches!(read(&format!("<a{many}/>")), Err(PlaylistError::Limit(_))));
        assert!(matches!(read(&format!("<a>{}</a>", "<b/>".repeat(MAX_ELEMENTS))), Err(PlaylistError::Limit(_))));
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        assert_eq!(read(&deep).unwrap().len(), 100_000);
    }
}
