//! Access to the parsers of tunnel requests and responses, for the fuzz targets and the equivalent unit tests only.
//!
//! Only plain values are passed, so that the tunnel's own types stay private.

use crate::tunnel::{Request, Target, parse};

/// Target and length of the head of an edge's request; `None` if the head is incomplete.
///
/// # Errors
/// The complete error response.
pub fn connect_head(bytes: &[u8]) -> Result<Option<(String, u16, usize)>, String> {
    match parse(bytes) {
        Ok(Some((Request::Connect(Target { host, port }), len))) => Ok(Some((host, port, len))),
        Ok(None) => Ok(None),
        Err(problem) => Err(problem.to_response()),
    }
}

/// The authority of a parsed target, as it would be requested again.
pub fn format_authority(host: &str, port: u16) -> Option<String> {
    Target::new(host, port).map(|target| target.authority())
}

/// Status, error text and head length of a relay's response; `None` if the head is incomplete.
///
/// # Errors
/// If the bytes are not a valid response.
pub fn relay_response(bytes: &[u8]) -> std::io::Result<Option<(u16, String, usize)>> {
    Ok(crate::edge::parse_response(bytes)?.map(|answer| (answer.status, answer.details, answer.head_len)))
}

/// Checks properties that hold for any request head.
///
/// # Panics
/// If a property does not hold.
pub fn check_connect_head(bytes: &[u8]) {
    let parsed = connect_head(bytes);
    match &parsed {
        Ok(Some((host, port, len))) => {
            assert!((1..=bytes.len()).contains(len) && *port > 0, "{host}:{port}, {len} bytes");
            assert!(
                !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()),
                "{host:?}"
            );
            // The same target results if it is requested again.
            let authority = format_authority(host, *port).expect("a parsed target can be requested");
            let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            assert_eq!(connect_head(head.as_bytes()), Ok(Some((host.clone(), *port, head.len()))));
            // Bytes after the head belong to the tunnel, and no shorter prefix is a complete request.
            assert_eq!(connect_head(bytes.get(..*len).unwrap_or_default()), parsed);
            assert_eq!(connect_head(bytes.get(..len - 1).unwrap_or_default()), Ok(None));
        }
        Ok(None) => assert!(bytes.len() < 8192, "a head without a limit"),
        Err(response) => {
            let (head, body) = response.split_once("\r\n\r\n").expect("a response has a head");
            assert!(head.starts_with("HTTP/1.1 4") && head.contains("Proxy-Status: marline; error="), "{head}");
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{response}");
        }
    }
}

/// Checks properties that hold for any response of a relay.
///
/// # Panics
/// If a property does not hold.
pub fn check_relay_response(bytes: &[u8]) {
    match relay_response(bytes) {
        Ok(Some((status, _, len))) => {
            assert!((1..=bytes.len()).contains(&len) && status < 1000, "{status}, {len} bytes");
            let alone = relay_response(bytes.get(..len).unwrap_or_default());
            assert!(matches!(alone, Ok(Some((again, _, all))) if (again, all) == (status, len)));
        }
        Ok(None) => assert!(bytes.len() < 4096, "a response without a limit"),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_keep_the_properties_of_heads_and_responses(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            check_connect_head(&bytes);
            check_relay_response(&bytes);
        }

        #[test]
        fn plausible_heads_keep_the_properties(
            method in "(CONNECT|GET|connect)",
            target in "[a-zA-Z0-9._\\[\\]:@/%-]{0,40}",
            fields in "(Host: x\r\n|A: [ -~]{0,20}\r\n|Content-Length: 3\r\n){0,3}",
            behind in "[ -~]{0,20}",
        ) {
            check_connect_head(format!("{method} {target} HTTP/1.1\r\n{fields}\r\n{behind}").as_bytes());
        }

        #[test]
        fn plausible_responses_keep_the_properties(
            status in "[0-9]{1,4}",
            fields in "(Proxy-Status: [ -~]{0,30}\r\n|A: b\r\n){0,3}",
            behind in "[ -~]{0,20}",
        ) {
            check_relay_response(format!("HTTP/1.1 {status} words\r\n{fields}\r\n{behind}").as_bytes());
        }
    }
}
