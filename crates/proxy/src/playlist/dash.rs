//! Rewrites DASH manifests (ISO/IEC 23009-1) so that their URLs lead to the proxy, and extracts the segments of each
//! representation.
//!
//! 1. The [`XmlTree`] locates each value in the text. Only these bytes are changed, and only if the player would
//!    otherwise request something else than the manifest means.
//! 2. URLs are the text of BaseURL, Location, PatchLocation, ContentSteering and ImportedMPD, and the attributes media,
//!    initialization, index, sourceURL, xlink:href, href and dvb:reportingUrl. A base URL applies to everything below
//!    its parent (section 5.6), for the origin server and for the player alike. All other text and attributes get the
//!    mark that keeps players from following them into local networks ([`marks`](super::marks)), in
//!    the form that players read: with references, CDATA sections and comments resolved.
//! 3. If the identification of a representation would turn a rewritten template into a different URL than the manifest
//!    means, the representation gets its own template, which takes precedence over those of the elements above it
//!    (section 5.3.9.1).
//! 4. Time servers (UTCTiming) are queried through the proxy, except where their header field Date is what counts.
//! 5. Segments are known from SegmentTemplate (numbers, or a timeline) and SegmentList. With SegmentBase the player
//!    requests ranges of one file, which need no index.
//! 6. Every step is charged to a [`ParseBudget`]. If the segments of representations exceed its limit for the index,
//!    they are not prefetched; the player still gets the rewritten manifest, and the status has a note.

mod own_template;
mod segments;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::hls::RewrittenPlaylist;
use super::listed_urls::ListedUrls;
use super::marks::TextForm;
use super::parse_budget::{ParseBudget, PlaylistError, limit_error, malformed_error, quote_excerpt};
use super::segment_index::SegmentTimeline;
use super::url_rewrite::{RewriteContext, RewriteResult};
use super::xml::{Attribute, ElementId, XmlTree, html_only_reference};

/// Rewrites a manifest.
///
/// # Errors
/// It is no manifest, is malformed, or exceeds the budget.
pub(crate) fn rewrite(
    text: &str,
    context: &RewriteContext,
    budget: &mut ParseBudget,
) -> Result<RewrittenPlaylist, PlaylistError> {
    // Players build URLs from templates and bases.
    budget.urls = ListedUrls::by_host();
    let tree = XmlTree::parse(text, budget)?;
    budget.charge_work(tree.len())?;
    if let Some(name) = html_only_reference(text) {
        return Err(limit_error(format!("the manifest has the reference `{}`", quote_excerpt(name))));
    }
    if let Some(misspelled) = (0..tree.len()).map(|id| tree.name(id)).find(|name| is_misspelled(name)) {
        return Err(limit_error(format!(
            "`{}` is the name of a known element in another case",
            quote_excerpt(misspelled)
        )));
    }
    if !matches!(tree.name(XmlTree::ROOT), "MPD" | "Period" | "AdaptationSet") {
        return Err(malformed_error(format!(
            "the root element `{}` is not that of a manifest",
            quote_excerpt(tree.name(XmlTree::ROOT))
        )));
    }
    let (source_url, context) = (context.source_url.clone(), Rc::new(context.clone()));
    let text_context = Rc::clone(&context);
    // A fragment of another manifest may be resolved against that manifest's bases.
    let has_other_bases = tree.name(XmlTree::ROOT) != "MPD";
    let (outer_context, inherited) = (Rc::clone(&context), Rc::default());
    let root_scope = ElementScope {
        end: tree.len(),
        outer_context,
        context,
        has_other_bases,
        siblings_have_other_bases: has_other_bases,
        is_within_representation: false,
        base_depth: 0,
        inherited,
    };
    // A dynamic manifest is reloaded again and again (section 5.3.1.2).
    let is_static = tree.attribute(XmlTree::ROOT, "type").as_deref() != Some("dynamic");
    let mut rewriter = DashRewriter {
        tree: &tree,
        text,
        out: RewrittenPlaylist::default(),
        copied_until: 0,
        segment_count: 0,
        adaptation_set_count: 0,
        is_static,
        timelines: BTreeMap::new(),
        attribute_values: BTreeMap::new(),
        pending_edits: BTreeMap::new(),
        text_context: Rc::clone(&text_context),
    };
    // Elements may be nested as deeply as the text is long, so their scopes are kept in a vector and not on the call
    // stack.
    let mut open_scopes = vec![root_scope];
    for id in 0..tree.len() {
        while open_scopes.last().is_some_and(|scope| scope.end <= id) {
            open_scopes.pop();
        }
        let Some(scope) = open_scopes.last() else { break };
        let child_scope = rewriter.visit(id, scope, budget)?;
        open_scopes.push(child_scope);
    }
    rewriter.copy_until(text.len(), budget)?;
    budget.urls.add(&source_url);
    rewriter.out.urls = std::mem::take(&mut budget.urls);
    Ok(rewriter.out)
}

struct DashRewriter<'a> {
    tree: &'a XmlTree<'a>,
    text: &'a str,
    out: RewrittenPlaylist,
    /// The offset up to which the source is in the output.
    copied_until: usize,
    /// The number of segments in all SegmentLists so far.
    segment_count: usize,
    /// The number of adaptation sets so far.
    adaptation_set_count: usize,
    /// The manifest is complete, not that of a live stream.
    is_static: bool,
    /// Parsed timelines by element, because representations share them.
    timelines: BTreeMap<ElementId, Arc<SegmentTimeline>>,
    /// Values that attributes of elements must get which have not been reached yet.
    attribute_values: BTreeMap<(ElementId, &'static str), String>,
    /// Replacements for parts of the text that have not been reached yet, by start offset: end offset and new text.
    pending_edits: BTreeMap<usize, (usize, String)>,
    /// Context for text that is no URL.
    text_context: Rc<RewriteContext>,
}

/// An element that is open.
struct ElementScope<'a> {
    end: ElementId,
    /// The base URL against which its own BaseURL is resolved; `context` applies to what is below it.
    outer_context: Rc<RewriteContext>,
    context: Rc<RewriteContext>,
    /// The player may resolve references below it against another base than `context`.
    has_other_bases: bool,
    /// The same for its siblings and its own BaseURL elements.
    siblings_have_other_bases: bool,
    /// It is a representation or within one, so no further BaseURL follows.
    is_within_representation: bool,
    /// The nesting depth of base URLs.
    base_depth: usize,
    inherited: Rc<InheritedValues<'a>>,
}

/// Values that an element inherits from those above it.
#[derive(Clone, Default)]
struct InheritedValues<'a> {
    period_duration: Option<Duration>,
    /// The innermost templates, in order of nesting.
    templates: Vec<InheritedTemplate<'a>>,
    segment_list: Option<ElementId>,
}

/// A template and its timeline.
#[derive(Clone)]
struct InheritedTemplate<'a> {
    tree: &'a XmlTree<'a>,
    template: ElementId,
    timeline: Option<ElementId>,
    /// The context in which its URLs are rewritten.
    context: Rc<RewriteContext>,
    /// The player may resolve its URLs against another base than `context`.
    has_other_bases: bool,
}

impl<'a> DashRewriter<'a> {
    fn visit(
        &mut self,
        id: ElementId,
        parent_scope: &ElementScope<'a>,
        budget: &mut ParseBudget,
    ) -> Result<ElementScope<'a>, PlaylistError> {
        let (tree, name) = (self.tree, self.tree.name(id));
        // The loops below visit the children several times.
        budget.charge_work(4 * tree.children(id).count())?;
        let outer_context = Rc::clone(&parent_scope.context);
        let mut scope = ElementScope {
            end: tree.next_outside(id),
            context: Rc::clone(&outer_context),
            outer_context,
            has_other_bases: parent_scope.has_other_bases,
            siblings_have_other_bases: parent_scope.has_other_bases,
            is_within_representation: parent_scope.is_within_representation || name == "Representation",
            base_depth: parent_scope.base_depth,
            inherited: Rc::clone(&parent_scope.inherited),
        };
        // If there are several bases, the first one is used: prefetched URLs must be based on one of them.
        let mut bases = tree.children_named(id, "BaseURL");
        let first = bases.next();
        scope.has_other_bases |= bases.next().is_some();
        if let Some(base) = first
            && let Some((base_url, _)) = tree.text(base, budget)?
            && let Some(context) = scope.outer_context.with_base(&base_url, budget)?
        {
            scope.context = Rc::new(context);
            scope.base_depth += 1;
            if scope.base_depth > MAX_BASES {
                return Err(limit_error(format!("more than {MAX_BASES} nested base URLs")));
            }
        } else {
            scope.has_other_bases |= first.is_some();
        }
        self.inherit(id, &mut scope);
        if name == "Representation" {
            self.add_own_template(id, &scope, budget)?;
        }
        for attribute in tree.attributes(id) {
            let value = attribute.value();
            if name == "UTCTiming" && attribute.name == "value" {
                self.write_utc_timing(id, &scope.context, attribute, budget)?;
                continue;
            }
            let address = URL_ATTRIBUTES.iter().find(|address| **address == attribute.name);
            let imported_mpd = Some(&"uri").filter(|uri| name == "ImportedMPD" && attribute.name == **uri);
            // A URN is an identifier, and `resolve-to-zero` is a keyword of xlink.
            let Some(url_attribute) = address.or(imported_mpd).filter(|_| !value.starts_with("urn:")) else {
                self.write_unparsed(&value, attribute.value_range(), budget)?;
                continue;
            };
            if value.is_empty() {
                continue;
            }
            match self.attribute_values.remove(&(id, url_attribute)) {
                Some(replacement) => self.replace(attribute.value_range(), &replacement, budget)?,
                None => {
                    // Where the base of a representation matters, it gets its own copy of an inherited template
                    // ([`Self::add_own_template`]).
                    let is_inherited =
                        !scope.is_within_representation && name != "SegmentTemplate" && *url_attribute != "href";
                    let has_other_bases = scope.has_other_bases || is_inherited;
                    self.write_url((&scope.context, has_other_bases), &value, attribute.value_range(), budget)?;
                }
            }
        }
        let text_context = match name {
            // A BaseURL does not apply to itself or its siblings.
            "BaseURL" => Some((&*parent_scope.outer_context, parent_scope.siblings_have_other_bases)),
            "Location" | "PatchLocation" => Some((&*scope.outer_context, scope.has_other_bases)),
            // Players differ in the base that they use.
            "ContentSteering" | "ImportedMPD" => Some((&*scope.outer_context, true)),
            _ => None,
        };
        if text_context.is_some() && tree.next_outside(id) != id + 1 {
            // Players concatenate the text around nested elements.
            return Err(limit_error(format!("a `{name}` element has elements in it")));
        }
        if tree.has_text(id) {
            self.write_text(id, text_context, budget)?;
        }
        match name {
            "AdaptationSet" => {
                self.adaptation_set_count += 1;
                self.out.can_choose |= tree.children_named(id, "Representation").nth(1).is_some();
            }
            "Representation" => self.add_representation(id, &scope, budget)?,
            _ => {}
        }
        Ok(scope)
    }

    /// Adds the values that an element defines for those below it.
    fn inherit(&self, id: ElementId, scope: &mut ElementScope<'a>) {
        let tree = self.tree;
        let duration = match tree.name(id) {
            "MPD" => tree.attribute(id, "mediaPresentationDuration").as_deref().and_then(parse_duration),
            "Period" => tree.attribute(id, "duration").as_deref().and_then(parse_duration),
            _ => None,
        };
        let template = tree.children_named(id, "SegmentTemplate").next();
        let list = tree.children_named(id, "SegmentList").next();
        if duration.is_none() && template.is_none() && list.is_none() {
            return;
        }
        let inherited = Rc::make_mut(&mut scope.inherited);
        inherited.period_duration = duration.or(inherited.period_duration);
        inherited.segment_list = list.or(inherited.segment_list);
        if let Some(template) = template {
            let timeline = tree.children_named(template, "SegmentTimeline").next();
            let (context, has_other_bases) = (Rc::clone(&scope.context), scope.has_other_bases);
            inherited.templates.push(InheritedTemplate { tree, template, timeline, context, has_other_bases });
            if inherited.templates.len() > MAX_TEMPLATES {
                inherited.templates.remove(0);
            }
        }
    }

    /// Writes the text of an element, which is a URL if there is a context for it.
    fn write_text(
        &mut self,
        id: ElementId,
        context: Option<(&RewriteContext, bool)>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        let tree = self.tree;
        if let Some((text, range)) = tree.text(id, budget)? {
            return match context.filter(|_| !text.is_empty()) {
                Some(context) => self.write_url(context, &text, range, budget),
                None => self.write_unparsed(&text, range, budget),
            };
        }
        for text in tree.own_and_nested_text(id, budget)? {
            if self.text_context.mark_value(&text, budget)?.is_some() {
                return Err(limit_error(format!(
                    "a `{}` element has a URL with elements in it",
                    quote_excerpt(tree.name(id))
                )));
            }
        }
        Ok(())
    }

    /// Writes a value that is no URL, with the marks that it needs.
    fn write_unparsed(
        &mut self,
        value: &str,
        range: Range<usize>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        match self.text_context.mark_value(value, budget)? {
            Some(marked) => self.replace(range, &marked, budget),
            None => Ok(()),
        }
    }

    /// Writes a URL for the player.
    fn write_url(
        &mut self,
        (context, has_other_bases): (&RewriteContext, bool),
        text: &str,
        range: Range<usize>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        match context.rewrite(text, budget)? {
            RewriteResult::Changed(replacement) => self.replace(range, &replacement, budget),
            RewriteResult::Unchanged if is_risky(text, has_other_bases) => {
                budget.charge_work(text.len())?;
                match context.player_url.join(text) {
                    Ok(absolute) => self.replace(range, absolute.as_str(), budget),
                    Err(_) => Ok(()),
                }
            }
            RewriteResult::Unchanged if range.start >= self.copied_until => {
                self.copy_until(range.start, budget)?;
                budget.write(&mut self.out.text, self.text.get(range.clone()).unwrap_or_default())?;
                self.copied_until = range.end;
                Ok(())
            }
            RewriteResult::Unchanged => Ok(()),
            RewriteResult::NotAUrl => self.write_unparsed(text, range, budget),
        }
    }

    /// Rewrites the servers of UTCTiming (section 5.8.4.11): a list of URLs for the schemes over HTTP.
    fn write_utc_timing(
        &mut self,
        id: ElementId,
        context: &RewriteContext,
        value: &Attribute<'_>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        let scheme = self.tree.attribute(id, "schemeIdUri").unwrap_or_default();
        let (text, mut rewritten) = (value.value(), Vec::new());
        let Some(kind) = scheme.strip_prefix("urn:mpeg:dash:utc:http-") else {
            return self.write_unparsed(&text, value.value_range(), budget);
        };
        for address in text.split_ascii_whitespace() {
            let not_proxied = if kind.starts_with("head") {
                // The Date field of the response counts, which the proxy would set itself.
                context.resolve(address, budget)?.map_or_else(|| address.to_owned(), String::from)
            } else {
                match context.rewrite(address, budget)? {
                    RewriteResult::Changed(replacement) => {
                        rewritten.push(replacement);
                        continue;
                    }
                    RewriteResult::Unchanged if is_risky(address, true) => {
                        rewritten.extend(context.player_url.join(address).ok().map(String::from));
                        continue;
                    }
                    RewriteResult::Unchanged | RewriteResult::NotAUrl => address.to_owned(),
                }
            };
            // A URL that is not rewritten may still lead to the proxy.
            rewritten.push(self.text_context.mark_value(&not_proxied, budget)?.unwrap_or(not_proxied));
        }
        let joined = rewritten.join(" ");
        if joined == text { Ok(()) } else { self.replace(value.value_range(), &joined, budget) }
    }

    /// Replaces a part of the source that follows all previous replacements.
    fn replace(
        &mut self,
        range: Range<usize>,
        replacement: &str,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        if range.start < self.copied_until {
            // The range overlaps a previous replacement.
            return Ok(());
        }
        self.copy_until(range.start, budget)?;
        budget.write(&mut self.out.text, &quick_xml::escape::escape(replacement))?;
        self.copied_until = range.end;
        self.out.changed_urls += 1;
        Ok(())
    }

    /// Copies the source up to an offset, with the pending edits in between.
    fn copy_until(&mut self, until: usize, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        while let Some((position, (end, text))) =
            self.pending_edits.first_key_value().map(|(at, edit)| (*at, edit.clone()))
        {
            if position > until || end > until {
                break;
            }
            self.pending_edits.pop_first();
            if position >= self.copied_until {
                self.copy_text(position, budget)?;
                budget.write(&mut self.out.text, &text)?;
                self.copied_until = end;
            }
        }
        self.copy_text(until, budget)
    }

    fn copy_text(&mut self, until: usize, budget: &mut ParseBudget) -> Result<(), PlaylistError> {
        let text = self.text.get(self.copied_until..until).unwrap_or_default();
        self.out.changed_urls +=
            self.text_context.write_unparsed(&mut self.out.text, (text, TextForm::Value), budget)?;
        self.copied_until = until;
        Ok(())
    }
}

/// Whether a relative URL could become a request to the proxy for something else if the player resolves it against
/// another base, or with a different name substituted. `has_other_bases`: such bases are possible.
fn is_risky(text: &str, has_other_bases: bool) -> bool {
    let leaves_directory = || {
        ["..", "%2e", "%2E"].iter().any(|parent_segment| text.contains(parent_segment))
            || text.contains(char::is_control)
    };
    text.contains(':') || has_other_bases && leaves_directory()
}

fn is_misspelled(name: &str) -> bool {
    KNOWN_ELEMENTS.iter().any(|known| name.eq_ignore_ascii_case(known) && name != *known)
}

/// Parses a duration of XML Schema (`PT1H2M3.5S`). Years and months are not supported, because no film is that long.
fn parse_duration(text: &str) -> Option<Duration> {
    let (mut total, mut digits, mut is_in_time_part) = (0.0, String::new(), false);
    for c in text.strip_prefix('P')?.chars() {
        let unit = match (c, is_in_time_part) {
            ('T', _) => {
                is_in_time_part = true;
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

/// Attributes whose value is a URL.
const URL_ATTRIBUTES: [&str; 6] = ["media", "initialization", "index", "sourceURL", "href", "reportingUrl"];
/// Attributes of SegmentTemplate with URLs.
const TEMPLATE_ATTRIBUTES: [&str; 3] = ["media", "initialization", "index"];
/// Elements that matter here. Some players ignore the case of their names.
const KNOWN_ELEMENTS: [&str; 17] = [
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
/// The standard has four levels with base URLs. Each nested one costs as much memory as the URL is long.
const MAX_BASES: usize = 16;
/// The standard has three levels with templates.
const MAX_TEMPLATES: usize = 4;

#[cfg(test)]
mod tests;
