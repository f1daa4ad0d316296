//! Requests that a relay receives from edges, and responses that an edge receives from relays.

use marline_fleet::fuzzing;

/// The head of a CONNECT request, and the bytes after it.
pub fn connect_head(bytes: &[u8]) {
    fuzzing::check_connect_head(bytes);
}

/// The response of a relay, and the bytes after it.
pub fn relay_response(bytes: &[u8]) {
    fuzzing::check_relay_response(bytes);
}
