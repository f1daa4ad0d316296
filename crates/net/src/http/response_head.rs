//! Parses the fields of a response head that affect how the response is used.
//!
//! The result is core's [`ResponseHead`], the framing of the body, and the fields that only the driver can interpret
//! (Location, Content-Disposition).
//!
//! 1. The framing of the body must be unambiguous: conflicting lengths and unknown transfer codings end the
//!    connection (RFC 9112 section 6.3).
//! 2. Optional information is ignored if it is malformed: an impossible Content-Range or a weak validator counts as
//!    absent (RFC 9110 section 8.8.1). A Content-Range is accepted in every spelling with an unambiguous meaning.
//! 3. If a field that must be unique occurs twice, the first one counts, unless rule 1 applies.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use marline_core::fetch::{ByteRange, ConnError, ConnErrorKind, ContentRange, ResponseHead, Validator};
use marline_core::units::DataSize;
use percent_encoding::percent_encode_byte;

use super::conn_error;
use crate::cookies;

/// How the end of a body is determined (RFC 9112 section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    /// By this number of bytes.
    Length(u64),
    /// By the chunked coding.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ParsedHead {
    pub(super) head: ResponseHead,
    pub(super) framing: Framing,
    pub(super) location: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) meta: ResponseMeta,
}

/// The fields that describe a body, for programs that forward it; each as it was sent. No decision depends on them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseMeta {
    /// The Content-Type field.
    pub content_type: Option<String>,
    /// The ETag field, also if it is weak.
    pub etag: Option<String>,
    /// The Last-Modified field.
    pub last_modified: Option<String>,
    /// The Content-Encoding field, unless it is `identity`.
    pub content_encoding: Option<String>,
    /// The values of all Set-Cookie fields. Bytes that are not UTF-8 are encoded as in the cookie jar.
    pub set_cookies: Vec<String>,
    /// The Link fields that contain mirrors (RFC 6249).
    pub links: Vec<String>,
    /// The Repr-Digest fields (RFC 9530).
    pub repr_digests: Vec<String>,
    /// The Digest fields (RFC 3230).
    pub digests: Vec<String>,
}

/// The raw fields, which are collected before they are interpreted together.
#[derive(Default)]
struct HeadFields<'a> {
    content_length: Option<u64>,
    content_range: Option<&'a str>,
    content_type: Option<&'a str>,
    etag: Option<&'a str>,
    last_modified: Option<SystemTime>,
    last_modified_text: Option<&'a str>,
    date: Option<SystemTime>,
    /// Accept-Ranges is `none`.
    refuses_ranges: bool,
    content_encodings: Vec<&'a str>,
    retry_after: Option<&'a str>,
    has_close: bool,
    has_keep_alive: bool,
    is_chunked: bool,
    location: Option<String>,
    content_disposition: Option<String>,
    set_cookies: Vec<Cow<'a, str>>,
    links: Vec<&'a str>,
    repr_digests: Vec<&'a str>,
    digests: Vec<&'a str>,
}

/// Parses the head of a final response. `persistent` is false for HTTP/1.0; `now` replaces a missing Date field.
///
/// # Errors
/// The framing of the body is ambiguous.
pub(super) fn parse_head<'a>(
    status: u16,
    persistent: bool,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Result<ParsedHead, ConnError> {
    let mut collected = HeadFields::default();
    for (name, value) in fields {
        collected.add(name, value)?;
    }
    let has_no_body = matches!(status, 204 | 304);
    let framing = match (has_no_body, collected.is_chunked, collected.content_length) {
        (true, ..) => Framing::Length(0),
        (_, true, _) => Framing::Chunked,
        (.., Some(length)) => Framing::Length(length),
        _ => Framing::UntilClose,
    };
    let date = collected.date;
    let head = ResponseHead {
        status,
        length: if let Framing::Length(n) = framing { Some(DataSize::from_bytes(n)) } else { None },
        range: collected.content_range.filter(|_| matches!(status, 200 | 206 | 416)).and_then(parse_content_range),
        validator: collected.validator(),
        last_modified: collected.plausible_last_modified(),
        refuses_ranges: collected.refuses_ranges,
        is_encoded: !collected.content_encodings.is_empty(),
        retry_after: collected.retry_after.and_then(|text| retry_delay(text, date.unwrap_or(now))),
        closes_connection: collected.has_close
            || (!persistent && !collected.has_keep_alive)
            || framing == Framing::UntilClose,
        location: None,
        has_location: collected.location.is_some(),
        is_html_page: false,
    };
    let meta = collected.response_meta();
    Ok(ParsedHead {
        head,
        framing,
        location: collected.location,
        content_disposition: collected.content_disposition,
        meta,
    })
}

impl<'a> HeadFields<'a> {
    fn add(&mut self, name: &str, value: &'a [u8]) -> Result<(), ConnError> {
        let text = std::str::from_utf8(value).ok().map(str::trim);
        let is_field = |field_name: &str| name.eq_ignore_ascii_case(field_name);
        if is_field("content-length") {
            return self.add_content_length(text);
        }
        if is_field("transfer-encoding") {
            return self.add_transfer_encoding(text);
        }
        if is_field("content-disposition") {
            let text = || unfolded(&String::from_utf8_lossy(value));
            self.content_disposition.get_or_insert_with(text);
        }
        if is_field("location") && !value.trim_ascii().is_empty() {
            self.location.get_or_insert_with(|| unfolded(&url_text(value)));
        } else if is_field("set-cookie") && self.set_cookies.len() < MAX_COOKIES && !value.contains(&b'\n') {
            self.set_cookies.push(cookies::cookie_text(value.trim_ascii()));
        }
        let Some(text) = text else { return Ok(()) };
        if is_field("content-range") {
            self.content_range.get_or_insert(text);
        } else if text.contains(['\r', '\n']) {
            // RFC 9112 section 5.2 forbids folded lines. A folded value of any of these fields is ignored.
        } else if is_field("content-type") {
            self.content_type.get_or_insert(text);
        } else if is_field("etag") {
            self.etag.get_or_insert(text);
        } else if is_field("last-modified") {
            self.last_modified_text.get_or_insert(text);
            self.last_modified = self.last_modified.or_else(|| httpdate::parse_http_date(text).ok());
        } else if is_field("date") {
            self.date = self.date.or_else(|| httpdate::parse_http_date(text).ok());
        } else if is_field("accept-ranges") {
            self.refuses_ranges = text.eq_ignore_ascii_case("none");
        } else if is_field("content-encoding") {
            if tokens(text).any(|token| !token.eq_ignore_ascii_case("identity")) {
                // Several fields form one list (RFC 9110 section 5.2).
                self.content_encodings.push(text);
            }
        } else if is_field("retry-after") {
            self.retry_after.get_or_insert(text);
        } else if is_field("connection") {
            self.has_close |= tokens(text).any(|token| token.eq_ignore_ascii_case("close"));
            self.has_keep_alive |= tokens(text).any(|token| token.eq_ignore_ascii_case("keep-alive"));
        } else if is_field("link") && text.contains("duplicate") && self.links.len() < MAX_FIELD_VALUES {
            self.links.push(text);
        } else if is_field("repr-digest") && self.repr_digests.len() < MAX_FIELD_VALUES {
            self.repr_digests.push(text);
        } else if is_field("digest") && self.digests.len() < MAX_FIELD_VALUES {
            self.digests.push(text);
        }
        Ok(())
    }

    fn add_content_length(&mut self, text: Option<&str>) -> Result<(), ConnError> {
        let invalid =
            || conn_error(ConnErrorKind::Protocol, "the server sent a Content-Length that is not a number");
        for part in text.ok_or_else(invalid)?.split(',') {
            let length = parse_lenient_decimal(part.trim()).ok_or_else(invalid)?;
            if self.content_length.is_some_and(|known| known != length) {
                return Err(conn_error(ConnErrorKind::Protocol, "the server sent two different Content-Lengths"));
            }
            self.content_length = Some(length);
        }
        Ok(())
    }

    fn add_transfer_encoding(&mut self, text: Option<&str>) -> Result<(), ConnError> {
        // The same field twice counts once. The coding twice within one field would be a different coding.
        if self.is_chunked && text.is_some_and(|text| text.trim().eq_ignore_ascii_case("chunked")) {
            return Ok(());
        }
        for coding in tokens(text.unwrap_or("binary")) {
            match coding {
                // It means no coding (RFC 2616 section 3.6).
                _ if coding.eq_ignore_ascii_case("identity") => {}
                _ if coding.eq_ignore_ascii_case("chunked") && !self.is_chunked => self.is_chunked = true,
                _ => {
                    let text = format!("the server sent Transfer-Encoding `{coding:.40}`");
                    return Err(conn_error(ConnErrorKind::Protocol, text));
                }
            }
        }
        Ok(())
    }

    fn response_meta(&self) -> ResponseMeta {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let owned_all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        ResponseMeta {
            content_type: owned(self.content_type),
            etag: owned(self.etag),
            last_modified: owned(self.last_modified_text),
            content_encoding: (!self.content_encodings.is_empty()).then(|| self.content_encodings.join(", ")),
            set_cookies: self.set_cookies.iter().map(|text| text.clone().into_owned()).collect(),
            links: owned_all(&self.links),
            repr_digests: owned_all(&self.repr_digests),
            digests: owned_all(&self.digests),
        }
    }

    fn validator(&self) -> Option<Validator> {
        if let Some(etag) = self.etag.filter(|etag| is_strong_etag(etag)) {
            return Some(Validator::Etag(etag.to_owned()));
        }
        self.strong_date().map(|text| Validator::LastModified(text.to_owned()))
    }

    /// Last-Modified, in addition to an ETag. File systems and builds without a clock give all files the same date;
    /// such a date does not distinguish versions.
    fn plausible_last_modified(&self) -> Option<String> {
        let is_plausible = self.last_modified?.duration_since(SystemTime::UNIX_EPOCH).ok()? >= EARLIEST_DATE;
        self.strong_date().filter(|_| is_plausible).map(str::to_owned)
    }

    /// Last-Modified, if it is a strong validator.
    fn strong_date(&self) -> Option<&'a str> {
        let age = self.date?.duration_since(self.last_modified?).ok()?;
        self.last_modified_text.filter(|_| age >= MIN_STRONG_AGE)
    }
}

/// Parses `bytes 0-9/20`, `bytes 0-9/*` or `bytes */20` (RFC 9110 section 14.4); `None` for impossible values.
/// Servers also write `bytes=0-9/20`, `bytes: 0-9/20` and `0-9/20`, put blanks around the numbers, and omit the
/// total, or the last byte if it is the last one of the file.
fn parse_content_range(text: &str) -> Option<ContentRange> {
    let unit = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (unit, remaining) = text.split_at(unit);
    if !unit.is_empty() && !unit.eq_ignore_ascii_case("bytes") && !unit.eq_ignore_ascii_case("byte") {
        return None;
    }
    let remaining = remaining.trim_start();
    let remaining = remaining.strip_prefix(['=', ':']).unwrap_or(remaining);
    let (range, total) = remaining.split_once('/').unwrap_or((remaining, "*"));
    let (range, total) = (range.trim(), total.trim());
    let total = if total == "*" { None } else { Some(parse_decimal(total)?) };
    let size = total.map(DataSize::from_bytes);
    if range == "*" {
        return Some(ContentRange { range: None, total: Some(size?) });
    }
    let (first, last) = range.split_once('-')?;
    let first = parse_decimal(first.trim())?;
    let end = match last.trim() {
        "" => total?,
        last => parse_decimal(last)?.checked_add(1)?,
    };
    if first == end && total == Some(end) {
        return Some(ContentRange { range: None, total: size });
    }
    if end <= first || total.is_some_and(|total| end > total) {
        return None;
    }
    Some(ContentRange { range: Some(ByteRange::new(first, end)), total: size })
}

/// Parses seconds or a date (RFC 9110 section 10.2.3); a date in the past means no delay.
fn retry_delay(text: &str, now: SystemTime) -> Option<Duration> {
    if let Some(seconds) = parse_decimal(text) {
        return Some(Duration::from_secs(seconds));
    }
    let retry_at = httpdate::parse_http_date(text).ok()?;
    Some(retry_at.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Whether an entity tag is strong and valid: in quotes, without a quote, blank or control character between them
/// (RFC 9110 section 8.8.3).
fn is_strong_etag(etag: &str) -> bool {
    let inner = etag.strip_prefix('"').and_then(|remaining| remaining.strip_suffix('"'));
    inner.is_some_and(|inner| inner.bytes().all(|b| b > b' ' && b != b'"' && b != 0x7f))
}

/// Parses decimal digits only: no sign, no blank.
fn parse_decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Parses a length as curl does: with a plus sign, or with trailing text, as in `600 bytes`, `600B`, `600.0` and
/// `600;x=1`. `None` if it may mean another number.
fn parse_lenient_decimal(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, remaining) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let is_harmless = remaining.starts_with(';')
        || remaining.strip_prefix('.').is_some_and(|zeros| zeros.bytes().all(|byte| byte == b'0'))
        || !remaining.contains(|c: char| c.is_ascii_digit());
    parse_decimal(digits).filter(|_| is_harmless)
}

/// The URL in a field. Bytes that are not UTF-8 are percent-encoded, as in browsers and curl.
fn url_text(value: &[u8]) -> String {
    let encode = |text: &mut String, byte: &u8| match byte {
        0x80.. => text.push_str(percent_encode_byte(*byte)),
        _ => text.push(char::from(*byte)),
    };
    let text = std::str::from_utf8(value).map(str::to_owned).unwrap_or_else(|_| {
        let mut text = String::with_capacity(value.len());
        value.iter().for_each(|byte| encode(&mut text, byte));
        text
    });
    text.trim().to_owned()
}

/// Joins the continuation lines of a field's value.
fn unfolded(text: &str) -> String {
    let lines: Vec<&str> = text.split(['\r', '\n']).map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.len() < 2 { text.to_owned() } else { lines.join(" ") }
}

fn tokens(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|token| !token.is_empty())
}

/// From this age on, Last-Modified is a strong validator: a change within the same second and a difference between
/// two clocks are excluded (RFC 9110 section 8.8.2.2; the minute is from RFC 7232 section 2.2.2).
const MIN_STRONG_AGE: Duration = Duration::from_secs(60);
/// 1 January 1990, before the first web server. It is later than the epochs of Unix (1970) and of FAT and ZIP (1980).
const EARLIEST_DATE: Duration = Duration::from_secs(631_152_000);

/// Maximum of one response. RFC 6265 section 6.1 requires at least this number per domain.
const MAX_COOKIES: usize = 50;
/// Our choice: mirror networks list several tens of mirrors, in one field or in one field each.
const MAX_FIELD_VALUES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> Result<ParsedHead, ConnError> {
        let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        parse_head(status, true, fields, SystemTime::UNIX_EPOCH)
    }

    fn content_range(first: u64, end: u64, total: Option<u64>) -> Option<ContentRange> {
        Some(ContentRange { range: Some(ByteRange::new(first, end)), total: total.map(DataSize::from_bytes) })
    }

    #[test]
    fn locations_and_cookies_that_are_not_utf_8_are_accepted() {
        for (sent, want) in [
            (&b"/f\xe9/x?q=\xff"[..], "/f%E9/x?q=%FF"),
            ("/f\u{e9}/x".as_bytes(), "/f\u{e9}/x"),
            (b" /plain \t", "/plain"),
            (b"http://h/\xc3/\xe9\r\n a", "http://h/%C3/%E9 a"),
        ] {
            let fields = [("Location", sent), ("Set-Cookie", &b"k=\xe9"[..]), ("Set-Cookie", b"l=1")];
            let parsed = parse_head(302, true, fields.into_iter(), SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(parsed.location.as_deref(), Some(want));
            assert!(parsed.head.has_location);
            assert_eq!(parsed.meta.set_cookies, ["k=\u{f7e9}", "l=1"]);
        }
    }

    #[test]
    fn a_content_range_is_parsed_or_ignored() {
        for (text, want) in [
            ("bytes 0-9/20", content_range(0, 10, Some(20))),
            ("Bytes 0-0/1", content_range(0, 1, Some(1))),
            ("bytes 5-9/*", content_range(5, 10, None)),
            ("bytes */20", Some(ContentRange { range: None, total: Some(DataSize::from_bytes(20)) })),
            ("bytes */*", None),
            ("bytes 9-5/20", None),
            ("bytes 0-20/20", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes 0-9/-20", None),
            ("bytes +0-9/20", None),
            ("bytes 0-9", content_range(0, 10, None)),
            ("items 0-9/20", None),
            ("bytes=0-9/20", content_range(0, 10, Some(20))),
            ("bytes: 0-9/20", content_range(0, 10, Some(20))),
            ("BYTES  0 - 9 / 20", content_range(0, 10, Some(20))),
            ("bytes:0-9/20", content_range(0, 10, Some(20))),
            ("bytes = 0-9/*", content_range(0, 10, None)),
            ("0-9/20", content_range(0, 10, Some(20))),
            ("bytes 5-/20", content_range(5, 20, Some(20))),
            ("bytes 4-/4", Some(ContentRange { range: None, total: Some(DataSize::from_bytes(4)) })),
            ("*/20", Some(ContentRange { range: None, total: Some(DataSize::from_bytes(20)) })),
            ("bytes 5-/*", None),
            ("bytes==0-9/20", None),
            ("bytes 0-9/20/30", None),
            ("bytes 0x0-9/20", None),
            ("bytes -9/20", None),
            ("none", None),
            ("", None),
        ] {
            assert_eq!(head(206, &[("Content-Range", text)]).expect("read").head.range, want, "{text}");
        }
        // A part of the file with status 200.
        assert_eq!(
            head(200, &[("Content-Range", "bytes 0-9/20")]).expect("read").head.range,
            content_range(0, 10, Some(20))
        );
        assert_eq!(head(404, &[("Content-Range", "bytes 0-9/20")]).expect("read").head.range, None);
    }

    #[test]
    fn conflicting_lengths_are_rejected_and_equal_ones_are_accepted() {
        for (values, want) in [
            (&["5"][..], Some(5)),
            (&["5", "5"], Some(5)),
            (&["5, 5"], Some(5)),
            (&["5", "6"], None),
            (&["5,6"], None),
            (&["-5"], None),
            (&["+5"], Some(5)),
            (&["5 bytes"], Some(5)),
            (&["5 5"], None),
            (&["++5"], None),
            (&["5bytes"], Some(5)),
            (&["5;x=1"], Some(5)),
            (&["5.0"], Some(5)),
            (&["5.5"], None),
            (&["0x5"], None),
            (&["5e1"], None),
            (&["bytes 5"], None),
            (&["+5", "6"], None),
            (&[""], None),
            (&["18446744073709551616"], None),
        ] {
            let fields: Vec<(&str, &str)> = values.iter().map(|value| ("content-length", *value)).collect();
            let got = head(200, &fields).ok().map(|answer| answer.framing);
            assert_eq!(got, want.map(Framing::Length), "{values:?}");
        }
    }

    #[test]
    fn the_framing_follows_the_protocol() {
        let chunked = ("transfer-encoding", "Chunked");
        assert_eq!(head(200, &[chunked, ("content-length", "5")]).expect("read").framing, Framing::Chunked);
        assert_eq!(head(200, &[chunked]).expect("read").head.length, None);
        assert_eq!(head(304, &[("content-length", "5")]).expect("read").framing, Framing::Length(0));
        assert_eq!(head(200, &[]).expect("read").framing, Framing::UntilClose);
        assert!(head(200, &[]).expect("read").head.closes_connection);
        for bad in ["gzip, chunked", "chunked, chunked", "x"] {
            assert!(head(200, &[("transfer-encoding", bad)]).is_err(), "{bad}");
        }
        let identity = ("transfer-encoding", "identity");
        assert_eq!(head(200, &[identity, ("content-length", "5")]).expect("read").framing, Framing::Length(5));
        assert_eq!(head(200, &[chunked, chunked]).expect("read").framing, Framing::Chunked);
        assert!(head(200, &[chunked, ("transfer-encoding", "gzip")]).is_err());
    }

    #[test]
    fn only_strong_validators_are_kept() {
        let modified = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let date = |text| ("date", text);
        let etag = |text| ("etag", text);
        let strong = Some(Validator::Etag("\"a\"".into()));
        let dated = Some(Validator::LastModified(modified.1.into()));
        for (fields, want) in [
            (&[etag("\"a\""), modified][..], strong),
            (&[etag("W/\"a\"")], None),
            (&[etag("a")], None),
            (&[etag("\"")], None),
            (&[etag("\"a\"b\"")], None),
            (&[modified], None),
            (&[modified, date("Sun, 06 Nov 1994 08:50:36 GMT")], None),
            (&[modified, date("Sun, 06 Nov 1994 08:50:37 GMT")], dated.clone()),
            (&[modified, date("Sunday, 06-Nov-94 08:50:37 GMT")], dated.clone()),
            (&[etag("W/\"a\""), modified, date("Sun Nov  6 08:50:37 1994")], dated),
            (&[("last-modified", "yesterday"), date("Sun, 06 Nov 1994 08:50:37 GMT")], None),
        ] {
            assert_eq!(head(200, fields).expect("read").head.validator, want, "{fields:?}");
        }
    }

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (text, want) in [
            ("120", Some(120)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:40:37 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let got = head(503, &[date, ("retry-after", text)]).expect("read").head.retry_after;
            assert_eq!(got, want.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn the_other_fields_are_parsed() {
        let parsed = head(
            302,
            &[
                ("CONNECTION", "x, Close"),
                ("Accept-Ranges", "none"),
                ("Content-Encoding", "gzip"),
                ("Location", " /b "),
                ("Content-Disposition", "attachment"),
                ("Content-Length", "0"),
            ],
        )
        .expect("read");
        assert!(parsed.head.closes_connection && parsed.head.refuses_ranges && parsed.head.is_encoded);
        assert_eq!(parsed.meta.content_encoding.as_deref(), Some("gzip"));
        assert_eq!(
            (parsed.location.as_deref(), parsed.content_disposition.as_deref()),
            (Some("/b"), Some("attachment"))
        );
        assert!(
            !head(200, &[("content-encoding", "identity"), ("content-length", "1")]).expect("read").head.is_encoded
        );
        let several =
            [("content-encoding", "gzip"), ("content-encoding", "identity"), ("content-encoding", "gzip, br")];
        let several = head(200, &several).expect("read").meta.content_encoding;
        assert_eq!(several.as_deref(), Some("gzip, gzip, br"), "several fields form one list");
    }

    #[test]
    fn an_http_1_0_connection_closes_unless_keep_alive_is_sent() {
        let read = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            parse_head(200, false, fields, SystemTime::UNIX_EPOCH).expect("read").head.closes_connection
        };
        assert!(read(&[("content-length", "1")]));
        assert!(!read(&[("content-length", "1"), ("connection", "keep-alive")]));
    }
}
