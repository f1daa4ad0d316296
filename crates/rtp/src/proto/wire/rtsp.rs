//! Messages of RTSP 1.0 (RFC 2326 §4 to §7), as far as somebody between a player and a server needs them.
//!
//! In: bytes of a connection. Out: whole messages, one after another, and their bytes again.
//!
//! 1. A message is whole or not there yet; what can never become one is a [`ParseError`].
//! 2. Heads and bodies have bounds, so that nobody makes us keep more.
//! 3. Headers keep their order and their text; what is not known passes.

/// The longest head. chosen: as HTTP servers have it.
pub const MAX_HEAD: usize = 16 << 10;
/// The longest body. chosen: many times a description of a session.
pub const MAX_BODY: usize = 64 << 10;

/// A request or an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its first line.
    pub start_line: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// What follows the head.
    pub body: Vec<u8>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// Media within the connection (RFC 2326 §10.12).
    #[error("it carries media within the connection (interleaved)")]
    Interleaved,
    /// Longer than [`MAX_HEAD`] or [`MAX_BODY`].
    #[error("a message is too long")]
    TooLong,
    /// Anything else.
    #[error("it does not speak RTSP/1.0")]
    Malformed,
}

impl Message {
    /// The first message of these bytes and how many of them it takes; none: more is to come.
    ///
    /// # Errors
    /// It can never become one.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        // Empty lines before a message are passed over (RFC 2326 §4, as in HTTP).
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let rest = bytes.get(blank..).unwrap_or_default();
        if rest.first() == Some(&b'$') {
            return Err(ParseError::Interleaved);
        }
        let Some(head) = rest.windows(4).take(MAX_HEAD).position(|four| four == b"\r\n\r\n") else {
            return if rest.len() >= MAX_HEAD { Err(ParseError::TooLong) } else { Ok(None) };
        };
        let text = rest.get(..head).and_then(|head| std::str::from_utf8(head).ok()).ok_or(ParseError::Malformed)?;
        let mut lines = text.split("\r\n");
        let start_line = lines.next().unwrap_or_default().to_owned();
        // A line's end that only some see would hide a header from others.
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
        let Some(body) = rest.get(head + 4..head + 4 + length) else { return Ok(None) };
        message.body = body.to_owned();
        Ok(Some((message, blank + head + 4 + length)))
    }

    /// A request.
    pub fn request(method: &str, uri: &str) -> Self {
        Self { start_line: format!("{method} {uri} RTSP/1.0"), headers: Vec::new(), body: Vec::new() }
    }

    /// An answer of our own to the request with this number.
    pub fn response(status: u16, reason: &str, cseq: &str) -> Self {
        let headers = vec![("CSeq".to_owned(), cseq.to_owned())];
        Self { start_line: format!("RTSP/1.0 {status} {reason}"), headers, body: Vec::new() }
    }

    /// What a request asks for; none: it is an answer.
    pub fn method(&self) -> Option<&str> {
        let mut words = self.start_line.split(' ');
        let method = words.next().filter(|method| !method.is_empty() && *method != "RTSP/1.0")?;
        (words.clone().count() == 2 && words.next_back() == Some("RTSP/1.0")).then_some(method)
    }

    /// What a request is about.
    pub fn uri(&self) -> Option<&str> {
        self.method().and_then(|_| self.start_line.split(' ').nth(1))
    }

    /// Of an answer.
    pub fn status(&self) -> Option<u16> {
        let word = self.start_line.strip_prefix("RTSP/1.0 ")?.split(' ').next()?;
        word.parse().ok().filter(|status| (100..600).contains(status))
    }

    /// The first header of this name, however it is written.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Sets a header, in place of all of its name.
    pub fn set_header(&mut self, name: &str, value: &str) {
        let at = self.headers.iter().position(|(other, _)| other.eq_ignore_ascii_case(name));
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        let at = at.unwrap_or(self.headers.len()).min(self.headers.len());
        self.headers.insert(at, (name.to_owned(), value.to_owned()));
    }

    /// The number that an answer repeats.
    pub fn cseq(&self) -> Option<&str> {
        self.header("CSeq")
    }

    /// The session's name, without what stands behind it.
    pub fn session_id(&self) -> Option<&str> {
        Some(self.header("Session")?.split(';').next()?.trim()).filter(|name| !name.is_empty())
    }

    /// Its bytes.
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

/// Whether a server may hear this request twice and do no more than once: a command within a session that sets a state.
///
/// PLAY with a range is not one: a server starts there anew, or queues it (RFC 2326 §10.5). Nor is SETUP, which makes
/// something, nor what is recorded.
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
    fn a_message_is_whole_or_not_there_yet() {
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
    fn a_request_has_its_words() {
        let (mut message, _) = Message::parse(PAUSE).unwrap().unwrap();
        assert_eq!((message.method(), message.uri()), (Some("PAUSE"), Some("rtsp://cam/live")));
        assert_eq!(message.session_id(), Some("77"));
        assert_eq!(message.to_bytes(), PAUSE);
        message.set_header("cseq", "6");
        assert_eq!((message.cseq(), message.headers.len()), (Some("6"), 2));
    }

    #[test]
    fn what_can_never_become_a_message_is_refused() {
        assert_eq!(Message::parse(b"$\0\0\x04abcd"), Err(ParseError::Interleaved));
        assert_eq!(Message::parse(b"GET / HTTP/1.1\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"RTSP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\n"), Err(ParseError::TooLong));
        assert_eq!(Message::parse(&[b'x'; MAX_HEAD]), Err(ParseError::TooLong));
        assert_eq!(Message::parse(b"PLAY RTSP/1.0\r\n\r\n"), Err(ParseError::Malformed));
        assert_eq!(Message::parse(b"PLAY a\nSession: 1\n RTSP/1.0\r\n\r\n"), Err(ParseError::Malformed));
    }

    #[test]
    fn what_sets_a_state_may_be_said_twice() {
        let request = |method: &str, headers: &[(&str, &str)]| {
            let mut request = Message::request(method, "rtsp://cam/live");
            headers.iter().for_each(|(name, value)| request.set_header(name, value));
            is_repeatable(&request)
        };
        let session_id = ("Session", "77");
        for method in ["PAUSE", "TEARDOWN", "GET_PARAMETER", "PLAY"] {
            assert!(request(method, &[session_id]) && !request(method, &[]), "{method}");
        }
        assert!(request("PLAY", &[session_id, ("Range", "npt=now-")]));
        assert!(!request("PLAY", &[session_id, ("Range", "npt=0.000-")]), "it starts anew");
        assert!(
            !request("SETUP", &[session_id])
                && !request("DESCRIBE", &[session_id])
                && !request("RECORD", &[session_id])
        );
    }
}
