//! What a relay reads of edges, and an edge of relays.

use marline_fleet::fuzzing;

/// The head of a CONNECT, and what follows it.
pub fn head(bytes: &[u8]) {
    fuzzing::check_connect_head(bytes);
}

/// A relay's answer, and what follows it.
pub fn answer(bytes: &[u8]) {
    fuzzing::check_relay_answer(bytes);
}
