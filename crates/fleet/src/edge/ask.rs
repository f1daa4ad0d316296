//! One request for a tunnel over a connection that stands, and what a relay answers.
//!
//! In: a connection and a target. Out: the tunnel, or why not. An answer has at most [`LONGEST`] bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::dial::Road;
use crate::tunnel::Target;

/// What a relay needs to reach a server, and then some.
const ANSWER: Duration = Duration::from_secs(16);
/// The longest answer of a relay.
const LONGEST: usize = 4096;

/// Why there is no tunnel.
#[derive(Debug)]
pub(super) enum Asked {
    /// The relay's status, and its words.
    Refused(u16, String),
    /// The connection is no good.
    Broke(io::Error),
}

/// Asks for a tunnel; with it comes what came behind the answer.
pub(super) async fn ask(mut road: Road, target: &Target) -> Result<(Road, Vec<u8>), Asked> {
    let asked = async {
        let head = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", target.authority());
        road.write_all(head.as_bytes()).await?;
        road.flush().await?;
        let mut bytes = Vec::with_capacity(512);
        loop {
            if road.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, words, len)) = answer(&bytes)? {
                return Ok((status, words, bytes.split_off(len)));
            }
        }
    };
    match timeout(ANSWER, asked).await {
        Ok(Ok((200, _, rest))) => Ok((road, rest)),
        Ok(Ok((status, words, _))) => Err(Asked::Refused(status, words)),
        Ok(Err(error)) => Err(Asked::Broke(error)),
        Err(_) => Err(Asked::Broke(io::Error::new(io::ErrorKind::TimedOut, "no answer"))),
    }
}

/// A relay's answer: its status, what it says, and how long its head is; none: there is more to come.
pub(crate) fn answer(bytes: &[u8]) -> io::Result<Option<(u16, String, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => {
            let status = head.code.ok_or_else(|| bad("an answer without a status"))?;
            let said = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("proxy-status"));
            let words = said.map_or(head.reason.unwrap_or_default().to_owned(), |field| {
                let text = String::from_utf8_lossy(field.value).into_owned();
                text.split_once("details=\"")
                    .map_or(text.clone(), |(_, rest)| rest.trim_end_matches('"').to_owned())
            });
            Ok(Some((status, words, len)))
        }
        Ok(httparse::Status::Partial) if bytes.len() < LONGEST => Ok(None),
        Ok(httparse::Status::Partial) => Err(bad("the answer is too long")),
        Err(error) => Err(bad(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{Problem, Status};

    #[test]
    fn a_relays_answers_are_understood() {
        assert_eq!(
            answer(crate::tunnel::CONNECTED.as_bytes()).unwrap(),
            Some((200, "Connection established".to_owned(), 39))
        );
        let problem = Problem::new(Status::NoRoom, "connection_limit_reached", "this relay is draining").answer();
        let (status, words, _) = answer(problem.as_bytes()).unwrap().unwrap();
        assert_eq!((status, words.as_str()), (503, "this relay is draining"));
        assert!(answer(&problem.as_bytes()[..20]).unwrap().is_none());
        assert!(answer(b"SSH-2.0-x\r\n").is_err());
        assert!(answer(&[b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &[b'y'; 5000]].concat()).is_err());
    }
}
