//! RTSP 1.0 messages (RFC 2326 sections 4 to 7), as far as a proxy between player and server needs them.
//!
//! [`Message::parse`] cuts a byte stream into whole messages; [`Message::to_bytes`] writes them again. Head and body have bounds, so that a
//! peer cannot make this process buffer more. Headers keep their order, repetitions and text, and unknown ones pass; only `Content-Length`
//! is rewritten as the last one.
//!
//! The crate `rtsp-types` (0.1.3) was measured and not used, because a proxy must forward what it does not understand:
//! - It parses the request URI by the rules of browsers and writes the normalized one: `rtsp://cam/a|b/../c` is sent on as
//!   `rtsp://cam/c`, and a digest (RFC 2617) over the player's URI no longer matches. Paths without a host are errors.
//! - It sorts headers by name and joins repeated ones with commas. A server that offers Digest and Basic in two `WWW-Authenticate`
//!   headers then offers one list that many players cannot read, and contradicting `Content-Length` headers pass.
//! - A bare line feed is part of a header's value, which lets a peer hide a header from us that a tolerant server obeys.
//! - It has no bound on the size of head and body.

/// Longest head in bytes: a usual limit of HTTP servers.
pub const MAX_HEAD: usize = 16 << 10;
/// Longest body in bytes: many times the size of a session description.
pub const MAX_BODY: usize = 64 << 10;

/// A request or a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Request line or status line, without the line end.
    pub start_line: String,
    /// Names and values in the order of the message; values without surrounding blanks.
    pub headers: Vec<(String, String)>,
    /// The bytes after the head, as many as `Content-Length` says.
    pub body: Vec<u8>,
}

/// Why a byte stream can never become a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// Media interleaved with messages on the RTSP connection (RFC 2326 section 10.12).
    #[error("media interleaved on the RTSP connection is not supported; use RTP over UDP")]
    Interleaved,
    /// Longer than [`MAX_HEAD`] or [`MAX_BODY`].
    #[error("an RTSP message exceeds 16 KiB of headers or 64 KiB of content")]
    TooLong,
    /// Not RTSP 1.0.
    #[error("the bytes received are not RTSP/1.0")]
    Malformed,
}

impl Message {
    /// Parses the first message. Returns it with the number of bytes it took, or `None` if the message is still incomplete.
    ///
    /// # Errors
    /// If no further bytes can make this a message.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        // Empty lines before a message are skipped (RFC 2326 section 4, as in HTTP).
        let blank_len = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let remaining = bytes.get(blank_len..).unwrap_or_default();
        if remaining.first() == Some(&b'$') {
            return Err(ParseError::Interleaved);
        }
        let Some(head_len) = remaining.windows(4).take(MAX_HEAD).position(|window| window == b"\r\n\r\n") else {
            return if blank_len.max(remaining.len()) >= MAX_HEAD { Err(ParseError::TooLong) } else { Ok(None) };
        };
        let text = remaining
            .get(..head_len)
            .and_then(|head| std::str::from_utf8(head).ok())
            .ok_or(ParseError::Malformed)?;
        let mut lines = text.split("\r\n");
        let start_line = lines.next().unwrap_or_default().to_owned();
        // Some parsers treat a lone CR or LF as a line end: a header behind it would exist for them and not for us.
        let is_line = |line: &str| !line.contains(['\r', '\n', '\0']);
        if !text.split("\r\n").all(is_line)
            || !(start_line.starts_with("RTSP/1.0 ") || start_line.ends_with(" RTSP/1.0"))
        {
            return Err(ParseError::Malformed);
        }
        let headers = lines.map(header).collect::<Option<Vec<_>>>().ok_or(ParseError::Malformed)?;
        let mut message = Self { start_line, headers, body: Vec::new() };
        if message.method().is_none() == message.status().is_none() {
            return Err(ParseError::Malformed);
        }
        let length = match message.header("Content-Length").map(str::parse::<usize>) {
            None => 0,
            Some(Ok(length)) if length <= MAX_BODY => length,
            Some(Ok(_)) => return Err(ParseError::TooLong),
            Some(Err(_)) => return Err(ParseError::Malformed),
        };
        let Some(body) = remaining.get(head_len + 4..head_len + 4 + length) else { return Ok(None) };
        message.body = body.to_owned();
        Ok(Some((message, blank_len + head_len + 4 + length)))
    }

    /// Creates a request without headers.
    pub fn request(method: &str, uri: &str) -> Self {
        Self { start_line: format!("{method} {uri} RTSP/1.0"), headers: Vec::new(), body: Vec::new() }
    }

    /// Creates a response to the request with this `CSeq`.
    pub fn response(status: u16, reason: &str, cseq: &str) -> Self {
        let headers = vec![("CSeq".to_owned(), cseq.to_owned())];
        Self { start_line: format!("RTSP/1.0 {status} {reason}"), headers, body: Vec::new() }
    }

    /// The method of a request, or `None` for a response.
    pub fn method(&self) -> Option<&str> {
        let mut parts = self.start_line.split(' ');
        let method = parts.next().filter(|method| !method.is_empty() && *method != "RTSP/1.0")?;
        (parts.clone().count() == 2 && parts.next_back() == Some("RTSP/1.0")).then_some(method)
    }

    /// The URI of a request.
    pub fn uri(&self) -> Option<&str> {
        self.method().and_then(|_| self.start_line.split(' ').nth(1))
    }

    /// The status code of a response, 100 to 599.
    pub fn status(&self) -> Option<u16> {
        let status = self.start_line.strip_prefix("RTSP/1.0 ")?.split(' ').next()?;
        status.parse().ok().filter(|status| (100..600).contains(status))
    }

    /// The first header of this name. Case does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Sets a header. It replaces all headers of this name, at the position of the first one.
    pub fn set_header(&mut self, name: &str, value: &str) {
        let index = self.headers.iter().position(|(header, _)| header.eq_ignore_ascii_case(name));
        self.headers.retain(|(header, _)| !header.eq_ignore_ascii_case(name));
        let index = index.unwrap_or(self.headers.len()).min(self.headers.len());
        self.headers.insert(index, (name.to_owned(), value.to_owned()));
    }

    /// The sequence number, which a response repeats from its request.
    pub fn cseq(&self) -> Option<&str> {
        self.header("CSeq")
    }

    /// The session identifier, without parameters such as the timeout.
    pub fn session_id(&self) -> Option<&str> {
        Some(self.header("Session")?.split(';').next()?.trim()).filter(|name| !name.is_empty())
    }

    /// Serializes the message. `Content-Length` always matches the body.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = self.start_line.clone();
        text += "\r\n";
        for (name, value) in &self.headers {
            if !name.eq_ignore_ascii_case("Content-Length") {
                text += &format!("{name}: {value}\r\n");
            }
        }
        if !self.body.is_empty() {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        text += "\r\n";
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Whether a server may receive this request twice with the effect of one: a command within a session that sets or reads a state.
///
/// PLAY with a range other than `npt=now-` is not repeatable, because the server starts again there or queues the range (RFC 2326 section
/// 10.5). Nor are SETUP, which creates state, and RECORD.
pub fn is_repeatable(request: &Message) -> bool {
    let in_session = request.session_id().is_some();
    match request.method() {
        Some("PAUSE" | "TEARDOWN" | "GET_PARAMETER" | "SET_PARAMETER" | "OPTIONS") => in_session,
        Some("PLAY") => in_session && request.header("Range").is_none_or(|range| range.trim() == "npt=now-"),
        _ => false,
    }
}

fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let is_token = |c: char| c.is_ascii_graphic();
    (!name.is_empty() && name.chars().all(is_token)).then(|| (name.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: &[u8] = b"PAUSE rtsp://cam/live RTSP/1.0\r\nCSeq: 5\r\nSession: 77;timeout=60\r\n\r\n";

    #[test]
    fn an_incomplete_message_is_no_error() {
        let described = b"\r\nRTSP/1.0 200 OK\r\ncseq: 2\r\nContent-Length: 3\r\n\r\nv=0RTSP";
        for end in 0..described.len() - 4 {
            assert_eq!(Message::parse(&described[..end]), Ok(None), "cut at {end}");
        }
        let (message, taken) = Message::parse(described).unwrap().unwrap();
        assert_eq!((message.status(), message.cseq(), taken), (Some(200), Some("2"), described.len() - 4));
        assert_eq!((message.method(), message.body.as_slice()), (None, &b"v=0"[..]));
        let again = message.to_bytes();
        assert_eq!(Message::parse(&again).unwrap().unwrap().0.body, b"v=0");
    }

    #[test]
    fn a_request_has_method_uri_and_session() {
        let (mut message, _) = Message::parse(PAUSE).unwrap().unwrap();
        assert_eq!((message.method(), message.uri()), (Some("PAUSE"), Some("rtsp://cam/live")));
        assert_eq!(message.session_id(), Some("77"));
        assert_eq!(message.to_bytes(), PAUSE);
        message.set_header("cseq", "6");
        assert_eq!((message.cseq(), message.headers.len()), (Some("6"), 2));
    }

    #[test]
    fn malformed_and_oversized_messages_are_errors() {
        assert_eq!(Message::parse(b"$\0\0\x04abcd"), Err(ParseError::Interleaved));
        assert_eq!(Message::parse(b"GET / HTTP/1.1\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"RTSP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\n"), Err(ParseError::TooLong));
        assert_eq!(Message::parse(&[b'x'; MAX_HEAD]), Err(ParseError::TooLong));
        assert_eq!(Message::parse(&[b'\n'; MAX_HEAD]), Err(ParseError::TooLong), "empty lines without end");
        assert_eq!(Message::parse(b"PLAY RTSP/1.0\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"PLAY a\nSession: 1\n RTSP/1.0\r\n\r\n"), Err(ParseError::Malformed));
    }

    #[test]
    fn a_forwarded_message_keeps_order_repetitions_and_uri() {
        for text in [
            "DESCRIBE rtsp://Cam/a|b/../c%zz RTSP/1.0\r\nUser-Agent: x\r\nCSeq: 3\r\n\r\n",
            "RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"a\"\r\nWWW-Authenticate: Basic realm=\"a\"\r\nCSeq: 3\r\n\r\n",
        ] {
            let (message, _) = Message::parse(text.as_bytes()).unwrap().unwrap();
            assert_eq!(message.to_bytes(), text.as_bytes());
        }
    }

    #[test]
    fn requests_that_set_a_state_are_repeatable() {
        let request = |method: &str, headers: &[(&str, &str)]| {
            let mut request = Message::request(method, "rtsp://cam/live");
            headers.iter().for_each(|(name, value)| request.set_header(name, value));
            is_repeatable(&request)
        };
        let session = ("Session", "77");
        for method in ["PAUSE", "TEARDOWN", "GET_PARAMETER", "PLAY"] {
            assert!(request(method, &[session]) && !request(method, &[]), "{method}");
        }
        assert!(request("PLAY", &[session, ("Range", "npt=now-")]));
        assert!(!request("PLAY", &[session, ("Range", "npt=0.000-")]), "the server starts again at the range");
        assert!(
            !request("SETUP", &[session]) && !request("DESCRIBE", &[session]) && !request("RECORD", &[session])
        );
    }
}
