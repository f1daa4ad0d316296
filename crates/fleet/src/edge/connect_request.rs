//! Requests a tunnel over an open connection to a relay (HTTP CONNECT), and parses the relay's response. A response head is limited to
//! [`MAX_RESPONSE_LEN`] bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::dial::RelayConn;
use crate::tunnel::Target;

/// Longer than a relay needs to reach a server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(16);
/// The maximum length of a relay's response head, in bytes.
const MAX_RESPONSE_LEN: usize = 4096;

/// Why no tunnel was opened.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The relay's error response.
    Refused(RelayResponse),
    /// The connection failed.
    Connection(io::Error),
}

impl ConnectError {
    /// Whether the connection failed, or was closed before the request arrived: then a response that was received does not belong to the
    /// request.
    pub(super) fn is_connection_failure(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Refused(answer) => answer.status == REQUEST_TIMEOUT_STATUS,
        }
    }
}

/// A relay's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RelayResponse {
    pub(crate) status: u16,
    /// The error type, if it is one that an edge decides by or passes on ([`ERRORS`], RFC 9209).
    pub(crate) error: Option<&'static str>,
    /// The reason as text for the user.
    pub(crate) details: String,
    /// Length of the response head in bytes.
    pub(crate) head_len: usize,
}

/// Requests a tunnel. Also returns the payload that arrived after the response head.
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
                let remaining = bytes.split_off(answer.head_len);
                return Ok((answer, remaining));
            }
        }
    };
    match timeout(RESPONSE_TIMEOUT, exchange).await {
        Ok(Ok((answer, remaining))) if answer.status == 200 => Ok((conn, remaining)),
        Ok(Ok((answer, _))) => Err(ConnectError::Refused(answer)),
        Ok(Err(error)) => Err(ConnectError::Connection(error)),
        Err(_) => Err(ConnectError::Connection(io::Error::new(io::ErrorKind::TimedOut, "no answer"))),
    }
}

/// Parses a relay's response; `None`: it is not complete yet.
pub(crate) fn parse_response(bytes: &[u8]) -> io::Result<Option<RelayResponse>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => {
            let status = head.code.ok_or_else(|| bad("a response without a status"))?;
            let proxy_status = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("proxy-status"));
            let details = proxy_status.map_or(head.reason.unwrap_or_default().to_owned(), |field| {
                let text = String::from_utf8_lossy(field.value).into_owned();
                text.split_once("details=\"")
                    .map_or(text.clone(), |(_, remaining)| remaining.trim_end_matches('"').to_owned())
            });
            let error = proxy_status.and_then(|field| proxy_status_error(&String::from_utf8_lossy(field.value)));
            Ok(Some(RelayResponse { status, error, details, head_len: len }))
        }
        Ok(httparse::Status::Partial) if bytes.len() < MAX_RESPONSE_LEN => Ok(None),
        Ok(httparse::Status::Partial) => Err(bad("the response head is too long")),
        Err(error) => Err(bad(&error.to_string())),
    }
}

/// HTTP status of a relay that has waited too long for a request.
pub(super) const REQUEST_TIMEOUT_STATUS: u16 = 408;
/// The errors of RFC 9209 section 2.3 that a relay returns if it cannot reach a server.
const ERRORS: [&str; 7] = [
    "connection_refused",
    "connection_timeout",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "dns_error",
    "dns_timeout",
    "http_request_denied",
];

/// The error type in a `Proxy-Status` field; `None`: it has none, or another one.
fn proxy_status_error(field: &str) -> Option<&'static str> {
    let parameters = field.split_once("details=").map_or(field, |(before, _)| before).split(';');
    let code = parameters.filter_map(|parameter| parameter.trim().strip_prefix("error=")).next()?.trim();
    ERRORS.into_iter().find(|error| *error == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{Problem, Status};

    #[test]
    fn a_relays_responses_are_parsed() {
        assert_eq!(
            parse_response(crate::tunnel::CONNECTED.as_bytes()).unwrap(),
            Some(RelayResponse {
                status: 200,
                error: None,
                details: "Connection established".to_owned(),
                head_len: 39
            })
        );
        let problem =
            Problem::new(Status::ServiceUnavailable, "connection_limit_reached", "this relay is draining")
                .to_response();
        let response = parse_response(problem.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (response.status, response.error, response.details.as_str()),
            (503, None, "this relay is draining")
        );
        for error in ERRORS {
            let problem = Problem::new(Status::Forbidden, error, "h: error=dns_error; no").to_response();
            assert_eq!(parse_response(problem.as_bytes()).unwrap().unwrap().error, Some(error));
        }
        assert!(parse_response(&problem.as_bytes()[..20]).unwrap().is_none());
        assert!(parse_response(b"SSH-2.0-x\r\n").is_err());
        assert!(parse_response(&[b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &[b'y'; 5000]].concat()).is_err());
    }
}
