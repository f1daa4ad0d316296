//! Doors to what relays and edges read of each other, for the fuzz targets and their twins among the tests alone.
//!
//! Plain values go in and come out: the tunnel's own types stay its own.

use crate::tunnel::{Request, Target, parse};

/// What an edge's head asks for, and how long it is; none: there is more to come. Else the answer to it.
///
/// # Errors
/// The whole answer.
pub fn connect_head(bytes: &[u8]) -> Result<Option<(String, u16, usize)>, String> {
    match parse(bytes) {
        Ok(Some((Request::Connect(Target { host, port }), len))) => Ok(Some((host, port, len))),
        Ok(None) => Ok(None),
        Err(problem) => Err(problem.to_response()),
    }
}

/// How a target that was read is asked for again.
pub fn format_authority(host: &str, port: u16) -> Option<String> {
    Target::new(host, port).map(|target| target.authority())
}

/// What a relay's answer says: its status, its words, and how long its head is; none: there is more to come.
///
/// # Errors
/// It is none.
pub fn relay_response(bytes: &[u8]) -> std::io::Result<Option<(u16, String, usize)>> {
    Ok(crate::edge::parse_response(bytes)?.map(|answer| (answer.status, answer.words, answer.len)))
}

/// What holds of any head of an edge, however it is cut.
///
/// # Panics
/// It does not hold.
pub fn check_connect_head(bytes: &[u8]) {
    let parsed = connect_head(bytes);
    match &parsed {
        Ok(Some((host, port, len))) => {
            assert!((1..=bytes.len()).contains(len) && *port > 0, "{host}:{port}, {len} bytes");
            assert!(
                !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()),
                "{host:?}"
            );
            // Asked for again it is the same target.
            let authority = format_authority(host, *port).expect("what was understood can be asked for");
            let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            assert_eq!(connect_head(head.as_bytes()), Ok(Some((host.clone(), *port, head.len()))));
            // What follows belongs to the tunnel, and nothing before its end is a request.
            assert_eq!(connect_head(bytes.get(..*len).unwrap_or_default()), parsed);
            assert_eq!(connect_head(bytes.get(..len - 1).unwrap_or_default()), Ok(None));
        }
        Ok(None) => assert!(bytes.len() < 8192, "a head that never ends"),
        Err(response) => {
            let (head, body) = response.split_once("\r\n\r\n").expect("an answer has a head");
            assert!(head.starts_with("HTTP/1.1 4") && head.contains("Proxy-Status: marline; error="), "{head}");
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{response}");
        }
    }
}

/// What holds of any answer of a relay.
///
/// # Panics
/// It does not hold.
pub fn check_relay_response(bytes: &[u8]) {
    match relay_response(bytes) {
        Ok(Some((status, _, len))) => {
            assert!((1..=bytes.len()).contains(&len) && status < 1000, "{status}, {len} bytes");
            let alone = relay_response(bytes.get(..len).unwrap_or_default());
            assert!(matches!(alone, Ok(Some((again, _, all))) if (again, all) == (status, len)));
        }
        Ok(None) => assert!(bytes.len() < 4096, "an answer that never ends"),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            check_connect_head(&bytes);
            check_relay_response(&bytes);
        }

        #[test]
        fn what_looks_like_a_head_is_one_or_none(
            method in "(CONNECT|GET|connect)",
            target in "[a-zA-Z0-9._\\[\\]:@/%-]{0,40}",
            fields in "(Host: x\r\n|A: [ -~]{0,20}\r\n|Content-Length: 3\r\n){0,3}",
            behind in "[ -~]{0,20}",
        ) {
            check_connect_head(format!("{method} {target} HTTP/1.1\r\n{fields}\r\n{behind}").as_bytes());
        }

        #[test]
        fn what_looks_like_an_answer_is_one_or_none(
            status in "[0-9]{1,4}",
            fields in "(Proxy-Status: [ -~]{0,30}\r\n|A: b\r\n){0,3}",
            behind in "[ -~]{0,20}",
        ) {
            check_relay_response(format!("HTTP/1.1 {status} words\r\n{fields}\r\n{behind}").as_bytes());
        }
    }
}
