//! One request for a tunnel over a connection that stands, and what a relay answers.
//!
//! In: a connection and a target. Out: the tunnel, or why not. An answer has at most [`LONGEST`] bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::dial::RelayConn;
use crate::tunnel::Target;

/// What a relay needs to reach a server, and then some.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(16);
/// The longest answer of a relay.
const MAX_RESPONSE_LEN: usize = 4096;

/// Why there is no tunnel.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// What the relay has answered.
    Refused(Answer),
    /// The connection is no good.
    Connection(io::Error),
}

impl ConnectError {
    /// The connection is no good, or was given up before the request came: what it says is no answer to it.
    pub(super) fn is_no_answer(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Refused(answer) => answer.status == TIMED_OUT,
        }
    }
}

/// What a relay answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Why, of the words that an edge decides by or passes on ([`ERRORS`], RFC 9209).
    pub(crate) error: Option<&'static str>,
    /// The reason as text for the user.
    pub(crate) words: String,
    /// How long its head is.
    pub(crate) len: usize,
}

/// Asks for a tunnel; with it comes what came behind the answer.
pub(super) async fn request_tunnel(
    mut conn: RelayConn,
    target: &Target,
) -> Result<(RelayConn, Vec<u8>), ConnectError> {
    let exchange = async {
        let head = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", target.authority());
        conn.write_all(head.as_bytes()).await?;
        conn.flush().await?;
        let mut bytes = Vec::with_capacity(512);
        loop {
            if conn.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = parse_response(&bytes)? {
                let rest = bytes.split_off(answer.len);
                return Ok((answer, rest));
            }
        }
    };
    match timeout(RESPONSE_TIMEOUT, exchange).await {
        Ok(Ok((answer, rest))) if answer.status == 200 => Ok((conn, rest)),
        Ok(Ok((answer, _))) => Err(ConnectError::Refused(answer)),
        Ok(Err(error)) => Err(ConnectError::Connection(error)),
        Err(_) => Err(ConnectError::Connection(io::Error::new(io::ErrorKind::TimedOut, "no answer"))),
    }
}

/// A relay's answer; none: there is more to come.
pub(crate) fn parse_response(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => {
            let status = head.code.ok_or_else(|| bad("an answer without a status"))?;
            let proxy_status = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("proxy-status"));
            let details = proxy_status.map_or(head.reason.unwrap_or_default().to_owned(), |field| {
                let text = String::from_utf8_lossy(field.value).into_owned();
                text.split_once("details=\"")
                    .map_or(text.clone(), |(_, rest)| rest.trim_end_matches('"').to_owned())
            });
            let error = proxy_status.and_then(|field| error(&String::from_utf8_lossy(field.value)));
            Ok(Some(Answer { status, error, words: details, len }))
        }
        Ok(httparse::Status::Partial) if bytes.len() < MAX_RESPONSE_LEN => Ok(None),
        Ok(httparse::Status::Partial) => Err(bad("the answer is too long")),
        Err(error) => Err(bad(&error.to_string())),
    }
}

/// HTTP's status of a relay that has waited for long enough.
pub(super) const TIMED_OUT: u16 = 408;
/// Those of the errors of RFC 9209, section 2.3, that a relay answers with where it does not reach a server.
const ERRORS: [&str; 7] = [
    "connection_refused",
    "connection_timeout",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "dns_error",
    "dns_timeout",
    "http_request_denied",
];

/// The error in a field `Proxy-Status`; none: it names none, or another one.
fn error(field: &str) -> Option<&'static str> {
    let parameters = field.split_once("details=").map_or(field, |(before, _)| before).split(';');
    let word = parameters.filter_map(|parameter| parameter.trim().strip_prefix("error=")).next()?.trim();
    ERRORS.into_iter().find(|error| *error == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{Problem, Status};

    #[test]
    fn a_relays_answers_are_understood() {
        assert_eq!(
            parse_response(crate::tunnel::CONNECTED.as_bytes()).unwrap(),
            Some(Answer { status: 200, error: None, words: "Connection established".to_owned(), len: 39 })
        );
        let problem =
            Problem::new(Status::ServiceUnavailable, "connection_limit_reached", "this relay is draining")
                .to_response();
        let of = parse_response(problem.as_bytes()).unwrap().unwrap();
        assert_eq!((of.status, of.error, of.words.as_str()), (503, None, "this relay is draining"));
        for error in ERRORS {
            let problem = Problem::new(Status::Forbidden, error, "h: error=dns_error; no").to_response();
            assert_eq!(parse_response(problem.as_bytes()).unwrap().unwrap().error, Some(error));
        }
        assert!(parse_response(&problem.as_bytes()[..20]).unwrap().is_none());
        assert!(parse_response(b"SSH-2.0-x\r\n").is_err());
        assert!(parse_response(&[b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &[b'y'; 5000]].concat()).is_err());
    }
}
