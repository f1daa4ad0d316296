//! Variables of HLS playlists: definitions, imports, and their expansion in URLs.

use std::borrow::Cow;

use url::Url;

use super::{DEFINE_TAG, attribute_values, lines};
use crate::playlist::parse_budget::{MAX_EXPANDED_URL, ParseBudget, PlaylistError, limit_error, quote_excerpt};
use crate::playlist::text_encoding::percent_encoded;

/// The variables of EXT-X-DEFINE (draft RFC 8216bis section 4.4.2.3).
pub(super) struct Variables<'a>(Vec<Variable<'a>>);

struct Variable<'a> {
    name: &'a str,
    /// `None`: it is imported, and the playlist that defines it is unknown.
    value: Option<Cow<'a, str>>,
    /// It comes from another playlist, or from the query. The player may have a different value.
    is_imported: bool,
}

/// A reference with its variables expanded.
pub(super) struct ExpandedUrl<'a> {
    pub(super) text: Cow<'a, str>,
    /// Imported variables were among them.
    pub(super) is_imported: bool,
}

impl<'a> Variables<'a> {
    pub(super) fn parse(
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
    pub(super) fn defined(self) -> Vec<(String, String)> {
        let defined = self.0.into_iter().filter_map(|variable| Some((variable.name, variable.value?)));
        // No URL can contain a longer one.
        let short =
            defined.filter(|(name, value)| name.len() <= MAX_VARIABLE_NAME && value.len() <= MAX_EXPANDED_URL);
        short.map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
    }

    /// Expands the known variables in a reference. Values are not expanded again: the draft has no nested variables,
    /// and with them a few lines could become gigabytes.
    pub(super) fn expand<'r>(
        &self,
        reference: &'r str,
        budget: &mut ParseBudget,
    ) -> Result<ExpandedUrl<'r>, PlaylistError> {
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

/// Our choice: many times what published playlists define.
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLE_NAME: usize = 256;
