//! The segments of a representation: from a template with numbers or a timeline, or from a list.

use std::ops::Range;
use std::sync::Arc;

use super::own_template::substitute;
use super::{DashRewriter, ElementScope, InheritedValues};
use crate::playlist::parse_budget::{ParseBudget, PlaylistError};
use crate::playlist::segment_index::{
    MAX_SEGMENTS, Rendition, SegmentIndex, SegmentTemplate, SegmentTimeline, SegmentUrls, ticks_to_duration,
};
use crate::playlist::url_rewrite::RewriteContext;
use crate::playlist::xml::ElementId;

impl<'a> DashRewriter<'a> {
    /// Registers the segments of a representation, if they are known.
    pub(super) fn add_representation(
        &mut self,
        id: ElementId,
        scope: &ElementScope<'a>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        if self.out.note.is_some() {
            return Ok(());
        }
        let index = match scope.inherited.segment_list {
            Some(list) => self.list_index(list, &scope.context, budget)?.map(SegmentIndex::List),
            None => self.template_index(id, scope, budget)?,
        };
        if let Some(index) = index {
            if budget.charge_index(index.memory_size()) {
                self.out.renditions.push(Rendition {
                    set: self.adaptation_set_count,
                    index,
                    is_final: self.is_static,
                });
            } else {
                self.out.note = Some(TOO_MANY_SEGMENTS);
            }
        }
        Ok(())
    }

    fn template_index(
        &mut self,
        id: ElementId,
        scope: &ElementScope<'a>,
        budget: &mut ParseBudget,
    ) -> Result<Option<SegmentIndex>, PlaylistError> {
        let tree = self.tree;
        let InheritedValues { period_duration, templates, .. } = &*scope.inherited;
        // Attributes that are missing in an inner template are inherited from an outer one (section 5.3.9.1).
        let inherited_attribute =
            |name: &str| templates.iter().rev().find_map(|level| level.tree.attribute(level.template, name));
        let inherited_number = |name: &str| inherited_attribute(name).and_then(|text| text.parse::<u64>().ok());
        budget.charge_work(templates.len() * 128)?;
        let Some(media) = inherited_attribute("media") else { return Ok(None) };
        let attribute_of = |name| tree.attribute(id, name).unwrap_or_default();
        let media = substitute(&media, "$RepresentationID$", &attribute_of("id"))
            .and_then(|media| substitute(&media, "$Bandwidth$", &attribute_of("bandwidth")));
        let Some(media) = media else {
            self.out.note = Some("URLs that are too long");
            return Ok(None);
        };
        budget.charge_work(media.len())?;
        let Some((prefix, variable, width, suffix)) = split_template(&media) else { return Ok(None) };
        // The URL is resolved with a placeholder for the number, which yields the text before and after it.
        let marked = format!("{prefix}{NUMBER_PLACEHOLDER}{suffix}").replace("$$", "$");
        let Some(address) = scope.context.resolve(&marked, budget)? else { return Ok(None) };
        let Some((prefix, suffix)) = address.as_str().split_once(NUMBER_PLACEHOLDER) else { return Ok(None) };
        let template = SegmentTemplate { prefix: prefix.to_owned(), suffix: suffix.to_owned(), min_digits: width };
        let timescale = inherited_number("timescale").unwrap_or(1).max(1);
        let first = inherited_number("startNumber").unwrap_or(1);
        if let Some(timeline) = templates.iter().rev().find_map(|level| level.timeline) {
            let end = period_duration.map(|total| (total.as_secs_f64() * timescale as f64) as u64);
            let Some(timeline) = self.read_timeline(timeline, end, budget)? else { return Ok(None) };
            return Ok(Some(SegmentIndex::Timeline {
                template,
                by_time: variable == "Time",
                first_number: first,
                timeline,
                timescale,
            }));
        }
        let Some(duration) = inherited_number("duration")
            .filter(|ticks| *ticks > 0)
            .map(|ticks| ticks_to_duration(ticks, timescale))
        else {
            return Ok(None);
        };
        if variable != "Number" {
            return Ok(None);
        }
        let count = period_duration.map(|total| (total.as_secs_f64() / duration.as_secs_f64()).ceil() as u64);
        let last = count.and_then(|count| first.checked_add(count)).map(|end| end.saturating_sub(1));
        Ok(Some(SegmentIndex::Numbered { template, last_number: last, duration }))
    }

    /// Parses a timeline (section 5.3.9.6); `None`: it is too long to be remembered.
    fn read_timeline(
        &mut self,
        id: ElementId,
        end: Option<u64>,
        budget: &mut ParseBudget,
    ) -> Result<Option<Arc<SegmentTimeline>>, PlaylistError> {
        if let Some(cached) = self.timelines.get(&id) {
            return Ok(Some(Arc::clone(cached)));
        }
        let tree = self.tree;
        let (mut timeline, mut next_start) = (SegmentTimeline::default(), 0_u64);
        let mut entries = tree.children_named(id, "S").peekable();
        while let Some(entry) = entries.next() {
            budget.charge_work(tree.attributes(entry).len())?;
            let number = |entry: ElementId, name: &str| {
                tree.attribute(entry, name).and_then(|text| text.parse::<u64>().ok())
            };
            next_start = number(entry, "t").unwrap_or(next_start);
            let Some(ticks) = number(entry, "d").filter(|ticks| *ticks > 0) else { break };
            let repeat_count = tree.attribute(entry, "r").and_then(|text| text.parse::<i64>().ok());
            let count = match repeat_count {
                // A negative count repeats until the next entry or the end of the period. In a period without an end it
                // counts as one.
                Some(repeat) if repeat < 0 => {
                    let run_end = entries.peek().and_then(|next| number(*next, "t")).or(end).unwrap_or(next_start);
                    run_end.saturating_sub(next_start).div_ceil(ticks).max(1)
                }
                repeat => repeat.unwrap_or(0).unsigned_abs().saturating_add(1),
            };
            if !budget.charge_index(SegmentTimeline::run_size()) {
                self.out.note = Some(TOO_MANY_SEGMENTS);
                return Ok(None);
            }
            timeline.push(next_start, ticks, count);
            next_start = next_start.saturating_add(ticks.saturating_mul(count));
        }
        let timeline = Arc::new(timeline);
        self.timelines.insert(id, Arc::clone(&timeline));
        Ok(Some(timeline))
    }

    /// The segments of a list; `None`: there are too many.
    fn list_index(
        &mut self,
        id: ElementId,
        context: &RewriteContext,
        budget: &mut ParseBudget,
    ) -> Result<Option<SegmentUrls>, PlaylistError> {
        let tree = self.tree;
        let number_attribute = |name| tree.attribute(id, name).and_then(|text| text.parse::<u64>().ok());
        let duration = ticks_to_duration(
            number_attribute("duration").unwrap_or_default(),
            number_attribute("timescale").unwrap_or(1),
        );
        let mut list = SegmentUrls::default();
        budget.charge_work(tree.children(id).count())?;
        for segment in tree.children_named(id, "SegmentURL") {
            let media = tree.attribute(segment, "media").unwrap_or_default();
            let Some(url) = context.resolve(&media, budget)? else { continue };
            let range = tree.attribute(segment, "mediaRange");
            self.segment_count += 1;
            if self.segment_count > MAX_SEGMENTS || !budget.charge_index(SegmentUrls::entry_size(&url)) {
                self.out.note = Some(TOO_MANY_SEGMENTS);
                return Ok(None);
            }
            list.push(&url, range.as_deref().and_then(parse_byte_range), duration);
        }
        Ok(Some(list.shrink()))
    }
}

/// Parses `FIRST-LAST`.
fn parse_byte_range(text: &str) -> Option<Range<u64>> {
    let (first, last) = text.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

/// Splits a template at its `$Number$` or `$Time$`: text before, name, number of digits, text after.
pub(super) fn split_template(media: &str) -> Option<(&str, &str, usize, &str)> {
    let mut search_from = 0;
    loop {
        let open = search_from + media.get(search_from..)?.find('$')?;
        let close = open + 1 + media.get(open + 1..)?.find('$')?;
        let inner = media.get(open + 1..close)?;
        let (name, format) = inner.split_once('%').unwrap_or((inner, "01d"));
        if matches!(name, "Number" | "Time") {
            let width = format.strip_suffix('d')?.strip_prefix('0')?.parse().ok().filter(|width| *width <= 20)?;
            return Some((media.get(..open)?, name, width, media.get(close + 1..)?));
        }
        search_from = close + 1;
    }
}

const NUMBER_PLACEHOLDER: &str = "marline-number";
const TOO_MANY_SEGMENTS: &str = "too many segments";
