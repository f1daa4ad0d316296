//! Own templates of representations, which replace an inherited template that the player would expand to another URL than
//! the manifest means.

use std::borrow::Cow;
use std::rc::Rc;

use super::{DashRewriter, ElementScope, TEMPLATE_ATTRIBUTES, is_risky};
use crate::playlist::parse_budget::{MAX_EXPANDED_URL, ParseBudget, PlaylistError, limit_error};
use crate::playlist::url_rewrite::RewriteResult;
use crate::playlist::xml::ElementId;

impl<'a> DashRewriter<'a> {
    /// Gives a representation its own template if the player would build a different URL from an inherited one than is
    /// meant.
    pub(super) fn add_own_template(
        &mut self,
        id: ElementId,
        scope: &ElementScope<'a>,
        budget: &mut ParseBudget,
    ) -> Result<(), PlaylistError> {
        let tree = self.tree;
        let attribute_of = |name| tree.attribute(id, name).unwrap_or_default();
        let (identification, bandwidth) = (attribute_of("id"), attribute_of("bandwidth"));
        let has_no_url_characters =
            |text: &str| !text.contains(['/', '\\', ':', '?', '#', '%', '.', '\t', '\n', '\r']);
        let are_names_plain = has_no_url_characters(&identification) && has_no_url_characters(&bandwidth);
        let expand = |template: &str| {
            let template = substitute(template, "$RepresentationID$", &identification)?;
            substitute(&template, "$Bandwidth$", &bandwidth)
        };
        let (mut new_attributes, inherited) = (String::new(), Rc::clone(&scope.inherited));
        let own_template = tree.children_named(id, "SegmentTemplate").next();
        budget.charge_work(inherited.templates.len() * 3)?;
        for name in TEMPLATE_ATTRIBUTES {
            let inherited_value = inherited
                .templates
                .iter()
                .rev()
                .find_map(|source| Some((source, tree.attribute(source.template, name)?)));
            let Some((source, template)) = inherited_value.filter(|(_, template)| !template.is_empty()) else {
                continue;
            };
            let is_other_base =
                scope.has_other_bases && !source.has_other_bases || !Rc::ptr_eq(&source.context, &scope.context);
            let misses = |name: &str, value: &str| value.is_empty() && template.contains(name);
            let is_safe = are_names_plain
                && !misses("$RepresentationID$", &identification)
                && !misses("$Bandwidth$", &bandwidth);
            if is_safe && !is_other_base {
                continue;
            }
            // What the player gets from the inherited template as rewritten must equal what the original one means.
            let written = match source.context.rewrite(&template, budget)? {
                RewriteResult::Changed(replacement) => Cow::Owned(replacement),
                RewriteResult::Unchanged if is_safe && !is_risky(&template, true) => continue,
                RewriteResult::Unchanged | RewriteResult::NotAUrl => Cow::Borrowed(&*template),
            };
            let (Some(intended), Some(resulting)) = (expand(&template), expand(&written)) else {
                return Err(limit_error("the identification of a representation makes a URL too long"));
            };
            let resolve = |text: &str| scope.context.player_url.join(text).ok().map(String::from);
            let expected = match scope.context.rewrite(&intended, budget)? {
                RewriteResult::Changed(replacement) => Some(replacement),
                RewriteResult::Unchanged => resolve(&intended),
                RewriteResult::NotAUrl => None,
            };
            budget.charge_work(written.len() + intended.len())?;
            let is_risky = is_risky(&template, scope.has_other_bases) || is_risky(&intended, scope.has_other_bases);
            let Some(replacement) =
                expected.filter(|replacement| is_risky || resolve(&resulting).as_ref() != Some(replacement))
            else {
                continue;
            };
            if own_template == Some(source.template) {
                self.attribute_values.insert((source.template, name), replacement);
            } else {
                new_attributes.push_str(&format!(" {name}=\"{}\"", quick_xml::escape::escape(&replacement)));
            }
        }
        if new_attributes.is_empty() {
            return Ok(());
        }
        self.out.changed_urls += 1;
        if let Some(inner) = own_template {
            let insert_at = tree.name_end(inner);
            self.pending_edits.insert(insert_at, (insert_at, new_attributes));
            return Ok(());
        }
        let name = tree.qualified_name(id);
        let template = match name.rsplit_once(':') {
            Some((prefix, _)) => format!("<{prefix}:SegmentTemplate{new_attributes}/>"),
            None => format!("<SegmentTemplate{new_attributes}/>"),
        };
        let content = tree.content(id);
        let end_tag_start = content.start.saturating_sub("/>".len());
        if self.text.get(end_tag_start..content.start) == Some("/>") {
            self.pending_edits.insert(end_tag_start, (content.start, format!(">{template}</{name}>")));
        } else {
            self.pending_edits.insert(content.end, (content.end, template));
        }
        Ok(())
    }
}

/// Substitutes a value for a name; `None`: the result would be too long.
pub(super) fn substitute(text: &str, name: &str, value: &str) -> Option<String> {
    let count = text.matches(name).count();
    let len = text.len().checked_add(count.checked_mul(value.len())?)?;
    (len <= MAX_EXPANDED_URL + count * name.len()).then(|| text.replace(name, value))
}
