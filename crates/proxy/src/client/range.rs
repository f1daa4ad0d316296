//! Ranges and conditions of a player's request, without I/O (RFC 9110 §13, §14).
//!
//! Evaluates Range, If-Range, If-None-Match and If-Modified-Since against the size and the validators of the resource,
//! to find the bytes to send and the status.
//!
//! 1. A Range that cannot be parsed is ignored (§14.2). Of several ranges, those beyond the end are dropped and
//!    adjacent ones are merged. If one remains, it is served. If several remain, the whole resource is sent, because
//!    players never request more than one.
//! 2. If-None-Match takes precedence over If-Modified-Since (§13.2.2) and compares weakly; If-Range compares strongly
//!    (§13.1.5).
//! 3. A range beyond the end is answered with 416; one that only ends beyond it is shortened.

use std::ops::Range;

use http::HeaderMap;
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE};

/// The bytes that a player requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestedRange {
    /// The whole resource: there is no usable Range field.
    Full,
    /// From one offset to another, exclusive; `None`: to the end.
    Bytes(u64, Option<u64>),
    /// This many bytes at the end.
    Suffix(u64),
}

/// The range lies beyond the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnsatisfiableRange;

impl RequestedRange {
    /// The range that the fields request; [`Full`](Self::Full) if there are several.
    pub(crate) fn from_headers(fields: &HeaderMap) -> Self {
        match parse_header(fields).as_deref() {
            Some([one]) => *one,
            _ => Self::Full,
        }
    }

    /// Merges several ranges into one, which needs the size of the resource.
    ///
    /// # Errors
    /// There are ranges, and all lie beyond the end.
    pub(crate) fn from_multi_range(fields: &HeaderMap, total: u64) -> Result<Self, UnsatisfiableRange> {
        let Some(ranges) = parse_header(fields) else { return Ok(Self::Full) };
        let resolved = ranges.iter().map(|range| range.resolve(total));
        let mut spans: Vec<Range<u64>> = resolved.filter_map(|span| span.ok().flatten()).collect();
        spans.sort_by_key(|range| range.start);
        let mut remaining = spans.into_iter();
        let Some(mut merged) = remaining.next() else { return Err(UnsatisfiableRange) };
        for next in remaining {
            if next.start > merged.end {
                return Ok(Self::Full);
            }
            merged.end = merged.end.max(next.end);
        }
        Ok(Self::Bytes(merged.start, Some(merged.end)))
    }

    /// The bytes of a resource of this size; `None`: the whole resource, as a 200.
    ///
    /// # Errors
    /// The range lies beyond the end.
    pub(crate) fn resolve(self, total: u64) -> Result<Option<Range<u64>>, UnsatisfiableRange> {
        let range = match self {
            Self::Full => return Ok(None),
            Self::Bytes(from, end) => from..end.unwrap_or(total).min(total),
            Self::Suffix(len) => total.saturating_sub(len)..total,
        };
        if range.is_empty() { Err(UnsatisfiableRange) } else { Ok(Some(range)) }
    }
}

/// Whether several ranges are requested.
pub(crate) fn is_multi_range(fields: &HeaderMap) -> bool {
    parse_header(fields).is_some_and(|ranges| ranges.len() > 1)
}

fn parse_header(fields: &HeaderMap) -> Option<Vec<RequestedRange>> {
    parse_ranges(fields.get(RANGE)?.to_str().ok()?)
}

/// All ranges; `None` if one of them cannot be parsed, or if there are more than a client needs (§14.2 warns of these).
fn parse_ranges(text: &str) -> Option<Vec<RequestedRange>> {
    let (unit, ranges) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let ranges = ranges.split(',').map(str::trim).filter(|range| !range.is_empty()).take(MAX_RANGES + 1);
    let ranges: Vec<RequestedRange> = ranges.map(parse_range).collect::<Option<_>>()?;
    (1..=MAX_RANGES).contains(&ranges.len()).then_some(ranges)
}

fn parse_range(range: &str) -> Option<RequestedRange> {
    let (from, last) = range.split_once('-')?;
    match (from.trim(), last.trim()) {
        ("", last) => Some(RequestedRange::Suffix(parse_offset(last)?)),
        (from, "") => Some(RequestedRange::Bytes(parse_offset(from)?, None)),
        (from, last) => {
            let (from, last) = (parse_offset(from)?, parse_offset(last)?);
            (last >= from).then(|| RequestedRange::Bytes(from, last.checked_add(1)))
        }
    }
}

fn parse_offset(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // A number that does not fit lies beyond the end of every resource.
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether the fields contain a condition that can lead to a 304.
pub(crate) fn is_conditional(fields: &HeaderMap) -> bool {
    fields.contains_key(IF_NONE_MATCH) || fields.contains_key(IF_MODIFIED_SINCE)
}

/// Whether the player's copy is current. `metadata` holds ETag and Last-Modified as the origin server sends them.
pub(crate) fn is_not_modified(fields: &HeaderMap, metadata: &HeaderMap) -> bool {
    if fields.contains_key(IF_NONE_MATCH) {
        let Some(etag) = header_text(metadata, ETAG) else { return false };
        let strip_weak = |tag: &str| tag.trim().strip_prefix("W/").unwrap_or(tag.trim()).to_owned();
        let mut tags =
            fields.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok()).flat_map(parse_entity_tags);
        return tags.any(|tag| tag == "*" || strip_weak(&tag) == strip_weak(etag));
    }
    let parse_date = |text: Option<&str>| text.and_then(|text| httpdate::parse_http_date(text).ok());
    match (parse_date(header_text(fields, IF_MODIFIED_SINCE)), parse_date(header_text(metadata, LAST_MODIFIED))) {
        (Some(since), Some(modified)) => modified <= since,
        _ => false,
    }
}

/// Whether the range may be served: always without If-Range, otherwise only if the field names the same representation.
/// `strong_validator` is the validator that is known to be strong.
pub(crate) fn if_range_holds(fields: &HeaderMap, strong_validator: Option<&str>) -> bool {
    match fields.get(IF_RANGE) {
        None => true,
        Some(value) => value.to_str().is_ok_and(|value| Some(value.trim()) == strong_validator),
    }
}

/// The entity tags of a list. Commas within quotes belong to a tag.
fn parse_entity_tags(list: &str) -> Vec<String> {
    let (mut tags, mut tag, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in list.chars() {
        is_quoted ^= c == '"';
        if c == ',' && !is_quoted {
            tags.push(std::mem::take(&mut tag));
        } else {
            tag.push(c);
        }
    }
    tags.push(tag);
    tags.into_iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect()
}

fn header_text(fields: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    fields.get(name).and_then(|value| value.to_str().ok())
}

/// Our choice: more than image and document viewers request at once.
const MAX_RANGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_range_that_cannot_be_parsed_is_ignored() {
        for (text, want) in [
            ("bytes=0-", RequestedRange::Bytes(0, None)),
            ("bytes=5-9", RequestedRange::Bytes(5, Some(10))),
            ("Bytes = 5-5 ", RequestedRange::Bytes(5, Some(6))),
            ("bytes=-7", RequestedRange::Suffix(7)),
            ("bytes=3-4,10-20", RequestedRange::Full),
            ("bytes=3-4, ,", RequestedRange::Bytes(3, Some(5))),
            ("bytes=9-5", RequestedRange::Full),
            ("bytes=a-5", RequestedRange::Full),
            ("bytes=+1-5", RequestedRange::Full),
            ("bytes=-", RequestedRange::Full),
            ("bytes", RequestedRange::Full),
            ("items=1-2", RequestedRange::Full),
            ("bytes=0-18446744073709551615", RequestedRange::Bytes(0, None)),
            ("bytes=99999999999999999999-", RequestedRange::Bytes(u64::MAX, None)),
        ] {
            assert_eq!(RequestedRange::from_headers(&fields(&[("range", text)])), want, "{text}");
        }
    }

    #[test]
    fn several_ranges_become_one_or_the_whole_resource() {
        let many = format!("bytes={}", "0-1,".repeat(65)).leak();
        for (text, want) in [
            ("bytes=100-101,0-1", Ok(RequestedRange::Bytes(0, Some(2)))),
            ("bytes=0-1,2-3", Ok(RequestedRange::Bytes(0, Some(4)))),
            ("bytes=5-9,0-7,-200", Ok(RequestedRange::Bytes(0, Some(100)))),
            ("bytes=0-1,3-4", Ok(RequestedRange::Full)),
            ("bytes=0-1,x", Ok(RequestedRange::Full)),
            ("bytes=100-,200-201", Err(UnsatisfiableRange)),
            (many, Ok(RequestedRange::Full)),
        ] {
            let fields = fields(&[("range", text)]);
            assert_eq!(RequestedRange::from_multi_range(&fields, 100), want, "{text}");
            assert_eq!(RequestedRange::from_headers(&fields), RequestedRange::Full);
        }
        assert!(is_multi_range(&fields(&[("range", "bytes=0-1,3-4")])));
        assert!(!is_multi_range(&fields(&[("range", "bytes=0-1")])) && !is_multi_range(&HeaderMap::new()));
    }

    #[test]
    fn a_range_beyond_the_end_is_unsatisfiable_and_one_across_it_is_shortened() {
        assert_eq!(RequestedRange::Full.resolve(0), Ok(None));
        assert_eq!(RequestedRange::Bytes(90, Some(200)).resolve(100), Ok(Some(90..100)));
        assert_eq!(RequestedRange::Bytes(100, None).resolve(100), Err(UnsatisfiableRange));
        assert_eq!(RequestedRange::Bytes(0, None).resolve(0), Err(UnsatisfiableRange));
        assert_eq!(RequestedRange::Suffix(10).resolve(100), Ok(Some(90..100)));
        assert_eq!(RequestedRange::Suffix(1000).resolve(100), Ok(Some(0..100)));
        assert_eq!(RequestedRange::Suffix(0).resolve(100), Err(UnsatisfiableRange));
    }

    #[test]
    fn conditions_are_compared_as_in_rfc_9110() {
        let response_fields = fields(&[("etag", "W/\"a,b\""), ("last-modified", "Sat, 01 Aug 2026 00:00:00 GMT")]);
        for (name, value, want) in [
            ("if-none-match", "\"x\", \"a,b\"", true),
            ("if-none-match", "*", true),
            ("if-none-match", "\"x\"", false),
            ("if-modified-since", "Sat, 01 Aug 2026 00:00:00 GMT", true),
            ("if-modified-since", "Fri, 31 Jul 2026 00:00:00 GMT", false),
            ("if-modified-since", "yesterday", false),
        ] {
            assert_eq!(is_not_modified(&fields(&[(name, value)]), &response_fields), want, "{name}: {value}");
        }
        let both = [("if-none-match", "\"x\""), ("if-modified-since", "Sat, 01 Aug 2026 00:00:00 GMT")];
        assert!(!is_not_modified(&fields(&both), &response_fields));
        assert!(if_range_holds(&HeaderMap::new(), None));
        assert!(if_range_holds(&fields(&[("if-range", "\"a\"")]), Some("\"a\"")));
        assert!(!if_range_holds(&fields(&[("if-range", "W/\"a\"")]), Some("\"a\"")));
        assert!(!if_range_holds(&fields(&[("if-range", "\"a\"")]), None));
    }
}
