//! Tolerant parsing of response heads with errors that other programs accept: status lines, fields and continuation
//! lines that HTTP does not allow.
//!
//! Fields with a syntax error are ignored, unless one may be a field that determines where the body ends: then the
//! head is rejected.

/// The errors in a head that other programs tolerate as well.
fn lenient_config() -> httparse::ParserConfig {
    let mut lenient = httparse::ParserConfig::default();
    lenient
        .ignore_invalid_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true)
        .allow_space_before_first_header_name(true);
    lenient
}

/// Parses a head with everything that others tolerate. All fields that frame the body must be among the parsed ones.
pub(super) fn parse_leniently<'f, 'h>(
    head: &'h [u8],
    fields: &'f mut [httparse::Header<'h>],
) -> (httparse::Response<'f, 'h>, httparse::Result<usize>) {
    let mut response = httparse::Response::new(fields);
    let mut parsed = lenient_config().parse_response(&mut response, head);
    if let Ok(httparse::Status::Complete(used)) = parsed {
        // httparse takes a line of blanks after the status line for the end of the head.
        parsed = match head_end(head) {
            None => Ok(httparse::Status::Partial),
            Some(end) if end != used || framing_lines(head) != framing_fields(&response) => {
                Err(httparse::Error::HeaderValue)
            }
            Some(_) => parsed,
        };
    }
    (response, parsed)
}

/// Where the head ends: after the first empty line that follows the status line. A line of blanks is a continuation
/// and does not end the head, as in curl. `None` if the end has not arrived.
pub(super) fn head_end(bytes: &[u8]) -> Option<usize> {
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let mut line_ends = (start..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1);
    line_ends.find_map(|next| match &bytes[next..] {
        [b'\n', ..] => Some(next + 1),
        [b'\r', b'\n', ..] => Some(next + 2),
        _ => None,
    })
}

/// Whether a field continues in the next line (RFC 9112 section 5.2).
pub(super) fn has_folds(head: &[u8]) -> bool {
    head.windows(2).any(|pair| pair[0] == b'\n' && matches!(pair[1], b' ' | b'\t'))
}

/// A copy of the head, of equal length, with blanks in place of line ends that are followed by a blank.
pub(super) fn join_folds(head: &[u8]) -> Vec<u8> {
    let mut joined = head.to_vec();
    for at in 1..head.len() {
        if matches!(head[at], b' ' | b'\t') && head[at - 1] == b'\n' {
            joined[at - 1] = b' ';
            if at >= 2 && head[at - 2] == b'\r' {
                joined[at - 2] = b' ';
            }
        }
    }
    joined
}

/// Whether the bytes start with this line. The protocol name may be in lower case, as in curl.
pub(super) fn starts_with(bytes: &[u8], line: &[u8], ignore_case: bool) -> bool {
    bytes.get(..line.len()).is_some_and(|first| first == line || (ignore_case && first.eq_ignore_ascii_case(line)))
}

/// Whether this may become a status line, and is not complete yet.
pub(super) fn may_be_status_line(head: &[u8]) -> bool {
    let line = head.trim_ascii_start();
    starts_with(line, HTTP_PREFIX, true) && !line.contains(&b'\n')
}

/// Parses a status line with a version and a status as other programs do, and ignores what follows the status.
/// Returns its length without the line end, and its normalized form.
pub(super) fn normalized_status_line(head: &[u8]) -> Option<(usize, [u8; 12])> {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let end = start + head.get(start..)?.iter().position(|byte| *byte == b'\n')?;
    let end = if head[end - 1] == b'\r' { end - 1 } else { end };
    let line =
        head.get(start..end).filter(|line| starts_with(line, HTTP_PREFIX, true))?.get(HTTP_PREFIX.len()..)?;
    let version = line.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
    let (version, remaining) = line.split_at(version);
    if !matches!(version, [b'1'..=b'3'] | [b'1'..=b'3', b'.', b'0'..=b'9']) {
        return None;
    }
    let [hundreds @ b'1'..=b'5', tens @ b'0'..=b'9', ones @ b'0'..=b'9', tail @ ..] = remaining.trim_ascii_start()
    else {
        return None;
    };
    let mut normalized = *b"HTTP/1.1 200";
    normalized[7] = if version == b"1.0" { b'0' } else { b'1' };
    normalized[9..].copy_from_slice(&[*hundreds, *tens, *ones]);
    (!tail.first().is_some_and(u8::is_ascii_digit)).then_some((end, normalized))
}

/// Whether a field determines where the body ends, or which bytes it has.
fn is_framing(name: &[u8]) -> bool {
    let framing_fields = [&b"content-length"[..], b"transfer-encoding", b"content-range", b"connection"];
    framing_fields.iter().any(|field| name.trim_ascii().eq_ignore_ascii_case(field))
}

/// The number of framing fields ([`is_framing`]) in a head, well-formed or not.
fn framing_lines(head: &[u8]) -> usize {
    let lines = head.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.split(|byte| *byte == b':').next()).filter(|name| is_framing(name)).count()
}

/// The number of framing fields ([`is_framing`]) that were parsed.
fn framing_fields(response: &httparse::Response<'_, '_>) -> usize {
    response.headers.iter().filter(|field| is_framing(field.name.as_bytes())).count()
}

pub(super) const HTTP_PREFIX: &[u8] = b"HTTP/";
/// Prefixes of status lines that are not HTTP/1, with the prefix that they mean: SHOUTcast's, NCSA httpd's, and lower
/// case.
pub(super) const NONSTANDARD_PREFIXES: [(&[u8], &[u8]); 3] =
    [(b"ICY ", b"HTTP/1.0 "), (b"HTTP ", b"HTTP/1.0 "), (HTTP_PREFIX, HTTP_PREFIX)];
