//! Ranges and conditions of a player's request, without I/O (RFC 9110 §13, §14).
//!
//! In: the fields Range, If-Range, If-None-Match and If-Modified-Since, the size and the validators of the resource.
//! Out: which bytes to send, and with which status.
//!
//! 1. A Range that cannot be understood is ignored (§14.2). Of several ranges those beyond the end are left out, and those
//!    that touch become one. If one is left it is served; if more are, all of the resource is, because players never ask for
//!    more than one.
//! 2. If-None-Match goes before If-Modified-Since (§13.2.2), and compares weakly; If-Range compares strongly (§13.1.5).
//! 3. A range beyond the end is answered with 416; one that only ends beyond it is cut.

use std::ops::Range;

use http::HeaderMap;
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE};

/// Which bytes a player asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// All of them, without a word of ranges.
    Whole,
    /// From one offset to another, the last one excluded; none: to the end.
    Part(u64, Option<u64>),
    /// The last ones, so many.
    Last(u64),
}

/// The range lies beyond the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beyond;

impl Wanted {
    /// What the fields ask for; of several ranges all.
    pub(super) fn of(fields: &HeaderMap) -> Self {
        match ranges(fields).as_deref() {
            Some([one]) => *one,
            _ => Self::Whole,
        }
    }

    /// The same where the size is known, and several ranges may come to one.
    ///
    /// # Errors
    /// There are ranges, and all lie beyond the end.
    pub(super) fn of_several(fields: &HeaderMap, total: u64) -> Result<Self, Beyond> {
        let Some(ranges) = ranges(fields) else { return Ok(Self::Whole) };
        let spans = ranges.iter().map(|range| range.within(total));
        let mut spans: Vec<Range<u64>> = spans.filter_map(|span| span.ok().flatten()).collect();
        spans.sort_by_key(|span| span.start);
        let mut joined = spans.into_iter();
        let Some(mut one) = joined.next() else { return Err(Beyond) };
        for next in joined {
            if next.start > one.end {
                return Ok(Self::Whole);
            }
            one.end = one.end.max(next.end);
        }
        Ok(Self::Part(one.start, Some(one.end)))
    }

    /// The bytes of a resource of this size; none: all of it, as a 200.
    ///
    /// # Errors
    /// There are none there.
    pub(super) fn within(self, total: u64) -> Result<Option<Range<u64>>, Beyond> {
        let span = match self {
            Self::Whole => return Ok(None),
            Self::Part(from, to) => from..to.unwrap_or(total).min(total),
            Self::Last(len) => total.saturating_sub(len)..total,
        };
        if span.is_empty() { Err(Beyond) } else { Ok(Some(span)) }
    }
}

/// Whether several ranges are asked for.
pub(super) fn are_several(fields: &HeaderMap) -> bool {
    ranges(fields).is_some_and(|ranges| ranges.len() > 1)
}

fn ranges(fields: &HeaderMap) -> Option<Vec<Wanted>> {
    parse(fields.get(RANGE)?.to_str().ok()?)
}

/// All ranges; none: one of them cannot be understood, or there are more than anybody needs (§14.2 warns of these).
fn parse(text: &str) -> Option<Vec<Wanted>> {
    let (unit, ranges) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let ranges = ranges.split(',').map(str::trim).filter(|range| !range.is_empty()).take(MOST_RANGES + 1);
    let ranges: Vec<Wanted> = ranges.map(parse_one).collect::<Option<_>>()?;
    (1..=MOST_RANGES).contains(&ranges.len()).then_some(ranges)
}

fn parse_one(range: &str) -> Option<Wanted> {
    let (from, last) = range.split_once('-')?;
    match (from.trim(), last.trim()) {
        ("", last) => Some(Wanted::Last(number(last)?)),
        (from, "") => Some(Wanted::Part(number(from)?, None)),
        (from, last) => {
            let (from, last) = (number(from)?, number(last)?);
            (last >= from).then(|| Wanted::Part(from, last.checked_add(1)))
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // More digits than fit are beyond every end.
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether the fields carry a condition that a 304 may answer.
pub(super) fn is_conditional(fields: &HeaderMap) -> bool {
    fields.contains_key(IF_NONE_MATCH) || fields.contains_key(IF_MODIFIED_SINCE)
}

/// Whether the player has the resource already: `ours` are ETag and Last-Modified as the origin sends them.
pub(super) fn is_not_modified(fields: &HeaderMap, ours: &HeaderMap) -> bool {
    if fields.contains_key(IF_NONE_MATCH) {
        let Some(etag) = text(ours, ETAG) else { return false };
        let weak = |tag: &str| tag.trim().strip_prefix("W/").unwrap_or(tag.trim()).to_owned();
        let mut tags = fields.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok()).flat_map(tags);
        return tags.any(|tag| tag == "*" || weak(&tag) == weak(etag));
    }
    let date = |text: Option<&str>| text.and_then(|text| httpdate::parse_http_date(text).ok());
    match (date(text(fields, IF_MODIFIED_SINCE)), date(text(ours, LAST_MODIFIED))) {
        (Some(since), Some(modified)) => modified <= since,
        _ => false,
    }
}

/// Whether the range may be served: without If-Range always, else only if it names the very same resource. `strong`
/// is the validator that the origin's answers prove to be strong.
pub(super) fn if_range_holds(fields: &HeaderMap, strong: Option<&str>) -> bool {
    match fields.get(IF_RANGE) {
        None => true,
        Some(value) => value.to_str().is_ok_and(|value| Some(value.trim()) == strong),
    }
}

/// The entity tags of a list; commas within quotes belong to a tag.
fn tags(list: &str) -> Vec<String> {
    let (mut tags, mut tag, mut quoted) = (Vec::new(), String::new(), false);
    for c in list.chars() {
        quoted ^= c == '"';
        if c == ',' && !quoted {
            tags.push(std::mem::take(&mut tag));
        } else {
            tag.push(c);
        }
    }
    tags.push(tag);
    tags.into_iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect()
}

fn text(fields: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    fields.get(name).and_then(|value| value.to_str().ok())
}

/// chosen: more than programs for pictures and documents ask for at once.
const MOST_RANGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_range_is_understood_or_ignored() {
        for (text, want) in [
            ("bytes=0-", Wanted::Part(0, None)),
            ("bytes=5-9", Wanted::Part(5, Some(10))),
            ("Bytes = 5-5 ", Wanted::Part(5, Some(6))),
            ("bytes=-7", Wanted::Last(7)),
            ("bytes=3-4,10-20", Wanted::Whole),
            ("bytes=3-4, ,", Wanted::Part(3, Some(5))),
            ("bytes=9-5", Wanted::Whole),
            ("bytes=a-5", Wanted::Whole),
            ("bytes=+1-5", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes", Wanted::Whole),
            ("items=1-2", Wanted::Whole),
            ("bytes=0-18446744073709551615", Wanted::Part(0, None)),
            ("bytes=99999999999999999999-", Wanted::Part(u64::MAX, None)),
        ] {
            assert_eq!(Wanted::of(&fields(&[("range", text)])), want, "{text}");
        }
    }

    #[test]
    fn several_ranges_are_one_or_the_whole() {
        let many = format!("bytes={}", "0-1,".repeat(65)).leak();
        for (text, want) in [
            ("bytes=100-101,0-1", Ok(Wanted::Part(0, Some(2)))),
            ("bytes=0-1,2-3", Ok(Wanted::Part(0, Some(4)))),
            ("bytes=5-9,0-7,-200", Ok(Wanted::Part(0, Some(100)))),
            ("bytes=0-1,3-4", Ok(Wanted::Whole)),
            ("bytes=0-1,x", Ok(Wanted::Whole)),
            ("bytes=100-,200-201", Err(Beyond)),
            (many, Ok(Wanted::Whole)),
        ] {
            let fields = fields(&[("range", text)]);
            assert_eq!(Wanted::of_several(&fields, 100), want, "{text}");
            assert_eq!(Wanted::of(&fields), Wanted::Whole);
        }
        assert!(are_several(&fields(&[("range", "bytes=0-1,3-4")])));
        assert!(!are_several(&fields(&[("range", "bytes=0-1")])) && !are_several(&HeaderMap::new()));
    }

    #[test]
    fn a_range_beyond_the_end_is_none_and_one_over_the_end_is_cut() {
        assert_eq!(Wanted::Whole.within(0), Ok(None));
        assert_eq!(Wanted::Part(90, Some(200)).within(100), Ok(Some(90..100)));
        assert_eq!(Wanted::Part(100, None).within(100), Err(Beyond));
        assert_eq!(Wanted::Part(0, None).within(0), Err(Beyond));
        assert_eq!(Wanted::Last(10).within(100), Ok(Some(90..100)));
        assert_eq!(Wanted::Last(1000).within(100), Ok(Some(0..100)));
        assert_eq!(Wanted::Last(0).within(100), Err(Beyond));
    }

    #[test]
    fn conditions_are_compared_as_the_rfc_has_it() {
        let ours = fields(&[("etag", "W/\"a,b\""), ("last-modified", "Sat, 01 Aug 2026 00:00:00 GMT")]);
        for (name, value, want) in [
            ("if-none-match", "\"x\", \"a,b\"", true),
            ("if-none-match", "*", true),
            ("if-none-match", "\"x\"", false),
            ("if-modified-since", "Sat, 01 Aug 2026 00:00:00 GMT", true),
            ("if-modified-since", "Fri, 31 Jul 2026 00:00:00 GMT", false),
            ("if-modified-since", "yesterday", false),
        ] {
            assert_eq!(is_not_modified(&fields(&[(name, value)]), &ours), want, "{name}: {value}");
        }
        let both = [("if-none-match", "\"x\""), ("if-modified-since", "Sat, 01 Aug 2026 00:00:00 GMT")];
        assert!(!is_not_modified(&fields(&both), &ours));
        assert!(if_range_holds(&HeaderMap::new(), None));
        assert!(if_range_holds(&fields(&[("if-range", "\"a\"")]), Some("\"a\"")));
        assert!(!if_range_holds(&fields(&[("if-range", "W/\"a\"")]), Some("\"a\"")));
        assert!(!if_range_holds(&fields(&[("if-range", "\"a\"")]), None));
    }
}
